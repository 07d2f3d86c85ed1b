"""GSM8K as a conversation: a simulated user judges each reply, and says what is needed to try again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...data.load import Source
from ...data.word_problems import Level
from ...env import EpisodeState, TextEnv, Turn
from ...messages import Message, user
from ...options import check_charge
from ...scoring.gsm8k import Method
from ...task import Split, Task
from .env import check_options, hasty_answer, open_tasks, worked_answer
from .user import FEEDBACKS, Feedback, Gsm8kUser, user_of


class Gsm8kInteract(TextEnv[EpisodeState]):
    """One question, several attempts: the episode ends with ``stop="solved"`` or when the turns run out.

    Every reply is rewarded by itself. The terms, the same on every turn, are ``correct`` (the answer is right),
    ``format`` (it is wrong, but stands on an answer line) and ``extra_turn`` (every turn after the first). With the
    defaults a problem solved at once earns 1.0, at the second attempt 0.9 in all, at the third 0.8.

    A row's ``interaction_kwargs`` choose and configure its user; see :func:`~textenvs.envs.gsm8k.user.user_of`.

    Args:
        tasks: As in :class:`~textenvs.envs.gsm8k.Gsm8k`, and so are ``level``, ``split``, ``seed``, ``system_prompt``
            and ``render_mode``.
        level: Short for ``tasks="generated:<level>"``.
        split: ``"train"`` or ``"test"``, of generated, prepared and Hub rows.
        seed: Which endless sequence of generated problems. (Episodes are seeded by ``reset``.)
        method: ``"strict"`` (the last ``#### N`` of the reply counts) or ``"flexible"`` (its last number).
        feedback: How much the user says about a wrong answer: ``"none"``, ``"format"``, ``"direction"``, ``"hint"``;
            see :mod:`textenvs.envs.gsm8k.user`.
        correct: The reward of the right answer.
        format: The reward of a wrong answer on an answer line; less than ``correct``, and no more than an extra turn
            costs.
        extra_turn: Added on every turn after the first; at most 0.
        max_assistant_turns: How many attempts there are; ``None`` for no limit.
        max_user_turns: How often the user answers; ``None`` for no limit.
        system_prompt: A system message put before prompts that have none.
        render_mode: As in :class:`~textenvs.env.TextEnv`.

    Raises:
        ValueError: Both ``tasks`` and ``level``, a value outside the above, or rewards by which failing first pays.
        TaskError: Rows that cannot be played, listed by file, row and column.
    """

    def __init__(
        self,
        tasks: Source = None,
        *,
        level: Level | None = None,
        split: Split = "train",
        seed: int = 0,
        method: Method = "strict",
        feedback: Feedback = "direction",
        correct: float = 1.0,
        format: float = 0.0,
        extra_turn: float = -0.1,
        max_assistant_turns: int | None = 3,
        max_user_turns: int | None = None,
        system_prompt: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        check_options(method, correct, format)
        check_charge("extra_turn", extra_turn)
        if feedback not in FEEDBACKS:
            raise ValueError(f"feedback must be one of {', '.join(FEEDBACKS)}, not {feedback!r}")
        if format + extra_turn > 0:
            raise ValueError(
                f"format ({format}) must be no more than an extra turn costs ({-extra_turn}), or answering wrong "
                "first would pay; lower format or extra_turn"
            )
        super().__init__(
            open_tasks(tasks, level, split, seed),
            max_assistant_turns=max_assistant_turns,
            max_user_turns=max_user_turns,
            system_prompt=system_prompt,
            render_mode=render_mode,
        )
        self.method = method
        self.feedback = feedback
        self.correct = float(correct)
        self.format = float(format)
        self.extra_turn = float(extra_turn)

    def opening(self, task: Task) -> Sequence[Message]:
        """The row's prompt, once its user is known to be one that can be played."""
        self._user_of(task)
        return task.prompt

    def respond(self, reply: Message) -> Turn:
        """Let the user judge the reply, and answer it."""
        task = self.state.task
        assert task is not None
        simulated = self._user_of(task)
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
        task = self.state.task
        assert task is not None
        return worked_answer(task, self._user_of(task).ground_truth)

    def careless_reply(self, rng: np.random.Generator) -> str:
        """A number near the answer, given in haste: without working anything out."""
        task = self.state.task
        assert task is not None
        return hasty_answer(self._user_of(task).ground_truth, rng)

    def _user_of(self, task: Task) -> Gsm8kUser:
        return user_of(task, method=self.method, feedback=self.feedback)
