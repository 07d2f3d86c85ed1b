"""The server over real sockets: who may, what is refused, and environments that misbehave."""

import asyncio
import json
import socket
import threading

import aiohttp
import pytest
from served import (
    BEARER,
    HANDSHAKE,
    TOKEN,
    ask,
    get,
    opening,
    over_websocket,
    running,
    soon,
)
from toy_envs import Guess, ToyTasks

from textenvs.event_loop import wait_for
from textenvs.serve.client import Client, RemoteError
from textenvs.serve.host import Host
from textenvs.serve.server import Server, Transport
from textenvs.serve.variants import Offer

UNIQUE = "6ec0bd7f-11c0-43da-975e-2a8ad9ebae0b"


@pytest.fixture(scope="module")
def guarded():
    with running(tokens={"ann": TOKEN, "bob": "another"}, transport=Transport(max_message_bytes=20_000)) as server:
        yield server


# ------------------------------------------------------------------ HTTP


def test_an_episode_over_http_is_the_direct_one(guarded):
    direct = Guess()
    conversation, info = direct.reset(seed=3)
    status, _, opened = ask(guarded, "open", BEARER, id=UNIQUE, env="guess", seed=3)
    assert (status, opened["id"]) == (200, UNIQUE)
    assert opened["ok"]["messages"] == list(conversation)
    assert opened["ok"]["info"] == info
    session = opened["ok"]["session"]
    for turn, reply in enumerate(("a", {"role": "assistant", "content": "b"}, "quit")):
        grown, reward, terminated, truncated, info = direct.step(reply)
        _, _, answer = ask(guarded, "step", BEARER, id=f"s{turn}", session=session, turn=turn, action=reply)
        assert answer["ok"] == {
            "session": session,
            "turn": turn + 1,
            "messages": list(grown[len(conversation) :]),
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            "info": info,
        }
        conversation = grown
    status, _, answer = ask(guarded, "step", BEARER, id="s9", session=session, turn=3, action="x")
    assert (status, answer["error"]["kind"]) == (409, "reset_needed")
    assert ask(guarded, "close", BEARER, session=session)[2]["ok"] == {}
    assert ask(guarded, "close", BEARER, session=session)[2]["ok"] == {}
    assert ask(guarded, "step", BEARER, id="s9", session=session, turn=3, action="x")[0] == 404


def test_a_request_that_is_asked_again_is_carried_out_once(guarded):
    first = ask(guarded, "open", BEARER, id="asked for twice over", env="guess", seed=1)[2]
    assert ask(guarded, "open", BEARER, id="asked for twice over", env="guess", seed=1)[2] == first
    step = {"id": "step twice", "session": first["ok"]["session"], "turn": 0, "action": "a"}
    played = ask(guarded, "step", BEARER, **step)[2]
    assert ask(guarded, "step", BEARER, **step)[2] == played
    status, _, answer = ask(guarded, "step", BEARER, **{**step, "action": "b"})
    assert (status, answer["error"]["kind"]) == (400, "bad_request")
    status, _, answer = ask(guarded, "step", BEARER, **{**step, "id": "stale"})
    assert (status, answer["error"]["kind"], answer["error"]["turn"]) == (409, "wrong_turn", 1)
    assert "a" in ask(guarded, "step", BEARER, **{**step, "id": "2", "turn": 1})[2]["ok"]["messages"][1]["content"]


def test_seeds_that_the_server_draws_are_told(guarded):
    opened = [ask(guarded, "open", BEARER, id=f"opened without a seed {i}", env="guess")[2]["ok"] for i in range(2)]
    assert opened[0]["seed"] != opened[1]["seed"]
    assert opened[0]["messages"] == list(Guess().reset(seed=opened[0]["seed"])[0])


