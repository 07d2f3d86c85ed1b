"""Clients that are lost, flood, or do not read: no other feels them; and the end, which waits for them."""

import asyncio
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import aiohttp
import pytest
from aiohttp import WSMessage, WSMsgType
from served import (
    BEARER,
    HANDSHAKE,
    TOKEN,
    TOYS,
    ask,
    get,
    opening,
    over_websocket,
    running,
    soon,
)
from toy_envs import Guess, ToyTasks

from textenvs import Turn
from textenvs.messages import user
from textenvs.serve.client import RemoteError
from textenvs.serve.host import Host
from textenvs.serve.server import Server, Transport, _Channel
from textenvs.serve.sessions import Limits
from textenvs.serve.variants import Offer


class Waiting(Guess):
    """Replies to ``wait`` when the test says so."""

    gates: dict = {}
    entered = 0

    async def respond(self, reply):
        if reply["content"] == "wait":
            type(self).entered += 1
            self.gates[self.state.task_index] = gate = asyncio.Event()
            await gate.wait()
        return super().respond(reply)


@pytest.fixture
def waiting():
    Waiting.gates, Waiting.entered = {}, 0
    offers = {"guess": Waiting, "blocking": TOYS["blocking"]}
    with running(offers, limits=Limits(grace_s=0.5, max_running=8), step_timeout_s=20.0) as server:
        yield server


def let_go(server):
    server.call(lambda: [gate.set() for gate in Waiting.gates.values()])


# ------------------------------------------------------------------ connections that are lost


def test_an_answer_that_was_not_read_is_there_on_another_connection(waiting):
    step = {"id": "once", "op": "step", "turn": 0, "action": "wait"}

    async def ask_and_leave(ws):
        await ws.send_json(opening())
        session = json.loads((await ws.receive()).data)["ok"]["session"]
        await ws.send_json({**step, "session": session})
        while not Waiting.entered:
            await asyncio.sleep(0.005)
        ws._response.connection.transport.abort()  # as a process that is killed
        return session

    session = over_websocket(waiting, ask_and_leave)
    soon(lambda: not waiting.server._channels, "the connection is gone")
    assert waiting.metrics()["sessions"] == 1

    async def ask_again(ws):
        await ws.send_json({**step, "session": session})
        await asyncio.sleep(0.02)
        await asyncio.to_thread(let_go, waiting)
        return json.loads((await ws.receive()).data)

    direct = Guess()
    direct.reset(seed=0)
    assert over_websocket(waiting, ask_again)["ok"]["reward"] == direct.step("wait")[1]
    assert Waiting.entered == 1


def test_sessions_of_a_connection_that_is_lost_end_after_the_grace(waiting):
    async def open_and_leave(ws):
        for number in range(5):
            await ws.send_json(opening(number))
            await ws.receive()
        ws._response.connection.transport.abort()

    over_websocket(waiting, open_and_leave)
    waiting.call(waiting.host.expire)
    soon(lambda: not waiting.server._channels, "the connection is gone")
    assert waiting.metrics()["sessions"] == 5
    soon(lambda: waiting.metrics()["sessions"] == 0, "no session is left")
    assert waiting.metrics()["ended"] == {"connection_lost": 5}
    assert waiting.host._playing == {}
    assert waiting.host._work == {}


def test_too_many_requests_at_work_are_refused_with_a_time_to_come_back(waiting):
    async def talk(ws):
        await ws.send_json(opening(0, id="the very first one"))
        sessions = [json.loads((await ws.receive()).data)["ok"]["session"]]
        for number in range(1, 9):
            await ws.send_json(opening(number, options={"task_index": number % 7}))
            sessions.append(json.loads((await ws.receive()).data)["ok"]["session"])
        for number, session in enumerate(sessions[:8]):
            await ws.send_json({"id": f"s{number}", "op": "step", "session": session, "turn": 0, "action": "wait"})
        while Waiting.entered < 8:
            await asyncio.sleep(0.005)
        await ws.send_json({"id": "more", "op": "step", "session": sessions[8], "turn": 0, "action": "x"})
        over = json.loads((await ws.receive()).data)
        return sessions, over

    async def kept(ws):
        sessions, over = await talk(ws)
        http = await asyncio.to_thread(lambda: ask(waiting, "open", **opening(20)))
        await asyncio.to_thread(let_go, waiting)
        return over, http

    over, (status, headers, answer) = over_websocket(waiting, kept)
    assert (over["id"], over["error"]["kind"]) == ("more", "overloaded")
    assert over["error"]["retry_after_s"] > 0
    assert (status, answer["error"]["kind"]) == (503, "overloaded")
    assert int(headers["Retry-After"]) >= 1


