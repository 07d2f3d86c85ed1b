"""Parts of the estimators with a critic."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from trainers.algorithms.batch import ActionBatch, Advantages, Floats, Ints, MadeOf, discounted_sums
from trainers.algorithms.estimators.base import Need, UnscaledEstimator
from trainers.section import Fraction


class CriticEstimator(UnscaledEstimator):
    """An estimator with a critic, whose values the batch has."""

    needs: ClassVar[frozenset[Need]] = frozenset({"critic"})

    lam: Fraction = Field(1.0, description="λ of the advantage estimation; 1 is Monte Carlo.")

    def made_of(self, batch: ActionBatch, result: Advantages) -> MadeOf:
        """Split the advantages into ``(return - value)``."""
        values, _ = values_of(batch)
        if self.unit == "turn":
            values = values[batch.turn_starts[batch.turn_of_token]]
        return MadeOf(result.advantages + values, values, result.advantages)


def values_of(batch: ActionBatch) -> tuple[Floats, Floats]:
    """Return the values, and the value after each episode's last token: 0 if it terminated."""
    if batch.values is None:
        raise ValueError("this estimator needs a critic: give the batch values [N], or choose rloo, grpo or turn_grpo")
    continues = batch.truncated & ~batch.terminated
    if batch.bootstrap is not None:
        return batch.values, np.where(continues, batch.bootstrap, 0.0)
    if continues.any():
        raise ValueError(
            f"episode {int(np.argmax(continues))} was truncated: give the batch bootstrap [E], the value of the state "
            "that each truncated episode ended in"
        )
    return batch.values, np.zeros(batch.num_episodes)


def gae_over(rewards: Floats, values: Floats, bootstrap: Floats, offsets: Ints, gamma: float, lam: float) -> Floats:
    """Return generalised advantages over the steps of each episode; ``offsets`` say where episodes start."""
    following = np.append(values[1:], 0.0)[: len(values)]
    has_steps = np.diff(offsets) > 0
    following[offsets[1:][has_steps] - 1] = bootstrap[has_steps]
    return discounted_sums(rewards + gamma * following - values, offsets, gamma * lam)
