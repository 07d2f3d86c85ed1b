"""One message is read in one way, wherever it comes in: as services, ``datasets``, TRL and verl write it."""

import copy
import json

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from textenvs import Task, TextEnv, Turn
from textenvs.data.files import file_rows
from textenvs.messages import assistant, check_conversation, copy_messages, read_message, text_part, user
from textenvs.serve import protocol
from textenvs.task import TaskError
from textenvs.vector import TextVectorEnv

ARGUMENTS = {"path": "x", "lines": [1, 2], "deep": {"a": True}}
CALL = {"id": "a1", "type": "function", "function": {"name": "write", "arguments": json.dumps(ARGUMENTS)}}
CALLING = {**assistant("", [CALL])}


def calling(**keys):
    return {"role": "assistant", **keys}


#: Messages as others write them, and the form that they have here.
FORMS = {
    "null content": (calling(content=None, tool_calls=[CALL]), CALLING),
    "no content": (calling(tool_calls=[CALL]), CALLING),
    "no parts": (calling(content=[], tool_calls=[CALL]), CALLING),
    "null keys": (
        calling(content="", tool_calls=[CALL], name=None, refusal=None, function_call=None, audio=None, annotations=[]),
        CALLING,
    ),
    "a struct of nulls": (
        calling(content="", tool_calls=[CALL], function_call={"name": None, "arguments": None}),
        CALLING,
    ),
    "arguments as an object": (
        calling(content="", tool_calls=[{**CALL, "function": {"name": "write", "arguments": ARGUMENTS}}]),
        CALLING,
    ),
    "arguments with nulls": (
        calling(
            content="", tool_calls=[{**CALL, "function": {"name": "write", "arguments": {**ARGUMENTS, "z": None}}}]
        ),
        CALLING,
    ),
    "no type": (calling(content="", tool_calls=[{k: v for k, v in CALL.items() if k != "type"}]), CALLING),
    "a flat call": (calling(content="", tool_calls=[{"id": "a1", **CALL["function"]}]), CALLING),
    "arguments without a key": (
        calling(tool_calls=[{"id": "a1", "function": {"name": "now", "arguments": {"x": None}}}]),
        assistant("", [{"id": "a1", "type": "function", "function": {"name": "now", "arguments": "{}"}}]),
    ),
    "no id": (
        calling(tool_calls=[{"type": "function", "function": CALL["function"]}]),
        assistant("", [{**CALL, "id": "call00000"}]),
    ),
    "function_call": (
        calling(content=None, function_call=CALL["function"]),
        assistant("", [{**CALL, "id": "call00000"}]),
    ),
    "no calls": (calling(content="Hi", tool_calls=[]), assistant("Hi")),
    "null calls": (calling(content="Hi", tool_calls=None, tool_call_id=None), assistant("Hi")),
    "text parts": (
        calling(content=[{"type": "text", "text": "a", "image_url": None}, {"type": "text", "text": "b"}]),
        assistant((text_part("a"), text_part("b"))),
    ),
    "a refusal": (calling(content=None, refusal="No."), assistant("No.")),
    "reasoning": (calling(content="Hi", reasoning="hm"), {**assistant("Hi"), "reasoning_content": "hm"}),
    "thinking": (calling(content="Hi", thinking="hm"), {**assistant("Hi"), "reasoning_content": "hm"}),
    "reasoning alone": (calling(content=None, reasoning_content="hm"), {**assistant(""), "reasoning_content": "hm"}),
    "a thinking part": (
        calling(content=[{"type": "thinking", "thinking": [text_part("hm")]}, text_part("Hi")]),
        {**assistant((text_part("Hi"),)), "reasoning_content": "hm"},
    ),
    "an array": (calling(content=None, tool_calls=np.array([CALL], object)), CALLING),
}
BAD = {
    "nothing said": calling(content=None),
    "a call without a name": calling(tool_calls=[{"id": "a1", "function": {"arguments": "{}"}}]),
    "arguments in a list": calling(tool_calls=[{"id": "a1", "function": {"name": "f", "arguments": [1]}}]),
    "an unknown key": calling(content="Hi", weight=1),
    "an unknown key of a call": calling(tool_calls=[{**CALL, "parameters": {"x": 1}}]),
    "a call without arguments": calling(tool_calls=[{"id": "a1", "function": {"name": "f", "arguments": None}}]),
    "a number": calling(content=3),
    "a part of another kind": calling(content=[{"type": "input_audio", "input_audio": {"data": "x"}}]),
}


