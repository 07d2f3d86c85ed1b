"""Token sequences as trees: common prefixes are stored once, at any depth. Pure NumPy.

Sequences are merged where their tokens are equal from the first one on, so siblings share a prompt, and forks share a
conversation up to the fork. The nodes, one a token, stand in depth-first order: the nodes below one follow it without a
gap. So node ``j`` is an ancestor of ``i``, or ``i`` itself, exactly where ``j <= i < ends[j]``, and attention over
ancestors is causal attention of every sequence. Its hidden states, and with them its gradient, are those of the
sequences read one by one (arXiv 2511.00413, 2602.00482).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_NONE = np.zeros(0, np.int64)

_QUERIES = 256  #: of a branch that attend together: as each sees only what stands before the last, more waste more
_KEYS = 2**12  #: of a block: they are copied for each branch, so that memory would grow with what is shared
_WASTE = 1.25  #: scores of a block, padding included, over those that are needed
_SMALL = 2**13  #: scores that cost less than another block


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees with ``T`` nodes, made of sequences."""

    tokens: Ints  #: int64 ``[T]``
    depths: Ints  #: int64 ``[T]``; how many nodes stand above each: a token's position in its sequences
    ends: Ints  #: int64 ``[T]``; one past the last node below each
    paths: list[Ints]  #: of each sequence its nodes, int64 ``[L]``, from the root down
    #: Paths with the number of their last nodes that no branch before had. Those of all branches are all nodes, in
    #: order.
    branches: list[tuple[Ints, int]]

    @property
    def flat(self) -> bool:
        """No two branches share a node: they are sequences one after another."""
        return all(len(path) == new for path, new in self.branches)


def merge(rows: Sequence[NDArray[np.int32]], *, shared: bool = True) -> Forest:
    """Merge sequences, int ``[L]``, of one type, into trees; if not ``shared``, each is a tree of its own, in order."""
    # Any order will do in which those that begin alike are neighbours, the shorter first.
    order = sorted(range(len(rows)), key=lambda number: rows[number].tobytes()) if shared else range(len(rows))
    paths = [_NONE] * len(rows)
    branches: list[tuple[Ints, int]] = []
    parts, ends = [_NONE], np.zeros(sum(map(len, rows)), np.int64)
    size, before, path = 0, rows[0][:0] if len(rows) else _NONE, _NONE
    for number in order:
        row = rows[number]
        common = _common(before, row) if shared else 0
        ends[path[common:]] = size
        new = len(row) - common
        path = np.concatenate([path[:common], np.arange(size, size + new)])
        if new:
            branches.append((path, new))
        parts.append(row[common:].astype(np.int64))
        paths[number], before, size = path, row, size + new
    ends[path] = size
    depths = [np.arange(len(path) - new, len(path)) for path, new in branches]
    return Forest(np.concatenate(parts), np.concatenate([_NONE, *depths]), ends[:size], paths, branches)


def _common(one: NDArray[np.generic], other: NDArray[np.generic]) -> int:
    """Return the length of two sequences' common prefix."""
    length = min(len(one), len(other))
    differ = one[:length] != other[:length]
    at = int(differ.argmax()) if length else 0
    return at if length and differ[at] else length


@dataclass(frozen=True, eq=False)
class Block:
    """Pieces of branches that attend together, ``C`` of them, each to its path: query ``i`` sees ``starts + i + 1``."""

    queries: Ints  #: int64 ``[C, Q]``; nodes, padded with 0 on the right
    keys: Ints  #: int64 ``[C, K]``; the nodes of the paths, padded likewise
    starts: Ints  #: int64 ``[C]``; how many nodes stand above the first query
    real: NDArray[np.bool_]  #: bool ``[C, Q]``; which queries are no padding


