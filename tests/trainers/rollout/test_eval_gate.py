"""Evaluation beside collection and updates: one version a score, one limit for all, nobody waits for ever."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from collector_helpers import collector_of, engine_of, says, slow_env, wordy
from hypothesis import given
from hypothesis import strategies as st
from rollout_fakes import AsyncEnv

from benchmarks.simulation.clock import run_simulated
from benchmarks.simulation.scripted import Call, Reply
from trainers.engines.base import EngineError, Sampling
from trainers.rollout.environments import Backend, EnvSpec
from trainers.rollout.group_scheduler import CollectionError, EvalGate, GroupRules, GroupScheduler, WeightLock
from trainers.trajectory import Trajectory

evaluations = st.lists(
    st.tuples(
        st.floats(0, 200),  # when it begins
        st.integers(1, 6),  # tasks
        st.one_of(st.none(), st.integers(1, 3)),  # its own limit
        st.one_of(st.none(), st.floats(0, 60)),  # after so long it is cancelled
    ),
    max_size=8,
)


@given(
    evaluations=evaluations,
    staleness=st.integers(0, 2),
    max_running=st.one_of(st.none(), st.integers(1, 8)),
    mode=st.sampled_from(["keep", "wait", "abort"]),
    seed=st.integers(0, 2**16),
)
def test_a_score_is_one_versions_and_the_limit_holds_for_all(
    evaluations: list[Any], staleness: int, max_running: int | None, mode: Any, seed: int
) -> None:
    """Any number of evaluations at any time, cancelled or not, beside a trainer that trains for random times."""
    updates, most, rng = 8, 0, random.Random(seed)

    async def run() -> list[list[Trajectory]]:
        def script(call: Call, version: int) -> Reply:
            nonlocal most
            most = max(most, int(engine.stats()["running"]))
            return wordy(call, version)

        engine = engine_of(script)

        async def evaluation(begin: float, tasks: int, limit: int | None, patience: float | None) -> Any:
            await asyncio.sleep(begin)
            work = collector.evaluate(range(tasks), max_running=limit)
            try:
                return await (work if patience is None else asyncio.wait_for(work, patience))
            except TimeoutError:
                return []

        async with (
            Backend(slow_env()) as backend,
            collector_of(engine, backend, staleness=staleness, max_running=max_running) as collector,
        ):
            waiting = [asyncio.ensure_future(evaluation(*one)) for one in evaluations]
            for _ in range(updates):
                batch = await collector.next_batch()
                await asyncio.sleep(rng.random() * 30)
                await collector.update_weights(None, batch.version + 1, mode)
            results = await asyncio.gather(*waiting)
            assert collector.stats()["evaluating"] == 0
            assert engine.version == updates
            return list(results)

    for trajectories in run_simulated(run()):
        assert len({int(v) for t in trajectories for v in t.weight_version[t.action_mask]}) <= 1
    assert max_running is None or most <= max_running


def test_an_update_waits_for_evaluation_and_a_later_evaluation_for_the_update() -> None:
    async def run() -> None:
        engine = engine_of(says("1 end", latency=10.0))
        loop = asyncio.get_running_loop()
        async with Backend(EnvSpec(AsyncEnv)) as backend, collector_of(engine, backend) as collector:
            batch = await collector.next_batch()
            began = loop.time()
            first = asyncio.ensure_future(collector.evaluate([1, 2]))
            await asyncio.sleep(4)
            update = asyncio.ensure_future(collector.update_weights("new", batch.version + 1))
            await asyncio.sleep(4)
            second = asyncio.ensure_future(collector.evaluate([3]))
            await update
            assert loop.time() - began == pytest.approx(10)
            assert first.done()
            assert {t.oldest_version for t in first.result()} == {0}
            assert {t.oldest_version for t in await second} == {1}
            assert loop.time() - began == pytest.approx(20)

    run_simulated(run())


def test_a_wrong_version_is_refused_at_once_and_not_after_the_evaluation() -> None:
    async def run() -> None:
        engine = engine_of(says("1 end", latency=10.0))
        loop = asyncio.get_running_loop()
        async with Backend(EnvSpec(AsyncEnv)) as backend, collector_of(engine, backend) as collector:
            await collector.next_batch()
            began = loop.time()
            playing = asyncio.ensure_future(collector.evaluate([1]))
            await asyncio.sleep(1)
            with pytest.raises(ValueError, match="version"):
                await collector.update_weights(None, 0)
            assert loop.time() - began == pytest.approx(1)
            await playing

    run_simulated(run())


def test_two_updates_that_wait_for_the_same_evaluation_are_one_too_many() -> None:
    async def run() -> None:
        engine = engine_of(says("1 end", latency=10.0))
        async with Backend(EnvSpec(AsyncEnv)) as backend, collector_of(engine, backend, staleness=1) as collector:
            await collector.next_batch()
            playing = asyncio.ensure_future(collector.evaluate([1]))
            await asyncio.sleep(1)
            one, other = (asyncio.ensure_future(collector.update_weights(None, 1)) for _ in range(2))
            await one
            with pytest.raises(ValueError, match="version"):
                await other
            await playing
            assert engine.version == 1

    run_simulated(run())


def test_a_collector_closed_while_an_update_waits_says_so() -> None:
    async def run() -> None:
        engine = engine_of(says("1 end", latency=10.0))
        async with Backend(EnvSpec(AsyncEnv)) as backend:
            collector = collector_of(engine, backend)
            await collector.next_batch()
            playing = asyncio.ensure_future(collector.evaluate([1]))
            await asyncio.sleep(1)
            update = asyncio.ensure_future(collector.update_weights(None, 1))
            await asyncio.sleep(1)
            await collector.close()
            with pytest.raises(CollectionError, match="closed"):
                await update
            assert engine.version == 0
            assert len(await playing) == 1

    run_simulated(run())


def test_an_update_that_fails_lets_evaluation_go_on() -> None:
    async def run() -> None:
        engine = engine_of(says("1 end"))

        async def broken(*given: Any) -> None:
            raise EngineError("no such weights")

        async with Backend(EnvSpec(AsyncEnv)) as backend, collector_of(engine, backend) as collector:
            await collector.next_batch()
            whole, engine.update_weights = engine.update_weights, broken  # type: ignore[method-assign,assignment]
            with pytest.raises(EngineError, match="no such weights"):
                await collector.update_weights(None, 1)
            assert len(await collector.evaluate([1, 2])) == 2
            engine.update_weights = whole  # type: ignore[method-assign]
            await collector.update_weights(None, 1)

    run_simulated(run())


def test_evaluation_has_the_places_that_get_free_before_training_has() -> None:
    """Training has all four places; each that an episode leaves is the evaluation's until all of it has begun."""
    order: list[str] = []

    async def run() -> None:
        def script(call: Call, version: int) -> Reply:
            order.append("training" if call.sampling.temperature else "evaluation")
            return Reply([*map(ord, "1 end"), 2], latency=1.0 + len(order) / 100)

        engine = engine_of(script)
        options = {"max_running": 4, "group_size": 4, "groups_per_batch": 3}
        async with Backend(EnvSpec(AsyncEnv)) as backend, collector_of(engine, backend, **options) as collector:
            batch = asyncio.ensure_future(collector.next_batch())
            await asyncio.sleep(0.5)
            now = collector.stats()
            assert (now["running"], now["evaluating"]) == (4, 0)
            await collector.evaluate(range(3), samples=2, sampling=Sampling(temperature=0.0, max_new_tokens=40))
            await batch

    run_simulated(run())
    assert order[:4] == ["training"] * 4
    assert order[4:10] == ["evaluation"] * 6
    assert order[10:] == ["training"] * 8


