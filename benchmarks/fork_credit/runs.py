"""One run: PPO with one estimator from a warmed-up policy, until its score stays high or its tokens are spent."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainers.config import resolve
from trainers.engines.base import Sampling
from trainers.ppo import iterate
from trainers.run import Run, assemble


@dataclass(frozen=True)
class Family:
    """An environment, and what its runs have in common.

    Args:
        expert: What the scripted expert earns on the validation tasks, a mean over episodes.
        budget: Sampled tokens after which a run ends.
        common: Overrides of all runs.
        start: Overrides of the warm start.
    """

    expert: float
    budget: int
    common: tuple[str, ...]
    start: tuple[str, ...]


FAMILIES = {
    "clarify": Family(
        expert=0.925,
        budget=30_000,
        common=("rollout.max_response_length=24", "engine.max_context=192"),
        start=("warm_start.steps=600", "warm_start.batch_size=24", "warm_start.demonstrations=4000"),
    ),
    "collab-math": Family(
        expert=0.983,
        budget=18_000,
        common=("rollout.max_response_length=24", "engine.max_context=192"),
        start=("warm_start.steps=500", "warm_start.batch_size=24", "warm_start.demonstrations=3000"),
    ),
    "service-desk": Family(
        expert=1.0,
        budget=120_000,
        common=("rollout.max_response_length=96", "engine.max_context=640"),
        start=("warm_start.steps=500", "warm_start.batch_size=8", "warm_start.demonstrations=1000"),
    ),
}
_COMMON = (
    *("trainer.threads=1", "trainer.logger=[jsonl]", "trainer.resume_mode=disable", "model.device=cpu"),
    *("actor.lr_schedule=constant", "actor.lr_warmup_steps=0", "actor.mini_batches=1"),
    "data.val_size=96",
)
#: Validations of a run; the score that ends it early, as a share of the expert's, when the mean of two reaches it.
VALIDATIONS, ENOUGH = 9, 0.93


def start_model(family: str, seed: int, folder: Path) -> Path:
    """A policy that imitates the scripted expert, the same for all seeds, made careless by one; made unless there."""
    expert = ("warm_start.mistake_rate=0", "warm_start.careless_steps=0", "trainer.seed=0", *FAMILIES[family].start)
    taught = _model(family, folder / family, expert)
    careless = (
        *(f"model.path={taught}", f"trainer.seed={seed}", "warm_start.enable=true", "warm_start.careless_steps=0"),
        *("warm_start.mistake_rate=0.5", "warm_start.mistake_weight=1", "warm_start.steps=40", "warm_start.lr=5e-4"),
        *("warm_start.batch_size=16", "warm_start.demonstrations=640"),
    )
    return _model(family, folder / f"{family}-{seed}", careless)


def _model(family: str, model: Path, overrides: Sequence[str]) -> Path:
    if not model.exists():
        with tempfile.TemporaryDirectory() as temporary:
            given = [*_COMMON, *FAMILIES[family].common, *overrides, *_place(family, temporary)]
            asyncio.run(_export(given, Path(temporary) / "model"))
            shutil.copytree(Path(temporary) / "model", model)
    return model


async def _export(overrides: Sequence[str], folder: Path) -> None:
    async with assemble(resolve(overrides)[0]) as run:
        run.learner.export_hf(folder, tokenizer=run.tokenizer)


def _place(family: str, folder: str) -> list[str]:
    env = f"benchmarks.fork_credit.envs:fork-credit/{family}-v0"
    return [f"env.id={env}", f"trainer.default_local_dir={folder}/run"]


def play(family: str, estimator: Sequence[str], seed: int, model: Path) -> dict[str, Any]:
    """A run; its curve, a list of ``[sampled tokens, score]``, and what it took.

    Args:
        family: Of :data:`FAMILIES`.
        estimator: Overrides that say which and how.
        seed: Of the run.
        model: Where it starts.
    """
    began = time.process_time()
    logging.getLogger("trainers").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as temporary:
        given = [*_COMMON, *FAMILIES[family].common, *estimator, f"model.path={model}", f"trainer.seed={seed}"]
        curve, seen = asyncio.run(_trained([*given, *_place(family, temporary)], FAMILIES[family]))
    return {"curve": curve, "cpu_s": round(time.process_time() - began, 1)} | seen


async def _trained(overrides: Sequence[str], family: Family) -> tuple[list[tuple[int, float]], dict[str, float]]:
    async with assemble(resolve(overrides)[0]) as run:
        tokens, roots, forks = 0, 0, 0
        curve = [(0, await _score(run))]
        due = family.budget / VALIDATIONS
        while tokens < family.budget and (len(curve) < 2 or min(s for _, s in curve[-2:]) < ENOUGH * family.expert):
            phases = run.reporter.phases()
            with phases("rollout"):
                batch = await run.collector.next_batch()
            metrics, _ = await iterate(run, batch, phases)
            run.iteration += 1
            tokens += int(metrics["perf/sampled_tokens"])
            roots, forks = roots + len(batch.trajectories), forks + sum(map(len, batch.forks))
            if tokens >= due:
                curve.append((tokens, await _score(run)))
                due = tokens + family.budget / VALIDATIONS
        return curve, {"iterations": run.iteration, "roots": roots, "forks": forks}


async def _score(run: Run) -> float:
    """The mean return of validation episodes, sampled as those of training."""
    sampling = Sampling(temperature=1.0, max_new_tokens=run.config.rollout.max_response_length)
    ((name, tasks),) = run.validation_tasks.items()
    seed, backend = run.config.trainer.seed, run.validation[name]
    episodes = await run.collector.evaluate(tasks, samples=1, sampling=sampling, seed=seed, backend=backend)
    return round(float(np.mean([episode.total_reward for episode in episodes])), 4)
