"""The kernels of :mod:`.paged_attention`, in Triton, which this module alone imports."""

import triton
import triton.language as tl

from trainers.engines.decoder import SIZE

BLOCK = tl.constexpr(SIZE)


@triton.jit
def attend(
    q: tl.tensor,
    cache: tl.tensor,
    table: tl.tensor,
    positions: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    stats: tl.tensor,
    scale: tl.tensor,
    q_row: tl.tensor,
    q_head: tl.tensor,
    table_row: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    SPLITS: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    PARTIAL: tl.constexpr,
) -> None:
    """Attend with the queries of a row that share a head of keys; grid ``(kv_heads, rows, programs)``.

    Program ``p`` of ``P`` takes the splits ``p``, ``p + P``, ... of ``TILES`` tiles. With ``PARTIAL`` it leaves them to
    :func:`combine`; else (``P`` is 1) it combines them itself, in the same order. ``scale`` includes ``log2(e)``.
    """
    kv_head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    part, parts = tl.program_id(2), tl.num_programs(2)
    low, end, base, tiles, splits = _range(positions + row, WINDOW, TILE, TILES)
    own = tl.cdiv(tl.maximum(splits - part, 0), parts)
    is_last = (own > 0) & (part + (own - 1) * parts == splits - 1)  # whose last split may be shorter
    count = own * TILES - tl.where(is_last, splits * TILES - tiles, 0)

    heads, dims = tl.arange(0, GROUP_PADDED), tl.arange(0, DIM_PADDED)
    inside = (heads[:, None] < GROUP) & (dims[None, :] < DIM)
    head = kv_head * GROUP + heads
    query = tl.load(q + row * q_row + head[:, None] * q_head + dims[None, :], mask=inside, other=0.0)
    cells, lines = cache + kv_head * DIM, row * (KV_HEADS * GROUP) + head
    all_top, all_total, all_acc = _nothing(GROUP_PADDED, DIM_PADDED)
    top, total, acc = _nothing(GROUP_PADDED, DIM_PADDED)
    for i in range(count):
        split = part + i // TILES * parts
        key = base + (split * TILES + i % TILES) * TILE + tl.arange(0, TILE)
        visible = (key >= low) & (key < end)
        block = tl.load(table + row * table_row + key // BLOCK, mask=visible, other=0).to(tl.int64)
        cell = cells + (block * BLOCK + key % BLOCK) * (2 * KV_HEADS * DIM)
        top, total, acc = _attend_tile(query, cell, visible, dims, scale, top, total, acc, KV_HEADS * DIM, DIM)
        if (i % TILES == TILES - 1) | (i == count - 1):
            if PARTIAL:
                at, real = lines * SPLITS + split, heads < GROUP
                tl.store(stats + at * 2, top, mask=real)
                tl.store(stats + at * 2 + 1, total, mask=real)
                tl.store(sums + at[:, None] * DIM + dims[None, :], acc, mask=inside)
            else:
                all_top, all_total, all_acc = _merge(all_top, all_total, all_acc, top, total, acc)
            top, total, acc = _nothing(GROUP_PADDED, DIM_PADDED)
    if not PARTIAL:
        _write(out, lines, dims, all_total, all_acc, inside, DIM)


@triton.jit
def _attend_tile(
    query: tl.tensor,
    cell: tl.tensor,
    visible: tl.tensor,
    dims: tl.tensor,
    scale: tl.tensor,
    top: tl.tensor,
    total: tl.tensor,
    acc: tl.tensor,
    VALUES: tl.constexpr,
    DIM: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """Add the attention to a tile: keys at ``cell``, values ``VALUES`` numbers further; at least one is visible."""
    where = cell[:, None] + dims[None, :]
    read = visible[:, None] & (dims[None, :] < DIM)
    keys = tl.load(where, mask=read, other=0.0)
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
    scores = tl.where(visible[None, :], scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    weights = tl.exp2(scores - new_top[:, None])
    shrink = tl.exp2(top - new_top)
    values = tl.load(where + VALUES, mask=read, other=0.0)
    acc = tl.dot(weights.to(values.dtype), values, acc * shrink[:, None], input_precision="ieee")
    return new_top, total * shrink + tl.sum(weights, 1), acc


@triton.jit
def combine(
    positions: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    stats: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    """Combine the splits of one row and head, in order; grid ``(heads, rows)``."""
    row = tl.program_id(1).to(tl.int64)
    low, end, base, tiles, splits = _range(positions + row, WINDOW, TILE, TILES)
    line = row * (KV_HEADS * GROUP) + tl.program_id(0) + tl.arange(0, 1)
    dims = tl.arange(0, DIM_PADDED)
    inside = dims[None, :] < DIM
    top, total, acc = _nothing(1, DIM_PADDED)
    for first in range(0, splits, 8):
        for i in tl.static_range(8):  # unrolled: the loads do not wait for each other
            at = line * SPLITS + first + i
            real = first + i + tl.arange(0, 1) < splits
            split_top = tl.load(stats + at * 2, mask=real, other=float("-inf"))
            split_total = tl.load(stats + at * 2 + 1, mask=real, other=0.0)
            split_acc = tl.load(sums + at[:, None] * DIM + dims[None, :], mask=real[:, None] & inside, other=0.0)
            top, total, acc = _merge(top, total, acc, split_top, split_total, split_acc)
    _write(out, line, dims, total, acc, inside, DIM)


@triton.jit
def _range(position: tl.tensor, WINDOW: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr) -> tuple[tl.tensor, ...]:
    """Return the visible keys (first, one past the last), the first of their tiles, the number of tiles, of splits."""
    end = (tl.load(position) + 1).to(tl.int32)
    low = tl.maximum(end - WINDOW, 0) if WINDOW > 0 else end * 0
    base = low // TILE * TILE
    tiles = tl.cdiv(end - base, TILE)
    return low, end, base, tiles, tl.cdiv(tiles, TILES)


@triton.jit
def _nothing(HEADS: tl.constexpr, DIM_PADDED: tl.constexpr) -> tuple[tl.tensor, ...]:
    """Return the attention to no key: the highest score, the sum of weights, and the weighted sum of values."""
    return (
        tl.full([HEADS], float("-inf"), tl.float32),
        tl.zeros([HEADS], tl.float32),
        tl.zeros([HEADS, DIM_PADDED], tl.float32),
    )


@triton.jit
def _merge(
    top: tl.tensor, total: tl.tensor, acc: tl.tensor, other_top: tl.tensor, other_total: tl.tensor, other_acc: tl.tensor
) -> tuple[tl.tensor, ...]:
    """Add the attention to other keys; both kernels round alike, because multiplications and sums are not fused."""
    new_top = tl.maximum(top, other_top)
    shrink, weight = tl.exp2(top - new_top), tl.exp2(other_top - new_top)
    return new_top, total * shrink + other_total * weight, acc * shrink[:, None] + other_acc * weight[:, None]


@triton.jit
def _write(
    out: tl.tensor,
    line: tl.tensor,
    dims: tl.tensor,
    total: tl.tensor,
    acc: tl.tensor,
    inside: tl.tensor,
    DIM: tl.constexpr,
) -> None:
    """Write the quotient, and zeros where there were no keys."""
    attended = acc / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + line[:, None] * DIM + dims[None, :], attended.to(out.dtype.element_ty), mask=inside)
