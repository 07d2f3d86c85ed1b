"""The KL of a policy from a teacher over its most likely tokens: each state's, not that of one sampled token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, eq=False)
class TopTokens:
    """Up to ``k`` tokens of the distribution that each of ``N`` action tokens came from, as a model scores them."""

    ids: NDArray[np.int32]  #: ``[N, k]``; -1 where there are fewer than ``k``
    logprobs: NDArray[np.float32]  #: ``[N, k]``; 0 where there is no token

    def __getitem__(self, tokens: Any) -> TopTokens:
        return TopTokens(self.ids[tokens], self.logprobs[tokens])

    def only(self, tokens: NDArray[np.bool_]) -> TopTokens:
        """Return these without any token outside ``tokens``, bool ``[N]``."""
        kept = tokens[:, None]
        return TopTokens(np.where(kept, self.ids, np.int32(-1)), np.where(kept, self.logprobs, np.float32(0.0)))

    def mass(self) -> NDArray[np.float64]:
        """Return the probability that the tokens have together, ``[N]``."""
        return np.where(self.ids >= 0, np.exp(self.logprobs.astype(np.float64)), 0.0).sum(-1)


def top_kl(policy: Tensor, teacher: Tensor, ids: Tensor) -> Tensor:
    """Return the reverse KL of each state over some tokens and a remainder, in nats, ``[n]``; differentiable.

    ``D = sum_{j in S} p_j log(p_j / t_j) + p_R log(p_R / t_R)``, where ``S`` are the tokens of ``ids`` (int ``[n, k]``,
    none where below 0) and ``R`` is everything else as one outcome. ``policy`` and ``teacher``, ``[n, k]``, are the
    models' log-probabilities of ``S``. By the chain rule, ``KL(p || t) = D + p_R KL(p(. | R) || t(. | R))``: ``D`` is a
    lower bound, too small by what the models differ within the remainder, and exact where ``S`` is all tokens or all
    but one. Without the remainder a sum over ``S`` would be no divergence, and least where the policy leaves ``S``.
    TRL's trainer of SDPO (arXiv 2601.20802) has the same remainder, as ``distillation_add_tail``.

    A remainder of less than the type's epsilon counts as that, and has no gradient. A state without ``ids`` has 0.
    """
    valid = ids >= 0
    log_p, log_t = (_remainder(values.masked_fill(~valid, -1e30)) for values in (policy, teacher))
    terms = torch.where(valid, policy.exp() * (policy - teacher), 0.0)
    return terms.sum(-1) + log_p.exp() * (log_p - log_t)


def _remainder(logprobs: Tensor) -> Tensor:
    """Return ``log(1 - sum exp(logprobs))`` over the last axis."""
    return torch.log(-torch.expm1(logprobs.logsumexp(-1).clamp(max=-torch.finfo(logprobs.dtype).eps)))
