"""The cross-entropy of observation tokens beside a policy's loss, and how much of the gradient is its."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_OBSERVED, _POLICY = "observation_pull", "policy_pull"


def with_observations(
    loss: Tensor, logprobs: Tensor, observed: Tensor, weights: Tensor, temperature: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Add ``-sum_j w_j log p_j`` of a micro-batch's ``m`` observation tokens to its loss; return it, and sums.

    ``loss`` is a function of ``logprobs`` ``[n]`` of the action tokens, at ``temperature``; ``observed`` and
    ``weights``, ``[m]``, are of the observation tokens, at temperature 1. The sums are the added term
    (``observation_loss``), the tokens' negative log-probabilities (``observation_nll``), and the sizes of both
    gradients.

    A token counts there by the size of its loss's gradient in the logit of that token: ``w (1 - p)`` of an observation
    token, and ``|dL/dlog p| (1 - p) / T`` of an action token. So the observations' part falls as the policy learns to
    predict the environment. This costs no second backward pass. Gradients of action tokens of good and bad episodes
    cancel in part, which it does not see: the observations' share is a lower end.
    """
    term = -(weights * observed).sum()
    # Up to the log-probabilities alone: the model's part of the graph is not visited.
    (slope,) = torch.autograd.grad(loss, logprobs, retain_graph=True, allow_unused=True)
    pull = torch.zeros_like(term) if slope is None else (slope.abs() * -torch.expm1(logprobs.detach())).sum()
    free = observed.detach()
    sums = {"observation_loss": term.detach(), "observation_nll": -free.sum()}
    return loss + term, {**sums, _OBSERVED: (weights * -torch.expm1(free)).sum(), _POLICY: pull / temperature}


def with_means(sums: dict[str, Any], actions: int, observed: int) -> dict[str, Any]:
    """Return an update's sums with means over a mini-batch's tokens in place of those of :func:`with_observations`."""
    pulls = sums.pop(_OBSERVED), sums.pop(_POLICY)
    means = {"observation_gradient": _share(*pulls), "observation_share": _share(observed, actions)}
    nll = sums.pop("observation_nll")
    return {**sums, **means, **({"observation_nll": nll / observed} if observed else {})}


def _share(part: float, rest: float) -> float:
    return part / (part + rest) if part + rest > 0 else 0.0
