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

from trainers.command_line import resolve
from trainers.engines.base import Sampling
from trainers.ppo import iterate
from trainers.run import Run, assemble


@dataclass(frozen=True)
class Family:
    """An environment, and the common settings of its runs.

    Args:
        env: Overrides that choose the environment.
        expert: The scripted expert's mean return on the validation tasks.
        budget: Sampled tokens after which a run ends.
        common: Overrides of all runs.
        start: Overrides of the warm start.
        tries: The values that each estimator is tuned over.
        tuning: The seeds of the tuning.
    """

    env: tuple[str, ...]
    expert: float
    budget: int
    common: tuple[str, ...]
    start: tuple[str, ...]
    tries: tuple[str, ...] = ("actor.lr=3e-4", "actor.lr=5e-4", "actor.lr=1e-3")
    tuning: tuple[int, ...] = (100, 101, 102, 103, 104)


def _small(name: str) -> tuple[str, ...]:
    return (f"env.id=benchmarks.fork_credit.envs:fork-credit/{name}-v0",)


FAMILIES = {
    "clarify": Family(
        env=_small("clarify"),
        expert=0.928,
        budget=30_000,
        common=("rollout.max_response_length=24", "engine.max_context=192"),
        # It soon asks for what is missing; to add, it needs many steps.
        start=("warm_start.steps=1000", "warm_start.batch_size=48", "warm_start.demonstrations=20000"),
        tries=("actor.lr=1e-4", "actor.lr=2e-4", "actor.lr=3e-4"),  # at 5e-4 and 1e-3 it unlearns to add
        tuning=(100, 101, 102),
    ),
    "collab-math": Family(
        env=_small("collab-math"),
        expert=0.983,
        budget=18_000,
        common=("rollout.max_response_length=24", "engine.max_context=192"),
        start=("warm_start.steps=500", "warm_start.batch_size=24", "warm_start.demonstrations=3000"),
    ),
    "service-desk": Family(
        env=_small("service-desk"),
        expert=1.0,
        budget=150_000,
        common=("rollout.max_response_length=96", "engine.max_context=640"),
        start=("warm_start.steps=1500", "warm_start.batch_size=8", "warm_start.demonstrations=4000"),
        tries=("actor.lr=1e-4", "actor.lr=2e-4", "actor.lr=3e-4"),
        tuning=(100,),
    ),
    # Like `examples/textworld/coin.yaml`; it needs the extra `textworld`, and compiles 192 games once.
    "textworld": Family(
        env=(
            *("env.id=textenv/textworld", "env.kwargs.game=coin", "env.kwargs.level=easy", "env.kwargs.count=96"),
            *("env.kwargs.max_assistant_turns=8", "env.backend=thread"),
        ),
        expert=1.0,
        budget=150_000,
        common=("rollout.max_response_length=16", "engine.max_context=768"),
        start=(
            *("warm_start.steps=85", "warm_start.batch_size=32", "warm_start.demonstrations=200"),
            "warm_start.step_timeout_s=1800",  # the first reset compiles the games
        ),
        tries=("actor.lr=1e-4", "actor.lr=2e-4", "actor.lr=3e-4"),
        tuning=(100,),
    ),
    # It needs tau2's data folder: docs/environments/tau2.md.
    "tau2": Family(
        env=_small("tau2"),
        expert=1.0,
        budget=150_000,
        common=("rollout.max_response_length=48", "engine.max_context=768"),
        start=("warm_start.steps=800", "warm_start.batch_size=16", "warm_start.demonstrations=1500"),
        tries=("actor.lr=1e-4", "actor.lr=2e-4", "actor.lr=3e-4"),
        tuning=(100,),
    ),
}
_COMMON = (
    *("trainer.threads=1", "trainer.logger=[jsonl]", "trainer.resume_mode=disable", "model.device=cpu"),
    *("actor.lr_schedule=constant", "actor.lr_warmup_steps=0", "actor.mini_batches=1"),
    "data.val_size=96",
)
#: Each estimator's overrides besides the learning rate. 64 episodes a batch; of `fork` 24 with a fork at
#: every turn, about as many tokens. Those that compare within the batch are quieter with fewer episodes a task
#: (`python -m benchmarks.estimators.forked`).
ESTIMATORS = {
    "fork": ("rollout.groups_per_batch=24", "rollout.n=1"),
    "turn_grpo": ("rollout.groups_per_batch=32", "rollout.n=2"),
    "gigpo": ("rollout.groups_per_batch=16", "rollout.n=4"),
    "turn_gae": ("rollout.groups_per_batch=64", "rollout.n=1"),
    "grpo": ("rollout.groups_per_batch=16", "rollout.n=4"),
}
Key = tuple[str, str, str, int]  # family, estimator, try, seed
#: Validations of a run; the score that ends it early, as a share of the expert's, when the mean of two reaches it.
VALIDATIONS, ENOUGH = 9, 0.93


