"""Tokens that lower the entropy most, chosen once for a whole batch (arXiv 2505.22617, "The entropy mechanism").

After a small step of a policy gradient the entropy falls by the covariance of log-probability and advantage, so a
token's share is ``c_i = (log p_i - mean(log p)) (A_i - mean(A))``, with means over the batch's trained tokens. The
losses ``clip_cov`` and ``kl_cov`` treat a few tokens of high ``c`` differently.

``log p`` is that of the policy before the batch's first update, so the choice does not depend on how the batch is cut;
on the first step it is the paper's.
"""

from __future__ import annotations

import numpy as np

from trainers.algorithms.batch import Bools, Floats


def covariances(logprobs: Floats, advantages: Floats, mask: Bools) -> Floats:
    """Each trained token's share of the covariance, ``c`` above; arrays ``[N]``, 0 where not ``mask``."""
    if not logprobs.shape == advantages.shape == mask.shape:
        raise ValueError(f"shapes must be the same, not {logprobs.shape}, {advantages.shape} and {mask.shape}")
    shares = np.zeros(len(logprobs))
    if mask.any():
        shares[mask] = (logprobs[mask] - logprobs[mask].mean()) * (advantages[mask] - advantages[mask].mean())
    return shares


def clip_cov_tokens(
    logprobs: Floats,
    advantages: Floats,
    mask: Bools,
    *,
    ratio: float = 2e-4,
    low: float = 1.0,
    high: float = 5.0,
    rng: np.random.Generator,
) -> Bools:
    """Tokens drawn at random among those with ``low < c < high``: a share ``ratio`` of the trained ones, at least one.

    The bounds are meant for advantages of variance 1; the greatest covariances are left in: they are outliers. Returns
    bool ``[N]``, fewer than asked for where fewer are in the range.
    """
    if not low < high:
        raise ValueError(f"low must be below high, not {low!r} and {high!r}")
    shares = covariances(logprobs, advantages, mask)
    candidates = np.flatnonzero(mask & (shares > low) & (shares < high))
    most = min(_count(ratio, mask), len(candidates))
    selected = np.zeros(len(mask), np.bool_)
    selected[rng.choice(candidates, most, replace=False)] = True
    return selected


def kl_cov_tokens(logprobs: Floats, advantages: Floats, mask: Bools, *, ratio: float = 2e-4) -> Bools:
    """The tokens with the greatest ``c``: a share ``ratio`` of the trained ones, at least one; first of equals."""
    shares = covariances(logprobs, advantages, mask)
    trained = np.flatnonzero(mask)
    selected = np.zeros(len(mask), np.bool_)
    selected[trained[np.argsort(-shares[trained], kind="stable")[: _count(ratio, mask)]]] = True
    return selected


def _count(ratio: float, mask: Bools) -> int:
    if not 0.0 < ratio <= 1.0:
        raise ValueError(f"ratio must be in (0, 1], not {ratio!r}")
    trained = int(mask.sum())
    return min(max(int(ratio * trained), 1), trained)
