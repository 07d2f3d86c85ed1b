"""Requests that no client of the protocols sends: refused in words, and no harm to other sessions."""

import contextlib
import http.client
import json
import socket
import threading
import time

import pytest
from gateway_kit import answering, echo

from textenvs.gateway import openai_chat
from textenvs.gateway.server import MAX_BYTES, gateway
from textenvs.tools.call_format import make_call

GOOD = json.dumps({"messages": [{"role": "user", "content": "?"}]}).encode()


def post(body, key, path="/v1/chat/completions", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", gateway().port, timeout=60)
    try:
        connection.request("POST", path, body, {"Authorization": f"Bearer {key}", **headers})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def words(answer):
    return answer["error"]["message"]


TOOLS = [{"type": "function", "function": {"name": str(number)}} for number in range(1001)]
BROKEN = {
    b"": "no JSON",
    b"{": "no JSON",
    b"\xff\xfe": "no JSON",
    b"[]": "must be a JSON object",
    b"null": "must be a JSON object",
    b"[" * 100_000: "nested too deeply",
    b'{"messages": NaN}': "NaN is no JSON",
    b'{"messages": {}}': "messages must be a list",
    b'{"messages": [1]}': "message 0: a message is a mapping",
    b'{"messages": [%s]}'
    % b",".join([b'{"role": "user", "content": ""}'] * 10_001): "messages: a call has at most 10000",
    json.dumps(
        {"messages": [{"role": "user", "content": ""}], "tools": TOOLS}
    ).encode(): "tools: a call has at most 1000",
}


@pytest.mark.parametrize("body", BROKEN, ids=range(len(BROKEN)))
def test_broken_bodies_are_refused_in_words(body):
    with answering(echo()) as channel:
        status, answer = post(body, channel.key)
        assert (status, BROKEN[body] in words(answer)) == (400, True), answer
        assert post(GOOD, channel.key)[0] == 200


def test_large_body_is_refused_in_words():
    with answering(echo()) as channel:
        large = json.dumps({"messages": [{"role": "user", "content": "x" * MAX_BYTES}]}).encode()
        status, answer = post(large, channel.key)
        assert (status, words(answer)) == (413, f"a request has at most {MAX_BYTES} bytes")
        fits = json.dumps({"messages": [{"role": "user", "content": "x" * (MAX_BYTES - 1000)}]}).encode()
        assert post(fits, channel.key)[0] == 200
        assert post(GOOD, channel.key)[0] == 200


def test_compressed_body_is_refused():
    with answering(echo()) as channel:
        assert post(GOOD, channel.key, **{"Content-Encoding": "gzip"})[0] == 415


PATHS = ("/", "/v1/../v1/models", "/v1/chat/completions/../../etc/passwd", "//v1/messages/x", "/%2e%2e/")


@pytest.mark.parametrize("path", PATHS)
def test_other_paths_are_not_offered(path):
    with answering(echo()) as channel:
        status, answer = post(GOOD, channel.key, path)
        assert (status, "is not offered" in words(answer)) == (404, True), answer


def test_other_sessions_are_out_of_reach():
    with answering(echo("one")) as first, answering(echo("two")) as second:
        assert post(GOOD, first.key)[1]["choices"][0]["message"]["content"] == "one"
        assert post(GOOD, second.key)[1]["choices"][0]["message"]["content"] == "two"
        for key in ("", first.key[:-1], first.key + "x", "*", "sk-textenvs-"):
            assert post(GOOD, key)[0] == 401
        # A response of one session is none of the other.
        body = json.dumps({"input": "?"}).encode()
        made = post(body, first.key, "/v1/responses")[1]["id"]
        again = json.dumps({"input": "?", "previous_response_id": made}).encode()
        assert post(again, first.key, "/v1/responses")[0] == 200
        assert post(again, second.key, "/v1/responses")[0] == 404


def test_flood_of_open_calls_is_refused():
    refused, statuses = threading.Event(), []

    def policy(call):
        assert refused.wait(60)
        return echo()(call)

    with answering(policy, most_open=3) as channel:

        def ask(number):
            body = json.dumps({"messages": [{"role": "user", "content": str(number)}]}).encode()
            statuses.append(post(body, channel.key)[0])
            if len(statuses) == 5:  # all that are refused
                refused.set()

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(statuses) == [200] * 3 + [429] * 5


def test_half_a_request_harms_nobody():
    with answering(echo()) as channel, socket.create_connection(("127.0.0.1", gateway().port)) as stuck:
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nx-api-key: {channel.key}\r\nContent-Length: 99\r\n\r\n{{"
        )
        stuck.sendall(head.encode())
        assert post(GOOD, channel.key)[0] == 200


HALF = "\ud800"  # of a character


def test_connections_of_a_sandbox_have_a_limit():
    """Each takes a file of the process that serves all of them."""
    with answering(echo()) as channel, contextlib.ExitStack() as stack:
        listener = socket.create_server(("127.0.0.1", 0))
        address = listener.getsockname()
        gateway().listen(channel.key, listener)  # which closes it
        held = [stack.enter_context(socket.create_connection(address, 60)) for _ in range(128)]
        connection = http.client.HTTPConnection(*address, timeout=60)
        connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {channel.key}"})
        response = connection.getresponse()
        assert (response.status, "128 connections" in words(json.loads(response.read()))) == (503, True)
        assert post(GOOD, channel.key)[0] == 200, "others connect as before"
        held[0].close()
        for _ in range(600):  # its end is noticed soon
            connection.close()
            connection.request("POST", "/v1/chat/completions", GOOD, {"Authorization": f"Bearer {channel.key}"})
            response = connection.getresponse()
            if (response.read(), response.status)[1] == 200:
                break
            time.sleep(0.01)
        assert response.status == 200
        connection.close()


REWARDS = (
    *({}, {"reward": "1"}, {"reward": True}, {"terms": {}}, {"terms": {"a": 1e300}}, {"terms": [1]}),
    *({"terms": {name: 1}} for name in ("", "x" * 101, "a\n", HALF)),
    {"terms": {str(number): 1 for number in range(101)}},
    *({"reward": 1, **more} for more in ({"turn": 0}, {"response": 0}, {"terms": {"a": 1}})),
)


@pytest.mark.parametrize("body", REWARDS)
def test_rewards_must_be_numbers(body):
    with answering(echo()) as channel:
        status, answer = post(json.dumps(body).encode(), channel.key, "/v1/rewards")
        assert (status, bool(words(answer))) == (400, True)
        assert post(b'{"reward": 0.5}', channel.key, "/v1/rewards")[0] == 409, "there is no turn yet"
        assert channel.take_rewards() == []


def test_rewards_of_a_session_have_few_names():
    """Each names a curve."""
    with answering(echo()) as channel:
        assert post(GOOD, channel.key)[0] == 200
        for number in range(2):
            channel.reward({f"{number} {place}": 1.0 for place in range(50)})
        status, answer = post(b'{"reward": 1}', channel.key, "/v1/rewards")
        assert (status, words(answer)) == (429, "the rewards of this session have 100 names already")
        assert post(b'{"terms": {"1 49": 1}}', channel.key, "/v1/rewards")[0] == 200
        assert len(channel.take_rewards()) == 3


def test_large_body_is_read_beside_other_sessions(monkeypatch):
    """The event loop serves all sessions: it neither parses nor compares what is large."""
    reading, go, read = threading.Event(), threading.Event(), openai_chat.read

    def slow(body):
        if len(body["messages"]) > 1:
            reading.set()
            assert go.wait(60)
        return read(body)

    monkeypatch.setattr(openai_chat, "read", slow)
    large = json.dumps({"messages": [{"role": "user", "content": "x" * 100}] * 500}).encode()
    with answering(echo()) as hostile, answering(echo()) as other:
        thread = threading.Thread(target=post, args=(large, hostile.key), daemon=True)
        thread.start()
        assert reading.wait(60)
        assert post(GOOD, other.key)[0] == 200
        go.set()
        thread.join(60)
        assert not thread.is_alive()
        (observation,) = hostile.observations
        assert {"message_keys", "tools_key"} <= vars(observation.call).keys(), "compared under the session's lock"


def test_open_calls_have_few_bytes_together():
    going, go = threading.Event(), threading.Event()

    def policy(call):
        going.set()
        assert go.wait(60)
        return echo()(call)

    with answering(policy, most_bytes=300) as channel:
        first = json.dumps({"messages": [{"role": "user", "content": "x" * 200}]}).encode()
        thread = threading.Thread(target=post, args=(first, channel.key), daemon=True)
        thread.start()
        assert going.wait(60)
        status, answer = post(first.replace(b"x", b"y"), channel.key)
        assert (status, "at most 300 bytes together" in words(answer)) == (429, True)
        go.set()
        thread.join(60)
        assert post(first.replace(b"x", b"y"), channel.key)[0] == 200


STREAMED = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "?"}]},
    "/v1/responses": {"input": "?"},
    "/v1/messages": {"messages": [{"role": "user", "content": "?"}], "max_tokens": 9},
}


