"""Faults of replicas' requests on simulated time: hangs, invalid replies, deaths, and combinations."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fragile import Fragile
from hypothesis import given
from hypothesis import strategies as st
from replicas_helpers import ANY, TOKENS, now, pair, patiently, slow, start
from simulated_time import simulated

from benchmarks.simulation.scripted import Call, Reply
from trainers.engines.base import EngineDeadError, EngineError, Generation, RequestError
from trainers.engines.replicas import Replicas

# ---------------------------------------------------------------- requests


@simulated
async def test_death_costs_only_time() -> None:
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
async def test_hung_replica_holds_requests_until_stall_timeout() -> None:
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
async def test_hanging_idle_replica_is_found_by_probe() -> None:
    replicas, engines = pair(probe_timeout=20.0, probe_interval=5.0)
    await asyncio.gather(*start(replicas, 2))
    engines[1].hang()
    await asyncio.sleep(40)
    stats = replicas.stats()
    assert stats["replicas_up"] == 1
    assert stats["probes"] > 2
    assert (stats["requests"], stats["generated_tokens"]) == (2, 20), "probes do not count"
    began = now()
    await asyncio.gather(*start(replicas, 4, first=3))
    assert now() - began == pytest.approx(10)
    await replicas.close()


@simulated
async def test_slow_answering_replica_stays() -> None:
    """A request without progress for ten minutes, on a replica that answers probes."""

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
    r"kept_counts \[10\] and kept_ids \[9\] do not fit": lambda reply: replace(
        reply, kept_counts=np.ones(10, np.int32), kept_ids=np.ones(9, np.int32)
    ),
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


@pytest.mark.parametrize("message", NONSENSE)
@simulated
async def test_invalid_replies_are_retried_and_replica_removed(message: str) -> None:
    replicas, engines = pair(max_faults=3)
    engines[0].mangle = NONSENSE[message]
    for turn in range(6):
        made = await asyncio.gather(*start(replicas, 2, first=2 * turn + 1))
        assert [reply.token_ids.tolist() for reply in made] == [list(range(1, 11))] * 2
    stats = replicas.stats()
    assert (stats["faults"], stats["retries"], stats["replicas_up"]) == (3, 3, 1)
    assert stats["generated_tokens"] == 120, "what was refused does not count"
    engines[1].mangle = NONSENSE[message]
    with pytest.raises(EngineError, match=message):
        await replicas.generate([1], ANY)
    assert replicas.stats()["replicas_up"] == 1, "all replicas fail alike: it may be the request"
    await replicas.close()


@simulated
async def test_refused_request_is_tried_on_another_replica() -> None:
    calls = itertools.count()
    replicas, engines = pair(lambda call: Reply([5], error=None if next(calls) else EngineError("no room")))
    assert (await replicas.generate([1], ANY, "s")).token_ids.tolist() == [5]
    assert [len(engine.calls) for engine in engines] == [1, 1]
    await replicas.close()


@simulated
async def test_request_errors_remove_no_replica() -> None:
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
async def test_killing_request_does_not_kill_all_replicas() -> None:
    def script(call: Call) -> Reply:
        return Reply([5], latency=1.0, dies=call.token_ids == (66,))

    replicas, engines = pair(script, count=6, retries=2)
    with pytest.raises(EngineError, match="failed 3 times") as raised:
        await replicas.generate([66], ANY)
    assert not isinstance(raised.value, EngineDeadError)
    assert replicas.stats()["replicas_up"] == 3
    await replicas.close()


@simulated
async def test_all_dead_error_names_each_cause() -> None:
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
async def test_moved_session_is_released_at_its_home() -> None:
    replicas, engines = pair()
    replicas._router.slack = 1.0
    await replicas.generate([1], ANY, "s")
    crowd = [asyncio.create_task(replicas.generate([9] * 32, ANY)) for _ in range(4)]
    await asyncio.sleep(0)
    home = next(i for i, engine in enumerate(engines) if engine.calls and engine.calls[0].session == "s")
    extra_requests = [asyncio.create_task(replicas.generate([9] * 32, ANY)) for _ in range(2)]
    await asyncio.gather(*crowd, *extra_requests)
    assert replicas._router.sessions["s"].home == home
    await replicas.release("s")
    assert engines[home].released == ["s"]
    assert engines[1 - home].released == []
    await replicas.close()


@simulated
async def test_episodes_leave_slow_replica_without_oscillation() -> None:
    """One of two takes ten times as long for a token; 24 episodes of eight turns."""

    async def episode(replicas: Replicas, number: int) -> None:
        history = [number + 1]
        for _ in range(8):
            history += (await replicas.generate(history, ANY, f"s{number}")).token_ids.tolist()
        await replicas.release(f"s{number}")

    seconds, moves = [], []
    for slack in (4.0, 1e9):
        engines = [Fragile(lambda call, pace=pace: Reply([1] * 10, per_token=pace)) for pace in (1.0, 0.1)]
        replicas = Replicas(engines)
        replicas._router.slack = slack
        began = now()
        await asyncio.gather(*(episode(replicas, number) for number in range(24)))
        seconds.append(now() - began)
        moves.append(replicas.stats()["moves"])
        await replicas.close()
    assert seconds[1] == pytest.approx(80), "never moved: eight turns of ten seconds"
    assert seconds[0] < 0.7 * 80
    assert 6 <= moves[0] <= 24 * 8 / 4
    assert moves[1] == 0


# ---------------------------------------------------------------- any fault, at any time

FAULTS = st.lists(
    st.tuples(st.floats(0, 60), st.integers(0, 2), st.sampled_from(["die", "hang", "mangle", "update", "bad update"])),
    max_size=8,
)


@given(faults=FAULTS, mode=st.sampled_from(["keep", "wait", "abort"]), restarts=st.booleans())
@simulated
async def test_every_request_ends_once_under_faults(faults: Any, mode: Any, restarts: bool) -> None:
    """12 episodes of three turns on three replicas; faults and updates at any time."""
    delivered, refused, ended = [], [], []

    async def restart(index: int) -> Fragile:
        await asyncio.sleep(5)
        return Fragile(slow)

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

    replicas, _ = pair(count=3, update_timeout=50.0, restart=restart if restarts else None)
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


# ---------------------------------------------------------------- the end, and the beginning


@simulated
async def test_close_ends_requests_updates_and_restarts() -> None:
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
    ],
)
def test_invalid_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Replicas(**({"engines": [Fragile(slow)]} | patiently(dict(options))))


@simulated
async def test_context_is_the_smallest_replicas() -> None:
    replicas = Replicas([Fragile(slow, max_context=100), Fragile(slow, max_context=50)])
    assert replicas.max_context == 50
    with pytest.raises(RequestError, match="max_context=50"):
        await replicas.generate([1] * 50, ANY)
    await replicas.close()


def test_documentation_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "engines.md").read_text()
    (example,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "Replicas([" in block]
    names: dict[str, Any] = {}
    exec(compile("from __future__ import annotations\n" + example, "docs/engines.md", "exec"), names)
    asyncio.run(names["main"]())
    assert re.fullmatch(r"\[( *\d+){8}\] 1 2\.0\n", capsys.readouterr().out)
