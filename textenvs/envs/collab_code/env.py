"""CollabLLM's BigCodeBench-Chat: a function whose behaviour the user holds back, scored by its unit tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...data.sources import Source
from ...env import EnvironmentFailure
from ...messages import Message
from ...sandbox import Sandbox, SandboxFailure
from ...scoring.documents import last_block
from ...task import Task
from ...text import digest
from ..collab.env import Check, Collab
from ..collab.tasks import Goal, reference_program
from .scoring import Test, pass_rate
from .tasks import FAMILY
from .unit_tests import unit_tests_of

# Programs that passed all their tests are not run again: siblings of a group, forks and replays often deliver the same
# one. One that failed is, because it may have run out of time. Digests: a program may be a megabyte.
_passed: set[bytes] = set()
_MOST_PASSED = 4096


class CollabCode(Collab):
    """A Python function told in pieces. The task score is ``pass_rate``, the part of the goal's unit tests it passes.

    A reply delivers what stands in its last fenced block. It runs in a sandbox (:mod:`textenvs.sandbox`); where
    there is none on this machine, the environment is not made, and the error says what to do.

    Args:
        tasks: As in :class:`~textenvs.envs.collab.env.Collab`, and so are all ``options``.
        timeout_s: Seconds that one test may take.
        sandbox: Where programs run: a :class:`~textenvs.sandbox.Sandbox`, or a mapping of its options
            (``packages``, ``allow_unsafe``, ...) and of those of its limits (``memory_mb``, ...). BigCodeBench's rows
            need many ``packages``.
        **options: See :class:`~textenvs.envs.collab.env.Collab`.

    Raises:
        SandboxUnavailable: There is no sandbox on this machine.
        ValueError: A value outside the above.
        TaskError: Rows that cannot be played, listed by file, row and column.
    """

    family = FAMILY
    score_name = "pass_rate"
    form = "Please put the code between ```python and ```."

    def __init__(
        self,
        tasks: Source = None,
        *,
        timeout_s: float = 5.0,
        sandbox: Sandbox | Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        fine = isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool) and 0 < timeout_s < float("inf")
        if not fine:
            raise ValueError(f"timeout_s must be a number of seconds above 0, not {timeout_s!r}")
        super().__init__(tasks, **options)
        self.timeout_s = timeout_s
        self.sandbox = Sandbox.of(sandbox)

    def opening(self, task: Task) -> Sequence[Message]:
        """The user's vague request, once goal and tests are known to be usable."""
        opening = super().opening(task)
        unit_tests_of(task)
        return opening

    def find(self, text: str) -> str | None:
        """The reply's last fenced block."""
        return last_block(text)

    async def check(self, goal: Goal, delivered: str) -> Check:
        """The part of the tests that the program passes."""
        tests: Sequence[Test] = unit_tests_of(self.task)
        key = digest(delivered, tests, self.sandbox, self.sandbox.seed, self.timeout_s)
        if key in _passed:
            return Check(1.0, True)
        try:
            score = await pass_rate(delivered, tests, self.sandbox, timeout_s=self.timeout_s)
        except SandboxFailure as failure:
            raise EnvironmentFailure("tool_failed", str(failure)) from failure
        if score.passed == len(tests):
            if len(_passed) >= _MOST_PASSED:
                _passed.clear()
            _passed.add(key)
        remark = f"It passes {score.passed} of my {len(tests)} checks."
        return Check(score.fraction, score.passed == len(tests), remark)

    def solution(self, task: Task) -> str:
        """The reference program."""
        return f"```python\n{reference_program(task.ground_truth)}\n```"

    def careless_reply(self, rng: np.random.Generator) -> str:
        """A function that guesses at everything, without asking for anything."""
        name = ("solve", "function", "main", "run")[int(rng.integers(4))]
        body = ("sum(x)", "x", "len(x)", "sorted(x)")[int(rng.integers(4))]
        return f"```python\ndef {name}(x):\n    return {body}\n```"

    def secrets(self) -> Sequence[str]:
        """The reference program."""
        return () if self.state.task is None else (reference_program(self.state.task.ground_truth),)
