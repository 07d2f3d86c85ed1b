"""A safetensors file that is written tensor by tensor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64"}


class SafetensorsFile:
    """A file that is written tensor by tensor; a context manager. The library itself writes what it has in memory.

    It is 8 bytes with the length of a JSON header, the header, and the numbers
    (https://huggingface.co/docs/safetensors). ``tensors`` are type and shape of what will come, by name, in order.
    """

    def __init__(self, path: Path, tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> None:
        self._path, self._expected = path, iter(tensors.items())
        self._header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, (dtype, shape) in tensors.items():
            begin, end = end, end + dtype.itemsize * torch.Size(shape).numel()
            self._header[name] = {"dtype": _DTYPES[dtype], "shape": list(shape), "data_offsets": [begin, end]}

    def __enter__(self) -> Self:
        text = json.dumps(self._header).encode()
        text += b" " * (-len(text) % 8)  # numbers begin at a multiple of 8
        self._file = self._path.open("wb")
        self._file.write(len(text).to_bytes(8, "little") + text)
        return self

    def write(self, name: str, value: Tensor) -> None:
        """Write the next tensor. Raises ``ValueError``: it is not the announced one."""
        expected, (dtype, shape) = next(self._expected)
        if (name, value.dtype, tuple(value.shape)) != (expected, dtype, tuple(shape)):
            raise ValueError(
                f"{self._path}: {name}, {value.dtype} {tuple(value.shape)}, came in the place of {expected}, {dtype} "
                f"{tuple(shape)}"
            )
        self._file.write(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)

    def __exit__(self, *error: object) -> None:
        self._file.close()
