"""Cheap policies against worlds: they end at once, refuse, answer with what they read first, and change anything."""

from __future__ import annotations

import json
import re

import numpy as np

from ...attack import Attack, always, first_user_text, sequence
from ...messages import Message, Messages, text_of
from ...tools.formats import Hermes, call
from .tools import FINISH

_WRITE = Hermes().write
_TOOL = re.compile(r"^(\w+)\((.*?)\): (.*)$", re.M)
_ID = re.compile(r'"id":\s*"(\w+)"')


def _finish(**arguments: object) -> str | Message:
    return _WRITE("", [call(FINISH, **arguments)])


def _tools(conversation: Messages) -> list[tuple[str, str]]:
    """Return the tools of the system prompt with their arguments, but for the common ones."""
    tools = _TOOL.findall(text_of(conversation[0]))
    return [(name, arguments) for name, arguments, _ in tools if name not in (FINISH, "sign_in")]


def _results(conversation: Messages) -> list[str]:
    return [text_of(message) for message in conversation if message["role"] == "tool"]


def _search_quoted(conversation: Messages) -> list[str | Message]:
    """Return searches for what the request has in quotes, by the tools whose name has a word of the request."""
    request = first_user_text(conversation)
    labels = re.findall(r'"([^"]+)"', request) or re.findall(r"([A-Z]\w+ [A-Z]\w+)", request)
    words = set(re.findall(r"\w{4,}", request.casefold()))
    replies: list[str | Message] = []
    for label in labels:
        for name, arguments in _tools(conversation):
            if "page?" not in arguments or not words & set(name.split("_")):
                continue
            first = next((one.partition("?")[0] for one in arguments.split(", ") if one.endswith(": text")), None)
            if first:
                replies.append(_WRITE("", [call(name, **{first: label})]))
    return replies


def _first_match(rng: np.random.Generator, seen: object) -> object:
    """Search for what is quoted, then use the verb whose name has most of the request's words on the first id."""
    state = {"turn": 0}

    def reply(conversation: Messages) -> str | Message:
        searches = _search_quoted(conversation)[:4]
        state["turn"] += 1
        if state["turn"] <= len(searches):
            return searches[state["turn"] - 1]
        ids = [number for result in _results(conversation) for number in _ID.findall(result)]
        words = set(re.findall(r"\w{3,}", first_user_text(conversation).casefold()))
        verbs = [
            (len(words & set(name.split("_"))), name) for name, text in _tools(conversation) if text.startswith("id:")
        ]
        if state["turn"] == len(searches) + 1 and ids and verbs:
            return _WRITE("", [call(max(verbs)[1], id=ids[0])])
        return _finish()

    return reply


def _read_first(rng: np.random.Generator, seen: object) -> object:
    """Search for what is quoted, look at the first record, answer with its last number or text."""
    state = {"turn": 0}

    def reply(conversation: Messages) -> str | Message:
        searches = _search_quoted(conversation)[:2]
        state["turn"] += 1
        if state["turn"] <= len(searches):
            return searches[state["turn"] - 1]
        results = _results(conversation)
        ids = [number for result in results for number in _ID.findall(result)]
        gets = [name for name, text in _tools(conversation) if text.startswith("id:") and text.count(":") == 1]
        if state["turn"] == len(searches) + 1 and ids and gets:
            return _WRITE("", [call(gets[0], id=ids[0])])
        values: list[object] = []
        for result in results:
            try:
                values += json.loads(result).values()
            except (ValueError, AttributeError):
                continue
        plain = [value for value in values if isinstance(value, str | int)]
        return _finish(answer=plain[-1]) if plain else _finish()

    return reply


ATTACKS: tuple[Attack, ...] = (
    always("finish", "finishes at once", lambda conversation: _finish()),
    always("refuse", "finishes at once, and refuses", lambda conversation: _finish(refused="P1000")),
    sequence("answer-one", "answers 1", [_finish(answer=1)]),
    Attack("first-match", "searches for the names in the request, and changes the first record", _first_match),  # type: ignore[arg-type]
    Attack("read-first", "searches for the names in the request, and answers with what it reads", _read_first),  # type: ignore[arg-type]
)
