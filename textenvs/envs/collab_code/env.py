"""CollabLLM's BigCodeBench-Chat: a function whose behaviour the user holds back, scored by its unit tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...data.sources import Source
from ...env import EnvironmentFailure
from ...messages import Message
from ...options import Gain, checked
from ...sandbox import Sandbox, SandboxFailure
from ...scoring.documents import last_block
from ...task import Task, TaskError
from ...text import digest
from ..collab.env import Collab
from ..collab.tasks import Goal
from ..collab.user import Check
from .attacks import ATTACKS
from .scoring import MOST_SLOW, Assertion, CodeScore, Test, pass_rate
from .script import SCRIPT
from .tasks import FAMILY
from .unit_tests import reference_program, unit_tests_of

# Tested programs are not run again: siblings of a group, forks and replays often deliver the same one. Programs that
# ran out of time are, because that depends on the machine. By digest: a program may be a megabyte.
_tested: dict[bytes, CodeScore] = {}
_MOST_TESTED = 4096


class CollabCode(Collab):
    """A Python function told in pieces. The task score is ``pass_rate``, the part of the goal's unit tests it passes.

    A reply delivers its last fenced block. It runs in a sandbox; where there is none on this machine, making the
    environment is an error that says what to do.

    Args:
        timeout_s: Seconds that one test may take.
        sandbox: Where programs run: a :class:`~textenvs.sandbox.Sandbox`, or a mapping of its options
            (``packages``, ``allow_unsafe``, ...) and of those of its limits (``memory_mb``, ...). BigCodeBench's rows
            need many ``packages``.
        **options: See :class:`~textenvs.envs.collab.env.Collab`.
    """

    family = FAMILY
    own_attacks = (*Collab.own_attacks, *ATTACKS)
    own_script = SCRIPT
    score_name = "pass_rate"
    form = "Please put the code between ```python and ```."

    @checked
    def __init__(
        self,
        tasks: Source = None,
        *,
        timeout_s: Gain = 5.0,
        sandbox: Sandbox | Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(tasks, **options)
        self.timeout_s = timeout_s
        self.sandbox = Sandbox.of(sandbox)

    async def opening(self, task: Task) -> Sequence[Message]:  # type: ignore[override]  # hooks may wait
        opening = super().opening(task)
        if not await self._tests_of(task):
            raise TaskError(
                f"task {task.key}: the reference program passes none of its tests from a process of its own, where "
                "no program can forge a test; tests that patch modules, pass functions or catch prints need one process"
            )
        return opening

    def find(self, text: str) -> str | None:
        return last_block(text)

    async def check(self, goal: Goal, delivered: str) -> Check:
        tests = await self._tests_of(self.task)
        score = await self._test(delivered, tests)
        return Check(score.fraction, score.fraction == 1, f"It passes {score.passed} of my {len(tests)} checks.")

    async def _tests_of(self, task: Task) -> Sequence[Test]:
        """Return a task's tests; of those that are code, the ones that the reference passes in a separate process."""
        tests = unit_tests_of(task)
        if not any(isinstance(test, Assertion) for test in tests):
            return tests
        score = await self._test(reference_program(task.ground_truth), tests, most_slow=None)
        judged = zip(tests, score.outcomes, strict=True)
        return [test for test, outcome in judged if outcome.passed or not isinstance(test, Assertion)]

    async def _test(self, program: str, tests: Sequence[Test], most_slow: int | None = MOST_SLOW) -> CodeScore:
        key = digest(program, tests, self.sandbox, self.sandbox.seed, self.timeout_s)
        if key in _tested:
            return _tested[key]
        try:
            score = await pass_rate(program, tests, self.sandbox, timeout_s=self.timeout_s, most_slow=most_slow)
        except SandboxFailure as failure:
            raise EnvironmentFailure("tool_failed", str(failure)) from failure
        if not any(outcome.late for outcome in score.outcomes):
            if len(_tested) >= _MOST_TESTED:
                _tested.clear()
            _tested[key] = score
        return score

    def twin(self, task: Task) -> Task | None:
        """Return the function with the calls' expected values permuted; ``None`` for rows without such tests."""
        tests = [dict(test) for test in task.extra.get("tests") or ()]
        expected = [test.get("expected") for test in tests]
        if None in expected or len(set(expected)) < 2:
            return None
        moved = [{**test, "expected": value} for test, value in zip(tests, expected[1:] + expected[:1], strict=True)]
        return replace(task, extra={**task.extra, "tests": moved})

    def solution(self, task: Task) -> str:
        return f"```python\n{reference_program(task.ground_truth)}\n```"

    def careless_reply(self, rng: np.random.Generator) -> str:
        name = ("solve", "function", "main", "run")[int(rng.integers(4))]
        body = ("sum(x)", "x", "len(x)", "sorted(x)")[int(rng.integers(4))]
        return f"```python\ndef {name}(x):\n    return {body}\n```"

    def secrets(self) -> Sequence[str]:
        return () if self.state.task is None else (reference_program(self.state.task.ground_truth),)
