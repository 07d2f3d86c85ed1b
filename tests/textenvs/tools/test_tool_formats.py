"""Tool-call formats: written calls parse back, and incomplete calls are reported, never raised."""

import json
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from textenvs.messages import assistant, visible_text
from textenvs.tools import FORMATS, call, make_format, tool


@tool
def search(
    query: str,
    top: int = 3,
    filters: dict[str, list[float]] | None = None,
    exact: bool = False,
    words: list[str] = [],  # noqa: B006
    note: str | None = None,
) -> str:
    """Search.

    Args:
        query: What for.
        top: How many results.
        filters: Ranges by name.
    """
    return query


@tool
def now() -> str:
    """Return the time."""
    return "noon"


class Node(BaseModel):
    """A tree."""

    value: str
    children: list["Node"]


TOOLS = (search, now)
every_format = pytest.mark.parametrize("name", FORMATS)
text_formats = pytest.mark.parametrize("name", [name for name in FORMATS if name != "native"])

# Everything that a format or a chat template uses, so that it also turns up inside arguments.
MARKS = (
    "<tool_call>", "</tool_call>", "<think>", "</think>", "<tools>", "\nAction: now", "\nAction Input: {}",
    "\nObservation: 3", "\nFinal Answer: 4", "Thought:", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "{", "}", '"',
    "\\", "\n", "\r\n", "\u2028", "\x00", "'", "\\u003c", "\\n", " ", "é", "数", "🙂",
    '{"name": "now", "parameters": {}}',
)  # fmt: skip
words = st.lists(st.sampled_from(MARKS) | st.text(max_size=8), max_size=6).map("".join)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(["search", "now", "no_such-tool"])
some_arguments = st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), values, max_size=3)
json_calls = st.lists(st.builds(lambda name, arguments: call(name, **arguments), names, some_arguments), max_size=3)
# Qwen3-Coder writes text as it is, so what an argument is depends on the tool, and some text cannot be written.
sayable = words.filter(lambda text: not any(mark in text for mark in ("</parameter>", "<think>", "</think>")))
typed_arguments = st.fixed_dictionaries(
    {"query": sayable},
    optional={
        "top": st.integers(),
        "filters": st.none() | st.dictionaries(words, st.lists(numbers)),
        "exact": st.booleans(),
        "words": st.lists(words),
        "note": st.none() | sayable.filter(lambda text: text.strip() not in ("null", "None")),
        "unknown": sayable,
    },
)
typed_calls = st.lists(typed_arguments.map(lambda arguments: call("search", **arguments)) | st.just(call("now")))


def calls_for(name):
    return typed_calls if name == "qwen3-coder" else json_calls


plain = st.sampled_from(["", "Let me see.", "One.\n\nTwo: 3 < 4 & 5 > 4, {a}.", "数 🙂", 'He said "x".'])


def numbered(calls, form=None):
    return tuple({**made, "id": (form or make_format("hermes")).call_id(i)} for i, made in enumerate(calls))


@every_format
@settings(max_examples=12)
@given(text=plain, data=st.data())
def test_what_is_written_is_read(name, text, data):
    form, calls = make_format(name, TOOLS), data.draw(calls_for(name))
    parsed = form.parse(form.write(text, calls))
    assert (parsed.text, parsed.calls, parsed.problems) == (text, numbered(calls, form), ())


@every_format
@settings(max_examples=12)
@given(text=words, data=st.data())
def test_ambiguous_text_is_refused_when_writing(name, text, data):
    form, calls = make_format(name, TOOLS), data.draw(calls_for(name))
    try:
        reply = form.write(text, calls)
    except ValueError:
        return
    parsed = form.parse(reply)
    assert (parsed.text, parsed.calls, parsed.problems) == (visible_text(assistant(text)), numbered(calls, form), ())


@text_formats
@settings(max_examples=12)
@given(data=st.data())
def test_cut_reply_keeps_only_whole_calls(name, data):
    form, calls = make_format(name, TOOLS), data.draw(calls_for(name))
    whole = form.write("Let me see.", calls)
    cut = data.draw(st.integers(0, len(whole)))
    parsed = form.parse(whole[:cut])
    assert parsed.calls == numbered(calls, form)[: len(parsed.calls)]
    for parsed_call in parsed.calls:
        json.loads(parsed_call["function"]["arguments"])


