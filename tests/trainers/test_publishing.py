"""New weights on their way to the engine, beside the next iteration where staleness allows; and failures of it."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from ppo_runs import in_process, training_of

from trainers.cluster.rank import RankHost
from trainers.engines.base import EngineError
from trainers.learner.checkpoint import Background
from trainers.run import Run, until_stopped

TWO = ("trainer.total_iterations=2", "trainer.save_freq=-1", "trainer.test_freq=-1", "rollout.staleness=1")


def checkpoints_of(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("iteration_")) for path in folder.glob("checkpoints/iteration_*"))


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


# What the engine does with requests in flight is in engines/test_conformance.py.
@pytest.mark.parametrize("mode", ["keep", pytest.param("wait", marks=pytest.mark.slow)])
def test_optimizer_step_waits_for_parameter_transfer(mode: str, tmp_path: Path) -> None:
    """The first update begins only after the second iteration's forward passes: a loop that waited would hang."""
    seen: dict[str, Any] = {}

    def look(run: Run) -> None:
        update, values = run.collector.update_weights, run.learner.values
        engine: Any = run.collector._engine

        def read(*args: Any) -> Any:  # the critic, at the end of an iteration's forward passes
            seen["passes"] = seen.get("passes", 0) + 1
            return values(*args)

        async def slow(weights: Any, version: int, mode: Any = "keep") -> None:
            before = run.learner.weights()
            if version == 1:
                async with asyncio.timeout(120):
                    while seen["passes"] < 2:
                        await asyncio.sleep(0.01)
                await asyncio.sleep(0.3)  # in which a step would be taken
                seen["steps"] = run.learner.actor_optimizer.step_count
            await update(weights, version, mode)
            seen[f"same {version}"] = same(before, engine._scheduler._decoder.parameters)

        run.learner.values, run.collector.update_weights = read, slow  # type: ignore[method-assign, assignment]

    in_process(tmp_path, *TWO, "model.dtype=float32", f"rollout.update_mode={mode}", look=look)
    assert seen == {"passes": 2, "steps": 2, "same 1": True, "same 2": True}  # two steps an iteration
    rows = training_of(tmp_path)
    assert [row["rollout/staleness_max"] for row in rows] == [0.0, 1.0]


# Without staleness nothing runs meanwhile.
@pytest.mark.parametrize("staleness", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_checkpoints_and_validation_wait_for_weights(tmp_path: Path, staleness: int) -> None:
    order: list[str] = []

    def look(run: Run) -> None:
        update, evaluate, save = run.collector.update_weights, run.collector.evaluate, run.saved.save

        async def slow(weights: Any, version: int, mode: Any = "keep") -> None:
            await asyncio.sleep(0.2)
            await update(weights, version, mode)
            order.append(f"published {version}")

        def evaluated(*args: Any, **kwargs: Any) -> Any:
            order.append("validated")
            return evaluate(*args, **kwargs)

        def saved(*args: Any, **kwargs: Any) -> Any:
            order.append(f"saved {args[0]}")
            return save(*args, **kwargs)

        run.collector.update_weights, run.collector.evaluate = slow, evaluated  # type: ignore[method-assign, assignment]
        run.saved.save = saved  # type: ignore[method-assign]

    overrides = ("trainer.test_freq=1", "trainer.save_freq=1", f"rollout.staleness={staleness}")
    in_process(tmp_path, *TWO, *overrides, look=look)
    iterations = [[f"published {n}", "validated", f"saved {n}"] for n in (1, 2)]
    assert order[-6:] == [event for iteration in iterations for event in iteration]


def test_failed_update_ends_run_and_saves(tmp_path: Path) -> None:
    def look(run: Run) -> None:
        async def fail(weights: Any, version: int, mode: Any = "keep") -> None:
            await asyncio.sleep(0.1)
            raise EngineError("the workers are gone")

        run.collector.update_weights = fail  # type: ignore[method-assign]

    with pytest.raises(EngineError, match="the workers are gone"):
        in_process(tmp_path, "trainer.total_iterations=9", "rollout.staleness=1", "trainer.save_freq=-1", look=look)
    assert checkpoints_of(tmp_path)[-1] in (1, 2)  # the batch that was there already may have been learned too


async def test_ready_batch_survives_stop_or_failed_update() -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    batch, update = loop.create_future(), loop.create_future()
    waiting = asyncio.ensure_future(until_stopped(batch, stop, update))
    await asyncio.sleep(0)
    batch.set_result("batch")
    stop.set()
    update.set_exception(EngineError("gone"))
    assert await waiting == "batch"
    update.exception()

    update = loop.create_future()
    update.set_exception(EngineError("gone"))
    with pytest.raises(EngineError, match="gone"):
        await until_stopped(loop.create_future(), asyncio.Event(), update)

    update, batch = loop.create_future(), loop.create_future()
    update.set_result(None)
    waiting = asyncio.ensure_future(until_stopped(batch, asyncio.Event(), update))
    await asyncio.sleep(0.01)
    batch.set_result("later")
    assert await waiting == "later"


def test_snapshot_transfer_does_not_block_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())  # a rank sets what torchrun would
    host, order, first, done = RankHost(0, 1), [], threading.Event(), threading.Event()
    host._sending = Background()

    def publish(number: int, *, apart: bool) -> int:
        if number == 1:
            assert first.wait(100)
        order.append(number)
        return number

    monkeypatch.setattr(host, "publish", publish)

    def start() -> None:
        host.start_publishing(1)
        host.start_publishing(2)
        done.set()

    threading.Thread(target=start, daemon=True).start()
    returned = done.wait(60)
    first.set()
    assert returned, "the second snapshot waits in its own thread"
    host._sending.wait()
    assert (order, host.published()) == ([1, 2], 2)
