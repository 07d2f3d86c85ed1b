"""vLLM's decoding, of the requests that the part ``decode`` measures the embedded engine with.

The server compiles and captures graphs, as it does by default. Requests go through HTTP, as in a run.
"""

from __future__ import annotations

import asyncio
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.decode import timed
from benchmarks.gpu.job import Job
from benchmarks.gpu.shapes import make_model
from benchmarks.gpu.vllm_update import precision, started
from trainers.engines.vllm.engine import VLLMEngine

_START_S = 80.0


def run(job: Job) -> None:
    """Start a server, and measure all batch sizes."""
    what = {"what": "server", "shape": job.shapes[0]}
    if job.vllm is None:
        job.cannot("vllm is not installed here; --vllm names a Python that has it", **what)
        return
    job.try_to(0 if job.toy else _START_S, partial(_serve, job, job.shapes[0]), **what)


def _serve(job: Job, shape: str) -> None:
    model = make_model(shape, job.device).to(precision(job))  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory(prefix="benchmarks-gpu-") as folder, asyncio.Runner() as runner:
        engine = runner.run(started(job, model, Path(folder), eager=False, batch=job.sizes.batches[-1]))
        try:
            for batch in job.sizes.batches:
                what: dict[str, Any] = {"what": "decode", "shape": shape, "batch": batch}
                vocabulary = model.config.vocab_size
                job.try_to(2, partial(decode, job, runner, engine, vocabulary, **what), **what)
        finally:
            runner.run(engine.close())


def decode(
    job: Job, runner: asyncio.Runner, engine: VLLMEngine, vocabulary: int, what: str, shape: str, batch: int
) -> None:
    """Measure one batch size."""
    few, many = job.sizes.new
    seconds = runner.run(timed(job, engine, vocabulary, batch))
    step = (seconds[1] - seconds[0]) / (many - few)
    job.emit(
        what=what,
        shape=shape,
        batch=batch,
        prompt=job.sizes.prompt,
        new=[few, many],
        step_ms=round(1e3 * step, 3),
        tokens_per_s=round(batch / step, 1),
    )