class Echo(TextEnv):
    """Shows what it was given."""

    def __init__(self, tasks):
        super().__init__(tasks)

    def respond(self, reply):
        return Turn([user("Go on.")], terms={"r": 0.0})


TASK = Task("0", "made", (user("Hi"),), ground_truth="4")


def by_step(message, folder):
    env = Echo([TASK])
    env.reset(seed=0)
    assert env.action_space.contains(message) == (problem(message) is None)
    return env.step(message)[0][1]


def by_vector(message, folder):
    envs = TextVectorEnv([Echo([TASK]), Echo([TASK])])
    envs.reset(seed=0)
    return envs.step([message, "Hi"])[0][0][1]


def row_of(message):
    return {
        "data_source": "made",
        "prompt": [user("Hi"), message, user("Go on.")],
        "reward_model": {"style": "rule", "ground_truth": "4"},
    }


def arrow_row(message):
    """The same in a table, whose contents have one type: all texts, or all lists of parts."""
    row = json.loads(json.dumps(row_of(message), default=lambda array: array.tolist()))
    if isinstance(message.get("content"), list):
        for part in row["prompt"][::2]:
            part["content"] = [{"type": "text", "text": part["content"]}]
    return row


def by_row(message, folder):
    env = Echo([TASK])
    return env.reset(options={"task": row_of(message)})[0][1]


def by_opening(message, folder):
    class Opens(Echo):
        def opening(self, task):
            return [user("Hi"), message]

    return Opens([TASK]).reset(seed=0)[0][1]


def by_json_lines(message, folder):
    path = folder / "rows.jsonl"
    path.write_text(json.dumps(row_of(message), default=lambda array: array.tolist()))
    ((_, row),) = file_rows(path, "columns")
    return Task.from_row(row, key="0").prompt[1]


def by_parquet(message, folder):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([arrow_row(message)]), path)
    ((_, row),) = file_rows(path, "columns")
    return Task.from_row(row, key="0").prompt[1]


def by_datasets(message, folder):
    from datasets import Dataset

    (row,) = Dataset.from_list([arrow_row(message)])
    return Task.from_row(row, key="0").prompt[1]


def by_wire(message, folder):
    value = json.loads(json.dumps([message], default=lambda array: array.tolist()))
    return TypeAdapter(protocol.Conversation).validate_python(value)[0]


ENTRANCES = [by_step, by_vector, by_row, by_opening, by_json_lines, by_parquet, by_datasets, by_wire]


def problem(message):
    try:
        read_message(message)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("enter", ENTRANCES)
@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_one_form_at_every_entrance(name, enter, tmp_path):
    message, form = FORMS[name]
    before = copy.deepcopy(message) if name != "an array" else None
    assert enter(message, tmp_path) == form
    assert before is None or message == before, "what was given is left alone"


@pytest.mark.parametrize("enter", [entrance for entrance in ENTRANCES if entrance not in (by_parquet, by_datasets)])
@pytest.mark.parametrize("name", BAD)
def test_bad_message_has_one_problem_everywhere(name, enter, tmp_path):
    words = problem(BAD[name])
    assert words is not None
    with pytest.raises((ValueError, TaskError, gymnasium.error.InvalidAction)) as raised:
        enter(BAD[name], tmp_path)
    assert words in str(raised.value)


