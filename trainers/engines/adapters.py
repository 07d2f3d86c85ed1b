"""Weights of a LoRA run: a base, which stays as it is, and adapters, which are what learns (arXiv 2106.09685).

An engine gets the base once, then adapters alone (:class:`trainers.engines.transport.AdapterSource`), and merges them
with the learner's own function (:func:`merge`): on the same kind of device the numbers are the same to the last bit.
vLLM's worker imports this too, so it needs nothing but PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from trainers.engines.weights import is_finite

PREFIX = "base_model.model."  #: of peft's names
_A, _B = ".lora_A.weight", ".lora_B.weight"


def merge(base: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """``base [out, in] + scale * b [out, rank] @ a [rank, in]``, in float32; ``scale`` is alpha / rank."""
    return base.float() + scale * (b.float() @ a.float())


def pairs_of(adapter: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """``A`` and ``B`` by the name of their matrix; peft's names are ``base_model.model.NAME.lora_A.weight``.

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
    """The weights, one at a time, multiplied on ``device``. What has no adapter comes as it is in the base."""
    pairs = pairs_of(adapter)
    for name, value in base:
        if name in pairs:
            value, a, b = (each.to(device or value.device) for each in (value, *pairs[name]))
            value = merge(value, a, b, scale)
        yield name, value


def compact(value: Tensor) -> Tensor:
    """The same numbers in half the memory, where bfloat16 has them all: models are published in that type."""
    if value.dtype != torch.float32:
        return value
    half = value.bfloat16()
    return half if torch.equal(half.float(), value) else value
