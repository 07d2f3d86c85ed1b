"""A checksum of weights that survives how an engine stores them.

vLLM keeps the matrices of queries, keys and values as one, pads the vocabulary with zeros, and keeps one copy of what
is tied. A sum over the bit patterns of all numbers does not change by that, and costs one pass at memory speed. Stale
or mixed weights are noticed; numbers that changed places within a sum are not.

Both sides import this, so it needs nothing but PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(parts: Iterable[Tensor]) -> int:
    """The sum of the bit patterns of all numbers, modulo 2^64; tensors of 8 to 64 bits."""
    return sum(_sum(part) for part in parts) % 2**64


def _sum(tensor: Tensor) -> int:
    bits = tensor.detach().contiguous().view(-1).view(_BITS[tensor.element_size()])
    return int(bits.sum(dtype=torch.int64))


def checksums(weights: Iterable[tuple[str, Tensor]]) -> dict[str, int]:
    """The sum of the bit patterns, modulo 2^64, by block (``model.layers.3``; ``""`` for what is in none).

    Args:
        weights: Names and tensors of any shape and of 8 to 64 bits; each tensor once.
    """
    sums: dict[str, int] = {}
    for _ in summed(weights, sums):
        pass
    return sums


def summed(weights: Iterable[tuple[str, Tensor]], sums: dict[str, int]) -> Iterator[tuple[str, Tensor]]:
    """Hand weights on, and add what :func:`checksums` says of those that were to ``sums``."""
    for name, tensor in weights:
        sums[block(name)] = (sums.get(block(name), 0) + _sum(tensor)) % 2**64
        yield name, tensor


def block(name: str) -> str:
    """The part of a parameter's name up to its first number: ``model.layers.3`` of its layer 3."""
    parts = name.split(".")
    return next((".".join(parts[: at + 1]) for at, part in enumerate(parts) if part.isdigit()), "")


def differing(wanted: Mapping[str, int], found: Mapping[str, int]) -> list[str]:
    """The blocks whose sums differ, in words, in order."""
    names = sorted(wanted.keys() | found.keys())
    return [name or "outside the blocks" for name in names if wanted.get(name, 0) != found.get(name, 0)]
