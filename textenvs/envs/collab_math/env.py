r"""CollabLLM's MATH-Chat: a problem whose conditions the user holds back, scored by its final answer."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from ...data.sources import Source
from ...env import EnvironmentFailure
from ...messages import visible_text
from ...options import checked
from ...scoring.answers import same_answer
from ...scoring.final_answer import final_answer
from ...scoring.math import judge_math_async, require_math_verify
from ...task import Task
from ..collab.env import Collab
from ..collab.tasks import GeneratedGoals, Goal
from ..collab.user import Check
from ..gsm8k.env import hasty_answer
from .attacks import ATTACKS
from .script import SCRIPT
from .tasks import FAMILY, twins_of

Equality = Literal["value", "symbolic"]


class CollabMath(Collab):
    r"""A word problem told in pieces. The task score is ``accuracy``: 1.0 for the right final answer, else 0.0.

    A reply delivers the text after its last ``####`` or in its last ``\boxed{...}``.

    Args:
        equality: The comparison with the reference. ``"value"``: numbers by value, everything else by its spelling.
            ``"symbolic"``: as mathematics, by Math-Verify (extra ``math``), and evaluated: the user's own text is no
            answer to it. ``None`` for ``"value"`` with generated problems, whose answers are integers, and else
            ``"symbolic"``. A comparison that takes too long counts as wrong, and
            ``info["metrics"]["grader_timeout"]`` says so.
        **options: See :class:`~textenvs.envs.collab.env.Collab`.

    Raises:
        ImportError: ``"symbolic"``, and Math-Verify is not installed.
    """

    family = FAMILY
    own_attacks = (*Collab.own_attacks, *ATTACKS)
    own_script = SCRIPT
    score_name = "accuracy"
    form = "Please end with #### and the answer."
    deliveries = 1  # a second guess would be a search over formulas
    check_metrics = ("grader_timeout",)

    @checked
    def __init__(self, tasks: Source = None, *, equality: Equality | None = None, **options: Any) -> None:
        super().__init__(tasks, **options)
        if equality is None:
            equality = "value" if isinstance(self.tasks, GeneratedGoals) else "symbolic"
        if equality == "symbolic":
            require_math_verify()
        self.equality = equality

    def find(self, text: str) -> str | None:
        return final_answer(text)

    def check(self, goal: Goal, delivered: str) -> Check | Awaitable[Check]:
        right = same_answer(delivered, self._gold)
        if right or self.equality == "value":
            return Check(float(right), right)
        return self._check_symbolically(delivered)

    async def _check_symbolically(self, delivered: str) -> Check:
        try:
            statements = [visible_text(message) for message in self.state.messages if message["role"] == "user"]
            verdict = await judge_math_async(f"\\boxed{{{delivered}}}", self._gold, problem="\n".join(statements))
        except ValueError:  # the reference is no mathematics ("Tuesday"), and spelled otherwise
            return Check(0.0, False)
        except RuntimeError as error:
            raise EnvironmentFailure("tool_failed", str(error)) from error
        timeout = float(verdict.reason == "timeout")
        return Check(float(verdict.correct), verdict.correct, metrics={"grader_timeout": timeout})

    def twin(self, task: Task) -> Task | None:
        """Return the problem with the next larger integer as its answer; ``None`` where the answer is no integer."""
        truth = str(task.ground_truth)
        return replace(task, ground_truth=str(int(truth) + 1)) if re.fullmatch(r"-?\d{1,18}", truth) else None

    def twin_worlds(self, task: Task) -> Sequence[tuple[str, Sequence[Task]]]:
        """Return for each number that the user holds back the problems with other ones."""
        return twins_of(task)

    def solution(self, task: Task) -> str:
        answer = task.extra.get("answer")
        if isinstance(answer, str) and (final := final_answer(answer)) and same_answer(final, self._gold):
            return answer
        return f"#### {self._gold}"

    def careless_reply(self, rng: np.random.Generator) -> str:
        return hasty_answer(self._gold, rng)

    def secrets(self) -> Sequence[str]:
        """Return the answer, unless the user may say it as one of the conditions."""
        if self.state.task is None:
            return ()
        says = " ".join(saying for piece in self.goal.pieces for saying in piece.sayings)
        return () if re.search(rf"(?<!\w){re.escape(self._gold)}(?!\w)", says) else (self._gold,)

    @property
    def _gold(self) -> str:
        truth = str(self.task.ground_truth)
        return final_answer(truth) or truth.strip()
