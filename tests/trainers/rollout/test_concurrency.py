"""Concurrency: the law of the limit by itself, against models of an engine, and under a collector."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from collector_helpers import collector_of, tokens
from hypothesis import given
from hypothesis import strategies as st
from rollout_fakes import AsyncEnv
from simulated_time import simulated

from benchmarks.simulation.clock import run_simulated
from benchmarks.simulation.scripted import Reply, ScriptedEngine
from trainers.engines.base import Generation, Sampling
from trainers.rollout.concurrency import Concurrency
from trainers.rollout.environments import Backend, EnvSpec

# ---------------------------------------------------------------- the law

NUMBERS = st.one_of(st.floats(0, 2), st.floats(0, 1e6), st.sampled_from([math.nan, math.inf, -1.0]))
STATS = st.dictionaries(st.sampled_from(["running", "waiting", "kv_use", "preemptions", "requests"]), NUMBERS)


@given(
    high=st.integers(1, 500),
    initial=st.integers(-5, 1000),
    seen=st.lists(st.tuples(STATS, st.floats(0, 1.5)), max_size=60),
)
def test_limit_keeps_its_bounds_whatever_engine_says(high, initial, seen):
    law = Concurrency(high, initial)
    before = law.limit
    assert 1 <= before <= high
    for stats, share in seen:
        cuts = law.cuts
        running = int(share * before)
        limit = law.observe(stats, running)
        assert 1 <= limit <= high
        assert limit <= max(before * 1.5, before + 1), "it never leaps"
        assert limit >= min(before, math.floor(0.75 * min(before, max(running, 1)))), "nor falls below one cut"
        if limit > before:
            assert running >= 0.9 * before, "only a limit that binds is raised"
            assert not 0 < stats.get("waiting", 0) < math.inf
            assert not 0.9 <= stats.get("kv_use", 0) < math.inf
        assert law.cuts - cuts in (0, 1)
        before = limit


def drive(law: Concurrency, capacity: float, rounds: int, *, kind: str, start: float = 0.0) -> list[int]:
    """Observe a model of an engine once a round: half of what is too much ends in a round; the rest is instant.

    ``queue``: ``capacity`` requests at a time, the others wait. ``memory``: each request fills its share of the memory
    over several rounds; when it is full, requests are preempted.
    """
    running, filled, preemptions, limits = start, 0.0, 0.0, []
    for _ in range(rounds):
        running = float(law.limit) if running <= law.limit else max(law.limit, running - max(1.0, running / 10))
        if kind == "queue":
            busy = min(running, capacity)
            stats = {"running": busy, "waiting": running - busy, "kv_use": busy / capacity}
        else:
            filled += (running - filled) / 3
            preemptions += max(0.0, filled - capacity)
            stats = {"running": running, "kv_use": min(1.0, filled / capacity), "preemptions": preemptions}
        limits.append(law.observe(stats, int(running)))
    return limits


@pytest.mark.parametrize("kind", ["queue", "memory"])
@pytest.mark.parametrize("capacity", [3, 20, 64, 300])
def test_it_finds_capacity_and_stays_near(kind, capacity):
    limits = drive(Concurrency(1000), capacity, 400, kind=kind)
    settled = limits[150:]
    assert 0.7 * capacity <= min(settled) <= max(settled) <= 1.15 * capacity + 1
    assert 0.8 * capacity <= sum(settled) / len(settled) <= 1.1 * capacity + 1


@pytest.mark.parametrize("kind", ["queue", "memory"])
def test_limit_recovers_with_capacity_after_overload(kind):
    law = Concurrency(1000)
    drive(law, 200, 200, kind=kind)
    fallen = drive(law, 50, 150, kind=kind, start=law.limit)
    assert 0.65 * 50 <= fallen[-1] <= 1.15 * 50 + 1
    assert min(fallen) >= 0.4 * 50, "it is cut as far as needed, and not much further"
    risen = drive(law, 200, 600, kind=kind, start=law.limit)
    assert 0.7 * 200 <= risen[-1] <= 1.15 * 200


def test_limit_grows_slowly_after_overload():
    law = Concurrency(1000, initial=10, settle=0)
    clear = {"kv_use": 0.0, "running": 1.0}
    assert [law.observe(clear, law.limit) for _ in range(4)] == [15, 22, 33, 49]
    law.observe({"preemptions": 1.0}, 49)
    assert law.limit == 36
    assert [law.observe(clear | {"preemptions": 1.0}, law.limit) for _ in range(4)] == [36, 44, 45, 46]


def test_memory_use_bounds_increase():
    law = Concurrency(1000, initial=100, settle=0)
    assert law.observe({"kv_use": 0.75}, 100) == 120, "100 take 3/4, so 120 take 0.9"
    assert law.observe({"kv_use": 0.9}, 120) == 120


def test_moment_of_waiting_is_no_overload():
    law = Concurrency(1000, initial=100, settle=0)
    busy, calm = {"running": 50.0, "waiting": 50.0, "kv_use": 1.0}, {"running": 100.0, "kv_use": 1.0}
    for stats in (busy, busy, calm, busy, busy, calm):
        assert law.observe(stats, 100) == 100
    assert [law.observe(busy, 100) for _ in range(3)] == [100, 100, 75], "half wait, but one cut takes a quarter"


def test_overload_is_cut_again_only_if_lasting():
    law = Concurrency(1000, initial=100, settle=2)
    full = {"kv_use": 1.0}
    assert law.observe(full | {"preemptions": 0.0}, 100) == 100
    for count in range(1, 6):
        assert law.observe(full | {"preemptions": float(count)}, 100) == 75
    for count in range(6, 9):
        assert law.observe(full | {"preemptions": float(count)}, 75) == 75, "enough have ended; now it has to settle"
    assert law.observe(full | {"preemptions": 9.0}, 75) == 56


def test_preemption_by_update_is_no_overload():
    law = Concurrency(1000, initial=100, settle=0)
    for count in (1.0, 1.0, 2.0, 3.0):
        law.observe({"kv_use": 1.0, "preemptions": count}, 100)
        law.updated()
    assert (law.limit, law.cuts) == (100, 0)
    for count in (3.0, 3.0, 4.0):
        law.observe({"kv_use": 1.0, "preemptions": count}, 100)
    assert (law.limit, law.cuts) == (75, 1)


# ---------------------------------------------------------------- under a collector


class Crowded(ScriptedEngine):
    """Serves ``places`` requests at a time; the others wait."""

    def __init__(self, places: int) -> None:
        super().__init__(lambda call: Reply(tokens("1 on"), latency=2.0), vocab_size=128)
        self.places = places
        self.waiting = self.most_waiting = 0
        self._turn = asyncio.Condition()

    async def generate(self, token_ids: Any, sampling: Sampling, session: str | None = None) -> Generation:
        self.waiting += 1
        try:
            async with self._turn:
                await self._turn.wait_for(lambda: self.stats()["running"] < self.places)
        finally:
            self.waiting -= 1
        try:
            return await super().generate(token_ids, sampling, session)
        finally:
            async with self._turn:
                self._turn.notify_all()

    def stats(self) -> dict[str, float]:
        numbers = super().stats()
        return numbers | {"waiting": float(self.waiting), "kv_use": numbers["running"] / self.places}


@simulated
async def test_auto_limit_follows_engine_capacity() -> None:
    engine = Crowded(30)
    spec = EnvSpec(AsyncEnv, {"turns": 6})
    seen: list[tuple[float, float]] = []
    options: dict[str, Any] = {"tasks": None, "n": 4, "groups_per_batch": 32, "staleness": 2}
    options |= {"max_response_length": 20, "max_running": "auto"}
    async with Backend(spec) as backend, collector_of(engine, backend, **options) as collector:
        for step in range(9):
            batch = await collector.next_batch()
            seen.append((batch.stats["max_running"], batch.stats["running"]))
            if step == 5:
                engine.places = 10
            await collector.update_weights(None, batch.version + 1)
    assert 24 <= seen[5][0] <= 36
    assert 7 <= seen[8][0] <= 13, "a third of the engine is left"
    assert all(running <= 1.5 * limit for limit, running in seen)


def test_auto_limit_stays_within_bounds() -> None:
    async def run() -> float:
        engine = ScriptedEngine(lambda call: Reply(tokens("1 end"), latency=5.0), vocab_size=128)
        async with Backend(EnvSpec(AsyncEnv)) as backend:
            options: dict[str, Any] = {"tasks": None, "n": 2, "groups_per_batch": 3, "max_running": "auto"}
            async with collector_of(engine, backend, **options) as collector:
                return (await collector.next_batch()).stats["max_running"]

    assert run_simulated(run()) == 6