def test_requests_at_work_have_only_so_many_bytes_together():
    Waiting.gates, Waiting.entered = {}, 0
    with running({"guess": Waiting}, transport=Transport(max_pending_bytes=1000)) as server:

        async def talk(ws):
            async def answered(**message):
                await ws.send_str(json.dumps(message, ensure_ascii=False))
                return json.loads((await ws.receive()).data)

            sessions = [(await answered(**opening(number)))["ok"]["session"] for number in range(2)]
            large = {"op": "step", "session": sessions[1], "turn": 0, "action": "é" * 600}
            step = {"id": "w", "op": "step", "session": sessions[0], "turn": 0, "action": "wait"}
            await ws.send_json(step)
            while not Waiting.entered:
                await asyncio.sleep(0.005)
            refused = await answered(id="large", **large)
            small = await answered(id="small", op="close", session="none")
            await asyncio.to_thread(let_go, server)
            assert json.loads((await ws.receive()).data)["ok"]["turn"] == 1
            for _ in range(3):  # alone, one may have more; and what is done counts no more
                alone = await answered(id="alone", **large)
            return refused, small, alone

        refused, small, alone = over_websocket(server, talk)
        assert (refused["id"], refused["error"]["kind"]) == ("large", "overloaded")
        assert "together they may have 1000" in refused["error"]["message"]
        assert refused["error"]["retry_after_s"] > 0
        assert small["ok"] == {}
        assert alone["ok"]["turn"] == 1


def test_too_many_sessions_of_one_token():
    limits = Limits(max_sessions_per_token=2)
    with running(tokens={"ann": TOKEN, "bob": "another"}, limits=limits) as server:
        for number in range(2):
            assert ask(server, "open", BEARER, **opening(number))[0] == 200
        status, headers, answer = ask(server, "open", BEARER, **opening(3))
        assert (status, answer["error"]["kind"], headers["Retry-After"]) == (429, "full", "1")
        assert ask(server, "open", {"Authorization": "Bearer another"}, **opening(3))[0] == 200


class Wordy(Guess):
    """Says a great deal."""

    def respond(self, reply):
        return Turn([user("word " * 100_000)])


@pytest.mark.parametrize("bounds", [{"send_timeout_s": 0.3}, {"send_timeout_s": 600.0, "max_unread_bytes": 2**20}])
def test_a_client_that_does_not_read_stalls_nobody_and_is_disconnected(bounds):
    transport = Transport(**bounds)
    with running({"wordy": Wordy, "guess": Guess}, transport=transport) as server:

        async def reads_nothing():
            async with aiohttp.ClientSession() as session:
                ws = await session.ws_connect(f"{server.url}/v1/ws", max_msg_size=0)
                sessions = []
                for number in range(30):
                    await ws.send_json(
                        {"id": f"an opening of our own {number}", "op": "open", "env": "wordy", "seed": 0}
                    )
                    sessions.append(json.loads((await ws.receive()).data)["ok"]["session"])
                ws._response.connection.transport.pause_reading()
                for number, name in enumerate(sessions):
                    await ws.send_json({"id": f"s{number}", "op": "step", "session": name, "turn": 0, "action": "x"})
                await asyncio.to_thread(other_clients)
                await asyncio.to_thread(
                    soon, lambda: len(server.server._channels) == 1, "the client that does not read is disconnected"
                )

        remote, direct = server.remote("guess"), Guess()

        def other_clients():
            for seed in range(5):
                assert remote.reset(seed=seed) == direct.reset(seed=seed)
                assert remote.step("a") == direct.step("a")

        asyncio.run(reads_nothing())


@dataclass(frozen=True)
class LongWindedTasks(ToyTasks):
    """Whose description is long."""

    name: str = "word " * 20_000


def test_a_client_that_floods_and_reads_nothing_stalls_nobody_and_takes_no_memory():
    offers = {"guess": Guess, "long": lambda: Guess(LongWindedTasks())}
    transport = Transport(send_timeout_s=2.0, max_pending=20)
    with running(offers, transport=transport) as server:
        remote, direct = server.remote("guess"), Guess()
        with socket.create_connection(("127.0.0.1", server.port)) as flood:
            flood.sendall(HANDSHAKE)
            message = b'{"id": "again", "op": "describe"}'
            frame = bytes([0x81, 0x80 | len(message)]) + bytes(4) + message  # masked with zeros
            frames, begun = frame * 5000, 0
            flood.setblocking(False)
            most = 0
            for seed in range(20):
                with suppress(BlockingIOError, ConnectionError):
                    begun = (begun + flood.send(frames[begun:])) % len(frame)
                assert remote.reset(seed=seed) == direct.reset(seed=seed)
                assert remote.step("a") == direct.step("a")
                most = max(most, *(channel._answers.qsize() for channel in list(server.server._channels)))
            soon(lambda: len(server.server._channels) == 1, "the client that floods is disconnected")
        assert 10 <= most <= 2 * 20 + 1


