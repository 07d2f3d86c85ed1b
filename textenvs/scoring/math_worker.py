"""A program that compares mathematical expressions for :mod:`.math`.

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
    from math_verify import parse, verify
    from sympy import Rational, UnevaluatedExpr
    from sympy.core.relational import Relational

    percent = UnevaluatedExpr(Rational(1, 100))  # as Math-Verify reads a percent sign

    def has_percent(parsed: list[Any]) -> bool:
        return any(each.has(UnevaluatedExpr) for each in parsed if hasattr(each, "has"))

    def without_percent(expression: Any) -> Any:
        if isinstance(expression, Relational):  # it would become true or false
            return expression
        return expression.xreplace({percent: Rational(1, 100)}) if hasattr(expression, "xreplace") else expression

    logging.disable(logging.CRITICAL)  # Math-Verify warns that it is asked not to watch the time
    verify(parse("\\boxed{x^2}", parsing_timeout=None), parse("$1/2$", parsing_timeout=None), timeout_seconds=None)
    # What is loaded at first use is loaded now, outside anybody's time.
    print("ready", file=answers, flush=True)
    os.dup2(nowhere.fileno(), 2)  # nobody reads it from here on, and a full pipe would stop this program
    for line in sys.stdin:
        reference, answer, timeout_s = json.loads(line)
        # Not a Python thread: it ends the process even while SymPy holds the interpreter.
        faulthandler.dump_traceback_later(timeout_s, exit=True, file=nowhere)
        try:
            gold = parse(reference, parsing_timeout=None)
            target = parse(answer, parsing_timeout=None) if gold else []
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
