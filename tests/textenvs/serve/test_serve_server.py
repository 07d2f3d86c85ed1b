"""The server over real sockets: who may, what is refused, clients that break off, and draining."""

import asyncio
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import aiohttp
import pytest
from served import BEARER, TOKEN, ask, get, opening, running, soon
from skip_time import skip
from toy_envs import AsyncGuess, Guess

from textenvs import Turn
from textenvs.messages import user
from textenvs.serve import server as module
from textenvs.serve.client import RemoteError
from textenvs.serve.host import Host, Offer
from textenvs.serve.server import Server

NAME = "6ec0bd7f-11c0-43da-975e-2a8ad9ebae0b"


@pytest.fixture(scope="module")
def guarded():
    with running(tokens={"ann": TOKEN, "bob": "another"}, max_message_bytes=20_000) as server:
        yield server


def test_http_episode_equals_direct_one(guarded):
    direct = Guess()
    conversation, info = direct.reset(seed=3)
    status, _, opened = ask(guarded, "open", BEARER, session=NAME, env="guess", seed=3)
    assert (status, opened["session"], opened["messages"], opened["info"]) == (200, NAME, list(conversation), info)
    for turn, reply in enumerate(("a", {"role": "assistant", "content": "b"}, "quit")):
        grown, reward, terminated, truncated, info = direct.step(reply)
        _, _, answer = ask(guarded, "step", BEARER, session=NAME, turn=turn, action=reply)
        assert answer == {
            "turn": turn + 1,
            "messages": list(grown[len(conversation) :]),
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            "info": info,
        }
        conversation = grown
    status, _, answer = ask(guarded, "step", BEARER, session=NAME, turn=3, action="x")
    assert (status, answer["error"]["kind"]) == (409, "reset_needed")
    for _ in range(2):
        assert ask(guarded, "close", BEARER, sessions=[NAME])[2] == {}
    assert ask(guarded, "step", BEARER, session=NAME, turn=3, action="x")[0] == 404


# ------------------------------------------------------------------ who may


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer ", TOKEN, f"Basic {TOKEN}", "Bearer \u00e9"])
def test_client_without_token_is_refused(guarded, header):
    headers = {} if header is None else {"Authorization": header}
    for status, answer in (
        get(guarded, "/metrics", headers),
        ask(guarded, "open", headers, **opening())[::2],
        ask(guarded, "describe", headers)[::2],
        ask(guarded, "nonsense", headers)[::2],
    ):
        assert status == 401
        assert "token" in answer["error"]["message"]
        assert TOKEN not in json.dumps(answer)
    assert get(guarded, "/health") == (200, {"status": "ok", "protocol": 5})


def test_token_error_names_remedy(guarded, monkeypatch):
    monkeypatch.delenv("TEXTENVS_TOKEN", raising=False)
    for token in (None, "wrong"):
        with pytest.raises(RemoteError, match="TEXTENVS_TOKEN") as raised:
            guarded.remote("guess", token=token)
        assert raised.value.kind == "unauthorized"
    monkeypatch.setenv("TEXTENVS_TOKEN", TOKEN)
    assert guarded.remote("guess").reset(seed=0) == Guess().reset(seed=0)


def test_pages_in_browsers_are_refused():
    with running() as server:
        for origin in ("http://localhost", "null", "https://evil.example"):
            assert ask(server, "describe", {"Origin": origin})[0] == 403
        assert ask(server, "describe")[0] == 200


def test_tokens_differ_and_stay_out_of_metrics(guarded):
    for tokens in ({"a": "x", "b": "x"}, {"a": ""}):
        with pytest.raises(ValueError, match="must not be empty, and must differ"):
            Server(Host({"a": Offer(Guess)}), tokens=tokens)
    _, metrics = get(guarded, "/metrics", BEARER)
    assert metrics["sessions"] >= 0
    assert TOKEN not in json.dumps(metrics)


# ------------------------------------------------------------------ garbage


@pytest.mark.parametrize(
    ("raw", "status", "match"),
    [
        (b"", 400, "JSON"),
        (b"{", 400, "JSON"),
        (b"\xff\xfe", 400, "JSON"),
        (b"[1]", 400, "valid dictionary"),
        (b"[" * 15_000, 400, "nested more than 100 deep"),
        (b'{"env": "guess"}', 400, "session: Field required"),
        (b'{"session": "sixteen characters", "env": "guesss"}', 404, "no such environment, but guess"),
        (b'{"session": "sixteen characters", "env": "guess", "seed": -1}', 400, "seed"),
        (b'{"session": "sixteen characters", "env": "guess", "seed": 1e400}', 400, "seed"),
        (b'{"session": "sixteen characters", "env": "guess", "sed": 1}', 400, "sed: Extra inputs"),
        (b'{"session": "sixteen characters", "env": "guess", "seed": 1, "replay": [{}]}', 400, "replay"),
        (b'{"session": "sixteen characters", "env": "guess", "replay": [{"reseed": 1}]}', 400, "needs the seed"),
        (b'{"session": "1", "env": "guess", "seed": 1}', 400, "at least 16 characters"),
        (b'{"session": "sixteen characters", "env": "guess", "options": {"task_index": 99}}', 422, "7 tasks"),
        (b'"' + b"x" * 30_000 + b'"', 413, "at most 20000 bytes"),
    ],
)
def test_malformed_or_oversized_requests_get_errors(guarded, raw, status, match):
    got, _, answer = ask(guarded, "open", BEARER, raw=raw)
    assert got == status
    assert match in answer["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "match"),
    [
        ("GET", "/", {}, 404, "POST /v1/{describe,open,"),
        ("GET", "/v1/open", {}, 405, "POST /v1/{describe,open,"),
        ("POST", "/health", {}, 405, "POST /v1/{describe,open,"),
        ("POST", "/v1/stepp", BEARER, 400, "POST /v1/{describe,open,"),
        ("POST", "/v1/open", {**BEARER, "Content-Encoding": "gzip"}, 400, "not compressed"),
        ("POST", "/v1/open", BEARER, 400, "Content-Length"),
    ],
)
def test_other_requests_are_refused_as_json(guarded, method, path, headers, status, match):
    async def request_json():
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.request(
                method, guarded.url + path, data=b"{}", chunked=True if match == "Content-Length" else None
            ) as answer,
        ):
            return answer.status, await answer.json()

    got, answer = asyncio.run(request_json())
    assert (got, answer["error"]["kind"]) == (status, "bad_request")
    assert match in answer["error"]["message"]


