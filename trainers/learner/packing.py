"""Packing of trajectories for a model: rows, micro-batches under a token budget, shares for ranks. Pure NumPy.

A *row* is one context of a trajectory with the positions whose output is needed. Each such position carries the flat
index of its result, so results scatter back whatever the order of rows. The output that predicts token ``i`` stands at
position ``i - 1``, so a row ends before its last target: trailing observations and the last token itself are not
read at all. Behind its action tokens a row may have observation tokens: targets of their own, in the same forward pass.
All rows of a trajectory stand in the same *micro-batch*, so a loss over whole sequences sees them whole.
A micro-batch is laid out in one of three ways:

* padded: a matrix, sorted by length, padded on the right. Under causal attention no real position sees the padding, so
  neither an attention mask nor position ids are needed.
* packed: one row of sequences, which attention keeps apart.
* trees: one row of what the sequences are made of, tokens that several of them begin with once
  (:mod:`trainers.learner.trees`).

How a batch is cut changes speed and memory, never the result: losses are weighted sums (see
:mod:`trainers.algorithms.losses.base`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainers.learner.trees import Forest, merge
from trainers.trajectory import Trajectory, action_offsets, observation_offsets

Ints = NDArray[np.int64]
Layout = Literal["padded", "packed", "trees"]


@dataclass(frozen=True, eq=False)
class Row:
    """One token sequence and the ``n`` positions in it whose output is needed."""

    tokens: NDArray[np.int32]  #: int ``[L]``, ``L >= 1``; what the model reads
    positions: Ints  #: int ``[n]``, below ``L``; where to read the output: in order, but observation tokens come last
    targets: Ints  #: int ``[n]``; the next token (0 where there is none: a bootstrap value)
    index: Ints  #: int ``[n]``; where the results go among all results
    trajectory: int = 0  #: whose context it is
    observed: int = 0  #: how many positions, the last ones, are of observation tokens


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Rows with ``n`` such positions in all."""

    input_ids: Ints  #: int64 ``[B, L]``; padded with 0 on the right. Packed, or trees: ``[1, T]``.
    positions: Ints  #: int64 ``[n]``; into the flattened outputs. Rows that share tokens share positions.
    targets: Ints  #: int64 ``[n]``
    index: Ints  #: int64 ``[n]``; those of a trajectory together, in the order of time; observation tokens come last
    num_tokens: int  #: of the rows; a token that several rows share counts for each
    real: int  #: tokens that the model reads; the rest of ``input_ids`` is padding
    squares: int = 0  #: the sum of the rows' squared lengths: what attention costs where nothing is shared
    forest: Forest | None = None  #: what stands in a row that is packed; ``None`` where rows are padded
    observed: int = 0  #: how many of the ``n`` positions, the last ones, are of observation tokens


_MICRO_BATCH = 16  #: a micro-batch costs about as much time as this part of the tokens that fit into one

#: A rank's batch while others still have work: sharded models need every rank in every forward pass.
_NONE = np.zeros(0, np.int64)
IDLE = MicroBatch(np.zeros((1, 1), np.int64), positions=_NONE, targets=_NONE, index=_NONE, num_tokens=0, real=0)


def action_rows(trajectories: Sequence[Trajectory], *, observations: bool = False) -> list[list[Row]]:
    """Return the rows that predict every action token; one list a trajectory, without contexts that have none.

    The results' flat index is the rank of the token among all ``N`` action tokens (see ``action_offsets``). With
    ``observations`` they also predict the observation tokens, whose index is ``N`` plus their rank (see
    ``observation_offsets``). Raises ``ValueError``: a context starts with an action token, so that nothing could have
    predicted it; or the observation tokens of a trajectory were not recorded.
    """
    offsets = action_offsets(trajectories)
    if not observations:
        return [_rows(trajectory, number, int(offsets[number])) for number, trajectory in enumerate(trajectories)]
    places = offsets[-1] + observation_offsets(trajectories)
    for number, trajectory in enumerate(trajectories):
        if len(trajectory.observation_mask) != len(trajectory.token_ids):
            raise ValueError(
                f"{_name(trajectory, number)} has no observation_mask: it was collected without "
                "actor.observation_loss, which needs to know the environment's tokens; collect it again"
            )
    return [
        _rows(trajectory, number, int(offsets[number]), observed_index=int(places[number]))
        for number, trajectory in enumerate(trajectories)
    ]


def value_rows(trajectories: Sequence[Trajectory]) -> list[list[Row]]:
    """Return a critic's rows: the state before every action token, and the last state of each trajectory.

    Flat index: the ``N`` action tokens as in :func:`action_rows`, then ``N + e`` for trajectory ``e``'s last token.
    Raises ``ValueError`` as that does, and where a trajectory has no token.
    """
    offsets = action_offsets(trajectories)
    all_rows = []
    for number, trajectory in enumerate(trajectories):
        if not len(trajectory.token_ids):
            raise ValueError(f"{_name(trajectory, number)} has no token, so it has no value")
        last = int(offsets[-1]) + number
        all_rows.append(_rows(trajectory, number, int(offsets[number]), last))
    return all_rows


