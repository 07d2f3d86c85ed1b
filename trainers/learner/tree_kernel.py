"""The kernels of :mod:`.tree_attention`, in Triton, which this module alone imports."""

import triton
import triton.language as tl


@triton.jit
def _load(
    pointer: tl.tensor,
    start: tl.tensor,
    row_stride: tl.tensor,
    column_stride: tl.tensor,
    length: tl.tensor,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    CHECKED: tl.constexpr,
) -> tl.tensor:
    """Load ``[ROWS, PADDED]`` numbers from row ``start`` on; 0 beyond ``SIZE`` and, if checked, beyond ``length``."""
    rows, columns = tl.arange(0, ROWS), tl.arange(0, PADDED)
    at = pointer + start.to(tl.int64) * row_stride + rows[:, None] * row_stride + columns[None, :] * column_stride
    if CHECKED:
        if SIZE == PADDED:
            return tl.load(at, mask=(start + rows < length)[:, None], other=0.0)
        return tl.load(at, mask=(start + rows < length)[:, None] & (columns < SIZE)[None, :], other=0.0)
    if SIZE == PADDED:
        return tl.load(at)
    return tl.load(at, mask=(columns < SIZE)[None, :], other=0.0)


@triton.jit
def _store(
    pointer: tl.tensor,
    start: tl.tensor,
    row_stride: tl.tensor,
    values: tl.tensor,
    length: tl.tensor,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
) -> None:
    """Store ``[ROWS, PADDED]`` numbers from row ``start`` on, up to ``SIZE`` and ``length``; columns are contiguous."""
    rows, columns = tl.arange(0, ROWS), tl.arange(0, PADDED)
    at = pointer + start.to(tl.int64) * row_stride + rows[:, None] * row_stride + columns[None, :]
    tl.store(at, values.to(pointer.dtype.element_ty), mask=(start + rows < length)[:, None] & (columns < SIZE)[None, :])


