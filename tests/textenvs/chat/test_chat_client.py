"""The client against a service that fails on demand."""

import asyncio
import itertools
import json
import logging
import os
import pickle
import sqlite3
import subprocess
import sys

import pytest
from fake_service import Reply, cut, garbage, hang, held, slow, status
from pydantic import BaseModel
from skip_time import skip

from textenvs.chat import (
    BudgetExceeded,
    ChatClient,
    ChatFailure,
    client_for,
    close_clients,
    reset_budgets,
    statistics,
)
from textenvs.chat.cache import AnswerCache
from textenvs.messages import assistant, system, user

pytest.importorskip("openai", reason="needs the extra 'chat'")

HELLO = [user("hello")]


# ------------------------------------------------------------------ what is asked, and what comes back


async def test_request_has_only_requested_fields(service, make):
    class Shape(BaseModel):
        x: int = 1

    await make().complete(HELLO)
    assert service.requests[-1] == {"model": "tiny", "messages": HELLO, "max_completion_tokens": 1024}
    client = make(temperature=0.3, max_tokens=9, max_tokens_key="max_tokens", seed=5, extra={"top_k": 3})
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    await client.complete(HELLO, tools=tools, response_schema=Shape, sample=2)
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    assert service.requests[-1] == {
        "model": "tiny",
        "messages": HELLO,
        "max_tokens": 9,
        "temperature": 0.3,
        "seed": 7,
        "top_k": 3,
        "tools": tools,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "Shape", "schema": {**schema, "additionalProperties": False}, "strict": True},
        },
    }
    await client.complete(HELLO, temperature=0.9, max_tokens=2, seed=8)
    sent = service.requests[-1]
    assert (sent["temperature"], sent["max_tokens"], sent["seed"]) == (0.9, 2, 8)
    for structured, sent in (("json_object", {"type": "json_object"}), ("none", None)):
        await make(structured=structured).complete(HELLO, response_schema=Shape)
        assert service.requests[-1].get("response_format") == sent


async def test_sent_messages_are_clean_without_reasoning(service, make):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    thinking = {**assistant("a", [call]), "reasoning_content": "hm"}
    await make().complete([system("s"), thinking, user("lone \ud800")])
    assert service.requests[-1]["messages"] == [
        system("s"),
        {**assistant("a"), "tool_calls": [call]},
        user("lone \ufffd"),
    ]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_reasoning_of_service_is_separate(service, make, name, tmp_path):
    body = {"choices": [{"message": {"content": "4", name: "2+2", "tool_calls": None}}], "usage": None, "new": 1}
    service.answer = garbage(json.dumps(body).encode())
    client = make(cache=str(tmp_path / "cache.db"))
    for answer in (await client.complete(HELLO), await client.complete(HELLO)):
        assert answer.message == {"role": "assistant", "content": "4", "reasoning_content": "2+2"}
        assert (answer.text, answer.finish_reason, answer.usage) == ("4", "stop", None)


async def test_an_answer_with_everything(service, make):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 40}}
    service.answer = Reply(None, tool_calls=[call], finish_reason="tool_calls", usage=usage)
    client = make(price={"input": 1.0, "output": 2.0, "cached_input": 0.5})
    answer = await client.complete(HELLO)
    assert answer.message == {"role": "assistant", "content": "", "tool_calls": (call,)}
    assert (answer.text, answer.finish_reason, answer.cached, answer.attempts) == ("", "tool_calls", False, 1)
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.cached_tokens) == (100, 10, 40)
    assert answer.cost == pytest.approx((60 + 20 + 20) / 1e6)
    assert client.statistics.dollars == answer.cost


@pytest.mark.parametrize(
    ("messages", "options", "message"),
    [
        ([], {}, "no message"),
        ("hello", {}, "expected a sequence"),
        ([{"role": "human", "content": "x"}], {}, "role"),
        (HELLO, {"sample": -1}, "sample"),
        (HELLO, {"sample": True}, "sample"),
        (HELLO, {"temperature": 9}, "temperature"),
        (HELLO, {"max_tokens": 0}, "max_tokens"),
    ],
)
async def test_bad_requests_are_not_sent(service, make, messages, options, message):
    with pytest.raises(ValueError, match=message):
        await make().complete(messages, **options)
    assert not service.requests


# ------------------------------------------------------------------ faults

