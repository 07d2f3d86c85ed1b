"""From trajectories to what a model reads: rows, micro-batches under a token budget, shares for ranks. Pure NumPy.

A *row* is one segment of a trajectory with the positions whose output is wanted. A *micro-batch* is a padded matrix of
rows; every wanted position carries the flat index of its result, so results scatter back whatever the order of rows.
What keeps it small and fast:

* The output that predicts token ``i`` stands at position ``i - 1``, so a row ends before its last wanted token:
  trailing observations and the last token itself are not read at all.
* Rows are padded on the right. Under causal attention no real position sees the padding, so neither an attention mask
  nor position ids are needed, and attention takes its fast causal path. Or rows are packed, where attention can keep
  them apart.
* All rows of a trajectory stand in the same micro-batch, so a loss over whole sequences sees them whole.

Rows sorted by length leave little padding. How a batch is cut changes speed and memory, never the result: losses are
weighted sums (see :mod:`trainers.algorithms.aggregation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainers.learner.prefixes import Shared
from trainers.trajectory import Trajectory, action_offsets

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Row:
    """One token sequence and the ``n`` positions in it whose output is wanted.

    Args:
        tokens: int ``[L]``, ``L >= 1``; what the model reads.
        positions: int ``[n]``, increasing, below ``L``; where to read the output.
        targets: int ``[n]``; the token that came next there (0 where none did: a bootstrap value).
        index: int ``[n]``; where the results go among all results.
    """

    tokens: NDArray[np.int32]
    positions: Ints
    targets: Ints
    index: Ints


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Rows with ``n`` wanted positions in all: ``B`` of them padded to ``L`` tokens, or packed, one after another.

    Args:
        input_ids: int64 ``[B, L]``; padded with 0 on the right. Packed: ``[1, T]``.
        positions: int64 ``[n]``; into the flattened ``[B * L]`` outputs.
        targets: int64 ``[n]``.
        index: int64 ``[n]``.
        num_tokens: Real tokens of its rows.
        lengths: int64; of the packed rows, ``T`` together. ``None`` when rows are padded.
        squares: The sum of the rows' squared lengths: what attention costs.
        shared: What the rows begin with, if it is read apart; ``input_ids`` then hold what follows, and ``positions``
            point into the outputs of the beginnings, flattened, and then of what follows.
        repeated: Tokens among ``num_tokens`` that are not read again, because they are shared.
    """

    input_ids: Ints
    positions: Ints
    targets: Ints
    index: Ints
    num_tokens: int
    lengths: Ints | None = None
    squares: int = 0
    shared: Shared | None = None
    repeated: int = 0

    @property
    def size(self) -> int:
        """Positions that the model computes, padding included."""
        return self.input_ids.size + (0 if self.shared is None else self.shared.input_ids.size)


#: What a rank computes while others still have work: sharded models need every rank in every forward pass.
_NONE = np.zeros(0, np.int64)
IDLE = MicroBatch(np.zeros((1, 1), np.int64), positions=_NONE, targets=_NONE, index=_NONE, num_tokens=0)


def action_rows(trajectories: Sequence[Trajectory]) -> list[list[Row]]:
    """The rows that predict every action token; one list a trajectory, without segments that have none.

    The results' flat index is the rank of the token among all action tokens (see ``action_offsets``).

    Raises:
        ValueError: A segment starts with an action token: nothing could have predicted it.
    """
    offsets = action_offsets(trajectories)
    return [_rows(trajectory, number, int(offsets[number])) for number, trajectory in enumerate(trajectories)]


def value_rows(trajectories: Sequence[Trajectory]) -> list[list[Row]]:
    """The rows for a critic: the state before every action token, and the last state of each trajectory.

    Flat index: the ``N`` action tokens as in :func:`action_rows`, then ``N + e`` for trajectory ``e``'s last token.

    Raises:
        ValueError: As :func:`action_rows`, or a trajectory has no token.
    """
    offsets = action_offsets(trajectories)
    all_rows = []
    for number, trajectory in enumerate(trajectories):
        if not len(trajectory.token_ids):
            raise ValueError(f"{_name(trajectory, number)} has no token, so it has no value")
        last = int(offsets[-1]) + number
        all_rows.append(_rows(trajectory, number, int(offsets[number]), last))
    return all_rows


