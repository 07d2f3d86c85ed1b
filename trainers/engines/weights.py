"""Weights for engines: validation, checksums of servers' parameters, adapters, and a safetensors file.

Servers do not check: SGLang ignores an unknown name with a success, and dies of a wrong shape. Checksums are one for
each parameter and tensor-parallel rank: vLLM and SGLang name, fuse, pad and divide parameters in the same way. Of a
LoRA run an engine gets the base once, then adapters alone, and merges them with the learner's own function
(:func:`merge`; arXiv 2106.09685): on the same kind of device the numbers are the same to the last bit. vLLM's worker
imports this too, so it needs nothing but PyTorch.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor


class TensorSpec(NamedTuple):
    """A tensor that will come: all its names (several where it is tied), its type on the wire, its shape."""

    names: tuple[str, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
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
    """Return whether all numbers are finite; without a temporary tensor of its size."""
    return not value.numel() or bool(torch.isfinite(torch.stack(torch.aminmax(value))).all())


def check_names(actual: Mapping[str, torch.Size], shapes: Mapping[str, torch.Size], tied: Mapping[str, str]) -> None:
    """Refuse names and shapes that do not fit; see :func:`check_weights`."""
    missing, unknown = sorted(set(shapes) - set(tied) - set(actual)), sorted(set(actual) - set(shapes))
    kinds = [f"{kind} {listed(names)}; " for kind, names in (("missing", missing), ("unknown", unknown)) if names]
    if kinds:
        raise ValueError(
            f"weights do not fit the model: {''.join(kinds)}"
            "give the state_dict of the same architecture, in its own naming; the old weights stay"
        )
    for name, shape in actual.items():
        if shape != shapes[name]:
            raise ValueError(f"{name} has shape {tuple(shape)}, not {tuple(shapes[name])}; the old weights stay")


def tied_names(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the names of a ``state_dict`` with the same tensor as an earlier name, and that name."""
    first: dict[tuple[int, torch.Size], str] = {}
    return {
        name: first_name
        for name, value in state.items()
        if (first_name := first.setdefault((value.data_ptr(), value.shape), name)) != name
    }


def listed(names: Sequence[str]) -> str:
    """Name the first of some names: ``a, b, c and 4 more``."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
#: Fusions of the servers' models: parameters of the checkpoint, in rows, in this order.
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_PART_OF = {part: (whole, number) for whole, parts in FUSED.items() for number, part in enumerate(parts)}
_SPLIT_BY_COLUMNS = ("o_proj.weight", "down_proj.weight")
_VOCAB_MULTIPLE = 64  # to which servers pad the rows of these two with zeros, before ranks share them
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_AT_ONCE = 2**16  # numbers; their sum is taken as int64, which is a copy, and stays in a processor's cache

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
    """Read names and shapes from the headers of a folder's safetensors files; ``ValueError`` without whole ones."""
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
    """The definition of a server's checksums."""

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
        """Add a tensor, by its name in the checkpoint."""
        held, number, parts = self._held(name, value)
        if self._rule.kind == "bits":
            sums = self._bits.setdefault(held, [0] * self._rule.ranks)
            for rank, part in enumerate(parts):
                sums[rank] = (sums[rank] + sum(bits(block) for block in part if isinstance(block, Tensor))) % 2**64
            return
        self._hashes.setdefault(held, [hashlib.sha256() for _ in parts])
        early = self._early.setdefault(held, {})
        early[number] = parts
        while (ready := early.pop(self._next.get(held, 0), None)) is not None:
            self._hash(held, ready)
            self._next[held] = self._next.get(held, 0) + 1

    def result(self) -> Sums:
        """Return the checksums by the server's names, on each rank."""
        for held, early in self._early.items():
            for number in sorted(early):
                self._hash(held, early.pop(number))
        checksums = self._bits or {
            held: [digest.digest()[:8].hex() for digest in hashes] for held, hashes in self._hashes.items()
        }
        return {held: tuple(sums) for held, sums in checksums.items()}

    def _hash(self, held: str, parts: list[list[Tensor | bytes]]) -> None:
        for digest, part in zip(self._hashes[held], parts, strict=True):
            for item in part:
                raw = item if isinstance(item, bytes) else item.contiguous().reshape(-1).view(torch.uint8).numpy().data
                digest.update(raw)

    def _held(self, name: str, value: Tensor) -> tuple[str, int, list[list[Tensor | bytes]]]:
        """Return the server's name, the number of the part in it, and each rank's blocks; bytes are padding."""
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
                parts = [[shard] for shard in value.chunk(ranks)]
            return f"{parent}.{whole}.{leaf}", number, parts  # type: ignore[return-value]
        if name.endswith(_SPLIT_BY_COLUMNS):
            return name, 0, [[shard] for shard in value.chunk(ranks, dim=1)]
        return name, 0, [[value]] * ranks