def _rows(
    trajectory: Trajectory,
    number: int,
    index: int,
    last_state_index: int | None = None,
    observed_index: int | None = None,
) -> list[Row]:
    """Return the rows of one trajectory; its action tokens' results are numbered from ``index``.

    Its observation tokens' are from ``observed_index``, where they are needed.
    """
    rows = []
    bounds = [*map(int, trajectory.segment_starts), len(trajectory.token_ids)]
    numbers = index + np.argsort(trajectory.actions, kind="stable")  # of the action tokens, in the arrays' order
    for start, end in zip(bounds, bounds[1:], strict=False):
        actions = np.flatnonzero(trajectory.action_mask[start:end]).astype(np.int64)
        if actions.size and actions[0] == 0:
            raise ValueError(
                f"{_name(trajectory, number)}: the context at token {start} starts with an action token; "
                f"every context must start with what the policy was shown"
            )
        positions, targets = actions - 1, trajectory.token_ids[start:end][actions].astype(np.int64)
        where, numbers = numbers[: actions.size], numbers[actions.size :]
        if last_state_index is not None and end == bounds[-1]:
            positions = np.append(positions, end - start - 1)
            targets, where = np.append(targets, 0), np.append(where, last_state_index)
        observed = np.zeros(0, np.int64)
        if observed_index is not None:
            observed = np.flatnonzero(trajectory.observation_mask[start:end]).astype(np.int64)
            positions = np.append(positions, observed - 1)
            targets = np.append(targets, trajectory.token_ids[start:end][observed].astype(np.int64))
            where = np.append(where, observed_index + np.arange(observed.size))
            observed_index += observed.size
        if positions.size:
            tokens = trajectory.token_ids[start : start + int(positions.max()) + 1]
            rows.append(Row(tokens, positions, targets, where, number, observed.size))
    return rows


def _name(trajectory: Trajectory, number: int) -> str:
    return f"trajectory {number} ({trajectory.episode_id or 'no episode id'})"


def micro_batches(
    units: Sequence[Sequence[Row]], max_tokens: int, ranks: int = 1, layout: Layout = "padded"
) -> list[list[MicroBatch]]:
    """Cut trajectories (the rows of each) into micro-batches of at most ``max_tokens`` tokens, padding included.

    Returns those of each rank, whose numbers may differ. The rows of a trajectory stay together; one that is larger
    stands alone. The largest micro-batches come first: if memory is too small, it shows at once. Equal inputs give
    equal cuts, so every rank can compute all of them by itself. What packed sequences and trees need of attention is
    the caller's care.
    """
    units = [unit for unit in units if unit]
    if layout == "trees":
        made = _trees(units, max_tokens, ranks)
        shares = balance([batch.real for batch in made], ranks)
        return [sorted((made[i] for i in share), key=lambda batch: -batch.real) for share in shares]
    shares = balance([sum(len(row.tokens) for row in unit) for unit in units], ranks)
    return [_flat([units[i] for i in share], max_tokens, packed=layout == "packed") for share in shares]


def _flat(units: Sequence[Sequence[Row]], max_tokens: int, *, packed: bool) -> list[MicroBatch]:
    batches: list[MicroBatch] = []
    rows: list[Row] = []
    size = width = 0
    for unit in sorted(units, key=lambda unit: -_longest(unit)):
        if packed:
            size += sum(len(row.tokens) for row in unit)
        else:
            size = (len(rows) + len(unit)) * width
        if rows and size > max_tokens:
            batches.append(_pack(rows) if packed else _pad(rows))
            rows = []
        if not rows:
            width = _longest(unit)
            size = sum(len(row.tokens) for row in unit)
        rows.extend(unit)
    return batches + ([_pack(rows) if packed else _pad(rows)] if rows else [])


def _longest(unit: Sequence[Row]) -> int:
    return max(len(row.tokens) for row in unit)


def _pad(rows: Sequence[Row]) -> MicroBatch:
    width = _longest(rows)
    input_ids = np.zeros((len(rows), width), np.int64)
    for line, row in zip(input_ids, rows, strict=True):
        line[: len(row.tokens)] = row.tokens
    positions = [number * width + row.positions for number, row in enumerate(rows)]
    return _batch(rows, input_ids, positions, sum(len(row.tokens) for row in rows))


def _pack(rows: Sequence[Row], *, shared: bool = False) -> MicroBatch:
    forest = merge([row.tokens for row in rows], shared=shared)
    positions = [path[row.positions] for path, row in zip(forest.paths, rows, strict=True)]
    return _batch(rows, forest.tokens[None], positions, len(forest.tokens), forest)