@triton.jit
def _forward_tiles(
    total: tl.tensor, norm: tl.tensor, highest: tl.tensor, q: tl.tensor, k: tl.tensor, v: tl.tensor, ends: tl.tensor,
    tiles: tl.tensor, begin: tl.tensor, end: tl.tensor, start: tl.tensor, length: tl.tensor, scale: tl.tensor,
    k_row: tl.tensor, k_column: tl.tensor, v_row: tl.tensor, v_column: tl.tensor,
    SIZE: tl.constexpr, PADDED: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, TILE: tl.constexpr,
    COMPARED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Add tiles of keys to the sums, their norms and their highest scores."""
    pieces: tl.constexpr = TILE // KEYS
    rows, columns = start + tl.arange(0, QUERIES), tl.arange(0, KEYS)
    tile = tl.load(tiles + begin)
    for i in range(begin * pieces, end * pieces):
        first = tile * TILE + (i % pieces) * KEYS
        tile = tl.load(tiles + (i + 1) // pieces)  # ahead, so that no load of keys waits for it
        keys = _load(k, first, k_row, k_column, length, KEYS, SIZE, PADDED, COMPARED)
        scores = tl.dot(q, tl.trans(keys), input_precision="ieee")
        if COMPARED:
            at = first + columns
            last = tl.load(ends + at, mask=at < length, other=0)
            seen = (at[None, :] <= rows[:, None]) & (rows[:, None] < last[None, :])
            scores = tl.where(seen, scores, float("-inf"))
        new = tl.maximum(highest, tl.max(scores, 1) * scale)
        shift = tl.where(new == float("-inf"), 0.0, new) if COMPARED else new
        weights = tl.math.exp2(scores * scale - shift[:, None])
        factor = tl.math.exp2(highest - shift)
        norm = norm * factor + tl.sum(weights, 1)
        total = total * factor[:, None]
        values = _load(v, first, v_row, v_column, length, KEYS, SIZE, PADDED, COMPARED)
        total = tl.dot(weights.to(values.dtype), values, total, input_precision="ieee")
        highest = new
    return total, norm, highest


@triton.jit(do_not_specialize=["length"])
def forward(
    q: tl.tensor, k: tl.tensor, v: tl.tensor, out: tl.tensor, log_norms: tl.tensor, ends: tl.tensor, rows: tl.tensor,
    tiles: tl.tensor, length: tl.tensor, scale: tl.tensor, q_row: tl.tensor, q_head: tl.tensor, q_column: tl.tensor,
    k_row: tl.tensor, k_head: tl.tensor, k_column: tl.tensor, v_row: tl.tensor, v_head: tl.tensor, v_column: tl.tensor,
    GROUP: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    LONG: tl.constexpr, SHORT: tl.constexpr,
) -> None:  # fmt: skip
    """Attend with a tile of queries of a head. ``scale`` is that of base 2."""
    pieces: tl.constexpr = LONG // QUERIES
    head, program = tl.program_id(0), tl.program_id(1)
    row = rows + (program // pieces) * 5
    begin, middle, end = tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    start = tl.load(row) * LONG + (program % pieces) * QUERIES
    k += (head // GROUP).to(tl.int64) * k_head
    v += (head // GROUP).to(tl.int64) * v_head
    queries = _load(q + head.to(tl.int64) * q_head, start, q_row, q_column, length, QUERIES, SIZE, PADDED, True)
    total = tl.zeros([QUERIES, PADDED], tl.float32)
    norm = tl.zeros([QUERIES], tl.float32)
    highest = tl.full([QUERIES], float("-inf"), tl.float32)
    total, norm, highest = _forward_tiles(
        total, norm, highest, queries, k, v, ends, tiles, begin, middle, start, length, scale,
        k_row, k_column, v_row, v_column, SIZE, PADDED, QUERIES, KEYS, SHORT, False,
    )  # fmt: skip
    total, norm, highest = _forward_tiles(
        total, norm, highest, queries, k, v, ends, tiles, middle, end, start, length, scale,
        k_row, k_column, v_row, v_column, SIZE, PADDED, QUERIES, KEYS, SHORT, True,
    )  # fmt: skip
    nothing = norm == 0.0
    norm = tl.where(nothing, 1.0, norm)
    heads = tl.num_programs(0)
    _store(out + head * SIZE, start, heads * SIZE, total / norm[:, None], length, QUERIES, SIZE, PADDED)
    at = start + tl.arange(0, QUERIES)
    log_norm = tl.where(nothing, 0.0, highest + tl.math.log2(norm))
    tl.store(log_norms + head.to(tl.int64) * length + at, log_norm, mask=at < length)


@triton.jit
def _query_tiles(
    total: tl.tensor, q: tl.tensor, grad: tl.tensor, log_norm: tl.tensor, delta: tl.tensor, k: tl.tensor, v: tl.tensor,
    ends: tl.tensor, tiles: tl.tensor, begin: tl.tensor, end: tl.tensor, start: tl.tensor, length: tl.tensor,
    scale: tl.tensor, k_row: tl.tensor, k_column: tl.tensor, v_row: tl.tensor, v_column: tl.tensor,
    SIZE: tl.constexpr, PADDED: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, TILE: tl.constexpr,
    COMPARED: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Add what tiles of keys give to the gradient of queries."""
    pieces: tl.constexpr = TILE // KEYS
    rows, columns = start + tl.arange(0, QUERIES), tl.arange(0, KEYS)
    tile = tl.load(tiles + begin)
    for i in range(begin * pieces, end * pieces):
        first = tile * TILE + (i % pieces) * KEYS
        tile = tl.load(tiles + (i + 1) // pieces)
        keys = _load(k, first, k_row, k_column, length, KEYS, SIZE, PADDED, COMPARED)
        scores = tl.dot(q, tl.trans(keys), input_precision="ieee")
        weights = tl.math.exp2(scores * scale - log_norm[:, None])
        if COMPARED:
            at = first + columns
            last = tl.load(ends + at, mask=at < length, other=0)
            seen = (at[None, :] <= rows[:, None]) & (rows[:, None] < last[None, :])
            weights = tl.where(seen, weights, 0.0)
        values = _load(v, first, v_row, v_column, length, KEYS, SIZE, PADDED, COMPARED)
        slopes = weights * (tl.dot(grad, tl.trans(values), input_precision="ieee") - delta[:, None])
        total = tl.dot(slopes.to(keys.dtype), keys, total, input_precision="ieee")
    return total


@triton.jit(do_not_specialize=["length"])
def backward_queries(
    q: tl.tensor, k: tl.tensor, v: tl.tensor, out: tl.tensor, grad: tl.tensor, log_norms: tl.tensor, deltas: tl.tensor,
    grad_q: tl.tensor, ends: tl.tensor, rows: tl.tensor, tiles: tl.tensor, length: tl.tensor, scale: tl.tensor,
    exponent_scale: tl.tensor, q_row: tl.tensor, q_head: tl.tensor, q_column: tl.tensor, k_row: tl.tensor,
    k_head: tl.tensor, k_column: tl.tensor, v_row: tl.tensor, v_head: tl.tensor, v_column: tl.tensor,
    grad_row: tl.tensor, grad_head: tl.tensor, grad_column: tl.tensor,
    GROUP: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    LONG: tl.constexpr, SHORT: tl.constexpr,
) -> None:  # fmt: skip
    """Compute the gradient of a tile of queries of a head, and the products of their outputs with the gradient."""
    pieces: tl.constexpr = LONG // QUERIES
    head, program, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    row = rows + (program // pieces) * 5
    begin, middle, end = tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    start = tl.load(row) * LONG + (program % pieces) * QUERIES
    k += (head // GROUP).to(tl.int64) * k_head
    v += (head // GROUP).to(tl.int64) * v_head
    queries = _load(q + head.to(tl.int64) * q_head, start, q_row, q_column, length, QUERIES, SIZE, PADDED, True)
    slopes = _load(
        grad + head.to(tl.int64) * grad_head, start, grad_row, grad_column, length, QUERIES, SIZE, PADDED, True
    )
    outputs = _load(out + head * SIZE, start, heads * SIZE, 1, length, QUERIES, SIZE, PADDED, True)
    delta = tl.sum(outputs.to(tl.float32) * slopes.to(tl.float32), 1)
    at = start + tl.arange(0, QUERIES)
    tl.store(deltas + head.to(tl.int64) * length + at, delta, mask=at < length)
    log_norm = tl.load(log_norms + head.to(tl.int64) * length + at, mask=at < length, other=0.0)
    total = tl.zeros([QUERIES, PADDED], tl.float32)
    total = _query_tiles(
        total, queries, slopes, log_norm, delta, k, v, ends, tiles, begin, middle, start, length, exponent_scale,
        k_row, k_column, v_row, v_column, SIZE, PADDED, QUERIES, KEYS, SHORT, False,
    )  # fmt: skip
    total = _query_tiles(
        total, queries, slopes, log_norm, delta, k, v, ends, tiles, middle, end, start, length, exponent_scale,
        k_row, k_column, v_row, v_column, SIZE, PADDED, QUERIES, KEYS, SHORT, True,
    )  # fmt: skip
    _store(grad_q + head * SIZE, start, heads * SIZE, total * scale, length, QUERIES, SIZE, PADDED)


@triton.jit
def _key_tiles(
    total_k: tl.tensor, total_v: tl.tensor, k: tl.tensor, v: tl.tensor, last: tl.tensor, q: tl.tensor, grad: tl.tensor,
    log_norms: tl.tensor, deltas: tl.tensor, tiles: tl.tensor, begin: tl.tensor, end: tl.tensor, start: tl.tensor,
    length: tl.tensor, scale: tl.tensor, q_row: tl.tensor, q_head: tl.tensor, q_column: tl.tensor, grad_row: tl.tensor,
    grad_head: tl.tensor, grad_column: tl.tensor,
    GROUP: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    TILE: tl.constexpr, COMPARED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Add what tiles of queries of all heads of the group give to the gradients of keys and values."""
    pieces: tl.constexpr = TILE // QUERIES
    turns: tl.constexpr = pieces * GROUP
    rows, columns = start + tl.arange(0, KEYS), tl.arange(0, QUERIES)
    tile = tl.load(tiles + begin)
    for i in range(begin * turns, end * turns):  # one loop over all heads: the pipeline of loads is filled once
        head = i % GROUP
        first = tile * TILE + (i // GROUP % pieces) * QUERIES
        tile = tl.load(tiles + (i + 1) // turns)
        at = first + columns
        queries = _load(
            q + tl.cast(head, tl.int64) * q_head, first, q_row, q_column, length, QUERIES, SIZE, PADDED, COMPARED
        )
        slopes = _load(
            grad + tl.cast(head, tl.int64) * grad_head,
            first,
            grad_row,
            grad_column,
            length,
            QUERIES,
            SIZE,
            PADDED,
            COMPARED,
        )
        line = tl.cast(head, tl.int64) * length + first
        if COMPARED:
            log_norm = tl.load(log_norms + line + columns, mask=at < length, other=0.0)
            delta = tl.load(deltas + line + columns, mask=at < length, other=0.0)
        else:
            log_norm, delta = tl.load(log_norms + line + columns), tl.load(deltas + line + columns)
        scores = tl.dot(k, tl.trans(queries), input_precision="ieee")
        weights = tl.math.exp2(scores * scale - log_norm[None, :])
        if COMPARED:
            seen = (rows[:, None] <= at[None, :]) & (at[None, :] < last[:, None])
            weights = tl.where(seen, weights, 0.0)
        total_v = tl.dot(weights.to(slopes.dtype), slopes, total_v, input_precision="ieee")
        change = weights * (tl.dot(v, tl.trans(slopes), input_precision="ieee") - delta[None, :])
        total_k = tl.dot(change.to(queries.dtype), queries, total_k, input_precision="ieee")
    return total_k, total_v


@triton.jit(do_not_specialize=["length"])
def backward_keys(
    q: tl.tensor, k: tl.tensor, v: tl.tensor, grad: tl.tensor, log_norms: tl.tensor, deltas: tl.tensor,
    grad_k: tl.tensor, grad_v: tl.tensor, parts_k: tl.tensor, parts_v: tl.tensor, ends: tl.tensor, rows: tl.tensor,
    tiles: tl.tensor, length: tl.tensor, scale: tl.tensor, exponent_scale: tl.tensor, q_row: tl.tensor,
    q_head: tl.tensor, q_column: tl.tensor, k_row: tl.tensor, k_head: tl.tensor, k_column: tl.tensor, v_row: tl.tensor,
    v_head: tl.tensor, v_column: tl.tensor, grad_row: tl.tensor, grad_head: tl.tensor, grad_column: tl.tensor,
    GROUP: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    LONG: tl.constexpr, SHORT: tl.constexpr,
) -> None:  # fmt: skip
    """Compute the gradients of a tile of keys and values of a head, or a part of their sums."""
    pieces: tl.constexpr = LONG // KEYS
    head, program, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    row = rows + (program // pieces) * 5
    begin, middle, end, part = tl.load(row + 1), tl.load(row + 2), tl.load(row + 3), tl.load(row + 4)
    inside = (program % pieces) * KEYS
    start = tl.load(row) * LONG + inside
    keys = _load(k + head.to(tl.int64) * k_head, start, k_row, k_column, length, KEYS, SIZE, PADDED, True)
    values = _load(v + head.to(tl.int64) * v_head, start, v_row, v_column, length, KEYS, SIZE, PADDED, True)
    at = start + tl.arange(0, KEYS)
    last = tl.load(ends + at, mask=at < length, other=0)
    group = head.to(tl.int64) * GROUP  # its first query head
    q += group * q_head
    grad += group * grad_head
    log_norms += group * length
    deltas += group * length
    total_k, total_v = tl.zeros([KEYS, PADDED], tl.float32), tl.zeros([KEYS, PADDED], tl.float32)
    total_k, total_v = _key_tiles(
        total_k, total_v, keys, values, last, q, grad, log_norms, deltas, tiles, begin, middle, start, length,
        exponent_scale, q_row, q_head, q_column, grad_row, grad_head, grad_column,
        GROUP, SIZE, PADDED, QUERIES, KEYS, SHORT, False,
    )  # fmt: skip
    total_k, total_v = _key_tiles(
        total_k, total_v, keys, values, last, q, grad, log_norms, deltas, tiles, middle, end, start, length,
        exponent_scale, q_row, q_head, q_column, grad_row, grad_head, grad_column,
        GROUP, SIZE, PADDED, QUERIES, KEYS, SHORT, True,
    )  # fmt: skip
    total_k *= scale
    if part < 0:
        _store(grad_k + head * SIZE, start, heads * SIZE, total_k, length, KEYS, SIZE, PADDED)
        _store(grad_v + head * SIZE, start, heads * SIZE, total_v, length, KEYS, SIZE, PADDED)
    else:
        first = (tl.cast(part, tl.int64) * heads + head) * LONG * SIZE
        _store(parts_k + first, inside, SIZE, total_k, LONG, KEYS, SIZE, PADDED)
        _store(parts_v + first, inside, SIZE, total_v, LONG, KEYS, SIZE, PADDED)


@triton.jit(do_not_specialize=["length"])
def add_parts(
    parts_k: tl.tensor,
    parts_v: tl.tensor,
    grad_k: tl.tensor,
    grad_v: tl.tensor,
    sums: tl.tensor,
    length: tl.tensor,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    LONG: tl.constexpr,
) -> None:
    """Add up the parts of a tile of keys and values of a head, in order."""
    head, heads = tl.program_id(0), tl.num_programs(0)
    row, inside = sums + tl.program_id(1) * 3, tl.program_id(2) * ROWS
    start, first, count = tl.load(row) * LONG + inside, tl.load(row + 1), tl.load(row + 2)
    total_k, total_v = tl.zeros([ROWS, PADDED], tl.float32), tl.zeros([ROWS, PADDED], tl.float32)
    for part in range(first, first + count):
        at = (tl.cast(part, tl.int64) * heads + head) * LONG * SIZE
        total_k += _load(parts_k + at, inside, SIZE, 1, LONG, ROWS, SIZE, PADDED, False)
        total_v += _load(parts_v + at, inside, SIZE, 1, LONG, ROWS, SIZE, PADDED, False)
    _store(grad_k + head * SIZE, start, heads * SIZE, total_k, length, ROWS, SIZE, PADDED)
    _store(grad_v + head * SIZE, start, heads * SIZE, total_v, length, ROWS, SIZE, PADDED)
