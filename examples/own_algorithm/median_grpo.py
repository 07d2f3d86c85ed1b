"""An estimator of your own: `algorithm.adv_estimator=median_grpo`, after `pip install examples/own_algorithm`."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from trainers.algorithms.batch import ActionBatch, Advantages
from trainers.algorithms.estimators import CriticFreeEstimator, UnscaledEstimator
from trainers.algorithms.estimators.base import by_group


class MedianGRPO(CriticFreeEstimator, UnscaledEstimator):
    """The total reward minus the median of its group: one huge reward does not move the baseline."""

    unit: ClassVar = "episode"
    compares_siblings: ClassVar = True

    adv_estimator: Literal["median_grpo"] = "median_grpo"
    quantile: float = Field(0.5, ge=0, le=1, description="Quantile of the group's rewards that is the baseline.")

    def advantages(self, batch: ActionBatch) -> Advantages:
        """Return the same advantage for all tokens of an episode."""
        return by_group(batch, self.truncated, lambda returns: returns - np.quantile(returns, self.quantile))
