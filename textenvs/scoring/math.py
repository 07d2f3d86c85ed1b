r"""Whether an answer is mathematically the right one: ``0.5``, ``\frac12`` and ``1/2`` are the same.

Expressions are read and compared by `Math-Verify <https://github.com/huggingface/Math-Verify>`_ (extra ``math``), on
SymPy. Some expressions keep SymPy busy for ever, and no Python code can interrupt it then. So comparing happens in
processes of its own: one that takes too long is killed, the verdict says ``"timeout"``, and the next comparison finds
a new process.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..sandbox import Pool, Worker, WorkerDied
from ..text import quoted
from .final_answer import boxed
from .relations import claims_of, is_name
from .restated import restates

Method = Literal["boxed", "flexible"]
METHODS: tuple[str, ...] = ("boxed", "flexible")
Reason = Literal["equal", "different", "restated", "no_answer", "unreadable", "timeout"]

#: Longer answers are not read.
MAX_CHARS = 20_000
# Sides of relations that an answer may have beside names: each is a comparison of its own.
_SIDES = 8
# Percent in any spelling, as the one that Math-Verify reads.
_PERCENT = re.compile(
    r"(?:\\[,;:! ]|[\s~])*"
    r"(?:\\?[%％﹪]|\\(?:text|mathrm|mbox)\s*\{\s*(?:\\?%|(?i:per ?cent|pct))\.?\s*\}|\b(?i:per ?cent|pct)\b)"
)
#: How many comparisons run at the same time in one process.
CONCURRENCY = max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@dataclass(frozen=True)
class MathVerdict:
    """What there is to know about an answer.

    Args:
        reason: ``"equal"``, ``"different"``, ``"restated"`` (equal, but not evaluated: see
            :mod:`~textenvs.scoring.restated`), ``"no_answer"`` (none was found), ``"unreadable"`` (what was found is no
            expression) or ``"timeout"`` (the comparison was stopped).
        answer: The answer as it stands in the reply; ``None`` where none was found, or the whole reply was read.
    """

    reason: Reason
    answer: str | None = None

    @property
    def correct(self) -> bool:
        """Whether the answer is the right one."""
        return self.reason == "equal"


def judge_math(
    reply: str,
    ground_truth: str,
    *,
    method: Method = "boxed",
    timeout_s: float = 5.0,
    problem: str | None = None,
) -> MathVerdict:
    r"""Compare the answer of ``reply`` with ``ground_truth``.

    * In a relation, as in ``x = 8/2 = 4``, every side must be a name (see
      :func:`~textenvs.scoring.relations.is_name`) or equal the last one, unless the ground truth is a relation, too:
      ``x = 4`` is 4; ``5 = 4`` and ``2x = 4`` are not.
    * Percent is part of a value: ``4\%`` is ``0.04`` and not ``4``. Where the ground truth has it, an answer may leave
      it out, as any other unit.

    Args:
        reply: The assistant's reply.
        ground_truth: The right answer, LaTeX or plain, as ``\frac{1}{2}`` or ``1/2``.
        method: ``"boxed"`` (the last ``\boxed{...}`` counts) or ``"flexible"`` (Math-Verify looks for an answer in the
            whole reply).
        timeout_s: Seconds after which the comparison is stopped.
        problem: What the policy was shown. With it, an answer that only states the problem again is not right, unless
            the ground truth has the same form.

    Raises:
        ValueError: An unknown method, a time that is not above 0, or a ground truth that cannot be read.
        ImportError: Math-Verify is not installed; the message names the extra.
        RuntimeError: The comparing process cannot be started.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    if isinstance(timeout_s, bool) or not 0 < timeout_s < math.inf:
        raise ValueError(f"timeout_s must be a number of seconds above 0, not {timeout_s!r}")
    require_math_verify()
    deadline = time.monotonic() + timeout_s
    answer = boxed(reply) if method == "boxed" else None
    if method == "boxed":
        if not answer:
            return MathVerdict("no_answer")
        if answer == ground_truth.strip():
            return MathVerdict("equal", answer)  # the same text needs no reading
    if len(answer if answer is not None else reply) > MAX_CHARS:
        return MathVerdict("unreadable", answer)
    gold = _box(ground_truth)
    said, read = _ask(gold, _PERCENT.sub("%", reply) if answer is None else _box(answer), timeout_s)
    if said == "bad gold":
        raise ValueError(
            f"the ground truth {quoted(ground_truth)} cannot be read as mathematics, so nothing can be compared"
        )
    claimed = answer if answer is not None else read
    if said == "equal" and claims_of(claimed).relations > claims_of(ground_truth).relations:
        said = _consistent(claimed, gold, deadline)
    if said == "equal" and problem is not None and restates(claimed, ground_truth, problem):
        said = "restated"
    reason: Reason = said  # type: ignore[assignment]
    return MathVerdict(reason, answer)


def _consistent(answer: str, gold: str, deadline: float) -> str:
    """The verdict on an answer that has relations, and that Math-Verify takes for the right one."""
    claims = claims_of(answer)
    sides = [(side, chain[-1]) for chain in claims.chains for side in chain[:-1] if not is_name(side)]
    if claims.hidden or len(sides) > _SIDES:
        return "different"
    questions = [(_box(last), _box(side)) for side, last in sides]
    if len(claims.chains) == 1 or not claims.wrapped:
        # The last sides alone: they may be percentages.
        questions.append((gold, _box(", ".join(chain[-1] for chain in claims.chains))))
    for wanted, found in questions:
        if (left := deadline - time.monotonic()) <= 0:
            return "timeout"
        said, _ = _ask(wanted, found, left)
        if said != "equal":
            return "timeout" if said == "timeout" else "different"
    return "equal"


def _box(text: str) -> str:
    return f"\\boxed{{{_percent(text)}}}"


def _percent(text: str) -> str:
    return _PERCENT.sub(r"\\%", text)


async def judge_math_async(
    reply: str,
    ground_truth: str,
    *,
    method: Method = "boxed",
    timeout_s: float = 5.0,
    problem: str | None = None,
) -> MathVerdict:
    """:func:`judge_math`, awaitable: other coroutines go on meanwhile."""

    def work() -> MathVerdict:
        return judge_math(reply, ground_truth, method=method, timeout_s=timeout_s, problem=problem)

    return await _pool.in_thread(work)


def require_math_verify() -> None:
    """Raise where Math-Verify is missing, before anything depends on it.

    Raises:
        ImportError: It is not installed; the message names the extra.
    """
    if importlib.util.find_spec("math_verify") is None:
        raise ImportError("comparing mathematical answers needs Math-Verify: pip install 'textenvs[math]'")


# ------------------------------------------------------------------ the processes


def _start() -> Worker:
    # -P: the folder of that program is not a place to import from; it has a module called `math`.
    command = [sys.executable, "-P", str(Path(__file__).with_name("math_worker.py"))]
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True)
    except OSError as error:
        raise RuntimeError(f"the process that compares answers could not be started: {error}") from error
    return Worker(process, max_bytes=1 << 20)


_pool = Pool(_start, CONCURRENCY, "textenvs-math")


def _ask(gold: str, target: str, timeout_s: float) -> tuple[str, str]:
    """The verdict of the process, and the text that it compared."""
    # The process also ends itself: it must not compute on when nobody is left to kill it.
    question = {"gold": gold, "target": target, "timeout_s": timeout_s + 1.0}
    try:
        said, read = _pool.ask(question, timeout_s)
    except TimeoutError:
        return "timeout", ""
    except WorkerDied:  # of this question: it took all memory, or crashed
        return "unreadable", ""
    return said, read
