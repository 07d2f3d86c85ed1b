"""Requests that no client of the protocols sends: refused in words, and no harm to other sessions."""

import http.client
import json
import socket
import threading

import pytest
from gateway_kit import answering, echo

from textenvs.gateway.server import MAX_BYTES, gateway

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


REWARDS = ({}, {"reward": "1"}, {"reward": True}, {"terms": {}}, {"terms": {"a": 1e300}}, {"terms": [1]})


@pytest.mark.parametrize("body", REWARDS)
def test_rewards_must_be_numbers(body):
    with answering(echo()) as channel:
        status, answer = post(json.dumps(body).encode(), channel.key, "/v1/rewards")
        assert (status, bool(words(answer))) == (400, True)
        assert post(b'{"reward": 0.5}', channel.key, "/v1/rewards")[0] == 409, "there is no turn yet"
        assert channel.take_rewards() == []
