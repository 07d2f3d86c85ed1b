r"""A program that compares mathematical expressions for :mod:`.math`.

A question is a JSON list: the reference and the answer, both in boxes, and the seconds after which the program ends
itself. The answer to it is ``"equal"``, ``"different"``, ``"unreadable"`` or ``"bad gold"``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import sys
from typing import Any

_MEMORY = 4 << 30


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

    def numeric_eq(left: Any, right: Any, float_rounding: int, numeric_precision: int) -> bool:
        """Compare two expressions by value, relative to their size.

        In the place of Math-Verify's own comparison, which rounds to six decimals and takes differences below 1e-15 for
        zero: all small numbers were equal.
        """
        of_integers = all(grader.is_atomic_or_pct_atomic(each, Integer) for each in (left, right))
        if isinstance(left, grader.MatrixBase | grader.MatrixExpr) or of_integers:
            return bool(original(left, right, float_rounding, numeric_precision))
        left, right = grader.safe_sympy_doit(left), grader.safe_sympy_doit(right)
        try:
            decimals = left.atoms(Float) | right.atoms(Float)
            written = {each: Rational(str(each)) for each in decimals}  # the decimals that were written
            left, right = left.xreplace(written), right.xreplace(written)
            if left.free_symbols or right.free_symbols:
                return bool(expand(left - right) == 0)
            return are_close(left, right, bool(decimals))
        except (AttributeError, TypeError, ValueError, ZeroDivisionError):
            return False

    def are_close(left: Any, right: Any, decimal: bool) -> bool:
        """Compare to six decimals numbers of about 1; to as many digits smaller ones, and larger ones but integers.

        Numbers of which none is ``decimal`` are compared to 30 digits.
        """
        a, b = (each.evalf(40) for each in (left, right))
        size, difference = max(abs(a), abs(b)), abs(a - b)
        if not decimal:
            return bool(difference <= size * Rational(1, 10**30))
        whole = any(isinstance(each, Integer) for each in (left, right))
        tolerance = Rational(5_000_001, 10**13) * min(10 * size, 1 if whole else max(size, 1))
        return bool(difference <= tolerance)

    grader.sympy_numeric_eq = numeric_eq

    percent = UnevaluatedExpr(Rational(1, 100))  # as Math-Verify reads a percent sign

    def has_percent(parsed: list[Any]) -> bool:
        return any(each.has(UnevaluatedExpr) for each in parsed if hasattr(each, "has"))

    def without_percent(expression: Any) -> Any:
        if isinstance(expression, Relational):  # it would become true or false
            return expression
        return expression.xreplace({percent: Rational(1, 100)}) if hasattr(expression, "xreplace") else expression

    logging.disable(logging.CRITICAL)  # Math-Verify warns that it is asked not to watch the time
    verify(parse("\\boxed{x^2}"), parse("$1/2$"), timeout_seconds=None)
    # What is loaded at first use is loaded now, outside anybody's time.
    print("ready", file=answers, flush=True)
    os.dup2(nowhere.fileno(), 2)  # nobody reads it from here on, and a full pipe would stop this program
    for line in sys.stdin:
        reference, answer, timeout_s = json.loads(line)
        # Not a Python thread: it ends the process even while SymPy holds the interpreter.
        faulthandler.dump_traceback_later(timeout_s, exit=True, file=nowhere)
        try:
            gold = parse(reference)
            target = parse(answer) if gold else []
            if not gold:
                said = "bad gold"
            elif not target:
                said = "unreadable"
            else:
                if not has_percent(gold) and has_percent(target):
                    # Math-Verify also takes the number in front of a percent sign for the answer.
                    target = [without_percent(each) for each in target if not isinstance(each, str)]
                said = "equal" if verify(gold, target, timeout_seconds=None) else "different"
        except (RecursionError, MemoryError):
            said = "unreadable"
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(said), file=answers, flush=True)


if __name__ == "__main__":
    main()
