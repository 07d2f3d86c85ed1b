"""The language-model head at the positions that matter, in chunks: full logits never exist.

For Qwen2.5's vocabulary, the float32 logits of 16 thousand tokens take 10 GB, several copies deep once log-softmax and
its gradient are taken. Here only ``chunk_size`` positions have logits at any time, two copies of them at most, and
where the head is in 16 bits another one of those: the forward pass keeps two numbers a position (log-sum-exp and
entropy), and the backward pass computes a chunk's logits again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from trainers.learner.compiled import compiled
from trainers.learner.products import fastest_product
from trainers.learner.transfer import to_device
from trainers.models.memory import positions_at_once

#: Rows of the head that are converted at the same time.
_ROWS = 2**13
#: In place of the logit of a token that is left out: its exponential is 0, and no product with it is a NaN.
_LEFT_OUT = -1e30


@dataclass(frozen=True)
class Support:
    """The support of each of ``n`` distributions: the tokens it is over."""

    ids: Tensor  #: int64 ``[m]``, on the device of the logits; of one distribution after another
    counts: NDArray[np.int64]  #: int64 ``[n]``; how many ``ids`` each has. 0: the full vocabulary.

    @cached_property
    def _first(self) -> list[int]:
        """The start of each distribution among the ids, and at last their number."""
        return [0, *np.cumsum(self.counts).tolist()]

    @cached_property
    def _restricted(self) -> Tensor:
        return to_device(self.counts > 0, self.ids.device)

    @cached_property
    def _rows(self) -> Tensor:
        """The distribution of each of the ids."""
        return to_device(np.repeat(np.arange(len(self.counts)), self.counts), self.ids.device)

    def left_out(self, start: int, count: int, vocab: int) -> Tensor:
        """Return the tokens outside the support of ``count`` distributions from ``start`` on, bool ``[count, vocab]``.

        Copies to the device are made once for all distributions, and nothing waits for it.
        """
        ids = slice(self._first[start], self._first[start + count])
        mask = self._restricted[start : start + count, None].repeat(1, vocab)
        places = (self._rows[ids] - start) * vocab + self.ids[ids]
        mask.view(-1).index_fill_(0, places, False)
        return mask


def is_left_out(logprobs: Tensor) -> Tensor:
    """Return which log-probabilities are of tokens that a distribution leaves out, bool."""
    return logprobs < 1e-10 * _LEFT_OUT  # at any temperature


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    chunk_size: int | None = None,
    support: Support | None = None,
    unused: Tensor | None = None,
    compiles: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of the targets, and the entropy of the distribution they come from; differentiable.

    With ``z = (hidden @ weight.T + bias) / temperature``: ``log_softmax(z)[target]`` and ``-sum p log p``, over the
    full vocabulary, the convention of :mod:`trainers.engines.base`. Logits are float32 whatever the inputs are
    (float64 for float64).

    Args:
        hidden: ``[n, H]``; the backbone's outputs at the positions that predict the targets.
        weight: ``[V, H]``; of the output embedding.
        targets: int64 ``[n]``.
        bias: ``[V]``, where the head has one.
        temperature: Above 0.
        chunk_size: Positions with logits at the same time; ``None`` takes as many as go into 32 MiB on a CPU, and into
            512 MiB elsewhere.
        support: Softmax and entropy are over these tokens (each target is one of its own); ``None``: over all.
        unused: int64 ``[u]``; ids that are left out of every softmax and entropy (no target is one of them).
        compiles: Compile the arithmetic on logits: a GPU then reads them two or three times instead of ten.

    Returns ``(logprobs, entropy)``, each ``[n]`` in float32 (float64 for float64), in nats. Raises ``ValueError``:
    ``temperature`` is not above 0.
    """
    logprobs, entropy, _, _ = top_logprobs(
        hidden,
        weight,
        targets,
        None,
        bias=bias,
        temperature=temperature,
        chunk_size=chunk_size,
        support=support,
        unused=unused,
        compiles=compiles,
    )
    return logprobs, entropy


