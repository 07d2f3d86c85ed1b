"""The engines of the conformance suite. A new engine adds a kit; the tests stay unchanged.

An engine that is a server of its own takes long to start, so one server serves the whole session: its kit's ``make``
connects to it (starting it where it is not there, or was killed) and puts it into the state of a new engine. Tests that
kill their engine are marked ``last``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from benchmarks.simulation.scripted import Reply, ScriptedEngine
from trainers.config.engine import MIN_TEMPERATURE, TorchEngineSection
from trainers.engines.base import Engine
from trainers.engines.decoder import SIZE
from trainers.engines.replica import Limits
from trainers.engines.replicas import Replicas
from trainers.engines.scheduler import MakeStatic
from trainers.engines.static_step import StaticStep
from trainers.engines.torch_engine import TorchEngine
from trainers.models.tiny import build_model

VOCAB = 64
CONTEXT = 768
#: vLLM on a CPU knows no smaller heads than of 32 dimensions.
SERVED: dict[str, Any] = {"hidden": 64, "heads": 2, "kv_heads": 1, "intermediate": 2048}


def lively_model(family: str = "qwen2", seed: int = 0, vocab: int = VOCAB, **shape: Any) -> PreTrainedModel:
    """Build a tiny model whose every weight matters."""
    shape = {"hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "max_context": CONTEXT, **shape}
    return enliven(build_model(vocab, family=family, **shape), seed)


def enliven(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    """Set weights for peaked distributions, norms away from 1, biases away from 0."""
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
        make: From a model and ``max_slots`` to an engine with the model's weights as version 0 and nothing cached. A
            server, which is started with its limits, may leave ``max_slots`` alone. Those that compute also take
            ``unused`` ids, which are never sampled.
        weights: From a model to what ``update_weights`` takes.
        kill: Makes the engine fail at its next work.
        death: A pattern of the message of ``EngineDeadError`` then.
        cause: Its ``__cause__``, where the engine is in this process.
        computes: Whether tokens and log-probs come from the model (else they are made up).
        block: KV is reused in whole blocks of so many tokens.
        counts_in_flight: Whether ``stats`` counts tokens of requests that still run.
        joint_cuts: Whether ``top_p`` and ``min_p`` look at the whole distribution instead of what ``top_k`` left.
        refuses_min_p: Whether requests with ``min_p`` are refused.
        reports_kept: Whether requests may ask which tokens the cuts kept (else they are refused).
        mixes_cuts: Whether a seeded request has the same tokens beside requests with other cuts.
        coldest: Temperatures between 0 and this are refused.
        long: Tokens of a reply that is long enough for an update or a cancellation to arrive before it ends.
        seconds: The timeout of a test.
    """

    model: PreTrainedModel
    other: PreTrainedModel
    make: Callable[..., Awaitable[Engine]]
    weights: Callable[[PreTrainedModel], Any]
    kill: Callable[[Any], None]
    death: str
    cause: type[BaseException] | None
    computes: bool = True
    block: int = 1
    counts_in_flight: bool = True
    joint_cuts: bool = False
    refuses_min_p: bool = False
    reports_kept: bool = False
    mixes_cuts: bool = True
    coldest: float = MIN_TEMPERATURE
    long: int = 150
    seconds: float = 30.0


def _kill_torch(engine: TorchEngine) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("injected")

    decoder = engine._scheduler._decoder
    decoder.logits = decoder.row_logits = fail  # type: ignore[method-assign, assignment]


@contextmanager
def _torch_kit(family: str, static: MakeStatic | None = None) -> Iterator[Kit]:
    async def make(model: PreTrainedModel, max_slots: int = 64, unused: Sequence[int] = ()) -> TorchEngine:
        section = TorchEngineSection(max_slots=max_slots, max_context=CONTEXT, threads=1)
        return TorchEngine(model, section, unused_token_ids=unused, static=static)

    yield Kit(
        lively_model(family),
        lively_model(family, seed=1),
        make,
        lambda model: model.state_dict(),
        _kill_torch,
        death="injected",
        cause=MemoryError,
        reports_kept=True,
        block=SIZE,
    )


@contextmanager
def _scripted_kit() -> Iterator[Kit]:
    def script(call: Any) -> Reply:
        seed = [call.sampling.seed or 0, *call.token_ids]
        tokens = np.random.default_rng(seed).integers(0, VOCAB, CONTEXT)
        # Real time: slow enough for an update to come in the middle on a busy machine.
        return Reply(tokens.tolist(), latency=0.001, per_token=0.002)

    async def make(model: PreTrainedModel, max_slots: int = 64) -> ScriptedEngine:
        return ScriptedEngine(script, vocab_size=VOCAB, max_context=CONTEXT)

    model = lively_model()
    yield Kit(
        model,
        model,
        make,
        lambda model: {},
        lambda engine: engine.die(MemoryError("injected")),
        death="injected",
        cause=MemoryError,
        computes=False,
    )


@contextmanager
def _replicas_kit(one: MakeKit) -> Iterator[Kit]:
    """Yield a kit of replicas: two of another kit's engines behind one."""
    with one() as kit:

        async def make(model: PreTrainedModel, max_slots: int = 64, **options: Any) -> Replicas:
            engines = [await kit.make(model, max_slots=max_slots, **options) for _ in range(2)]
            replicas = Replicas(engines, limits=Limits(probe_interval=60.0))
            replicas._router.slack = (
                1000.0  # nothing moves for balance, so that a session's KV is where it is looked for
            )
            return replicas

        def kill(engine: Replicas) -> None:
            for replica in engine._replicas:
                kit.kill(replica.engine)

        yield replace(kit, make=make, kill=kill)


MakeKit = Callable[[], AbstractContextManager[Kit]]

#: Those in this process: all; and those that compute, in every family. A protocol does not depend on the family.
KITS: dict[str, MakeKit] = {
    "torch": partial(_torch_kit, "qwen2"),
    "torch-static": partial(_torch_kit, "qwen2", StaticStep),
    "scripted": _scripted_kit,
}
COMPUTING_KITS: dict[str, MakeKit] = {
    f"torch-{family}": partial(_torch_kit, family) for family in ("qwen2", "qwen3", "llama")
}
COMPUTING_KITS["torch-static"] = KITS["torch-static"]
KITS |= {f"replicas-{name}": partial(_replicas_kit, KITS[name]) for name in ("torch", "scripted")}
COMPUTING_KITS["replicas-torch"] = KITS["replicas-torch"]
#: Those with a server: in both lists. Each has a session-scoped fixture ``NAME_kit`` that owns the server.
SERVERS: tuple[str, ...] = ("vllm", "sglang")
