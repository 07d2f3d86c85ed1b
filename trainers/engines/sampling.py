"""Sampling from logits, for the torch engine: one function for batches of any shape and for static steps.

The randomness of a token is a hash of the request's seed and the token's position in the context, so it depends neither
on the batch nor on chunks nor on earlier draws; a resumed generation continues as it would have. :func:`uniforms` is
that hash in NumPy, :func:`device_uniforms` the same on a device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainers.engines.decoder import to_device

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

#: Ids that a row reports at most without a mask; more survive only where the model is quite uncertain.
LISTED = 1024

_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of SplitMix64
_UNIT = 2.0**-52


class Draws(NamedTuple):
    """Sampling parameters as tensors ``[n]``, a number for each row: float32, and int64 for ``top_k``."""

    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    top_k: Tensor


@dataclass(frozen=True)
class Kind:
    """The parts of sampling that some rows need. A part leaves the rows that do not need it as they are."""

    scaled: bool = True  #: temperatures other than 0 and 1
    greedy: bool = True  #: rows with temperature 0
    random: bool = True  #: other rows
    cut: bool = True  #: ``top_k``, ``top_p`` or ``min_p``
    reports: bool = True  #: rows that report what a cut left

    @classmethod
    def of(cls, rows: NDArray[np.void]) -> Kind:
        """Return what these :data:`ROW` need."""
        temperature, cut = rows["temperature"], cuts(rows)
        greedy = temperature == 0
        return cls(
            scaled=bool(((temperature != 1) & ~greedy).any()),
            greedy=bool(greedy.any()),
            random=not greedy.all(),
            cut=bool(cut.any()),
            reports=bool((rows["return_kept"] & cut).any()),
        )


def cuts(rows: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return which :data:`ROW` have a cut; greedy ones need none."""
    cut = (rows["top_k"] > 0) | (rows["top_p"] < 1) | (rows["min_p"] > 0)
    return np.asarray(cut & (rows["temperature"] != 0))


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply SplitMix64's finaliser (Steele, Lea, Flood, 2014): every bit of ``x`` reaches every bit of the result."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MIX_1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MIX_2)
    return x ^ (x >> np.uint64(31))


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Draw a number in ``[0, 1)`` for each pair, float64 ``[n]``: SplitMix64's position-th output from a mixed seed.

    They are multiples of ``2**-52``, so that a product with a positive total stays below that total.
    """
    golden = np.uint64(_GOLDEN)
    state = mix(seeds + golden) + (positions.astype(np.uint64) + np.uint64(1)) * golden
    return (mix(state) >> np.uint64(12)).astype(np.float64) * _UNIT


def device_uniforms(seeds: Tensor, positions: Tensor) -> Tensor:
    """Compute :func:`uniforms` where the tensors are; int64 ``[n]`` both, the seeds' 64 bits as a signed number."""
    state = _mix(seeds + _signed(_GOLDEN)) + (positions + 1) * _signed(_GOLDEN)
    return _shift(_mix(state), 12).double() * _UNIT


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _signed(_MIX_1)  # products of int64 wrap, as those of uint64 do
    x = (x ^ _shift(x, 27)) * _signed(_MIX_2)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift int64 to the right as if it had no sign."""
    return (x >> bits) & (2 ** (64 - bits) - 1)


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits


class Survivors(NamedTuple):
    """Tokens that the cuts left of ``n`` rows, compact: nearly always the listed ids are all."""

    counts: Tensor  #: int64 ``[n]``, how many tokens
    ids: Tensor  #: int32 ``[n, at most LISTED]``: the likeliest tokens, and -1 where a cut removed one
    mask: Tensor  #: bool ``[n, vocab]``, for the rows with more


class Sampled(NamedTuple):
    """The draws of ``n`` rows. Where the logits are not finite, neither are the log-probs."""

    tokens: Tensor  #: int64 ``[n]``
    logprobs: Tensor  #: float32 ``[n]``, at the temperature over the full vocabulary
    cut_logprobs: Tensor  #: float32 ``[n]``, after the cuts; 0 for greedy rows
    survivors: Survivors | None  #: of the rows with cuts, or of all if these were not named; only with ``kind.reports``


def sample(logits: Tensor, draws: Draws, uniform: Tensor, kind: Kind, cut_rows: Tensor | None = None) -> Sampled:
    """Draw a token for each row, by inverting the cumulative distribution at a uniform number in ``[0, 1)``.

    Nothing that it computes depends on values that only a device knows, so a CUDA graph can hold it. Its memory is
    :func:`trainers.engines.step_memory.step_bytes`.

    Args:
        logits: float32 ``[n, vocab]``; overwritten.
        draws: The rows' parameters.
        uniform: float64 ``[n]``.
        kind: The parts that the rows need, or more.
        cut_rows: int64, the rows with cuts; ``None`` sorts all rows, and leaves those without cuts as they are.
    """
    greedy = draws.temperature == 0
    if kind.scaled:
        logits.div_(draws.temperature.masked_fill(greedy, 1.0)[:, None])
    logprobs = logits.log_softmax(-1)
    if not kind.random:
        tokens = logprobs.argmax(-1)
        logprob = logprobs.gather(1, tokens[:, None]).squeeze(1)
        return Sampled(tokens, logprob, torch.zeros_like(logprob), None)

    weights, survivors = logprobs.exp(), None  # of the draw: probabilities, 0 where cut
    cut = (draws.top_k > 0) | (draws.top_p < 1) | (draws.min_p > 0)
    if kind.cut:
        if cut_rows is None:
            remaining, survivors = _cut(weights, draws.top_k, draws.top_p, draws.min_p, report=kind.reports)
            weights = torch.where((cut & ~greedy)[:, None], remaining, weights)
        else:
            chosen = (column.index_select(0, cut_rows) for column in (weights, draws.top_k, draws.top_p, draws.min_p))
            remaining, survivors = _cut(*chosen, report=kind.reports)
            weights.index_copy_(0, cut_rows, remaining)
        del remaining
    cumulative = weights.double().cumsum_(-1)
    total = cumulative[:, -1:]
    # The first token whose cumulative weight exceeds the draw, so never one of weight 0; with NaN there is none.
    tokens = torch.searchsorted(cumulative, uniform[:, None] * total, right=True).squeeze(1)
    tokens = tokens.clamp_(max=logits.shape[1] - 1)
    if kind.greedy:
        tokens = torch.where(greedy, logprobs.argmax(-1), tokens)
    logprob = logprobs.gather(1, tokens[:, None]).squeeze(1)
    sampled = logprob
    if kind.cut:
        sampled = torch.where(cut, logprob - total.squeeze(1).log().float(), sampled)
    if kind.greedy:
        sampled = sampled.masked_fill(greedy, 0.0)
    return Sampled(tokens, logprob, sampled, survivors)


class Report:
    """Tokens that the cuts left in the rows that report it, on its way to the host.

    A GPU copies counts and ids. The mask stays there, for the rows with more tokens than ids, which are read from it
    afterwards; where ``top_k`` excludes that, there is none.

    Args:
        survivors: Of these rows first, or with ``cut_only`` of those among them that have cuts; ``None`` if none has.
        rows: :data:`ROW` ``[n]``.
    """

    def __init__(self, survivors: Survivors | None, rows: NDArray[np.void], *, cut_only: bool) -> None:
        reports = rows["return_kept"]
        cut = cuts(rows) if reports.any() else reports
        self._cut = cut[reports]  # of each row that reports, whether it has a cut
        self._counts = self._ids = self._mask = None
        if survivors is None or not self._cut.any():
            return
        places = cut.cumsum() - 1 if cut_only else np.arange(len(rows))
        chosen = to_device(places[cut & reports], survivors.ids.device)
        top_k = rows["top_k"][cut & reports]
        bounded = bool((top_k > 0).all()) and int(top_k.max()) <= survivors.ids.shape[1]
        ids = survivors.ids[:, : int(top_k.max())] if bounded else survivors.ids
        self._counts, self._ids = (_to_host(part.index_select(0, chosen)) for part in (survivors.counts, ids))
        if not bounded and ids.shape[1] < survivors.mask.shape[1]:
            self._mask = survivors.mask.index_select(0, chosen)  # the next step overwrites the original

    def read(self) -> Iterator[NDArray[np.int32]]:
        """Yield the ids of each row, ascending; none for a row without a cut. The copies must have arrived."""
        if self._counts is None or self._ids is None:
            yield from (np.zeros(0, np.int32) for _ in self._cut)
            return
        ids, counts = self._ids.numpy(), self._counts.numpy()
        overfull = np.flatnonzero((ids >= 0).sum(1) < counts)
        masks = {}
        if len(overfull):
            assert self._mask is not None
            rows = self._mask.index_select(0, to_device(overfull, self._mask.device)).cpu().numpy()
            masks = dict(zip(overfull.tolist(), rows, strict=True))
        place = -1
        for cut in self._cut:
            place += cut
            if not cut:
                yield np.zeros(0, np.int32)
            elif place in masks:
                yield np.flatnonzero(masks[place]).astype(np.int32)
            else:
                yield np.sort(ids[place][ids[place] >= 0])


class Drawn:
    """The draws of a step, on their way to the host: a GPU copies them behind the step, ``read`` waits for that alone.

    ``tokens``, ``logprobs`` and ``cut_logprobs`` ``[n]`` are of :func:`sample`, and so is what ``report`` was made of.
    None of these may be read later: the next step may write there.
    """

    def __init__(self, tokens: Tensor, logprobs: Tensor, cut_logprobs: Tensor, report: Report | None = None) -> None:
        self._tensors = [_to_host(tensor) for tensor in (tokens, logprobs, cut_logprobs)]
        self._report = report
        self._copied: torch.cuda.Event | None = None
        if tokens.is_cuda:
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(tokens.device))

    def read(self) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32], list[NDArray[np.int32]]]:
        """Return tokens, log-probs and sampled log-probs ``[n]``, and the token ids left in each row that reports."""
        if self._copied is not None:
            self._copied.synchronize()
        tokens, logprobs, sampled = (tensor.numpy() for tensor in self._tensors)
        return tokens, logprobs, sampled, [] if self._report is None else list(self._report.read())


def _to_host(tensor: Tensor) -> Tensor:
    if not tensor.is_cuda:
        return tensor.clone()
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


def _cut(
    probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, *, report: bool
) -> tuple[Tensor, Survivors | None]:
    """Set to 0 what the cuts remove; ``probs [n, vocab]``, parameters ``[n]``. Also says what is left, if ``report``.

    In this order: the ``k`` most likely; of those, renormalised, the smallest set that reaches ``top_p``; of those, the
    ones of at least ``min_p`` times the most likely. Ties go to the smaller id. The most likely token always stays.
    """
    vocab = probs.shape[-1]
    ordered, ids = probs.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(vocab, device=probs.device)
    limit = torch.where(top_k > 0, top_k, vocab)[:, None]
    ordered.masked_fill_(rank >= limit, 0.0)
    before = ordered.double().cumsum_(-1).sub_(ordered)
    mass = ordered.sum(-1, dtype=torch.float64, keepdim=True)
    drop = (before >= top_p[:, None].double() * mass).logical_and_((top_p < 1)[:, None])
    del before
    drop |= ordered < min_p[:, None] * ordered[:, :1]
    drop[:, :1].fill_(False)
    ordered.masked_fill_(drop, 0.0)
    del drop
    remaining = torch.empty_like(probs).scatter_(1, ids, ordered)  # ``ids`` are all
    if not report:
        return remaining, None
    listed = ids[:, :LISTED].int().masked_fill_((ordered[:, :LISTED] > 0).logical_not_(), -1)
    mask = remaining > 0
    return remaining, Survivors(mask.sum(-1), listed, mask)
