"""The host without a transport: sessions, requests that are sent again, limits, threads that hang."""

import asyncio
import json
import threading
from types import SimpleNamespace
from uuid import uuid4

import gymnasium
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from skip_time import skip
from toy_envs import AsyncGuess, BlockingGuess, Guess, ToyTasks

from textenvs import Task, TaskError, Turn, user
from textenvs.serve import host as module
from textenvs.serve.host import Host, Limits, Offer
from textenvs.serve.protocol import Refusal, encode


async def hosting(offers, **options):
    host = Host(offers, **options)
    await host.prepare()
    return host


async def response_of(host, op, owner="ann", **fields):
    """Return the answer to a request, or its error."""
    try:
        return json.loads(await host.answer(op, encode(fields), owner))
    except Refusal as refusal:
        return refusal.to_json()["error"]


async def opened(host, **fields):
    answer = await response_of(host, "open", **{"session": uuid4().hex, "env": "env", "seed": 0, **fields})
    return answer.get("session") or answer["kind"]


async def stepped(host, session, action="x", turn=0, **fields):
    return await response_of(host, "step", session=session, turn=turn, action=action, **fields)


async def so(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture
def hanging():
    """An environment whose replies to ``hang`` come when the test is over."""
    go_on = threading.Event()

    class Hanging(BlockingGuess):
        closed, entered = 0, []

        def respond(self, reply):
            if reply["content"] == "hang":
                self.entered.append(1)
                go_on.wait(100)
            return super().respond(reply)

        def close(self):
            type(self).closed += 1

    Hanging.go_on = go_on
    yield Hanging
    go_on.set()


# ------------------------------------------------------------------ sessions


@settings(max_examples=15)
@given(
    st.sampled_from([Guess, AsyncGuess, BlockingGuess]),
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", "boom", "quit"]), st.integers(1, 3), st.booleans()),
        max_size=20,
    ),
)
def test_any_requests_play_each_episode_once(kind, schedule):
    """Two owners with the same names of sessions; requests are repeated at once and later, and some are stale."""

    async def played():
        host = await hosting({"env": Offer(kind)})
        players = [(owner, f"a session of ours {name}") for owner in ("ann", "bob") for name in (1, 2)]
        directs, conversations, last = [Guess() for _ in players], [], [None] * 4
        for seed, (owner, name) in enumerate(players):
            conversations.append(directs[seed].reset(seed=seed)[0])
            answer = await response_of(host, "open", owner, session=name, env="env", seed=seed)
            assert answer["messages"] == list(conversations[-1])
        for player, action, times, repeats in schedule:
            (owner, name), direct = players[player], directs[player]
            step = {"session": name, "turn": len(direct.state.guesses), "action": action}
            answers = await asyncio.gather(*(response_of(host, "step", owner, **step) for _ in range(times)))
            assert all(answer == answers[0] for answer in answers) or action == "boom"
            if direct.state.done:
                assert answers[0]["kind"] == "reset_needed"
            elif action == "boom":
                assert {answer["exception"] for answer in answers} == {"RuntimeError"}
            else:
                grown, reward, *_, info = direct.step(action)
                assert (answers[0]["messages"], answers[0]["reward"]) == (
                    list(grown[len(conversations[player]) :]),
                    reward,
                )
                assert answers[0]["info"] == info
                conversations[player], last[player] = grown, (step, answers[0])
            if repeats and last[player] is not None:
                step, answer = last[player]
                assert await response_of(host, "step", owner, **step) == answer
                stale = await response_of(host, "step", owner, **{**step, "action": "another"})
                assert (stale["kind"], stale["turn"]) == ("wrong_turn", step["turn"] + 1)
        assert len(host.sessions) == 4
        await host.close()
        assert (len(host.sessions), host.held) == (0, 0)

    asyncio.run(played())


async def test_repeated_open_creates_one_session():
    host = await hosting({"env": Offer(AsyncGuess)})
    opening = {"session": "a name of our own", "env": "env"}
    first, second = await asyncio.gather(*(response_of(host, "open", **opening) for _ in range(2)))
    assert first == second == await response_of(host, "open", **opening)  # with the seed that was drawn
    assert host.counts["opened"] == 1
    assert (await response_of(host, "open", **opening, seed=1))["kind"] == "bad_request"
    other = await response_of(host, "open", "bob", **opening)
    assert other["seed"] != first["seed"]
    await stepped(host, opening["session"])
    assert (await response_of(host, "open", **opening))["kind"] == "bad_request"  # it was long on its way
    assert (await stepped(host, opening["session"], "y", 1))["turn"] == 2
    assert (await response_of(host, "open", session="short", env="env"))["kind"] == "bad_request"
    await host.close()


