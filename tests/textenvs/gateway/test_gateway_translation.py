"""The translations: a client reads back the reply, and no request is an exception of ours."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from textenvs.gateway import anthropic_messages, openai_chat, openai_responses
from textenvs.gateway.model_call import ModelCall, ModelReply, RequestError, Usage, message_key
from textenvs.messages import assistant, user
from textenvs.tools.call_format import make_call

texts = st.text(st.characters(codec="utf-8"), max_size=20)
values = st.one_of(texts, st.integers(-9, 9), st.none(), st.lists(texts, max_size=2))
arguments = st.one_of(
    st.dictionaries(texts, values, max_size=3).map(json.dumps),
    st.sampled_from(["", "broken", "[1]", '{"a":  1 }']),
)
calls = st.lists(arguments, max_size=3).map(
    lambda written: [make_call(f"tool_{i}", text, f"call_{i}") for i, text in enumerate(written)]
)
replies = st.builds(assistant, texts.map(str.strip), calls)


def events_of(stream):
    """Return the events of a stream: names and data."""
    for block in stream.decode().split("\n\n")[:-1]:
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        yield lines.get("event"), lines["data"]


@settings(max_examples=40)
@given(replies)
def test_chat_reply_survives_the_round_trip(message):
    call, reply = ModelCall("openai-chat", "m", (user("?"),)), ModelReply(message)
    whole = openai_chat.response(call, reply, 1, 2)["choices"][0]["message"]
    streamed = {"content": "", "tool_calls": []}
    *chunks, (_, done) = events_of(b"".join(openai_chat.events(call, reply, 1, 2)))
    assert done == "[DONE]"
    for _, data in chunks:
        delta = json.loads(data)["choices"][0]["delta"]
        streamed["content"] += delta.get("content") or ""
        for part in delta.get("tool_calls", ()):
            if part["index"] == len(streamed["tool_calls"]):
                streamed["tool_calls"].append(part)
            else:
                streamed["tool_calls"][part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    for part in streamed["tool_calls"]:
        del part["index"]
    for reply in (whole, {"role": "assistant", **streamed}):
        reply = {key: value for key, value in reply.items() if value != []}
        read = openai_chat.read({"messages": [user("?"), reply, user("And?")]}).messages
        assert message_key(read[1]) == message_key(message)


@settings(max_examples=40)
@given(replies)
def test_response_survives_the_round_trip(message):
    call, reply = ModelCall("openai-responses", "m", (user("?"),)), ModelReply(message)
    earlier = openai_responses.Responses()
    earlier.remember(call, reply, 1)
    output = openai_responses.response(call, reply, 1, 2)["output"]
    data = [json.loads(data) for _, data in events_of(b"".join(openai_responses.events(call, reply, 1, 2)))]
    assert [event["sequence_number"] for event in data] == list(range(len(data)))
    assert [event["item"] for event in data if event["type"] == "response.output_item.done"] == output
    assert data[-1]["response"]["output"] == output
    references = [{"type": "item_reference", "id": item["id"]} for item in output]
    for request in (
        {"input": [user("?"), *output, user("And?")]},
        {"input": [user("?"), *references, user("And?")]},
        {"input": "And?", "previous_response_id": "resp_1"},
    ):
        read = openai_responses.read(request, earlier).messages
        assert tuple(map(message_key, read)) == tuple(map(message_key, (user("?"), message, user("And?"))))


@settings(max_examples=40)
@given(replies)
def test_anthropic_reply_survives_the_round_trip(message):
    message = anthropic_messages.served(message)
    call, reply = ModelCall("anthropic", "m", (user("?"),)), ModelReply(message, usage=Usage(1, 2))
    content = anthropic_messages.response(call, reply, 1, 2)["content"]
    streamed, parts = [], {}
    for name, text in events_of(b"".join(anthropic_messages.events(call, reply, 1, 2))):
        data = json.loads(text)
        assert data["type"] == name
        if name == "content_block_start":
            streamed.append(data["content_block"])
        elif name == "content_block_delta" and data["delta"]["type"] == "text_delta":
            streamed[data["index"]]["text"] += data["delta"]["text"]
        elif name == "content_block_delta":
            parts[data["index"]] = parts.get(data["index"], "") + data["delta"]["partial_json"]
    for index, written in parts.items():
        streamed[index]["input"] = json.loads(written)
    assert streamed == content
    request = {"max_tokens": 1, "messages": [user("?"), {"role": "assistant", "content": content}, user("And?")]}
    assert message_key(anthropic_messages.read(request).messages[1]) == message_key(message)


names = st.sampled_from([
    "messages", "model", "tools", "tool_choice", "stream", "stop", "n", "max_tokens", "input", "instructions", "system",
    "role", "content", "type", "function", "name", "parameters", "text", "format", "id", "arguments", "thinking",
    "stream_options", "output", "call_id", "tool_calls", "stop_sequences", "input_schema", "summary", "source",
])  # fmt: skip
kinds = st.sampled_from([
    "user", "assistant", "tool", "text", "function", "tool_result", "tool_use", "function_call", "message", "image",
    "function_call_output", "reasoning", "input_text", "item_reference",
])  # fmt: skip
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-1, 3), st.floats(0, 1), kinds, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=5)),
    max_leaves=20,
)


@settings(max_examples=80)
@given(st.dictionaries(names, json_values, max_size=6))
def test_no_request_is_an_exception(body):
    for read in (
        openai_chat.read,
        anthropic_messages.read,
        lambda body: openai_responses.read(body, openai_responses.Responses()),
    ):
        try:
            call = read({"max_tokens": 5, **body})
        except RequestError:
            pass
        else:
            assert call.messages


def test_anthropic_blocks_become_messages():
    call = anthropic_messages.read({
        "max_tokens": 5,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "4"}]},
                {"type": "text", "text": "Well?"},
            ]},
        ],
    })  # fmt: skip
    assert [(message["role"], message["content"]) for message in call.messages] == [
        ("system", "Be brief."), ("user", "Hi\nthere"), ("assistant", ""), ("tool", "4"), ("user", "Well?"),
    ]  # fmt: skip
    assert call.messages[2]["reasoning_content"] == "Hm."
    assert call.messages[3]["tool_call_id"] == "t1"


def test_namespaces_are_prefixes_of_names():
    function = {"type": "function", "name": "find", "parameters": {}}
    tools = [function, {"type": "namespace", "name": "web", "description": "Search.", "tools": [function]}]
    earlier = openai_responses.Responses()
    call = openai_responses.read({"input": "?", "tools": tools}, earlier)
    assert [tool["function"]["name"] for tool in call.tools] == ["find", "web__find"]
    message = assistant("", [make_call("find", "{}", "call_0"), make_call("web__find", "{}", "call_1")])
    items = openai_responses.response(call, ModelReply(message), 1, 2)["output"]
    assert [(item["name"], item.get("namespace")) for item in items] == [("find", None), ("find", "web")]
    again = openai_responses.read({"input": [user("?"), *items, user("?")], "tools": tools}, earlier)
    assert message_key(again.messages[1]) == message_key(message)


def test_neighbouring_texts_of_a_reply_are_one_message():
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    parts = [{"type": "output_text", "text": "I look."}]
    items = [
        assistant("<think>Hm.</think>"),
        {"role": "assistant", "content": parts},
        call,
        assistant("So."),
        user("?"),
    ]
    messages = openai_responses.read({"input": items}, openai_responses.Responses()).messages
    assert [(message["content"], len(message.get("tool_calls", ()))) for message in messages] == [
        ("<think>Hm.</think>\nI look.", 1), ("So.", 0), ("?", 0),
    ]  # fmt: skip


@pytest.mark.parametrize("choice", ["auto", "none", "required", {"type": "function", "function": {"name": "f"}}])
def test_tool_choice_is_read(choice):
    tools = [{"type": "function", "function": {"name": "f"}}]
    read = openai_chat.read({"messages": [user("?")], "tools": tools, "tool_choice": choice})
    assert read.tool_choice == (choice if isinstance(choice, str) else "function:f")
    assert read.tools[0]["function"]["parameters"] == {"type": "object", "properties": {}}
