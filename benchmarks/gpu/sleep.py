"""The memory that the embedded engine gives back when it sleeps, on both levels, and takes again.

Level 1 gives back keys and values, level 2 the weights, too. *returned* is by how much less of the GPU is in use after
it, over the bytes of these. Greedy requests must get the same tokens before and after (with level 2, after an update
with the same weights).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from benchmarks.gpu.job import Job
from benchmarks.gpu.shapes import make_model
from trainers.config.engine import TorchEngineSection
from trainers.engines.base import Generation, Sampling
from trainers.engines.torch_engine import TorchEngine

_REQUESTS = 16
_CONTEXT, _KV_GIB = 16_384, 2.0  # so many requests need more


def run(job: Job) -> None:
    """Measure both levels."""
    for level in (1, 2):
        what: dict[str, Any] = {"what": "sleep", "shape": job.shapes[0], "level": level}
        job.try_to(0 if job.toy else 10, partial(measure, job, **what), **what)


def measure(job: Job, what: str, shape: str, level: Literal[1, 2]) -> None:
    """Measure one level."""
    dtype = torch.bfloat16 if job.device.type == "cuda" else torch.float32
    model = make_model(shape, job.device).to(dtype)  # type: ignore[arg-type]
    used, same = asyncio.run(_sleep_and_wake(job, model, dtype, level))
    result: dict[str, Any] = {"what": what, "shape": shape, "level": level, "good": same}
    if job.device.type == "cuda":
        size = int(_KV_GIB * 2**30) + (sum(value.nbytes for value in model.parameters()) if level == 2 else 0)
        result |= {"bytes": used, "returned": round((used["awake"] - used["asleep"]) / size, 3)}
    job.emit(**result)


async def _sleep_and_wake(
    job: Job, model: Any, dtype: torch.dtype, level: Literal[1, 2]
) -> tuple[dict[str, int], bool]:
    rng = np.random.default_rng(0)
    prompts = rng.integers(0, model.config.vocab_size, (_REQUESTS, job.sizes.prompt)).tolist()
    greedy = Sampling(max_new_tokens=job.sizes.new[0], temperature=0.0, ignore_stop=True)
    used: dict[str, int] = {}

    def note(name: str) -> None:
        job.free()
        used[name] = job.used() or 0

    async def replies() -> list[Generation]:
        return await asyncio.gather(*(engine.generate(prompt, greedy) for prompt in prompts))

    note("before")
    section = TorchEngineSection(
        max_slots=_REQUESTS,
        max_context=16 if job.toy else _CONTEXT,
        kv_cache_gib=None if job.toy else _KV_GIB,
    )
    engine = TorchEngine(model, section, device=job.device, dtype=dtype, sleep_level=level)
    try:
        first = await replies()
        note("awake")
        await engine.sleep()
        while engine.stats()["running"]:  # the command is taken between two steps
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        note("asleep")
        if level == 2:
            await engine.update_weights(model.state_dict(), 1)
        again = await replies()
        note("woken")
    finally:
        await engine.close()
    pairs = zip(first, again, strict=True)
    return used, all(before.token_ids.tolist() == after.token_ids.tolist() for before, after in pairs)
