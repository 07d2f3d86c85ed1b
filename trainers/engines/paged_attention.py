"""Attention of decoding requests to blocks of keys and values, with shapes that are the same in every step.

:func:`paged_attention` reads the blocks in place, with a kernel in Triton (:mod:`.paged_kernel`): on CUDA, also while a
graph is captured. :func:`paged_attention_reference` computes the same with PyTorch, on any device.

The result of a row depends on its own query, keys and values, and on the width of the table, but not on other rows: its
keys are cut in splits of a size that the table's width and the window determine, and partial results are combined in
order, however many programs share the work (flash decoding with a fixed split size).
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from functools import cache as cached
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainers.engines.decoder import SIZE

_SPLIT = 256  #: keys of a split, at least
_SPLITS = 64  #: of a row, at most: they bound the memory of partial results
_PROGRAMS = 4  #: a multiprocessor, that a launch should have
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Tuning:
    """Constants of a launch that decide its speed and, by the order of sums, the last bits of its result."""

    keys: int  #: of a tile
    warps: int
    stages: int  #: iterations of the loop over tiles that are under way


#: By bytes of a number, and up to so many numbers of a padded head. Never measured on a GPU. The keys and values of a
#: tile take 16 KiB, for 64 keys of 64 numbers in 16 bits (32 KiB for 128 numbers). Of 5 stages Triton gives two to the
#: block numbers, on which the addresses depend, and keeps two tiles in shared memory. 256 rows with 2 heads of keys are
#: 4 programs a multiprocessor on an H200, which then read 64 KiB or more ahead; about 30 KiB hide the latency of its
#: memory. Four warps share the keys of a product with 16 queries. Float32 is multiplied without tensor cores, with
#: operands in registers: smaller tiles.
_TUNING = {
    (2, 128): Tuning(keys=64, warps=4, stages=5),
    (2, 256): Tuning(keys=32, warps=4, stages=5),
    (4, 64): Tuning(keys=32, warps=4, stages=5),
    (4, 256): Tuning(keys=16, warps=4, stages=5),
}


def paged_attention(
    q: Tensor, cache: Tensor, table: Tensor, positions: Tensor, *, scale: float, window: int | None = None
) -> Tensor:
    """Attend with one query a row and head to the row's blocks, where they are.

    All that differs between two calls of the same shapes is read on the device, so that a CUDA graph of a call can be
    replayed. Memory for partial results comes from the allocator, under capture from the graph's pool. The first call
    of a shape compiles the kernel: make one before a capture.

    Args:
        q: ``[R, heads, head_dim]``, in float32, bfloat16 or float16; the last dimension is contiguous.
        cache: ``[cells, 2 * kv_heads, head_dim]``, contiguous, of q's type: the keys of a position, then its values;
            a block is ``SIZE`` positions.
        table: int32 or int64 ``[R, max_blocks]``: which block has each ``SIZE`` positions of the row.
        positions: int64 ``[R]``, of the queries: positions 0 to it are read. -1 for a row of padding, which gives zeros
            and reads nothing.
        scale: Of the products of queries and keys.
        window: How many positions a query sees, itself included; by default all up to its own.

    Returns:
        ``[R, heads * head_dim]`` of q's type. Sums are in float32, and so are the products of float32.

    Raises ``ModuleNotFoundError``: Triton is not installed; the message says what to do. ``ValueError``: another type,
    layout, or heads of more than 256 numbers.
    """
    rows, heads, dim = q.shape
    if q.dtype not in _DTYPES or cache.dtype != q.dtype:
        raise ValueError(f"paged attention takes float32, bfloat16 or float16, not {q.dtype} and {cache.dtype}")
    if q.stride(-1) != 1 or table.stride(-1) != 1 or not cache.is_contiguous():
        raise ValueError("paged attention takes a contiguous cache, and q and table contiguous in the last dimension")
    width = table.shape[1] * SIZE
    window = window if window is not None and window < width else None
    planned = plan(rows, cache.shape[1] // 2, dim, width, window, q.dtype, _multiprocessors(q.device))
    return launch(q, cache, table, positions, scale, window, planned)


@dataclass(frozen=True)
class Plan:
    """The shape of a launch."""

    tuning: Tuning
    dim: int  #: of a head, padded
    split: int  #: keys of a split
    splits: int  #: of a row, at most
    programs: int  #: that share the splits of one row and head of keys


def plan(
    rows: int, kv_heads: int, dim: int, width: int, window: int | None, dtype: torch.dtype, multiprocessors: int
) -> Plan:
    """Plan a launch for ``rows`` of at most ``width`` keys. Only the number of programs depends on ``rows``.

    One program for each row and head of keys suffices where these fill the GPU. A row that is much longer than the
    others is then the last to end.
    """
    padded = max(16, _power_of_two(dim))
    fitting = [tuning for (size, most), tuning in _TUNING.items() if size == dtype.itemsize and padded <= most]
    if not fitting:
        raise ValueError(f"paged attention takes heads of at most 256 numbers, not {dim}")
    tuning = fitting[0]
    reach = width if window is None else min(width, window + tuning.keys)  # keys of a row, with those of whole tiles
    split = max(_SPLIT, _power_of_two(-(-reach // _SPLITS)))
    splits = -(-reach // split)
    target = _PROGRAMS * multiprocessors // (rows * kv_heads)
    return Plan(tuning, padded, split, splits, min(max(1, target), splits))


def launch(
    q: Tensor, cache: Tensor, table: Tensor, positions: Tensor, scale: float, window: int | None, planned: Plan
) -> Tensor:
    """Launch the kernels of :func:`paged_attention` as planned, on the current stream of q's device."""
    kernel, tuning = load_kernel(), planned.tuning
    rows, heads, dim = q.shape
    kv_heads = cache.shape[1] // 2
    out = q.new_empty(rows, heads * dim)
    sums = stats = None
    if planned.programs > 1:
        sums = torch.empty(rows, heads, planned.splits, dim, dtype=torch.float32, device=q.device)
        stats = torch.empty(rows, heads, planned.splits, 2, dtype=torch.float32, device=q.device)
    constants: dict[str, Any] = {
        "KV_HEADS": kv_heads,
        "GROUP": heads // kv_heads,
        "DIM": dim,
        "DIM_PADDED": planned.dim,
        "WINDOW": window or 0,
        "TILE": tuning.keys,
        "TILES": planned.split // tuning.keys,
        "SPLITS": planned.splits,
        "enable_fp_fusion": False,  # both kernels round alike
    }
    # Triton launches on the thread's current device.
    with torch.cuda.device(q.device) if q.is_cuda else contextlib.nullcontext():
        kernel.attend[(kv_heads, rows, planned.programs)](
            *(q, cache, table, positions, out, sums, stats, scale * math.log2(math.e)),
            *(q.stride(0), q.stride(1), table.stride(0)),
            GROUP_PADDED=max(16, _power_of_two(heads // kv_heads)),
            PARTIAL=sums is not None,
            num_warps=tuning.warps,
            num_stages=tuning.stages,
            **constants,
        )
        if sums is not None:
            kernel.combine[(heads, rows)](positions, out, sums, stats, num_warps=1, **constants)
    return out


def paged_attention_reference(
    q: Tensor, cache: Tensor, table: Tensor, positions: Tensor, *, scale: float, window: int | None = None
) -> Tensor:
    """Compute :func:`paged_attention` with PyTorch: gathers all blocks of the table, whose cells must be finite."""
    rows, heads, dim = q.shape
    kv_heads = cache.shape[1] // 2
    blocks = cache.view(-1, SIZE * 2 * kv_heads * dim).index_select(0, table.reshape(-1))
    kv = blocks.view(rows, -1, 2 * kv_heads, dim).transpose(1, 2)
    keys, position = torch.arange(kv.shape[2], device=q.device), positions[:, None]
    hidden = keys > position if window is None else (keys > position) | (keys <= position - window)
    bias = torch.zeros(hidden.shape, device=q.device, dtype=q.dtype).masked_fill_(hidden, float("-inf"))
    queries = q.reshape(rows, kv_heads, -1, dim)
    out = F.scaled_dot_product_attention(
        queries, kv[:, :kv_heads], kv[:, kv_heads:], attn_mask=bias[:, None, None], scale=scale
    )
    return out.reshape(rows, heads * dim).masked_fill(position < 0, 0.0)


@cached
def load_kernel() -> Any:
    """Import the kernel; ``ModuleNotFoundError``: Triton is not installed."""
    try:
        from trainers.engines import paged_kernel
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise ModuleNotFoundError(
            "decoding on CUDA with static shapes needs Triton, which PyTorch's builds for CUDA on Linux bring: "
            "pip install triton, or set engine.cuda_graphs=false",
            name="triton",
        ) from error
    return paged_kernel


@cached
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least ``number``."""
    return 1 << (number - 1).bit_length()
