"""A real vLLM server on this GPU: updates by ``ipc`` with checksums, and its sleep.

The server has a model of a known shape with random weights, of which a learner would be in this process. Each update
is what a run does: pause, send, verify, resume. With checksums, the server's own sums of all parameters are compared
with those of the weights here; the time of an update is measured without them, too. *sleep*: the
GPU's memory in use before, while it sleeps (level 2), after the update that fills the weights again, and awake;
*returned* is what sleep gives back over the bytes of weights, keys and values. It must then generate as before.
"""

from __future__ import annotations

import asyncio
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.job import Job
from benchmarks.gpu.shapes import make_model
from trainers.config.engine import VLLMEngineSection
from trainers.engines.base import Sampling
from trainers.engines.vllm.engine import VLLMEngine

_TIMES = 3
_START_S = 60.0


def run(job: Job) -> None:
    """Start a server, and measure."""
    what = {"what": "server", "shape": job.shapes[0]}
    if job.vllm is None:
        job.cannot("vllm is not installed here; --vllm names a Python that has it", **what)
        return
    job.try_to(0 if job.toy else _START_S, partial(_serve, job, job.shapes[0]), **what)


def _serve(job: Job, shape: str) -> None:
    model = make_model(shape, job.device).to(precision(job))  # type: ignore[arg-type]
    before = job.used()
    with tempfile.TemporaryDirectory(prefix="benchmarks-gpu-") as folder, asyncio.Runner() as runner:
        engine = runner.run(started(job, model, Path(folder), eager=True, batch=16))
        try:
            version = iter(range(1, 100))
            measures = {"update": partial(update, job, runner, engine, model, version)}
            measures["sleep"] = partial(sleep, job, runner, engine, model, version, before)
            for name, measure in measures.items():
                what = {"what": name, "shape": shape}
                job.try_to(0 if job.toy else 5, partial(measure, what), **what)
        finally:
            runner.run(engine.close())


async def started(job: Job, model: Any, folder: Path, *, eager: bool, batch: int) -> VLLMEngine:
    """Return an engine with a server of this model."""
    await asyncio.to_thread(model.save_pretrained, folder)
    chosen: dict[str, Any] = {"python": job.vllm, "enforce_eager": eager or job.device.type == "cpu"}
    chosen |= {"sleep_mode": job.device.type == "cuda"}
    section = VLLMEngineSection.model_validate(
        {
            "max_context": max(64, job.sizes.prompt + job.sizes.new[1]),
            "max_slots": batch,
            "kv_cache_gib": 0.25 if job.toy else 8.0,
            "weight_transport": "ipc",
            "vllm": chosen,
        }
    )
    dtype = str(precision(job)).removeprefix("torch.")
    engine = VLLMEngine(folder, section, dtype=dtype, device=job.device.type)
    try:
        await engine.ready()
    except BaseException:
        await engine.close()
        raise
    return engine


def precision(job: Job) -> torch.dtype:
    """Return the type that servers compute in here."""
    return torch.bfloat16 if job.device.type == "cuda" else torch.float32


def update(
    job: Job, runner: asyncio.Runner, engine: VLLMEngine, model: Any, version: Any, what: dict[str, str]
) -> None:
    """Measure updates with and without checksums; EngineError if they differ."""
    weights = {name: value.detach() for name, value in model.named_parameters()}
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * _TIMES):
        verify = engine._updater.verify = number % 2 == 0
        for value in weights.values():
            value.mul_(1.01)
        began = job.now()
        runner.run(engine.update_weights(weights, next(version)))
        seconds[verify].append(job.now() - began)
    # The server says how many tensors it compared: without any, nothing was proven.
    compared, size = len(engine._updater._actual), sum(value.nbytes for value in weights.values())
    plain, verified = min(seconds[False]), min(seconds[True][1:])
    job.emit(
        **what,
        bytes=size,
        s_per_gb=round(plain * 1e9 / size, 4),
        s_per_gb_verified=round(verified * 1e9 / size, 4),
        compared=compared,
        good=compared > 0,
        transport=engine._updater.transport,
    )


def sleep(
    job: Job,
    runner: asyncio.Runner,
    engine: VLLMEngine,
    model: Any,
    version: Any,
    before: int | None,
    what: dict[str, str],
) -> None:
    """Measure the server's memory asleep and awake; good if it generates the same tokens after it."""
    if job.device.type == "cpu":
        job.cannot("vLLM on a CPU gives no memory back", **what)
        return
    weights = {name: value.detach() for name, value in model.named_parameters()}
    greedy = Sampling(max_new_tokens=8, temperature=0.0, ignore_stop=True)
    used: dict[str, int] = {"before_start": int(before or 0)}
    runner.run(engine.update_weights(weights, next(version)))
    reply = runner.run(engine.generate([1, 2, 3], greedy))
    for name, step in {
        "awake": None,
        "asleep": lambda: engine.sleep(),
        "updated": lambda: engine.update_weights(weights, next(version)),
        "woken": lambda: engine.wake(),
    }.items():
        if step is not None:
            runner.run(step())
        used[name] = int(job.used() or 0)
    again = runner.run(engine.generate([1, 2, 3], greedy))
    size = sum(value.nbytes for value in weights.values()) + int(engine._section.kv_cache_bytes or 0)
    returned = (used["awake"] - used["asleep"]) / size
    good = again.token_ids.tolist() == reply.token_ids.tolist()
    job.emit(**what, bytes=used, returned=round(returned, 3), good=good)
