"""A model's weights as SGLang takes them: checked before they are sent, cut into buckets, fingerprinted.

All is checked on this side, because the server does not: an unknown name is ignored with a success, a wrong shape kills
the server. Fingerprints are what ``/weights_checker`` answers with on the CPU (seen in 0.5.20 and 0.5.23): the first 64
bits of the SHA-256 of a parameter's bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainers.engines.weights import check_weights

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
#: How SGLang's models fuse parameters of the checkpoint, in rows, in this order.
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_VOCAB_MULTIPLE = 64  # to which SGLang fills up the rows of these two with zeros
_PART_OF = {part: whole for whole, parts in FUSED.items() for part in parts}

Bucket = list[tuple[str, Tensor]]


@dataclass(frozen=True)
class Parameters:
    """Names and shapes of a model's parameters, as they stand in its checkpoint.

    Args:
        shapes: By name.
        tied: Whether the output layer is the embedding.
    """

    shapes: Mapping[str, tuple[int, ...]]
    tied: bool

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


def read_parameters(folder: Path, *, tied: bool) -> Parameters:
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
    return Parameters(shapes, tied)


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


def payload(bucket: Bucket) -> str:
    """A bucket by value, as ``update_weights_from_tensor`` takes it: base64 of a pickle of named CPU tensors."""
    # A pickled tensor takes its whole storage along; a slice must not take what it was cut from.
    alone = [
        (name, value if value.untyped_storage().nbytes() == value.nbytes else value.clone()) for name, value in bucket
    ]
    return base64.b64encode(pickle.dumps(alone)).decode("ascii")


def fingerprints(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """What the checksums of the server's parameters must be, by the server's names.

    Args:
        weights: As :meth:`Parameters.prepare` gives them.
    """
    hashes: dict[str, Any] = {}
    for name, parts in _server_parameters(weights).items():
        digest = hashes[name] = hashlib.sha256()
        for part in parts:
            digest.update(part.reshape(-1).view(torch.uint8).numpy().data)
    return {name: f"{int.from_bytes(digest.digest()[:8], 'big'):016x}" for name, digest in hashes.items()}


def _server_parameters(weights: Mapping[str, Tensor]) -> dict[str, list[Tensor]]:
    """The parts of each parameter of the server, in order."""
    parts: dict[str, list[Tensor]] = {}
    for name, value in weights.items():
        module, _, leaf = name.rpartition(".")
        parent, _, last = module.rpartition(".")
        if name in (HEAD, EMBEDDING):
            missing = -len(value) % _VOCAB_MULTIPLE
            parts[name] = [value, value.new_zeros(missing, *value.shape[1:])]
        elif last not in _PART_OF:
            parts[name] = [value]
        else:
            whole = _PART_OF[last]
            siblings = [weights.get(f"{parent}.{sibling}.{leaf}") for sibling in FUSED[whole]]
            parts[f"{parent}.{whole}.{leaf}"] = [sibling for sibling in siblings if sibling is not None]
    return parts