def _rows(trajectory: Trajectory, number: int, index: int, last_state_index: int | None = None) -> list[Row]:
    """The rows of one trajectory; its action tokens' results are numbered from ``index``."""
    rows = []
    bounds = [*map(int, trajectory.segment_starts), len(trajectory.token_ids)]
    for start, end in zip(bounds, bounds[1:], strict=False):
        actions = np.flatnonzero(trajectory.action_mask[start:end]).astype(np.int64)
        if actions.size and actions[0] == 0:
            raise ValueError(
                f"{_name(trajectory, number)}: the segment at token {start} starts with an action token; "
                f"every segment must start with what the policy was shown"
            )
        positions, targets = actions - 1, trajectory.token_ids[start:end][actions].astype(np.int64)
        where = np.arange(index, index + actions.size, dtype=np.int64)
        index += actions.size
        if last_state_index is not None and end == bounds[-1]:
            positions = np.append(positions, end - start - 1)
            targets, where = np.append(targets, 0), np.append(where, last_state_index)
        if positions.size:
            rows.append(Row(trajectory.token_ids[start : start + int(positions[-1]) + 1], positions, targets, where))
    return rows


def _name(trajectory: Trajectory, number: int) -> str:
    return f"trajectory {number} ({trajectory.episode_id or 'no episode id'})"


