"""From a micro-batch to what this rank's model is given: whole rows, packed rows, or its piece of every row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from trainers.learner.attention import Tree, gather_tokens
from trainers.learner.packing import Ints, MicroBatch


@dataclass(frozen=True)
class Inputs:
    """What a model is given, and how its outputs become those of the micro-batch.

    Args:
        input_ids: int64 ``[B, l]``; this and the next three as of :class:`trainers.learner.packing.MicroBatch`.
        positions: int64 ``[m]``.
        targets: int64 ``[m]``.
        index: int64 ``[m]``.
        attention: More arguments of the backbone: position ids, what attends to what, who shares a sequence.
        places: int64 ``[m]``; which of the micro-batch's ``total`` wanted positions these are; ``None`` for all.
        total: Wanted positions of the micro-batch.
        group: The ranks that have the other pieces.
    """

    input_ids: Tensor
    positions: Ints
    targets: Ints
    index: Ints
    attention: dict[str, Any]
    places: Tensor | None = None
    total: int = 0
    group: dist.ProcessGroup | None = None

    def join(self, outputs: Tensor) -> Tensor:
        """``[total]``: the numbers of all wanted positions, from this rank's ``[m]``; differentiable."""
        if self.places is None or self.group is None:
            return outputs
        return gather_tokens(outputs, self.places, self.total, self.group)


def inputs_of(
    batch: MicroBatch, device: torch.device, sequence: DeviceMesh | None = None, *, varlen: bool = False
) -> Inputs:
    """What this rank's model is given of a micro-batch.

    Args:
        batch: Padded, packed or trees.
        device: Where the tensors go.
        sequence: The ranks that share every sequence, if they do.
        varlen: Where packed sequences start is told by ``cu_seq_lens``, as kernels take it; otherwise they are trees.
    """

    def tensor(array: Any) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

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
        return Inputs(tensor(input_ids), positions, batch.targets, batch.index, attention)

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
        group=sequence.get_group(),
    )