# ------------------------------------------------------------------ who may


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer ", TOKEN, f"Basic {TOKEN}", "Bearer \u00e9"])
def test_without_its_token_nobody_is_served(guarded, header):
    headers = {} if header is None else {"Authorization": header}
    for status, answer in (
        get(guarded, "/metrics", headers),
        get(guarded, "/v1/ws", headers),
        ask(guarded, "open", headers, **opening())[::2],
        ask(guarded, "describe", headers)[::2],
        ask(guarded, "nonsense", headers)[::2],
    ):
        assert status == 401
        assert "token" in answer["error"]["message"]
        assert TOKEN not in json.dumps(answer)
    with pytest.raises(aiohttp.WSServerHandshakeError) as raised:
        over_websocket(guarded, lambda ws: ws.receive(), headers)
    assert raised.value.status == 401
    assert get(guarded, "/health") == (200, {"status": "ok", "protocol": 1})


def test_the_client_says_what_to_do_about_a_token(guarded, monkeypatch):
    monkeypatch.delenv("TEXTENVS_TOKEN", raising=False)
    for token in (None, "wrong"):
        with pytest.raises(RemoteError, match="TEXTENVS_TOKEN") as raised:
            guarded.remote("guess", token=token)
        assert raised.value.kind == "unauthorized"
    monkeypatch.setenv("TEXTENVS_TOKEN", TOKEN)
    assert guarded.remote("guess").reset(seed=0) == Guess().reset(seed=0)


def test_a_session_belongs_to_its_token(guarded):
    session = ask(guarded, "open", BEARER, id="a session of mine", env="guess", seed=1)[2]["ok"]["session"]
    bob = {"Authorization": "Bearer another"}
    assert ask(guarded, "step", bob, id="x", session=session, turn=0, action="a")[0] == 404
    ask(guarded, "close", bob, session=session)
    assert ask(guarded, "step", BEARER, id="x", session=session, turn=0, action="a")[0] == 200


def test_pages_in_browsers_are_not_spoken_with():
    with running() as server:
        for origin in ("http://localhost", "null", "https://evil.example"):
            assert ask(server, "describe", {"Origin": origin})[0] == 403
            with pytest.raises(aiohttp.WSServerHandshakeError):
                over_websocket(server, lambda ws: ws.receive(), {"Origin": origin})
        assert ask(server, "describe")[0] == 200


# ------------------------------------------------------------------ garbage


@pytest.mark.parametrize(
    ("raw", "status", "match"),
    [
        (b"", 400, "JSON"),
        (b"{", 400, "JSON"),
        (b"\xff\xfe", 400, "JSON"),
        (b"[1]", 400, "JSON object"),
        (b"[" * 15_000, 400, "nested too deeply"),
        (b'{"env": "guess"}', 400, "id: Field required"),
        (b'{"id": "1", "env": "guesss"}', 404, "there are: guess"),
        (b'{"id": "1", "env": "guess", "seed": -1}', 400, "seed"),
        (b'{"id": "1", "env": "guess", "seed": 1e400}', 400, "too large"),
        (b'{"id": "1", "env": "guess", "sed": 1}', 400, "sed: Extra inputs"),
        (b'{"id": "1", "env": "guess", "seed": 1, "replay": [{}]}', 400, "an action or a reseed"),
        (b'{"id": "1", "env": "guess", "seed": 1}', 400, "use a UUID"),
        (b'{"id": "more than sixteen", "env": "guess", "options": {"task_index": 99}}', 422, "7 tasks"),
        (b'{"id": "1", "env": "guess", "kwargs": {"a": 1}}', 403, "--allow kwargs"),
        (b'{"id": "a UUID of our own", "env": "guess", "options": {"task": {}}}', 403, "--allow tasks"),
        (b'{"id": "a UUID of our own", "env": "guess", "options": {"other": 1}}', 403, "--allow tasks"),
        (b'"' + b"x" * 30_000 + b'"', 413, "at most 20000 bytes"),
    ],
)
def test_malformed_and_oversized_requests_get_clear_errors(guarded, raw, status, match):
    got, _, answer = ask(guarded, "open", BEARER, raw=raw)
    assert got == status
    assert match in answer["error"]["message"]


