"""The part of a tensor that this rank has."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor

Box = tuple[slice, ...]  #: a part of a tensor, along each of its dimensions


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, sharded or not; the memory is the tensor's own."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def box_of(tensor: Tensor) -> Box:
    """Return the box of the whole tensor that this rank has."""
    if not isinstance(tensor, DTensor):
        return tuple(slice(0, size) for size in tensor.shape)
    chunk = tensor.__create_chunk_list__()[0]
    return tuple(slice(begin, begin + size) for begin, size in zip(chunk.offsets, chunk.sizes, strict=True))