def test_evaluation_alone_starts_no_training() -> None:
    async def run() -> None:
        engine = engine_of(says("1 end", latency=1.0))
        async with Backend(EnvSpec(AsyncEnv)) as backend, collector_of(engine, backend) as collector:
            assert len(await collector.evaluate([1, 2])) == 2
            await collector.update_weights(None, 1)
            await asyncio.sleep(100)
            assert collector.stats()["running"] == collector.stats()["in_flight"] == 0
            assert len(engine.calls) == 2
            assert len((await collector.next_batch()).groups) == 3

    run_simulated(run())


# ---------------------------------------------------------------- the parts by themselves


class Blocks:
    """Tasks in blocks that end when told to."""

    def __init__(self) -> None:
        self.inside: list[str] = []

    def enter(self, name: str, block: Callable[[], Any]) -> asyncio.Task[None]:
        return asyncio.ensure_future(self._enter(name, block))

    async def _enter(self, name: str, block: Callable[[], Any]) -> None:
        async with block():
            self.inside.append(name)
            try:
                await asyncio.Event().wait()
            finally:
                self.inside.remove(name)


async def settled(*gone: Awaitable[Any]) -> None:
    for task in gone:
        with pytest.raises(asyncio.CancelledError):
            await task
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_gives_up_waiting_holds_nobody_back() -> None:
    pin, blocks = WeightLock(), Blocks()
    reader = blocks.enter("first", pin.held)
    await settled()
    writer = blocks.enter("update", pin.moved)
    await settled()
    later = blocks.enter("second", pin.held)
    await settled()
    assert blocks.inside == ["first"]
    writer.cancel()
    await settled(writer)
    assert blocks.inside == ["first", "second"]
    writer = blocks.enter("update", pin.moved)
    await settled()
    reader.cancel()
    later.cancel()
    await settled(reader, later)
    assert blocks.inside == ["update"]
    writer.cancel()
    await settled(writer)
    again = blocks.enter("third", pin.held)
    await settled()
    assert blocks.inside == ["third"]
    again.cancel()
    await settled(again)


