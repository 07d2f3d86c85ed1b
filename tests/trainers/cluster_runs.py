"""Short PPO runs for the tests of the cluster: exact where one request is served at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ppo_runs import MODEL, metrics_of

from trainers.command_line import load_config
from trainers.ppo import train
from trainers.run import Run, assemble

OPTIONS = [
    *MODEL,
    *("env.id=program_envs:tests/bytes", "env.val_kwargs={}", "warm_start.enable=false"),
    *("warm_start.mistake_rate=0", "warm_start.careless_steps=0", "warm_start.demonstrations=32"),
    *("rollout.groups_per_batch=2", "rollout.n=2", "rollout.max_response_length=6", "rollout.max_running=1"),
    *("algorithm.adv_estimator=gae", "actor.lr=0.003", "actor.lr_warmup_steps=0", "actor.lr_schedule=constant"),
    *("engine.max_slots=8", "engine.max_context=192", "engine.threads=1", "trainer.threads=1"),
    *("data.val_size=2", "trainer.val_before_train=false", "trainer.logger=jsonl", "trainer.total_iterations=3"),
    "actor.use_kl_loss=true",
]


def run(folder: Path, *overrides: str, then: Callable[[Run], Any] | None = None) -> list[dict[str, Any]]:
    """A whole run; its metrics, a mapping a line. ``then`` is awaited at the end, before all is closed."""

    async def go() -> None:
        async with assemble(load_config([*OPTIONS, f"trainer.default_local_dir={folder}", *overrides])[0]) as made:
            await train(made)
            if then is not None:
                await then(made)

    asyncio.run(go())
    return metrics_of(folder)


def assert_same_metrics(actual: list[dict[str, Any]], expected: list[dict[str, Any]], rel: float) -> None:
    """But for times and memory, and what scripts earn, which is only measured where environments run inline."""
    assert len(actual) == len(expected) > 3
    timed, measured = ("time/", "perf/", "rollout/", "reference/"), ("tokens_per_s", "tflops", "mfu", "peak_gib")
    for row, other in zip(actual, expected, strict=True):
        names = {name for name in other if not name.startswith(timed) and not name.endswith(measured)}
        assert {"step"} < names <= set(row)
        # Which tokens a rank pads with depends on the ranks.
        for name in names - {"actor/padding", "critic/padding"}:
            assert row[name] == pytest.approx(other[name], rel=rel, abs=rel), (row["step"], name)
