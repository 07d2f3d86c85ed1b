"""Losses of single tokens: tensors ``[n]`` in, a tensor ``[n]`` out.

``(weights * loss).sum()``, with :func:`trainers.algorithms.policy_losses.token_weights`, makes one number of them;
:func:`summarize` makes metrics of the statistics. Neither depends on micro-batches, as long as an episode is whole in
one of them where the loss is of whole episodes (:func:`gspo`, :func:`geo_mean`).

All losses of the policy take ``logprobs``, of the policy in training; ``old_logprobs``, of the policy before this
batch's first update (1 is then the first ratio); ``advantages``; and ``importance``, which multiplies the loss (see
:mod:`trainers.algorithms.off_policy`). Where there are bounds, ``clip_low`` is in [0, 1] and ``clip_high`` at least 0.
``sequence`` (int ``[n]``) has the episode of each token, in any numbering; ``selected`` (``[n]``) is not 0 where
:func:`clip_cov_tokens` or :func:`kl_cov_tokens` selects it. A ``ValueError`` says which shapes differ, or which option
is outside its range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from trainers.algorithms.batch import Bools, Floats, Ints
from trainers.algorithms.names import Aggregation

#: Log-ratios are clamped to +-20: beyond, they only say "far off", and ``exp`` could overflow to a NaN gradient.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, eq=False)
class TokenLoss:
    """Losses of tokens and their statistics."""

    loss: Tensor  #: ``[n]``, differentiable
    stats: Mapping[str, Tensor]  #: name to ``[n]``, detached; see :func:`summarize`


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
    """Return the clipped surrogate of PPO (arXiv 1707.06347), to be minimised.

    With the ratio ``rho = exp(logprobs - old_logprobs)``: ``-min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)``.
    A higher ``clip_high`` lets unlikely tokens grow faster (DAPO, arXiv 2503.14476).

    Options of its own:
        dual_clip: ``c > 1``: where ``A < 0`` the loss is at most ``-c A``, so that a token that has become much
            likelier cannot dominate (arXiv 1912.09729).

    Returns the loss, with ``ratio``, ``clipped`` and ``dual_clipped`` (1 where that bound cut the gradient off),
    ``outside_clip`` (1 outside the clip range, whatever the advantage), and ``approx_kl_k1``, ``approx_kl_k3``:
    estimates of how far the policy has moved, KL(old, new) (see ``kl.py``).
    """
    _same_shape(logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages, importance=importance)
    _check_clip(clip_low, clip_high)
    if dual_clip is not None and not dual_clip > 1.0:
        raise ValueError(f"dual_clip must be greater than 1, not {dual_clip!r}")
    log_ratio = _log_ratio(logprobs, old_logprobs)
    ratio = log_ratio.exp()
    within = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    free, bounded = -ratio * advantages, -within * advantages
    loss = torch.maximum(free, bounded)
    clipped, dual_clipped = bounded > free, torch.zeros_like(free, dtype=torch.bool)
    if dual_clip is not None:
        most = -dual_clip * advantages
        dual_clipped = (advantages < 0) & (loss > most)
        loss = torch.where(dual_clipped, most, loss)
    stats = _stats(log_ratio, ratio, clipped, within != ratio) | {"dual_clipped": dual_clipped.to(ratio.dtype)}
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

    ``ratio`` and ``clipped`` are the episode's.
    """
    _same_shape(
        logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages, sequence=sequence, importance=importance
    )
    _check_clip(clip_low, clip_high)
    log_ratio = _log_ratio(logprobs, old_logprobs)
    mean = _sequence_mean(log_ratio, sequence)
    ratio = (mean.detach() + logprobs - logprobs.detach() if by_token else mean).exp()
    within = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    free, bounded = -ratio * advantages, -within * advantages
    loss = torch.maximum(free, bounded)
    return TokenLoss(_weighed(loss, importance), _stats(log_ratio, ratio, bounded > free, within != ratio))


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

    ``clip_low`` of 1 is no lower bound, as in the paper; a token is ``clipped`` where the weight was cut.
    """
    _same_shape(logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages, importance=importance)
    _check_clip(clip_low, clip_high)
    log_ratio = _log_ratio(logprobs, old_logprobs).detach()
    ratio = log_ratio.exp()
    weight = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = -weight * advantages * logprobs
    return TokenLoss(_weighed(loss, importance), _stats(log_ratio, ratio, weight != ratio, weight != ratio))


def geo_mean(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    sequence: Tensor,
    *,
    clip_low: float = 0.4,
    clip_high: float = 0.4,
    importance: Tensor | None = None,
) -> TokenLoss:
    """Geometric-mean policy optimisation (GMPO, arXiv 2507.20673): token ratios are clipped, then averaged by geometry.

    With ``l = logprobs - old_logprobs`` and ``c = clip(l, -clip_low, clip_high)``, a token counts as ``min(l, c)``
    where ``A > 0`` and as ``max(l, c)`` where ``A < 0``. ``s = exp(mean of these over the episode)`` and a token's loss
    is ``-s A``. The bounds are of the *logarithm* of the ratio (the paper: 0.4, so the ratio is in [0.67, 1.49]).
    :func:`gspo` clips the mean as a whole; here one far-off token loses its own gradient and the others keep theirs.
    As in :func:`gspo`, the gradient of every token's loss reaches the whole episode, which is right where all its
    tokens have the same advantage; with ``seq-mean-token-mean`` the loss is then the paper's.

    ``ratio`` is the episode's ``s``, ``clipped`` and ``outside_clip`` are the token's.
    """
    _same_shape(
        logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages, sequence=sequence, importance=importance
    )
    _check_clip(clip_low, clip_high)
    log_ratio = _log_ratio(logprobs, old_logprobs)
    bounded = log_ratio.clamp(-clip_low, clip_high)
    counted = torch.where(advantages < 0, torch.maximum(log_ratio, bounded), torch.minimum(log_ratio, bounded))
    ratio = _sequence_mean(counted, sequence).exp()
    stats = _stats(log_ratio, ratio, counted != log_ratio, bounded != log_ratio)
    return TokenLoss(_weighed(-ratio * advantages, importance), stats)


def sapo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    importance: Tensor | None = None,
) -> TokenLoss:
    """Soft adaptive policy optimisation (SAPO, arXiv 2511.20347): a smooth gate in place of clipping.

    With the ratio ``rho``: ``-(4 / tau) sigmoid(tau (rho - 1)) A``, where ``tau`` is ``tau_pos`` for ``A > 0`` and
    ``tau_neg`` else. The gradient is the policy gradient's times ``4 p (1 - p) rho``, ``p = sigmoid(tau (rho - 1))``:
    1 at the ratio 1, and it fades in both directions, faster with a greater ``tau``.

    The paper's ``tau_neg`` is a little greater, because negative advantages raise many unlikely tokens. There is no
    ``outside_clip``, and nothing is ever ``clipped``.
    """
    _same_shape(logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages, importance=importance)
    if not (tau_pos > 0 and tau_neg > 0):
        raise ValueError(f"tau_pos and tau_neg must be positive, not {tau_pos!r} and {tau_neg!r}")
    log_ratio = _log_ratio(logprobs, old_logprobs)
    ratio = log_ratio.exp()
    tau = tau_neg + (tau_pos - tau_neg) * (advantages > 0).to(ratio.dtype)
    loss = -(4.0 / tau) * torch.sigmoid(tau * (ratio - 1.0)) * advantages
    return TokenLoss(_weighed(loss, importance), _stats(log_ratio, ratio, torch.zeros_like(ratio, dtype=torch.bool)))


def dppo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    divergence: Literal["tv", "kl"] = "tv",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    ratio_cap: float | None = None,
    importance: Tensor | None = None,
) -> TokenLoss:
    """Divergence PPO (DPPO, arXiv 2602.04879): the trust region is of the distribution's change, not of the ratio.

    The change is estimated by two outcomes, "this token" with the probability ``p = exp(logprobs)`` and "another", from
    ``q = exp(old_logprobs)``: ``tv``: ``|p - q|``; ``kl``: ``q log(q / p) + (1 - q) log((1 - q) / (1 - p))``. A token
    that has moved where its advantage pushes it (``A > 0`` and ``p > q`` by more than ``clip_high``, or ``A < 0`` and
    ``p < q`` by more than ``clip_low``) has the loss 0. The others have ``-sg[min(rho, ratio_cap)] A logprobs`` (``sg``
    stops the gradient). An unlikely token may thus multiply its probability, which PPO's ratio forbids, and a likely
    one may not move far, which the ratio allows.

    The paper's ``old_logprobs`` are those of the policy that sampled. ``ratio_cap`` is at least 1, ``None`` for no
    limit. ``clipped`` where the loss is 0 for the divergence, ``outside_clip`` where that is beyond its bound, and
    ``dual_clipped`` where the ratio was cut.
    """
    _same_shape(logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages, importance=importance)
    _check_clip(clip_low, clip_high)
    if ratio_cap is not None and not ratio_cap >= 1.0:
        raise ValueError(f"ratio_cap must be at least 1, not {ratio_cap!r}")
    log_ratio = _log_ratio(logprobs, old_logprobs).detach()
    ratio, up = log_ratio.exp(), log_ratio > 0
    p, q = logprobs.detach().exp(), old_logprobs.exp()
    if divergence == "tv":
        moved = (p - q).abs()
    elif divergence == "kl":
        # log1p(-p) is -inf for a certain token; the clamp keeps 0 * inf out.
        rest_p, rest_q = ((1.0 - x).clamp_min(1e-8) for x in (p, q))
        moved = -q * log_ratio + rest_q * (rest_q / rest_p).log()
    else:
        raise ValueError(f"divergence must be tv or kl, not {divergence!r}")
    far = torch.where(up, moved > clip_high, moved > clip_low)
    outside = far & torch.where(up, advantages > 0, advantages < 0)
    weight = ratio if ratio_cap is None else ratio.clamp_max(ratio_cap)
    loss = torch.where(outside, 0.0, -weight * advantages * logprobs)
    stats = _stats(log_ratio, ratio, outside, far) | {"dual_clipped": (weight != ratio).to(ratio.dtype)}
    return TokenLoss(_weighed(loss, importance), stats)


def clip_cov(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    selected: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    importance: Tensor | None = None,
) -> TokenLoss:
    """Compute :func:`ppo_clip` without the selected tokens (Clip-Cov, arXiv 2505.22617).

    Entropy falls by the covariance of log-probability and advantage, and few tokens carry most of it. Some of those
    (:func:`clip_cov_tokens`) have the loss 0 here; they still count in means.
    """
    _same_shape(logprobs=logprobs, selected=selected)
    result = ppo_clip(logprobs, old_logprobs, advantages, clip_low=clip_low, clip_high=clip_high, importance=importance)
    chosen = selected != 0
    return TokenLoss(
        torch.where(chosen, 0.0, result.loss), {**result.stats, "selected": chosen.to(result.loss.dtype).detach()}
    )


def kl_cov(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    selected: Tensor,
    *,
    kl_coef: float = 1.0,
    importance: Tensor | None = None,
) -> TokenLoss:
    """Return the unclipped surrogate with a penalty on the selected tokens (KL-Cov, arXiv 2505.22617).

    ``-rho A``, plus ``kl_coef |logprobs - old_logprobs|`` on the tokens of
    :func:`kl_cov_tokens`: the absolute value is the released code's estimate of the KL
    to the policy before the update. Its slope is 0 where the two are equal, so the penalty acts from the second
    optimizer step of a batch on.
    """
    _same_shape(
        logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages, selected=selected, importance=importance
    )
    if not kl_coef >= 0:
        raise ValueError(f"kl_coef must be at least 0, not {kl_coef!r}")
    log_ratio = _log_ratio(logprobs, old_logprobs)
    ratio, chosen = log_ratio.exp(), selected != 0
    loss = -ratio * advantages + torch.where(chosen, kl_coef * log_ratio.abs(), 0.0)
    stats = _stats(log_ratio, ratio, torch.zeros_like(chosen)) | {"selected": chosen.to(ratio.dtype)}
    return TokenLoss(_weighed(loss, importance), stats)


def _log_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    return (logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _check_clip(clip_low: float, clip_high: float) -> None:
    if not (0.0 <= clip_low <= 1.0 and clip_high >= 0.0):
        raise ValueError(f"clip_low must be in [0, 1] and clip_high at least 0, not {clip_low!r} and {clip_high!r}")


def _sequence_mean(x: Tensor, sequence: Tensor) -> Tensor:
    """Return each token's mean over its sequence, differentiably."""
    number = sequence.unique(return_inverse=True)[1]
    count = torch.bincount(number).to(x.dtype)
    total = torch.zeros_like(count).index_add(0, number, x)
    return (total / count)[number]


