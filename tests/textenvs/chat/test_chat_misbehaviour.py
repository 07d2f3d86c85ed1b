"""Services that send too much, pack it, redirect, or want their reasoning back."""

import functools
import json
import logging
import tracemalloc
import zlib

import pytest
from fake_service import Reply, garbage, status

from textenvs.bounded_files import VALUES
from textenvs.chat import ChatFailure, PromptTooLong
from textenvs.chat.body import MAX_ANSWER, MAX_ERROR
from textenvs.messages import assistant, tool, user

pytest.importorskip("openai", reason="needs the extra 'chat'")

HELLO = [user("hello")]
MIB = 2**20


@pytest.fixture
def make(make):
    return functools.partial(make, max_retries=1)


def bomb(mebibytes):
    """Gzip that unpacks to so much; equal blocks can be repeated behind a full flush."""
    packer = zlib.compressobj(wbits=31)
    head = packer.compress(b" " * MIB) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(b" " * MIB) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + block * (mebibytes - 1)


def answer_with(**message):
    return garbage(json.dumps({"choices": [{"message": {"role": "assistant", "content": "hi", **message}}]}).encode())


def packed(body, how="gzip", wbits=31):
    packer = zlib.compressobj(wbits=wbits)
    return Reply(body=packer.compress(body) + packer.flush(), headers={"content-encoding": how})


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOO_MUCH = {
    "packed": Reply(body=bomb(2000), headers={"content-encoding": "gzip"}),
    "endless": Reply(body=b'{"choices": [', endless=b"1," * 30_000),
    "large content": answer_with(content="x" * 2 * MIB),
    "larger content": answer_with(content="x" * 30 * MIB),
    "tool calls": answer_with(tool_calls=[CALL] * 5000),
    "deep": garbage(b'{"choices":' + b"[" * MIB),
    "values": garbage(b'{"choices": [{"message": {"content": "hi"}}], "x": [' + b"[]," * (VALUES + 1) + b"0]}"),
    "usage": garbage(b'{"choices": [{"message": {"content": "hi"}}], "usage": {"prompt_tokens": 1e400}}'),
    "packed otherwise": Reply(body=b"x", headers={"content-encoding": "br"}),
    "packed twice": Reply(body=b"x", headers={"content-encoding": "gzip, gzip"}),
    "not packed": Reply(body=b"{}", headers={"content-encoding": "gzip"}),
}


@pytest.mark.parametrize("fault", TOO_MUCH.values(), ids=TOO_MUCH)
async def test_too_large_answers_count_against_retries(service, make, fault):
    service.script(fault).answer = "at last"
    assert (await make().complete(HELLO)).attempts == 2
    service.answer = fault
    client = make()
    with pytest.raises(ChatFailure, match="after 2 attempts") as caught:
        await client.complete(HELLO)
    assert len(str(caught.value)) < 1000