PASSING = {
    "429": status(429),
    "500": status(500),
    "503": status(503, retry_after_ms="10"),
    "connection cut in the body": cut(),
    "garbage": garbage(),
    "empty body": garbage(b""),
    "no choices": garbage(b'{"choices": []}'),
    "wrong schema": garbage(b'{"choices": [{"message": {"content": 7}}]}'),
    "null content": garbage(b'{"choices": [{"message": {"role": "assistant", "content": null}}]}'),
    "no content": garbage(
        b'{"choices": [{"message": {"role": "assistant", "tool_calls": []}, "finish_reason": "stop"}]}'
    ),
    "a list": garbage(b"[]"),
}


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
async def test_passing_faults_are_tried_again(service, make, fault):
    service.answer = "at last"
    service.script(fault, fault)
    answer = await make().complete(HELLO)
    assert (answer.text, answer.attempts) == ("at last", 3)
    assert service.requests == service.requests[:1] * 3


@pytest.mark.parametrize("fault", [PASSING[name] for name in ("429", "503", "garbage", "connection cut in the body")])
async def test_failure_after_retries_names_remedy(service, make, fault):
    service.answer = fault
    client = make(max_retries=1)
    with pytest.raises(ChatFailure, match=r"'tiny'.*after 2 attempts.*; (check|lower)") as caught:
        await client.complete(HELLO)
    assert (len(service.requests), client.statistics.failures) == (2, 1)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("code", [400, 401, 403, 404, 422])
async def test_refusals_are_not_tried_again(service, make, code):
    service.answer = status(code, "because of this")
    with pytest.raises(ChatFailure, match=f"HTTP {code}: because of this .after 1 attempt."):
        await make().complete(HELLO)
    assert len(service.requests) == 1


async def test_empty_account_is_not_retried(service, make):
    service.script(status(429, "pay", error_code="insufficient_quota"), status(429, retry_after="3600"))
    for message in ("quota", "come back when"):
        with pytest.raises(ChatFailure, match=message):
            await make().complete(HELLO)
    assert len(service.requests) == 2


async def test_a_service_that_hangs(service, make):
    service.script(hang())
    answer = asyncio.create_task(make().complete(HELLO))
    while not service.requests:
        await asyncio.sleep(0.01)
    skip(asyncio.get_running_loop(), 60.0)
    assert (await answer).attempts == 2


async def test_a_service_that_is_not_there():
    async with ChatClient("tiny", base_url="http://127.0.0.1:9/v1", max_retries=1) as client:
        with pytest.raises(ChatFailure, match="connection failed.*check that the service runs"):
            await client.complete(HELLO)
        assert client.ledger.spent.tokens == 0  # nothing was sent, so nothing is owed