def blocks(forest: Forest) -> list[Block]:
    """Cut attention into a few batches of about equal sizes; every node is a query once."""
    pieces = [
        (path[: min(at + _QUERIES, len(path))], at)
        for path, new in forest.branches
        for at in range(len(path) - new, len(path), _QUERIES)
    ]
    pieces.sort(key=lambda piece: (piece[1] - len(piece[0]), -len(piece[0])))  # most queries first, then most keys
    made: list[Block] = []
    inside: list[tuple[Ints, int]] = []
    needed = longest = 0
    for piece in pieces:
        keys, queries = len(piece[0]), len(piece[0]) - piece[1]
        needed, longest = needed + keys * queries, max(longest, keys)
        if inside:
            padded = (len(inside) + 1) * longest
            scores = padded * (len(inside[0][0]) - inside[0][1])
            if padded > _KEYS or scores > _WASTE * needed + _SMALL:
                made.append(_block(inside))
                inside, needed, longest = [], keys * queries, keys
        inside.append(piece)
    return made + ([_block(inside)] if inside else [])


def _block(pieces: Sequence[tuple[Ints, int]]) -> Block:
    queries = np.zeros((len(pieces), max(len(path) - at for path, at in pieces)), np.int64)
    keys = np.zeros((len(pieces), max(len(path) for path, _ in pieces)), np.int64)
    real = np.zeros(queries.shape, np.bool_)
    for number, (path, at) in enumerate(pieces):
        queries[number, : len(path) - at] = path[at:]
        real[number, : len(path) - at] = True
        keys[number, : len(path)] = path
    return Block(queries, keys, np.array([at for _, at in pieces], np.int64), real)


def tiles(ends: Ints, queries: int, keys: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which tiles of the attention matrix have any ancestor, and which have ancestors only.

    ``ends`` are as in :class:`Forest`, 0 for padding behind the nodes, which nothing sees. A tile is ``queries`` by
    ``keys``; returns bool ``[Q, K]`` each, of tiles of queries by tiles of keys. A tile that is cut off by the end of
    the row, or whose keys do not all stand before its queries, never counts as one of ancestors only.
    """
    rows, columns = (np.arange(0, len(ends), size)[:, None] for size in (queries, keys))
    padded = np.append(ends, np.zeros(-len(ends) % keys, ends.dtype)).reshape(len(columns), keys)
    some = (rows + queries > columns.T) & (padded.max(1) > rows)
    every = (rows >= columns.T + keys) & (padded.min(1) >= rows + queries)
    return some, every


@dataclass(frozen=True, eq=False)
class Visits:
    """The tiles that meet each tile of queries, or of keys, all int32.

    ``tiles[begin:middle]`` have ancestors only, those of ``tiles[middle:end]`` have to be compared.
    """

    tiles: NDArray[np.int32]  #: ``[M + 1]``; one more ends the array, so that a reader may look one tile ahead
    rows: NDArray[np.int32]  #: ``[P, 5]``: tile, begin, middle, end, part; the longest rows first
    sums: NDArray[np.int32]  #: ``[S, 3]``: a tile that has several rows, its first part, how many; parts are numbered


def visits(some: NDArray[np.bool_], every: NDArray[np.bool_], most: int | None = None) -> Visits:
    """List the tiles of each row of ``some``; ``every`` is what of them needs no comparison.

    Rows of more than ``most`` tiles are cut into parts of about equal length. A row that is not cut has the part -1.
    """
    count = len(some)
    row, tile = np.nonzero(some)
    order = np.argsort(2 * row + ~every[row, tile], kind="stable")
    lengths, wholes = some.sum(1), every.sum(1)
    begin = np.cumsum(lengths) - lengths
    parts = np.ones(count, np.int64) if most is None else np.maximum(1, -(-lengths // most))
    of = np.repeat(np.arange(count), parts)
    part = np.arange(len(of)) - np.repeat(np.cumsum(parts) - parts, parts)
    first, last = (begin[of] + at * lengths[of] // parts[of] for at in (part, part + 1))
    middle = np.clip(begin[of] + wholes[of], first, last)
    cut = parts[of] > 1
    rows = np.stack([of, first, middle, last, np.where(cut, np.cumsum(cut) - 1, -1)], 1)
    several = np.flatnonzero(parts > 1)
    sums = np.stack([several, np.cumsum(parts[several]) - parts[several], parts[several]], 1)
    return Visits(
        np.append(tile[order], 0).astype(np.int32),
        rows[np.argsort(first - last, kind="stable")].astype(np.int32),
        sums.astype(np.int32),
    )