def micro_batches(
    units: Sequence[Sequence[Row]], max_tokens: int, *, packed: bool = False, share: bool = False
) -> list[MicroBatch]:
    """Cut trajectories into micro-batches of at most ``max_tokens`` tokens, padding included.

    Sorted by their longest row, the longest first: if memory is too small, it shows at once.

    Args:
        units: The rows of each trajectory; they stay together.
        max_tokens: ``B * L`` of a micro-batch at most. A trajectory that is larger than that stands alone.
        packed: Put rows one after another instead of padding them; the model must keep them apart.
        share: Read what rows of a micro-batch begin with, up to the first wanted position, once for all that begin
            alike, if that saves more than a twentieth of all positions. Not with ``packed``.

    Raises:
        ValueError: ``max_tokens`` is below 1.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens_per_micro_batch must be at least 1, not {max_tokens}")
    ordered = sorted((unit for unit in units if unit), key=lambda unit: -_longest(unit))
    if share:
        assert not packed
        apart = micro_batches(ordered, max_tokens)
        ways = [_shared_batches(order, max_tokens) for order in (ordered, _siblings_together(ordered))]
        best = min(ways, key=_positions)
        return best if _positions(best) < 0.95 * _positions(apart) else apart
    join = _pack if packed else _pad
    batches: list[MicroBatch] = []
    rows: list[Row] = []
    size = width = 0
    for unit in ordered:
        if packed:
            size += sum(len(row.tokens) for row in unit)
        else:
            size = (len(rows) + len(unit)) * width
        if rows and size > max_tokens:
            batches.append(join(rows))
            rows = []
        if not rows:
            width = _longest(unit)
            size = sum(len(row.tokens) for row in unit)
        rows.extend(unit)
    if rows:
        batches.append(join(rows))
    return batches


def _longest(unit: Sequence[Row]) -> int:
    return max(len(row.tokens) for row in unit)


def _pad(rows: Sequence[Row]) -> MicroBatch:
    width = _longest(rows)
    input_ids = np.zeros((len(rows), width), np.int64)
    for line, row in zip(input_ids, rows, strict=True):
        line[: len(row.tokens)] = row.tokens
    return MicroBatch(
        input_ids,
        np.concatenate([number * width + row.positions for number, row in enumerate(rows)]),
        np.concatenate([row.targets for row in rows]),
        np.concatenate([row.index for row in rows]),
        num_tokens=sum(len(row.tokens) for row in rows),
        squares=sum(len(row.tokens) ** 2 for row in rows),
    )


def _pack(rows: Sequence[Row]) -> MicroBatch:
    lengths = np.array([len(row.tokens) for row in rows], np.int64)
    starts = np.cumsum(lengths) - lengths
    return MicroBatch(
        np.concatenate([row.tokens for row in rows])[None].astype(np.int64),
        np.concatenate([start + row.positions for start, row in zip(starts, rows, strict=True)]),
        np.concatenate([row.targets for row in rows]),
        np.concatenate([row.index for row in rows]),
        num_tokens=int(lengths.sum()),
        lengths=lengths,
        squares=int((lengths**2).sum()),
    )


def _positions(batches: Sequence[MicroBatch]) -> int:
    return sum(batch.size for batch in batches)


def _begins(row: Row) -> tuple[int, ...]:
    """What comes before the first token that is predicted; it has a wanted output at its end."""
    return tuple(row.tokens[: int(row.positions[0]) + 1].tolist())


def _siblings_together(units: Sequence[Sequence[Row]]) -> list[Sequence[Row]]:
    """Units that begin alike next to each other, in the order of the first of each."""
    groups: dict[tuple[int, ...], list[Sequence[Row]]] = {}
    for unit in units:
        groups.setdefault(_begins(unit[0]), []).append(unit)
    return [unit for group in groups.values() for unit in group]


def _shared_batches(units: Sequence[Sequence[Row]], max_tokens: int) -> list[MicroBatch]:
    batches: list[MicroBatch] = []
    rows: list[Row] = []
    begins: set[tuple[int, ...]] = set()
    longest = width = 0  # of what is shared, of what follows
    for unit in units:
        new = [_begins(row) for row in unit]
        more, first = begins.union(new), max(longest, *map(len, new))
        follows = max(width, *(len(row.tokens) - len(begin) for row, begin in zip(unit, new, strict=True)))
        if rows and _shared_size(len(more), first, len(rows) + len(unit), follows) > max_tokens:
            batches.append(_share(rows))
            rows, more, first = [], set(new), max(map(len, new))
            follows = max(len(row.tokens) - len(begin) for row, begin in zip(unit, new, strict=True))
        rows.extend(unit)
        begins, longest, width = more, first, follows
    if rows:
        batches.append(_share(rows))
    return batches


def _shared_size(begins: int, longest: int, rows: int, follows: int) -> int:
    """What counts for the budget: positions that are computed, or, if more, a part of those that are attended to.

    Each row has keys and values of its own of all its positions in every layer, the shared ones included. They are an
    eighth or less of what a position that is computed leaves behind for the backward pass.
    """
    attended = rows * (longest + follows)
    if not follows:
        return attended  # nothing is shared then
    return max(begins * longest + rows * follows, -(-attended // 8))


def _share(rows: Sequence[Row]) -> MicroBatch:
    begins = [_begins(row) for row in rows]
    numbers = {begin: number for number, begin in enumerate(dict.fromkeys(begins))}
    width = max(len(row.tokens) - len(begin) for row, begin in zip(rows, begins, strict=True))
    if len(numbers) == len(rows) or not width:
        return _pad(rows)  # nothing is shared, or nothing follows
    lengths = np.array([len(begin) for begin in numbers], np.int64)
    first = np.zeros((len(numbers), int(lengths.max())), np.int64)
    for line, begin in zip(first, numbers, strict=True):
        line[: len(begin)] = begin
    input_ids = np.zeros((len(rows), width), np.int64)
    positions = []
    for number, (row, begin) in enumerate(zip(rows, begins, strict=True)):
        input_ids[number, : len(row.tokens) - len(begin)] = row.tokens[len(begin) :]
        here = first.size + number * width + row.positions - len(begin)
        here[0] = numbers[begin] * first.shape[1] + len(begin) - 1
        positions.append(here)
    apart = _pad(rows)
    return MicroBatch(
        input_ids,
        np.concatenate(positions),
        apart.targets,
        apart.index,
        num_tokens=apart.num_tokens,
        squares=apart.squares,
        shared=Shared(first, lengths, np.array([numbers[begin] for begin in begins], np.int64)),
        repeated=sum(map(len, begins)) - int(lengths.sum()),
    )


def balance(costs: ArrayLike, ranks: int) -> list[list[int]]:
    """Share items out so that the largest share is small: the costliest first, each to the least loaded rank.

    This greedy rule (longest processing time first) is within 4/3 of the best possible (R. Graham, 1969). Equal inputs
    give equal shares, so every rank can compute all shares by itself.

    Args:
        costs: ``[n]``, at least 0.
        ranks: How many shares.

    Returns:
        For each rank the indices of its items, in increasing order.
    """
    costs = np.asarray(costs, np.float64)
    loads = np.zeros(ranks)
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for item in np.argsort(-costs, kind="stable"):
        rank = int(np.argmin(loads))
        loads[rank] += costs[item]
        shares[rank].append(int(item))
    return [sorted(share) for share in shares]
