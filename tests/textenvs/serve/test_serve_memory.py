"""The account of bytes: what is held is the sum of what holders have, growth is limited, and nothing is left over."""

import asyncio
import gzip
import json
import socket
import sys
import threading
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from served import ask, opening, over_websocket, running, soon
from toy_envs import AsyncGuess, Guess

from textenvs import Turn
from textenvs.messages import user
from textenvs.serve.host import Host
from textenvs.serve.memory import SMALL, Memory, reserve, weigh
from textenvs.serve.protocol import Refusal, encode
from textenvs.serve.server import Transport
from textenvs.serve.sessions import Limits
from textenvs.serve.variants import Offer

LIMITS = Limits(max_bytes=20_000, max_bytes_per_token=15_000)
HOLDERS = st.sampled_from([("ann", 1), ("ann", 2), ("bob", 1), ("bob", 2)])
SIZES = st.integers(0, 12_000)


class Account(RuleBasedStateMachine):
    """Against a plain table of who has what."""

    def __init__(self):
        super().__init__()
        self.memory, self.table = Memory(LIMITS), {}

    def _sum(self, owner=None):
        return sum(size for (who, _), size in self.table.items() if owner in (None, who))

    @rule(holder=HOLDERS, size=SIZES)
    def hold(self, holder, size):
        growth = size - self.table.get(holder, 0)
        fits = growth <= 0 or (self._sum() + growth <= 20_000 and self._sum(holder[0]) + growth <= 15_000)
        if fits:
            self.memory.hold(holder, holder[0], size)
            self.table[holder] = size
        else:
            with pytest.raises(Refusal, match="no memory") as raised:
                self.memory.hold(holder, holder[0], size)
            assert (raised.value.kind, raised.value.status) == ("full", 429)

    @rule(holder=HOLDERS, size=SIZES)
    def record(self, holder, size):
        self.memory.record(holder, holder[0], size)
        self.table[holder] = size

    @rule(holder=HOLDERS)
    def free(self, holder):
        self.memory.free(holder)
        self.table.pop(holder, None)

    @invariant()
    def the_total_is_the_sum(self):
        assert self.memory.total == self._sum()
        assert all(self.memory.owned(owner) == self._sum(owner) for owner in ("ann", "bob"))
        assert self.memory.most >= self.memory.total

    def teardown(self):
        for holder in list(self.table):
            self.memory.free(holder)
        assert (self.memory.total, self.memory._owned, self.memory._held) == (0, {}, {})


TestAccount = Account.TestCase
TestAccount.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner, max_size=6),
)


def real_size(value):
    """Bytes by the interpreter's own account."""
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        return size + sum(real_size(name) + real_size(each) for name, each in value.items())
    return size + sum(map(real_size, value)) if isinstance(value, list) else size


@given(JSON, st.booleans())
def test_what_is_reserved_covers_what_a_message_is_decoded_to(value, ascii_only):
    text = json.dumps(value, ensure_ascii=ascii_only)
    for sent in (text, text.encode()):
        assert reserve(sent) + 512 >= sys.getsizeof(sent) - 64 + real_size(value) * 0.6


@pytest.mark.parametrize(
    "text",
    ["[" + "[]," * 50_000 + "1]", '{"a":"' + "\\ud83d\\ude00" + "a" * 50_000 + '"}'],
    ids=["many lists", "a wide text"],
)
def test_what_grows_when_it_is_decoded_is_reserved_for(text):
    assert reserve(text) >= real_size(json.loads(text))
    assert reserve(text.encode()) >= real_size(json.loads(text))


def test_texts_weigh_what_they_take():
    for text in ("a" * 10_000, "\u4e00" * 10_000, "\U0001f600" * 10_000):
        assert weigh([{"role": "user", "content": text}]) >= sys.getsizeof(text)
        assert weigh([{"role": "user", "content": text}]) <= sys.getsizeof(text) + 1000


