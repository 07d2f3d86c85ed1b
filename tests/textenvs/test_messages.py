"""Chat messages: what is well-formed, what is cleaned, what another party may read."""

import functools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.messages import (
    assistant,
    check_conversation,
    clean_messages,
    clean_text,
    copy_messages,
    has_images,
    image_part,
    problem_with,
    system,
    text_of,
    text_part,
    tool,
    transcript,
    user,
    visible_text,
)

DEEP_THINKING = functools.reduce(lambda inner, _: [{"type": "thinking", "thinking": inner}], range(5000), "hm")
GOOD_CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}

# Surrogates are rare among all characters: here every other one is, alone or in a pair.
any_text = st.text(st.characters() | st.characters(categories=["Cs"]), max_size=20)
good_text = st.text(max_size=20)
parts = st.lists(
    st.builds(text_part, any_text) | st.builds(image_part, any_text.filter(bool)), min_size=1, max_size=3
).map(tuple)
text_parts = st.lists(st.builds(text_part, any_text), min_size=1, max_size=3).map(tuple)
calls = st.builds(
    lambda i, n, a: {"id": i, "type": "function", "function": {"name": n, "arguments": a}}, any_text, any_text, any_text
)
messages = st.one_of(
    st.builds(system, any_text),
    st.builds(user, any_text | parts),
    st.builds(system, text_parts),
    st.builds(assistant, any_text | text_parts, st.lists(calls, max_size=2)),
    st.builds(tool, any_text | parts, any_text, st.none() | any_text),
    st.builds(lambda m, r: {**m, "reasoning_content": r}, st.builds(assistant, any_text), any_text),
)


@given(st.lists(messages, max_size=4))
def test_constructed_messages_are_valid_and_copies_independent(conversation):
    assert check_conversation(conversation, "here") == tuple(conversation)
    copies = copy_messages(conversation)
    assert copies == tuple(conversation)
    for message, copied in zip(conversation, copies, strict=True):
        if isinstance(copied["content"], str):
            copied["content"] += "!"
        for part in copied["content"] if isinstance(copied["content"], tuple) else ():
            part[part["type"]] = "!" + str(part)
        for call in copied.get("tool_calls", ()):
            call["function"]["arguments"] += "!"
        assert message != copied
        for call, copied_call in zip(message.get("tool_calls", ()), copied.get("tool_calls", ()), strict=True):
            assert call != copied_call


@given(any_text)
def test_clean_text_changes_only_what_cannot_be_encoded(text):
    clean = clean_text(text)
    clean.encode("utf-8")
    assert clean_text(clean) == clean
    utf16 = text.encode("utf-16", "surrogatepass")  # joins surrogate pairs; what cannot be read then is dropped
    assert clean.replace("\ufffd", "") == utf16.decode("utf-16", "ignore").replace("\ufffd", "")
    assert (clean == text) == all(not "\ud800" <= c <= "\udfff" for c in text)


@given(good_text)
def test_clean_text_leaves_good_text_alone(text):
    assert clean_text(text) == text


