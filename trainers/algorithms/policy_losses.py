"""Losses of single tokens: tensors ``[n]`` in, a tensor ``[n]`` out.

Nothing is averaged here. ``(weights * loss).sum()``, with :func:`trainers.algorithms.aggregation.token_weights`, makes
one number of them; :func:`summarize` makes metrics of the per-token statistics. Neither depends on micro-batches, as
long as an episode is in one of them as a whole where the loss is of whole episodes (:func:`gspo`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

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
        importance: ``[n]``; multiplies the loss, see :mod:`trainers.algorithms.off_policy`.

    Returns:
        The loss, with ``ratio``, ``clipped`` and ``dual_clipped`` (1 where that bound cut the gradient off), and
        ``approx_kl_k1``, ``approx_kl_k3``: estimates of how far the policy has moved, KL(old, new) (see ``kl.py``).

    Raises:
        ValueError: Shapes differ, or a bound is outside its range.
    """
    _same_shape(logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages, importance=importance)
    _check_clip(clip_low, clip_high)
    if dual_clip is not None and not dual_clip > 1.0:
        raise ValueError(f"dual_clip must be greater than 1, not {dual_clip!r}")
    log_ratio = _log_ratio(logprobs, old_logprobs)
    ratio = log_ratio.exp()
    free = -ratio * advantages
    bounded = -ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    loss = torch.maximum(free, bounded)
    clipped, dual_clipped = bounded > free, torch.zeros_like(free, dtype=torch.bool)
    if dual_clip is not None:
        most = -dual_clip * advantages
        dual_clipped = (advantages < 0) & (loss > most)
        loss = torch.where(dual_clipped, most, loss)
    stats = _stats(log_ratio, ratio, clipped) | {"dual_clipped": dual_clipped.to(ratio.dtype)}
    return TokenLoss(_weighed(loss, importance), stats)


def gspo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    sequence: Tensor,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    by_token: bool = False,
    importance: Tensor | None = None,
) -> TokenLoss:
    """Group sequence policy optimisation (GSPO, arXiv 2507.18071): one ratio an episode, clipped as a whole.

    ``s = exp(mean_t(logprobs - old_logprobs))`` over all action tokens of the episode: the geometric mean of their
    ratios. A token's loss is ``-min(s A, clip(s, 1 - clip_low, 1 + clip_high) A)``, so the gradient of every token's
    loss reaches all tokens of the episode alike. That is right where they all have the same advantage.

    ``by_token`` is the paper's GSPO-token: ``s_t = sg[s] exp(logprobs_t - sg[logprobs_t])`` in place of ``s`` (``sg``
    stops the gradient). It has the same value and is clipped together, but each token's gradient is its own, with its
    own advantage. For equal advantages and equal weights inside each episode the two gradients are the same.

    The ratios are much closer to 1 than a token's, so the clip range is smaller; the defaults are the paper's.

    Args:
        logprobs: ``[n]``, of the policy in training. Each episode must be here whole, or not at all.
        old_logprobs: ``[n]``, of the policy before this batch's first update.
        advantages: ``[n]``.
        sequence: int ``[n]``; the episode of each token, in any numbering.
        clip_low: In [0, 1].
        clip_high: At least 0.
        by_token: GSPO-token.
        importance: ``[n]``; multiplies the loss, see :mod:`trainers.algorithms.off_policy`.

    Returns:
        The loss, with the statistics of :func:`ppo_clip`; ``ratio`` and ``clipped`` are the episode's.

    Raises:
        ValueError: Shapes differ, or a bound is outside its range.
    """
    _same_shape(
        logprobs=logprobs,
        old_logprobs=old_logprobs,
        advantages=advantages,
        sequence=sequence,
        importance=importance,
    )
    _check_clip(clip_low, clip_high)
    log_ratio = _log_ratio(logprobs, old_logprobs)
    mean = _sequence_mean(log_ratio, sequence)
    ratio = (mean.detach() + logprobs - logprobs.detach() if by_token else mean).exp()
    free = -ratio * advantages
    bounded = -ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    loss = torch.maximum(free, bounded)
    return TokenLoss(_weighed(loss, importance), _stats(log_ratio, ratio, bounded > free))


