"""A collector of 64 episodes over replicas that fail in the middle: nothing is lost, counted twice, or waited for."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from collector_helpers import collector_of, tokens, turn_of
from fragile import Fragile
from rollout_fakes import AsyncEnv
from simulated_time import simulated

from benchmarks.simulation.clock import run_simulated
from benchmarks.simulation.scripted import Call, Reply
from trainers.engines.base import EngineDeadError
from trainers.engines.replica import Limits
from trainers.engines.replicas import Replicas
from trainers.rollout.batch import Batch
from trainers.rollout.collector import Collector
from trainers.rollout.environments import Backend, EnvSpec
from trainers.trajectory import Trajectory

GROUPS, SIBLINGS, TURNS = 16, 4, 3


def script(call: Call) -> Reply:
    """Words of random number and speed, by prompt and seed alone: whichever replica says them."""
    if call.token_ids == (0,):  # a probe
        return Reply([1])
    rng = random.Random(f"{call.token_ids} {call.sampling.seed}")
    words = " ".join(str(rng.randrange(10)) for _ in range(rng.randrange(2, 7)))
    return Reply(tokens(f"{words} on"), latency=rng.random() * 3, per_token=rng.random() / 5)


async def collected(
    fault: Callable[[list[Fragile], Collector], Awaitable[None]] | None,
    count: int = 3,
    batches: int = 2,
    **options: Any,
) -> tuple[list[Batch], list[Trajectory], Replicas, list[Fragile], float]:
    """``batches`` batches of 64 episodes of three turns each, with ``fault`` beside; and when they were there."""
    engines = [Fragile(script, vocab_size=128) for _ in range(count)]
    replicas = Replicas(engines, limits=Limits(update_timeout=50.0), **options)
    seen: list[Trajectory] = []
    result = []
    sizes: dict[str, Any] = {"tasks": None, "n": SIBLINGS, "groups_per_batch": GROUPS}
    async with Backend(EnvSpec(AsyncEnv, {"turns": TURNS, "delay": lambda task, turn: (task + turn) % 4})) as backend:
        async with collector_of(replicas, backend, on_trajectory=seen.append, **sizes) as collector:
            beside = None if fault is None else asyncio.ensure_future(fault(engines, collector))
            for step in range(batches):
                result.append(await collector.next_batch())
                await collector.update_weights(f"weights {step + 1}", step + 1)
            if beside is not None:
                await beside
        ended = asyncio.get_running_loop().time()
    return result, seen, replicas, engines, ended


def words(batches: list[Batch]) -> list[Any]:
    return [
        [(t.episode_id, t.token_ids.tolist(), t.turn_rewards.tolist(), t.status) for t in group]
        for batch in batches
        for group in batch.groups
    ]


@functools.cache
def calm() -> tuple[list[Any], float]:
    """Return the words of the batches without a fault, and when they were there."""
    batches, *_, ended = run_simulated(collected(None))
    return words(batches), ended


def check(
    fault: Callable[[list[Fragile], Collector], Awaitable[None]], *, lost: int, within: float, **options: Any
) -> dict[str, float]:
    """Every group is there, as without the fault; no token is counted twice; and it takes not much longer."""
    expected, before = calm()
    batches, seen, replicas, _, after = run_simulated(collected(fault, **options))
    assert [len(batch.groups) for batch in batches] == [GROUPS, GROUPS]
    assert words(batches) == expected, "no episode shows a trace of it"
    assert len(seen) == 2 * GROUPS * SIBLINGS, "none was played twice"
    for batch in batches:
        assert {int(v) for t in batch.trajectories for v in t.weight_version[t.action_mask]} == {batch.version}
    stats = replicas.stats()
    assert stats["generated_tokens"] == sum(int(t.action_mask.sum()) for t in seen), "every token once"
    assert stats["requests"] == 2 * GROUPS * SIBLINGS * TURNS
    assert stats["running"] == 0
    assert stats["replicas_up"] == 3 - lost
    assert after - before <= within
    return stats


async def middle_of_a_turn(engines: list[Fragile]) -> None:
    await asyncio.sleep(4.3)
    assert engines[0].stats()["running"] > 3
    assert any(turn_of(call) > 0 for call in engines[0].calls)


@pytest.mark.parametrize(
    ("what", "lost", "within", "at_least"),
    [
        ("dies", 1, 10.0, {"retries": 4, "moves": 4}),
        ("two die", 2, 20.0, {"retries": 4}),
        ("hangs", 1, 60.0 + 10.0 + 20.0, {}),
        ("talks nonsense", 1, 15.0, {"faults": 3}),
    ],
)
def test_faulty_replica_changes_no_episode(what: str, lost: int, within: float, at_least: dict[str, int]) -> None:
    async def fault(engines: list[Fragile], collector: Collector) -> None:
        await middle_of_a_turn(engines)
        match what:
            case "hangs":
                engines[0].hang()
            case "talks nonsense":
                engines[0].mangle = lambda reply: replace(reply, logprobs=reply.logprobs[:-1])
            case _:
                for engine in engines[:lost]:
                    engine.die(MemoryError("injected"))
                    await asyncio.sleep(0.5)

    stats = check(fault, lost=lost, within=within)
    assert all(stats[name] >= count for name, count in at_least.items())


# One that refuses is taken out where one that breaks is; test_faulty_replica_changes_no_episode has one that hangs.
@pytest.mark.parametrize(
    "how", ["refuses", *(pytest.param(h, marks=pytest.mark.slow) for h in ("breaks", "hangs")), "dies"]
)
def test_update_that_fails_on_one_replica_is_survived(how: str, caplog: pytest.LogCaptureFixture) -> None:
    async def fault(engines: list[Fragile], collector: Collector) -> None:
        if how == "hangs":
            engines[1].lag_update = 1e9
        elif how == "dies":
            engines[1].lag_update = 5.0
            while not collector.stats().get("groups_delivered"):
                await asyncio.sleep(0.5)
            engines[1].die(MemoryError("injected"))
        else:
            engines[1].fail_update = ValueError("no such name") if how == "refuses" else OSError("broken pipe")

    check(fault, lost=1, within=60.0)
    assert "2 of 3 replicas have version 1; taken out: replica 1" in caplog.text


@simulated
async def test_all_replicas_dead_stops_run_with_causes() -> None:
    async def fault(engines: list[Fragile], collector: Collector) -> None:
        await middle_of_a_turn(engines)
        for number, engine in enumerate(engines):
            engine.die(MemoryError(f"cause {number}"))

    with pytest.raises(EngineDeadError, match=r"cause 0.*cause 1.*cause 2"):
        await collected(fault)
    assert asyncio.get_running_loop().time() < 10


def test_replaced_replicas_serve_current_weights() -> None:
    async def restart(index: int) -> Fragile:
        await asyncio.sleep(3)
        return Fragile(script, vocab_size=128)

    async def fault(engines: list[Fragile], collector: Collector) -> None:
        await middle_of_a_turn(engines)
        for engine in engines:
            engine.die(MemoryError("injected"))

    assert check(fault, lost=0, within=60.0, restart=restart)["replicas_restarted"] == 3
