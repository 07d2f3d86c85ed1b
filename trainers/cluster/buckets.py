"""Weights in buckets: flat bytes with a table of contents, a checksum, and the name of the publication they are of.

What is tied travels once. A bucket has tensors of at most ``bucket_bytes``, or one tensor; each begins at a multiple of
64 bytes, and so does what would come behind the last, so there may be 63 bytes more. :class:`Collected` puts a
publication together again, and refuses what is damaged, of another publication, or not all there.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class WeightsError(ValueError):
    """Buckets of weights are not what was published; the message says how."""


@dataclass(frozen=True)
class Entry:
    """One tensor in a bucket.

    Args:
        names: Its names; several where parameters are tied.
        dtype: Without ``torch.``.
        shape: Its shape.
        start: First byte.
        size: Bytes.
    """

    names: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int


@dataclass(frozen=True, eq=False)
class Bucket:
    """A part of a publication.

    Args:
        publication: Of which.
        index: From 0.
        entries: What is in it.
        data: uint8 ``[n]``.
        checksum: CRC-32 of all of that.
    """

    publication: str
    index: int
    entries: tuple[Entry, ...]
    data: NDArray[np.uint8]
    checksum: int

    def computed(self) -> int:
        """The checksum as it should be."""
        return zlib.crc32(self.data.data, zlib.crc32(repr((self.publication, self.index, self.entries)).encode()))


def cut(weights: Mapping[str, Tensor], bucket_bytes: int) -> Iterator[Bucket]:
    """Cut a ``state_dict`` into buckets, which are copies; one at a time exists, unless the caller keeps them."""
    names: dict[int, list[str]] = {}
    for name, tensor in weights.items():
        names.setdefault(id(tensor), []).append(name)
    return cut_stream(((tuple(tied), weights[tied[0]]) for tied in names.values()), bucket_bytes)


def cut_stream(tensors: Iterable[tuple[tuple[str, ...], Tensor]], bucket_bytes: int) -> Iterator[Bucket]:
    """As :func:`cut`, of tensors that come one after another, each with all its names."""
    publication, index = uuid.uuid4().hex, 0
    part: list[tuple[tuple[str, ...], Tensor]] = []
    size = 0
    for given, tensor in tensors:
        if part and size + tensor.nbytes > bucket_bytes:
            yield _bucket(publication, index, part)
            part, size, index = [], 0, index + 1
        part.append((given, tensor))
        size += _aligned(tensor.nbytes)
    yield _bucket(publication, index, part)


def _bucket(publication: str, index: int, part: list[tuple[tuple[str, ...], Tensor]]) -> Bucket:
    entries, start = [], 0
    for names, tensor in part:
        dtype = str(tensor.dtype).removeprefix("torch.")
        entries.append(Entry(names, dtype, tuple(tensor.shape), start, tensor.nbytes))
        start = _aligned(start + tensor.nbytes)
    data = np.zeros(start, np.uint8)
    for entry, (_, tensor) in zip(entries, part, strict=True):
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        data[entry.start : entry.start + entry.size] = raw.numpy()
    bucket = Bucket(publication, index, tuple(entries), data, 0)
    return Bucket(publication, index, bucket.entries, data, bucket.computed())


class Collected:
    """The buckets of one publication, as they come.

    Args:
        publication: Which.
        count: Of its buckets.
    """

    def __init__(self, publication: str, count: int) -> None:
        self.publication, self.count = publication, count
        self._weights: dict[str, Tensor] = {}
        self._seen: set[int] = set()

    def add(self, bucket: Bucket) -> None:
        """Take a bucket; its bytes are not copied.

        Raises:
            WeightsError: It is damaged, of another publication, or here already.
        """
        what = f"bucket {bucket.index} of publication {bucket.publication}"
        if bucket.publication != self.publication:
            raise WeightsError(f"{what} is not of publication {self.publication}")
        if bucket.index in self._seen or not 0 <= bucket.index < self.count:
            raise WeightsError(f"{what} came twice, or there is none such: they are {self.count}")
        if bucket.computed() != bucket.checksum:
            raise WeightsError(f"{what} was damaged on its way: its checksum is wrong")
        for entry in bucket.entries:
            dtype = getattr(torch, entry.dtype)
            tensor = torch.empty(entry.shape, dtype=dtype)
            if entry.size:
                raw = torch.from_numpy(bucket.data[entry.start : entry.start + entry.size])
                tensor = raw.view(dtype).reshape(entry.shape)
            self._weights |= dict.fromkeys(entry.names, tensor)
        self._seen.add(bucket.index)

    def weights(self) -> dict[str, Tensor]:
        """All tensors by name; tied ones are the same.

        Raises:
            WeightsError: A bucket is missing.
        """
        if missing := sorted(set(range(self.count)) - self._seen):
            raise WeightsError(f"of publication {self.publication}, buckets {missing} of {self.count} did not come")
        return self._weights


def _aligned(size: int) -> int:
    return -(-size // 64) * 64