def _weighed(loss: Tensor, importance: Tensor | None) -> Tensor:
    return loss if importance is None else loss * importance.detach()


def _stats(log_ratio: Tensor, ratio: Tensor, clipped: Tensor, outside: Tensor | None = None) -> dict[str, Tensor]:
    """Return the losses' statistics: ratio, clipping, tokens outside the clip range, KL of each token's move."""
    log_ratio, ratio = log_ratio.detach(), ratio.detach()
    ranged = {} if outside is None else {"outside_clip": outside.to(ratio.dtype)}
    return ranged | {
        "ratio": ratio,
        "clipped": clipped.to(ratio.dtype),
        "approx_kl_k1": -log_ratio,
        "approx_kl_k3": torch.expm1(log_ratio) - log_ratio,
    }


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float | None = None) -> TokenLoss:
    """Return half the squared error, with the clipping of PPO2.

    ``max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2) / 2``: moving a value further than ``clip`` in one
    batch earns nothing.

    ``values``, ``old_values`` (that the advantages were computed from) and ``returns`` are ``[n]``. Statistics are
    ``value_clipped`` and ``value_error`` (``V - R``).
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
    """Return ``H = -sum_v p_v log p_v`` in nats ``[n]``, differentiable, of ``logits`` ``[n, V]``."""
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    logprobs = logits.log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


def summarize(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """Return mean statistics over all micro-batches' tokens, and ``ratio_min`` and ``ratio_max`` of a ``ratio``."""
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


