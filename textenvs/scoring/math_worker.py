r"""A program that compares mathematical expressions for :mod:`.math`.

A question is a JSON list: the reference and the answer, both in boxes; the seconds after which the program ends itself;
the problem's expressions, in boxes, or null; and whether the problem asks for the simplest form. The answer to it is
``"equal"``, ``"different"``, ``"unreadable"`` or ``"bad gold"``; with expressions, ``"restated"`` or ``"evaluated"``:
see :func:`is_restated` and :func:`has_work_left`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

_MEMORY = 4 << 30

# Of the problem's expressions, how many parts are looked at.
_MOST_PARTS = 60
# Larger powers of numbers may stay as they are.
_LARGEST_EXPONENT = 64


def is_restated(gold: Any, answer: Any, expressions: Iterable[Any]) -> bool:
    """Return whether an answer of the reference's value is not in another form, as the problem asks for.

    The problem asks for that if a part of it has the reference's value, in another form. The answer must then be
    another expression than that part, once both are tidied (terms that cancel, neutral factors, sums of numbers), and
    have nothing in it that cancels. Where a sum was to be factored, it has as many factors as the reference; where a
    product was to be expanded, it is expanded; else it is about as short as the reference.
    """
    from sympy import Expr, expand

    if not isinstance(gold, Expr) or not isinstance(answer, Expr) or not gold.free_symbols:
        return False
    reference, form = tidied(gold), tidied(answer)
    parts = [(part, tidied(part)) for part in parts_equal_to(gold, expressions)]
    parts = [(part, tidy) for part, tidy in parts if tidy != reference or symbols_in(part) > symbols_in(tidy)]
    if not parts:
        return False
    if symbols_in(answer) > symbols_in(form) or (form != reference and form in [tidy for _, tidy in parts]):
        return True
    if form == reference:
        return False
    if (count := factors_of(reference)) > 1 and any(factors_of(tidy) < count for _, tidy in parts):
        return factors_of(form) < count
    if reference.is_polynomial() and reference == tidied(expand(reference)):
        products = [tidy for _, tidy in parts if tidy.is_polynomial() and tidy != reference and factors_of(tidy)]
        if products:
            return bool(form != tidied(expand(form)))
    return bool(form.count_ops() > reference.count_ops() + 2)


def parts_equal_to(gold: Any, expressions: Iterable[Any]) -> Iterator[Any]:
    """Yield the parts with the value of ``gold`` and at least one operation; none of sums and integrals."""
    from sympy import (
        Add,
        Derivative,
        Expr,
        Integer,
        Integral,
        Limit,
        Mul,
        Pow,
        Product,
        Rational,
        Sum,
        preorder_traversal,
    )
    from sympy.core.function import AppliedUndef

    symbols = sorted(gold.free_symbols, key=str)
    points = [
        {symbol: Integer(3 + 2 * shift + 7 * place) + Rational(1, 3 + place) for place, symbol in enumerate(symbols)}
        for shift in range(3)
    ]
    values = [gold.doit().xreplace(point).evalf(20) for point in points]
    seen = 0
    for expression in expressions:
        if not isinstance(expression, Expr) or expression.has(Sum, Integral, Derivative, Limit, Product, AppliedUndef):
            continue
        for part in preorder_traversal(expression):
            if not isinstance(part, (Add, Mul, Pow)) or not part.free_symbols >= set(symbols):
                continue
            if (seen := seen + 1) > _MOST_PARTS:
                return
            numbers = (part.doit().xreplace(point).evalf(20) for point in points)
            if all(abs(a - b) <= abs(a) * 1e-12 for a, b in zip(values, numbers, strict=True)):
                yield part


def tidied(expression: Any) -> Any:
    """Evaluate an expression without multiplying anything out, with a canonical sign of every factor."""
    from sympy import Add, Float, Mul, Pow, Rational, UnevaluatedExpr
    from sympy.core.parameters import distribute

    def tidy(node: Any) -> Any:
        if isinstance(node, Float):
            return Rational(str(node))
        if not node.args:
            return node
        arguments = [tidy(argument) for argument in node.args]
        if isinstance(node, UnevaluatedExpr):
            return arguments[0]
        made = node.func(*arguments)
        if isinstance(made, Mul):
            made = Mul(*map(signed, made.args))
        return signed(made) if isinstance(made, Pow) else made

    def signed(factor: Any) -> Any:
        base, power = factor.as_base_exp()
        if not isinstance(base, Add) or not power.is_Integer:
            return factor
        content, primitive = base.primitive()
        if primitive.could_extract_minus_sign():
            content, primitive = -content, -primitive
        return Mul(content**power, primitive**power)

    with distribute(False):
        return tidy(expression)


def factors_of(expression: Any) -> int:
    """Count the sums that an expression multiplies, with their powers; a sum in itself has none."""
    from sympy import Add, Mul

    count = 0
    for factor in Mul.make_args(expression):
        base, power = factor.as_base_exp()
        if isinstance(base, Add) and power.is_Integer and power > 0:
            count += int(power)
    return 0 if isinstance(expression, Add) else count


def symbols_in(expression: Any) -> int:
    """Count the occurrences of symbols in an expression."""
    from sympy import preorder_traversal

    return sum(node.is_Symbol for node in preorder_traversal(expression))


def has_work_left(expression: Any, simplest: bool) -> bool:
    r"""Return whether an expression, as it is written, holds an operation between numbers that can be done.

    That is a sum of numbers or of like terms, a product of numbers, a power or function of numbers with a rational
    value, or a quotient that is an integer: ``\frac{6x}{3}``; ``\frac{2x}{4}`` only where the ``simplest`` form is
    asked for. Powers of ten and sums in brackets stay, and so do roots that are no rational numbers.
    """
    from sympy import Add, Basic, Equality, Function, Mul, Pow, preorder_traversal

    if isinstance(expression, Equality):
        expression = expression.rhs if expression.rhs.free_symbols else expression.lhs
    if not isinstance(expression, Basic):
        return False
    for node in preorder_traversal(expression):
        if isinstance(node, Add) and _adds_like_terms(node):
            return True
        if isinstance(node, Mul) and _multiplies_numbers(node, simplest):
            return True
        if isinstance(node, (Pow, Function)) and not node.free_symbols and _is_computable(node):
            return True
    return False


def _adds_like_terms(node: Any) -> bool:
    from sympy import Add, Mul

    terms, pending = set(), [node]
    while pending:
        part = pending.pop()
        if isinstance(part, Add):
            pending += part.args
            continue
        kind = tidied(Mul(*[factor for factor in _factors(part) if not factor.is_Rational and not factor.is_Float]))
        kind = kind.as_coeff_Mul()[1]
        if kind in terms:
            return True
        terms.add(kind)
    return False


def _factors(node: Any) -> list[Any]:
    """Return the factors of a product of products; those of a denominator as their inverses."""
    from sympy import Mul, Pow

    if isinstance(node, Mul):
        return [factor for part in node.args for factor in _factors(part)]
    if isinstance(node, Pow) and node.exp == -1 and isinstance(node.base, Mul):
        return [Pow(factor, -1, evaluate=False) for part in node.base.args for factor in _factors(part)]
    return [node]


def _multiplies_numbers(node: Any, simplest: bool) -> bool:
    from math import gcd

    from sympy import Add, Pow, Rational

    above, below, decimals, common, powers = [], [], 0, 1, set()
    for factor in _factors(node):
        base, power = factor.as_base_exp()
        if simplest and base.is_Symbol and power.is_Integer:
            if base in powers:
                return True
            powers.add(base)
        inverse = isinstance(factor, Pow) and factor.exp == -1
        number = factor.base if inverse else factor
        if number.is_Float:
            if inverse:
                return True
            decimals += 1
        elif isinstance(number, Rational):
            ends = (number.q, number.p) if inverse else (number.p, number.q)
            above += [abs(ends[0])] if abs(ends[0]) != 1 else []
            below += [abs(ends[1])] if abs(ends[1]) != 1 else []
            if inverse and number.q != 1:
                return True
        elif isinstance(factor, Add):
            content = tidied(factor).primitive()[0]
            common *= int(content) if content.is_Integer else 1
    if len(above) > 1 or len(below) > 1 or (decimals and decimals + len(above) + len(below) > 1):
        return True
    if not below or below[0] == 0:
        return False
    over = common * (above[0] if above else 1)
    return over % below[0] == 0 or (simplest and gcd(over, below[0]) > 1)


def _is_computable(node: Any) -> bool:
    """Return whether a power or function of numbers has a rational value that is not written yet."""
    from sympy import Integer, Pow, Rational

    if isinstance(node, Pow):
        if not isinstance(node.base, Rational) or not isinstance(node.exp, Rational) or node.exp == -1:
            return False
        if node.base == 10 and isinstance(node.exp, Integer):
            return False
        if abs(node.exp) > _LARGEST_EXPONENT:
            return False
    return bool(node.doit().is_Rational)


def main() -> None:
    answers, nowhere = os.fdopen(os.dup(1), "w"), open(os.devnull, "w")  # noqa: SIM115  (for as long as it runs)
    os.dup2(nowhere.fileno(), 1)  # what a library prints is no answer
    with contextlib.suppress(ImportError, ValueError, OSError):  # where there is no such limit, there is none
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, resource.RLIM_INFINITY))
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, grader, verify
    from math_verify import parse as parse_with
    from math_verify.parser import NormalizationConfig
    from sympy import Float, Integer, Rational, UnevaluatedExpr, expand
    from sympy.core.relational import Relational

    # Units are taken off before: this package's list of them reads 2m as 2.
    normalization = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all")
    config = [LatexExtractionConfig(normalization_config=normalization), ExprExtractionConfig()]

    def parse(text: str) -> list[Any]:
        return list(parse_with(text, extraction_config=config, parsing_timeout=None))

    original = grader.sympy_numeric_eq

    def numeric_eq(gold_value: Any, value: Any, float_rounding: int, numeric_precision: int) -> bool:
        """Compare two expressions by value, relative to their size.

        In the place of Math-Verify's own comparison, which rounds to six decimals and takes differences below 1e-15 for
        zero: all small numbers were equal.
        """
        of_integers = all(grader.is_atomic_or_pct_atomic(number, Integer) for number in (gold_value, value))
        if isinstance(gold_value, grader.MatrixBase | grader.MatrixExpr) or of_integers:
            return bool(original(gold_value, value, float_rounding, numeric_precision))
        gold_value, value = grader.safe_sympy_doit(gold_value), grader.safe_sympy_doit(value)
        try:
            decimals = gold_value.atoms(Float) | value.atoms(Float)
            written = {number: Rational(str(number)) for number in decimals}  # the decimals that were written
            gold_value, value = gold_value.xreplace(written), value.xreplace(written)
            if gold_value.free_symbols or value.free_symbols:
                return bool(expand(gold_value - value) == 0)
            return are_close(gold_value, value, bool(decimals))
        except (AttributeError, TypeError, ValueError, ZeroDivisionError):
            return False

    def are_close(first: Any, second: Any, decimal: bool) -> bool:
        """Compare to six decimals numbers of about 1; to as many digits smaller ones, and larger ones but integers.

        Numbers of which none is ``decimal`` are compared to 30 digits.
        """
        a, b = (number.evalf(40) for number in (first, second))
        if not (a.is_finite and b.is_finite):
            return bool(a == b)
        size, difference = max(abs(a), abs(b)), abs(a - b)
        if not decimal:
            return bool(difference <= size * Rational(1, 10**30))
        whole = any(isinstance(number, Integer) for number in (first, second))
        tolerance = Rational(5_000_001, 10**13) * min(10 * size, 1 if whole else max(size, 1))
        return bool(difference <= tolerance)

    grader.sympy_numeric_eq = numeric_eq

    percent = UnevaluatedExpr(Rational(1, 100))  # as Math-Verify reads a percent sign

    def has_percent(parsed: list[Any]) -> bool:
        return any(part.has(UnevaluatedExpr) for part in parsed if hasattr(part, "has"))

    def without_percent(expression: Any) -> Any:
        if isinstance(expression, Relational):  # it would become true or false
            return expression
        return expression.xreplace({percent: Rational(1, 100)}) if hasattr(expression, "xreplace") else expression

    logging.disable(logging.CRITICAL)  # Math-Verify warns that it is asked not to watch the time
    verify(parse("\\boxed{x^2}"), parse("$1/2$"), timeout_seconds=None)
    # Load now what is loaded at first use, before any time limit.
    print("ready", file=answers, flush=True)
    os.dup2(nowhere.fileno(), 2)  # it is not read from here on, and a full pipe would stop this program
    for line in sys.stdin:
        reference, answer, timeout_s, expressions, simplest = json.loads(line)
        # Not a Python thread: it ends the process even while SymPy holds the interpreter.
        faulthandler.dump_traceback_later(timeout_s, exit=True, file=nowhere)
        try:
            gold = parse(reference)
            target = parse(answer) if gold else []
            if not gold:
                verdict = "bad gold"
            elif not target:
                verdict = "unreadable"
            elif expressions is not None:
                read = (parsed for text in expressions for parsed in parse(text)[:1])
                unfinished = has_work_left(target[0], simplest) and not has_work_left(gold[0], simplest)
                restated = unfinished or is_restated(gold[0], target[0], read)
                verdict = "restated" if restated else "evaluated"
            else:
                if not has_percent(gold) and has_percent(target):
                    # Math-Verify also takes the number in front of a percent sign for the answer.
                    target = [without_percent(part) for part in target if not isinstance(part, str)]
                verdict = "equal" if verify(gold, target, timeout_seconds=None) else "different"
        except (RecursionError, MemoryError):
            verdict = "unreadable"
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(verdict), file=answers, flush=True)


if __name__ == "__main__":
    main()
