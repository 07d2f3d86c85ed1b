r"""Whether an answer is mathematically the right one: ``0.5``, ``\frac12`` and ``1/2`` are the same.

Expressions are read and compared by `Math-Verify <https://github.com/huggingface/Math-Verify>`_ (extra ``math``), on
SymPy. Some expressions keep SymPy busy for ever, and no Python code can interrupt it then. So comparing happens in
processes of its own: one that takes too long is killed, the verdict says ``"timeout"``, and the next comparison finds
a new process.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib.util
import json
import math
import os
import re
import selectors
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..text import quoted
from .final_answer import boxed
from .relations import claims_of, is_name

Method = Literal["boxed", "flexible"]
METHODS: tuple[str, ...] = ("boxed", "flexible")
Reason = Literal["equal", "different", "no_answer", "unreadable", "timeout"]

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
# Seconds in which a new process must have imported SymPy.
_START_S = 120.0


@dataclass(frozen=True)
class MathVerdict:
    """What there is to know about an answer.

    Args:
        reason: ``"equal"``, ``"different"``, ``"no_answer"`` (none was found), ``"unreadable"`` (what was found is no
            expression) or ``"timeout"`` (the comparison was stopped; nobody knows).
        answer: The answer as it stands in the reply; ``None`` where none was found, or the whole reply was read.
    """

    reason: Reason
    answer: str | None = None

    @property
    def correct(self) -> bool:
        """Whether the answer is the right one."""
        return self.reason == "equal"


def judge_math(reply: str, ground_truth: str, *, method: Method = "boxed", timeout_s: float = 5.0) -> MathVerdict:
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
    said, read = _ask({"gold": gold, "target": _PERCENT.sub("%", reply) if answer is None else _box(answer)}, timeout_s)
    if said == "bad gold":
        raise ValueError(
            f"the ground truth {quoted(ground_truth)} cannot be read as mathematics, so nothing can be compared"
        )
    claimed = answer if answer is not None else read
    if said == "equal" and claims_of(claimed).relations > claims_of(ground_truth).relations:
        said = _consistent(claimed, gold, deadline)
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
        said, _ = _ask({"gold": wanted, "target": found}, left)
        if said != "equal":
            return "timeout" if said == "timeout" else "different"
    return "equal"


def _box(text: str) -> str:
    return f"\\boxed{{{_percent(text)}}}"


def _percent(text: str) -> str:
    return _PERCENT.sub(r"\\%", text)


async def judge_math_async(
    reply: str, ground_truth: str, *, method: Method = "boxed", timeout_s: float = 5.0
) -> MathVerdict:
    """:func:`judge_math`, awaitable: other coroutines go on meanwhile."""

    def work() -> MathVerdict:
        return judge_math(reply, ground_truth, method=method, timeout_s=timeout_s)

    return await asyncio.get_running_loop().run_in_executor(_executor(), work)


def require_math_verify() -> None:
    """Raise where Math-Verify is missing, before anything depends on it.

    Raises:
        ImportError: It is not installed; the message names the extra.
    """
    if importlib.util.find_spec("math_verify") is None:
        raise ImportError("comparing mathematical answers needs Math-Verify: pip install 'textenvs[math]'")


# ------------------------------------------------------------------ the processes


class _Died(Exception):
    """The process ended without an answer."""


class _Worker:
    """A process that compares, one pair at a time."""

    def __init__(self) -> None:
        # -P: the folder of that program is not a place to import from; it has a module called `math`.
        command = [sys.executable, "-P", str(Path(__file__).with_name("math_worker.py"))]
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
            )
        except OSError as error:
            raise RuntimeError(f"the process that compares answers could not be started: {error}") from error
        with _lock:
            _workers.add(self)
        try:
            ready = self._line(_START_S)
        except _Died:
            ready = None
        if ready != "ready":
            assert self.process.stderr is not None
            self.process.kill()
            said = self.process.stderr.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
            self.end()
            raise RuntimeError(f"the process that compares answers does not start: {said or 'it took too long'}")

    def ask(self, question: dict[str, str], timeout_s: float) -> tuple[str, str]:
        """The answer, and the text that was compared; ``"timeout"`` where none came in time.

        After that, or an error, the process is of no more use.
        """
        assert self.process.stdin is not None
        # The process also ends itself: it must not compute on when nobody is left to kill it.
        line = json.dumps({**question, "timeout_s": timeout_s + 1.0}) + "\n"
        try:
            self.process.stdin.write(line.encode())  # which does not wait: an idle process reads
        except OSError as error:
            raise _Died from error
        answer = self._line(timeout_s)
        if answer is None:
            return "timeout", ""
        said, read = json.loads(answer)
        return said, read

    def _line(self, timeout_s: float) -> str | None:
        assert self.process.stdout is not None
        deadline, text = time.monotonic() + timeout_s, b""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while not text.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return None
                chunk = os.read(self.process.stdout.fileno(), 4096)
                if not chunk:
                    raise _Died
                text += chunk
        return text.decode().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        with _lock:
            _workers.discard(self)


def _ask(question: dict[str, str], timeout_s: float) -> tuple[str, str]:
    with _turns:
        while True:
            with _lock:
                worker = _idle.pop() if _idle else None
            fresh = worker is None
            worker = worker or _Worker()
            try:
                said, read = worker.ask(question, timeout_s)
            except _Died:
                worker.end()
                if fresh:  # it died of this question: it took all memory, or crashed
                    return "unreadable", ""
                continue  # somebody may have killed it before
            except BaseException:
                worker.end()
                raise
            if said == "timeout":
                worker.end()
            else:
                with _lock:
                    _idle.append(worker)
            return said, read


_lock = threading.Lock()
_turns = threading.BoundedSemaphore(CONCURRENCY)
_idle: list[_Worker] = []
_workers: set[_Worker] = set()
_threads: ThreadPoolExecutor | None = None


def _executor() -> ThreadPoolExecutor:
    global _threads
    with _lock:
        if _threads is None:
            _threads = ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="textenvs-math")
        return _threads


@atexit.register
def _end_all() -> None:
    for worker in tuple(_workers):
        worker.end()


def _forget_after_fork() -> None:
    """A forked child shares no process with its parent: two readers of one pipe would get each other's answers."""
    global _lock, _turns, _threads
    _lock, _turns, _threads = threading.Lock(), threading.BoundedSemaphore(CONCURRENCY), None
    _idle.clear()
    _workers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