# ------------------------------------------------------------------ a host


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["open", "step", "step", "boom", "close", "expire"]), st.integers(0, 3), SIZES),
        max_size=25,
    )
)
def test_what_a_host_holds_is_what_its_sessions_hold_and_ends_with_them(actions):
    limits = Limits(max_bytes=400_000, max_session_bytes=60_000, idle_s=5.0)

    async def played():
        now = 0.0
        host = Host({"guess": Offer(AsyncGuess)}, limits=limits, clock=lambda: now)
        names, turns = {}, {}
        for op, which, size in actions:
            owner = f"client {which % 2}"
            if op == "open":
                answer = await host.answer({"id": uuid.uuid4().hex, "op": "open", "env": "guess", "seed": 0}, owner)
                told = json.loads(answer.text)
                if "ok" in told and which not in names:
                    names[which], turns[which] = told["ok"]["session"], 0
            elif op in ("step", "boom") and which in names:
                action = "boom" if op == "boom" else "x" * size
                request = {"id": uuid.uuid4().hex, "op": "step", "session": names[which], "turn": turns[which]}
                told = json.loads((await host.answer({**request, "action": action}, owner)).text)
                turns[which] += "ok" in told
                if "error" in told:
                    kinds = ("too_large", "full", "environment_error", "reset_needed", "unknown_session")
                    assert told["error"]["kind"] in kinds
            elif op == "close" and which in names:
                await host.answer({"id": "c", "op": "close", "session": names.pop(which)}, owner)
            elif op == "expire":
                now += 3.0
                host.expire()
            alive = {name: host.memory.held(name) for name in host._playing}
            assert sum(alive.values()) == host.memory.total <= limits.max_bytes + 4 * limits.max_session_bytes
            assert sorted(alive) == sorted(host.book._sessions)
        await host.close()
        assert host.memory.total == 0

    asyncio.run(played())


# ------------------------------------------------------------------ a server


@pytest.fixture(scope="module")
def small():
    limits = Limits(max_reply_bytes=5000, max_session_bytes=60_000, max_bytes=2**20, max_bytes_per_token=300_000)
    transport = Transport(max_message_bytes=200_000, max_connections=20, header_timeout_s=0.3)
    with running({"guess": AsyncGuess}, limits=limits, transport=transport) as server:
        yield server


def step(server, session, turn, action):
    return ask(server, "step", id=uuid.uuid4().hex, session=session, turn=turn, action=action)


def test_a_reply_that_is_too_long_is_refused_in_words_and_the_session_goes_on(small):
    _, _, opened = ask(small, "open", **opening(id=uuid.uuid4().hex))
    session = opened["ok"]["session"]
    status, _, answer = step(small, session, 0, "-" * 5000)
    assert (status, answer["error"]["kind"]) == (413, "too_large")
    assert "a reply has at most 5000 bytes as JSON, and this one has 5002" in answer["error"]["message"]
    assert step(small, session, 0, {"role": "assistant", "content": "x" * 5000})[0] == 413
    replayed = opening(id=uuid.uuid4().hex, replay=[{"action": "-" * 5000}])
    assert ask(small, "open", **replayed)[0] == 413
    assert step(small, session, 0, "a")[0] == 200
    ask(small, "close", session=session)
    soon(lambda: small.host.memory.total == 0, "all is freed")


def test_a_reply_that_is_nested_too_deeply_is_refused(small):
    session = ask(small, "open", **opening())[2]["ok"]["session"]
    deep = json.loads("[" * 900 + "]" * 900)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("textenvs.serve.host.encode", _too_deep)
        status, _, answer = step(small, session, 0, {"role": "assistant", "content": "x", "more": deep})
    assert (status, answer["error"]["kind"]) == (400, "bad_request")
    assert step(small, session, 0, "x")[0] == 200
    ask(small, "close", session=session)


def _too_deep(value):
    if "more" in value.get("", ""):
        raise RecursionError
    return encode(value)


def test_a_compressed_body_is_refused_and_not_unpacked(small):
    """100 bytes a connection would hold megabytes, before anything is counted."""
    packed = gzip.compress(b" " * 150_000 + b'{"id": "x"}')
    head = b"POST /v1/describe HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n"
    with socket.create_connection(("127.0.0.1", small.port), timeout=10) as wire:
        wire.sendall(head + b"Content-Length: %d\r\n\r\n%s" % (len(packed), packed))
        said = wire.makefile("rb").read()
    assert said.startswith(b"HTTP/1.1 415 ")
    assert b"not compressed" in said


def test_a_session_that_grows_too_large_is_refused_more_and_freed_when_it_ends(small):
    _, _, opened = ask(small, "open", **opening(id=uuid.uuid4().hex))
    session = opened["ok"]["session"]
    for turn in range(10):
        status, _, answer = step(small, session, turn, "\u4e00" * 800)  # its environment repeats all that was said
        if status != 200:
            break
    assert (status, answer["error"]["kind"]) in ((413, "too_large"), (409, "reset_needed"))
    held = small.metrics()["held_bytes"]
    assert 0 < held <= 2 * 60_000
    ask(small, "close", session=session)
    soon(lambda: small.host.memory.total == 0, "all is freed")