def test_an_unknown_operation_names_the_known_ones(guarded):
    status, _, answer = ask(guarded, "stepp", BEARER)
    assert status == 400
    assert "describe,open,step" in answer["error"]["message"]


def test_a_client_that_goes_in_the_middle_of_a_body_is_no_error_of_the_server(caplog):
    with running() as server:
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            raw.sendall(b"POST /v1/open HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
            assert ask(server, "describe")[0] == 200
        soon(lambda: server.metrics()["errors"] == {"bad_request": 1}, "it is noticed")
        assert ask(server, "describe")[0] == 200
    assert not caplog.records


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [("GET", "/", 404, None), ("POST", "/v2/open", 404, None), ("GET", "/v1/open", 405, "POST"),
     ("POST", "/health", 405, "GET,HEAD"), ("PUT", "/v1/open", 405, "POST")],
)  # fmt: skip
def test_what_is_not_there_is_refused_in_the_protocols_own_way(guarded, method, path, status, allow):
    async def asked():
        async with aiohttp.ClientSession() as session, session.request(method, guarded.url + path) as answer:
            return answer.status, answer.headers.get("Allow"), await answer.json()

    got, allowed, answer = asyncio.run(asked())
    assert (got, allowed) == (status, allow)
    assert answer["id"] is None
    assert answer["error"]["kind"] == "bad_request"
    assert "POST /v1/{describe,open," in answer["error"]["message"]