@pytest.mark.parametrize("path", STREAMED)
def test_half_a_character_is_streamed(path):
    connection = http.client.HTTPConnection("127.0.0.1", gateway().port, timeout=60)
    with answering(echo(f"Yes {HALF}.", make_call(HALF, "{}", "call_0"))) as channel:
        body = json.dumps({**STREAMED[path], "model": HALF, "stream": True})
        connection.request("POST", path, body, {"Authorization": f"Bearer {channel.key}"})
        response = connection.getresponse()
        assert (response.status, f'"model": {json.dumps(HALF)}' in response.read().decode()) == (200, True)
    connection.close()


def test_reply_that_cannot_be_written_is_kept(monkeypatch):
    """The call is no turn again, whatever breaks between its reply and its client."""
    write, broken = openai_chat.response, [True]

    def response(*arguments):
        if broken:
            broken.pop()
            raise RuntimeError("it breaks")
        return write(*arguments)

    monkeypatch.setattr(openai_chat, "response", response)
    with answering(echo()) as channel:
        with pytest.raises(ValueError, match="Extra data"):  # the server's own page
            post(GOOD, channel.key)
        for turns in (1, 2):  # once delivered, an equal call is another one
            assert post(GOOD, channel.key)[0] == 200
            assert len(channel.observations) == turns