def token_weights(
    mode: Aggregation,
    token_offsets: Ints,
    mask: Bools | None = None,
    norm_length: float | None = None,
    *,
    weights: Floats | None = None,
    tree: Ints | None = None,
) -> Floats:
    """Return the weight of every action token: ``loss = sum_i w_i loss_i``, which parts of the global batch add up to.

    With ``n_e`` counted tokens in episode ``e`` and ``S`` episodes that have any (a sequence is a whole episode,
    all its turns together):

    ========================== =============== ===================================================================
    mode                       weight          a long episode counts
    ========================== =============== ===================================================================
    token-mean                 1 / sum_e n_e   by its tokens; the weight of one depends on the rest (DAPO, 2503.14476)
    seq-mean-token-sum         1 / S           by its tokens
    seq-mean-token-mean        1 / (S n_e)     as much as a short one (GRPO, 2402.03300); favours long failures
    seq-mean-token-sum-norm    1 / (S L)       by its tokens, scaled by a constant ``L`` (Dr. GRPO, 2503.20783)
    ========================== =============== ===================================================================

    With ``weights`` (float ``[N]``, at least 0) a token counts so much instead of 1, and with ``tree`` (int ``[E]``,
    :func:`~trainers.algorithms.batch.tree_of`) a sequence is an episode with its forks. ``token_offsets`` (int
    ``[E + 1]``) say where the episodes of the *global* batch start among its ``N`` action tokens; ``mask`` (bool
    ``[N]``) which count. ``norm_length`` is ``L``, for the last mode alone.

    Returns float ``[N]``, 0 where the mask is false. Raises ``ValueError``: the mode is unknown, ``norm_length`` is
    missing, not positive or not used, or the shapes do not fit.
    """
    lengths = np.diff(token_offsets)
    counted: Floats = np.ones(int(token_offsets[-1])) if mask is None else mask.astype(np.float64)
    if counted.shape != (int(token_offsets[-1]),):
        raise ValueError(f"the mask has the shape {counted.shape} for {int(token_offsets[-1])} action tokens")
    if (norm_length is not None) != (mode == "seq-mean-token-sum-norm"):
        raise ValueError(
            f"norm_length is for seq-mean-token-sum-norm, which needs it; got {norm_length!r} with {mode!r}"
        )
    if weights is not None:
        if weights.shape != counted.shape:
            raise ValueError(f"weights has the shape {weights.shape} for {len(counted)} action tokens")
        counted = counted * weights
    episode = np.repeat(np.arange(len(lengths)) if tree is None else tree, lengths)
    per_episode: Floats = np.asarray(np.bincount(episode, counted, minlength=len(lengths)), np.float64)
    sequences = max(int(np.count_nonzero(per_episode)), 1)  # 1: without any counted token all weights are 0 anyway
    per_token: Floats
    if mode == "token-mean":
        per_token = np.full(len(counted), per_episode.sum() or 1.0)
    elif mode == "seq-mean-token-sum":
        per_token = np.full(len(counted), float(sequences))
    elif mode == "seq-mean-token-mean":
        per_token = sequences * np.where(per_episode > 0, per_episode, 1.0)[episode]
    elif mode == "seq-mean-token-sum-norm":
        if norm_length is None or not norm_length > 0:
            raise ValueError(f"norm_length must be positive, not {norm_length!r}")
        per_token = np.full(len(counted), sequences * norm_length)
    else:
        raise ValueError(f"unknown aggregation {mode!r}: choose one of {', '.join(get_args(Aggregation))}")
    return counted / per_token


def covariances(logprobs: Floats, advantages: Floats, mask: Bools) -> Floats:
    """Return each trained token's share ``c_i = (log p_i - mean(log p)) (A_i - mean(A))``, ``[N]``; 0 outside ``mask``.

    After a small step the entropy falls by the covariance of log-probability and advantage (arXiv 2505.22617, "The
    entropy mechanism"). ``log p`` is of before the batch's first update, so the choice does not depend on how it is
    cut.
    """
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
    """Draw tokens at random among those with ``low < c < high``: a share ``ratio`` of the trained ones, at least one.

    The bounds are meant for advantages of variance 1; the greatest covariances are left in: they are outliers. Returns
    bool ``[N]``, fewer than requested where fewer are in the range.
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
    """Select the tokens of greatest ``c``: a share ``ratio`` of the trained ones, at least one; first of equals."""
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
