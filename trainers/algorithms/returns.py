"""What an estimator returns, and what several of them compute: discounted sums, and which episodes count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from trainers.algorithms.batch import ActionBatch, Bools, Floats, Ints

Truncated = Literal["count", "drop"]


@dataclass(frozen=True, eq=False)
class MadeOf:
    """What advantages are made of, before the batch is normalised; see :func:`.explain.made_of`."""

    returns: Floats  #: float ``[N]``; what is compared
    #: Float ``[N]``; with what, NaN where the policy is not trained; ``None`` where there is no one number
    baseline: Floats | None
    unscaled: Floats  #: float ``[N]``; their difference
    #: Float ``[K]``; the value of the state that each turn began in, by its forks; NaN where there are none
    by_fork: Floats | None = None


@dataclass(frozen=True, eq=False)
class Advantages:
    """What an estimator makes of a batch of ``N`` action tokens."""

    advantages: Floats  #: float ``[N]``; 0 where ``policy_mask`` is false
    policy_mask: Bools  #: bool ``[N]``; the tokens that the policy is trained on (false in an episode that is left out)
    returns: Floats | None = None  #: float ``[N]``; what the critic should have said; ``None`` without a critic
    #: Bool ``[N]``; the tokens that the critic is trained on; ``None`` without a critic
    value_mask: Bools | None = None
    #: Float ``[N]``, at least 0; what each token counts in the loss, where episodes share a state; ``None`` counts
    #: every token as 1. See :mod:`~trainers.algorithms.fork`.
    weights: Floats | None = None
    made_of: MadeOf | None = None  #: for people, where it was asked for


def discounted_sums(x: Floats, offsets: Ints, factor: float) -> Floats:
    """``y_i = x_i + factor * y_{i+1}`` within each episode, without a loop over steps.

    By doubling: once ``y_i`` covers ``s`` steps from ``i`` on, adding ``factor**s * y_{i+s}`` makes them ``2 s``, so an
    episode of ``T`` steps takes ``log2 T`` passes. All powers are at most 1: nothing can overflow.

    ``x`` is float ``[N]``, ``offsets`` int ``[E + 1]``, ``factor`` in [0, 1].
    """
    check_factors(factor=factor)
    lengths = np.diff(offsets)
    left = np.repeat(offsets[1:], lengths) - np.arange(len(x))  # steps from i to the end of its episode
    y, span, longest = x.astype(np.float64), 1, int(lengths.max(initial=0))
    while span < longest:
        y[:-span] += np.where(left[:-span] > span, factor**span * y[span:], 0.0)
        span *= 2
    return y


def check_factors(**factors: float) -> None:
    """Raise ``ValueError`` unless each is in [0, 1]."""
    for name, factor in factors.items():
        if not 0.0 <= factor <= 1.0:
            raise ValueError(f"{name} must be in [0, 1], not {factor!r}")


def kept_episodes(batch: ActionBatch, truncated: Truncated) -> Bools:
    """The episodes that count. One without an action says nothing about the policy and never does."""
    if truncated not in ("count", "drop"):
        raise ValueError(f'truncated must be "count" or "drop", not {truncated!r}')
    acted = np.diff(batch.token_offsets) > 0
    return acted if truncated == "count" else acted & batch.terminated
