"""Answers in the forms that services give them: what is needed is read, and what was odd is said."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.chat.answer import MAX_CALLS, MAX_TEXT, ErrorAnswer, read_answer
from textenvs.messages import problem_with

FUNCTION = {"name": "f", "arguments": '{"x": 1}'}
CALL = {"id": "a", "type": "function", "function": FUNCTION}


def body(message, **fields):
    usage = fields.pop("usage", None)
    return json.dumps({"choices": [{"message": message, **fields}], "usage": usage})


def read(message, **fields):
    return read_answer(body(message, **fields))


# ------------------------------------------------------------------ a reply without a content


@pytest.mark.parametrize(
    "reason", ["length", "max_tokens", "MAX_TOKENS", "model_length", "token_limit", "content_filter", "SAFETY"]
)
@pytest.mark.parametrize(
    "message", [{"content": None}, {"role": "assistant"}, {"content": None, "refusal": None}, None]
)
def test_answer_cut_in_reasoning_is_empty(message, reason):
    answer = read(message, finish_reason=reason)
    assert answer.message == {"role": "assistant", "content": ""}
    assert (answer.finish_reason == "length") == (reason not in ("content_filter", "SAFETY"))
    assert read(message, finish_reason=None, native_finish_reason=reason).message == answer.message


def test_null_content_with_tokens_counts():
    assert read({"content": None}, finish_reason="stop", usage={"completion_tokens": 7}).text == ""
    for usage in (None, {"completion_tokens": 0}):
        with pytest.raises(ValueError, match="content is null"):
            read({"content": None}, finish_reason="stop", usage=usage)


# ------------------------------------------------------------------ odd forms

ODD = {
    "parts": {"content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
    "output parts": {"content": [{"type": "output_text", "text": "hi", "annotations": []}]},
    "texts": {"content": ["h", "i"]},
    "values": {"content": [{"type": "text", "text": {"value": "hi", "annotations": []}}]},
    "one part": {"content": {"type": "text", "text": "hi"}},
    "an image beside": {"content": [{"type": "image_url", "image_url": {}}, {"type": "text", "text": "hi"}]},
}


@pytest.mark.parametrize("message", ODD.values(), ids=ODD)
def test_content_in_parts_is_joined_and_said(message):
    answer = read(message)
    assert answer.text == answer.message["content"] == "hi"
    assert "parts" in " ".join(answer.odd)


def test_thinking_among_the_parts_is_reasoning():
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "4"}]
    answer = read({"content": parts})
    assert answer.message == {"role": "assistant", "content": "4", "reasoning_content": "hm"}


UNREAD = {
    "message": {
        "content": "hi",
        "audio": 7,
        "annotations": "x",
        "reasoning": {"a": 1},
        "name": None,
        "tool_calls": None,
    },
    "choice": {"logprobs": "none", "index": "zero", "stop_reason": [1]},
    "answer": {"id": None, "created": 10**40, "object": [], "system_fingerprint": {}},
}


def test_unneeded_fields_are_ignored():
    text = json.dumps({"choices": [{"message": UNREAD["message"], **UNREAD["choice"]}], **UNREAD["answer"]})
    answer = read_answer(text)
    assert (answer.text, answer.odd) == ("hi", ())


CALLS = {
    "arguments as an object": ([{"id": "a", "function": {"name": "f", "arguments": {"x": 1}}}], '{"x": 1}'),
    "arguments as a list": ([{"id": "a", "function": {"name": "f", "arguments": [1]}}], "[1]"),
    "no function around": ([{"id": "a", "name": "f", "arguments": '{"x": 1}'}], '{"x": 1}'),
    "no list around": (CALL, '{"x": 1}'),
    "null beside": ([None, CALL], '{"x": 1}'),
    "more fields": ([{**CALL, "index": "0", "extra": None, "type": None}], '{"x": 1}'),
}


@pytest.mark.parametrize(("calls", "arguments"), CALLS.values(), ids=CALLS)
def test_odd_tool_calls_are_read(calls, arguments):
    (call,) = read({"content": None, "tool_calls": calls}).message["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": arguments}


def test_calls_as_text_are_read():
    answer = read({"content": "", "tool_calls": json.dumps([CALL])})
    assert answer.message["tool_calls"] == (CALL,)
    assert "tool_calls" in " ".join(answer.odd)
    assert "tool_calls" not in read({"content": "hi", "tool_calls": "[]"}).message
    with pytest.raises(ValueError, match="tool_calls"):
        read({"content": "", "tool_calls": "f()"})


def test_byte_order_mark_is_ignored():
    assert read_answer("\ufeff" + body({"content": "hi"})).text == "hi"


def test_old_function_call_is_a_tool_call():
    (call,) = read({"content": None, "function_call": FUNCTION}).message["tool_calls"]
    assert call["function"] == FUNCTION


def test_equal_or_missing_ids_are_numbered():
    calls = [
        CALL,
        CALL,
        {"function": FUNCTION},
        {"id": 7, "function": FUNCTION},
        {"id": "call_2", "function": FUNCTION},
    ]
    ids = [call["id"] for call in read({"content": "", "tool_calls": calls}).message["tool_calls"]]
    assert len(set(ids)) == len(ids)
    assert (ids[0], ids[3]) == ("a", "7")


@pytest.mark.parametrize("calls", [["f"], "f", [7], [{"id": "a"}], [{"function": {"arguments": "{}"}}]])
def test_incomplete_tool_call_is_no_answer(calls):
    with pytest.raises(ValueError, match="tool_calls"):
        read({"content": "hi", "tool_calls": calls})


USAGES = {
    "text": ({"prompt_tokens": "12", "completion_tokens": 3}, (12, 3)),
    "floats": ({"prompt_tokens": 12.0, "completion_tokens": 3.0}, (12, 3)),
    "half": ({"completion_tokens": 3}, (0, 3)),
    "more": ({"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": "none"}, (12, 3)),
    "negative": ({"prompt_tokens": -1, "completion_tokens": 3}, None),
    "words": ({"prompt_tokens": "many"}, None),
    "a list": ([1, 2], None),
}


@pytest.mark.parametrize(("usage", "tokens"), USAGES.values(), ids=USAGES)
def test_odd_usage_never_costs_the_answer(usage, tokens):
    answer = read({"content": "hi"}, usage=usage)
    assert answer.text == "hi"
    assert (answer.usage and (answer.usage.input_tokens, answer.usage.output_tokens)) == tokens


@pytest.mark.parametrize("number", ["1e999", "9" * 400, "9" * 5000, "1" + "0" * 12, "1e308"])
def test_huge_usage_is_no_answer(number):
    text = body({"content": "hi"}, usage={"prompt_tokens": 777}).replace("777", number)
    with pytest.raises(ValueError, match=r"usage.prompt_tokens: more than"):
        read_answer(text)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"content": "x" * (MAX_TEXT + 1)}, "characters"),
        ({"content": "x", "reasoning": "x" * MAX_TEXT}, "characters"),
        ({"content": "x", "tool_calls": [CALL] * (MAX_CALLS + 1)}, "calls"),
        (
            {"content": "x", "tool_calls": [{"function": {"name": "f", "arguments": "x" * (MAX_TEXT + 1)}}]},
            "characters",
        ),
    ],
)
def test_answers_beyond_their_bounds_are_refused(message, words):
    with pytest.raises(ValueError, match=words):
        read(message)


def test_deep_json_is_no_answer():
    with pytest.raises(ValueError, match="deep"):
        read_answer('{"choices":' + "[" * 200_000)


@pytest.mark.parametrize(
    "answer", [{"error": {"message": "no"}}, {"error": "no", "choices": []}, {"choices": [{"error": {"code": 502}}]}]
)
def test_error_instead_of_answer(answer):
    with pytest.raises(ErrorAnswer):
        read_answer(json.dumps(answer))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "text", "name", "function", "arguments", "id", "content"]), inner)
    ),
    max_leaves=8,
)


@given(
    message=st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("content", "tool_calls", "refusal", "reasoning", "function_call"), json_values)
    ),
    reason=json_values,
    usage=json_values,
)
def test_any_answer_parses_or_explains(message, reason, usage):
    with contextlib.suppress(ValueError):
        answer = read(message, finish_reason=reason, usage=usage)
        assert problem_with(answer.message) is None
        assert isinstance(answer.finish_reason, str)
