"""Attention for sequences that are packed without padding, or shared among ranks.

transformers asks a table of functions for a model's attention; three more stand there:

* ``trainers_varlen`` takes sequences one after another in a single row. On CUDA that is torch's own variable-length
  flash attention, which needs no other package; on the CPU and in float32, a block-diagonal mask, which is for tests.
* ``trainers_ulysses`` is that, or causal attention over padded rows, with each sequence cut into pieces that stand on
  different ranks (Ulysses, arXiv 2309.14509). An all-to-all gives each rank all pieces of its share of the heads,
  attention runs as on one rank, and another all-to-all brings the pieces back.
* ``trainers_cpu`` is causal attention, or one with a mask, whose gradient is quick for short rows of 16 bits on a CPU.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

VARLEN = "trainers_varlen"
ULYSSES = "trainers_ulysses"
CPU = "trainers_cpu"
OWN = frozenset({VARLEN, ULYSSES, CPU})


def _flag_of(kernel: Any) -> dict[str, Any]:
    """After torch 2.11, fewer key than query heads must be asked for. The kernel takes them in any version."""
    return {"enable_gqa": True} if "enable_gqa" in inspect.signature(kernel).parameters else {}


_GROUPED_HEADS = _flag_of(varlen_attn)


def causal_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None,
    cu_seqlens: Tensor | None = None,
    max_length: int | None = None,
) -> Tensor:
    """Causal attention of every sequence to itself.

    Args:
        query: ``[B, H, L, D]``.
        key: ``[B, K, L, D]``, with ``K`` dividing ``H``.
        value: As ``key``.
        scale: Of the scores; ``None`` is ``D ** -0.5``.
        cu_seqlens: int32 ``[S + 1]``: row 0 (of one) holds ``S`` sequences, from these starts on; ``None``: every row
            is one.
        max_length: Of the longest such sequence.

    Returns:
        ``[B, L, H, D]``.

    Raises:
        ValueError: Several rows of packed sequences.
    """
    # Not the comparison itself: to torch.compile it may be a symbol, which no attention takes.
    grouped: dict[str, Any] = {"enable_gqa": True} if query.shape[1] != key.shape[1] else {}
    if cu_seqlens is None:
        out = functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, **grouped)
        return out.transpose(1, 2)
    if len(query) != 1:
        raise ValueError(f"packed sequences stand in one row, not in {len(query)}")
    if query.device.type == "cuda" and query.dtype != torch.float32:  # which flash attention does not have
        assert max_length is not None
        return _packed(query, key, value, scale, cu_seqlens, max_length)
    at = torch.arange(query.shape[2], device=query.device)
    sequence = torch.searchsorted(cu_seqlens, at, right=True)
    mask = (sequence[:, None] == sequence[None, :]) & (at[:, None] >= at[None, :])
    out = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask[None, None], scale=scale, **grouped)
    return out.transpose(1, 2)


def _packed(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None, cu_seqlens: Tensor, max_length: int
) -> Tensor:
    """By torch's kernel for sequences of several lengths, in 16 bits on CUDA."""
    grouped = _GROUPED_HEADS if query.shape[1] != key.shape[1] else {}
    q, k, v = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
    packed = varlen_attn(
        q, k, v, cu_seqlens, cu_seqlens, max_length, max_length, scale=scale, window_size=(-1, 0), **grouped
    )  # a window of everything before and nothing after: causal
    assert isinstance(packed, Tensor)
    return packed[None]


