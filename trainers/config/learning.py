"""The sections of estimators, losses and optimizers."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from ..section import LearningRate, OptimizerSection, Schedule, Section


class ForkSection(Section):
    """Forks, for `algorithm.adv_estimator=fork`: episodes that continue from the states of other episodes.

    They are also trained on. See docs/algorithms.md.
    """

    samples: int = Field(1, ge=1, le=2**12, description="Forks at each chosen state.")
    where: Literal["every", "variance"] = "every"
    """Place of forks: before every turn, or before the turns whose return varied most in the last batches."""
    budget: int | None = Field(None, ge=1)
    """Maximum tokens that the forks of an iteration sample, as expected from the last batches; null is no limit. With a
    limit, the first iteration has no forks."""


class CriticSection(OptimizerSection):
    """Training of the value function; only for `gae`, `turn_gae` and `bilevel_gae`."""

    lr: LearningRate = 1e-3
    """Learning rate; the default for a given language model is 1e-5."""
    lr_schedule: ClassVar[Schedule] = "constant"  # type: ignore[misc]
    cliprange_value: float | None = Field(
        0.5, gt=0, description="Maximum change of a value per update; null is no limit."
    )
    warmup: int = Field(0, ge=0, description="Iterations at the start that train only the critic.")
