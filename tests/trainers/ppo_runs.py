"""Small PPO runs, in this process: their arguments, what they write, and what they say when they are refused."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

import trainers
from textenvs.messages import Messages
from trainers.checkpoints import CheckpointError
from trainers.command_line import load_config
from trainers.ppo import main, train
from trainers.run import Run, assemble
from trainers.trajectory import Trajectory, read_parquet

logging.getLogger("c10d-NullHandler-dcp_logger").setLevel(logging.WARNING)  # or a failure shows little else

ROOT = Path(__file__).resolve().parents[2]

MODEL = ["model.hidden=32", "model.layers=1", "model.heads=2", "model.kv_heads=1", "model.vocab_size=300"]
WARM = ["warm_start.demonstrations=32", "warm_start.steps=3", "warm_start.batch_size=8", "warm_start.careless_steps=2"]
SMALL = [
    *("rollout.groups_per_batch=2", "rollout.n=2", "rollout.max_response_length=6", "actor.mini_batches=2"),
    *("algorithm.adv_estimator=gae", "actor.lr_warmup_steps=0", "actor.lr_schedule=constant"),
    *("engine.max_slots=8", "engine.max_context=192", "engine.threads=1", "data.val_size=3", "trainer.threads=1"),
]
QUICK = [
    *("env.id=program_envs:tests/bytes", "env.val_kwargs={}", "warm_start.enable=false", "trainer.logger=jsonl"),
    *("warm_start.mistake_rate=0", "warm_start.careless_steps=0", "trainer.val_before_train=false", "actor.lr=0.003"),
]


def arguments(folder: Path, *overrides: str) -> list[str]:
    return [*MODEL, *WARM, *SMALL, f"trainer.default_local_dir={folder}", *overrides]


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def training_of(folder: Path) -> list[dict[str, Any]]:
    return [row for row in metrics_of(folder) if "train/reward" in row]


def in_process(
    folder: Path, *overrides: str, look: Callable[[Run], None] = lambda run: None, stop_after: int | None = None
) -> Run:
    """A run without its last page, and the run to look at."""

    def asked_to_stop(run: Run) -> None:
        report = run.reporter.iteration

        def report_and_stop(step: int, *rest: Any) -> None:
            report(step, *rest)
            if step == stop_after:
                run.stop.set()

        run.reporter.iteration = report_and_stop  # type: ignore[method-assign]

    async def go() -> Run:
        async with assemble(load_config(arguments(folder, *QUICK, *overrides))[0]) as run:
            look(run)
            asked_to_stop(run)
            await train(run)
            return run

    return asyncio.run(go())


def episodes_of(folder: Path) -> list[Trajectory]:
    """Return the episodes that a run wrote to ``trainer.rollout_data_dir``, in order."""
    return [trajectory for file in sorted(folder.glob("*.parquet")) for trajectory in read_parquet(file)]


def up_to(trajectory: Trajectory, turn: int) -> Messages:
    """Return the conversation that ends with the reply of this turn."""
    replies = [place for place, message in enumerate(trajectory.messages) if message["role"] == "assistant"]
    return tuple(trajectory.messages[: replies[turn] + 1])


def finite(row: dict[str, Any]) -> bool:
    return all(isinstance(value, int | float) and math.isfinite(value) for value in row.values())


# What depends on the clock or on how often the process was started.
PASSING = (
    *("time/", "perf/", "rollout/wait_s", "rollout/env_", "rollout/time_", "rollout/loop_lag_", "rollout/bubble_"),
    *("rollout/engine_busy", "rollout/queue_"),
)


def comparable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    measured = ("tokens_per_s", "tflops", "peak_gib")
    return [
        {name: v for name, v in row.items() if not name.startswith(PASSING) and not name.endswith(measured)}
        for row in rows
    ]


def refused(capsys: pytest.CaptureFixture[str], argv: Sequence[str], *words: str, code: int = 1) -> str:
    try:
        status = main(argv)
    except SystemExit as ended:  # of the configuration
        status = ended.code  # type: ignore[assignment]
    assert status == code
    output = capsys.readouterr().err
    assert "Traceback (most recent call last):\n  File" not in output or "the environment's " in output
    for word in words:
        assert word in output, f"{word!r} is not in:\n{output}"
    return output


def each_batch(change: Callable[[Any], Any]) -> Callable[[Run], None]:
    """Return what to ``look`` with: a run's batches are what this returns of them, or as they are where it is None."""

    def look(run: Run) -> None:
        next_batch = run.collector.next_batch

        async def changed() -> Any:
            batch = await next_batch()
            made = change(batch)
            return batch if made is None else made

        run.collector.next_batch = changed  # type: ignore[method-assign]

    return look


def check_trainer(make: Callable[[Sequence[str]], Any], usual: Sequence[str], folder: Path) -> None:
    """A trainer trains two iterations, evaluates, leaves a model, resumes, and refuses another run's folder."""
    options = [*usual, f"trainer.default_local_dir={folder}"]
    with make(options) as trainer:
        assert isinstance(trainer, trainers.Trainer)
        result = trainer.fit()
        assert result.iterations == 2
        assert not result.stopped
        assert {"train/reward", "val/reward"} <= set(result.metrics)
        assert AutoModelForCausalLM.from_pretrained(result.model).config.hidden_size == 32
        assert AutoTokenizer.from_pretrained(result.model).chat_template
        assert result.checkpoint.is_dir()
        assert trainer.evaluate()["val/reward"] == pytest.approx(result.metrics["val/reward"], abs=1e-6)
    assert {row["step"] for row in training_of(folder)} == {1, 2}
    # It resumes from there, and a run of something else does not.
    with make([*options, "trainer.total_iterations=3"]) as again:
        last = again.fit()
        assert last.iterations == 3
    with make(options) as later:
        assert later.evaluate()["val/reward"] == pytest.approx(last.metrics["val/reward"], abs=1e-6)
    assert [row["step"] for row in training_of(folder)] == [1, 2, 3]
    other = make([*options, "trainer.seed=5"])
    with other, pytest.raises(CheckpointError, match="trainer.seed was 0 and is now 5"):
        other.fit()
