"""Corrections for tokens that were sampled by another policy than the one that is trained.

Three policies: the *behaviour* policy sampled the tokens (older weights, or an engine's arithmetic); the *proximal*
policy is the learner's before the batch's first update, where the loss's ratio starts; the third is in training. What
is here corrects from the behaviour policy to the proximal one, once a batch, from ``l = log proximal - log behaviour``
of each token:

* :func:`importance_weights` multiply the loss;
* :func:`acceptance_mask` leaves tokens or whole episodes out, from the loss and from its denominators;
* :func:`mismatch` measures their distance.

Pure NumPy, over the action tokens of a whole batch. An episode is a sequence, with all its turns.
"""

from __future__ import annotations

import numpy as np

from trainers.algorithms.batch import Bools, Floats, Ints
from trainers.algorithms.names import Importance, Rejection

#: Log-ratios, also those of whole sequences, are clamped to +-20 before ``exp``: beyond, they only say "far off".
MAX_LOG_RATIO = 20.0


def importance_weights(
    mode: Importance, proximal: Floats, behaviour: Floats, token_offsets: Ints, cap: float | None = 2.0
) -> Floats | None:
    """Weights for the losses of tokens.

    ================ ============================================ =====================================================
    mode             weight                                       biased
    ================ ============================================ =====================================================
    ``token_tis``    ``min(exp(l_t), cap)``                       by the cap, and because the states that tokens stand
                                                                  in are still the behaviour policy's
    ``sequence_tis`` ``min(exp(sum of the episode's l), cap)``    by the cap only; its variance grows with the length
    ``decoupled``    ``exp(l_t)``, and 0 where that is above cap  as ``token_tis``
    ================ ============================================ =====================================================

    Truncated importance sampling is by E. Ionides (2008). ``decoupled`` is the objective of decoupled PPO (arXiv
    2110.00641) in the form of AReaL (arXiv 2505.24298): the weight is not truncated; a token beyond the cap is dropped.

    ``proximal`` and ``behaviour`` are log-probabilities ``[N]``, ``token_offsets`` int ``[E + 1]``; ``cap`` is the
    greatest weight, ``None`` for no limit. Returns ``[N]``, or ``None`` for the mode ``none``.
    """
    if mode == "none":
        return None
    log_ratio = _log_ratio(proximal, behaviour, token_offsets)
    if mode == "sequence_tis":
        log_ratio = _sequence_sum(log_ratio, token_offsets)
    weights = _exp(log_ratio)
    if cap is None:
        return weights
    return np.where(weights <= cap, weights, 0.0) if mode == "decoupled" else np.minimum(weights, cap)


def batch_normalized(weights: Floats, token_offsets: Ints, mode: Importance) -> Floats:
    """Divide importance weights by their mean: over tokens, or for ``sequence_tis`` over episodes with tokens.

    The mean weight is 1 in expectation; dividing by what it came out as keeps the size of a step apart from how stale a
    batch is. Biased by the order of ``1 / batch``. ``weights`` ``[N]`` are of the *global* batch.
    """
    if mode == "sequence_tis":
        mean = weights[token_offsets[:-1][np.diff(token_offsets) > 0]].mean() if weights.size else 0.0
    else:
        mean = weights.mean() if weights.size else 0.0
    return weights / mean if mean > 0 else weights


