"""The learner's attention: causal, over rows that are padded, packed without padding, trees, or shared among ranks.

transformers looks a model's attention up in a table of functions, where :data:`OWN` is registered. The arguments of a
call say what it attends over:

* nothing: every row is a sequence, and padding stands on the right, where no token sees it;
* ``cu_seq_lens_q``: one row of packed sequences, on CUDA in 16 bits: torch's own variable-length flash attention, which
  needs no other package;
* ``tree``: one row of token trees (:mod:`trainers.learner.trees`), or of packed sequences: on CUDA a kernel of its own
  (:mod:`trainers.learner.tree_attention`), and on a CPU batches of branches with a plain mask;
* ``sequence_group``, with any of these: each row is cut into pieces on different ranks (Ulysses, arXiv
  2309.14509). An all-to-all gives each rank all pieces of its share of the heads, attention runs as on one rank, and
  another all-to-all brings the pieces back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from transformers import AttentionInterface

from trainers.learner.tree_attention import Plan, tree_attention
from trainers.learner.trees import Forest, blocks
from trainers.models.varlen import varlen_attention

OWN = "trainers"


def _packed(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None, cu_seqlens: Tensor, max_length: int
) -> Tensor:
    """Attend with torch's kernel for sequences of several lengths, in 16 bits on CUDA."""
    q, k, v = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
    return varlen_attention(q, k, v, (cu_seqlens, cu_seqlens), (max_length, max_length), scale=scale)[None]


