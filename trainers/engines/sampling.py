"""Sampling from logits, for the torch engine.

The randomness of a token is a hash of the request's seed and the token's position in the context, so it depends neither
on the batch nor on chunks nor on earlier draws; a resumed generation continues as it would have.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Sampling parameters of a row; see :class:`trainers.engines.base.Sampling`. Aligned, so that a column can be a tensor.
ROW = np.dtype(
    [
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("return_kept", np.bool_),
        ("top_k", np.int64),
        ("seed", np.uint64),
    ],
    align=True,
)

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply SplitMix64's finaliser (Steele, Lea, Flood, 2014): every bit of ``x`` reaches every bit of the result."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Draw a number in ``[0, 1)`` for each pair, float64 ``[n]``: SplitMix64's position-th output from a mixed seed.

    They are multiples of ``2**-52``, so that a product with a positive total stays below that total.
    """
    state = mix(seeds + _GOLDEN) + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    return (mix(state) >> np.uint64(12)).astype(np.float64) * 2.0**-52


def sample(
    logits: Tensor, rows: NDArray[np.void], uniform: NDArray[np.float64]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw a token for each row, by inverting the cumulative distribution at a uniform number in ``[0, 1)``.

    ``logits`` is float32 ``[n, vocab]``, ``rows`` :data:`ROW` ``[n]``, ``uniform`` ``[n]``.

    Returns:
        int64 tokens ``[n]``; float32 log-probs ``[n]`` at the temperature over the full vocabulary, and after the cuts
        (0 for greedy rows); int64 ``[m, 2]``: row and token of what the cuts left in rows with ``return_kept``.
    """
    device = logits.device

    def put(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(device)

    temperature = rows["temperature"]
    greedy = temperature == 0
    if ((temperature != 1) & ~greedy).any():
        logits = logits / put(np.where(greedy, np.float32(1), temperature))[:, None]
    logprobs = logits.log_softmax(-1)
    if greedy.all():
        tokens = logprobs.argmax(-1)
        logprob = logprobs.gather(1, tokens[:, None]).squeeze(1)
        return tokens, logprob, torch.zeros_like(logprob), tokens.new_zeros(0, 2)

    weights = logprobs.exp()  # of the draw: probabilities, 0 where cut
    reported_pairs = torch.zeros(0, 2, dtype=torch.int64, device=device)
    cut = ((rows["top_k"] > 0) | (rows["top_p"] < 1) | (rows["min_p"] > 0)) & ~greedy
    if cut.any():
        which = put(np.flatnonzero(cut))
        remaining = _cut(weights[which], *(put(rows[cut][name]) for name in ("top_k", "top_p", "min_p")))
        weights = weights.index_copy(0, which, remaining)
        if (reported := rows["return_kept"] & cut).any():
            reported_pairs = ((weights > 0) & put(reported)[:, None]).nonzero()
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    # The first token whose cumulative weight exceeds the draw, so never one of weight 0.
    tokens = torch.searchsorted(cumulative, put(uniform)[:, None] * total, right=True).squeeze(1)
    if greedy.any():
        tokens = torch.where(put(greedy), logprobs.argmax(-1), tokens)
    logprob = logprobs.gather(1, tokens[:, None]).squeeze(1)
    sampled = logprob
    if cut.any():
        sampled = torch.where(put(cut), logprob - total.squeeze(1).log().float(), sampled)
    if greedy.any():
        sampled = sampled.masked_fill(put(greedy), 0.0)
    return tokens, logprob, sampled, reported_pairs


def _cut(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Set to 0 what the cuts remove; ``probs [n, vocab]``, parameters ``[n]``.

    In this order: the ``k`` most likely; of those, renormalised, the smallest set that reaches ``top_p``; of those, the
    ones of at least ``min_p`` times the most likely. Ties go to the smaller id. The most likely token always stays.
    """
    vocab = probs.shape[-1]
    ordered, ids = probs.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(vocab, device=probs.device)
    limit = torch.where(top_k > 0, top_k, vocab)[:, None]
    ordered = ordered.masked_fill(rank >= limit, 0.0)
    before = ordered.double().cumsum(-1) - ordered
    mass = ordered.sum(-1, dtype=torch.float64, keepdim=True)
    drop = (before >= top_p[:, None].double() * mass) & (top_p < 1)[:, None]
    drop |= ordered < min_p[:, None] * ordered[:, :1]
    drop[:, 0] = False
    return torch.zeros_like(probs).scatter_(1, ids, ordered.masked_fill_(drop, 0.0))
