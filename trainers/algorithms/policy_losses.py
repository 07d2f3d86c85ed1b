"""Losses of single tokens: tensors ``[n]`` in, a tensor ``[n]`` out.

Nothing is averaged here. ``(weights * loss).sum()``, with :func:`trainers.algorithms.aggregation.token_weights`, makes
one number of them; :func:`summarize` makes metrics of the per-token statistics. Neither depends on micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

#: Log-ratios are clamped to +-20: beyond, they only say "far off", and ``exp`` could overflow to a NaN gradient.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, eq=False)
class TokenLoss:
    """Losses and what to report about them.

    Args:
        loss: ``[n]``, differentiable.
        stats: Name to ``[n]``, detached; see :func:`summarize`.
    """

    loss: Tensor
    stats: Mapping[str, Tensor]


def ppo_clip(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    importance: Tensor | None = None,
) -> TokenLoss:
    """The clipped surrogate of PPO (arXiv 1707.06347), to be minimised.

    With the ratio ``rho = exp(logprobs - old_logprobs)``: ``-min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)``.
    A higher ``clip_high`` lets unlikely tokens grow faster (DAPO, arXiv 2503.14476).

    Args:
        logprobs: ``[n]``, of the policy in training.
        old_logprobs: ``[n]``, of the policy before this batch's first update; 1 is then the first ratio.
        advantages: ``[n]``.
        clip_low: In [0, 1].
        clip_high: At least 0.
        dual_clip: ``c > 1``: where ``A < 0`` the loss is at most ``-c A``, so that a token that has become much
            likelier cannot dominate (arXiv 1912.09729).
        importance: ``[n]``; multiplies the loss, see :func:`importance_weights`.

    Returns:
        The loss, with ``ratio``, ``clipped`` and ``dual_clipped`` (1 where that bound cut the gradient off), and
        ``approx_kl_k1``, ``approx_kl_k3``: estimates of how far the policy has moved, KL(old, new) (see ``kl.py``).

    Raises:
        ValueError: Shapes differ, or a bound is outside its range.
    """
    _same_shape(logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages, importance=importance)
    if not (0.0 <= clip_low <= 1.0 and clip_high >= 0.0):
        raise ValueError(f"clip_low must be in [0, 1] and clip_high at least 0, not {clip_low!r} and {clip_high!r}")
    if dual_clip is not None and not dual_clip > 1.0:
        raise ValueError(f"dual_clip must be greater than 1, not {dual_clip!r}")
    log_ratio = (logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    free = -ratio * advantages
    bounded = -ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    loss = torch.maximum(free, bounded)
    clipped, dual_clipped = bounded > free, torch.zeros_like(free, dtype=torch.bool)
    if dual_clip is not None:
        most = -dual_clip * advantages
        dual_clipped = (advantages < 0) & (loss > most)
        loss = torch.where(dual_clipped, most, loss)
    if importance is not None:
        loss = loss * importance.detach()
    log_ratio, ratio = log_ratio.detach(), ratio.detach()
    stats = {
        "ratio": ratio,
        "clipped": clipped.to(ratio.dtype),
        "dual_clipped": dual_clipped.to(ratio.dtype),
        "approx_kl_k1": -log_ratio,
        "approx_kl_k3": torch.expm1(log_ratio) - log_ratio,
    }
    return TokenLoss(loss, stats)


Importance = Literal["none", "token_tis"]


def importance_weights(
    mode: Importance, old_logprobs: Tensor, rollout_logprobs: Tensor, cap: float = 2.0
) -> Tensor | None:
    """Correct for tokens that were sampled by another policy than the one that PPO's ratio starts from.

    The sampler may run older weights or other kernels. ``token_tis`` is truncated importance sampling a token,
    ``min(exp(old - rollout), cap)``: unbiased but for the truncation, which bounds the variance (Ionides 2008).

    Args:
        mode: ``none`` or ``token_tis``.
        old_logprobs: ``[n]``, recomputed by the learner before the first update.
        rollout_logprobs: ``[n]``, as the engine reported them.
        cap: The greatest weight.

    Returns:
        ``[n]``, detached, for ``importance`` of :func:`ppo_clip`; ``None`` for ``none``.

    Raises:
        ValueError: The mode is unknown, the cap is not positive, or shapes differ.
    """
    if mode == "none":
        return None
    if mode != "token_tis":
        raise ValueError(f'the importance correction must be "none" or "token_tis", not {mode!r}')
    if not cap > 0:
        raise ValueError(f"cap must be positive, not {cap!r}")
    _same_shape(old_logprobs=old_logprobs, rollout_logprobs=rollout_logprobs)
    return (old_logprobs - rollout_logprobs).detach().clamp(max=MAX_LOG_RATIO).exp().clamp(max=cap)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float | None = None) -> TokenLoss:
    """Half the squared error, with the clipping of PPO2.

    ``max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2) / 2``: moving a value further than ``clip`` in one
    batch earns nothing.

    Args:
        values: ``[n]``, of the critic in training.
        old_values: ``[n]``, that the advantages were computed from.
        returns: ``[n]``.
        clip: How far a value may move; ``None`` does not clip.

    Returns:
        The loss, with ``value_clipped`` and ``value_error`` (``V - R``).

    Raises:
        ValueError: Shapes differ, or the clip range is not positive.
    """
    _same_shape(values=values, old_values=old_values, returns=returns)
    free = (values - returns).square()
    loss, clipped = free, torch.zeros_like(free, dtype=torch.bool)
    if clip is not None:
        if not clip > 0:
            raise ValueError(f"the value clip must be positive, not {clip!r}")
        bounded = (values.clamp(old_values - clip, old_values + clip) - returns).square()
        loss, clipped = torch.maximum(free, bounded), bounded > free
    stats = {"value_clipped": clipped.to(free.dtype), "value_error": (values - returns).detach()}
    return TokenLoss(0.5 * loss, stats)


def entropy(logits: Tensor) -> Tensor:
    """``H = -sum_v p_v log p_v`` in nats, differentiable. A bonus of ``c`` is the loss ``-c H``.

    Args:
        logits: ``[n, V]``, divided by the sampling temperature.

    Returns:
        ``[n]``, float32 at least.
    """
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    logprobs = logits.log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


def summarize(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """Mean statistics over the tokens of all micro-batches, and the extreme ratios.

    Args:
        parts: The ``stats`` of each micro-batch, with the same names. Leave out tokens that are not trained on.

    Returns:
        Each name's mean over tokens, and ``ratio_min`` and ``ratio_max`` where there is a ``ratio``; nothing without
        tokens.
    """
    out: dict[str, float] = {}
    for name in parts[0] if parts else ():
        values = torch.cat([part[name].flatten() for part in parts])
        if not values.numel():
            continue
        out[name] = float(values.double().mean())
        if name == "ratio":
            out["ratio_min"], out["ratio_max"] = float(values.min()), float(values.max())
    return out


def _same_shape(**tensors: Tensor | None) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor is not None}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"shapes must be the same, one entry a token, not {shapes}")
