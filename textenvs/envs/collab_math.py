r"""CollabLLM's MATH-Chat: a problem whose conditions the user holds back, scored by its final answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..scoring.answers import same_answer
from ..scoring.final_answer import final_answer
from ..tasks.base import Task
from ..tasks.collab import Goal
from .collab import Check, Collab
from .gsm8k import hasty_answer


class CollabMath(Collab):
    r"""A word problem told in pieces. The task score is ``accuracy``: 1.0 for the right final answer, else 0.0.

    A reply delivers what stands after its last ``####`` or in its last ``\boxed{...}``.

    Args:
        tasks: As in :class:`~textenvs.envs.collab.Collab`, and so are all other arguments.
    """

    domain = "math"
    score_name = "accuracy"
    form = "Please end with #### and the answer."

    def find(self, text: str) -> str | None:
        """The reply's final answer."""
        return final_answer(text)

    def check(self, goal: Goal, delivered: str) -> Check:
        """Compare it with the reference."""
        right = same_answer(delivered, self._gold)
        return Check(float(right), right)

    def solution(self, task: Task) -> str:
        """The worked answer, where the row has one."""
        answer = task.extra.get("answer")
        if isinstance(answer, str) and (found := final_answer(answer)) and same_answer(found, self._gold):
            return answer
        return f"#### {self._gold}"

    def blunder(self, rng: np.random.Generator) -> str:
        """A number, without asking for anything."""
        return hasty_answer(self._gold, rng)

    def secrets(self) -> Sequence[str]:
        """The answer, where the user does not have to say it as one of the conditions."""
        if self.state.task is None:
            return ()
        says = " ".join(saying for piece in self.goal.pieces for saying in piece.sayings)
        return () if self._gold in says else (self._gold,)

    @property
    def _gold(self) -> str:
        truth = str(self._task.ground_truth)
        return final_answer(truth) or truth.strip()
