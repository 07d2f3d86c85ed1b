"""What the conformance suite knows about each engine. A new engine adds a kit; the tests stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from trainers.engines.base import Engine
from trainers.engines.scripted import Reply, ScriptedEngine
from trainers.engines.torch_engine import TorchEngine
from trainers.tiny import build_model

VOCAB = 64
CONTEXT = 768


def lively_model(family: str = "qwen2", seed: int = 0, vocab: int = VOCAB, **shape: Any) -> PreTrainedModel:
    """A tiny model whose every weight matters: peaked distributions, norms away from 1, biases away from 0."""
    shape = {"hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "max_context": CONTEXT, **shape}
    model = build_model(vocab, family=family, **shape)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            mean = 1.0 if "norm" in name else 0.0
            weight.copy_(mean + 0.2 * torch.randn(weight.shape, generator=generator))
    return model


@dataclass(frozen=True)
class Kit:
    """An engine under test.

    Args:
        model: The reference, float32.
        other: The same architecture with other weights.
        make: From a model and ``max_slots`` to an engine.
        weights: From a model to what ``update_weights`` takes.
        kill: Makes the engine fail from the inside at its next work.
        computes: Whether tokens and log-probs come from the model (else they are made up).
    """

    model: PreTrainedModel
    other: PreTrainedModel
    make: Callable[..., Engine]
    weights: Callable[[PreTrainedModel], Any]
    kill: Callable[[Any], None]
    computes: bool = True


def _kill_torch(engine: TorchEngine) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("injected")

    engine._scheduler._decoder.logits = fail  # type: ignore[method-assign, assignment]


def _torch_kit(family: str) -> Kit:
    def make(model: PreTrainedModel, max_slots: int = 64) -> TorchEngine:
        return TorchEngine(model, max_slots=max_slots, max_context=CONTEXT, threads=1)

    return Kit(lively_model(family), lively_model(family, seed=1), make, lambda model: model.state_dict(), _kill_torch)


def _scripted_kit() -> Kit:
    def script(call: Any) -> Reply:
        seed = [call.sampling.seed or 0, *call.token_ids]
        tokens = np.random.default_rng(seed).integers(0, VOCAB, CONTEXT)
        # Real time: slow enough for an update to come in the middle on a busy machine.
        return Reply(tokens.tolist(), latency=0.001, per_token=0.002)

    def make(model: PreTrainedModel, max_slots: int = 64) -> ScriptedEngine:
        return ScriptedEngine(script, vocab_size=VOCAB, max_context=CONTEXT)

    model = lively_model()
    return Kit(model, model, make, lambda model: {}, lambda engine: engine.die(MemoryError("injected")), computes=False)


#: All engines; and those that compute, in every family they support. A protocol does not depend on the family.
KITS: dict[str, Callable[[], Kit]] = {"torch": lambda: _torch_kit("qwen2"), "scripted": _scripted_kit}
COMPUTING_KITS: dict[str, Callable[[], Kit]] = {
    f"torch-{family}": partial(_torch_kit, family) for family in ("qwen2", "qwen3", "llama")
}


@pytest.fixture(scope="session", params=KITS)
def kit(request: pytest.FixtureRequest) -> Kit:
    """For what holds of any engine, whatever makes its tokens."""
    return KITS[request.param]()


@pytest.fixture(scope="session", params=COMPUTING_KITS)
def computing_kit(request: pytest.FixtureRequest) -> Kit:
    """For what holds of an engine with a model inside."""
    return COMPUTING_KITS[request.param]()