async def test_who_has_sent_much_does_not_keep_the_loop():
    count, ticks = 200, 0
    message = WSMessage(WSMsgType.TEXT, '{"id": "1", "op": "close", "session": "s"}', None)

    class Sent:
        """A WebSocket whose frames are all here, so that reading them waits for nothing."""

        def __init__(self):
            self.left = count

        def __aiter__(self):
            return self

        async def __anext__(self):
            self.left -= 1
            if self.left < 0:
                raise StopAsyncIteration
            return message

        async def send_str(self, text):
            pass

    async def others():
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    other = asyncio.ensure_future(others())
    await _Channel(Sent(), None, "ann", Server(Host({"guess": Offer(Guess)}))).serve()
    other.cancel()
    assert ticks >= count // 2


def test_a_client_that_is_silent_is_found_out_by_the_heartbeat():
    with (
        running(transport=Transport(heartbeat_s=0.2)) as server,
        socket.create_connection(("127.0.0.1", server.port)) as half_open,
    ):
        half_open.sendall(HANDSHAKE)
        soon(lambda: len(server.server._channels) == 1, "it is connected")
        soon(lambda: not server.server._channels, "it is found out")


# ------------------------------------------------------------------ the end


def test_draining_lets_running_episodes_end_and_opens_none(waiting):
    remote, direct = waiting.remote("guess", retry_s=0.2), Guess()
    for env in (remote, direct):
        env.reset(seed=0)
    drained = asyncio.run_coroutine_threadsafe(waiting.server.drain(20.0), waiting.loop)
    soon(lambda: get(waiting, "/health")[0] == 503, "it says that it is draining")
    with pytest.raises(RemoteError, match="shutting down"):
        waiting.remote("guess", retry_s=0.2).reset(seed=1)
    assert remote.step("a") == direct.step("a")
    assert not drained.done()
    assert remote.step("quit") == direct.step("quit")
    assert drained.result(timeout=10) is True


class LongWinded(Guess):
    """Its last word is longer than what a socket takes at once."""

    async def respond(self, reply):
        return Turn([user("word " * 2_000_000)], terminated=True, stop="solved")


def test_draining_waits_until_the_last_answers_are_sent():
    """A client that reads slowly gets what its episode came to, before it is said goodbye to."""
    with running({"long": LongWinded}) as server:

        async def talk(ws):
            sessions = []
            for number in range(2):
                await ws.send_json(opening(number, env="long"))
                sessions.append(json.loads((await ws.receive()).data)["ok"]["session"])
            wire = ws._response.connection.transport
            wire.pause_reading()
            for session in sessions:
                await ws.send_json({"id": session, "op": "step", "session": session, "turn": 0, "action": "x"})
            await asyncio.to_thread(soon, lambda: not server.metrics()["playing"], "all episodes are over")
            drained = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(server.server.drain(20.0), server.loop))
            await asyncio.wait({drained}, timeout=0.15)
            assert not drained.done()
            wire.resume_reading()
            answers = {json.loads((await ws.receive()).data)["id"] for _ in sessions}
            return answers == set(sessions), await drained

        async def talked():
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(f"{server.url}/v1/ws", max_msg_size=0) as ws,
            ):
                return await talk(ws)

        assert asyncio.run(talked()) == (True, True)


def test_draining_waits_no_longer_than_the_grace_for_who_does_not_read():
    with running({"long": LongWinded}) as server:

        async def talk(ws):
            await ws.send_json(opening(env="long"))
            session = json.loads((await ws.receive()).data)["ok"]["session"]
            ws._response.connection.transport.pause_reading()
            await ws.send_json({"id": "1", "op": "step", "session": session, "turn": 0, "action": "x"})
            await asyncio.to_thread(soon, lambda: not server.metrics()["playing"], "the episode is over")
            drained = await asyncio.to_thread(server.on_loop, server.server.drain(0.1))
            ws._response.connection.transport.abort()
            return drained

        assert over_websocket(server, talk) is False


def test_draining_waits_for_answers_over_http(waiting, monkeypatch):
    answer, asked, go_on = waiting.host.answer, threading.Event(), asyncio.Event()

    async def slow(*request):
        asked.set()
        await go_on.wait()
        return await answer(*request)

    monkeypatch.setattr(waiting.host, "answer", slow)
    with ThreadPoolExecutor(1) as pool:
        described = pool.submit(ask, waiting, "describe")
        assert asked.wait(10)
        assert waiting.on_loop(waiting.server.drain(0.1)) is False
        waiting.call(go_on.set)
        assert described.result(timeout=10)[0] == 200
    assert waiting.on_loop(waiting.server.drain(10.0)) is True


def test_the_grace_has_an_end_and_environments_are_closed():
    made = []

    def make():
        made.append(Guess())
        return made[-1]

    with running({"guess": Offer(make)}) as server:
        remote = server.remote("guess")
        remote.reset(seed=0)
        began = time.monotonic()
        assert server.on_loop(server.server.drain(0.2)) is False
        assert time.monotonic() - began >= 0.2
    assert [bool(env.cleaned) for env in made] == [True]