def acceptance_mask(
    mode: Rejection,
    proximal: Floats,
    behaviour: Floats,
    token_offsets: Ints,
    low: float = 0.5,
    high: float = 5.0,
    most: float | None = None,
) -> Bools:
    """Return the tokens to train on: those whose proximal and behaviour policies are near each other.

    The first three modes keep ratios of proximal to behaviour policy in ``[low, high]``.
    ``token``: the token's own ratio (with ``decoupled`` weights this is IcePop, arXiv 2510.18855; 0.5 to 5 is usual).
    ``sequence``: the product over its episode (with ``sequence_tis``, masked importance sampling). ``geometric``: the
    geometric mean over its episode, which does not depend on its length; .99 to 1.01 is usual. (Both: J. Liu, Y. Li et
    al., "When Speed Kills Stability", 2025.)

    The other modes bound an estimate of KL(behaviour, proximal) from the token, in nats: ``k2``, ``l^2 / 2``, or
    ``k3``, ``exp(l) - 1 - l``, neither of which is negative, so that what is too likely and what is too unlikely do not
    cancel. ``token_*`` is each token's own; of ``seq_sum_*``, ``seq_mean_*`` and ``seq_max_*`` the sum, mean and
    greatest over its episode decide about the episode. (The names are verl's, which calls the first three ``token_k1``,
    ``seq_sum_k1`` and ``seq_mean_k1``, with the band on the inverse ratio.)

    Rejection is biased: what the two policies disagree about most is not learned from. It bounds what single tokens can
    do to an update. (The papers give rejected tokens the weight 0 and count them in the mean; here they do not count.)

    ``low`` is in [0, 1] and ``high`` at least 1; ``most``, in nats, is for the KL estimates, which need it. Returns
    bool ``[N]``; the other arguments are those of :func:`importance_weights`.
    """
    log_ratio = _log_ratio(proximal, behaviour, token_offsets)
    if mode == "none":
        return np.ones(len(log_ratio), np.bool_)
    if mode.endswith(("_k2", "_k3")):
        assert most is not None
        return _divergence(mode, log_ratio, token_offsets) <= most
    if mode != "token":
        total = _sequence_sum(log_ratio, token_offsets)
        log_ratio = total / np.repeat(np.diff(token_offsets), np.diff(token_offsets)) if mode == "geometric" else total
    ratio = _exp(log_ratio)
    return (low <= ratio) & (ratio <= high)


def _divergence(mode: str, log_ratio: Floats, token_offsets: Ints) -> Floats:
    """Return, for each token, the bounded divergence: its own estimate, or one for its whole episode."""
    scope, _, kind = mode.rpartition("_")
    clamped = log_ratio.clip(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    divergence = 0.5 * clamped**2 if kind == "k2" else np.expm1(clamped) - clamped
    if scope == "token" or not divergence.size:
        return np.asarray(divergence, np.float64)
    lengths = np.diff(token_offsets)
    if scope == "seq_max":
        return np.repeat(np.maximum.reduceat(divergence, token_offsets[:-1][lengths > 0]), lengths[lengths > 0])
    total = _sequence_sum(divergence, token_offsets)
    return total / np.repeat(lengths, lengths) if scope == "seq_mean" else total


def mismatch(proximal: Floats, behaviour: Floats) -> dict[str, float]:
    """Measure the distance of the policy that sampled from the one that the update starts from; 0 without tokens.

    ``engine_logprob_gap``, the greatest ``|l|``; and ``mismatch_kl``, the mean of ``exp(l) - 1 - l``: KL(behaviour,
    proximal) in nats a token, unbiased, by the ``k3`` of :mod:`trainers.algorithms.kl`.
    """
    log_ratio = (proximal - behaviour).clip(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    k3 = np.expm1(log_ratio) - log_ratio
    gap = np.abs(proximal - behaviour)
    return {"engine_logprob_gap": float(gap.max(initial=0.0)), "mismatch_kl": float(k3.mean()) if k3.size else 0.0}


def weight_metrics(weights: Floats, mode: Importance, cap: float | None) -> dict[str, float]:
    """Return the metrics of :func:`importance_weights`; empty without tokens.

    ``importance_mean`` and ``importance_max``; ``importance_clipped``, the share of tokens that the cap cut or dropped;
    ``importance_ess``, the effective share of the sample, ``(sum w)^2 / (N sum w^2)``.
    """
    if not weights.size:
        return {}
    beyond = np.zeros(0) if cap is None else weights == (0.0 if mode == "decoupled" else cap)
    squares = float(np.square(weights).sum())
    return {
        "importance_mean": float(weights.mean()),
        "importance_max": float(weights.max()),
        "importance_clipped": float(beyond.mean()) if beyond.size else 0.0,
        "importance_ess": float(weights.sum()) ** 2 / (weights.size * squares) if squares > 0 else 0.0,
    }


def _log_ratio(proximal: Floats, behaviour: Floats, token_offsets: Ints) -> Floats:
    if not proximal.shape == behaviour.shape == (int(token_offsets[-1]),):
        raise ValueError(
            f"shapes must be the same, one entry an action token, not {proximal.shape} and {behaviour.shape} for "
            f"{int(token_offsets[-1])} action tokens"
        )
    return proximal - behaviour


def _sequence_sum(x: Floats, token_offsets: Ints) -> Floats:
    lengths = np.diff(token_offsets)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    return np.asarray(np.bincount(episode, x, minlength=len(lengths)), np.float64)[episode]


def _exp(log_ratio: Floats) -> Floats:
    return np.asarray(np.exp(log_ratio.clip(-MAX_LOG_RATIO, MAX_LOG_RATIO)), np.float64)