def top_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    top: Tensor | int | None,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    chunk_size: int | None = None,
    support: Support | None = None,
    unused: Tensor | None = None,
    compiles: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return :func:`token_logprobs`, and ids and log-probabilities of more tokens of each distribution, ``[n, k]``.

    ``top`` is int64 ``[n, k]``, the ids of those tokens, none where below 0 (the number there has no meaning, and no
    gradient); or ``k``, for the most likely ones: -1 where a distribution is over fewer. ``None`` returns ``None``.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0 to have log-probabilities with a gradient, not {temperature}")
    if chunk_size is None:
        chunk_size = positions_at_once(len(weight), hidden.device.type)
    left_out = _LeftOut(support, unused, temperature)
    functions = (compiled(_distributions), compiled(_slopes)) if compiles else (_distributions, _slopes)
    options = temperature, chunk_size, left_out, functions
    logprobs, entropy, ids, chosen = _ChunkedHead.apply(hidden, weight, bias, targets, top, *options)
    return logprobs, entropy, ids, chosen


def _slices(vocab: int) -> list[slice]:
    """Split the head into parts of which a copy costs little memory."""
    return [slice(start, start + _ROWS) for start in range(0, vocab, _ROWS)]


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the logits, before the temperature."""
    if hidden.dtype == weight.dtype in (torch.float32, torch.float64):
        logits = fastest_product(hidden, weight)
    elif hidden.device.type == "cuda":
        logits = torch.mm(hidden, weight.T, out_dtype=torch.float32)  # the sums are float32 inside: keep them so
    else:  # a CPU has no product of 16 bits with float32 sums
        exact = hidden.float()
        logits = exact.new_empty(len(hidden), len(weight))
        for rows in _slices(len(weight)):
            logits[:, rows] = fastest_product(exact, weight[rows].float())
    if bias is not None:
        logits += bias
    return logits


@dataclass(frozen=True)
class _LeftOut:
    """The tokens that are left out of distributions."""

    support: Support | None
    unused: Tensor | None
    temperature: float

    def mask(self, logits: Tensor, start: int) -> None:
        """Mask them in the logits ``[c, V]`` of the distributions from ``start`` on, in place."""
        value = _LEFT_OUT * min(1.0, self.temperature)  # after the division it is not beyond _LEFT_OUT
        if self.support is not None:
            logits.masked_fill_(self.support.left_out(start, *logits.shape), value)
        if self.unused is not None:
            logits.index_fill_(1, self.unused, value)

    def most_likely(self, logits: Tensor, count: int) -> Tensor:
        """Return the ids of the largest of masked logits ``[c, V]``, int64 ``[c, count]``; -1 where there are fewer."""
        values, ids = logits.topk(min(count, logits.shape[1]))
        ids = ids.masked_fill(values < 0.5 * _LEFT_OUT * min(1.0, self.temperature), -1)
        return pad(ids, (0, count - ids.shape[1]), value=-1)


def _own(logits: Tensor, temperature: float) -> Tensor:
    """Return ``logits / temperature``, to be overwritten: in place, unless it is compiled.

    What is compiled makes no copy of its own. But it would write whatever happens to an argument back into it.
    """
    if torch.compiler.is_compiling():
        logits = logits.clone()
    if temperature != 1.0:
        logits /= temperature
    return logits


def _distributions(
    logits: Tensor, targets: Tensor, temperature: float, top: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return log-sum-exp, log-probabilities of targets, and entropies of ``[c, V]`` logits, which are overwritten.

    And log-probabilities of ``top``, int64 ``[c, k]``.
    """
    logits = _own(logits, temperature)
    highest = logits.amax(-1)
    logits -= highest[:, None]  # which neither log-probabilities nor the entropy notice
    weights = logits.exp()
    total = weights.sum(-1)
    log_total = total.log()
    logprobs = logits.gather(1, targets[:, None])[:, 0] - log_total
    chosen = None if top is None else logits.gather(1, top) - log_total[:, None]
    return highest + log_total, logprobs, log_total - weights.mul_(logits).sum(-1) / total, chosen


