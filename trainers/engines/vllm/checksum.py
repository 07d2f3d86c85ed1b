"""A checksum of weights that survives how an engine stores them.

vLLM keeps the matrices of queries, keys and values as one, pads the vocabulary with zeros, and keeps one copy of what
is tied. A sum over the bit patterns of all numbers does not change by that, and costs one pass at memory speed. Sums
are taken for each block of the model and for what stands outside the blocks, so an error says where; within a block,
two matrices that changed places would not be noticed, stale or mixed weights are.

Both sides import this, so it needs nothing but PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


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
        bits = tensor.detach().contiguous().view(-1).view(_BITS[tensor.element_size()])
        sums[block(name)] = (sums.get(block(name), 0) + int(bits.sum(dtype=torch.int64))) % 2**64
        yield name, tensor


def block(name: str) -> str:
    """The part of a parameter's name up to its first number: ``model.layers.3`` of its layer 3."""
    parts = name.split(".")
    return next((".".join(parts[: at + 1]) for at, part in enumerate(parts) if part.isdigit()), "")


def differing(wanted: Mapping[str, int], found: Mapping[str, int]) -> list[str]:
    """The blocks whose sums differ, in words, in order."""
    names = sorted(wanted.keys() | found.keys())
    return [name or "outside the blocks" for name in names if wanted.get(name, 0) != found.get(name, 0)]
