"""Updates against a known gradient: bias, variance and cosine.

An update is ``u = sum_i c_i grad log pi(a_i)`` over a batch's tokens; estimator, correction and aggregation make the
coefficients ``c`` (:class:`.stack.Coefficients`). With the true gradient ``t`` and ``s`` so that ``s t`` is the part of
``E[u]`` along ``t``:

* *bias*²: ``|E[u] - s t|^2 / |s t|^2``, the squared tangent of the angle between the mean update and ``t``. An
  estimator's scale is no bias here: a learning rate undoes it, and AdamW does not see it.
* *noise*: ``n tr Cov(u) / |s t|^2`` for batches of ``n`` sampled tokens: how many tokens a batch needs until its
  variance is no more than its squared signal (the simple noise scale of arXiv 1812.06162).
* *cosine*: the mean of single updates' cosines with ``t``.
"""

from __future__ import annotations

import numpy as np

from trainers.algorithms.batch import Floats

#: Parts that a sample of batches is cut into, for the standard error of the bias.
PARTS = 20


class Moments:
    """Moments of updates, for several rows at once.

    Args:
        truth: ``[D]``; the true gradient.
        rows: How many there are.
        batches: In all.
        parts: That they are cut into, one after the other.
    """

    def __init__(self, truth: Floats, rows: int, batches: int, parts: int = PARTS) -> None:
        self.truth, self.batches, self.seen = truth, batches, 0
        self.sums = np.zeros((min(parts, batches), rows, len(truth)))
        self.counts = np.zeros(len(self.sums))
        self.squares, self.tokens, self.cosines, self.cosines2 = np.zeros((4, rows))

    def add(self, updates: Floats, tokens: Floats) -> None:
        """Add a batch: ``[rows, D]``, and the tokens sampled for each row."""
        part = self.seen * len(self.sums) // self.batches
        self.sums[part] += updates
        self.counts[part] += 1
        norms = np.linalg.norm(updates, axis=1)
        cosines = updates @ self.truth / np.maximum(norms * np.linalg.norm(self.truth), 1e-300)
        self.squares += norms**2
        self.tokens += tokens
        self.cosines += cosines
        self.cosines2 += cosines**2
        self.seen += 1

    def join(self, other: Moments) -> None:
        """Add another sample's, whose parts are kept apart."""
        self.sums = np.concatenate([self.sums, other.sums])
        self.counts = np.concatenate([self.counts, other.counts])
        for name in ("seen", "squares", "tokens", "cosines", "cosines2"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def results(self) -> list[dict[str, float]]:
        """Return for each row ``bias2`` and ``bias2_se``, ``noise`` (tokens), ``cosine`` and ``cosine_se``, ``scale``.

        The estimate of the bias is unbiased: it multiplies means of different parts, so it may be below 0.
        """
        unit = self.truth / np.linalg.norm(self.truth)
        mean, count = self.sums.sum(0) / self.seen, self.seen
        along = mean @ unit
        parts = self.sums / self.counts[:, None, None]
        across = parts - (parts @ unit)[..., None] * unit
        bias2 = _between(across) / along**2
        left_out = np.stack([_between(np.delete(across, k, 0)) for k in range(len(across))]) / along**2
        number = len(across)
        error = np.sqrt((number - 1) / number * np.square(left_out - left_out.mean(0)).sum(0))
        variance = (self.squares / count - np.square(mean).sum(1)) * count / max(count - 1, 1)
        cosine = self.cosines / count
        deviation = np.sqrt(np.maximum(self.cosines2 / count - cosine**2, 0.0) / count)
        columns = {
            "bias2": bias2,
            "bias2_se": error,
            "noise": self.tokens / count * variance / along**2,
            "cosine": cosine,
            "cosine_se": deviation,
            "scale": along / np.linalg.norm(self.truth),
        }
        return [{name: float(column[row]) for name, column in columns.items()} for row in range(len(along))]


def _between(parts: Floats) -> Floats:
    """Return the mean product of different parts, for each row: an unbiased square of the mean."""
    number = len(parts)
    total = np.square(parts.sum(0)).sum(-1) - np.square(parts).sum((0, -1))
    return np.asarray(total / (number * (number - 1)), np.float64)