async def test_key_is_never_shown(service, make, monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    service.script(status(500, "bad key sk-very-secret"), "ok", status(401, "bad key sk-very-secret"))
    client = make(api_key_env="MY_KEY", cache=str(tmp_path / "cache.db"))
    with caplog.at_level(logging.DEBUG):
        await client.complete(HELLO)
        with pytest.raises(ChatFailure, match=r"bad key \[key\]") as caught:
            await client.complete([user("again")])
    await client.aclose()
    assert service.headers[-1]["authorization"] == "Bearer sk-very-secret"
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    error, disclosed = caught.value, [caplog.text, repr(client), repr(client.spec), client.spec.key, str(stored)]
    while error is not None:
        disclosed.append(repr(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    assert not [text for text in disclosed if "very-secret" in text]


async def test_openai_key_stays_with_openai(service, make, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    await make().complete(HELLO)
    assert "secret" not in str(service.headers)


# ------------------------------------------------------------------ concurrency


async def test_concurrency_stays_below_limit(service, make):
    service.answer = held("ok")
    client = make(concurrency=3)
    calls = asyncio.gather(*(client.complete(HELLO, sample=i) for i in range(12)))
    while service.now < 3:
        await asyncio.sleep(0.01)
    service.release()
    await calls
    assert service.most == 3


async def test_waiting_retries_free_their_slot(service, make):
    client = make(concurrency=1, max_retries=1)
    service.script(status(500, retry_after="30"))
    first = asyncio.create_task(client.complete(HELLO))
    while not service.requests:
        await asyncio.sleep(0.01)
    assert (await asyncio.wait_for(client.complete([user("another")]), 25)).text == "ok"
    first.cancel()


# ------------------------------------------------------------------ equal requests


async def test_cached_equal_requests_share_answer(service, make, tmp_path):
    service.answer = slow("ok", 0.05)
    client = make(price={"input": 1.0, "output": 1.0}, cache=str(tmp_path / "cache.db"))
    answers = await asyncio.gather(*(client.complete(HELLO) for _ in range(5)))
    assert len(service.requests) == 1
    assert [answer.text for answer in answers] == ["ok"] * 5
    assert sorted(answer.cached for answer in answers) == [False] + [True] * 4
    assert sum(answer.cost for answer in answers) == client.statistics.dollars > 0
    assert client.statistics.cache_hits == 4


async def test_cancelled_request_leaves_others_running(service, make, tmp_path):
    service.answer = held("ok")
    client = make(cache=str(tmp_path / "cache.db"))
    tasks = [asyncio.create_task(client.complete(HELLO)) for _ in range(3)]
    while not service.now:
        await asyncio.sleep(0.01)
    tasks[0].cancel()
    service.release()
    assert [answer.text for answer in await asyncio.gather(*tasks[1:])] == ["ok", "ok"]
    assert tasks[0].cancelled()


@pytest.mark.parametrize("cached", [False, True])
async def test_sample_indices_give_different_answers(service, make, cached, tmp_path):
    numbers = iter(range(100))
    service.answer = lambda body: slow(str(next(numbers)), 0.02)
    client = make(cache=str(tmp_path / "cache.db") if cached else None)
    different = [{"sample": 0}, {"sample": 1}, {"seed": 1}, {"temperature": 0.5}, {"max_tokens": 5}]
    fresh = [{"sample": None}, {"sample": None}]
    answers = await asyncio.gather(*(client.complete(HELLO, **options) for options in different + fresh))
    assert len({answer.text for answer in answers}) == len(answers) == len(service.requests)
    again = await asyncio.gather(*(client.complete(HELLO, **options) for options in different + fresh))
    same = [one.text == two.text for one, two in zip(answers, again, strict=True)]
    assert same == [cached] * len(different) + [False] * len(fresh)


async def test_cancelling_all_waiters_stops_request(service, make):
    service.script(hang())
    client = make()
    tasks = [asyncio.create_task(client.complete(HELLO)) for _ in range(2)]
    while not service.now:
        await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (await client.complete(HELLO)).text == "ok"  # a new one, not the one that was dropped
    assert client.ledger.spent.tokens > 1024  # the first may have been billed


# ------------------------------------------------------------------ cache


async def test_the_cache_answers_the_next_run(service, make, tmp_path):
    path = str(tmp_path / "cache.db")
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    service.answer = Reply("said", tool_calls=[call])
    first = await make(cache=path, price={"input": 1.0, "output": 1.0}).complete(HELLO)
    service.answer = status(500)
    with pytest.raises(ChatFailure):  # and is not kept
        await make(cache=path).complete([user("new")])
    client = make(cache=path, budget={"tokens": 1})  # what is cached costs nothing of it
    second = await client.complete(HELLO)
    assert (second.cached, second.attempts, second.cost) == (True, 0, 0.0)
    assert (second.text, second.message, second.usage) == (first.text, first.message, first.usage)
    assert (client.statistics.cache_hits, client.statistics.attempts) == (1, 0)
    service.answer = "ok"
    assert (await make(cache=path).complete([user("new")])).text == "ok"


async def test_cache_key_covers_all_options(service, make, tmp_path):
    numbers = iter(range(100))
    service.answer = lambda body: str(next(numbers))
    path = str(tmp_path / "cache.db")
    base = {"cache": path}
    specs = [
        base,
        base | {"temperature": 0.1},
        base | {"max_tokens": 5},
        base | {"seed": 1},
        base | {"extra": {"top_p": 0.5}},
        base | {"base_url": service.url.replace("127.0.0.1", "localhost")},
    ]
    texts = [(await make(**spec).complete(HELLO)).text for spec in specs]
    assert len(set(texts)) == len(specs)
    # What does not decide it is not: the same answers come from clients that work otherwise.
    variants = [spec | {"timeout_s": 9.0, "concurrency": 2, "max_retries": 0} for spec in specs]
    assert [(await make(**spec).complete(HELLO)).text for spec in variants] == texts


async def test_damaged_cached_answer_is_refetched(service, make, tmp_path):
    path = str(tmp_path / "cache.db")
    await make(cache=path).complete(HELLO)
    cache = AnswerCache(path)
    with sqlite3.connect(path) as connection:
        key = connection.execute("SELECT key FROM answers").fetchone()[0]
        connection.execute("UPDATE answers SET answer = 'x'")
    assert not (await make(cache=path).complete(HELLO)).cached
    assert cache.get(key) is not None


# ------------------------------------------------------------------ budget


async def test_budget_stops_before_exceeding_request(service, make):
    client = make(budget={"tokens": 1000}, max_tokens=100)

    async def go_on_for_ever():
        for sample in itertools.count():
            await client.complete(HELLO, sample=sample)

    with pytest.raises(BudgetExceeded, match="raise the budget"):
        await go_on_for_ever()
    spent = client.ledger.spent.tokens
    assert spent == 15 * len(service.requests)  # what the service counted
    assert 700 < spent <= 1000


async def test_a_budget_in_dollars(service, make):
    client = make(budget={"dollars": 0.001}, price={"input": 1.0, "output": 1.0}, max_tokens=100)

    async def spend():
        for sample in itertools.count():
            await client.complete(HELLO, sample=sample)

    with pytest.raises(BudgetExceeded, match="dollars"):
        await spend()
    assert client.ledger.spent.dollars == pytest.approx(15e-6 * len(service.requests))
    assert 0.0007 < client.ledger.spent.dollars <= 0.001


async def test_named_budgets_are_shared_and_reset(service, make):
    shared = {"tokens": 250, "name": "test_budgets_of_one_name"}
    one, two = (make(budget=shared, temperature=heat, max_tokens=100) for heat in (0, 1))
    await one.complete(HELLO)
    assert two.ledger.spent.tokens == 15
    with pytest.raises(ValueError, match="in use with other limits"):
        make(budget=shared | {"tokens": 6})
    reset_budgets()
    assert one.ledger.spent.tokens == 0


@pytest.mark.parametrize(
    ("answer", "billed"),
    [(Reply("x", usage=None), True), (garbage(), True), (cut(), True), (status(400), False), (status(500), False)],
)
async def test_possibly_billed_requests_are_booked(service, make, answer, billed):
    service.answer = answer
    client = make(max_retries=0, max_tokens=100, budget={"tokens": 10**6})
    before = client.ledger.spent.tokens
    await asyncio.gather(client.complete(HELLO), return_exceptions=True)
    assert (client.ledger.spent.tokens - before > 100) == billed


# ------------------------------------------------------------------ loops and processes


async def test_client_cannot_be_copied_or_pickled(make):
    with pytest.raises(TypeError, match="pass its spec on"):
        pickle.dumps(make())


async def test_only_equal_specs_share_client(service):
    spec = {"model": "shared", "base_url": service.url}
    one, two = await asyncio.gather(client_for(spec), client_for(dict(spec)))
    assert one is two is not await client_for({**spec, "temperature": 0})
    before = statistics()["shared"].attempts
    await one.complete(HELLO)
    assert statistics()["shared"].attempts == before + 1
    await close_clients()
    with pytest.raises(RuntimeError, match="closed"):
        await one.complete(HELLO)
    await (await client_for(spec)).complete(HELLO)
    await close_clients()


def test_each_loop_owns_its_client(service):
    spec = {"model": "tiny", "base_url": service.url}

    async def use():
        client = await client_for(spec)
        await client.complete(HELLO)
        return client

    one, two = asyncio.run(use()), asyncio.run(use())
    assert one is not two
    assert one._service.is_closed()
    assert two._service.is_closed()


FORK = """
import asyncio, os, sys
from textenvs.chat import client_for, statistics
from textenvs.messages import user

spec = {"model": "tiny", "base_url": sys.argv[1], "cache": sys.argv[2]}

async def use(text):
    return (await (await client_for(spec)).complete([user(text)])).text

async def main():
    await use("before")
    mine = await client_for(spec)
    if (child := os.fork()) == 0:
        try:
            asyncio.events._set_running_loop(None)  # the child left the parent's loop by forking
            assert asyncio.run(use("in the child")) == "ok"
            assert statistics()["tiny"].attempts == 1
            os._exit(0)
        finally:
            os._exit(1)
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        await asyncio.sleep(0.01)
    assert await client_for(spec) is mine
    assert [await use(text) for text in ("before", "in the child", "after")] == ["ok"] * 3
    print(statistics()["tiny"].cache_hits)

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_makes_own_clients(service, tmp_path):
    args = [sys.executable, "-c", FORK, service.url, str(tmp_path / "cache.db")]
    done = subprocess.run(args, capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr) == ("2\n", "")
    assert len(service.requests) == 3


async def test_a_client_stays_on_its_loop(service, make):
    client = make()
    await client.complete(HELLO)
    with pytest.raises(RuntimeError, match="another event loop"):
        await asyncio.to_thread(lambda: asyncio.run(client.complete(HELLO)))


async def test_close_during_request(service, make):
    service.answer = hang()
    client = make()
    task = asyncio.create_task(client.complete(HELLO))
    while not service.now:
        await asyncio.sleep(0.01)
    await client.aclose()
    await client.aclose()
    with pytest.raises(ChatFailure, match="closed while"):
        await task


def test_missing_openai_error_names_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ImportError, match=r"textenvs\[chat\]"):
        ChatClient("tiny", base_url="http://localhost:1/v1")
