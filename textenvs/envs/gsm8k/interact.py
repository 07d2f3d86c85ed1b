"""GSM8K as a conversation: a simulated user judges each reply, and says what is needed to try again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...attack import COMMON, Attack
from ...data.sources import Source
from ...env import EpisodeState, Turn
from ...messages import Message, user
from ...options import Cost, Gain, PositiveInt, checked
from ...task import Task
from .attacks import ATTACKS, WITH_FEEDBACK
from .env import Finite, WordProblemEnv, check_format, hasty_answer, worked_answer
from .user import Feedback, Gsm8kUser, user_of


class Gsm8kInteract(WordProblemEnv[EpisodeState]):
    """One question, several attempts: the episode ends with ``stop="solved"`` or when the turns run out.

    Every reply is rewarded by itself. The terms, the same on every turn, are ``correct`` (the answer is right),
    ``format`` (it is wrong, but in the form asked for) and ``extra_turn`` (every turn after the first). With the
    defaults a problem solved at once earns 1.0, at the second attempt 0.75 in all, at the third 0.5: so much that
    guessing with the user's "too low" and "too high" earns less than working it out.

    A row's ``interaction_kwargs`` choose and configure its user; see :func:`~textenvs.envs.gsm8k.user.user_of`.

    Args:
        tasks: As in :class:`~textenvs.envs.gsm8k.env.WordProblemEnv`, and so are the other options.
        feedback: How much the user says about a wrong answer: ``"none"``, ``"format"``, ``"direction"``, ``"hint"``;
            see :mod:`textenvs.envs.gsm8k.user`.
        correct: The reward of the right answer.
        format: The reward of a wrong answer in the right form; less than ``correct``, and no more than an extra turn
            costs.
        extra_turn: Added on every turn after the first; at most 0.
        max_assistant_turns: How many attempts there are; ``None`` for no limit.
        **options: ``level``, ``split``, ``seed``, ``method``, ``instruction``, ``system_prompt``, ``max_user_turns``,
            ``render_mode``.

    Raises:
        ValueError: Both ``tasks`` and ``level``, a value outside the above, or rewards by which failing first pays.
        TaskError: Rows that cannot be played, listed by file, row and column.
    """

    attack_margin = 0.1  # at the easy level, what a search over the signs leaves

    @checked
    def __init__(
        self,
        tasks: Source = None,
        *,
        feedback: Feedback = "direction",
        correct: Gain = 1.0,
        format: Finite = 0.0,
        extra_turn: Cost = -0.25,
        max_assistant_turns: PositiveInt | None = 3,
        **options: Any,
    ) -> None:
        check_format(correct, format)
        if format + extra_turn > 0:
            raise ValueError(
                f"format ({format}) must be no more than an extra turn costs ({-extra_turn}), or answering wrong "
                "first would pay; lower format or extra_turn"
            )
        super().__init__(tasks, max_assistant_turns=max_assistant_turns, **options)
        self.feedback = feedback
        self.correct = float(correct)
        self.format = float(format)
        self.extra_turn = float(extra_turn)

    def opening(self, task: Task) -> Sequence[Message]:
        """The row's prompt, once its user is known to be one that can be played."""
        self._user_of(task)
        return super().opening(task)

    def respond(self, reply: Message) -> Turn:
        """Let the user judge the reply, and answer it."""
        simulated = self._user_of(self.task)
        verdict = simulated.judge(reply)
        return Turn(
            messages=() if verdict.correct else (user(simulated.answer_to(verdict)),),
            terminated=verdict.correct,
            stop="solved" if verdict.correct else None,
            terms={
                "correct": self.correct * verdict.correct,
                "format": self.format * (verdict.well_formed and not verdict.correct),
                "extra_turn": self.extra_turn if self.state.assistant_turns > 1 else 0.0,
            },
            metrics=verdict.metrics(),
        )

    def demonstration(self, rng: np.random.Generator) -> str:
        """The task's worked answer."""
        return worked_answer(self.task, self._user_of(self.task).ground_truth)

    def careless_reply(self, rng: np.random.Generator) -> str:
        """A number near the answer, given in haste: without working anything out."""
        return hasty_answer(self._user_of(self.task).ground_truth, rng)

    def attacks(self) -> Sequence[Attack]:
        """Guesses from the question's numbers, and a search with the user's "too low" and "too high"."""
        return (*COMMON, *ATTACKS, *WITH_FEEDBACK)

    def _user_of(self, task: Task) -> Gsm8kUser:
        return user_of(task, method=self.method, feedback=self.feedback)