def test_sessions_close_without_free_memory():
    with running(max_bytes=200_000) as server:
        opened = [ask(server, "open", **opening(number))[0] for number in range(30)]
        assert {200, 429} == set(opened)
        names = [opening(number)["session"] for number in range(1000)]
        assert ask(server, "close", sessions=names * 3)[0] == 413
        assert ask(server, "close", sessions=names)[0] == 200  # which takes more than is left
        assert server.metrics()["held_bytes"] == 0


def test_oversized_reply_keeps_its_session(guarded):
    remote, direct = guarded.remote("guess", token=TOKEN), Guess()
    assert remote.reset(seed=0) == direct.reset(seed=0)
    for _ in range(2):
        with pytest.raises(RemoteError, match="at most 20000 bytes") as raised:
            remote.step("x" * 3_000_000)
        assert raised.value.kind == "too_large"
    opened = guarded.metrics()["opened"]
    assert remote.step("x") == direct.step("x")
    assert guarded.metrics()["opened"] == opened


@pytest.mark.parametrize("garbage", [b"\x00" * 100, b"GET", b"POST /v1/open HTTP/1.1\r\nContent-Length: 10\r\n\r\n{"])
def test_broken_requests_leave_other_clients_alone(guarded, garbage, caplog):
    with socket.create_connection(("127.0.0.1", guarded.port)) as raw:
        raw.sendall(garbage)
        assert ask(guarded, "describe", BEARER)[0] == 200
    assert ask(guarded, "describe", BEARER)[0] == 200
    assert not [record for record in caplog.records if record.name == "textenvs.serve"]


def test_stalled_transfers_time_out(monkeypatch):
    class Long(Guess):
        def respond(self, reply):
            return Turn([user("word " * 3_000_000)])

    with running({"long": Long}) as server:
        ask(server, "open", **opening(env="long"))
        body = json.dumps({"session": opening()["session"], "turn": 0, "action": "x"}).encode()
        with monkeypatch.context() as hasty:
            hasty.setattr(module, "TRANSFER_S", 0.2)
            with socket.create_connection(("127.0.0.1", server.port)) as raw:
                raw.settimeout(60)
                raw.sendall(b"POST /v1/open HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
                assert b"did not come within 0.2 s" in raw.recv(10_000)
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            raw.settimeout(60)
            raw.sendall(b"POST /v1/step HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            assert raw.recv(1)  # the answer is on its way
            skip(server.loop, module.TRANSFER_S)
            soon(lambda: not server.server._answering, "it gives up")
            with suppress(ConnectionError):
                while raw.recv(2**20):
                    pass  # what the sockets held; then the end
        assert len(ask(server, "step", raw=body)[2]["messages"][1]["content"]) == 15_000_000  # it was kept


# ------------------------------------------------------------------ the end


def test_draining_finishes_episodes_opens_none():
    with running() as server:
        remote, direct = server.remote("guess", retry_s=0.2), Guess()
        for env in (remote, direct):
            env.reset(seed=0)
        drained = asyncio.run_coroutine_threadsafe(server.server.drain(100.0), server.loop)
        soon(lambda: get(server, "/health")[0] == 503, "it says that it is draining")
        with pytest.raises(RemoteError, match="shutting down"):
            server.remote("guess", retry_s=0.2).reset(seed=1)
        assert remote.step("a") == direct.step("a")
        assert not drained.done()
        assert remote.step("quit") == direct.step("quit")
        drained.result(timeout=60)


def test_draining_waits_for_answers_within_limit(monkeypatch):
    made, has_begun = [], threading.Event()

    def make():
        made.append(AsyncGuess())
        return made[-1]

    with running({"guess": make}) as server:
        answer, go_on = server.host.answer, asyncio.Event()

        async def slow(*request):
            has_begun.set()
            await go_on.wait()
            return await answer(*request)

        monkeypatch.setattr(server.host, "answer", slow)
        with ThreadPoolExecutor(1) as pool:
            described = pool.submit(ask, server, "describe")
            assert has_begun.wait(60)
            server.on_loop(server.server.drain(0.1))
            assert server.server._answering == 1
            server.call(go_on.set)
            assert described.result(timeout=60)[0] == 200
        server.on_loop(server.server.drain(60.0))
    assert [bool(env.cleaned) for env in made] == [True]
