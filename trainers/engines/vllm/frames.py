"""What the two sides of the socket say to each other: frames of a JSON header and raw arrays.

A frame is two lengths (big-endian, 32 bits: header, arrays), the header, the arrays one after another. The header's
``arrays`` names each one with its type and length; an array is flat. So numbers arrive bit by bit as they were sent.

Both sides import this, so it needs nothing but NumPy.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LENGTHS = struct.Struct(">II")
MOST_BYTES = 1 << 30  #: a longer frame is not one of ours


class FrameError(RuntimeError):
    """The other side does not speak this protocol."""


@dataclass(frozen=True)
class Frame:
    """One message.

    Args:
        header: JSON values; ``op`` says what it is about.
        arrays: Flat arrays by name.
    """

    header: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The bytes on the wire."""
        shapes = [(name, array.dtype.str, len(array)) for name, array in self.arrays.items()]
        header = json.dumps({**self.header, "arrays": shapes}, separators=(",", ":")).encode()
        body = b"".join(np.ascontiguousarray(array).tobytes() for array in self.arrays.values())
        return _LENGTHS.pack(len(header), len(body)) + header + body


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """The next frame, or ``None`` where the other side has closed the connection.

    Raises:
        FrameError: What came is no frame.
    """
    try:
        lengths = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
        if max(lengths) > MOST_BYTES:
            raise FrameError(f"a frame of {max(lengths)} bytes; something else than an engine is at the other end")
        header = json.loads(await reader.readexactly(lengths[0]))
        body = await reader.readexactly(lengths[1])
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except ValueError as error:
        raise FrameError(f"a frame without a JSON header: {error}") from error
    arrays, at = {}, 0
    for name, kind, length in header.pop("arrays", ()):
        dtype = np.dtype(kind)
        arrays[name] = np.frombuffer(body, dtype, length, at)
        at += length * dtype.itemsize
    return Frame(header, arrays)
