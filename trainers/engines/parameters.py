"""A model's weights as inference servers name and hold them: what is checked before an update, and checksums after it.

Servers do not check: SGLang ignores an unknown name with a success, and dies of a wrong shape. Checksums are one for
each parameter and tensor-parallel rank: vLLM and SGLang name, fuse, pad and divide parameters in the same way. vLLM's
worker imports this too, so it needs nothing but PyTorch.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from trainers.engines.weights import TensorSpec, check_names, check_weights

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
#: How the servers' models fuse parameters of the checkpoint, in rows, in this order.
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_PART_OF = {part: (whole, number) for whole, parts in FUSED.items() for number, part in enumerate(parts)}
_SPLIT_BY_COLUMNS = ("o_proj.weight", "down_proj.weight")
_VOCAB_MULTIPLE = 64  # to which servers pad the rows of these two with zeros, before ranks share them
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_AT_ONCE = 2**20  # numbers; their sum is taken as int64, which is a copy

#: By the server's names: a parameter's checksum on each rank.
Sums = dict[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Parameters:
    """Names and shapes of a model's parameters, as they stand in its checkpoint."""

    shapes: Mapping[str, torch.Size]  #: by name
    tied: bool  #: whether the output layer is the embedding
    kv_heads: int  #: key and value heads of a layer

    def check(self, weights: Mapping[str, Tensor] | Sequence[TensorSpec]) -> None:
        """Refuse weights that are not exactly this model's: see :func:`trainers.engines.weights.check_weights`."""
        shapes, tied = dict(self.shapes), {HEAD: EMBEDDING} if self.tied else {}
        shapes |= {name: shapes[other] for name, other in tied.items()}
        if isinstance(weights, Mapping):
            check_weights(weights, shapes, tied)
        else:
            check_names({spec.names[0]: torch.Size(spec.shape) for spec in weights}, shapes, tied)


def read_parameters(folder: Path, *, tied: bool, kv_heads: int) -> Parameters:
    """Names and shapes from the headers of a folder's safetensors files; ``ValueError`` without whole ones."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} has no *.safetensors, from which names and shapes of the weights could be read")
    shapes: dict[str, torch.Size] = {}
    for file in files:
        try:
            with file.open("rb") as stream:
                (size,) = struct.unpack("<Q", stream.read(8))
                header = json.loads(stream.read(size))
            shapes |= {name: torch.Size(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
        except (struct.error, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file} is no safetensors file: {error}") from error
    if tied:
        shapes.pop(HEAD, None)
    return Parameters(shapes, tied, kv_heads)


@dataclass(frozen=True)
class ChecksumRule:
    """How a server's checksums come about."""

    #: ``bits``: the sum of the bit patterns of all numbers, modulo 2^64, which no padding and no fusion changes;
    #: ``sha256``: the first 64 bits of the SHA-256 of the bytes
    kind: Literal["bits", "sha256"] = "bits"
    ranks: int = 1  #: tensor-parallel ranks
    kv_heads: int = 1  #: key and value heads of a layer


class Checksums:
    """The checksums that a server must have, by its ``rule``, of weights that come one after another."""

    def __init__(self, rule: ChecksumRule) -> None:
        self._rule = rule
        self._bits: dict[str, list[int]] = {}
        self._hashes: dict[str, list[Any]] = {}
        self._early: dict[str, dict[int, list[list[Tensor | bytes]]]] = {}  # parts whose predecessors did not come yet
        self._next: dict[str, int] = {}

    def add(self, name: str, value: Tensor) -> None:
        """Count in a tensor, by its name in the checkpoint."""
        held, number, parts = self._held(name, value)
        if self._rule.kind == "bits":
            sums = self._bits.setdefault(held, [0] * self._rule.ranks)
            for rank, part in enumerate(parts):
                sums[rank] = (sums[rank] + sum(bits(each) for each in part if isinstance(each, Tensor))) % 2**64
            return
        self._hashes.setdefault(held, [hashlib.sha256() for _ in parts])
        early = self._early.setdefault(held, {})
        early[number] = parts
        while (ready := early.pop(self._next.get(held, 0), None)) is not None:
            self._hash(held, ready)
            self._next[held] = self._next.get(held, 0) + 1

    def result(self) -> Sums:
        """By the server's names, on each rank."""
        for held, early in self._early.items():
            for number in sorted(early):
                self._hash(held, early.pop(number))
        found = self._bits or {
            held: [each.digest()[:8].hex() for each in hashes] for held, hashes in self._hashes.items()
        }
        return {held: tuple(sums) for held, sums in found.items()}

    def _hash(self, held: str, parts: list[list[Tensor | bytes]]) -> None:
        for digest, part in zip(self._hashes[held], parts, strict=True):
            for each in part:
                raw = each if isinstance(each, bytes) else each.contiguous().reshape(-1).view(torch.uint8).numpy().data
                digest.update(raw)

    def _held(self, name: str, value: Tensor) -> tuple[str, int, list[list[Tensor | bytes]]]:
        """The server's name, which part of that it is, and what each rank holds; bytes are padding."""
        ranks, value = self._rule.ranks, value.detach().cpu()
        module, _, leaf = name.rpartition(".")
        parent, _, last = module.rpartition(".")
        if name in (HEAD, EMBEDDING):
            rows = -(-len(value) // _VOCAB_MULTIPLE) * _VOCAB_MULTIPLE // ranks
            cuts = [value[rank * rows : (rank + 1) * rows] for rank in range(ranks)]
            row = value[:1].nbytes
            return name, 0, [[cut, bytes(row * (rows - len(cut)))] for cut in cuts]
        if last in _PART_OF:
            whole, number = _PART_OF[last]
            if whole == "qkv_proj" and number and self._rule.kv_heads < ranks:  # several ranks share a head
                heads = value.chunk(self._rule.kv_heads)
                parts = [[head] for head in heads for _ in range(ranks // self._rule.kv_heads)]
            else:
                parts = [[each] for each in value.chunk(ranks)]
            return f"{parent}.{whole}.{leaf}", number, parts  # type: ignore[return-value]
        if name.endswith(_SPLIT_BY_COLUMNS):
            return name, 0, [[each] for each in value.chunk(ranks, dim=1)]
        return name, 0, [[value]] * ranks


def bits(tensor: Tensor) -> int:
    """The sum of the bit patterns of all numbers, modulo 2^64; of a tensor of 8 to 64 bits a number."""
    found = tensor.detach().contiguous().view(-1).view(_BITS[tensor.element_size()])
    return sum(int(part.sum(dtype=torch.int64)) for part in found.split(_AT_ONCE)) % 2**64


def differing(wanted: Sums, found: Sums) -> list[str]:
    """The parameters whose sums of bits differ, in order.

    What one side alone names (experts, which vLLM fuses in a way of its own) is compared by the sum of all of it, where
    there is one worker.
    """
    wrong = sorted(name for name in wanted.keys() & found.keys() if wanted[name] != found[name])
    alone = [
        {name: sums for name, sums in these.items() if name not in others}
        for these, others in ((wanted, found), (found, wanted))
    ]
    one = all(len(sums) == 1 for sums in wanted.values())
    if not wrong and one and len({sum(sums[0] for sums in these.values()) % 2**64 for these in alone}) > 1:
        return sorted(alone[0]) or sorted(alone[1])
    return wrong
