"""The scripted engine: latencies on simulated time, versions by time, failures on demand; and the clock."""

from __future__ import annotations

import asyncio
import time

import pytest
from simulated_time import simulated

from benchmarks.simulation.clock import SimulatedClockLoop
from benchmarks.simulation.scripted import Call, Reply, ScriptedEngine
from trainers.engines.base import EngineDeadError, EngineError, Sampling

ANY = Sampling(max_new_tokens=100)


def now() -> float:
    return asyncio.get_running_loop().time()


@simulated
async def test_simulated_hours_pass_quickly_in_order() -> None:
    begin = time.monotonic()
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, now()))

    await asyncio.gather(sleeper("late", 7200), sleeper("early", 1), sleeper("middle", 60.5))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1000):
            await asyncio.Event().wait()
    seen.append(("timeout", now()))
    seen = seen
    assert time.monotonic() - begin < 60
    assert [name for name, _ in seen] == ["early", "middle", "late", "timeout"]
    assert [at for _, at in seen] == pytest.approx([1, 60.5, 7200, 8200])


def test_threads_still_work_on_simulated_time() -> None:
    with asyncio.Runner(loop_factory=SimulatedClockLoop) as runner:
        assert runner.run(asyncio.to_thread(lambda: 5)) == 5


@simulated
async def test_latencies_add_up_without_queueing() -> None:
    engine = ScriptedEngine(lambda call: Reply([1] * (call.number + 1), latency=10.0, per_token=2.0))
    begin = now()
    made = await asyncio.gather(*(engine.generate([1], ANY) for _ in range(5)))
    assert [len(generation.token_ids) for generation in made] == [1, 2, 3, 4, 5]
    assert now() - begin == pytest.approx(20)
    assert {generation.finish_reason for generation in made} == {"stop"}


@simulated
async def test_tokens_have_the_version_of_their_time() -> None:
    engine = ScriptedEngine(lambda call: Reply(range(10), latency=5.0, per_token=1.0))
    task = asyncio.create_task(engine.generate([1], ANY))
    await asyncio.sleep(2.5)
    await engine.update_weights("a", 1)  # before the first token
    await asyncio.sleep(5)
    await engine.update_weights("b", 2)  # at 7.5: tokens 0 and 1 exist
    await asyncio.sleep(3)
    assert engine.stats()["generated_tokens"] == 5
    await engine.update_weights("c", 5)  # at 10.5: five do
    assert (await task).weight_version.tolist() == [1, 1, 2, 2, 2, 5, 5, 5, 5, 5]
    assert engine.weights == "c"


@simulated
async def test_abort_returns_existing_tokens() -> None:
    engine = ScriptedEngine(lambda call: Reply(range(10), latency=5.0, per_token=1.0))
    task = asyncio.create_task(engine.generate([1], ANY))
    await asyncio.sleep(8.5)
    await engine.update_weights(None, 1, "abort")
    made = await task
    assert (made.token_ids.tolist(), made.finish_reason, now()) == ([0, 1, 2], "abort", 8.5)


@simulated
async def test_waiting_update_holds_later_requests() -> None:
    engine = ScriptedEngine(lambda call: Reply([7], latency=10.0))
    first = asyncio.create_task(engine.generate([1], ANY))
    await asyncio.sleep(1)
    update = asyncio.create_task(engine.update_weights(None, 1, "wait"))
    await asyncio.sleep(1)
    second = asyncio.create_task(engine.generate([1], ANY))
    await asyncio.sleep(7)
    assert len(engine.calls) == 1
    await update
    assert now() == 10
    assert [v.weight_version.tolist() for v in (await first, await second)] == [[0], [1]]
    assert now() == 20


@simulated
async def test_cancelled_waiting_update_releases_requests() -> None:
    engine = ScriptedEngine(lambda call: Reply([7], hangs=call.number == 0, latency=1.0))
    hanging = asyncio.create_task(engine.generate([1], ANY))
    await asyncio.sleep(1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await engine.update_weights(None, 1, "wait")
    assert (await engine.generate([1], ANY)).weight_version.tolist() == [0]
    assert not hanging.done()
    hanging.cancel()


@simulated
async def test_failures_on_demand() -> None:
    def script(call: Call) -> Reply:
        return {
            "raise": Reply(latency=2.0, error=EngineError("as told")),
            "hang": Reply(hangs=True),
            "die": Reply(latency=9.0, dies=True),
            None: Reply([4]),
        }[call.session]

    engine = ScriptedEngine(script)
    hanging = asyncio.create_task(engine.generate([1], ANY, "hang"))
    with pytest.raises(EngineError, match="as told"):
        await engine.generate([1], ANY, "raise")
    assert now() == 2
    assert (await engine.generate([1], ANY)).token_ids.tolist() == [4]
    with pytest.raises(EngineDeadError, match="call 3"):
        await engine.generate([1], ANY, "die")
    assert now() == 11
    with pytest.raises(EngineDeadError):
        await hanging
    with pytest.raises(EngineDeadError):
        await engine.generate([1], ANY)


@simulated
async def test_calls_are_visible_to_script_and_test() -> None:
    engine = ScriptedEngine(lambda call: Reply([len(call.token_ids), call.number, call.sampling.max_new_tokens]))
    assert (await engine.generate([1, 2], ANY, "s")).token_ids.tolist() == [2, 0, 100]
    assert (await engine.generate([1], Sampling(max_new_tokens=2))).token_ids.tolist() == [1, 1]
    await engine.release("s")
    assert [(call.token_ids, call.session) for call in engine.calls] == [((1, 2), "s"), ((1,), None)]
    assert engine.released == ["s"]


@simulated
async def test_short_script_with_ignore_stop_is_an_error() -> None:
    engine = ScriptedEngine(lambda call: Reply([1, 2]))
    with pytest.raises(EngineError, match="asks for 5 tokens, but the script gave 2"):
        await engine.generate([1], Sampling(max_new_tokens=5, ignore_stop=True))
