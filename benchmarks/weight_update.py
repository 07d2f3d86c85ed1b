"""Measure the time of an update of an engine's weights, for each transport.

    python -m benchmarks.weight_update --engine vllm --python .venv-vllm/bin/python
    python -m benchmarks.weight_update --engine sglang --python .venv-sglang/bin/python
    python -m benchmarks.weight_update --engine torch --model models/smollm2-135m-instruct

A server is started on the CPU with a randomly initialised Qwen2 of 0.5 GB in float32. Each transport brings it new
weights a few times; printed is the median of the whole update, from the pause to the first new token allowed,
with the checksums of both sides compared, and without them. Both are measured on one server, in turn; with them goes
the processors' time of the server's processes and of this one. A last update measures the memory that it takes above
what the server's processes, and this one, had before it: theirs alone, and with the learner's buffers that they map.

The embedded engine takes weights from a learner in its own process, as a run publishes them: the median time from the
learner's last step to the new version, and the most memory that an update takes above what the process had before it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.memory import peak, peak_of_session, processes_of
from trainers.cluster.publisher import Publisher
from trainers.command_line import load_config
from trainers.config.engine import ENGINES, ServedEngineSection, TorchEngineSection
from trainers.config.model import ModelSection
from trainers.engines.remote import RemoteEngine
from trainers.engines.sglang import SGLangEngine
from trainers.engines.torch_engine import TorchEngine
from trainers.engines.vllm.engine import VLLMEngine
from trainers.learner import Learner
from trainers.models.tiny import build_model

SHAPE: dict[str, Any] = {"hidden": 1024, "layers": 6, "heads": 16, "kv_heads": 4, "intermediate": 4096}
VOCAB = 30_000
KINDS: dict[str, type[RemoteEngine]] = {"vllm": VLLMEngine, "sglang": SGLangEngine}


def started(folder: Path, arguments: argparse.Namespace, transport: str, *, verify: bool) -> RemoteEngine:
    """Return an engine with a server of its own."""
    server = {"python": arguments.python, "verify": verify, "update_folder": arguments.update_folder}
    server |= {"bucket_mib": arguments.bucket_mib}
    section = ENGINES[arguments.engine].model_validate(
        {
            "max_context": 256,
            "max_slots": 4,
            "threads": 1,
            "tensor_parallel_size": arguments.ranks,
            "weight_transport": transport,
            arguments.engine: server,
            **({"kv_cache_gib": 0.25} if arguments.engine == "vllm" else {}),
        }
    )
    assert isinstance(section, ServedEngineSection)
    return KINDS[arguments.engine](folder, section, dtype=arguments.dtype, device=arguments.device)


async def measure(folder: Path, model: torch.nn.Module, arguments: argparse.Namespace, transport: str) -> dict:
    """Measure updates of a server, in seconds."""
    took: dict[bool, list[float]] = {True: [], False: []}
    cpu: list[float] = []
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    engine = started(folder, arguments, transport, verify=True)
    try:
        await engine.ready()
        for version in range(1, 2 * arguments.times + 2):
            verify = bool(version % 2)
            engine._updater.verify = verify
            for value in weights.values():
                value.mul_(1.01)
            began, worked = time.perf_counter(), cpu_seconds(engine)
            await engine.update_weights(weights, version)
            took[verify].append(time.perf_counter() - began)
            if verify:
                cpu.append(cpu_seconds(engine) - worked)
        assert engine._server is not None
        with peak_of_session(engine._server.pid) as server, peak() as own:
            await engine.update_weights(weights, 2 * arguments.times + 2)
    finally:
        await engine.close()
    # The first update of a server makes the process group, and reserves memory.
    verified, plain = statistics.median(took[True][1:]), statistics.median(took[False])
    return {
        "engine": arguments.engine,
        "transport": transport,
        "ranks": arguments.ranks,
        "device": arguments.device,
        "gigabytes": round(sum(value.nbytes for value in model.parameters()) / 1e9, 2),
        "seconds": round(verified, 2),
        "seconds_without_checksums": round(plain, 2),
        "cpu_seconds": round(statistics.median(cpu[1:]), 2),
        "bucket_mib": arguments.bucket_mib,
        "server_mib_above": round(server["private"]),
        "server_mib_above_with_buffers": round(server["mapped"]),
        "learner_mib_above": round(own["peak"]),
    }


def cpu_seconds(engine: RemoteEngine) -> float:
    """Return the processors' time so far, of a server's processes and of this one."""
    assert engine._server is not None
    fields = [
        Path("/proc", process, "stat").read_text().rpartition(")")[2].split()
        for process in processes_of(engine._server.pid)
    ]
    ticks = sum(int(user) + int(system) for *_, user, system in (field[:13] for field in fields))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


async def measure_in_process(arguments: argparse.Namespace, lora: int, staleness: int) -> dict:
    """Measure updates of an embedded engine by a learner in this process."""
    chosen = [f"model.dtype={arguments.dtype}", f"model.lora_rank={lora}", f"rollout.staleness={staleness}"]
    chosen += ["model.path=tiny" if arguments.tiny else f"model.path={arguments.model}"]
    config, _ = load_config(chosen)
    model = (
        small_model() if arguments.tiny else AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    )
    dtype = getattr(torch, arguments.dtype)
    section = ModelSection(device=arguments.device, dtype=arguments.dtype, lora_rank=lora, lora_alpha=lora or 1)
    learner = Learner(model, section)
    engine = TorchEngine(model, TorchEngineSection(max_slots=1, max_context=256), device=arguments.device, dtype=dtype)
    del model
    publisher, took, above = Publisher(learner, config), [], []
    try:
        for version in range(1, arguments.times + 2):
            for value in learner.actor_optimizer.names.values():
                value.data.mul_(1.01)
            with peak(learner.device.type) as memory:
                began = time.perf_counter()
                weights, _ = publisher.take()
                await engine.update_weights(weights, version)
                took.append(time.perf_counter() - began)
            above.append(memory["peak"])
            del weights
    finally:
        await engine.close()
    return {
        "engine": "torch",
        "dtype": arguments.dtype,
        "device": arguments.device,
        "lora_rank": lora,
        "staleness": staleness,
        "gigabytes": round(sum(value.nbytes for value in learner.actor.parameters()) / 1e9, 2),
        "seconds": round(statistics.median(took[1:]), 3),
        "mib_above": round(max(above[1:])),
    }


def small_model() -> PreTrainedModel:
    return build_model(300, family="qwen2", max_context=512, hidden=64, layers=1, heads=2, kv_heads=1)


def main() -> None:
    """Measure as the module's text says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=(*KINDS, "torch"), default="vllm")
    parser.add_argument("--python", help="a Python that has the engine (default: .venv-ENGINE/bin/python)")
    parser.add_argument("--transports", nargs="+", default=["ipc", "process_group", "disk", "http"])
    parser.add_argument("--ranks", type=int, default=1, help="tensor-parallel ranks of the server")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--update-folder", help="of `disk`, for example /dev/shm")
    parser.add_argument("--bucket-mib", type=int, default=256, help="MiB of weights that travel at once")
    parser.add_argument("--model", help="of the embedded engine: a folder")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--tiny", action="store_true", help="a model of a few kilobytes, to see that it runs")
    arguments = parser.parse_args()
    if arguments.engine == "torch":
        for lora, staleness in ((0, 0), (0, 1), (16, 0)):
            print(json.dumps(asyncio.run(measure_in_process(arguments, lora, staleness))), flush=True)
        return
    arguments.python = arguments.python or f".venv-{arguments.engine}/bin/python"
    torch.manual_seed(0)
    model = small_model() if arguments.tiny else build_model(VOCAB, family="qwen2", max_context=512, **SHAPE)
    with tempfile.TemporaryDirectory(prefix="weight-update-") as folder:
        model.save_pretrained(folder)
        for transport in arguments.transports:
            print(json.dumps(asyncio.run(measure(Path(folder), model, arguments, transport))), flush=True)


if __name__ == "__main__":
    main()