def _own(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    tree: Tree | None = None,
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
    if tree is not None:
        out = tree.attend(query, key, value, scaling)
    elif cu_seq_lens_q is not None:
        assert max_length_q is not None
        out = _packed(query, key, value, scaling, cu_seq_lens_q, max_length_q)
    else:
        out = _causal(query, key, value, None, scaling).transpose(1, 2)
    if sequence_group is not None:
        out = _exchange(out, sequence_group, 1, 2)  # [B, L, H / ranks, D]: the sequence is cut, heads come together
    return out, None


def _causal(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    if query.is_cuda and query.dtype == torch.float32:  # or the only kernel is the one that keeps all scores
        shared = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    # Not the comparison itself: to torch.compile it may be a symbol, which no attention takes.
    grouped: dict[str, Any] = {"enable_gqa": True} if query.shape[1] != key.shape[1] else {}
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale, **grouped
    )


class Tree:
    """Attention of every node of a forest to those above it and itself, in a row of ``size >= T``.

    Positions behind the ``T`` nodes see nothing, and nothing sees them: their outputs and gradients are 0.
    """

    def __init__(self, forest: Forest, size: int, device: torch.device) -> None:
        self._plan = Plan.of(forest.ends, size, device) if device.type == "cuda" else None
        self._blocks = [] if self._plan is not None else _blocks(forest, device)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """Return ``[1, L, H, D]``; queries ``[1, H, L, D]``, keys and values ``[1, K, L, D]``, ``K`` dividing ``H``."""
        q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        if self._plan is not None:
            return tree_attention(q, k, v, self._plan, scale)[None]
        return _by_branches(q, k, v, self._blocks, scale)[None]


@dataclass(frozen=True, eq=False)
class _Block:
    """:class:`trainers.learner.trees.Block` as tensors: indices are flat, and a mask is none where it is causal."""

    queries: Tensor
    keys: Tensor
    shape: tuple[int, int, int]
    mask: Tensor | None
    nodes: Tensor
    places: Tensor

    def gather(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gather ``[C, H, Q, D]`` of queries, and likewise keys and values, from ``[T, H, D]``."""
        count, queries, keys = self.shape
        return (
            query.index_select(0, self.queries).unflatten(0, (count, queries)).transpose(1, 2),
            key.index_select(0, self.keys).unflatten(0, (count, keys)).transpose(1, 2),
            value.index_select(0, self.keys).unflatten(0, (count, keys)).transpose(1, 2),
        )


def _blocks(forest: Forest, device: torch.device) -> list[_Block]:
    made = []
    for block in blocks(forest):
        (count, queries), keys = block.queries.shape, block.keys.shape[1]
        seen = np.arange(keys) <= block.starts[:, None, None] + np.arange(queries)[:, None]
        arrays = (block.queries.ravel(), block.keys.ravel(), block.queries[block.real], np.flatnonzero(block.real))
        of_queries, of_keys, nodes, places = (torch.from_numpy(array).to(device) for array in arrays)
        mask = torch.from_numpy(seen[:, None]).to(device) if block.starts.any() else None
        made.append(_Block(of_queries, of_keys, (count, queries, keys), mask, nodes, places))
    return made


class _Branches(torch.autograd.Function):
    """Attention of ``[T, H, D]`` queries by blocks of branches. Only the inputs are kept for the backward pass.

    Its gradient is taken in float32: torch's own in 16 bits costs short rows on a CPU ten times their forward pass.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, made: list[_Block], scale: float | None) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.blocks, ctx.scale = made, scale
        out = torch.zeros_like(query, memory_format=torch.contiguous_format)
        for block in made:
            attended = _causal(*block.gather(query, key, value), block.mask, scale)
            _put(out, block, attended)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        exactly = torch.promote_types(grad.dtype, torch.float32)
        grads = [torch.zeros(tensor.shape, dtype=exactly, device=tensor.device) for tensor in inputs]
        for block in ctx.blocks:
            with torch.enable_grad():
                q, k, v = (leaf.to(exactly).detach().requires_grad_() for leaf in block.gather(*inputs))
                out = _causal(q, k, v, block.mask, ctx.scale)
            count, queries, _ = block.shape
            grad_out = grads[0].new_zeros((count * queries, *grad.shape[1:]))
            grad_out[block.places] = grad.index_select(0, block.nodes).to(grad_out.dtype)
            query, key, value = torch.autograd.grad(
                out, (q, k, v), grad_out.unflatten(0, (count, queries)).transpose(1, 2)
            )
            _put(grads[0], block, query)
            for total, part in zip(grads[1:], (key, value), strict=True):
                total.index_add_(0, block.keys, part.transpose(1, 2).flatten(0, 1))
        return (*(exact.to(tensor.dtype) for exact, tensor in zip(grads, inputs, strict=True)), None, None)


@torch.compiler.disable  # a graph for each number of blocks
def _by_branches(query: Tensor, key: Tensor, value: Tensor, made: list[_Block], scale: float | None) -> Tensor:
    attended: Tensor = _Branches.apply(query, key, value, made, scale)
    return attended


def _put(out: Tensor, block: _Block, values: Tensor) -> None:
    """Scatter ``[C, H, Q, D]``, without padding, into their places of ``[T, H, D]``."""
    out.index_copy_(0, block.nodes, values.transpose(1, 2).flatten(0, 1).index_select(0, block.places))


@torch.compiler.disable
def _exchange(tensor: Tensor, group: dist.ProcessGroup, cut: int, join: int) -> Tensor:
    """Cut ``tensor`` along one dimension, send piece ``r`` to rank ``r``, join received pieces along another."""
    exchanged: Tensor = _AllToAll.apply(tensor, group, cut, join)
    return exchanged


class _AllToAll(torch.autograd.Function):
    """All-to-all exchange; its gradient is the exchange back."""

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
    """Gather the ranks' numbers ``[n]``, each at its places, as ``[total]`` on every rank of the group; differentiable.

    Or rows of numbers, ``[n, k]``, as ``[total, k]``. ``where`` is int64 ``[n]``; no place is named twice, on any
    rank.  Every rank computes the same loss from the result, so the gradient of a rank's own numbers is what stands at
    their places in its own gradient: nothing is summed.
    """
    gathered: Tensor = _Gather.apply(values, where, total, group)
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, where: Tensor, total: int, group: dist.ProcessGroup) -> Tensor:
        ctx.save_for_backward(where)
        result = values.new_zeros(total, *values.shape[1:]).index_copy(0, where, values)
        dist.all_reduce(result, group=group)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (where,) = ctx.saved_tensors
        return grad.index_select(0, where), None, None, None


AttentionInterface.register(OWN, _own)