def _varlen(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    out = causal_attention(query, key, value, scale=scaling, cu_seqlens=cu_seq_lens_q, max_length=max_length_q)
    return out, None


def _ulysses(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    sequence_group: dist.ProcessGroup | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    if sequence_group is not None:
        ranks = dist.get_world_size(sequence_group)
        # Fewer key/value heads than ranks: several ranks need the same one.
        copies = max(1, ranks // key.shape[1])
        if copies > 1:
            key, value = key.repeat_interleave(copies, 1), value.repeat_interleave(copies, 1)
        query, key, value = (_exchange(tensor, sequence_group, 1, 2) for tensor in (query, key, value))
    out = causal_attention(query, key, value, scale=scaling, cu_seqlens=cu_seq_lens_q, max_length=max_length_q)
    if sequence_group is not None:
        out = _exchange(out, sequence_group, 1, 2)  # [B, L, H / ranks, D]: the sequence is cut, heads come together
    return out, None


#: Keys up to which float32 has the quicker gradient, two conversions included: measured from 64 to 2,000.
_SHORT = 256


def _cpu(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    attend = _WithFloat32Gradient.apply if key.shape[2] <= _SHORT and query.dtype == torch.bfloat16 else _attend
    out: Tensor = attend(query, key, value, attention_mask, scaling)
    return out.transpose(1, 2).contiguous(), None


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    grouped = query.shape[1] != key.shape[1]
    causal = mask is None and query.shape[2] > 1  # a query alone stands behind all keys, and comes without a mask
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped
    )


class _WithFloat32Gradient(torch.autograd.Function):
    """torch's gradient of attention in 16 bits on a CPU costs short rows ten times their forward pass.

    The same in float32, forward pass included, costs less, and nothing but the inputs is kept for it.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, mask)
        ctx.scale = scale
        return _attend(query, key, value, mask, scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, mask = ctx.saved_tensors
        if mask is not None and mask.is_floating_point():
            mask = mask.float()
        with torch.enable_grad():
            exact = [tensor.float().requires_grad_() for tensor in inputs]
            query, key, value = exact
            out = _attend(query, key, value, mask, ctx.scale)
        grads = torch.autograd.grad(out, exact, grad.float())
        return (*(given.to(tensor.dtype) for given, tensor in zip(grads, inputs, strict=True)), None, None)


def _exchange(tensor: Tensor, group: dist.ProcessGroup, cut: int, join: int) -> Tensor:
    """Cut ``tensor`` along one dimension, send piece ``r`` to rank ``r``, join what comes along another."""
    exchanged: Tensor = _AllToAll.apply(tensor, group, cut, join)
    return exchanged


class _AllToAll(torch.autograd.Function):
    """Its gradient is the exchange back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup, cut: int, join: int) -> Tensor:
        ctx.group, ctx.cut, ctx.join = group, cut, join
        return _all_to_all(tensor, group, cut, join)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _all_to_all(grad, ctx.group, ctx.join, ctx.cut), None, None, None


def _all_to_all(tensor: Tensor, group: dist.ProcessGroup, cut: int, join: int) -> Tensor:
    ranks = dist.get_world_size(group)
    pieces = torch.stack(tensor.chunk(ranks, cut))
    received = torch.empty_like(pieces)
    dist.all_to_all_single(received, pieces, group=group)
    return torch.cat(received.unbind(), join)


def gather_tokens(values: Tensor, where: Tensor, total: int, group: dist.ProcessGroup) -> Tensor:
    """``[total]``: the ranks' numbers, each at its places, on every rank of the group; differentiable.

    Every rank goes on to compute the same loss from the result, so the gradient of a rank's own numbers is what stands
    at their places in its own gradient: nothing is summed.

    Args:
        values: ``[n]``; this rank's.
        where: int64 ``[n]``; no place is named twice, on any rank.
        total: How many places there are.
        group: Whose ranks share the sequence.
    """
    gathered: Tensor = _Gather.apply(values, where, total, group)
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, where: Tensor, total: int, group: dist.ProcessGroup) -> Tensor:
        ctx.save_for_backward(where)
        result = values.new_zeros(total).index_copy(0, where, values)
        dist.all_reduce(result, group=group)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (where,) = ctx.saved_tensors
        return grad.index_select(0, where), None, None, None


AttentionInterface.register(VARLEN, _varlen)
AttentionInterface.register(ULYSSES, _ulysses)
AttentionInterface.register(CPU, _cpu)
AttentionMaskInterface.register(CPU, sdpa_mask)