@dataclass(frozen=True)
class Start:
    """A policy to start from.

    Args:
        family: Of :data:`FAMILIES`.
        seed: Of the runs that start there; ``None`` for the policy that imitates the scripted expert, which is the same
            for all seeds and which each seed makes careless.
    """

    family: str
    seed: int | None

    def path(self, folder: Path) -> Path:
        return folder / (self.family if self.seed is None else f"{self.family}-{self.seed}")


def missing_start(family: str, seed: int, folder: Path) -> Start | None:
    """Return the policy to make next before a run can start; ``None`` if none is missing."""
    if Start(family, seed).path(folder).exists():
        return None
    taught = Start(family, None)
    return Start(family, seed) if taught.path(folder).exists() else taught


def make_start(start: Start, folder: Path) -> dict[str, float]:
    """Make a start; return its costs, and its score on the validation tasks.

    A policy that imitates the expert and scores well below it means that runs cannot get to its score either.
    """
    began = time.process_time()
    common = ("warm_start.enable=true", "warm_start.careless_steps=0")
    if start.seed is None:
        overrides = ("warm_start.mistake_rate=0", "warm_start.lr=2e-3", "trainer.seed=0", *FAMILIES[start.family].start)
    else:
        overrides = (
            *(f"model.path={Start(start.family, None).path(folder)}", f"trainer.seed={start.seed}"),
            *("warm_start.mistake_rate=0.5", "warm_start.mistake_weight=1", "warm_start.steps=40"),
            *("warm_start.lr=5e-4", "warm_start.batch_size=16", "warm_start.demonstrations=640"),
        )
    family, model = FAMILIES[start.family], start.path(folder)
    with tempfile.TemporaryDirectory() as temporary:
        place = _place(start.family, temporary)
        score = asyncio.run(_export([*_COMMON, *family.common, *common, *overrides, *place], Path(temporary) / "model"))
        shutil.copytree(Path(temporary) / "model", model.with_suffix(".new"), dirs_exist_ok=True)
        model.with_suffix(".new").replace(model)  # a kill leaves no half of a policy
    return {"score": score, "cpu_s": round(time.process_time() - began, 1)}


async def _export(overrides: Sequence[str], folder: Path) -> float:
    async with assemble(resolve(overrides)[0]) as run:
        run.learner.export_hf(folder, tokenizer=run.tokenizer)
        return await _score(run)


def _place(family: str, folder: str) -> list[str]:
    return [*FAMILIES[family].env, f"trainer.default_local_dir={folder}/run"]


def do(key: Key | Start, starts: Path) -> dict[str, Any]:
    """Make a policy to start from, or make a run."""
    if isinstance(key, Start):
        return make_start(key, starts)
    family, estimator, this, seed = key
    settings = [f"algorithm.adv_estimator={estimator}", this, *ESTIMATORS[estimator]]
    return play(family, settings, seed, Start(family, seed).path(starts))


def play(family: str, estimator: Sequence[str], seed: int, model: Path) -> dict[str, Any]:
    """Make a run; return its curve, a list of ``[sampled tokens, score]``, and its costs.

    Args:
        family: Of :data:`FAMILIES`.
        estimator: Overrides for the estimator.
        seed: Of the run.
        model: Where it starts.
    """
    began = time.process_time()
    logging.getLogger("trainers").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as temporary:
        overrides = [*_COMMON, *FAMILIES[family].common, *estimator, f"model.path={model}", f"trainer.seed={seed}"]
        curve, seen = asyncio.run(_trained([*overrides, *_place(family, temporary)], FAMILIES[family]))
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
            roots, forks = roots + len(batch.trajectories), forks + len(batch.of("fork"))
            if tokens >= due:
                curve.append((tokens, await _score(run)))
                due = tokens + family.budget / VALIDATIONS
        return curve, {"iterations": run.iteration, "roots": roots, "forks": forks}


async def _score(run: Run) -> float:
    """Return the mean return of validation episodes, sampled as those of training."""
    sampling = Sampling(temperature=1.0, max_new_tokens=run.config.rollout.max_response_length)
    ((name, tasks),) = run.validation_tasks.items()
    seed, backend = run.config.trainer.seed, run.validation[name]
    episodes = await run.collector.evaluate(tasks, samples=1, sampling=sampling, seed=seed, backend=backend)
    return round(float(np.mean([episode.total_reward for episode in episodes])), 4)