async def test_unpacking_is_bounded(service, make):
    service.answer = Reply(body=bomb(2000), headers={"content-encoding": "gzip"})
    client = make(max_retries=0)
    tracemalloc.start()
    try:
        with pytest.raises(ChatFailure, match=f"more than {MAX_ANSWER // MIB} MiB"):
            await client.complete(HELLO)
        assert tracemalloc.get_traced_memory()[1] < 6 * MAX_ANSWER
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("how", "wbits"), [("gzip", 31), ("x-gzip", 31), ("deflate", 15), ("GZIP", 31)])
async def test_packed_answers_are_read(service, make, how, wbits):
    service.answer = packed(answer_with().body, how, wbits)
    assert (await make().complete(HELLO)).text == "hi"
    assert service.headers[-1]["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize("code", [400, 500])
async def test_endless_error_is_read_partly(service, make, code):
    service.answer = Reply(status=code, body=b"it broke ", endless=b"x" * MAX_ERROR)
    with pytest.raises(ChatFailure, match=f"HTTP {code}: it broke x+") as caught:
        await make().complete(HELLO)
    assert len(str(caught.value)) < 1000


async def test_trickle_ends_with_time_of_attempt(service, make):
    service.answer = Reply(body=b"{", endless=b" ", pause_s=0.05)
    with pytest.raises(ChatFailure, match="no answer within 0.5 s .after 2 attempts"):
        await make(timeout_s=0.5).complete(HELLO)


async def test_bodies_of_redirects_are_not_read(service, make):
    service.answer = "moved here"
    service.script(Reply(status=307, headers={"location": "/v1/chat/completions"}, endless=b"x" * 2**16))
    assert (await make().complete(HELLO)).text == "moved here"
    service.answer = Reply(status=307, headers={"location": "/v1/chat/completions"}, body=b"")
    with pytest.raises(ChatFailure, match="HTTP 307"):
        await make().complete(HELLO)


HOSTILE_ERRORS = [b"[" * 60_000, b'{"error": {"code": ' + b"[" * 900 + b"]" * 900 + b"}}", b'{"error": 7}', b"\xff\xfe"]


@pytest.mark.parametrize("body", HOSTILE_ERRORS)
async def test_hostile_errors_are_failures(service, make, body):
    service.answer = Reply(status=400, body=body)
    with pytest.raises(ChatFailure, match="HTTP 400"):
        await make().complete(HELLO)


# ------------------------------------------------------------------ errors in answers, and what was odd


async def test_error_in_answer_has_its_own_status(service, make):
    service.script(garbage(b'{"error": {"code": 503, "message": "busy"}}')).answer = "at last"
    assert (await make().complete(HELLO)).text == "at last"
    service.answer = garbage(b'{"error": {"code": 400, "message": "prompt is too long: 9 > 8"}}')
    with pytest.raises(PromptTooLong, match="HTTP 400: prompt is too long"):
        await make().complete(HELLO)
    service.answer = garbage(b'{"error": "out of order"}')
    with pytest.raises(ChatFailure, match="out of order .after 2 attempts"):
        await make().complete(HELLO)


async def test_too_long_is_not_tried_again(service, make):
    service.answer = status(500, "prompt too long; exceeded max context length by 4 tokens")
    with pytest.raises(PromptTooLong, match="after 1 attempt"):
        await make(max_retries=3).complete(HELLO)


async def test_counts_of_service_reveal_long_prompt(service, make):
    client = make(max_retries=0)
    prompt = [user("word " * 2000)]
    service.script(Reply("ok", usage={"prompt_tokens": 2500, "completion_tokens": 1}))
    await client.complete(prompt)
    service.answer = status(400, "2,500 tokens of prompt beside the 2,048 there are")
    with pytest.raises(PromptTooLong):
        await client.complete(prompt)
    with pytest.raises(ChatFailure) as caught:
        await client.complete(HELLO)
    assert type(caught.value) is ChatFailure, "so short a prompt never has 2,500 tokens"


async def test_what_is_odd_is_said_once(service, make, caplog):
    service.answer = answer_with(content=[{"type": "text", "text": "hi"}])
    client = make()
    with caplog.at_level(logging.WARNING):
        assert [(await client.complete(HELLO)).text for _ in range(3)] == ["hi"] * 3
    assert len([record for record in caplog.records if "in parts" in record.message]) == 1


# ------------------------------------------------------------------ reasoning is sent back where it is wanted


def talk(*, then=()):
    done = {**assistant("", [{**CALL, "id": "a"}]), "reasoning_content": "early"}
    now = {**assistant("", [{**CALL, "id": "b"}]), "reasoning_content": "late"}
    plain = {**assistant("said"), "reasoning_content": "plain"}
    return [user("q"), done, tool("1", "a"), plain, user("again"), now, tool("2", "b"), *then]


def sent_reasoning(service, field="reasoning_content"):
    return [message[field] for message in service.requests[-1]["messages"] if field in message]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_is_returned_with_tool_calls(service, make, field):
    client = make()
    await client.complete(talk())
    assert sent_reasoning(service, field) == [], "this service has given none"
    service.answer = answer_with(**{field: "hm"})
    await client.complete(HELLO)
    await client.complete(talk())
    assert sent_reasoning(service, field) == ["late"]
    other = {"reasoning_content": "reasoning", "reasoning": "reasoning_content"}[field]
    assert sent_reasoning(service, other) == []
    await client.complete(talk(then=[assistant("so"), user("new")]))
    assert sent_reasoning(service, field) == []


async def test_service_refusing_reasoning_gets_none(service, make, caplog):
    def answer(request):
        if any("reasoning_content" in message for message in request["messages"]):
            return status(400, "messages.5: property 'reasoning_content' is unsupported")
        return answer_with(reasoning_content="hm")

    service.answer = answer
    client = make()
    for _ in range(3):
        await client.complete(talk())
    assert len(service.requests) == 4
    assert "not sent any more" in caplog.text


async def test_service_requiring_reasoning_gets_all(service, make):
    def answer(request):
        replies = [message for message in request["messages"] if message["role"] == "assistant"]
        if all(message.get("reasoning_content") for message in replies):
            return answer_with(reasoning_content="hm")
        return status(400, "Missing `reasoning_content` field in the assistant message at message index 1")

    service.answer = answer
    client = make()
    await client.complete(HELLO)
    await client.complete(talk())
    assert sent_reasoning(service) == ["early", "plain", "late"]