def cispo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float = 1.0,
    clip_high: float = 0.28,
    importance: Tensor | None = None,
) -> TokenLoss:
    """Clipped importance sampling weights (CISPO, MiniMax-M1, arXiv 2506.13585).

    ``-sg[clip(rho, 1 - clip_low, 1 + clip_high)] A logprobs``, with ``rho = exp(logprobs - old_logprobs)`` and ``sg``
    stopping the gradient: a policy gradient with a bounded weight. PPO gives a token outside the range no gradient at
    all; here it keeps one, so rare words that matter ("however", "wait") are not lost after the first update.

    Args:
        logprobs: ``[n]``, of the policy in training.
        old_logprobs: ``[n]``, of the policy before this batch's first update.
        advantages: ``[n]``.
        clip_low: In [0, 1]; 1 is no lower bound, as in the paper.
        clip_high: At least 0.
        importance: ``[n]``; multiplies the loss, see :mod:`trainers.algorithms.off_policy`.

    Returns:
        The loss, with the statistics of :func:`ppo_clip`; ``clipped`` where the weight was cut.

    Raises:
        ValueError: Shapes differ, or a bound is outside its range.
    """
    _same_shape(logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages, importance=importance)
    _check_clip(clip_low, clip_high)
    log_ratio = _log_ratio(logprobs, old_logprobs).detach()
    ratio = log_ratio.exp()
    weight = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = -weight * advantages * logprobs
    return TokenLoss(_weighed(loss, importance), _stats(log_ratio, ratio, weight != ratio))


PolicyLossName = Literal["ppo", "gspo", "gspo_token", "cispo"]


def policy_loss(
    name: PolicyLossName,
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    sequence: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    importance: Tensor | None = None,
) -> TokenLoss:
    """The loss of this name.

    Args:
        name: ``ppo`` (:func:`ppo_clip`), ``gspo``, ``gspo_token`` (:func:`gspo`) or ``cispo``.
        logprobs: As the loss takes them; likewise what follows.
        old_logprobs: ``[n]``.
        advantages: ``[n]``.
        sequence: int ``[n]``; the episode of each token. Read by ``gspo`` and ``gspo_token``.
        clip_low: In [0, 1].
        clip_high: At least 0.
        dual_clip: For ``ppo`` only.
        importance: ``[n]``.

    Raises:
        ValueError: The name is unknown, ``dual_clip`` goes with another loss than ``ppo``, or as the loss says.
    """
    if dual_clip is not None and name != "ppo":
        raise ValueError(f"dual_clip is for the loss ppo, not for {name}")
    given = (logprobs, old_logprobs, advantages)
    if name == "ppo":
        return ppo_clip(*given, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip, importance=importance)
    if name in ("gspo", "gspo_token"):
        by_token = name == "gspo_token"
        return gspo(*given, sequence, clip_low=clip_low, clip_high=clip_high, by_token=by_token, importance=importance)
    if name == "cispo":
        return cispo(*given, clip_low=clip_low, clip_high=clip_high, importance=importance)
    raise ValueError(f"unknown policy loss {name!r}: choose one of {', '.join(get_args(PolicyLossName))}")


def _log_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    return (logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _check_clip(clip_low: float, clip_high: float) -> None:
    if not (0.0 <= clip_low <= 1.0 and clip_high >= 0.0):
        raise ValueError(f"clip_low must be in [0, 1] and clip_high at least 0, not {clip_low!r} and {clip_high!r}")


def _sequence_mean(x: Tensor, sequence: Tensor) -> Tensor:
    """For each token the mean over its sequence, differentiably."""
    number = sequence.unique(return_inverse=True)[1]
    count = torch.bincount(number).to(x.dtype)
    total = torch.zeros_like(count).index_add(0, number, x)
    return (total / count)[number]


def _weighed(loss: Tensor, importance: Tensor | None) -> Tensor:
    return loss if importance is None else loss * importance.detach()


def _stats(log_ratio: Tensor, ratio: Tensor, clipped: Tensor) -> dict[str, Tensor]:
    """What every loss reports: its ratio, where it clipped, and how far each token's policy has moved."""
    log_ratio, ratio = log_ratio.detach(), ratio.detach()
    return {
        "ratio": ratio,
        "clipped": clipped.to(ratio.dtype),
        "approx_kl_k1": -log_ratio,
        "approx_kl_k3": torch.expm1(log_ratio) - log_ratio,
    }


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
