"""The base of estimators that compare turns which began in the same state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from pydantic import Field

from trainers.algorithms.batch import ActionBatch, Anchor, anchor_states, shared_anchors
from trainers.algorithms.estimators.base import CriticFreeEstimator, Need, UnscaledEstimator
from trainers.trajectory import Trajectory


class AnchoredEstimator(CriticFreeEstimator, UnscaledEstimator):
    """An estimator whose batch has ``anchor``, the state that each turn began in."""

    needs: ClassVar[frozenset[Need]] = frozenset({"anchor"})
    unit: ClassVar = "turn"
    compares_siblings: ClassVar = True
    mixes_baselines: ClassVar = True

    anchor: Anchor = "observation"
    """State in which a turn begins: the last observation, or the whole conversation (`history`)."""
    norm_by_std: bool = Field(True, description="Divide by the group's standard deviation.")

    def complete(self, batch: ActionBatch, episodes: Sequence[Trajectory]) -> ActionBatch:
        """Add the states that turns began in."""
        return replace(batch, anchor=anchor_states(episodes, self.anchor))

    def metrics(self, batch: ActionBatch, episodes: Sequence[Trajectory]) -> dict[str, float]:
        """Return the share of turns that another turn of the group began in the same state as."""
        return {"anchored": float(np.mean(shared_anchors(batch)))}