@given(st.lists(messages, max_size=3))
def test_clean_messages_can_be_written_as_utf8_whole(conversation):
    cleaned = clean_messages(conversation)
    json.dumps(cleaned, ensure_ascii=False).encode("utf-8")
    assert [set(m) for m in cleaned] == [set(m) for m in conversation]
    assert clean_messages(cleaned) == cleaned


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("text", "mapping"),
        (None, "mapping"),
        ({}, "role is None"),
        ({"role": "bot", "content": ""}, "role is 'bot'"),
        ({"role": ["user"], "content": ""}, "role"),
        ({"role": "user"}, "content must be a string or a list of parts, not NoneType"),
        ({"role": "user", "content": {"type": "text", "text": ""}}, "not dict"),
        ({"role": "user", "content": []}, "no part in its list"),
        ({"role": "user", "content": None, "name": "Ann"}, "content must be a string or a list of parts, not NoneType"),
        ({"role": "assistant", "content": None}, "content must be a string"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "content must be a string"),
        ({"role": "user", "content": ["parts"]}, r"content\[0\] must be"),
        ({"role": "user", "content": [text_part("a"), {"type": "text"}]}, r"content\[1\] must be"),
        ({"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}, r"content\[0\]"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": "http://x"}]}, r"content\[0\]"),
        ({"role": "user", "content": [image_part("")]}, r"content\[0\] .* a url that is not empty"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, r"content\[0\]"),
        ({"role": "assistant", "content": [image_part("http://x")]}, "part of a user or tool message"),
        ({"role": "system", "content": [image_part("http://x")]}, "part of a user or tool message"),
        ({"role": "assistant", "content": DEEP_THINKING}, r"content\[0\]"),
        ({"role": "user", "content": "", "text": ""}, "unknown keys"),
        ({"role": "user", "content": "", 3: ""}, "unknown keys"),
        ({"role": "user", "content": "", "name": 3}, "name must be a string"),
        ({"role": "assistant", "content": "", "reasoning": 3}, "reasoning must be a string"),
        ({"role": "tool", "content": ""}, "tool_call_id"),
        ({"role": "user", "content": "", "tool_calls": ()}, "only an assistant"),
        ({"role": "user", "content": "", "function_call": {"name": "f", "arguments": {}}}, "only an assistant"),
        (
            {"role": "assistant", "tool_calls": [GOOD_CALL], "function_call": {"name": "f", "arguments": ""}},
            "both there",
        ),
        ({"role": "assistant", "tool_calls": [{**GOOD_CALL, "x": 1}]}, r"tool_calls\[0\]"),
        ({"role": "assistant", "tool_calls": [{"name": "f", "parameters": {"x": 1}}]}, r"tool_calls\[0\]"),
        ({"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"x": float("nan")}}]}, "no JSON"),
        ({"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"x": object()}}]}, "no JSON"),
        ({"role": "assistant", "content": "", "tool_calls": "f()"}, "sequence"),
        ({"role": "assistant", "content": "", "tool_calls": [None]}, r"tool_calls\[0\]"),
        ({"role": "assistant", "content": "", "tool_calls": [{"id": "a", "type": "function"}]}, r"tool_calls\[0\]"),
    ],
)
def test_what_is_wrong_is_named(message, problem):
    with pytest.raises(ValueError, match=f"(?s)row 3: message 1: .*{problem}"):
        check_conversation([user("fine"), message], "row 3")


@pytest.mark.parametrize(
    "call",
    [
        {**GOOD_CALL, "id": 3},
        {**GOOD_CALL, "type": "custom"},
        {**GOOD_CALL, "index": 0},  # it would be lost in a copy
        {**GOOD_CALL, "function": {"name": "f"}},
        {**GOOD_CALL, "function": {"name": "f", "arguments": None}},
        {**GOOD_CALL, "more": 1},
        {**GOOD_CALL, "function": {"name": "f", "arguments": [1]}},
        {**GOOD_CALL, "function": {"name": "f", "arguments": "{}", "strict": True}},
        {**GOOD_CALL, "function": {"arguments": "{}"}},
        {**GOOD_CALL, "function": "f"},
    ],
)
def test_a_malformed_tool_call_is_a_problem(call):
    assert problem_with(assistant("", [GOOD_CALL])) is None
    assert "tool_calls[1]" in problem_with(assistant("", [GOOD_CALL, call]))


@pytest.mark.parametrize("conversation", ["text", b"x", {"role": "user", "content": ""}, None, 3])
def test_a_conversation_is_a_sequence(conversation):
    with pytest.raises(ValueError, match="row 3: expected a sequence"):
        check_conversation(conversation, "row 3")


def test_a_generator_of_messages_is_read_once():
    assert check_conversation((user(str(i)) for i in range(3)), "x") == (user("0"), user("1"), user("2"))


@given(messages)
def test_message_text_joins_its_text_parts(message):
    content = message["content"]
    texts = [content] if isinstance(content, str) else [part["text"] for part in content if "text" in part]
    assert text_of(message) == "\n".join(texts)
    assert has_images(message) == (not isinstance(content, str) and len(texts) < len(content))
    assert visible_text(message) == visible_text({**message, "content": text_of(message)})
    assert all(text in transcript([message]) for text in texts)


def test_a_transcript_mentions_images_without_their_bytes():
    text = transcript([user([text_part("What is this?"), image_part("data:image/png;base64," + "A" * 10_000)])])
    assert text.startswith("user: What is this?\n[image: data:image/png;base64,AAA")
    assert len(text) < 200


def test_transcript():
    assert transcript([user("hi"), assistant("", [GOOD_CALL]), tool("4", "a")]) == (
        "user: hi\nassistant: \n  -> f({})\ntool: 4"
    )
