"""Two attempts at a problem, without a verdict on the first in between: self-correction (SCoRe, arXiv 2409.12917)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from ...data.sources import Source
from ...env import EpisodeState, Turn
from ...messages import Message, user
from ...options import Price, checked
from ...users.moves import move_metrics
from ..gsm8k.env import WordProblemEnv
from .attacks import ATTACKS

Turns = Literal["both", "second"]

#: What is said between the attempts, whatever the first was. Short, so that a tiny model can learn to read it.
FEEDBACK = "There may be a mistake in this, or none. Look at it again, and answer once more."
#: The paper's multiplier of the bonus, for MATH as for MBPP.
ALPHA = 10.0
#: The share of the bonus that a correction earns with ``shaped="both"``. From a half on, a mistake made on purpose and
#: then corrected would earn half of what two right attempts do.
CORRECTION = 0.25


@dataclass
class SelfCorrectState(EpisodeState):
    """An episode with a boolean for each attempt so far: true if it was right."""

    attempts: tuple[bool, ...] = ()


class SelfCorrect(WordProblemEnv[SelfCorrectState]):
    """One problem, two attempts; the user asks for the second one without saying whether the first was right.

    With r1 and r2 (1 or 0) for whether the attempts are right, the second turn ends the episode. The terms:

    * ``correct``: r1 on the first turn and r2 on the second (the sum that Stage II of SCoRe, Kumar et al. 2024, arXiv
      2409.12917, maximises in equation 4); with ``rewarded="second"`` only r2 (Stage I, equation 3);
    * ``bonus``, with ``shaped="both"``: alpha * r1 on the first turn; on the second -alpha where a right answer is
      spoiled, and alpha / 4 where a wrong one is corrected. In all, right twice earns 2 + alpha, wrong then right
      1 + alpha / 4, right then wrong 1, and wrong twice 0.

    **The paper's own bonus**, ``shaped="second"``, is alpha * (r2 - r1) on the second turn (section 5.2). It pays for
    failing first: wrong, then right earns 1 + alpha in all, right twice 2. That is safe only where each turn's reward
    stays with that turn's tokens (a discount of 0 between turns), or where a KL penalty holds the first attempt, as in
    the paper. The penalties are the trainer's. Stage I is ``rewarded="second", alpha=0`` with such a penalty: without
    one, nothing in it asks for a right first attempt.

    Args:
        tasks: As in :class:`~textenvs.envs.gsm8k.env.WordProblemEnv`, and so are the other options and errors.
        alpha: The multiplier of the bonus, at least 0; 10 in the paper.
        rewarded: Which attempts earn ``correct``: ``"both"`` or only the ``"second"``.
        shaped: Which turns get the bonus: ``"both"``, or the ``"second"`` alone, as in the paper.
        feedback: What the user says after the first attempt.
        **options: ``level``, ``split``, ``seed``, ``method``, ``instruction``, ``system_prompt``, ``render_mode``.
    """

    state_type = SelfCorrectState
    own_attacks = ATTACKS

    @checked
    def __init__(
        self,
        tasks: Source = None,
        *,
        alpha: Price = ALPHA,
        rewarded: Turns = "both",
        shaped: Turns = "both",
        feedback: Annotated[str, Field(pattern=r"\S")] = FEEDBACK,
        **options: Any,
    ) -> None:
        super().__init__(tasks, **options)
        self.alpha, self.rewarded, self.shaped, self.feedback = float(alpha), rewarded, shaped, feedback

    def respond(self, reply: Message) -> Turn:
        self.state.attempts = (*self.state.attempts, self.judge(reply).correct)
        first, *rest = self.state.attempts
        if not rest:
            return Turn(
                messages=(user(self.feedback),),
                terms={
                    "correct": float(first and self.rewarded == "both"),
                    "bonus": self.alpha * (first and self.shaped == "both"),
                },
                metrics={"accuracy_t1": float(first), **move_metrics("answers")},  # it says so whatever the reply
            )
        second = rest[0]
        corrected = second and not first
        share = CORRECTION if corrected and self.shaped == "both" else 1.0
        return Turn(
            terminated=True,
            stop="solved" if second else "wrong",
            terms={"correct": float(second), "bonus": self.alpha * share * (second - first)},
            metrics={
                "accuracy_t1": float(first),
                "accuracy_t2": float(second),
                "delta_t1_t2": float(second - first),
                "delta_i_to_c": float(corrected),
                "delta_c_to_i": float(first and not second),
            },
        )

    def conversation_score(self) -> Mapping[str, float]:
        """``accuracy``: whether the last attempt so far is right."""
        return {"accuracy": float(self.state.attempts[-1]) if self.state.attempts else 0.0}