def _batch(
    rows: Sequence[Row], input_ids: Ints, positions: Sequence[Ints], real: int, forest: Forest | None = None
) -> MicroBatch:
    order: slice | Ints = slice(None)
    index = np.concatenate([row.index for row in rows])
    place: dict[int, int] = {}
    trajectories = np.repeat(
        [place.setdefault(row.trajectory, len(place)) for row in rows], [len(row.index) for row in rows]
    )
    observed = np.concatenate([np.arange(len(row.index)) >= len(row.index) - row.observed for row in rows])
    if observed.any():
        order = np.lexsort((index, trajectories, observed))
    elif ((np.diff(index) < 0) & (np.diff(trajectories) == 0)).any():  # its contexts were used in turn
        order = np.lexsort((index, trajectories))
    return MicroBatch(
        input_ids,
        np.concatenate(positions)[order],
        np.concatenate([row.targets for row in rows])[order],
        index[order],
        num_tokens=sum(len(row.tokens) for row in rows),
        real=real,
        squares=sum(len(row.tokens) ** 2 for row in rows),
        forest=forest,
        observed=int(observed.sum()),
    )


def _trees(units: Sequence[Sequence[Row]], max_tokens: int, ranks: int) -> list[MicroBatch]:
    """Cut micro-batches of neighbours in the trees of all rows, where the fewest tokens are read again.

    In depth-first order of their first rows, a unit shares most with the one before it. A micro-batch costs what its
    first unit reads and what each of the others adds, and some tokens more for being one; the sum of that is the least
    possible (dynamic programming over the place of the last cut).
    """
    forest = merge([row.tokens for unit in units for row in unit])
    paths = iter(forest.paths)
    ordered = [(unit, [next(paths) for _ in unit]) for unit in units]
    ordered.sort(key=lambda pair: int(pair[1][0][-1]))
    whole, added = [], []
    last = np.full(len(forest.tokens), -1)  # the last unit that has each node
    for number, (_, inside) in enumerate(ordered):
        nodes = inside[0] if len(inside) == 1 else np.unique(np.concatenate(inside))
        whole.append(len(nodes))
        added.append(int((last[nodes] != number - 1).sum()) if number else len(nodes))
        last[nodes] = number
    cuts = _cuts(whole, added, max_tokens, max_tokens // _MICRO_BATCH)
    if ranks > 1:  # as many for each, of about the same size
        count = -(-(len(cuts) - 1) // ranks) * ranks
        limits = range(1, max_tokens + 1)
        least = bisect_left(limits, True, key=lambda limit: _fill(whole, added, limit) <= count)
        cuts = _cuts(whole, added, limits[min(least, max_tokens - 1)], max_tokens // _MICRO_BATCH)
    return [
        _pack([row for unit, _ in ordered[begin:end] for row in unit], shared=True) for begin, end in pairwise(cuts)
    ]


def _cuts(whole: Sequence[int], added: Sequence[int], limit: int, overhead: int) -> list[int]:
    """Return the cuts of ``n`` units, ``0`` and ``n`` included; see :func:`_trees`."""
    best, begin = [0], [0]
    for end in range(1, len(whole) + 1):
        choices: list[tuple[int, int]] = []
        extra = 0  # what the units after the first one of the last micro-batch add
        for start in range(end - 1, -1, -1):
            size = whole[start] + extra
            if choices and size > limit:
                break
            choices.append((best[start] + size + overhead, start))
            extra += added[start]
        cost, start = min(choices)
        best.append(cost)
        begin.append(start)
    cuts = [len(whole)]
    while cuts[-1]:
        cuts.append(begin[cuts[-1]])
    return cuts[::-1]


def _fill(whole: Sequence[int], added: Sequence[int], limit: int) -> int:
    """Count the micro-batches if each is filled up before the next begins."""
    count, size = 0, limit
    for alone, extra in zip(whole, added, strict=True):
        size += extra
        if size > limit or not count:
            count, size = count + 1, alone
    return count


def balance(costs: ArrayLike, ranks: int) -> list[list[int]]:
    """Share items out so that the largest share is small: the costliest first, each to the least loaded rank.

    This greedy rule (longest processing time first) is within 4/3 of the best possible (R. Graham, 1969). Returns for
    each rank the indices of its items, in increasing order. Equal inputs give equal shares, so every rank can compute
    all of them by itself.
    """
    costs = np.asarray(costs, np.float64)
    loads = np.zeros(ranks)
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for item in np.argsort(-costs, kind="stable"):
        rank = int(np.argmin(loads))
        loads[rank] += costs[item]
        shares[rank].append(int(item))
    return [sorted(share) for share in shares]
