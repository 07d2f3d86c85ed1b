"""Two attempts at a problem, and not a word in between about the first: self-correction (SCoRe, arXiv 2409.12917)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...data.load import Source
from ...data.word_problems import Level
from ...env import EpisodeState, TextEnv, Turn
from ...messages import Message, user, visible_text
from ...options import check_number
from ...scoring.gsm8k import METHODS, Method, judge
from ...task import Split, Task
from ..gsm8k.env import hasty_answer, open_tasks, worked_answer

Rewarded = Literal["both", "second"]
Shaped = Literal["second", "both"]

#: What is said between the attempts, whatever the first was. Short, so that a tiny model can learn to read it.
FEEDBACK = "There may be a mistake in this, or none. Look at it again, and answer once more."
#: The paper's multiplier of the bonus, for MATH as for MBPP.
ALPHA = 10.0


@dataclass
class SelfCorrectState(EpisodeState):
    """What the attempts so far were worth."""

    attempts: tuple[bool, ...] = ()


class SelfCorrect(TextEnv[SelfCorrectState]):
    """One problem, two attempts; the user asks for the second one without saying whether the first was right.

    With r1 and r2 (1 or 0) for whether the attempts are right, the second turn ends the episode, and the reward is that
    of SCoRe (Kumar et al. 2024, arXiv 2409.12917):

    * ``correct``: r1 on the first turn and r2 on the second (the sum that Stage II, equation 4, maximises); with
      ``rewarded="second"`` only r2 (Stage I, equation 3);
    * ``bonus``: alpha * (r2 - r1) on the second turn (section 5.2).

    Stage I of the paper is ``rewarded="second", alpha=0`` with a KL penalty on the first attempt; Stage II is the
    default. The penalties are the trainer's.

    **The paper's bonus pays for failing first**: wrong, then right earns 1 + alpha in all, right twice 2. That is safe
    where each turn's reward stays with that turn's tokens (a discount of 0 between turns), or where a KL penalty holds
    the first attempt. Where rewards flow back to earlier turns, use ``shaped="both"``: the first turn then also earns
    alpha * r1, so that the bonus is a difference of potentials (Ng, Harada and Russell 1999), sums to alpha * r2, and
    failing first never pays.

    Args:
        tasks: As in :class:`~textenvs.envs.gsm8k.Gsm8k`, and so are ``level``, ``split``, ``seed``, ``system_prompt``
            and ``render_mode``.
        level: Short for ``tasks="generated:<level>"``.
        split: ``"train"`` or ``"test"``, of generated, prepared and Hub rows.
        seed: Which endless sequence of generated problems. (Episodes are seeded by ``reset``.)
        method: ``"strict"`` (the last ``#### N`` of the reply counts) or ``"flexible"`` (its last number).
        alpha: The multiplier of the bonus, at least 0; 10 in the paper.
        rewarded: Which attempts earn ``correct``: ``"both"`` or only the ``"second"``.
        shaped: Which turns the bonus stands on: the ``"second"``, as in the paper, or ``"both"``.
        feedback: What the user says after the first attempt.
        system_prompt: A system message put before prompts that have none.
        render_mode: As in :class:`~textenvs.env.TextEnv`.

    Raises:
        ValueError: Both ``tasks`` and ``level``, or a value outside the above.
        TaskError: Rows that cannot be played, listed by file, row and column.
    """

    state_type = SelfCorrectState

    def __init__(
        self,
        tasks: Source = None,
        *,
        level: Level | None = None,
        split: Split = "train",
        seed: int = 0,
        method: Method = "strict",
        alpha: float = ALPHA,
        rewarded: Rewarded = "both",
        shaped: Shaped = "second",
        feedback: str = FEEDBACK,
        system_prompt: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        for name, value, known in (
            ("method", method, METHODS),
            ("rewarded", rewarded, ("both", "second")),
            ("shaped", shaped, ("second", "both")),
        ):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")
        check_number("alpha", alpha)
        if alpha < 0:
            raise ValueError(f"alpha must be at least 0, not {alpha}: below 0 it would reward spoiling a right answer")
        if not isinstance(feedback, str) or not feedback.strip():
            raise ValueError(f"feedback must be what the user says after the first attempt, not {feedback!r}")
        super().__init__(open_tasks(tasks, level, split, seed), system_prompt=system_prompt, render_mode=render_mode)
        self.method = method
        self.alpha = float(alpha)
        self.rewarded = rewarded
        self.shaped = shaped
        self.feedback = feedback

    def respond(self, reply: Message) -> Turn:
        """Judge an attempt; ask for the second one, or end."""
        verdict = judge(visible_text(reply), self._task.ground_truth, self.method)
        self.state.attempts = (*self.state.attempts, verdict.correct)
        first, *rest = self.state.attempts
        if not rest:
            return Turn(
                messages=(user(self.feedback),),
                terms={
                    "correct": float(first and self.rewarded == "both"),
                    "bonus": self.alpha * (first and self.shaped == "both"),
                },
                metrics={"accuracy_t1": float(first)},
            )
        second = rest[0]
        return Turn(
            terminated=True,
            stop="solved" if second else "wrong",
            terms={"correct": float(second), "bonus": self.alpha * (second - first)},
            metrics={
                "accuracy_t1": float(first),
                "accuracy_t2": float(second),
                "delta_t1_t2": float(second - first),
                "delta_i_to_c": float(second and not first),
                "delta_c_to_i": float(first and not second),
            },
        )

    def conversation_score(self) -> Mapping[str, float]:
        """``accuracy``: whether the last attempt so far is right."""
        return {"accuracy": float(self.state.attempts[-1]) if self.state.attempts else 0.0}

    def demonstration(self, rng: np.random.Generator) -> str:
        """The task's worked answer: a right first attempt, a kept or corrected second one."""
        return worked_answer(self._task, self._task.ground_truth)

    def careless_reply(self, rng: np.random.Generator) -> str:
        """A number near the answer, given in haste: without working anything out."""
        return hasty_answer(self._task.ground_truth, rng)

    @property
    def _task(self) -> Task:
        assert self.state.task is not None
        return self.state.task
