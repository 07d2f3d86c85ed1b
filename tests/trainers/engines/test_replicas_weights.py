"""Replicas and their weights, on simulated time: updates that fail, restarts, sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from fragile import Fragile
from replicas_helpers import ANY, TOKENS, now, pair, slow, start
from simulated_time import simulated

from benchmarks.simulation.scripted import Reply
from trainers.engines.base import EngineDeadError, EngineError, PartialUpdateError, SourceLostError, SupersededError
from trainers.engines.replica import Limits
from trainers.engines.replicas import Replicas

# ---------------------------------------------------------------- weights

BROKEN: dict[str, tuple[Callable[[Fragile], None], str]] = {
    "refuses": (lambda engine: setattr(engine, "fail_update", ValueError("no such name")), "no such name"),
    "breaks": (lambda engine: setattr(engine, "fail_update", RuntimeError("out of memory")), "out of memory"),
    "dies": (lambda engine: engine.die(MemoryError("injected")), "injected"),
    "is too slow": (lambda engine: setattr(engine, "lag_update", 1e6), "longer than 50 s"),
    "hangs": (lambda engine: engine.hang(), "longer than 50 s"),
}


@pytest.mark.parametrize("mode", ["keep", "wait", "abort"])
@pytest.mark.parametrize("how", BROKEN)
@simulated
async def test_replica_with_failed_update_is_removed(how: str, mode: Any) -> None:
    breaks, message = BROKEN[how]
    replicas, engines = pair(count=3, update_timeout=50.0, probe_interval=1000.0, stall_timeout=2000.0)
    await asyncio.gather(*start(replicas, 3))
    breaks(engines[1])
    with pytest.raises(PartialUpdateError, match=rf"2 of 3 replicas have version 4; taken out: replica 1: .*{message}"):
        await replicas.update_weights("new", 4, mode)
    assert replicas.version == 4
    assert [engine.version for engine in engines] == [4, 0, 4]
    made = await asyncio.gather(*start(replicas, 9))
    assert {int(version) for reply in made for version in reply.weight_version} == {4}
    stats = replicas.stats()
    assert (stats["replicas_up"], stats["updates_failed"]) == (2, 1)
    assert engines[1].closed
    await replicas.update_weights("newer", 5, mode)
    assert replicas.version == 5
    await replicas.close()


@simulated
async def test_weights_refused_by_all_change_nothing() -> None:
    replicas, engines = pair()
    for engine in engines:
        engine.fail_update = ValueError("no such name")
    with pytest.raises(ValueError, match="no such name"):
        await replicas.update_weights("new", 1)
    assert replicas.version == 0
    assert replicas.stats()["replicas_up"] == 2
    for engine in engines:
        engine.fail_update = None
    await replicas.update_weights("new", 1)
    assert [engine.version for engine in engines] == [1, 1]
    await replicas.close()


@simulated
async def test_replica_without_the_new_version_is_removed() -> None:
    replicas, engines = pair()

    async def pretend(weights: Any, version: int, mode: str = "keep") -> None:
        return None

    engines[0].update_weights = pretend  # type: ignore[method-assign, assignment]
    with pytest.raises(PartialUpdateError, match="replica 0: .*has version 0 after an update to 1"):
        await replicas.update_weights("new", 1)
    await replicas.close()


@simulated
async def test_hung_replica_does_not_block_waiting_update() -> None:
    replicas, engines = pair(stall_timeout=60.0, update_timeout=1000.0)
    tasks = start(replicas, 4)
    await asyncio.sleep(2.5)
    engines[0].hang()
    with pytest.raises(PartialUpdateError, match="replica 0: no answer and no progress"):
        await replicas.update_weights("new", 1, "wait")
    assert now() <= 2.5 + 60 + 10
    assert [set(reply.weight_version) for reply in await asyncio.gather(*tasks)].count({1}) == 2, "begun again"
    await replicas.close()


class Together(Fragile):
    """An engine whose source sends to all at once, as a learner on Ray does: the first one waits."""

    async def update_weights(self, weights: asyncio.Barrier, version: int, mode: Any = "keep") -> None:
        while mode == "wait" and self._flights:
            await self._changed.wait()
        await weights.wait()
        await super().update_weights(weights, version, mode)


@simulated
async def test_waiting_for_sibling_requests_is_not_late() -> None:
    engines = [Together(slow), Together(slow)]
    replicas = Replicas(engines, limits=Limits(update_timeout=2.0))
    (request,) = start(replicas, 1)
    await asyncio.sleep(1)
    await replicas.update_weights(asyncio.Barrier(2), 1, "wait")
    assert now() == 10
    assert [engine.version for engine in engines] == [1, 1]
    assert set((await request).weight_version) == {0}
    await replicas.close()


@simulated
async def test_death_during_a_waiting_update() -> None:
    replicas, engines = pair()
    tasks = start(replicas, 4)
    await asyncio.sleep(2.5)
    update = asyncio.create_task(replicas.update_weights("new", 1, "wait"))
    await asyncio.sleep(2)
    engines[1].die(MemoryError("injected"))
    with pytest.raises(PartialUpdateError, match="replica 1: .*injected"):
        await update
    made = await asyncio.gather(*tasks)
    assert [len(set(reply.weight_version)) for reply in made] == [1, 1, 1, 1], "no reply is of two engines"
    assert replicas.stats()["generated_tokens"] == 40
    await replicas.close()


@simulated
async def test_cancelled_update_still_reaches_all() -> None:
    replicas, engines = pair()
    engines[1].lag_update = 30.0
    update = asyncio.create_task(replicas.update_weights("new", 1))
    await asyncio.sleep(10)
    update.cancel()
    with pytest.raises(asyncio.CancelledError):
        await update
    assert [engine.version for engine in engines] == [1, 0]
    assert replicas.version == 0
    await replicas.update_weights("newer", 2)
    assert [engine.version for engine in engines] == [2, 2], "in order: first the one, then the other"
    await replicas.close()


# ---------------------------------------------------------------- restarts


@simulated
async def test_lost_replica_restarts_with_current_weights() -> None:
    born: list[Fragile] = []

    async def restart(index: int) -> Fragile:
        await asyncio.sleep(100)
        born.append(Fragile(slow))
        return born[-1]

    replicas, engines = pair(restart=restart)
    engines[1].die()
    tasks = start(replicas, 4)
    await asyncio.sleep(90)
    assert replicas.stats()["replicas_up"] == 1
    await replicas.update_weights("second", 1)
    await asyncio.sleep(20)
    assert replicas.stats()["replicas_up"] == 2
    assert (born[0].version, born[0].weights) == (1, "second")
    await asyncio.gather(*tasks, *start(replicas, 6, first=10))
    assert born[0].calls, "it takes requests again"
    stats = replicas.stats()
    assert stats["replicas_restarted"] == 1
    assert stats["generated_tokens"] == stats["replica0_generated_tokens"] + stats["replica1_generated_tokens"] == 100
    await replicas.close()
    assert born[0].closed


@simulated
async def test_restarted_engine_of_other_version_is_refused() -> None:
    made: list[Fragile] = []

    def restart(index: int) -> Fragile:
        made.append(Fragile(slow, version=3))
        return made[-1]

    replicas, engines = pair(restart=restart, max_restarts=2)
    for engine in engines:
        engine.die(MemoryError("the first cause"))
    with pytest.raises(EngineDeadError, match=r"(?s)the first cause; then restart 2 failed: .*version 3.*version 0"):
        await replicas.generate([1], ANY)
    await replicas.close()
    assert len(made) == 4
    assert all(engine.closed for engine in made)


@simulated
async def test_update_failing_everywhere_reaches_restarted_replicas() -> None:
    async def restart(index: int) -> Fragile:
        return Fragile(slow)

    replicas, engines = pair(restart=restart)
    for engine in engines:
        engine.fail_update = RuntimeError("out of memory")
    await replicas.update_weights("new", 3)
    assert replicas.version == 3
    await asyncio.sleep(100)
    assert replicas.stats()["replicas_up"] == 2
    assert [replica.engine.version for replica in replicas._replicas] == [3, 3]
    await replicas.close()


@simulated
async def test_update_without_survivors_is_an_error() -> None:
    async def restart(index: int) -> Fragile:
        engine = Fragile(slow)
        engine.fail_update = RuntimeError("out of memory")
        return engine

    replicas, engines = pair(restart=restart, max_restarts=2)
    for engine in engines:
        engine.fail_update = RuntimeError("out of memory")
    with pytest.raises(EngineError, match=r"replica 0: .*out of memory.*replica 1: .*out of memory"):
        await replicas.update_weights("new", 3)
    assert replicas.version == 0
    await replicas.close()


@pytest.mark.parametrize("survivors", [0, 1])
@simulated
async def test_replica_with_superseded_weights_gets_next_ones(survivors: int) -> None:
    """The learner has trained further; restarted replicas get the next weights, never old ones."""
    made: list[Fragile] = []

    async def restart(index: int) -> Fragile:
        made.append(Fragile(slow))
        made[-1].fail_update = SupersededError("the learner has trained on")
        return made[-1]

    replicas, engines = pair(restart=restart)
    await replicas.update_weights("first", 1)
    for engine in engines[survivors:]:
        engine.die()
    waiting = start(replicas, 2)
    await asyncio.sleep(30)
    assert len(made) == 2 - survivors
    assert [task.done() for task in waiting] == [bool(survivors)] * 2
    for engine in made:
        engine.fail_update = None
    await replicas.update_weights("next", 2)
    replies = await asyncio.gather(*waiting, *start(replicas, 4))
    assert {int(reply.weight_version[-1]) for reply in replies[2:]} == {2}
    assert [engine.version for engine in [*engines[:survivors], *made]] == [2, 2]
    assert replicas.stats()["replicas_up"] == 2
    await replicas.close()


@simulated
async def test_lost_source_removes_no_replica() -> None:
    replicas, engines = pair()
    engines[0].fail_update = SourceLostError("learner rank 1 died")
    with pytest.raises(SourceLostError, match="learner rank 1 died"):
        await replicas.update_weights("new", 1)
    assert replicas.stats()["replicas_lost"] == 0
    await replicas.close()


@simulated
async def test_requests_wait_for_a_restart() -> None:
    async def restart(index: int) -> Fragile:
        await asyncio.sleep(100)
        return Fragile(slow)

    replicas, engines = pair(restart=restart)
    tasks = start(replicas, 4)
    await asyncio.sleep(5)
    for engine in engines:
        engine.die()
    made = await asyncio.gather(*tasks)
    assert now() == pytest.approx(115)
    assert [len(reply.token_ids) for reply in made] == [TOKENS] * 4
    assert replicas.stats()["generated_tokens"] == 40
    await replicas.close()


@simulated
async def test_repeatedly_dying_replica_is_given_up() -> None:
    async def restart(index: int) -> Fragile:
        return Fragile(lambda call: Reply(dies=True, latency=1.0))

    replicas, _ = pair(lambda call: Reply(dies=True, latency=1.0), restart=restart, max_restarts=2, retries=100)
    with pytest.raises(EngineDeadError, match="all 2 replicas are gone"):
        await replicas.generate([1], ANY)
    assert replicas.stats()["replicas_restarted"] == 4
    assert now() < 100
    await replicas.close()


@simulated
async def test_hanging_restart_is_cancelled() -> None:
    cancelled = []

    async def restart(index: int) -> Fragile:
        try:
            return await asyncio.Event().wait()  # type: ignore[return-value]
        except asyncio.CancelledError:
            cancelled.append(index)
            raise

    replicas, engines = pair(restart=restart, restart_timeout=100.0, max_restarts=1)
    for engine in engines:
        engine.die()
    with pytest.raises(EngineDeadError, match="longer than 100 s"):
        await replicas.generate([1], ANY)
    assert now() < 200
    assert sorted(cancelled) == [0, 1]
    await replicas.close()


# ---------------------------------------------------------------- sleep


class Sleeper(Fragile):
    """An engine that sleeps and answers nothing meanwhile; ``insomnia`` makes sleeping fail."""

    insomnia = False

    async def sleep(self) -> None:
        if self.insomnia:
            raise EngineError("it has no sleep mode")
        self.hang()

    async def wake(self) -> None:
        self._frozen = None


@simulated
async def test_sleeping_replicas_are_not_dead() -> None:
    engines = [Sleeper(slow) for _ in range(2)]
    replicas = Replicas(engines)
    await asyncio.gather(*start(replicas, 2))
    await replicas.sleep()
    await asyncio.sleep(1000.0)
    await replicas.wake()
    await asyncio.gather(*start(replicas, 4))
    assert (replicas.stats()["replicas_up"], replicas.stats()["replicas_lost"]) == (2, 0)
    engines[1].insomnia = True
    await replicas.sleep()
    await replicas.wake()
    assert len((await replicas.generate([1], ANY)).token_ids) == TOKENS
    assert (replicas.stats()["replicas_up"], replicas.stats()["replicas_lost"]) == (1, 1)
    await replicas.close()


@pytest.mark.parametrize("dies", ["before", "at bedtime"])
@simulated
async def test_restarted_replica_sleeps_with_its_siblings(dies: str) -> None:
    """The memory is in use: a restart waits, and a running one ends asleep."""
    made: list[Sleeper] = []
    awake: list[float] = []

    async def restart(index: int) -> Sleeper:
        awake.append(now())
        await asyncio.sleep(60)
        made.append(Sleeper(slow))
        return made[-1]

    engines = [Sleeper(slow) for _ in range(2)]
    replicas = Replicas(engines, restart=restart)
    await asyncio.gather(*start(replicas, 2))
    if dies == "before":
        engines[1].die(MemoryError("injected"))
        await asyncio.gather(*start(replicas, 4))
    engines[1].insomnia = True
    asleep = now()
    await replicas.sleep()
    await asyncio.sleep(300.0)
    assert [begun <= asleep for begun in awake] == ([True] if dies == "before" else [])
    assert all(engine._frozen is not None for engine in made)
    await replicas.wake()
    await asyncio.sleep(100.0)
    assert len(made) == 1
    assert made[0]._frozen is None
    assert replicas.stats()["replicas_up"] == 2
    assert len(await asyncio.gather(*start(replicas, 4, first=20))) == 4
    await replicas.close()


class SlowSleeper(Sleeper):
    """An engine that wakes up slowly."""

    async def wake(self) -> None:
        await asyncio.sleep(10.0)
        await super().wake()


@simulated
async def test_replica_restarted_during_wake_is_awake() -> None:
    made: list[Sleeper] = []

    async def restart(index: int) -> Sleeper:
        await asyncio.sleep(60.0)
        made.append(Sleeper(slow))
        return made[-1]

    engines = [SlowSleeper(slow), Sleeper(slow)]
    replicas = Replicas(engines, restart=restart)
    await asyncio.gather(*start(replicas, 2))
    engines[1].die(MemoryError("injected"))
    await asyncio.gather(*start(replicas, 4))
    lost = now() - 10.0  # the other one did all four meanwhile
    await replicas.sleep()
    await asyncio.sleep(lost + 55.0 - now())
    await replicas.wake()  # from 55 to 65 s after the loss; the new one is there after 60
    assert len(made) == 1
    assert made[0]._frozen is None
    assert replicas.stats()["replicas_up"] == 2
    await replicas.close()
