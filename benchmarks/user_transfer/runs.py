"""One training with users of one family, or of all, and the evaluation of its policy with users of one family."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from textenvs.evaluate.plan import jobs
from textenvs.evaluate.records import Record
from textenvs.evaluate.runner import run as play_all
from textenvs.registry import make
from trainers.command_line import resolve
from trainers.ppo import iterate
from trainers.run import assemble
from trainers.serving.local_policy import LocalPolicy

#: `collab-math` about the code of a lock: the user holds it back, so asking and reading the answer decide.
ENV = "benchmarks.fork_credit.envs:fork-credit/collab-math-v0"
#: Families of users that policies are trained on, and two that none is. All are manners of the scripted user.
TRAINED = ("plain", "vague", "wordy", "changing_mind", "non_native")
UNSEEN = ("forgetful", "impatient")
#: The user that is a language model, where one is given; a policy is trained on it, and all are played with it.
MODEL = "model"
IMITATION, START, POPULATION = "imitation", "start", "population"

ITERATIONS = 48
_LIMITS = ("rollout.max_response_length=24", "engine.max_context=384")
_COMMON = (
    *("trainer.threads=1", "trainer.logger=[jsonl]", "trainer.resume_mode=disable", "model.device=cpu", *_LIMITS),
    *("actor.lr_schedule=constant", "actor.lr_warmup_steps=0", "actor.mini_batches=1", "actor.lr=3e-4"),
    *("algorithm.adv_estimator=turn_grpo", "rollout.groups_per_batch=32", "rollout.n=2", "data.val_size=1"),
)
#: First the expert with plain users is imitated. Then the start reads a few users of the other families, and learns
#: to guess instead of asking: it knows their words, and serves none of them well.
_IMITATE = (
    *("trainer.seed=0", "warm_start.steps=450", "warm_start.batch_size=24", "warm_start.demonstrations=3000"),
    *("warm_start.mistake_rate=0", "warm_start.careless_steps=40", "warm_start.careless_rate=0.6"),
    "warm_start.lr=2e-3",
)
_READ = (
    *("warm_start.enable=true", "warm_start.steps=100", "warm_start.lr=5e-4", "warm_start.batch_size=24"),
    *("warm_start.demonstrations=1200", "warm_start.mistake_rate=0.5", "warm_start.mistake_weight=1"),
    *("warm_start.careless_steps=0", f"env.kwargs.manner={json.dumps(['plain'] * 6 + list(TRAINED[1:]))}"),
)


#: A hash of the above: policies and results of other settings are not reused.
SETTINGS = hashlib.sha256(repr((ENV, ITERATIONS, _COMMON, _IMITATE, _READ)).encode()).hexdigest()[:8]


def kwargs_of(family: str, user: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"user": dict(user or {})} if family == MODEL else {"manner": family}


def train(
    name: str, seed: int, families: Sequence[str], user: Mapping[str, Any] | None, folder: Path
) -> dict[str, Any]:
    """Train on users of ``families``, in equal shares, from the start, and keep the policy; return the costs.

    Args:
        name: Of the policy, and with ``seed`` of its folder in ``folder``; :data:`START` is the warm start itself.
        seed: Of the run.
        families: One, or several for a mixture.
        user: How to reach the model that plays users of the family :data:`MODEL`.
        folder: Where policies are.
    """
    began = time.process_time()
    logging.getLogger("trainers").setLevel(logging.WARNING)
    model = model_of(name, seed, folder)
    before = model_of(IMITATION if name == START else START, 0, folder)
    if name != IMITATION and not before.exists():
        train(before.name.removesuffix("-0"), 0, (), user, folder)
    overrides = [*_COMMON, f"trainer.seed={seed}"]
    if name == IMITATION:
        overrides += [*_IMITATE, f"env.id={ENV}"]
    elif name == START:
        overrides += [*_READ, f"env.id={ENV}", f"model.path={before}"]
    else:
        overrides += [f"model.path={before}", *_environments(families, user)]
    with tempfile.TemporaryDirectory() as temporary:
        overrides.append(f"trainer.default_local_dir={temporary}/run")
        tokens = asyncio.run(
            _trained(overrides, 0 if name in (IMITATION, START) else ITERATIONS, Path(temporary) / "model")
        )
        shutil.copytree(Path(temporary) / "model", model)
    return {"sampled_tokens": tokens, "cpu_s": round(time.process_time() - began, 1)}


def model_of(name: str, seed: int, folder: Path) -> Path:
    return folder / SETTINGS / f"{name}-{seed}"


def _environments(families: Sequence[str], user: Mapping[str, Any] | None) -> list[str]:
    if len(families) == 1:
        return [f"env.id={ENV}", f"env.kwargs={json.dumps(kwargs_of(families[0], user))}"]
    parts = [(f"env.mixture.{family}", kwargs_of(family, user)) for family in families]
    return [word for key, kwargs in parts for word in (f"{key}.id={ENV}", f"{key}.kwargs={json.dumps(kwargs)}")]


async def _trained(overrides: Sequence[str], iterations: int, model: Path) -> int:
    tokens = 0
    async with assemble(resolve(overrides)[0]) as run:
        for _ in range(iterations):
            phases = run.reporter.phases()
            with phases("rollout"):
                batch = await run.collector.next_batch()
            metrics, _ = await iterate(run, batch, phases)
            tokens += int(metrics["perf/sampled_tokens"])
            run.iteration += 1
        run.learner.export_hf(model, tokenizer=run.tokenizer)
    return tokens


def score(model: Path, family: str, user: Mapping[str, Any] | None) -> dict[str, Any]:
    """Play all held-out tasks with a user of ``family``, at temperature 1; equal tasks and seeds for every policy.

    Returns:
        ``solved``, a digit a task (``-`` where the episode failed), and the mean ``return`` and assistant ``turns``.
    """
    kwargs = kwargs_of(family, user)
    records = asyncio.run(_played(model, kwargs))
    good = [record for record in records if not record.failed]
    return {
        "solved": "".join("-" if record.failed else str(int(bool(record.success))) for record in records),
        "return": round(float(np.mean([record.total for record in good])), 4),
        "turns": round(float(np.mean([record.assistant_turns for record in good])), 2),
    }


async def _played(model: Path, kwargs: Mapping[str, Any]) -> list[Record]:
    policy = LocalPolicy(str(model), temperature=1.0, max_response_length=24, concurrency=64, device="cpu")
    size = make(ENV, split="test", **kwargs).tasks.size
    assert size is not None
    records: list[Record] = []
    try:
        await play_all(
            jobs(range(size), 1, 0),
            lambda: make(ENV, split="test", **kwargs),
            policy,
            on_record=records.append,
            concurrency=64,
        )
    finally:
        await policy.aclose()
    return sorted(records, key=lambda record: record.place)
