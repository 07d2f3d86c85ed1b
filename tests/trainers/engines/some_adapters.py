"""A base and random adapters of all its matrices, as a learner publishes them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trainers.engines.transport import AdapterSource, LocalSource
from trainers.engines.weights import PREFIX

RANK, SCALE = 3, 7 / 3


def adapter_of(state: Mapping[str, Tensor], seed: int = 0) -> dict[str, Tensor]:
    """Return random adapters by peft's names; large enough to change the replies."""
    generator = torch.Generator().manual_seed(seed)
    adapter = {}
    for name, value in state.items():
        if name.endswith("_proj.weight"):
            (out, into), layer = value.shape, PREFIX + name.removesuffix(".weight")
            adapter[f"{layer}.lora_A.weight"] = torch.randn(RANK, into, generator=generator) * 0.2
            adapter[f"{layer}.lora_B.weight"] = torch.randn(out, RANK, generator=generator) * 0.2
    return adapter


def adapted(
    state: Mapping[str, Tensor], seed: int = 0, name: str = "base", adapter: Mapping[str, Tensor] | None = None
) -> AdapterSource:
    """Return a publication of adapters on these weights."""
    adapter = adapter_of(state, seed) if adapter is None else adapter
    return AdapterSource(name, LocalSource.of(state), LocalSource.of(adapter), SCALE)


def merged(state: Mapping[str, Tensor], seed: int = 0) -> dict[str, Tensor]:
    """Return the expected merged weights."""
    adapter, result = adapter_of(state, seed), dict(state)
    for name in state:
        layer = PREFIX + name.removesuffix(".weight")
        if f"{layer}.lora_A.weight" in adapter:
            product = adapter[f"{layer}.lora_B.weight"] @ adapter[f"{layer}.lora_A.weight"]
            result[name] = state[name].float() + SCALE * product
    return result
