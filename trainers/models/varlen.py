"""Attention over packed sequences of several lengths, by PyTorch's FlashAttention: on CUDA, in 16 bits."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import current_flash_attention_impl
from torch.nn.attention.varlen import varlen_attn


def option_of(kernel: Any, name: str, value: Any) -> dict[str, Any]:
    """Return an option of the kernel; nothing in versions of torch that do not have it."""
    return {name: value} if name in inspect.signature(kernel).parameters else {}


_GROUPED_HEADS = option_of(varlen_attn, "enable_gqa", True)  # for fewer key than query heads; after torch 2.11
_ONE_SPLIT = option_of(varlen_attn, "num_splits", 1)  # since torch 2.12


def is_supported(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Return whether the kernel takes these: 16 bits, heads of a multiple of 8 up to 256, Ampere or newer."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16) or head_dim % 8 or head_dim > 256:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: tuple[Tensor, Tensor],
    longest: tuple[int, int],
    *,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor:
    """Attend causally within each sequence; the last query of a sequence sees its last key.

    The kernel aligns the causal mask to the bottom right, so that queries may be the last of a sequence whose first
    keys were computed before. No sequence's result depends on the others: keys are not split between programs. torch's
    own FlashAttention 2 does that only for paged keys, and for one query a sequence without a mask, which these never
    are; torch 2.12 refuses the option for it. FlashAttention 3, where a program has activated it, is told not to.

    Args:
        query: ``[tokens, heads, head_dim]``; the last dimension is contiguous, as of ``key`` and ``value``.
        key: ``[keys, kv_heads, head_dim]``.
        value: Likewise.
        starts: int32 ``[sequences + 1]``, cumulative lengths of queries, and of keys.
        longest: Queries and keys of the longest sequence.
        scale: Of the products; by default ``head_dim ** -0.5``.
        window: How many keys a query sees, the last of which is its own; by default all.

    Returns:
        ``[tokens, heads, head_dim]``.
    """
    options = _GROUPED_HEADS if query.shape[1] != key.shape[1] else {}
    if current_flash_attention_impl() == "FA3":
        options = options | _ONE_SPLIT
    # The kernel counts the keys before a query's own; (-1, 0), all of them and none after, is its causal attention.
    before = -1 if window is None else window - 1
    out = varlen_attn(query, key, value, *starts, *longest, scale=scale, window_size=(before, 0), **options)
    assert isinstance(out, Tensor)
    return out
