"""KL estimators of policy and reference, the two ways to use them; controllers of the KL and of entropy.

All estimators see only the sampled token. With ``l = log ref(x) - log pi(x)`` and ``x ~ pi``, the estimated quantity is
``KL(pi, ref) = E[-l]`` (J. Schulman, "Approximating KL divergence", 2020):

===== ================ ======== ===================================== =====================================
name  value            unbiased gradient as a penalty in the reward   gradient as a loss
===== ================ ======== ===================================== =====================================
k1    -l               yes      **right**: of KL(pi, ref)             **zero** in expectation: pure noise
k2    l^2 / 2          no       wrong                                 **right**: of KL(pi, ref)
k3    exp(l) - 1 - l   yes      of KL(pi, ref) - KL(ref, pi): nearly  of KL(ref, pi), the other KL
                                none while they are close
abs   |l|              no       wrong                                 wrong
===== ================ ======== ===================================== =====================================

So: ``k1`` in the reward, ``k2`` in the loss, and ``k3`` in the loss for what GRPO's authors did (arXiv 2402.03300). An
unbiased estimate of a number is not a loss with the right gradient (arXiv 2506.09477); the tests check every entry on
small distributions. A loss on single tokens also leaves out what a token does to the KL of those after it; the penalty
in the reward does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from trainers.algorithms.batch import Floats, Ints
from trainers.algorithms.names import KLEstimator

if TYPE_CHECKING:
    from trainers.algorithms.estimators.base import KLControlSection

#: k3's log-ratio is clamped to +-20, so that ``exp`` and its gradient stay finite.
K3_MAX_LOG_RATIO = 20.0
#: ``low_var_kl`` also clamps the value to 10, as verl does: a token whose probability has collapsed (l > 2.6) cannot
#: own the gradient, but has none at all any more, and far from the reference the estimate is too small.
LOW_VAR_KL_MAX = 10.0


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, kind: KLEstimator) -> Tensor:
    """Estimate KL(pi, ref) from each sampled token, differentiably in ``logprobs``.

    In the loss: ``weights * beta * kl_estimate(...)``. In the reward: ``beta * kl_estimate(...)`` without gradient is
    the ``penalty`` of :class:`trainers.algorithms.batch.ActionBatch`.

    ``logprobs`` and ``ref_logprobs`` are ``[n]``, of the policy that is regularised and of the reference;
    ``low_var_kl`` is ``k3``, at most 10. Returns ``[n]``, in nats.
    """
    if logprobs.shape != ref_logprobs.shape:
        raise ValueError(f"shapes must be the same, not {tuple(logprobs.shape)} and {tuple(ref_logprobs.shape)}")
    log_ratio = ref_logprobs.detach() - logprobs
    if kind == "k1":
        return -log_ratio
    if kind == "k2":
        return 0.5 * log_ratio.square()
    if kind in ("k3", "low_var_kl"):
        log_ratio = log_ratio.clamp(-K3_MAX_LOG_RATIO, K3_MAX_LOG_RATIO)
        k3 = torch.expm1(log_ratio) - log_ratio
        return k3.clamp(max=LOW_VAR_KL_MAX) if kind == "low_var_kl" else k3
    return log_ratio.abs()


def mean_kl(estimate: Floats, token_offsets: Ints) -> float:
    """Average over episodes with action tokens the mean over each one's tokens, as verl does, in nats a token.

    ``estimate`` is ``[N]``, of :func:`kl_estimate`; ``token_offsets``, int ``[E + 1]``, say where episodes start.
    """
    lengths = np.diff(token_offsets)
    sums = np.diff(np.concatenate([[0.0], np.cumsum(estimate, dtype=np.float64)])[token_offsets])
    return float((sums[lengths > 0] / lengths[lengths > 0]).mean()) if lengths.any() else 0.0


class KLController:
    """The KL coefficient ``beta``: constant, or steered towards a target (arXiv 1909.08593, section 2.2).

    ``beta <- beta * (1 + clip(kl / target - 1, -0.2, 0.2) * episodes / horizon)``, in the form of the paper's code: at
    most about 20% in ``horizon`` episodes. It is part of the checkpoint.
    """

    def __init__(self, control: KLControlSection) -> None:
        self.beta, self._control = control.kl_coef, control
        self._adapts = control.type == "adaptive"

    def update(self, kl: float, episodes: int) -> None:
        """Move an adaptive coefficient by a batch's :func:`mean_kl`, of fewer than ``5 * horizon`` episodes."""
        if not self._adapts:
            return
        target, horizon = self._control.target_kl, self._control.horizon
        if not 0 <= episodes < 5 * horizon:
            raise ValueError(f"{episodes} episodes a batch need a horizon above {episodes / 5}, not {horizon}")
        if not abs(kl) < float("inf"):
            raise ValueError(f"the batch's KL is {kl!r}: look at its log-probabilities before you continue")
        error = min(max(kl / target - 1.0, -0.2), 0.2)
        self.beta *= 1.0 + error * episodes / horizon

    def state_dict(self) -> dict[str, float]:
        return {"beta": self.beta} if self._adapts else {}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore a state; one of the other kind is refused: the run would resume with another coefficient."""
        if ("beta" in state) != self._adapts:
            has = "no" if self._adapts else "the"
            raise ValueError(f"the checkpoint has {has} state of an adaptive KL controller: {dict(state)}")
        self.beta = float(state.get("beta", self.beta))


class EntropyBonus:
    """A constant weight; with a ``target``, one that holds the policy's entropy up to it (arXiv 2505.22312, its MAGIC).

    After each batch ``weight <- max(0, weight ± step)``: up where the batch's entropy was below the ``target`` (nats a
    token, above 0), down where it was not. It counts only while the entropy is below. ``weight`` is at least 0,
    ``step`` above 0.
    """

    def __init__(self, weight: float, target: float | None = None, step: float = 0.005) -> None:
        self.weight, self.target, self.step = weight, target, step
        self.below = target is None

    @property
    def now(self) -> float:
        """The weight of this moment's batch."""
        return self.weight if self.below else 0.0

    def update(self, entropy: float) -> None:
        """Move the weight by a batch's mean entropy, nats a token."""
        if self.target is not None:
            self.below = entropy < self.target
            self.weight = max(0.0, self.weight + (self.step if self.below else -self.step))

    def state_dict(self) -> dict[str, float]:
        """Return the state for a checkpoint: empty for a constant weight."""
        return {} if self.target is None else {"weight": self.weight, "below": float(self.below)}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore the state of a checkpoint; where it is empty (a run without a target), the weight starts anew."""
        if self.target is not None and state:
            self.weight, self.below = float(state["weight"]), bool(state["below"])
