"""A learner and an embedded engine in one process: weights stay on their device, and there is never a second model.

Devices are simulated by tensors that claim to be on a GPU, but are computed on the CPU.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

from trainers.cluster.publisher import Publisher
from trainers.command_line import load_config
from trainers.config.engine import TorchEngineSection
from trainers.config.model import ModelSection
from trainers.engines.base import EngineDeadError, Sampling, SupersededError
from trainers.engines.decoder import Decoder
from trainers.engines.module_decoder import ModuleDecoder
from trainers.engines.torch_engine import TorchEngine
from trainers.engines.transport import LocalSource
from trainers.learner import Learner
from trainers.models.tiny import build_model

GPU = torch.device("meta")  # which torch knows everywhere; the numbers are in the wrapped tensor
made: list[int] = []  # bytes of each tensor that was made on the GPU
moved: list[str] = []  # what took numbers from one device to another


class OnGPU(torch.Tensor):
    """A CPU tensor that claims to be on a GPU, as do all results computed from it."""

    @staticmethod
    def __new__(cls, real: torch.Tensor) -> OnGPU:
        return torch.Tensor._make_wrapper_subclass(cls, real.shape, real.stride(), dtype=real.dtype, device=GPU)

    def __init__(self, real: torch.Tensor) -> None:
        self.inner = real

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors: list[torch.Tensor] = []
        tree_map(lambda x: tensors.append(x) if isinstance(x, torch.Tensor) else None, args)
        to = (kwargs or {}).get("device", GPU)
        if torch.device(to) != GPU or any(not isinstance(x, OnGPU) and x.ndim for x in tensors):
            moved.append(str(func))
        storages = {x.inner.untyped_storage().data_ptr() for x in tensors if isinstance(x, OnGPU)}
        real = tree_map(lambda x: x.inner if isinstance(x, OnGPU) else x, (args, {**(kwargs or {})}))
        out = func(*real[0], **{name: value for name, value in real[1].items() if name != "device"})

        def wrapped(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            if x.untyped_storage().data_ptr() not in storages:
                made.append(x.nbytes)
            return OnGPU(x)

        return args[0] if func._schema.name.endswith("_") else tree_map(wrapped, out)


def put_on_gpu(module: nn.Module) -> None:
    done: dict[int, nn.Parameter] = {}
    for owner in module.modules():
        for name, value in owner._parameters.items():
            if value is not None:
                if id(value) not in done:
                    done[id(value)] = nn.Parameter(OnGPU(value.data), requires_grad=value.requires_grad)
                owner._parameters[name] = done[id(value)]


SHAPE = {"hidden": 32, "layers": 2, "heads": 2, "kv_heads": 1}


@pytest.mark.parametrize("publish", ["all", "merged", "adapter"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("kind", "family"), [(Decoder, "qwen2"), (Decoder, "qwen3"), (ModuleDecoder, "qwen2")])
def test_update_copies_no_model_between_devices(kind: Any, family: str, dtype: str, publish: str) -> None:
    model = build_model(64, family=family, seed=1, **SHAPE)  # type: ignore[arg-type]
    engine = kind(build_model(64, family=family, seed=2, **SHAPE), 4, 32, dtype=getattr(torch, dtype), threads=1)  # type: ignore[arg-type]
    chosen = [f"model.dtype={dtype}", "rollout.staleness=1"]
    section = ModelSection()
    if publish != "all":
        pytest.importorskip("peft")
        section = ModelSection(lora_rank=2, lora_alpha=4)
        chosen += ["model.lora_rank=2", "model.lora_alpha=4", f"model.lora_publish={publish}"]
    learner = Learner(model, section)
    if section.lora_rank:
        for name, value in learner.actor.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(value, std=0.3)
    expected = {name: value.to(getattr(torch, dtype)) for name, value in learner.weights().items()}
    put_on_gpu(learner.actor.lm)
    parameters, engine.parameters = engine.parameters, {name: OnGPU(value) for name, value in engine.parameters.items()}
    engine.device = GPU
    made.clear(), moved.clear()

    weights, _ = Publisher(learner, load_config(chosen)[0]).take()
    with torch.no_grad():
        engine.load_weights(engine.read_weights(weights))

    assert all(torch.equal(parameters[name], value) for name, value in expected.items())
    assert moved == []
    largest = max(value.numel() for value in expected.values())
    assert max(made) <= (8 if publish == "all" else 4 * largest), "the smallest and the largest number of each alone"
    for value in learner.actor.lm.parameters():  # a step of the learner's
        value.data.mul_(3)
    assert all(torch.equal(parameters[name], value) for name, value in expected.items()), (
        "the engine's memory is its own"
    )


def stepping_source(at: int) -> tuple[Learner, LocalSource]:
    """Return weights whose learner takes a step while the ``at``-th tensor is read; at 0, before."""
    learner = Learner(build_model(64, seed=3, **SHAPE))  # type: ignore[arg-type]
    stream, optimizer = learner.publication("weights"), learner.actor_optimizer

    def step() -> None:
        def work() -> None:
            for value in optimizer.names.values():
                value.grad = torch.ones_like(value)
            optimizer.step("a test")

        thread = threading.Thread(target=work)  # the learner's: the engine's is in inference mode
        thread.start()
        thread.join()

    def read() -> Any:
        if at == 0:
            step()
        return (
            step() or entry if number == at else entry for number, entry in enumerate(stream.read(learner.ranks), 1)
        )

    return learner, LocalSource(stream.specs, read)


@pytest.mark.parametrize("at", [0, 3])
async def test_weights_changing_while_read_are_never_used(at: int) -> None:
    engine = TorchEngine(build_model(64, seed=1, **SHAPE), TorchEngineSection(max_slots=1, max_context=32, threads=1))  # type: ignore[arg-type]
    greedy = Sampling(temperature=0.0, max_new_tokens=4)
    before = await engine.generate([1, 2], greedy)
    learner, source = stepping_source(at)
    if at == 0:
        with pytest.raises(SupersededError, match="trained on"):
            await engine.update_weights(source, 1)
        again = await engine.generate([1, 2], greedy)
        assert (again.logprobs.tolist(), engine.version) == (before.logprobs.tolist(), 0)
        stream = learner.publication("weights")
        await engine.update_weights(LocalSource(stream.specs, lambda: stream.read(learner.ranks)), 1)
        assert (await engine.generate([1, 2], greedy)).weight_version.tolist() == [1] * 4
    else:
        with pytest.raises(EngineDeadError, match="trained on"):
            await asyncio.wait_for(engine.update_weights(source, 1), 30)
    await engine.close()