def test_a_token_that_holds_too_much_is_refused_and_may_still_close(small):
    sessions = []
    while True:
        status, _, answer = ask(small, "open", **opening(id=uuid.uuid4().hex))
        if status != 200:
            break
        sessions.append(answer["ok"]["session"])
        status, _, answer = step(small, sessions[-1], 0, "x" * 4000)
        if status != 200:
            break
        assert len(sessions) < 100
    assert (status, answer["error"]["kind"]) == (429, "full")
    assert "memory" in answer["error"]["message"]
    assert small.host.memory.total <= 300_000 + SMALL
    for session in sessions:
        assert ask(small, "close", session=session)[0] == 200
    soon(lambda: small.host.memory.total == 0, "all is freed")
    assert ask(small, "open", **opening(id=uuid.uuid4().hex))[0] == 200


def test_connections_are_limited_and_one_too_many_is_told(small):
    async def crowd():
        wires = [await asyncio.open_connection("127.0.0.1", small.port) for _ in range(20)]
        reader, writer = await asyncio.open_connection("127.0.0.1", small.port)
        said = await reader.read()
        for _, each in (*wires, (reader, writer)):
            each.close()
        return said

    head, _, body = asyncio.run(crowd()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 429 ")
    assert json.loads(body)["error"]["kind"] == "full"
    soon(lambda: not small.server.gate.connections, "the connections are gone")
    assert ask(small, "describe")[0] == 200


@pytest.mark.parametrize("sent", [b"", b"POST /v1/describe HTTP/1.1\r\nHost: x\r\nX-A: ", b"\r\n"])
def test_slow_headers_are_dropped(small, sent):
    async def slow():
        reader, writer = await asyncio.open_connection("127.0.0.1", small.port)
        trickle = asyncio.ensure_future(trickled(writer))
        writer.write(sent)
        try:
            async with asyncio.timeout(20):
                await reader.read()
        except ConnectionError:
            pass
        trickle.cancel()
        writer.close()

    async def trickled(writer):
        while sent:
            await asyncio.sleep(0.05)
            writer.write(b"a")

    asyncio.run(slow())
    soon(lambda: not small.server.gate.connections, "the connection is gone")


def test_a_websocket_outlives_the_time_for_its_header(small):
    async def talk(ws):
        await asyncio.sleep(0.8)
        await ws.send_json({"id": "1", "op": "describe"})
        return json.loads((await ws.receive()).data)

    assert "ok" in over_websocket(small, talk)


def test_a_message_that_never_ends_counts_and_is_cut_off():
    """Fragments that wait for the rest of their message take memory, too."""
    limits = Limits(max_bytes=2**20)
    transport = Transport(max_message_bytes=2**23)
    with running({"guess": AsyncGuess}, limits=limits, transport=transport) as server:

        async def talk(ws):
            wire = ws._response.connection.transport
            size = 2**22
            wire.write(bytes([0x01, 0x80 | 127]) + size.to_bytes(8, "big") + bytes(4))  # a fragment of 4 MiB
            for _ in range(size // 2**16):
                wire.write(bytes(2**16))
                await asyncio.sleep(0)
            return (await ws.receive()).type.name

        assert over_websocket(server, talk) in ("CLOSED", "ERROR", "CLOSE")
        soon(lambda: server.host.memory.total == 0, "all is freed")
        assert server.host.memory.most <= 2**20 + 2**19


def test_a_plain_hook_that_computes_for_long_holds_up_no_other_session():
    begun, may_end = threading.Event(), threading.Event()

    class Heavy(Guess):
        def respond(self, reply):
            begun.set()
            assert may_end.wait(60)
            return Turn([user("done")])

    with running({"heavy": Heavy, "guess": Guess}, threads=2) as server:
        heavy = server.remote("heavy")
        heavy.reset(seed=0)
        told = []
        stepping = threading.Thread(target=lambda: told.append(heavy.step("a")))
        stepping.start()
        assert begun.wait(30)
        direct, remote = Guess(), server.remote("guess")
        assert remote.reset(seed=1) == direct.reset(seed=1)
        assert remote.step("quit") == direct.step("quit")
        assert not told
        may_end.set()
        stepping.join(30)
        assert told[0][0][-1] == user("done")