def test_a_body_that_does_not_come_is_refused():
    with (
        running(transport=Transport(receive_timeout_s=0.05)) as server,
        socket.create_connection(("127.0.0.1", server.port)) as raw,
    ):
        raw.sendall(b"POST /v1/open HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        raw.settimeout(10)
        answer = b""
        while not answer.endswith(b"}}"):
            answer += raw.recv(1000)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        assert b"application/json" in head
        assert b"Connection: close" in head
        assert json.loads(body)["error"] == {"kind": "bad_request", "message": "the body did not come within 0.05 s"}


def test_garbage_frames_are_answered_and_the_connection_goes_on(guarded):
    async def talk(ws):
        errors = []
        for garbage in ("", "{", "[]", '{"id": 3}', '{"id": "a", "op": "x"}', '{"id": "a", "op": "open"}', "\x00"):
            await ws.send_str(garbage)
            errors.append(json.loads((await ws.receive()).data)["error"]["kind"])
        await ws.send_bytes(b"\x00\xff")
        errors.append(json.loads((await ws.receive()).data)["error"]["kind"])
        await ws.send_json(opening(7))
        return errors, json.loads((await ws.receive()).data)

    errors, opened = over_websocket(guarded, talk, BEARER)
    assert set(errors) == {"bad_request"}
    assert opened["ok"]["messages"] == list(Guess().reset(seed=7)[0])


def test_a_frame_that_is_too_large_closes_the_connection_with_the_reason_and_sessions_survive(guarded):
    async def talk(ws):
        await ws.send_json(opening(8, id="before the large one"))
        session = json.loads((await ws.receive()).data)["ok"]["session"]
        await ws.send_str("x" * 30_000)
        closed = await ws.receive()
        return session, closed.type, closed.data, closed.extra

    session, kind, code, reason = over_websocket(guarded, talk, BEARER)
    assert (kind, code, reason) == (aiohttp.WSMsgType.CLOSE, 1009, "a message has at most 20000 bytes")
    assert ask(guarded, "step", BEARER, id="1", session=session, turn=0, action="a")[0] == 200


def test_a_reply_that_is_too_large_is_an_error_at_once_and_costs_no_other_episode(guarded):
    direct, remotes = Guess(), [guarded.remote("guess", token=TOKEN) for _ in range(5)]
    direct.reset(seed=1)
    expected = direct.step("x")

    async def played(remote, reply):
        await remote.areset(seed=1)
        return await remote.astep(reply)

    async def all_at_once():
        replies = ["x", "x", "x" * 30_000, "x", "x"]
        together = [played(remote, reply) for remote, reply in zip(remotes, replies, strict=True)]
        return await asyncio.gather(*together, return_exceptions=True)

    results = asyncio.run(all_at_once())
    error = results.pop(2)
    assert isinstance(error, RemoteError)
    assert error.kind == "too_large"
    assert "--max-message-mb" in str(error)
    assert "tried for" not in str(error)  # as what may pass is
    assert results == [expected] * 4
    assert remotes[2].step("x") == expected


def test_a_reply_larger_than_the_usual_limit_is_refused_before_it_is_sent_and_breaks_no_connection():
    with running() as server:
        remote = server.remote("guess", retry_s=0.5)  # where it were tried again
        remote.reset(seed=1)
        (channel,) = server.server._channels
        with pytest.raises(RemoteError, match=r"of 9000\d+ bytes, 8388608 at most .*--max-message-mb") as raised:
            remote.step("x" * 9_000_000)
        assert raised.value.kind == "too_large"
        assert server.call(lambda: set(server.server._channels)) == {channel}
        direct = Guess()
        direct.reset(seed=1)
        assert remote.step("x") == direct.step("x")


def test_the_limit_is_asked_for_where_a_large_message_was_lost_and_nobody_had_asked():
    with running() as server:
        client = Client(server.url)
        opened = wait_for(client.call("open", env="guess", seed=1))
        with pytest.raises(RemoteError, match="8388608 at most") as raised:
            wait_for(client.call("step", session=opened["session"], turn=0, action="x" * 9_000_000))
        assert raised.value.kind == "too_large"


def test_what_is_sent_in_the_callers_thread_has_the_same_limit(guarded):
    client = Client(guarded.url, TOKEN)
    wait_for(client.call("describe"))
    with pytest.raises(RemoteError, match="20000 at most") as raised:
        client._post({"id": "large", "op": "open", "env": "x" * 30_000})
    assert raised.value.kind == "too_large"


def test_a_server_that_does_not_tell_its_limit_is_played_with():
    with running() as server:
        server.host.max_message_bytes = None
        assert "max_message_bytes" not in ask(server, "describe")[2]["ok"]
        direct, remote = Guess(), server.remote("guess")
        assert remote.reset(seed=1) == direct.reset(seed=1)
        assert remote.step("x" * 30_000) == direct.step("x" * 30_000)


def test_a_message_that_just_fits_is_taken_over_both_transports(guarded):
    told = ask(guarded, "describe", BEARER)[2]["ok"]["max_message_bytes"]
    assert told == 20_000

    async def talk(ws):
        message = json.dumps({"id": "fits", "op": "describe"})
        await ws.send_str(message + " " * (told - len(message)))
        return json.loads((await ws.receive()).data)

    assert over_websocket(guarded, talk, BEARER)["ok"]["max_message_bytes"] == told
    body = "{}" + " " * (told - 2)
    assert ask(guarded, "describe", BEARER, raw=body)[0] == 200
    assert ask(guarded, "describe", BEARER, raw=body + " ")[0] == 413


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00" * 400,
        b"GET / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/open HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{",  # and then nothing
        b"GET /v1/ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"",
    ],
)
def test_garbage_on_the_socket_and_half_a_request_disturb_nobody(guarded, garbage):
    with socket.create_connection(("127.0.0.1", guarded.port)) as raw:
        raw.sendall(garbage)
        assert guarded.remote("guess", token=TOKEN).reset(seed=2) == Guess().reset(seed=2)