def _slopes(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    normaliser: Tensor,
    entropy: Tensor,
    grad_logprobs: Tensor,
    grad_entropy: Tensor | None,
    dtype: torch.dtype,
    top: Tensor | None,
    grad_top: Tensor | None,
) -> Tensor:
    """Return the gradient of ``[c, V]`` logits (before the temperature), which are overwritten, in ``dtype``.

    With ``l = log p``: ``dl_t/dz_j = [j = t] - p_j`` and ``dH/dz_j = -p_j (l_j + H)``; ``grad_top`` is of ``l`` at
    ``top``, ``[c, k]``.
    """
    log_p = _own(logits, temperature).sub_(normaliser[:, None])
    slope = grad_logprobs[:, None]
    total = slope if grad_top is None else slope + grad_top.sum(1, keepdim=True)
    if grad_entropy is None:
        grad = log_p.exp_().mul_(-total)
    else:
        grad = log_p.exp()
        factor = log_p.add_(entropy[:, None]).mul_(grad_entropy[:, None]).add_(total)
        grad.mul_(factor.neg_())
    if top is not None and grad_top is not None:
        grad.scatter_add_(1, top, grad_top)
    at_targets = grad.gather(1, targets[:, None]) + slope
    if temperature != 1.0:
        grad /= temperature
        at_targets /= temperature
    return grad.to(dtype).scatter_(1, targets[:, None], at_targets.to(dtype))


class _ChunkedHead(torch.autograd.Function):
    """Chunked head; ``functions`` are :func:`_distributions` and :func:`_slopes`, compiled or not."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        top: Tensor | int | None,
        temperature: float,
        chunk: int,
        left_out: _LeftOut,
        functions: tuple[Callable[..., tuple[Tensor, Tensor, Tensor, Tensor | None]], Callable[..., Tensor]],
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        normaliser, entropy, logprobs = (hidden.new_empty(len(hidden), dtype=dtype) for _ in range(3))
        ids = targets.new_empty(len(targets), top) if isinstance(top, int) else top
        chosen = None if ids is None else logprobs.new_empty(ids.shape)
        for start in range(0, len(hidden), chunk):
            part = slice(start, start + chunk)
            logits = _logits(hidden[part], weight, bias)
            left_out.mask(logits, start)
            if isinstance(top, int) and ids is not None:
                ids[part] = left_out.most_likely(logits, top)
            some = None if ids is None else ids[part].clamp(min=0)
            normaliser[part], logprobs[part], entropy[part], own = functions[0](
                logits, targets[part], temperature, some
            )
            if chosen is not None and own is not None:
                chosen[part] = own
            del logits  # or they would stay while the next chunk's are made
        ctx.save_for_backward(hidden, weight, bias, targets, normaliser, entropy, ids)
        if ids is not None:
            ctx.mark_non_differentiable(ids)
        ctx.temperature, ctx.chunk, ctx.left_out, ctx.slopes = temperature, chunk, left_out, functions[1]
        ctx.set_materialize_grads(False)
        return logprobs, entropy, ids, chosen

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logprobs: Tensor | None, grad_entropy: Tensor | None, _: None, grad_top: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, normaliser, entropy, ids = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.zeros_like(hidden) if wants_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=normaliser.dtype) if wants_weight else None
        grad_bias = torch.zeros_like(bias, dtype=normaliser.dtype) if wants_bias else None
        if grad_logprobs is None:
            grad_logprobs = torch.zeros_like(normaliser)
        top = None
        if grad_top is not None:
            top, grad_top = ids.clamp(min=0), grad_top.masked_fill(ids < 0, 0.0)
        for start in range(0, len(hidden), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            logits = _logits(hidden[part], weight, bias)
            ctx.left_out.mask(logits, start)
            of_entropy = None if grad_entropy is None else grad_entropy[part]
            numbers = (normaliser[part], entropy[part], grad_logprobs[part], of_entropy)
            some = (None, None) if top is None or grad_top is None else (top[part], grad_top[part])
            grad = ctx.slopes(logits, targets[part], ctx.temperature, *numbers, hidden.dtype, *some)
            del logits
            if grad_bias is not None:
                grad_bias += grad.sum(0, dtype=grad_bias.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = grad @ weight
            if grad_weight is not None:
                if grad_weight.dtype == hidden.dtype:
                    grad_weight.addmm_(grad.T, hidden[part])
                else:
                    for rows in _slices(len(weight)):
                        grad_weight[rows] += grad[:, rows].T @ hidden[part]
            del grad
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        if grad_bias is not None:
            grad_bias = grad_bias.to(bias.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None, None, None
