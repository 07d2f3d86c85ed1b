"""Exact arithmetic on expressions, without Python's evaluator: numbers, ``+ - * / // % ** ^`` and brackets."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from fractions import Fraction

from .schema import ToolError, tool

#: No integer of an expression, nor a power's exponent, may be larger: a calculator must not stall its caller.
MAX_DIGITS = 200
_MAX_LENGTH = 500
_LIMIT = 10**MAX_DIGITS
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_NOT_ZERO = re.compile(r"[0_.]*[1-9]")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ToolError("the exponent of a power must be an integer")
    size = max(abs(base.numerator), base.denominator)
    if size > 1 and abs(exponent) * (size.bit_length() - 1) > MAX_DIGITS * 4:
        raise ToolError(f"the power has more than {MAX_DIGITS} digits")
    if base == 0 and exponent < 0:
        raise ZeroDivisionError
    return base ** int(exponent)


_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: lambda a, b: a % b,
    ast.Pow: _power,
}


def evaluate(expression: str) -> Fraction:
    """The exact value of an arithmetic expression.

    Args:
        expression: Decimal numbers (``1,000`` and ``2.5`` too), ``+ - * / // % **``, brackets; ``^`` is a power, and
            ``×``, ``÷``, ``−`` are read.

    Raises:
        ToolError: It is too long, is not arithmetic, divides by zero, or has numbers of more than 200 digits.
    """
    if len(expression) > _MAX_LENGTH:
        raise ToolError(f"the expression has {len(expression)} characters; at most {_MAX_LENGTH} are allowed")
    text = expression.strip()
    for written, meant in (("×", "*"), ("÷", "/"), ("−", "-"), ("^", "**"), ("$", "")):
        text = text.replace(written, meant)
    text = _THOUSANDS.sub("", text)
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ToolError(f"{expression!r} is not an arithmetic expression") from None
    try:
        return _value(tree.body, text)
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except RecursionError:
        raise ToolError("the expression is nested too deeply") from None


def _value(node: ast.expr, text: str) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        written = (ast.get_source_segment(text, node) or "").lower()
        if isinstance(node.value, float) and (math.isinf(node.value) or (node.value == 0 and _NOT_ZERO.match(written))):
            raise ToolError(f"{written[:40]} has more than {MAX_DIGITS} digits")  # before they are written out
        try:
            return bounded(Fraction(written.replace("_", "")))  # the decimal that was written, not the nearest float
        except ValueError:
            raise ToolError(f"{written[:40]!r} is not a decimal number") from None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        value = _value(node.operand, text)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return bounded(_BINARY[type(node.op)](_value(node.left, text), _value(node.right, text)))
    raise ToolError(f"{(ast.get_source_segment(text, node) or text)[:40]!r} is not arithmetic")


def bounded(value: Fraction) -> Fraction:
    """``value``, if neither its numerator nor its denominator has more than 200 digits.

    Raises:
        ToolError: It has.
    """
    if abs(value.numerator) >= _LIMIT or value.denominator >= _LIMIT:
        raise ToolError(f"a number has more than {MAX_DIGITS} digits")
    return value


def as_text(value: Fraction, digits: int = 12) -> str:
    """A number as one would write it: whole, or a decimal; rounded to ``digits`` significant digits if it has no end.

    A decimal that ends within ``digits`` places is exact.
    """
    if value.denominator == 1:
        return str(value.numerator)
    for places in range(1, digits + 1):
        scaled = value * 10**places
        if scaled.denominator == 1:
            sign, whole = ("-", -scaled.numerator) if scaled < 0 else ("", scaled.numerator)
            text = str(whole).rjust(places + 1, "0")
            return f"{sign}{text[:-places]}.{text[-places:]}"
    return f"{_to_float(value):.{digits}g}"


def _to_float(value: Fraction) -> float:
    return value.numerator / value.denominator


@tool
def calculate(expression: str) -> str:
    """Work out an arithmetic expression.

    Args:
        expression: Numbers, + - * / // % ** and brackets, for example "3 * (4 + 5)".
    """
    return as_text(evaluate(expression))