texts = st.text(st.characters(codec="utf-8"), max_size=6)
leaves = st.none() | st.booleans() | st.integers(0, 99) | texts
arguments = st.dictionaries(texts.filter(bool), leaves | st.lists(texts, max_size=2), max_size=3)
functions = st.fixed_dictionaries(
    {"name": texts}, optional={"arguments": arguments | arguments.map(json.dumps) | st.none() | texts}
)
calls = st.fixed_dictionaries(
    {"function": functions | st.none()},
    optional={"id": texts | st.none(), "type": st.sampled_from(["function", None, "custom"]), "index": st.just(0)},
)
parts = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "refusal", "image"])}, optional={"text": texts | st.none()}
)
raw_messages = st.fixed_dictionaries(
    {"role": st.just("assistant")},
    optional={
        "content": texts | st.none() | st.lists(parts, max_size=2),
        "tool_calls": st.none() | st.lists(calls, max_size=2),
        "refusal": texts | st.none(),
        "reasoning": texts | st.none(),
        "name": texts | st.none(),
        "function_call": functions | st.none(),
        "more": st.none() | texts,
    },
)


def entered(enter, message, folder):
    try:
        return enter(message, folder)
    except (ValueError, gymnasium.error.InvalidAction):
        return None


@settings(max_examples=40)
@given(message=raw_messages)
def test_all_entrances_agree_about_any_message(message, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    expected = None if problem(message) else copy_messages([read_message(message)])[0]
    for enter in (by_step, by_row, by_opening, by_json_lines, by_wire):
        right = expected
        if enter is by_step and right is not None and right.get("reasoning_content") == "":
            # A service's empty reasoning says nothing of the content, so a reply does not keep it.
            right = {key: value for key, value in right.items() if key != "reasoning_content"}
        assert entered(enter, message, folder) == right, enter.__name__
    if expected is not None:
        assert read_message(expected) == expected, "the form is its own form"
        assert {type(expected["content"])} <= {str, tuple}


TRL_TALK = [
    {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
    {"role": "user", "content": "Warm?", "tool_calls": None},
    {
        "role": "assistant",
        "tool_calls": [
            {"type": "function", "function": {"name": name, "arguments": {"city": "Rom"}}} for name in ("rain", "sun")
        ],
    },
    {"role": "tool", "name": "sun", "content": "yes"},
    {"role": "tool", "name": "rain", "content": "no"},
    {"role": "assistant", "content": "<tool_call>...</tool_call>"},
    {"role": "tool", "content": "12"},
]


def test_results_without_ids_answer_the_calls_before_them():
    read = check_conversation(TRL_TALK, "here")
    assert [message["role"] for message in read] == ["system", "user", "assistant", "tool", "tool", "assistant", "tool"]
    ids = [call["id"] for call in read[2]["tool_calls"]]
    assert ids == ["call00000", "call00001"]
    assert [message["tool_call_id"] for message in read if message["role"] == "tool"] == [ids[1], ids[0], "call00002"]
    assert check_conversation(read, "here") == read
    with pytest.raises(ValueError, match="message 2: a tool message needs 'tool_call_id'"):
        check_conversation([*TRL_TALK[:2], TRL_TALK[3]], "here")


def test_ids_go_on_in_an_episode():
    env = Echo([TASK])
    env.reset(seed=0)
    for _ in range(2):
        conversation, *_ = env.step(calling(tool_calls=[{"function": {"name": "f", "arguments": {}}}] * 2))
    assert [call["id"] for m in conversation for call in m.get("tool_calls", ())] == [f"call0000{i}" for i in range(4)]


def test_hostile_nesting_is_a_problem_in_words():
    deep = {}
    for _ in range(5000):
        deep = {"a": deep}
    assert "no JSON" in problem(calling(tool_calls=[{"function": {"name": "f", "arguments": deep}}]))
    for key in ("content", "refusal", "name", "more", "function_call"):
        assert problem(calling(**{key: deep})) is not None
