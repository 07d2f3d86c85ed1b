"""What every engine refuses before it takes new weights, what is said of those that will come, and a file of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64"}


class TensorSpec(NamedTuple):
    """A tensor that will come: all its names (several where it is tied), its type on the wire, its shape."""

    names: tuple[str, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Of the tensor."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


#: All names of a tensor, and the tensor.
Named = tuple[tuple[str, ...], Tensor]


def check_weights(weights: Any, shapes: Mapping[str, torch.Size], tied: Mapping[str, str]) -> None:
    """Refuse weights, in the model's own naming, that do not fit; ``tied`` names (and whose they are) may be left out.

    Raises ``ValueError``: it is no mapping of names to tensors, a name is missing or unknown, a shape differs, a value
    is not finite, or two tensors that are tied differ.
    """
    if not isinstance(weights, Mapping):
        raise ValueError(f"weights must be a mapping of parameter names to tensors, not {type(weights).__name__}")
    for name, value in weights.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{name} is a {type(value).__name__}, not a tensor; the old weights stay")
    check_names({name: value.shape for name, value in weights.items()}, shapes, tied)
    for name, value in weights.items():
        if not is_finite(value):
            raise ValueError(f"{name} holds values that are not finite; did training diverge? The old weights stay")
    for name, other in tied.items():
        if name in weights:
            one, two = weights[name], weights[other]
            if one.data_ptr() != two.data_ptr() and not torch.equal(one, two):
                raise ValueError(f"{name} differs from {other}, which it is tied to; the old weights stay")


def is_finite(value: Tensor) -> bool:
    """Whether all numbers are finite; without a temporary tensor of its size."""
    return not value.numel() or bool(torch.isfinite(torch.stack(torch.aminmax(value))).all())


def check_names(found: Mapping[str, torch.Size], shapes: Mapping[str, torch.Size], tied: Mapping[str, str]) -> None:
    """Refuse names and shapes that do not fit; see :func:`check_weights`."""
    missing, unknown = sorted(set(shapes) - set(tied) - set(found)), sorted(set(found) - set(shapes))
    if missing or unknown:
        raise ValueError(
            f"weights do not fit the model: {some('missing', missing)}{some('unknown', unknown)}"
            "give the state_dict of the same architecture, in its own naming; the old weights stay"
        )
    for name, shape in found.items():
        if shape != shapes[name]:
            raise ValueError(f"{name} has shape {tuple(shape)}, not {tuple(shapes[name])}; the old weights stay")


def tied_names(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Which names of a ``state_dict`` stand for the same tensor as an earlier one."""
    first: dict[tuple[int, torch.Size], str] = {}
    return {
        name: known
        for name, value in state.items()
        if (known := first.setdefault((value.data_ptr(), value.shape), name)) != name
    }


def some(what: str, names: Sequence[str]) -> str:
    """A list that stays short: ``"missing a, b, c and 4 more; "``, or nothing."""
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{what} {', '.join(names[:3])}{more}; "


class SafetensorsFile:
    """A file that is written tensor by tensor; a context manager. The library itself writes what it has in memory.

    It is 8 bytes with the length of a JSON header, the header, and the numbers
    (https://huggingface.co/docs/safetensors). ``tensors`` are type and shape of what will come, by name, in order.
    """

    def __init__(self, path: Path, tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> None:
        self._path, self._wanted = path, iter(tensors.items())
        self._header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, (dtype, shape) in tensors.items():
            begin, end = end, end + dtype.itemsize * torch.Size(shape).numel()
            self._header[name] = {"dtype": _DTYPES[dtype], "shape": list(shape), "data_offsets": [begin, end]}

    def __enter__(self) -> Self:
        """Write the header."""
        text = json.dumps(self._header).encode()
        text += b" " * (-len(text) % 8)  # numbers begin at a multiple of 8
        self._file = self._path.open("wb")
        self._file.write(len(text).to_bytes(8, "little") + text)
        return self

    def write(self, name: str, value: Tensor) -> None:
        """Write the next tensor. Raises ``ValueError``: it is another one than was said."""
        wanted, (dtype, shape) = next(self._wanted)
        if (name, value.dtype, tuple(value.shape)) != (wanted, dtype, tuple(shape)):
            raise ValueError(
                f"{self._path}: {name}, {value.dtype} {tuple(value.shape)}, came in the place of {wanted}, {dtype} "
                f"{tuple(shape)}"
            )
        self._file.write(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)

    def __exit__(self, *error: object) -> None:
        """Close the file."""
        self._file.close()
