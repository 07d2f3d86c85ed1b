"""Contexts of calls: the tree of messages finds what a comparison with each conversation finds."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from textenvs.gateway.contexts import Contexts
from textenvs.gateway.model_call import ModelCall, function_schema, message_key
from textenvs.messages import Messages, assistant, system, user

TOOLS = ((), (function_schema("look", "Look.", {}, "tools"),))
REPLIES = st.sampled_from(["x", "y"])


def longest(known: list[dict[str, Any]], call: ModelCall) -> int | None:
    """Compare the call with each conversation: the longest that it extends by messages of users alone."""
    extended = [
        number
        for number, one in enumerate(known)
        if (one["role"], one["tools"]) == (call.role, call.tools_key)
        and call.message_keys[: len(one["seen"])] == one["seen"]
        and len(call.messages) > len(one["seen"])
        and {message["role"] for message in call.messages[len(one["seen"]) :]} == {"user"}
    ]
    return max(extended, key=lambda number: (len(known[number]["seen"]), -number), default=None)


def source(known: list[dict[str, Any]], call: ModelCall) -> tuple[int, int] | None:
    """Compare the call with each conversation: the one with the most replies in what both begin with."""
    counts = []
    for number, one in enumerate(known):
        if (one["role"], one["tools"]) == (call.role, call.tools_key):
            pairs = zip(call.message_keys[:-1], one["seen"], strict=False)
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            counts.append((sum(size <= shared for size in one["replies"]), -number))
    count, number = max(counts, default=(0, 0))
    return (-number, count) if count else None


@given(data=st.data())
def test_tree_finds_what_comparisons_find(data: st.DataObject) -> None:
    contexts, known, talks = Contexts(), list[dict[str, Any]](), list[Messages]([()])
    for _ in range(data.draw(st.integers(1, 14))):
        base = data.draw(st.sampled_from(talks))
        base = base[: data.draw(st.integers(0, len(base)))]
        new = data.draw(st.lists(st.sampled_from([user("a"), user("b"), system("s"), assistant("x")]), max_size=2))
        role, tools = data.draw(st.sampled_from(["", "other"])), data.draw(st.sampled_from(TOOLS))
        call = ModelCall("openai-chat", "policy", (*base, *new, user("go")), tools, role=role)
        number, begun_from = contexts.continued_by(call), contexts.source_of(call)
        assert number == longest(known, call)
        assert begun_from == source(known, call)
        if number is None:
            shared = () if begun_from is None else known[begun_from[0]]["replies"][: begun_from[1]]
            number = contexts.begin(role, call.tools_key, shared)
            known.append({"role": role, "tools": call.tools_key, "seen": (), "replies": shared})
        reply = assistant(data.draw(REPLIES))
        seen = (*call.message_keys, message_key(reply))
        contexts.extend(number, seen)
        known[number] |= {"seen": seen, "replies": (*known[number]["replies"], len(seen))}
        talks.append((*call.messages, reply))
        assert contexts.all[number].replies == known[number]["replies"]


def test_cost_of_a_call_is_of_its_messages() -> None:
    """Thousands of conversations that begin alike add no node and no comparison."""
    contexts, call = Contexts(), ModelCall("openai-chat", "policy", (user("go"),))
    seen = (*call.message_keys, message_key(assistant("x")))
    for _ in range(3000):
        assert contexts.continued_by(call) is None
        contexts.extend(contexts.begin("", call.tools_key, ()), seen)
    assert len(contexts._nodes) == 3
