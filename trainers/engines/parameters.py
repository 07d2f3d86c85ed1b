"""A model's weights as inference servers take them: checked, cut into buckets, and their checksums.

All is checked on this side, because servers do not: SGLang ignores an unknown name with a success, and dies of a wrong
shape. Checksums are one for each parameter and each tensor-parallel rank, which holds a part of it: vLLM and SGLang
name, fuse, pad and divide parameters in the same way.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainers.engines.weights import check_weights

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
#: How the servers' models fuse parameters of the checkpoint, in rows, in this order.
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_PART_OF = {part: whole for whole, parts in FUSED.items() for part in parts}
_SPLIT_BY_COLUMNS = ("o_proj.weight", "down_proj.weight")
_VOCAB_MULTIPLE = 64  # to which servers pad the rows of these two with zeros, before ranks share them

Bucket = list[tuple[str, Tensor]]


@dataclass(frozen=True)
class Parameters:
    """Names and shapes of a model's parameters, as they stand in its checkpoint.

    Args:
        shapes: By name.
        tied: Whether the output layer is the embedding.
        kv_heads: Key and value heads of a layer.
    """

    shapes: Mapping[str, tuple[int, ...]]
    tied: bool
    kv_heads: int

    def check(self, weights: Any) -> None:
        """Refuse weights that are not exactly this model's.

        Raises:
            ValueError: See :func:`trainers.engines.weights.check_weights`.
        """
        shapes = {name: torch.Size(shape) for name, shape in self.shapes.items()}
        if self.tied:
            shapes[HEAD] = shapes[EMBEDDING]
        check_weights(weights, shapes, {HEAD: EMBEDDING} if self.tied else {})

    def prepare(self, weights: Mapping[str, Tensor], dtype: torch.dtype | None) -> dict[str, Tensor]:
        """Checked weights as the server is to have them: on the CPU, in its type, each one once and by itself."""
        return {
            name: value.detach().to("cpu", dtype or value.dtype).contiguous()
            for name, value in weights.items()
            if not (self.tied and name == HEAD)
        }

    def checksums(
        self, prepared: Mapping[str, Tensor], ranks: int, checksum: Callable[[Iterator[Tensor]], Any]
    ) -> dict[str, tuple[Any, ...]]:
        """What a server must have: a checksum a rank, by the server's names.

        Args:
            prepared: Of :meth:`prepare`.
            ranks: Tensor-parallel ranks of the server.
            checksum: Of the tensors that a parameter of one rank is fused of.
        """
        return {
            name: tuple(checksum(part[rank] for part in parts) for rank in range(ranks))
            for name, parts in self._sharded(prepared, ranks).items()
        }

    def _sharded(self, prepared: Mapping[str, Tensor], ranks: int) -> dict[str, list[list[Tensor]]]:
        """By the server's names: the parts that a parameter is fused of, and of each what every rank holds."""
        found: dict[str, list[list[Tensor]]] = {}
        for name, value in prepared.items():
            module, _, leaf = name.rpartition(".")
            parent, _, last = module.rpartition(".")
            if name in (HEAD, EMBEDDING):
                missing = -len(value) % _VOCAB_MULTIPLE
                found[name] = [list(torch.cat([value, value.new_zeros(missing, *value.shape[1:])]).chunk(ranks))]
            elif last in _PART_OF:
                whole = _PART_OF[last]
                siblings = {each: prepared.get(f"{parent}.{each}.{leaf}") for each in FUSED[whole]}
                found[f"{parent}.{whole}.{leaf}"] = [
                    self._rows(each, part, ranks) for each, part in siblings.items() if part is not None
                ]
            elif name.endswith(_SPLIT_BY_COLUMNS):
                found[name] = [list(value.chunk(ranks, dim=1))]
            else:
                found[name] = [[value] * ranks]
        return found

    def _rows(self, name: str, value: Tensor, ranks: int) -> list[Tensor]:
        if name in ("k_proj", "v_proj") and self.kv_heads < ranks:  # several ranks share a head
            return [head for head in value.chunk(self.kv_heads) for _ in range(ranks // self.kv_heads)]
        return list(value.chunk(ranks))


def read_parameters(folder: Path, *, tied: bool, kv_heads: int) -> Parameters:
    """Names and shapes from the headers of a folder's safetensors files; no tensor is read.

    Raises:
        ValueError: There is no such file, or one that is damaged.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} has no *.safetensors, from which names and shapes of the weights could be read")
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        try:
            with file.open("rb") as stream:
                (size,) = struct.unpack("<Q", stream.read(8))
                header = json.loads(stream.read(size))
            shapes |= {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
        except (struct.error, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file} is no safetensors file: {error}") from error
    if tied:
        shapes.pop(HEAD, None)
    return Parameters(shapes, tied, kv_heads)


def buckets(weights: Mapping[str, Tensor], max_bytes: int) -> Iterator[Bucket]:
    """Cut into lists of at most ``max_bytes``; a larger tensor is a bucket of its own."""
    bucket: Bucket = []
    size = 0
    for name, value in weights.items():
        if bucket and size + value.nbytes > max_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, value))
        size += value.nbytes
    if bucket:
        yield bucket