async def test_only_idle_sessions_expire(hanging, monkeypatch):
    host, now = await hosting({"env": Offer(hanging)}, limits=Limits(idle_s=100.0)), 1000.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    working, idle, over = [await opened(host) for _ in range(3)]
    await stepped(host, over, "quit")
    work = asyncio.ensure_future(stepped(host, working, "hang"))
    await so(lambda: host.sessions["ann", working].work is not None)
    for seconds, remaining in ((59.0, 3), (2.0, 2), (38.0, 2), (2.0, 1)):
        now += seconds
        host.expire()
        assert len(host.sessions) == remaining
    assert dict(host.ended) == {"over": 1, "idle": 1}
    hanging.go_on.set()
    assert (await work)["turn"] == 1
    await host.close()


async def test_closing_busy_session_cancels_and_closes():
    class Waiting(Guess):
        closed = 0

        async def respond(self, reply):
            await asyncio.Event().wait()

        async def aclose(self):
            type(self).closed += 1

    host = await hosting({"env": Offer(Waiting)})
    session = await opened(host)
    work = asyncio.ensure_future(stepped(host, session))
    await so(lambda: host.sessions["ann", session].work is not None)
    assert (await stepped(host, session, "another"))["kind"] == "busy"
    await response_of(host, "close", "bob", sessions=[session])
    assert not work.done()
    await response_of(host, "close", sessions=[session, "none"])
    assert (await work)["kind"] == "unknown_session"
    await so(lambda: Waiting.closed == 1)
    assert host.held == 0
    await host.close()


async def test_repeated_step_gets_its_own_answer():
    go_on = asyncio.Event()

    class Scored(Guess):
        async def conversation_score(self):
            await go_on.wait()
            return {"good": 1.0}

    host = await hosting({"env": Offer(Scored)}, allow=["scores"])
    session = await opened(host)
    played = await stepped(host, session)
    scored = asyncio.ensure_future(response_of(host, "score", session=session, turn=1))
    await so(lambda: host.sessions["ann", session].work is not None)
    assert await stepped(host, session) == played
    go_on.set()
    assert await scored == {"scores": {"good": 1.0}}
    assert await stepped(host, session) == played
    await host.close()


# ------------------------------------------------------------------ memory


async def test_held_memory_is_bounded_and_released(monkeypatch):
    monkeypatch.setattr(module, "REQUESTS_SHARE", 1.0)
    host = await hosting({"env": Offer(Guess)}, limits=Limits(max_reply_bytes=1000, max_bytes=50_000), allow=["tasks"])
    session = await opened(host)
    assert (await stepped(host, session, "x" * 1000))["kind"] == "too_large"
    assert (await stepped(host, session, {"role": "assistant", "content": "\u00e9" * 200}))["kind"] == "too_large"
    assert await opened(host, replay=[{"action": "x" * 1000}]) == "too_large"
    before = host.held
    with host.holding(50_001 - before - module.SMALL_BYTES), host.holding(module.SMALL_BYTES):
        assert (await stepped(host, session))["kind"] == await opened(host) == "full"  # however small they are
    answer = await stepped(host, session, "x" * 900)
    assert host.held - before > 2 * 900  # the conversation, and the answer that is kept
    assert host.held == host.sessions["ann", session].size
    assert answer["turn"] == 1
    row = Task("mine", "somewhere", (user("x"),), "the answer", extra={"corpus": "x" * 20_000}).to_row()
    before = host.held
    fat = await opened(host, options={"task": row})
    assert host.held - before > 20_000 + module.SESSION_BYTES  # the row that a client brought counts
    assert await opened(host, options={"task": row}) == "full"
    await response_of(host, "close", sessions=[fat])
    with host.holding(40_000 - host.held):
        with pytest.raises(Refusal, match="no memory for 10001 more bytes") as raised, host.holding(10_001):
            pass
        assert (raised.value.kind, raised.value.status) == ("full", 429)
        with host.holding(10_000), host.holding(module.SMALL_BYTES):  # so that sessions can be closed
            await response_of(host, "close", sessions=[session])
    assert host.held == 0
    await host.close()