def bits(tensor: Tensor) -> int:
    """Sum the bit patterns of all numbers, of 8 to 64 bits each, modulo 2^64."""
    words = tensor.detach().contiguous().view(-1).view(_BITS[tensor.element_size()])
    return sum(int(part.sum(dtype=torch.int64)) for part in words.split(_AT_ONCE)) % 2**64


def differing(expected: Sums, actual: Sums) -> list[str]:
    """Return the parameters whose sums of bits differ, in order.

    Parameters that only one side names (experts, which vLLM fuses differently) are compared by their total sum, if
    there is one worker.
    """
    wrong = sorted(name for name in expected.keys() & actual.keys() if expected[name] != actual[name])
    alone = [
        {name: sums for name, sums in these.items() if name not in rest}
        for these, rest in ((expected, actual), (actual, expected))
    ]
    one = all(len(sums) == 1 for sums in expected.values())
    if not wrong and one and len({sum(sums[0] for sums in these.values()) % 2**64 for these in alone}) > 1:
        return sorted(alone[0]) or sorted(alone[1])
    return wrong


PREFIX = "base_model.model."  #: of peft's names
_A, _B = ".lora_A.weight", ".lora_B.weight"


def merge(base: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return ``base [out, in] + scale * b [out, rank] @ a [rank, in]``, in float32; ``scale`` is alpha / rank."""
    return base.float() + scale * (b.float() @ a.float())


def pairs_of(adapter: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """Return ``A`` and ``B`` by the name of their matrix; peft's names are ``base_model.model.NAME.lora_A.weight``.

    Raises ``ValueError``: a name is none of peft's, or a matrix has only one of both.
    """
    halves: dict[str, dict[str, Tensor]] = {}
    for name, value in adapter.items():
        kind = next((kind for kind in (_A, _B) if name.endswith(kind)), None)
        if kind is None or not name.startswith(PREFIX):
            raise ValueError(f"{name} is no name of an adapter's matrix; peft's are {PREFIX}LAYER{_A} and {_B}")
        halves.setdefault(name.removeprefix(PREFIX).removesuffix(kind) + ".weight", {})[kind] = value
    if single := sorted(name for name, pair in halves.items() if len(pair) < 2):
        raise ValueError(f"the adapter of {single[0]} has only one of its two matrices")
    return {name: (pair[_A], pair[_B]) for name, pair in halves.items()}


def check_adapter(adapter: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]) -> None:
    """Refuse adapters that do not fit parameters of these shapes, or are not finite, with ``ValueError``."""
    for name, (a, b) in pairs_of(adapter).items():
        if name not in shapes:
            raise ValueError(f"the adapter is of another model: this one has no {name}; the old weights stay")
        if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1] or (len(b), a.shape[1]) != tuple(shapes[name]):
            raise ValueError(
                f"the adapter of {name}, {tuple(b.shape)} times {tuple(a.shape)}, does not fit its shape "
                f"{tuple(shapes[name])}; the old weights stay"
            )
        if not (is_finite(a) and is_finite(b)):
            raise ValueError(
                f"the adapter of {name} holds values that are not finite; did training diverge? The old weights stay"
            )


def merged(
    base: Iterable[tuple[str, Tensor]],
    adapter: Mapping[str, Tensor],
    scale: float,
    device: torch.device | str | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights one at a time, multiplied on ``device``; those without an adapter as in the base."""
    pairs = pairs_of(adapter)
    for name, value in base:
        if name in pairs:
            value, a, b = (tensor.to(device or value.device) for tensor in (value, *pairs[name]))
            value = merge(value, a, b, scale)
        yield name, value


def compact(value: Tensor) -> Tensor:
    """Convert to bfloat16 if that represents all numbers exactly: models are published in that type."""
    if value.dtype != torch.float32:
        return value
    half = value.bfloat16()
    return half if torch.equal(half.float(), value) else value