async def test_a_turn_that_comes_with_a_cancellation_is_given_back() -> None:
    """The holder leaves and the waiter is cancelled in the same step of the event loop."""
    for first, second in (("held", "moved"), ("moved", "held"), ("moved", "moved")):
        pin, blocks = WeightLock(), Blocks()
        holder = blocks.enter("holder", getattr(pin, first))
        await settled()
        waiter = blocks.enter("waiter", getattr(pin, second))
        await settled()
        holder.cancel()
        await asyncio.sleep(0)  # the holder's end gives the waiter its turn, which it has not seen
        waiter.cancel()
        await settled(holder, waiter)
        for name in ("moved", "held"):
            after = blocks.enter(name, getattr(pin, name))
            await settled()
            assert blocks.inside == [name]
            after.cancel()
            await settled(after)


async def test_a_place_that_comes_with_a_cancellation_is_given_back() -> None:
    slots, blocks, freed = GroupScheduler(GroupRules(group_size=1, groups_per_batch=2, max_running=1)), Blocks(), []
    guests = EvalGate(slots, lambda: freed.append(slots.guests))
    one = blocks.enter("one", guests.place)
    await settled()
    two, three = blocks.enter("two", guests.place), blocks.enter("three", guests.place)
    await settled()
    assert (blocks.inside, guests.inside, slots.guests) == (["one"], 1, 3)
    assert slots.start() is None
    three.cancel()
    await settled(three)
    assert (guests.inside, slots.guests) == (1, 2)
    one.cancel()
    await asyncio.sleep(0)
    two.cancel()
    await settled(one, two)
    assert (blocks.inside, guests.inside, slots.guests) == ([], 0, 0)
    assert freed == [2, 1, 0]
    assert slots.start() is not None


async def test_guests_wait_for_the_books_and_enter_when_the_limit_grows() -> None:
    slots, blocks = GroupScheduler(GroupRules(group_size=1, groups_per_batch=4, max_running=2)), Blocks()
    guests = EvalGate(slots, lambda: None)
    assert slots.start()
    assert slots.start()
    tasks = [blocks.enter(str(n), guests.place) for n in range(3)]
    await settled()
    assert guests.inside == 0
    slots.max_running = 4
    guests.admit()
    await settled()
    assert blocks.inside == ["0", "1"]
    for task in tasks:
        task.cancel()
    await settled(*tasks)