async def test_concurrent_requests_share_memory_limit():
    host = await hosting({"env": Offer(Guess)}, limits=Limits(max_bytes=100_000))
    with host.holding(60_000):  # one alone may take more
        with pytest.raises(Refusal, match="other requests take 60000 bytes of 25000") as raised, host.holding(10_000):
            pass
        assert (raised.value.kind, raised.value.retry_after_s) == ("full", 1.0)
        assert await opened(host) not in ("full", "too_large")  # a small one is never refused
    with host.holding(20_000), host.holding(5_000):
        pass
    await host.close()
    assert (host.held, host._requests) == (0, 0)


# ------------------------------------------------------------------ episodes that are played again


async def test_replays_leave_the_loop_to_others(monkeypatch):
    """A replay waits between replies three times as long as it and the others that replay take."""
    monkeypatch.setattr(module, "FAST_REPLAY", 2)
    clock, waits = iter(range(10_000)), []
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    real = asyncio.sleep

    async def sleep(seconds):
        waits.append(seconds)
        await real(0)

    monkeypatch.setattr(module.asyncio, "sleep", sleep)

    class Endless(Guess):
        def respond(self, reply):
            return Turn([user("again")])

    host = await hosting({"env": Offer(lambda: Endless(max_assistant_turns=50))})
    await opened(host, replay=[{"action": "x"}] * 6)
    assert waits == [0, 0, 3, 3, 3, 3]
    waits.clear()
    await asyncio.gather(*(opened(host, replay=[{"action": "x"}] * 6) for _ in range(2)))
    assert max(waits) >= 6  # with another one beside it, twice as long
    await host.close()


async def test_replays_are_bounded_per_owner(monkeypatch):
    monkeypatch.setattr(module.protocol, "MAX_REPLAY", 10)
    release = asyncio.Event()

    class Slow(Guess):
        async def respond(self, reply):
            await release.wait()
            return Turn([user("again")])

    host = await hosting({"env": Offer(lambda: Slow(max_assistant_turns=50))})
    replay = [{"action": "x"}] * 8
    first = asyncio.ensure_future(opened(host, replay=replay))
    await so(lambda: any(session.work is not None for session in host.sessions.values()))
    assert await opened(host, replay=replay) == "full"
    assert await opened(host) != "full"  # nothing to play again
    other = asyncio.ensure_future(opened(host, owner="bob", replay=replay))
    release.set()
    assert "full" not in (await first, await other)
    assert await opened(host, replay=replay) != "full"
    await host.close()


# ------------------------------------------------------------------ threads that hang


async def test_hanging_threads_refuse_requests_until_done(hanging):
    host = await hosting({"env": Offer(hanging)}, limits=Limits(threads=2, step_timeout_s=60.0))
    sessions = [await opened(host) for _ in range(3)]
    steps = [asyncio.ensure_future(stepped(host, session, "hang")) for session in sessions[:2]]
    await so(lambda: len(hanging.entered) == 2)
    skip(asyncio.get_running_loop(), 60.0)
    late = await asyncio.gather(*steps)
    assert [response["kind"] for response in late] == ["timeout"] * 2
    assert "the session is lost" in late[0]["message"]
    assert (await stepped(host, sessions[0]))["kind"] == "unknown_session"
    answer = await stepped(host, sessions[2])
    assert (answer["kind"], answer["retry_after_s"] > 0) == ("overloaded", True)
    assert hanging.closed == 0
    hanging.go_on.set()
    await so(lambda: host.threads.stuck == 0)
    assert (await stepped(host, sessions[2]))["turn"] == 1  # it was not lost
    await so(lambda: hanging.closed == 2)
    await host.close()


async def test_async_timeout_keeps_the_episode():
    class Waits(Guess):
        async def respond(self, reply):
            turn = super().respond(reply)
            if reply["content"] == "hang":
                skip(asyncio.get_running_loop(), 60.0)
                await asyncio.Event().wait()
            return turn

    host, direct = await hosting({"env": Offer(Waits)}, limits=Limits(step_timeout_s=60.0)), Guess()
    session = await opened(host)
    direct.reset(seed=0)
    assert "lost" not in (await stepped(host, session, "hang"))["message"]
    assert (await stepped(host, session))["reward"] == direct.step("x")[1]
    await host.close()