def test_a_websocket_with_broken_frames_is_closed_and_disturbs_nobody():
    with running() as server, socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(HANDSHAKE)
        assert b"101" in raw.recv(1000)
        raw.sendall(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")
        raw.settimeout(10)
        while raw.recv(1000):
            pass
        remote = server.remote("guess")
        assert remote.reset(seed=2) == Guess().reset(seed=2)
        soon(lambda: len(server.server._channels) == 1, "the broken connection is gone")
        remote.close()


# ------------------------------------------------------------------ environments that misbehave


class Stuck(Guess):
    async def respond(self, reply):
        if reply["content"] == "hang":
            await asyncio.Event().wait()
        return super().respond(reply)


class StuckInAThread(Guess):
    blocking = True
    go_on = threading.Event()

    def respond(self, reply):
        if reply["content"] == "hang":
            self.go_on.wait(30)
        return super().respond(reply)


def test_an_environment_that_hangs_is_given_up_and_the_rest_goes_on():
    with running({"stuck": Stuck, "thread": StuckInAThread}, step_timeout_s=0.3, threads=2) as server:
        direct = Guess()
        remote = server.remote("stuck")
        for env in (remote, direct):
            env.reset(seed=0)
        with pytest.raises(RemoteError, match="longer than 0.3 s; the episode is as it was"):
            remote.step("hang")
        assert remote.step("a") == direct.step("a")
        remote = server.remote("thread")
        remote.reset(seed=0)
        direct.reset(seed=0)
        with pytest.raises(RemoteError, match="longer than 0.3 s; the session is lost"):
            remote.step("hang")
        assert remote.step("a") == direct.step("a")  # in another session
        StuckInAThread.go_on.set()
        assert server.metrics()["ended"]["broken"] == 1


class NotJson(Guess):
    def _result(self, turn, failure=None):
        conversation, reward, terminated, truncated, info = super()._result(turn, failure)
        return conversation, reward, terminated, truncated, {**info, "odd": object()}


def test_what_is_not_json_is_the_environments_error():
    with running({"odd": NotJson}) as server:
        remote = server.remote("odd")
        remote.reset(seed=0)
        with pytest.raises(RemoteError, match="object is not JSON"):
            remote.step("a")
        soon(lambda: server.metrics()["sessions"] == 0, "the session is given up")


class Unspeakable(ToyTasks):
    def __getitem__(self, index):
        raise KeyError("a secret")


def test_whatever_else_goes_wrong_is_an_error_without_its_text():
    with running({"odd": lambda: Guess(Unspeakable())}) as server:
        for status, _, answer in (
            ask(server, "task", id="1", env="odd", index=0),
            ask(server, "open", id=UNIQUE, env="odd", seed=0),
        ):
            assert (status, answer["error"]["exception"]) == (500, "KeyError")
            assert "secret" not in json.dumps(answer)
        assert server.metrics()["sessions"] == 0


def test_an_environment_that_cannot_be_made_is_noticed_at_once():
    def broken():
        raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"), running({"broken": Offer(broken)}):
        pass


def test_mistakes_of_the_operator():
    with pytest.raises(ValueError, match="at least one environment"):
        Host({})
    with pytest.raises(ValueError, match="allow has"):
        Host({"a": Offer(Guess)}, allow=["everything"])
    with pytest.raises(ValueError, match="threads"):
        Host({"a": Offer(Guess)}, threads=0)
    with pytest.raises(ValueError, match="must not be empty, and must differ"):
        Server(Host({"a": Offer(Guess)}), tokens={"a": "x", "b": "x"})
    with pytest.raises(ValueError, match="heartbeat_s"):
        Transport(heartbeat_s=0)


def test_variants_of_clients_are_bounded():
    with running({"guess": Guess}, allow=["kwargs"]) as server:
        for number in range(1, 30):
            remote = server.remote("guess", env_kwargs={"max_assistant_turns": number})
            assert remote.max_assistant_turns == number
            remote.reset(seed=0)
            remote.close()
            soon(lambda: server.metrics()["sessions"] == 0, "it is closed")
        assert len(server.host._variants) <= 17


def test_metrics_have_no_secrets(guarded):
    _, metrics = get(guarded, "/metrics", BEARER)
    assert metrics["sessions"] >= 0
    assert metrics["memory_bytes"] is None or metrics["memory_bytes"] > 10**6
    assert TOKEN not in json.dumps(metrics)
