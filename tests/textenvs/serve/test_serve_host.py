"""The host without a transport: threads that hang, what is made of clients' arguments, what is closed when."""

import asyncio
import json
import threading
import time
from uuid import uuid4

import pytest
from toy_envs import BlockingGuess, Guess

from textenvs.serve import calls, variants
from textenvs.serve.host import Host
from textenvs.serve.protocol import Refusal
from textenvs.serve.sessions import Limits
from textenvs.serve.variants import Offer


async def told(host, op, **fields):
    """The answer to a request, decoded."""
    return json.loads((await host.answer({"op": op, "id": uuid4().hex, **fields}, "ann")).text)


async def opened(host, env="env", **fields):
    return (await told(host, "open", env=env, seed=0, **fields))["ok"]["session"]


async def stepped(host, session, action="x", turn=0):
    return await told(host, "step", session=session, turn=turn, action=action)


async def so(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture
def hanging():
    """An environment whose replies to ``hang`` come when the test is over."""
    go_on = threading.Event()

    class Hanging(BlockingGuess):
        closed = 0

        def respond(self, reply):
            if reply["content"] == "hang":
                go_on.wait(30)
            return super().respond(reply)

        def cleanup(self):
            type(self).closed += 1

    Hanging.go_on = go_on
    yield Hanging
    go_on.set()


# ------------------------------------------------------------------ threads that hang


async def test_where_all_threads_hang_others_are_told_to_come_back_and_served_when_they_end(hanging):
    host = Host({"env": Offer(hanging)}, threads=2, step_timeout_s=0.4)
    await host.prepare()
    sessions = [await opened(host) for _ in range(3)]
    late = await asyncio.gather(*(stepped(host, session, "hang") for session in sessions[:2]))
    assert [each["error"]["kind"] for each in late] == ["timeout"] * 2
    for answer in (await stepped(host, sessions[2]), await told(host, "open", env="env"),
                   await told(host, "task", env="env", index=0)):  # fmt: skip
        assert answer["error"]["kind"] == "overloaded"
        assert "2 of them by calls that do not end" in answer["error"]["message"]
        assert answer["error"]["retry_after_s"] > 0
    hanging.go_on.set()
    await so(lambda: host._calls.threads.stuck == 0)
    assert "ok" in await stepped(host, sessions[2])  # it was not lost
    await host.close()


async def test_what_only_waited_for_a_thread_is_not_lost(hanging):
    host = Host({"env": Offer(hanging)}, threads=1, step_timeout_s=0.4)
    await host.prepare()
    sessions = [await opened(host) for _ in range(2)]
    hangs, waits = await asyncio.gather(stepped(host, sessions[0], "hang"), stepped(host, sessions[1]))
    assert (hangs["error"]["kind"], waits["error"]["kind"]) == ("timeout", "overloaded")
    hanging.go_on.set()
    await so(lambda: host._calls.threads.stuck == 0)
    assert "ok" in await stepped(host, sessions[1])
    await host.close()


async def test_a_host_whose_threads_all_hang_is_closed_and_closes_its_environments(hanging):
    host = Host({"env": Offer(hanging)}, threads=1, step_timeout_s=0.4)
    await host.prepare()
    await stepped(host, await opened(host), "hang")
    assert host._calls.threads.all_stuck
    async with asyncio.timeout(10):
        await host.close()
    assert hanging.closed == 1


async def test_an_environment_that_hangs_in_close_is_left(monkeypatch):
    monkeypatch.setattr(calls, "CLOSE_S", 0.05)
    go_on = threading.Event()

    class InThread(BlockingGuess):
        def cleanup(self):
            go_on.wait(30)

    class OnLoop(Guess):
        async def cleanup(self):
            await asyncio.Event().wait()

    host = Host({"thread": Offer(InThread), "loop": Offer(OnLoop)})
    await host.prepare()
    async with asyncio.timeout(10):
        await host.close()
    assert not go_on.is_set()
    go_on.set()


async def test_threads_are_none_that_the_process_waits_for(hanging):
    seen = []
    hanging.respond = lambda self, reply: seen.append(threading.current_thread()) or Guess.respond(self, reply)
    host = Host({"env": Offer(hanging)})
    await stepped(host, await opened(host))
    assert seen[0].daemon
    await host.close()
    await asyncio.to_thread(seen[0].join, 10)
    assert not seen[0].is_alive()


async def test_tasks_and_arguments_that_hang_are_given_up_and_the_next_to_ask_finds_them_made():
    go_on, made = threading.Event(), []

    class Tasks(type(Guess().tasks)):
        def __getitem__(self, index):
            go_on.wait(30)
            return super().__getitem__(index)

    def make(slow=False):
        made.append(slow)
        if slow:
            go_on.wait(30)
        return Guess(Tasks())

    host = Host({"env": Offer(make)}, allow=["kwargs"], step_timeout_s=0.4)
    await host.prepare()
    slow = {"env": "env", "kwargs": {"slow": True}}
    late = [
        await told(host, "task", env="env", index=0),
        *await asyncio.gather(
            told(host, "describe", **slow), told(host, "open", **slow), told(host, "task", index=0, **slow)
        ),
    ]
    assert [each["error"]["kind"] for each in late] == ["timeout"] * 4
    assert host._calls.threads.stuck == 2
    assert len(host.book) == host.book.running == 0
    go_on.set()
    await so(lambda: host._calls.threads.stuck == 0)
    assert "ok" in await told(host, "describe", **slow)
    assert made == [False, True]
    await host.close()


# ------------------------------------------------------------------ arguments of clients


async def test_however_many_ask_at_once_no_more_are_made_than_are_kept_and_none_twice():
    go_on, made = threading.Event(), []

    def make(**kwargs):
        if kwargs:
            made.append(kwargs["max_assistant_turns"])
            go_on.wait(30)
        return Guess(**kwargs)

    host = Host({"env": Offer(make)}, allow=["kwargs"], threads=3)
    await host.prepare()
    asked = [
        asyncio.ensure_future(told(host, "describe", env="env", kwargs={"max_assistant_turns": 1 + number % 40}))
        for number in range(80)
    ]
    await so(lambda: len(made) == 3)
    assert len(host._variants) <= 1 + variants.MOST
    go_on.set()
    answers = await asyncio.gather(*asked)
    kinds = [answer["error"]["kind"] if "error" in answer else "ok" for answer in answers]
    assert kinds == (["ok"] * 16 + ["full"] * 24) * 2
    assert sorted(made) == list(range(1, 17))
    assert "ok" in await told(host, "describe", env="env", kwargs={"max_assistant_turns": 40})  # there is room again
    assert len(host._variants) == 1 + variants.MOST
    await host.close()


async def test_arguments_that_are_refused_leave_nothing_behind():
    def make(**kwargs):
        if kwargs:
            raise ValueError("no")
        return Guess()

    host = Host({"env": Offer(make)}, allow=["kwargs"])
    await host.prepare()
    for number in range(20):
        answer = await told(host, "describe", env="env", kwargs={"id": number, "long": "x" * 10_000})
        assert answer["error"]["kind"] == "refused_reset"
    assert len(host._variants) == 1
    await host.close()


@pytest.mark.parametrize("kwargs", [{}, {"number": 1}], ids=["the operator's", "a client's"])
async def test_a_making_that_fails_is_told_to_all_who_wait_and_leaves_nothing(kwargs):
    go_on, made = threading.Event(), []

    def make(**given):
        made.append(given)
        go_on.wait(30)
        raise ValueError("no")

    host = Host({"env": Offer(make)}, allow=["kwargs"])
    asked = [asyncio.ensure_future(told(host, "describe", env="env", kwargs=kwargs)) for _ in range(3)]
    await so(lambda: made and next(iter(host._variants._variants.values())).users == 3)
    go_on.set()
    kinds = [answer["error"]["kind"] for answer in await asyncio.gather(*asked)]
    assert kinds == ["refused_reset" if kwargs else "environment_error"] * 3
    assert len(made) == 1
    assert len(host._variants) == 0
    await told(host, "describe", env="env", kwargs=kwargs)
    assert len(made) == 2  # nothing of the failure is kept
    await host.close()


@pytest.mark.parametrize(
    ("error", "kwargs", "kind"),
    [
        (ValueError("why"), {"number": 1}, "refused_reset"),
        (RuntimeError("why"), {"number": 1}, "refused_reset"),
        (ImportError("why"), {"number": 1}, "refused_reset"),
        (Refusal("overloaded", "why", retry_after_s=2.0), {"number": 1}, "overloaded"),
        (Refusal("overloaded", "why", retry_after_s=2.0), {}, "overloaded"),
        (ValueError("why"), {}, "environment_error"),
        (RuntimeError("why"), {}, "environment_error"),
    ],
)
async def test_only_what_a_clients_arguments_may_be_the_reason_for_is_told_as_their_refusal(error, kwargs, kind):
    def make(**given):
        raise error

    host = Host({"env": Offer(make)}, allow=["kwargs"])
    problem = (await told(host, "describe", env="env", kwargs=kwargs))["error"]
    assert problem["kind"] == kind
    if kind == "refused_reset":
        assert (problem["message"], problem["exception"]) == (
            "env cannot be made with these arguments: why",
            "ValueError",
        )
    else:
        assert ("why" in problem["message"]) == isinstance(error, Refusal)  # the rest stays in the log
    await host.close()


async def test_arguments_are_told_apart_by_all_of_them():
    host = Host({"env": Offer(lambda id=0: Guess(max_assistant_turns=1 + id))}, allow=["kwargs"])
    for number in (3, 4):
        answer = await told(host, "describe", env="env", kwargs={"id": number})
        assert answer["ok"]["environments"]["env"]["max_assistant_turns"] == 1 + number
        assert all(len(key[1]) <= 64 for key in host._variants._variants)
    await host.close()


async def test_an_environment_that_is_looked_at_is_not_closed_to_make_room():
    go_on, entered = threading.Event(), threading.Event()

    class Tasks(type(Guess().tasks)):
        def __getitem__(self, index):
            entered.set()
            go_on.wait(30)
            return super().__getitem__(index)

    host = Host({"env": Offer(lambda number=0: Guess(Tasks()))}, allow=["kwargs"])
    asked = asyncio.ensure_future(told(host, "task", env="env", index=0, kwargs={"number": 0}))
    await so(entered.is_set)
    first = next(iter(host._variants._variants.values())).env
    for number in range(1, 40):
        assert "ok" in await told(host, "describe", env="env", kwargs={"number": number})
    assert not first.cleaned
    go_on.set()
    assert "ok" in await asked
    await host.close()
    assert first.cleaned


# ------------------------------------------------------------------ episodes that are continued


class Forks(Guess):
    """Counts its forks."""

    count = 0

    def fork(self, seed=None):
        type(self).count += 1
        return super().fork(seed)


async def test_a_replay_leaves_the_loop_to_others_and_of_reseeds_in_a_row_only_the_last_is_carried_out():
    host, ticks, Forks.count = Host({"env": Offer(Forks)}), 0, 0

    async def others():
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    replay = [*[{"reseed": number} for number in range(200)], {"action": "a"}, {"reseed": 9}, {"action": "b"}]
    other = asyncio.ensure_future(others())
    continued = await told(host, "open", env="env", seed=3, replay=replay)
    other.cancel()
    assert ticks >= 200
    assert Forks.count == 1 + 2
    direct = Guess()
    direct.reset(seed=3)
    direct = direct.fork(199)
    direct.step("a")
    direct = direct.fork(9)
    assert continued["ok"]["messages"] == list(direct.step("b")[0])
    await host.close()


async def test_a_replay_has_no_longer_than_a_step_also_where_the_environment_never_waits():
    played = []

    class Slow(Guess):
        def respond(self, reply):
            played.append(time.sleep(0.02))
            return super().respond(reply)

    host = Host({"env": Offer(lambda: Slow(max_assistant_turns=1000))}, step_timeout_s=0.1)
    answer = await told(host, "open", env="env", seed=3, replay=[{"action": "a"}] * 500)
    assert answer["error"]["kind"] == "timeout"
    assert len(played) < 20
    assert len(host.book) == 0
    await host.close()


# ------------------------------------------------------------------ what is closed


class Held(BlockingGuess):
    """Whose forks hold something of their own, from the first message on."""

    open: set = set()
    go_on = threading.Event()

    def respond(self, reply):
        self.open.add(id(self))
        self.keep = self  # so that no id is there twice
        if reply["content"] == "hang":
            self.go_on.wait(30)
        return super().respond(reply)

    def close(self):
        self.open.discard(id(self))
        super().close()

    async def aclose(self):
        self.open.discard(id(self))
        await super().aclose()


class HeldOnTheLoop(Held):
    blocking = False


@pytest.mark.parametrize("kind", [Held, HeldOnTheLoop])
async def test_what_a_fork_holds_is_released_when_its_session_ends_and_when_another_takes_its_place(kind):
    Held.open.clear()
    host = Host({"env": Offer(kind)})
    session = await opened(host, replay=[{"action": "a"}])
    assert len(Held.open) == 1
    await told(host, "close", session=session)
    await so(lambda: not Held.open)
    await opened(host, replay=[{"action": "a"}, {"reseed": 1}])
    await so(lambda: not Held.open)  # the fork has played nothing yet
    await opened(host, replay=[{"action": "a"}])
    await host.close()
    assert not Held.open


async def test_what_a_thread_that_hangs_is_at_is_closed_when_it_has_ended():
    Held.open.clear()
    Held.go_on.clear()
    host = Host({"env": Offer(Held)}, step_timeout_s=0.4)
    late = await stepped(host, await opened(host), "hang")
    assert late["error"]["kind"] == "timeout"
    assert len(host.book) == 0
    assert len(Held.open) == 1
    Held.go_on.set()
    await so(lambda: not Held.open)
    await host.close()


# ------------------------------------------------------------------ a session that takes the place of another


async def test_what_is_replaced_ends_only_if_there_is_a_new_session():
    host = Host({"env": Offer(Guess)}, limits=Limits(max_sessions=1))
    first = await opened(host)
    host.book.draining = True
    assert (await told(host, "open", env="env", replaces=first))["error"]["kind"] == "draining"
    assert "ok" in await stepped(host, first)
    host.book.draining = False
    assert (await told(host, "open", env="env", replaces="s-none"))["error"]["kind"] == "full"
    second = await opened(host, replaces=first)
    assert (await stepped(host, first))["error"]["kind"] == "unknown_session"
    assert "ok" in await stepped(host, second)
    await host.close()


# ------------------------------------------------------------------ asking again


async def test_who_asks_again_keeps_no_message_and_waits_once_on_each_connection(hanging):
    host = Host({"env": Offer(hanging)})
    session = await opened(host)
    step = {"id": "again", "op": "step", "session": session, "turn": 0, "action": "hang"}
    first = asyncio.ensure_future(host.answer(dict(step), "ann", "one"))
    await so(lambda: session in host._work)
    messages = [dict(step) for _ in range(4)]
    joined = [
        asyncio.ensure_future(host.answer(message, "ann", connection))
        for message, connection in zip(messages, ("one", "two", "two", None), strict=True)
    ]
    await so(joined[2].done)
    assert messages == [{}] * 4
    refused = json.loads(joined[2].result().text)
    assert (refused["id"], refused["error"]["kind"]) == ("again", "busy")
    hanging.go_on.set()
    answers = [(await each).text for each in (first, joined[0], joined[1], joined[3])]
    assert len(set(answers)) == 1
    assert "ok" in json.loads(answers[0])
    assert (await host.answer(dict(step), "ann", "two")).text == answers[0]
    assert not host._joined
    await host.close()