@every_format
@given(reply=words)
def test_no_reply_makes_parsing_raise(name, reply):
    parsed = make_format(name, TOOLS).parse(reply)
    for parsed_call in parsed.calls:
        assert isinstance(json.loads(parsed_call["function"]["arguments"]), dict)
    assert all(parsed.problems)


HALF = {
    "hermes": [
        ('<tool_call>\n{"name": "sub', "not closed"),
        ("<tool_call>", "missing"),
        ('<tool_call>{"name": "now", "arguments": }</tool_call>', "broken at '}"),
        ('<tool_call>{"arguments": {}}</tool_call>', 'no "name"'),
        ('<tool_call>{"name": "now", "arguments": "{} {}"}</tool_call>', '"arguments" must be a JSON object'),
        ('<tool_call>{"name": "now", "arguments": "[1]"}</tool_call>', "not a list"),
        ('<tool_call>{"name": "now", "arguments": "\\"{}\\""}</tool_call>', "not text"),
        ('<tool_call>{"name": "now", "arguments": "{\\"x\\": 1, \\"x\\": 2}"}</tool_call>', "twice"),
        ('<tool_call>{"name": "now", "arguments": {}} please</tool_call>', "please"),
        ('<tool_call>[1]</tool_call>', "JSON object"),
        ('<tool_call>{"name": "now", "arguments": {"x": 1e999}}</tool_call>', "too large"),
        ('<tool_call>{"name": "now", "arguments": {"x": NaN}}</tool_call>', "NaN"),
        ("<tool_call>" + "[" * 100_000, "too deeply"),
        ('<tool_call>{"x": ' + "9" * 5000 + "}</tool_call>", "too long"),
        ('{"name": "now", "arguments": {}}</tool_call>', "no <tool_call> before"),
        ('<tool_call>{"name": "search", "query": "x"}</tool_call>', 'has "query"'),
        ('<tool_call>{"name": "search", "arguments": {"query": "x"}, "args": {"top": 1}}</tool_call>', "both"),
        ('<tool_call>{"name": "search", "arguments": {"query": "x"}, "arguments": {}}</tool_call>', "twice"),
        ('<tool_call>{"name": "search", "arguments": {"query": "x", "query": "y"}}</tool_call>', "'query' twice"),
        ('<tool_call>{"type": "message", "name": "now", "arguments": {}}</tool_call>', '"type" must be'),
        ('<tool_call>{"function": {"name": "now"}, "arguments": {}}</tool_call>', 'beside "function"'),
        ('<tool_call>{"function": {"name": "now", "arguments": "[]"}}</tool_call>', "JSON object"),
        ('<tool_call>{"name": "now", "input": "x"}</tool_call>', '"input" must be a JSON object'),
        ('<tool_call>{"name": "now", "tool": "search", "arguments": {}}</tool_call>', 'both "name" and "tool"'),
    ],
    "llama3": [
        ('{"name": "now", "parameters": {"x"', "not closed"),
        ('<|python_tag|>{"name": "now", "parameters": []}', '"parameters" must be a JSON object'),
        ("<|python_tag|>now.call()", "broken at 'now"),
        ("<|python_tag|>", "missing"),
        ('{"name": "now", "parameters": }', "broken at '}'"),
        ('{"name": 3, "parameters": {}}', 'no "name"'),
        ('{"name": "search", "query": "x"}', 'has "query"'),
        ('{"name": "search", "parameters": {"query": "x"}, "top": 3}', 'has "top"'),
    ],
    "mistral": [
        ("[TOOL_CALLS]", "no name"),
        ("[TOOL_CALLS]now[ARGS]", "no name with JSON"),
        ('[TOOL_CALLS]now[ARGS]{"x": ', "not closed"),
        ('[TOOL_CALLS] [{"name": "now", "arguments": {}}', "not closed"),
        ('[TOOL_CALLS] [{"arguments": {}}]', 'no "name"'),
        ('[TOOL_CALLS] ["now"]', "a call is a JSON object"),
        ('[{"name": "now", "arguments": {"x"', "not closed"),
        ('[TOOL_CALLS] [{"name": "search", "query": "x"}]', 'has "query"'),
        ('[TOOL_CALLS]search[ARGS]{"query": "x"}, {"top": 3}', "followed by ', {"),
        ('[{"name": "search", "query": "x"}]', 'has "query"'),
    ],
    "qwen3-coder": [
        ("<tool_call>", "<function=...> is missing at the end"),
        ('<tool_call>\n{"name": "now"}\n</tool_call>', "<function=...> is missing before"),
        ("<tool_call>\n<function=now", "must have a name"),
        ("<tool_call>\n<function=now>\n", "</function> is missing at the end"),
        ("<tool_call>\n<function=>\n</function>", "must have a name"),
        ("<tool_call>\n<function=now>\n<parameter=x>\n1\n", "has no </parameter>"),
        ("<function=search><parameter=query>a</parameter><parameter=query>b</parameter></function>", "twice"),
        ("<tool_call><function=now></function><parameter=x>1</parameter></tool_call>", "between </function> and"),
        ("<function=now></function><parameter=x>1</parameter>", "between </function> and"),
        ('<tool_call><function=now></function>{"x": 1}</tool_call>', "between </function> and"),
        ("<tool_call>\n<function=now>\nx=1\n</function>\n</tool_call>", "<parameter=...> or </function> is missing"),
    ],
    "react": [
        ("Action: submit\nAction Input: {", "not closed"),
        ("Thought: hm\nAction: now", "Action Input"),
        ("Action:\nAction Input: {}", "name of the tool"),
        ("Action: search\nAction Input: [1]", "JSON object"),
        ("Action: search\nthe weather", "Action Input"),
        ("Action Input: {}", 'no "Action:"'),
        ('Action: search\nAction Input: {"query": "x"}, {"top": 3}', "followed by"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("name", "reply", "words"), [(n, *case) for n, cases in HALF.items() for case in cases])
def test_incomplete_call_is_problem_with_remedy(name, reply, words):
    form = make_format(name, TOOLS)
    parsed = form.parse(reply)
    assert parsed.calls == ()
    assert len(parsed.problems) == 1
    assert words in parsed.problems[0]
    how = {"hermes": "<tool_call>", "react": "Action Input: ", "llama3": "parameters", "mistral": "[TOOL_CALLS]"}
    assert how.get(name, "<function=") in parsed.problems[0], "it shows the right form"


@every_format
def test_private_reasoning_makes_no_calls(name):
    form = make_format(name, TOOLS)
    written = form.write("", [call("now")])
    if isinstance(written, str):
        assert form.parse(f"<think>{written}</think>Done.").calls == ()
        assert form.parse(f"<think>{written}").calls == ()
        assert len(form.parse(f"<think>hm</think>{written}").calls) == 1


@every_format
def test_message_with_calls_suits_every_format(name):
    made = {"id": "mine", "type": "function", "function": {"name": "now", "arguments": '{"broken'}}
    parsed = make_format(name, TOOLS).parse(assistant("Let me see.", [made]))
    assert (parsed.text, parsed.calls, parsed.problems) == ("Let me see.", (made,), ())


@every_format
def test_call_ids_continue_from_first_number(name):
    form = make_format(name, TOOLS)
    reply = form.write("", [call("now"), call("search", query="x")])
    if isinstance(reply, str):
        ids = [parsed_call["id"] for parsed_call in form.parse(reply, first=7).calls]
        assert ids == (["call00007", "call00008"] if name == "mistral" else ["call_7", "call_8"])


@text_formats
def test_instructions_name_tools_and_arguments(name):
    instructions = make_format(name, TOOLS).instructions()
    for word in ("search", "now", "query", "top", "What for.", "How many results."):
        assert word in instructions


@every_format
def test_calls_beyond_json_are_refused(name):
    broken = {"id": "", "type": "function", "function": {"name": "now", "arguments": "[1]"}}
    with pytest.raises(ValueError, match="arguments of a call"):
        make_format(name, TOOLS).write("", [broken])


def test_unknown_format_error_lists_known_ones():
    with pytest.raises(ValueError, match="hermes, .*react.*not 'json'"):
        make_format("json", TOOLS)


ARGUMENT_NAMES = ("arguments", "parameters", "params", "args", "kwargs", "input")


@pytest.mark.parametrize("key", ARGUMENT_NAMES)
@pytest.mark.parametrize(
    ("name", "frame"),
    [
        ("hermes", "<tool_call>\n%s\n</tool_call>"),
        ("llama3", "%s"),
        ("llama3", "<|python_tag|>%s"),
        ("mistral", "[TOOL_CALLS] [%s]"),
        ("mistral", "[TOOL_CALLS]%s"),
        ("mistral", "[%s]"),
    ],
)
def test_every_name_of_arguments_is_read(name, frame, key):
    form, made = make_format(name, TOOLS), call("search", query="x", top=2)
    arguments = {"query": "x", "top": 2}
    for value in (
        {"name": "search", key: arguments},
        {key: arguments, "name": "search"},
        {"id": "a", "type": "function", "name": "search", key: arguments},
        {"name": "search", key: json.dumps(arguments)},
        {"tool": "search", key: f" {json.dumps(arguments, indent=1)}\n"},
        {"type": "function", "function": {"name": "search", key: arguments}},
        {"id": "a", "type": "function", "function": {"name": "search", key: json.dumps(arguments)}},
        {"name": "search", key: arguments, "arguments" if key == "args" else "args": None},
        {"function": "search", key: arguments},
        {"tool": "search", key: arguments},
    ):
        parsed = form.parse(frame % json.dumps(value))
        assert (parsed.calls, parsed.problems, parsed.text) == (numbered([made], form), (), ""), value


call_keys = st.dictionaries(
    st.sampled_from([*ARGUMENT_NAMES, "name", "type", "id", "function", "query", "top", "tool", "reason"]),
    st.sampled_from(["search", "function", "x", None, 3, [], {}, {"query": "x"}, {"name": "search"}]),
    max_size=4,
)


@given(call_keys)
def test_nothing_in_a_call_is_dropped(value):
    """Check that all content of a call is in the parsed call or in a reported problem."""
    parsed = make_format("hermes", TOOLS).parse(f"<tool_call>{json.dumps(value)}</tool_call>")
    assert len(parsed.calls) + len(parsed.problems) == 1
    if parsed.calls:
        function = parsed.calls[0]["function"]
        inside = value["function"] if isinstance(value.get("function"), dict) and "name" not in value else value
        rest = [v for k, v in inside.items() if k not in ("id", "type") and v is not None]
        arguments = json.loads(function["arguments"])
        assert rest in ([function["name"]], [function["name"], arguments], [arguments, function["name"]])


@text_formats
@pytest.mark.parametrize("mark", ["</think>", "[/THINK]", "</seed:think>", "<think>", "◁/think▷"])
@pytest.mark.parametrize("reasoning", ["", "<think>hm</think>\n", "[THINK]hm[/THINK]", "hm</think>"])
def test_mark_within_call_ends_no_reasoning(name, mark, reasoning):
    form = make_format(name, TOOLS)
    made = call("search", query=f"a {mark} b", top=2)
    written = {
        "hermes": '<tool_call>\n{"name": "search", "arguments": %s}\n</tool_call>',
        "llama3": '{"name": "search", "parameters": %s}',
        "mistral": "[TOOL_CALLS]search[ARGS]%s",
        "react": "Action: search\nAction Input: %s",
        "qwen3-coder": "<function=search><parameter=query>a %s b</parameter><parameter=top>2</parameter></function>",
    }[name] % (mark if name == "qwen3-coder" else made["function"]["arguments"])
    parsed = form.parse(reasoning + written)
    assert (parsed.text, parsed.calls, parsed.problems) == ("", numbered([made], form), ())


# ------------------------------------------------------------------ what is particular to one format


def test_hermes_reads_calls_of_models():
    form = make_format("hermes", TOOLS)
    first = '<tool_call>\n{"name": "search", "arguments": {"query": "a\nb"}}\n</tool_call>'
    parsed = form.parse(f'Sure.\n{first}\n<tool_call>\n{{"name": "now"}}')
    assert parsed.text == "Sure."
    assert parsed.calls == numbered([call("search", query="a\nb"), call("now")])


def test_bad_call_leaves_neighbours_intact():
    form = make_format("hermes", TOOLS)
    good = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    parsed = form.parse(f"{good}<tool_call>{{broken</tool_call>{good} <tool_call>{good}")
    assert len(parsed.calls) == 3
    assert len(parsed.problems) == 2


@pytest.mark.parametrize("reply", ["<tool_call>" * 100_000, "<tool_call>{" * 50_000, "</tool_call>" * 100_000])
def test_many_broken_calls_give_short_answer(reply):
    parsed = make_format("hermes").parse(reply)
    assert 1 <= len(parsed.problems) <= 4
    assert "Nothing after this was read" in parsed.problems[-1] or len(parsed.problems) < 4


def test_react_reads_labels_of_paper():
    form = make_format("react", TOOLS)
    parsed = form.parse(
        "Thought: I look.\nAction: search\nAction Input: weather in Paris\nObservation: sun\nFinal Answer: sun"
    )
    assert parsed.text == "I look."
    assert parsed.calls == (), "two of the three arguments are not given, so bare text is not enough"
    parsed = make_format("react", [single]).parse(
        "Thought: I look.\nAction: single\nAction Input: weather\nObservation: sun"
    )
    assert parsed.calls == numbered([call("single", query="weather")])
    assert form.parse("Thought: I know.\nFinal Answer: it is\nsunny").text == "it is\nsunny"


@tool
def single(query: str) -> str:
    """One argument.

    Args:
        query: Text.
    """
    return query


def test_react_results_form_one_message():
    from textenvs.tools import ToolResult

    results = [ToolResult(call("now"), "noon"), ToolResult(call("now"), "later")]
    (message,) = make_format("react").answers(results)
    assert message == {"role": "user", "content": "Observation: noon\nObservation: later"}
    messages = make_format("hermes").answers(results)
    assert [(m["role"], m["content"], m["name"], m["tool_call_id"]) for m in messages] == [
        ("tool", "noon", "now", "call_0"), ("tool", "later", "now", "call_0"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "reply",
    [
        '{"name": "search", "parameters": {"query": "x"}}; {"name": "now", "parameters": {}}',
        '<|python_tag|>{"type": "function", "name": "search", "parameters": {"query": "x"}};\n'
        '{"name": "now", "arguments": {}}',
    ],
)
def test_llama3_reads_calls_of_models(reply):
    form = make_format("llama3", TOOLS)
    assert form.parse(reply).calls == numbered([call("search", query="x"), call("now")])
    assert form.parse(reply).text == ""


def test_llama3_leaves_other_json_alone():
    answer = 'It is {"name": "Tom", "age": 5}, or {"a": 1}.'
    assert make_format("llama3", TOOLS).parse(answer).text == answer
    answer = '[{"name": "Tom", "input": 3}, {"name": "Ann"}]'
    assert make_format("mistral", TOOLS).parse(answer).text == make_format("llama3", TOOLS).parse(answer).text == answer


@pytest.mark.parametrize(
    "reply",
    [
        '[TOOL_CALLS]search[ARGS]{"query": "x"}[TOOL_CALLS]now[ARGS]{}',
        '[TOOL_CALLS]search{"query": "x"}[TOOL_CALLS]now{}',
        '[TOOL_CALLS]search[CALL_ID]abcdefg12[ARGS]{"query": "x"}[TOOL_CALLS]now[CALL_ID]abcdefg13[ARGS]{}',
        '[TOOL_CALLS] [{"name": "search", "arguments": {"query": "x"}, "id": "abc"}, {"name": "now", "arguments": {}}]',
        '[{"name": "search", "arguments": {"query": "x"}}, {"name": "now", "arguments": {}}]',
    ],
)  # fmt: skip
def test_mistral_reads_forms_of_all_tokenizers(reply):
    form = make_format("mistral", TOOLS)
    parsed = form.parse(reply)
    assert parsed.calls == numbered([call("search", query="x"), call("now")], form)
    assert (parsed.text, parsed.problems) == ("", ())


def test_qwen3_coder_reads_values_by_type():
    form = make_format("qwen3-coder", TOOLS)
    lines = {"query": "5", "top": "5", "exact": "True", "note": '"5"', "filters": '{"a": [1]}', "words": '["5"]'}
    parameters = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in lines.items())
    for reply in (
        f"Hm.\n<tool_call>\n<function=search>\n{parameters}</function>\n</tool_call>",
        f"Hm.<function=search>{parameters}</function>",
    ):
        parsed = form.parse(reply)
        assert parsed.text == "Hm."
        read = json.loads(parsed.calls[0]["function"]["arguments"])
        assert read == {"query": "5", "top": 5, "exact": True, "note": '"5"', "filters": {"a": [1]}, "words": ["5"]}


@pytest.mark.parametrize(
    "reply",
    [
        "<tool_call>\n<function=search>\n<parameter=query>\nx\n<parameter=top>\n2\n</function>\n</tool_call>",
        "<tool_call>\n<function=search>\n<parameter=query>\nx\n</parameter>\n<parameter=top>\n2\n</function>\n</tool_call>",
        "<tool_call>\n<function=search>\n<parameter=query>\nx\n<parameter=top>\n2\n</parameter>\n</function>\n</tool_call>",
        "<tool_call><function=search><parameter=query>x<parameter=top>2</function></tool_call>",
        "<tool_call>\n<function=search>\n<parameter=query>\nx\n</parameter>\n<parameter=top>\n2\n</parameter>\n</function>",
        "<function=search>\n<parameter=query>\nx\n</parameter>\n<parameter=top>\n2\n</function>",
        "<tool_call>\n<function=search>\n<parameter=query>\nx\n</parameter>\n<parameter=top>\n2\n</parameter>\n</tool_call>",
    ],
)
def test_qwen3_coder_needs_no_parameter_end(reply):
    form, made = make_format("qwen3-coder", TOOLS), call("search", query="x", top=2)
    assert form.parse(reply).calls == numbered([made])
    both = form.parse(f"{reply}\n{form.write('', [call('search', query='y')])}")
    assert (both.calls, both.problems) == (numbered([made, call("search", query="y")]), ())


def test_qwen3_coder_joins_no_two_calls():
    """Check that an unterminated value does not extend into the next call."""
    good = "<tool_call><function=search><parameter=query>a</function></tool_call>"
    parsed = make_format("qwen3-coder", TOOLS).parse(f"<tool_call><function=now><parameter=x>1</tool_call>{good}")
    assert parsed.calls == numbered([call("search", query="a")])
    assert "<parameter=x> has no </parameter>" in parsed.problems[0]


def test_qwen3_coder_keeps_spaces_refuses_tags():
    form = make_format("qwen3-coder", TOOLS)
    made = call("search", query="\n  def f():\n\treturn '<b>'\n\n")
    assert form.parse(form.write("", [made])).calls == numbered([made])
    with pytest.raises(ValueError, match="qwen3-coder cannot say this"):
        form.write("", [call("search", query="a</parameter>b")])


def test_qwen3_coder_reads_types_through_definitions():
    @tool
    def tree(node: Node, mode: Literal["a", 1] = "a") -> str:
        """Takes a type that refers to itself."""
        return ""

    form = make_format("qwen3-coder", [tree])
    made = call("tree", node={"value": "5", "children": []}, mode=1)
    assert form.parse(form.write("", [made])).calls == numbered([made])
    assert tree.arguments_of(made["function"]["arguments"])["node"] == Node(value="5", children=[])


@pytest.mark.parametrize(
    ("name", "written"),
    [
        (
            "hermes",
            'Hm.\n<tool_call>\n{"name": "search", "arguments": {"query": "é", "top": 2}}\n</tool_call>'
            '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        ),
        (
            "llama3",
            'Hm.\n{"name": "search", "parameters": {"query": "é", "top": 2}}; {"name": "now", "parameters": {}}',
        ),
        (
            "qwen3-coder",
            "Hm.\n\n<tool_call>\n<function=search>\n<parameter=query>\né\n</parameter>\n<parameter=top>\n2\n</parameter>\n"
            "</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        ),
        ("mistral", 'Hm.[TOOL_CALLS]search[ARGS]{"query": "é", "top": 2}[TOOL_CALLS]now[ARGS]{}'),
        (
            "react",
            'Thought: Hm.\nAction: search\nAction Input: {"query": "é", "top": 2}\nAction: now\nAction Input: {}',
        ),
    ],
)
def test_calls_match_models_chat_templates(name, written):
    """Compare with public templates' rendering of such a message (for several of Llama's calls: engines' input)."""
    assert make_format(name, TOOLS).write("Hm.", [call("search", query="é", top=2), call("now")]) == written


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", FORMATS)
def test_adversarial_replies_parse_in_linear_time(name):
    """A pattern of higher order would need many minutes, which block all other episodes."""
    for start in ("", "[TOOL_CALLS]", "[TOOL_CALLS]a", "[TOOL_CALLS]a[CALL_ID]", "<tool_call>", "{", "Action: a"):
        for piece in (
            " ",
            "\n",
            "\n ",
            "{",
            "{ ",
            "[",
            "a",
            '"',
            "\\",
            "<",
            "<think>",
            "Action:",
            "[ARGS]",
            "[TOOL_CALLS]",
        ):
            make_format(name, TOOLS).parse(start + piece * 20_000 + "x")
