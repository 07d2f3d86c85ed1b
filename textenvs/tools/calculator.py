"""Exact arithmetic as tools: expressions (without Python's evaluator) and single operations; ``0.1 + 0.2`` is 0.3."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from fractions import Fraction

from ..python_text import parse_python
from .schema import ToolError, tool

#: No integer of an expression, nor a power's exponent, may be larger: a calculator must not stall its caller.
MAX_DIGITS = 200
_MAX_LENGTH = 500
_LIMIT = 10**MAX_DIGITS
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_NOT_ZERO = re.compile(r"[0_.]*[1-9]")
_SPELLINGS = (("×", "*"), ("÷", "/"), ("−", "-"), ("^", "**"), ("$", ""))


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ToolError("the exponent of a power must be an integer")
    size = max(abs(base.numerator), base.denominator)
    if size > 1 and abs(exponent) * (size.bit_length() - 1) > MAX_DIGITS * 4:
        raise ToolError(f"the power has more than {MAX_DIGITS} digits")
    return base ** int(exponent)


_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction | int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: _power,
}


def evaluate(expression: str) -> Fraction:
    """Return the exact value of an arithmetic expression, or raise :class:`ToolError` with the problem.

    It has decimal numbers (``1,000`` and ``2.5`` too), ``+ - * / // % **`` and brackets; ``^`` is a power, and ``×``,
    ``÷``, ``−`` are read.
    """
    if len(expression) > _MAX_LENGTH:
        raise ToolError(f"the expression has {len(expression)} characters; at most {_MAX_LENGTH} are allowed")
    text = expression.strip()
    for spelling, operator in _SPELLINGS:
        text = text.replace(spelling, operator)
    text = _THOUSANDS.sub("", text)
    try:
        return _value(parse_python(text, "eval").body, text)
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except (SyntaxError, ValueError, MemoryError):
        raise ToolError(f"{expression!r} is not an arithmetic expression") from None
    except RecursionError:
        raise ToolError("the expression is nested too deeply") from None


def _value(node: ast.expr, text: str) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        written = (ast.get_source_segment(text, node) or "").lower()
        if isinstance(node.value, float):  # the exponent is looked at before its digits are written out
            if math.isinf(node.value) or (node.value == 0 and _NOT_ZERO.match(written)):
                raise ToolError(f"{written[:40]} has more than {MAX_DIGITS} digits")
            if node.value == 0:
                return Fraction(0)  # also 0e9999999
        try:
            return bounded(Fraction(written.replace("_", "")))  # the decimal that was written, not the nearest float
        except ValueError:
            raise ToolError(f"{written[:40]!r} is not a decimal number") from None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        value = _value(node.operand, text)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return bounded(Fraction(_BINARY[type(node.op)](_value(node.left, text), _value(node.right, text))))
    raise ToolError(f"{(ast.get_source_segment(text, node) or text)[:40]!r} is not arithmetic")


def bounded(value: Fraction) -> Fraction:
    """Return ``value``; raise ``ToolError`` if its numerator or its denominator has more than 200 digits."""
    if abs(value.numerator) >= _LIMIT or value.denominator >= _LIMIT:
        raise ToolError(f"a number has more than {MAX_DIGITS} digits")
    return value


def as_text(value: Fraction, digits: int = 12) -> str:
    """Write a number as an integer or a decimal, rounded to ``digits`` significant digits if it is not exact.

    A decimal that ends within ``digits`` places is exact.
    """
    for places in range(digits + 1):
        scaled = value * 10**places
        if scaled.denominator == 1:
            text = str(abs(scaled.numerator)).rjust(places + 1, "0")
            whole, decimals = text[: len(text) - places], text[len(text) - places :]
            return f"{'-' if value < 0 else ''}{whole}{'.' if decimals else ''}{decimals}"
    return f"{value.numerator / value.denominator:.{digits}g}"


@tool
def calculate(expression: str) -> str:
    """Work out an arithmetic expression.

    Args:
        expression: Numbers, + - * / // % ** and brackets, for example "3 * (4 + 5)".
    """
    return as_text(evaluate(expression))


def exact(number: int | float) -> Fraction:
    """Convert a JSON number to a fraction: a float is the decimal it is written as."""
    return bounded(Fraction(repr(number)))


@tool
def add(a: int | float, b: int | float) -> str:
    """Add: a + b."""
    return as_text(bounded(exact(a) + exact(b)))


@tool
def subtract(a: int | float, b: int | float) -> str:
    """Subtract: a - b."""
    return as_text(bounded(exact(a) - exact(b)))


@tool
def multiply(a: int | float, b: int | float) -> str:
    """Multiply: a * b."""
    return as_text(bounded(exact(a) * exact(b)))


@tool
def divide(a: int | float, b: int | float) -> str:
    """Divide: a / b."""
    if b == 0:
        raise ToolError("division by zero")
    return as_text(bounded(exact(a) / exact(b)))
