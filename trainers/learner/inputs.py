"""Inputs of the models for a micro-batch, and the numbers of its action tokens.

This rank's model gets whole rows, packed rows, or its piece of every row. Numbers of action tokens are one flat array
for the models, and one array a trajectory outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from trainers.learner.attention import Tree, gather_tokens
from trainers.learner.logprobs import Support
from trainers.learner.packing import Ints, MicroBatch
from trainers.learner.transfer import to_device
from trainers.trajectory import Trajectory

Floats = NDArray[np.float32]
#: Numbers of each action token, in time (:attr:`Trajectory.actions`): one array a trajectory, or all of them in one, in
#: the order of the trajectories.
PerToken = Sequence[NDArray[np.floating]] | NDArray[np.floating]


@dataclass(frozen=True)
class Inputs:
    """Inputs of a model, and the places of its outputs in the micro-batch."""

    input_ids: Tensor  #: int64 ``[B, l]``; this and the next three as of :class:`trainers.learner.packing.MicroBatch`
    positions: Ints  #: int64 ``[m]``
    targets: Ints  #: int64 ``[m]``
    index: Ints  #: int64 ``[m]``
    #: Further arguments of the backbone: position ids, what attends to what, who shares a sequence.
    attention: dict[str, Any]
    #: int64 ``[m]``; which of the micro-batch's ``total`` requested positions these are; ``None`` for all.
    places: Tensor | None = None
    total: int = 0  #: requested positions of the micro-batch
    observed: int = 0  #: how many of the ``m`` positions, the last ones, are of observation tokens
    group: dist.ProcessGroup | None = None  #: the ranks that have the other pieces

    def join(self, outputs: Tensor) -> Tensor:
        """Return the numbers of all requested positions ``[total]``, from this rank's ``[m]``; differentiable.

        Also of rows of numbers, ``[a, k]``, of the ``a`` first ones of the ``m``: of action tokens alone.
        """
        if self.places is None or self.group is None:
            return outputs
        return gather_tokens(outputs, self.places[: len(outputs)], self.total, self.group)


def inputs_of(
    batch: MicroBatch, device: torch.device, sequence: DeviceMesh | None = None, *, varlen: bool = False
) -> Inputs:
    """Return this rank's inputs for a micro-batch; the ranks of ``sequence`` share every sequence.

    With ``varlen``, ``cu_seq_lens`` says where packed sequences start, as kernels take it; otherwise they are
    trees.
    """

    def tensor(array: NDArray[Any]) -> Tensor:
        return to_device(array, device)

    input_ids, positions = batch.input_ids, batch.positions
    rows, width = input_ids.shape
    ids = None  # position ids; None counts from the start of every row
    attention: dict[str, Any] = {}
    pieces = 1 if sequence is None else sequence.size()
    padding = -width % pieces
    if (forest := batch.forest) is not None:
        ids = forest.depths[None]
        if varlen and forest.flat:
            lengths = np.array([len(path) for path, _ in forest.branches])
            lengths[-1] += padding  # behind the last sequence, which does not see it
            starts = tensor(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
            longest = int(lengths.max())
            attention |= {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts}
            attention |= {"max_length_q": longest, "max_length_k": longest}
        else:
            attention["tree"] = Tree(forest, width + padding, device)
    if sequence is None:
        if ids is not None:
            attention["position_ids"] = tensor(ids)
        return Inputs(tensor(input_ids), positions, batch.targets, batch.index, attention, observed=batch.observed)

    length = (width + padding) // pieces
    piece = sequence.get_local_rank()
    part = slice(piece * length, (piece + 1) * length)
    ids = np.arange(width)[None] if ids is None else ids
    input_ids, ids = (np.pad(array, ((0, 0), (0, padding)))[:, part] for array in (input_ids, ids))
    row, column = np.divmod(positions, width)
    places = np.flatnonzero(column // length == piece)
    attention |= {"position_ids": tensor(ids), "sequence_group": sequence.get_group()}
    return Inputs(
        tensor(input_ids),
        (row * length + column % length)[places],
        batch.targets[places],
        batch.index[places],
        attention,
        places=tensor(places),
        total=len(positions),
        observed=int((places >= len(positions) - batch.observed).sum()),
        group=sequence.get_group(),
    )


def split(flat: Floats, offsets: NDArray[np.int64]) -> list[Floats]:
    """Split into one array a trajectory; ``offsets``, ``[E + 1]``, are where each begins."""
    return [flat[start:end].copy() for start, end in zip(offsets[:-1], offsets[1:], strict=True)]


class SamplingMasks:
    """The sampling masks of some trajectories: the tokens that cuts left, by action token."""

    def __init__(self, trajectories: Sequence[Trajectory]) -> None:
        nothing = np.zeros(0, np.int64)
        counts, starts, size = [nothing], [nothing], 0
        for t in trajectories:
            of_token = t.kept_counts.astype(np.int64) if len(t.kept_counts) else np.zeros(len(t.token_ids), np.int64)
            counts.append(of_token[t.actions])
            starts.append((size + np.cumsum(of_token) - of_token)[t.actions])
            size += len(t.kept_ids)
        self._counts, self._starts = np.concatenate(counts), np.concatenate(starts)
        self._ids = np.concatenate([nothing, *(t.kept_ids for t in trajectories)]).astype(np.int64)

    def distinct(
        self, positions: Ints, targets: Ints, index: Ints, top: NDArray[np.int32] | None = None
    ) -> tuple[Ints, Ints]:
        """Group action tokens that are the same token, drawn from the same distribution.

        All are int64 ``[n]``: ``positions`` of the hidden states that predict them, ``targets``, and ``index``, their
        flat indices. Where there is ``top`` ``[N, k]``, the rows of those of a group are the same, too. Returns int64
        ``[m]``, the first of each kind, and int64 ``[n]``, the kind of each.
        """
        keys = _keys(positions, targets)
        if top is not None:
            _, rows = np.unique(top[index], axis=0, return_inverse=True)
            keys = np.unique(keys, return_inverse=True)[1] * (len(index) + 1) + rows.ravel()
        if self._counts[index].any():
            numbers: dict[bytes, int] = {}
            sets = [self._ids[start : start + count].tobytes() for start, count in
                    zip(self._starts[index], self._counts[index], strict=True)]  # fmt: skip
            keys = keys * (len(index) + 1) + np.array(
                [numbers.setdefault(token_set, len(numbers)) for token_set in sets]
            )
        _, first, kinds = np.unique(keys, return_index=True, return_inverse=True)
        return first, kinds

    def of(self, index: Ints, device: torch.device) -> Support | None:
        """Return the masks of action tokens, by flat index; ``None`` where all were drawn from the full vocabulary."""
        counts = self._counts[index]
        if not counts.any():
            return None
        places = np.arange(counts.sum()) + np.repeat(self._starts[index] - (np.cumsum(counts) - counts), counts)
        return Support(to_device(self._ids[places], device), counts)


def distinct_targets(positions: Ints, targets: Ints) -> tuple[Ints, Ints]:
    """Group tokens of full distributions as :meth:`SamplingMasks.distinct` does."""
    _, first, kinds = np.unique(_keys(positions, targets), return_index=True, return_inverse=True)
    return first, kinds


def _keys(positions: Ints, targets: Ints) -> Ints:
    """Return a number for each pair."""
    return positions * (int(targets.max(initial=0)) + 1) + targets


class Sums:
    """Sums of named numbers over micro-batches: those of the device stay there until all are read at once."""

    def __init__(self) -> None:
        self._here: dict[str, float] = {}
        self._there: dict[str, Tensor] = {}

    def add(self, numbers: Mapping[str, Tensor | float]) -> None:
        """Add numbers, or tensors of one number; nothing waits for them."""
        for name, value in numbers.items():
            if isinstance(value, Tensor):
                number = value.detach().double().reshape(())
                self._there[name] = self._there[name] + number if name in self._there else number
            else:
                self._here[name] = self._here.get(name, 0.0) + float(value)

    def read(self) -> dict[str, float]:
        """Return all sums, by name."""
        values = torch.stack(list(self._there.values())).tolist() if self._there else []
        sums = dict(zip(self._there, values, strict=True))
        return {name: sums.get(name, 0.0) + self._here.get(name, 0.0) for name in (*sums, *self._here)}


def column(
    name: str, values: PerToken, offsets: NDArray[np.int64], device: torch.device, kind: str = "action"
) -> Tensor:
    """Return all numbers of tokens of a ``kind``, float32 ``[N]``, on a device, checked against the trajectories."""
    if isinstance(values, np.ndarray) and values.dtype != object and values.ndim == 1:
        if values.size != offsets[-1]:
            raise ValueError(f"per_token[{name!r}] has {values.size} numbers for {offsets[-1]} {kind} tokens")
        flat = values
    else:
        lengths, expected = [len(part) for part in values], np.diff(offsets).tolist()
        if lengths != expected:
            number = next(
                (i for i, pair in enumerate(zip(lengths, expected, strict=False)) if pair[0] != pair[1]), None
            )
            where = "" if number is None else f"; trajectory {number} has {expected[number]} {kind} tokens"
            raise ValueError(
                f"per_token[{name!r}] does not fit the {len(expected)} trajectories: lengths {lengths}{where}"
            )
        flat = np.concatenate(values)
    flat = np.array(flat, np.float32)  # a copy: torch takes no read-only arrays
    if not np.isfinite(flat).all():
        token = int(np.flatnonzero(~np.isfinite(flat))[0])
        number = int(np.searchsorted(offsets, token, side="right")) - 1
        raise ValueError(
            f"per_token[{name!r}] is {flat[token]} at {kind} token {token - offsets[number]} of trajectory {number}"
        )
    return to_device(flat, device)


def some_names(trajectories: Sequence[Trajectory]) -> str:
    """Name some of the trajectories, for an error."""
    names = [trajectory.episode_id or "?" for trajectory in trajectories[:5]]
    return ", ".join(names) + (", ..." if len(trajectories) > 5 else "")