async def test_replay_limits_turns_and_yields_loop():
    played, ticks, loop, over = [], 0, asyncio.get_running_loop(), threading.Event()

    class Slow(Guess):
        def respond(self, reply):
            played.append(reply)
            skip(loop, 20.0)
            if reply["content"] == "hang":
                skip(loop, 60.0)
                over.wait(100)
            return super().respond(reply)

    async def count_ticks():
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    host = await hosting({"env": Offer(lambda: Slow(max_assistant_turns=99))}, limits=Limits(step_timeout_s=60.0))
    other = asyncio.ensure_future(count_ticks())
    assert len(await opened(host, replay=[{"reseed": 1}, *[{"action": "a"}] * 20])) == 32  # of 400 s in all
    assert await opened(host, replay=[{"action": "a"}, {"action": "hang"}, {"action": "a"}]) == "timeout"
    other.cancel()
    over.set()
    assert ticks > len(played) > 20
    await so(lambda: len(host.sessions) == 1)
    await host.close()


# ------------------------------------------------------------------ errors


class Unspeakable(ToyTasks):
    def __getitem__(self, index):
        raise KeyError("a secret")


class NotJson(Guess):
    def _result(self, *turn, **failure):
        *most, info = super()._result(*turn, **failure)
        return *most, {**info, "odd": object()}


class Refuses(Guess):
    def opening(self, task):
        raise self.error(f"the answer is {task.ground_truth}, a secret")


@pytest.mark.parametrize("error", [ValueError, TypeError, TaskError, gymnasium.error.InvalidProbability])
async def test_only_reset_errors_about_input_cross(error):
    host = await hosting({"env": Offer(type("Own", (Refuses,), {"error": error}))}, allow=["tasks"])
    opening = {"session": "s" * 16, "env": "env", "seed": 0}
    for options in ({}, {"task_index": 1}):
        answer = await response_of(host, "open", **opening, options=options)
        assert (answer["kind"], "secret" in json.dumps(answer)) == ("refused_reset", False)
        assert answer["message"].startswith(f"reset raised {error.__name__}; the server's log has it as error ")
    row = ToyTasks()[0].to_row()
    answer = await response_of(host, "open", **opening, options={"task": row})  # an error of data, of the client's own
    assert ("a secret" in answer["message"]) == (error is TaskError)
    answer = await response_of(host, "open", **opening, options={"task_index": 99})
    assert "is 99, but toy tasks has 7 tasks" in answer["message"]
    await host.close()


async def test_environment_error_text_stays_private():
    host = await hosting({"env": Offer(lambda: Guess(Unspeakable())), "odd": Offer(NotJson)})
    answer = await response_of(host, "open", session="s" * 16, env="env", seed=0)
    assert (answer["kind"], answer["exception"]) == ("environment_error", "KeyError")
    assert "secret" not in json.dumps(answer)
    session = await opened(host, env="odd")
    assert (await stepped(host, session))["kind"] == "environment_error"
    assert (await stepped(host, session, turn=1))["kind"] == "unknown_session"  # its turn was played and is not known
    await host.close()


async def test_disallowed_request_names_remedy():
    host = await hosting({"env": Offer(Guess, nondeterministic=True)})
    session = await opened(host)
    rng = {"bit_generator": "PCG64"}
    for allowance, answer in (
        ("tasks", await response_of(host, "open", session="s" * 16, env="env", options={"task": {}})),
        ("tasks", await response_of(host, "open", session="s" * 16, env="env", options={"other": 1})),
        ("expert", await response_of(host, "demonstration", session=session, turn=0, rng=rng)),
        ("expert", await response_of(host, "careless_reply", session=session, turn=0, rng=rng)),
        ("scores", await response_of(host, "score", session=session, turn=0)),
    ):
        assert answer["kind"] == "forbidden"
        assert f"--allow {allowance}" in answer["message"]
    assert await opened(host, replay=[{"action": "a"}]) == "replay_failed"
    await host.close()


def test_mistakes_of_the_operator_are_errors():
    with pytest.raises(ValueError, match="at least one environment"):
        Host({})
    with pytest.raises(ValueError, match="allow has"):
        Host({"a": Offer(Guess)}, allow=["everything"])
    for name in Limits.model_fields:
        for wrong in (0, -1, True, "3"):
            with pytest.raises(ValueError, match=name):
                Limits(**{name: wrong})
