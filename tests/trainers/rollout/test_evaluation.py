"""Evaluation beside collection, closing, and interrupts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from collector_helpers import collect, collector_of, engine_of, says, slow_env, task_of, tokens, wordy
from rollout_fakes import AsyncEnv
from simulated_time import simulated

from benchmarks.simulation.clock import run_simulated
from benchmarks.simulation.scripted import Reply
from trainers.engines.base import Sampling
from trainers.rollout.batch import Batch
from trainers.rollout.collector import Collector
from trainers.rollout.environments import Backend, EnvSpec
from trainers.rollout.group_scheduler import CollectionError
from trainers.trajectory import Status, Trajectory


def test_evaluation_is_independent_of_collection() -> None:
    async def run(collecting: bool) -> tuple[list[Trajectory], dict[str, float]]:
        engine, backend, other = engine_of(wordy), Backend(slow_env()), Backend(slow_env(5), workers=2)
        async with backend, other, collector_of(engine, backend, staleness=1) as collector:
            if collecting:
                await collector.next_batch()
                before = collector.stats()
            tasks: list[Any] = [4, 1, {"task_index": 9}]
            sampling = Sampling(temperature=0.0, max_new_tokens=30)
            results = await collector.evaluate(tasks, samples=2, sampling=sampling, backend=other)
            if collecting:
                assert collector.stats()["groups_admitted"] == before["groups_admitted"], "it takes no slot"
                await collector.update_weights(None, 1)
                assert len((await collector.next_batch()).groups) == 3
            return results, other.stats()

    alone, stats = run_simulated(run(collecting=False))
    beside, _ = run_simulated(run(collecting=True))
    assert [t.task_key for t in alone] == ["4", "4", "1", "1", "9", "9"]
    assert stats["made"] == 2
    assert len({t.episode_id for t in alone}) == 6
    for one, other in zip(alone, beside, strict=True):
        assert one == other


def test_evaluation_shows_failures_by_status_and_retries_none() -> None:
    async def run() -> list[Trajectory]:
        engine = engine_of(lambda call, version: Reply(tokens("1 raise" if task_of(call) == 2 else "1 end")))
        async with Backend(EnvSpec(AsyncEnv)) as backend:
            return await collector_of(engine, backend).evaluate(range(4))

    statuses = [t.status for t in run_simulated(run())]
    assert statuses == [Status.COMPLETED, Status.COMPLETED, Status.ERROR_ENV, Status.COMPLETED]


@simulated
async def test_close_ends_all_and_wakes_waiters() -> None:
    engine = engine_of(says("1 on", hangs=True))
    async with Backend(EnvSpec(AsyncEnv)) as backend:
        collector = collector_of(engine, backend)
        waiting = asyncio.ensure_future(collector.next_batch())
        await asyncio.sleep(10)
        assert engine.stats()["running"] == 6
        await collector.close()
        with pytest.raises(CollectionError, match="closed"):
            await waiting
        await collector.close()
        assert engine.stats()["running"] == 0
        assert len(engine.released) == 6
        assert backend.stats()["leased"] == 0
        with pytest.raises(CollectionError, match="closed"):
            await collector.next_batch()
    assert asyncio.get_running_loop().time() < 20
    assert len(asyncio.all_tasks()) == 1


@simulated
async def test_interrupt_while_waiting_leaves_nothing_behind() -> None:
    engine = engine_of(says("1 on", hangs=True))
    task = asyncio.ensure_future(collect(engine))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(asyncio.all_tasks()) == 1
    assert len(engine.released) == 6


def test_update_that_breaks_bound_never_reaches_engine() -> None:
    engine = engine_of(wordy)

    async def extra(collector: Collector, batch: Batch) -> None:
        with pytest.raises(ValueError, match="1 batch"):
            await collector.update_weights("unseen", 3)

    run_simulated(collect(engine, staleness=1, after=extra))
    assert engine.version == 1
    assert engine.weights is None
