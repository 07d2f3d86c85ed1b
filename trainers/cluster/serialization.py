"""Objects as bytes beside buffers, so that what is large is written once, however many processes read it.

Pickle's protocol 5 keeps large buffers out of the pickle; tensors are taught to do the same. Ray's object store takes
these parts as they are.

Tensors arrive on the CPU, wherever they were, and contiguous. Tensors that are the same object stay the same.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

_IN_PICKLE = 1024  # a buffer below this many bytes is not worth a place of its own

Bytes = NDArray[np.uint8]


class Parcel(NamedTuple):
    """A pickle, and the buffers that it refers to, uint8 ``[n]`` each."""

    head: bytes
    buffers: Sequence[Bytes]

    @property
    def size(self) -> int:
        """Bytes, all in all."""
        return len(self.head) + sum(buffer.nbytes for buffer in self.buffers)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if type(value) not in (Tensor, nn.Parameter) or value.layout != torch.strided or value.is_quantized:
            return NotImplemented
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        needs = value.requires_grad
        return _tensor, (pickle.PickleBuffer(raw), value.dtype, tuple(value.shape), type(value) is nn.Parameter, needs)


def _tensor(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...], parameter: bool, needs_grad: bool) -> Tensor:
    raw = np.frombuffer(buffer, np.uint8)
    if not raw.flags.writeable:  # Ray's store: it is others' memory as well
        raw = raw.copy()
    tensor = torch.from_numpy(raw).view(dtype).reshape(shape)
    return nn.Parameter(tensor, requires_grad=needs_grad) if parameter else tensor.requires_grad_(needs_grad)


def pack(value: Any) -> Parcel:
    """Take an object apart; its large arrays and tensors are not copied, so they must stay as they are meanwhile.

    Raises:
        ValueError: A part of it cannot be pickled, for example a function that was defined inside another one.
    """
    buffers: list[Bytes] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _IN_PICKLE:
            return True  # into the pickle
        buffers.append(np.frombuffer(raw, np.uint8))
        return False

    head = io.BytesIO()
    try:
        _Pickler(head, protocol=5, buffer_callback=keep).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"this cannot be sent to another process: {error}; functions must be importable by name, and classes too"
        ) from error
    return Parcel(head.getvalue(), buffers)


def unpack(parcel: Parcel) -> Any:
    """The object again. Arrays lie in the parcel's buffers, and are read-only where those are."""
    return pickle.loads(parcel.head, buffers=parcel.buffers)
