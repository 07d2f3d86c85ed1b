"""Replicas and what may happen to them, on simulated time: hangs, nonsense, deaths, updates that fail, restarts."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fragile import Fragile
from hypothesis import given, settings
from hypothesis import strategies as st

from trainers.engines.base import (
    EngineDeadError,
    EngineError,
    Generation,
    PartialUpdateError,
    RequestError,
    Sampling,
)
from trainers.engines.replicas import Replicas
from trainers.engines.routing import Router
from trainers.engines.scripted import Call, Reply
from trainers.engines.simclock import run_simulated

ANY = Sampling(max_new_tokens=100)
TOKENS = 10


def slow(call: Call) -> Reply:
    """Ten tokens in ten seconds; a probe is answered at once."""
    return Reply([1]) if call.token_ids == (0,) else Reply(range(1, TOKENS + 1), per_token=1.0)


def now() -> float:
    return asyncio.get_running_loop().time()


def simulated(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run an asynchronous test on simulated time."""

    def run() -> None:
        run_simulated(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def pair(script: Callable[[Call], Reply] = slow, count: int = 2, **options: Any) -> tuple[Replicas, list[Fragile]]:
    engines = [Fragile(script) for _ in range(count)]
    return Replicas(engines, **options), engines


def start(replicas: Replicas, count: int, first: int = 1) -> list[asyncio.Task[Generation]]:
    return [asyncio.create_task(replicas.generate([i], ANY, f"s{i}")) for i in range(first, first + count)]


# ---------------------------------------------------------------- requests


@simulated
async def test_a_death_costs_time_and_nothing_else() -> None:
    replicas, engines = pair()
    tasks = start(replicas, 8)
    await asyncio.sleep(4.5)
    assert replicas.stats()["generated_tokens"] == 32
    engines[0].die(MemoryError("injected"))
    made = await asyncio.gather(*tasks)
    assert now() == pytest.approx(14.5), "begun again at once, from the prompt"
    assert all(reply.token_ids.tolist() == list(range(1, 11)) for reply in made)
    stats = replicas.stats()
    assert stats["generated_tokens"] == 80, "every token once"
    assert (stats["requests"], stats["retries"], stats["moves"]) == (8, 4, 4)
    assert (stats["replicas_up"], stats["replicas_lost"], stats["running"]) == (1, 1, 0)
    assert engines[0].closed
    again = await replicas.generate([1, 2], ANY, "s1")
    assert len(again.token_ids) == TOKENS
    await replicas.release("s1")
    await replicas.close()
    assert engines[1].closed


@simulated
async def test_a_hung_replica_holds_nobody_for_longer_than_the_stall_timeout() -> None:
    replicas, engines = pair(stall_timeout=60.0, probe_timeout=20.0, probe_interval=5.0)
    tasks = start(replicas, 8)
    await asyncio.sleep(3.5)
    engines[0].hang()
    done, pending = await asyncio.wait(tasks, timeout=10)
    assert (len(done), len(pending)) == (4, 4), "the other replica's requests are not held"
    await asyncio.gather(*tasks)
    assert 3.5 + 60 <= now() <= 3.5 + 60 + 10 + 10, "the timeout, two looks, and the reply"
    stats = replicas.stats()
    assert stats["generated_tokens"] == 80
    assert stats["wasted_tokens"] == 12, "3 of each"
    assert stats["replicas_up"] == 1
    await replicas.close()


@simulated
async def test_an_idle_replica_that_hangs_is_found_by_a_probe_before_anybody_meets_it() -> None:
    replicas, engines = pair(probe_timeout=20.0, probe_interval=5.0)
    await asyncio.gather(*start(replicas, 2))
    engines[1].hang()
    await asyncio.sleep(40)
    stats = replicas.stats()
    assert stats["replicas_up"] == 1
    assert stats["probes"] > 2
    assert (stats["requests"], stats["generated_tokens"]) == (2, 20), "probes are nobody's"
    began = now()
    await asyncio.gather(*start(replicas, 4, first=3))
    assert now() - began == pytest.approx(10)
    await replicas.close()


@simulated
async def test_what_is_slow_but_answers_stays() -> None:
    """A request that shows nothing for ten minutes, on a replica that answers probes."""

    def script(call: Call) -> Reply:
        return Reply([1], latency=600.0 if call.token_ids == (7,) else 0.0)

    replicas, _ = pair(script)
    made = await replicas.generate([7], ANY)
    assert (now(), made.token_ids.tolist()) == (600, [1])
    assert replicas.stats()["replicas_up"] == 2
    await replicas.close()


def longer(array: Any) -> Any:
    return np.concatenate([array, array])


NONSENSE: dict[str, Callable[[Generation], Any]] = {
    "arrays do not go together": lambda reply: replace(reply, logprobs=reply.logprobs[:-1]),
    "do not go together: token_ids": lambda reply: replace(reply, weight_version=longer(reply.weight_version)),
    r"not go together.*logprobs \[10\]": lambda reply: replace(reply, sampled_logprobs=longer(reply.logprobs)),
    "not finite": lambda reply: replace(reply, logprobs=reply.logprobs * np.nan),
    "or above 0": lambda reply: replace(reply, logprobs=-reply.logprobs),
    "versions 9 to 9": lambda reply: replace(reply, weight_version=reply.weight_version + 9),
    "no such numbers": lambda reply: replace(reply, token_ids=-reply.token_ids),
    "is a NoneType": lambda reply: None,
    "finish_reason 'tired'": lambda reply: replace(reply, finish_reason="tired"),
    "has 400 tokens": lambda reply: replace(
        reply,
        **{name: np.tile(getattr(reply, name), 40) for name in ("token_ids", "logprobs", "weight_version")},
        sampled_logprobs=None,
    ),
}


@pytest.mark.parametrize("said", NONSENSE)
def test_nonsense_is_begun_again_elsewhere_and_its_author_is_taken_out(said: str) -> None:
    async def run() -> None:
        replicas, engines = pair(max_faults=3)
        engines[0].mangle = NONSENSE[said]
        for turn in range(6):
            made = await asyncio.gather(*start(replicas, 2, first=2 * turn + 1))
            assert [reply.token_ids.tolist() for reply in made] == [list(range(1, 11))] * 2
        stats = replicas.stats()
        assert (stats["faults"], stats["retries"], stats["replicas_up"]) == (3, 3, 1)
        assert stats["generated_tokens"] == 120, "what was refused does not count"
        engines[1].mangle = NONSENSE[said]
        with pytest.raises(EngineError, match=said):
            await replicas.generate([1], ANY)
        assert replicas.stats()["replicas_up"] == 1, "nobody did it better: it may be the request"
        await replicas.close()

    run_simulated(run())


@simulated
async def test_what_one_replica_cannot_serve_another_may() -> None:
    calls = itertools.count()
    replicas, engines = pair(lambda call: Reply([5], error=None if next(calls) else EngineError("no room")))
    assert (await replicas.generate([1], ANY, "s")).token_ids.tolist() == [5]
    assert [len(engine.calls) for engine in engines] == [1, 1]
    await replicas.close()


@simulated
async def test_what_the_request_itself_is_to_blame_for_takes_nobody_out() -> None:
    replicas, engines = pair(lambda call: Reply([5], error=EngineError("no good")), count=3)
    for _ in range(5):
        with pytest.raises(EngineError, match="no good"):
            await replicas.generate([1], ANY)
    with pytest.raises(RequestError, match="vocabulary of 512"):
        await replicas.generate([600], ANY)
    assert [len(engine.calls) for engine in engines] == [5, 5, 5], "all tried, none twice"
    assert replicas.stats()["replicas_up"] == 3
    await replicas.close()


@simulated
async def test_a_request_that_kills_does_not_kill_all() -> None:
    def script(call: Call) -> Reply:
        return Reply([5], latency=1.0, dies=call.token_ids == (66,))

    replicas, engines = pair(script, count=6, retries=2)
    with pytest.raises(EngineError, match="failed 3 times") as raised:
        await replicas.generate([66], ANY)
    assert not isinstance(raised.value, EngineDeadError)
    assert replicas.stats()["replicas_up"] == 3
    await replicas.close()


@simulated
async def test_when_all_are_dead_everybody_hears_of_each_ones_cause() -> None:
    replicas, engines = pair()
    tasks = start(replicas, 6)
    await asyncio.sleep(2.5)
    engines[0].die(MemoryError("the first cause"))
    await asyncio.sleep(2)
    waiting = asyncio.create_task(replicas.update_weights(None, 1, "wait"))
    await asyncio.sleep(1)
    engines[1].die(OSError("the second cause"))
    for result in await asyncio.gather(*tasks, waiting, return_exceptions=True):
        assert isinstance(result, EngineDeadError)
        assert "replica 0: " in str(result) and "the first cause" in str(result)  # noqa: PT018
        assert "replica 1: " in str(result) and "the second cause" in str(result)  # noqa: PT018
        assert isinstance(result.__cause__, OSError)
    with pytest.raises(EngineDeadError, match="all 2 replicas are gone"):
        await replicas.generate([1], ANY)
    await replicas.close()


@simulated
async def test_cancelling_leaves_nothing_behind() -> None:
    replicas, engines = pair()
    tasks = start(replicas, 4)
    await asyncio.sleep(1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)
    stats = replicas.stats()
    assert [stats[f"replica{i}_{name}"] for i in range(2) for name in ("running", "load")] == [0, 0, 0, 0]
    await replicas.close()


@simulated
async def test_a_session_that_moves_is_forgotten_where_it_was() -> None:
    replicas, engines = pair(router=Router(2, slack=1.0, high=1.5))
    await replicas.generate([1], ANY, "s")
    crowd = [asyncio.create_task(replicas.generate([9] * 32, ANY)) for _ in range(4)]
    await asyncio.sleep(0)
    home = next(i for i, engine in enumerate(engines) if engine.calls and engine.calls[0].session == "s")
    others = [asyncio.create_task(replicas.generate([9] * 32, ANY)) for _ in range(2)]
    await asyncio.gather(*crowd, *others)
    assert replicas._router.home("s") == home
    await replicas.release("s")
    assert engines[home].released == ["s"]
    assert engines[1 - home].released == []
    await replicas.close()


@simulated
async def test_episodes_leave_a_replica_that_is_slow_and_do_not_run_to_and_fro() -> None:
    """One of two takes ten times as long for a token; 24 episodes of eight turns."""

    async def episode(replicas: Replicas, number: int) -> None:
        history = [number + 1]
        for _ in range(8):
            history += (await replicas.generate(history, ANY, f"s{number}")).token_ids.tolist()
        await replicas.release(f"s{number}")

    seconds, moves = [], []
    for slack in (4.0, 1e9):
        engines = [Fragile(lambda call, pace=pace: Reply([1] * 10, per_token=pace)) for pace in (1.0, 0.1)]
        replicas = Replicas(engines, router=Router(2, slack=slack, settle=4))
        began = now()
        await asyncio.gather(*(episode(replicas, number) for number in range(24)))
        seconds.append(now() - began)
        moves.append(replicas.stats()["moves"])
        await replicas.close()
    assert seconds[1] == pytest.approx(80), "at home for ever: eight turns of ten seconds"
    assert seconds[0] < 0.7 * 80
    assert 6 <= moves[0] <= 24 * 8 / 4
    assert moves[1] == 0


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
def test_a_replica_whose_update_fails_is_named_and_taken_out(how: str, mode: Any) -> None:
    async def run() -> None:
        breaks, said = BROKEN[how]
        replicas, engines = pair(count=3, update_timeout=50.0, probe_interval=1000.0, stall_timeout=2000.0)
        await asyncio.gather(*start(replicas, 3))
        breaks(engines[1])
        with pytest.raises(
            PartialUpdateError, match=rf"2 of 3 replicas have version 4; taken out: replica 1: .*{said}"
        ):
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

    run_simulated(run())


@simulated
async def test_weights_that_nobody_takes_change_nothing() -> None:
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
async def test_a_replica_that_says_it_took_the_weights_and_did_not_is_taken_out() -> None:
    replicas, engines = pair()

    async def pretend(weights: Any, version: int, mode: str = "keep") -> None:
        return None

    engines[0].update_weights = pretend  # type: ignore[method-assign, assignment]
    with pytest.raises(PartialUpdateError, match="replica 0: .*has version 0 after an update to 1"):
        await replicas.update_weights("new", 1)
    await replicas.close()


@simulated
async def test_a_hung_replica_does_not_hold_an_update_that_waits() -> None:
    replicas, engines = pair(stall_timeout=60.0, update_timeout=1000.0)
    tasks = start(replicas, 4)
    await asyncio.sleep(2.5)
    engines[0].hang()
    with pytest.raises(PartialUpdateError, match="replica 0: no answer and no progress"):
        await replicas.update_weights("new", 1, "wait")
    assert now() <= 2.5 + 60 + 10
    assert [set(reply.weight_version) for reply in await asyncio.gather(*tasks)].count({1}) == 2, "begun again"
    await replicas.close()


@simulated
async def test_a_death_while_an_update_waits() -> None:
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
async def test_an_update_whose_caller_is_cancelled_still_reaches_all() -> None:
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
async def test_a_lost_replica_comes_back_with_the_current_weights() -> None:
    born: list[Fragile] = []

    async def restart(index: int) -> Fragile:
        await asyncio.sleep(100)
        born.append(Fragile(slow, version=-1))
        return born[-1]

    replicas, engines = pair(restart=restart, weights="first")
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
async def test_before_the_first_update_it_gets_what_the_others_were_made_with() -> None:
    async def restart(index: int) -> Fragile:
        return Fragile(slow, version=-1)

    replicas, engines = pair(restart=restart, weights="first")
    engines[0].die()
    await asyncio.gather(*start(replicas, 3))
    assert replicas._replicas[0].engine.weights == "first"  # type: ignore[attr-defined]
    assert replicas._replicas[0].engine.version == replicas.version == 0
    await replicas.close()


@simulated
async def test_without_weights_to_give_it_an_engine_of_another_version_is_not_taken() -> None:
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
async def test_an_update_that_takes_all_down_meets_those_that_come_after() -> None:
    async def restart(index: int) -> Fragile:
        return Fragile(slow)

    replicas, engines = pair(restart=restart, weights="first")
    for engine in engines:
        engine.fail_update = RuntimeError("out of memory")
    await replicas.update_weights("new", 3)
    assert replicas.version == 3
    await asyncio.sleep(100)
    assert replicas.stats()["replicas_up"] == 2
    assert [replica.engine.version for replica in replicas._replicas] == [3, 3]
    await replicas.close()


@simulated
async def test_an_update_that_nobody_survives_ends_as_an_error() -> None:
    async def restart(index: int) -> Fragile:
        engine = Fragile(slow)
        engine.fail_update = RuntimeError("out of memory")
        return engine

    replicas, engines = pair(restart=restart, weights="first", max_restarts=2)
    for engine in engines:
        engine.fail_update = RuntimeError("out of memory")
    with pytest.raises(EngineError, match=r"replica 0: .*out of memory.*replica 1: .*out of memory"):
        await replicas.update_weights("new", 3)
    assert replicas.version == 0
    await replicas.close()


@simulated
async def test_requests_wait_for_a_restart_when_nothing_else_is_up() -> None:
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
async def test_a_replica_that_dies_again_and_again_is_given_up() -> None:
    async def restart(index: int) -> Fragile:
        return Fragile(lambda call: Reply(dies=True, latency=1.0))

    replicas, _ = pair(lambda call: Reply(dies=True, latency=1.0), restart=restart, max_restarts=2, retries=100)
    with pytest.raises(EngineDeadError, match="all 2 replicas are gone"):
        await replicas.generate([1], ANY)
    assert replicas.stats()["replicas_restarted"] == 4
    assert now() < 100
    await replicas.close()


@simulated
async def test_a_restart_that_hangs_has_its_time_and_its_engine_is_closed_when_it_comes() -> None:
    made: list[Fragile] = []

    async def restart(index: int) -> Fragile:
        await asyncio.sleep(1000)
        made.append(Fragile(slow))
        return made[-1]

    replicas, engines = pair(restart=restart, restart_timeout=100.0, max_restarts=1)
    for engine in engines:
        engine.die()
    with pytest.raises(EngineDeadError, match="longer than 100 s"):
        await replicas.generate([1], ANY)
    assert now() < 200
    await asyncio.sleep(1000)
    assert [engine.closed for engine in made] == [True, True]
    await replicas.close()


class Tensor:
    def __init__(self, value: int) -> None:
        self.value = value

    def detach(self) -> Tensor:
        return self

    def clone(self) -> Tensor:
        return Tensor(self.value)


@pytest.mark.parametrize(("copies", "given"), [(True, 1), (False, 2)])
async def test_what_a_later_replica_gets_is_a_copy(copies: bool, given: int) -> None:
    async def restart(index: int) -> Fragile:
        return Fragile(lambda call: Reply([1]))

    replicas, engines = pair(lambda call: Reply([1]), restart=restart, copy_weights=copies)
    weights = {"w": Tensor(1)}
    await replicas.update_weights(weights, 1)
    weights["w"].value = 2  # the trainer goes on
    engines[0].die()
    async with asyncio.timeout(20):
        while replicas.stats()["replicas_restarted"] < 1:
            await replicas.generate([1], ANY)
            await asyncio.sleep(0.01)
    assert replicas._replicas[0].engine.weights["w"].value == given  # type: ignore[attr-defined]
    await replicas.close()


# ---------------------------------------------------------------- anything, at any time

FAULTS = st.lists(
    st.tuples(st.floats(0, 60), st.integers(0, 2), st.sampled_from(["die", "hang", "mangle", "update", "bad update"])),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(faults=FAULTS, mode=st.sampled_from(["keep", "wait", "abort"]), restarts=st.booleans())
def test_whatever_happens_every_request_ends_once(faults: Any, mode: Any, restarts: bool) -> None:
    """12 episodes of three turns on three replicas; faults and updates come when they like."""
    delivered, refused, ended = [], [], []

    async def restart(index: int) -> Fragile:
        await asyncio.sleep(5)
        return Fragile(slow, version=-1)

    async def episode(replicas: Replicas, number: int) -> None:
        history = [number + 1]
        for turn in range(3):
            try:
                reply = await replicas.generate(history, ANY, f"s{number}")
            except EngineError as error:
                refused.append(error)
                return
            tokens, versions = reply.token_ids.tolist(), reply.weight_version.tolist()
            delivered.append(len(tokens))
            assert tokens == list(range(1, 11))[: len(tokens)]
            assert len(tokens) == 10 or reply.finish_reason == "abort"
            assert versions == sorted(versions)
            history += [*tokens, turn]
        ended.append(number)

    async def trouble(replicas: Replicas, first: float, which: int, what: str) -> None:
        await asyncio.sleep(first)
        engine = replicas._replicas[which].engine
        assert isinstance(engine, Fragile)
        if what == "die":
            engine.die(MemoryError("injected"))
        elif what == "hang":
            engine.hang()
        elif what == "mangle":
            engine.mangle = lambda reply: replace(reply, logprobs=reply.logprobs[:-1])
        else:
            if what == "bad update":
                engine.fail_update = OSError("broken pipe")
            try:
                await replicas.update_weights("new", replicas.version + 1, mode)
            except EngineError as error:
                refused.append(error)
            except ValueError:  # another one was quicker
                return
            up = [replica.engine for replica in replicas._replicas if replica.state == "up"]
            assert {engine.version for engine in up} <= {replicas.version}, "never mixed"

    async def run() -> None:
        options: dict[str, Any] = {"restart": restart if restarts else None, "weights": "first"}
        replicas, _ = pair(count=3, update_timeout=50.0, **options)
        beside = [asyncio.create_task(trouble(replicas, *fault)) for fault in faults]
        async with asyncio.timeout(3000):
            await asyncio.gather(*(episode(replicas, number) for number in range(12)), *beside)
        await asyncio.sleep(0.5)  # a probe that is on its way counts until its answer is there
        stats = replicas.stats()
        assert stats["generated_tokens"] == sum(delivered), "every token once"
        assert stats["running"] == 0
        assert sum(stats[f"replica{i}_load"] for i in range(3)) == 0
        if not any(what in ("die", "hang", "mangle", "bad update") for _, _, what in faults):
            assert len(ended) == 12
            assert stats["retries"] == 0
        if any(isinstance(error, EngineDeadError) for error in refused):
            assert stats["replicas_up"] == 0
        await replicas.close()

    run_simulated(run())


# ---------------------------------------------------------------- the end, and the beginning


@simulated
async def test_closing_ends_requests_updates_and_restarts() -> None:
    made: list[Fragile] = []

    async def restart(index: int) -> Fragile:
        await asyncio.sleep(50)
        made.append(Fragile(slow))
        return made[-1]

    replicas, engines = pair(restart=restart, close_timeout=60.0)
    engines[0].die()
    tasks = start(replicas, 4)
    await asyncio.sleep(2)
    engines[1].lag_update = 1e6
    update = asyncio.create_task(replicas.update_weights("new", 1))
    await asyncio.sleep(2)
    await replicas.close()
    for result in await asyncio.gather(*tasks, update, return_exceptions=True):
        assert isinstance(result, EngineDeadError)
        assert "closed" in str(result)
    assert now() <= 4 + 60
    assert engines[1].closed
    assert all(engine.closed for engine in made), "one that was on its way is not left behind"
    await replicas.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engines": []}, "at least one engine"),
        ({"engines": [Fragile(slow), Fragile(slow, version=2)]}, "same weights"),
        ({"stall_timeout": 10.0}, "stall_timeout must be above probe_timeout=20.0, not 10.0"),
        ({"probe_interval": 0.0}, "probe_interval must be above 0"),
        ({"max_faults": 0}, "max_faults must be at least 1"),
        ({"retries": -1}, "retries must be at least 0"),
        ({"max_restarts": -1}, "max_restarts must be at least 0"),
        ({"backoff": -1.0}, "backoff must be at least 0"),
        ({"router": Router(3)}, "the router is for 3 replicas, and there are 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Replicas(**({"engines": [Fragile(slow)]} | options))


@simulated
async def test_the_context_is_that_of_the_smallest() -> None:
    replicas = Replicas([Fragile(slow, max_context=100), Fragile(slow, max_context=50)])
    assert replicas.max_context == 50
    with pytest.raises(RequestError, match="max_context=50"):
        await replicas.generate([1] * 50, ANY)
    await replicas.close()


def test_the_example_in_the_documentation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "engines.md").read_text()
    (example,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "Replicas([" in block]
    names: dict[str, Any] = {}
    exec(compile("from __future__ import annotations\n" + example, "docs/engines.md", "exec"), names)
    asyncio.run(names["main"]())
    assert capsys.readouterr().out == "[7 8 9] 1 2.0\n"


# ---------------------------------------------------------------- sleep


class Sleeper(Fragile):
    """Gives its memory back, and answers nothing meanwhile; ``insomnia`` says that it cannot."""

    insomnia = False

    async def sleep(self) -> None:
        if self.insomnia:
            raise EngineError("it has no sleep mode")
        self.hang()

    async def wake(self) -> None:
        self._frozen = None


@simulated
async def test_replicas_that_sleep_are_not_taken_for_dead_and_go_on_when_they_wake() -> None:
    engines = [Sleeper(slow) for _ in range(2)]
    replicas = Replicas(engines, stall_timeout=60.0, probe_timeout=20.0, probe_interval=5.0)
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
