"""The scripted user: it knows a task's instructions, and tells them sentence by sentence, as it is asked.

There is no chance in it: equal words, equal answers. What it says are the task's own sentences in the first person. It
understands the assistant by the patterns of ``user.yaml``, does on its side what it is told to do (one thing a message)
and reports what it saw. What it cannot see is whether the assistant did right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...text import load_yaml
from ...tools import ToolError
from .database import Database
from .evaluator import Criteria, holds
from .world import Call, Tau2State, kind_of, run

_DATA: Mapping[str, Any] = load_yaml(__package__, "user.yaml")
SAYS: Mapping[str, str] = _DATA["says"]
EXPERT: Mapping[str, str] = _DATA["expert"]
_UNDERSTOOD = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in _DATA["understood"].items()}
_TOOLS = {name: re.compile(f"{name}|{pattern}", re.IGNORECASE) for name, pattern in _DATA["tools"].items()}
_VALUES: Mapping[str, Mapping[str, str]] = _DATA["values"]
#: Longer replies are not read.
MAX_CHARS = 4000
#: So many useless replies, and the user leaves.
PATIENCE = 8

_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_WORD = re.compile(r"[a-z0-9#@]{3,}")
_DISTINCT = re.compile(r"#?\w*\d\w*")  # an id, a number


def sentences(task: Mapping[str, Any]) -> tuple[list[str], range, range]:
    """All that the user may say, in the first person; those that it opens with; and those that say who it is."""
    given = task["user_scenario"]["instructions"]
    parts = ("reason_for_call", "known_info", "unknown_info", "task_instructions")
    texts = [given] if isinstance(given, str) else [given.get(name) or "" for name in parts]
    split = [[each.strip() for each in _SENTENCE.split(text) if len(each.strip()) > 1] for text in texts]
    first = max(1, len(split[0]))
    who = range(first, first + sum(map(len, split[1:3])))
    return [_first_person(each) for part in split for each in part], range(first), who


def opening(task: Mapping[str, Any], state: Tau2State) -> str:
    """The user's first words: why it calls."""
    known, first, _ = sentences(task)
    state.heard = tuple(first)
    return " ".join(known[i] for i in first)


def answer(task: Mapping[str, Any], criteria: Criteria, state: Tau2State, words: str) -> str:
    """What the user says to the assistant's words. Its own calls and how it leaves are noted in the state."""
    sees = {name: bool(pattern.search(words)) for name, pattern in _UNDERSTOOD.items()}
    if not re.search(r"\w", words) or len(words) > MAX_CHARS:
        return _useless(state, SAYS["unclear"])
    if sees["transfer"] and any(call.name == "transfer_to_human_agents" for call in state.calls):
        state.ended = "transfer"
        return SAYS["transferred"]
    if ordered := _order(state.db, words):
        return _do(state, *ordered)
    question = sees["ask"] and not re.search("anything else", words, re.IGNORECASE)
    if question:
        if sees["confirm"] and _mine(criteria, state, words):
            return SAYS["yes"]
        return _tell(task, state, words, sees["identity"])
    if sees["done"] or sees["ask"]:
        return _close(task, criteria, state)
    return _useless(state, SAYS["unclear"])


def _useless(state: Tau2State, words: str) -> str:
    state.patience += 1
    if state.patience < PATIENCE:
        return words
    state.ended = "left"
    return SAYS["left"]


def _tell(task: Mapping[str, Any], state: Tau2State, words: str, identity: bool) -> str:
    """The sentence that the question is about, or else the next that was not said yet."""
    known, _, who = sentences(task)
    if identity and who:
        about = who
    else:
        asked = set(_WORD.findall(words.lower()))
        scores = [len(asked & set(_WORD.findall(each.lower()))) for each in known]
        new = [i for i in range(len(known)) if i not in state.heard]
        best = max(range(len(known)), key=lambda i: (scores[i], i in new, -i))
        if not new and not scores[best]:
            return _useless(state, SAYS["nothing_more"])
        one = best if scores[best] or not new else new[0]
        about = range(one, one + 1)
    if set(about) <= set(state.heard):
        state.patience += 1  # asked again
    if state.patience >= PATIENCE:
        return _useless(state, "")
    state.heard = tuple(sorted({*state.heard, *about}))
    return " ".join(known[i] for i in about)


def _mine(criteria: Criteria, state: Tau2State, words: str) -> bool:
    """Whether a proposal names something of a change that the user wants: an id, a number, or what is done."""
    for call in criteria.calls:
        if call.writes(state.db.folder.domain):
            parts = {part for value in call.arguments.values() for part in _DISTINCT.findall(str(value))}
            named = {part for part in call.name.split("_") if len(part) > 4} - {
                "order",
                "items",
                "pending",
                "delivered",
            }
            if any(part in words for part in parts) or any(part in words.lower() for part in named):
                return True
    return False


def _close(task: Mapping[str, Any], criteria: Criteria, state: Tau2State) -> str:
    """The assistant says that it is done: is it, as far as the user can see?"""
    domain = state.db.folder.domain
    known, _, who = sentences(task)
    if not set(who) <= set(state.heard):
        return _useless(state, SAYS["unknown"])
    for each in criteria.assertions:
        check = _DATA["checks"].get(each["func_name"])
        if check and not holds(state.db, each):
            return _useless(state, f"{SAYS['broken']} {_do(state, check, {})}")
    if state.wrote < state.wanted:
        left = next((i for i in range(len(known)) if i not in state.heard), 0)
        state.heard = tuple(sorted({*state.heard, left}))
        return _useless(state, f"{SAYS['more']} {known[left]}")
    for name, arguments in _own_plan(task, domain):
        _do(state, name, arguments)
    state.ended = "stop"
    return SAYS["thanks"]


def _own_plan(task: Mapping[str, Any], domain: str) -> Iterator[tuple[str, dict[str, str]]]:
    """What the instructions tell the user to do itself once it is done: tools that change something, by name."""
    given = task["user_scenario"]["instructions"]
    for sentence in _SENTENCE.split(given if isinstance(given, str) else given.get("task_instructions") or ""):
        for name in _TOOLS:
            if name in sentence and kind_of(domain, "user", name) == "write":
                yield name, _arguments(name, sentence)


def _order(db: Database, words: str) -> tuple[str, dict[str, str]] | None:
    """The tool of the user that the assistant's words tell it to use, with its arguments."""
    for sentence in _SENTENCE.split(words):
        if _UNDERSTOOD["report"].search(sentence) or not _UNDERSTOOD["order"].search(sentence):
            continue
        found = [
            (match.start(), -len(match[0]), name)
            for name, pattern in _TOOLS.items()
            if kind_of(db.folder.domain, "user", name) and (match := pattern.search(sentence))
        ]
        exact = [each for each in found if each[2] in sentence]
        if found:
            name = min(exact, key=lambda each: each[1])[2] if exact else min(found)[2]
            return name, _arguments(name, sentence)
    return None


def _arguments(name: str, sentence: str) -> dict[str, str]:
    given = {}
    rest = sentence.replace(name, " ")
    for argument in _DATA["arguments"].get(name, ()):
        for value, pattern in _VALUES[argument].items():
            if found := re.search(pattern, rest, re.IGNORECASE):
                given[argument] = value or found[0]
                break
    return given


def _do(state: Tau2State, name: str, arguments: Mapping[str, str]) -> str:
    """Use a tool of the user's own; what it shows."""
    state.calls = (*state.calls, Call("user", name, dict(arguments)))
    try:
        return str(run(state.db, "user", name, arguments))
    except (ToolError, TypeError) as error:
        state.tool_errors += 1
        return str(error) if isinstance(error, ToolError) else SAYS["which"]


def _first_person(sentence: str) -> str:
    for pattern, instead in _DATA["first_person"]:
        sentence = re.sub(pattern, instead, sentence)
    return sentence


def next_move(criteria: Criteria, state: Tau2State, said: Sequence[str]) -> Call | str:
    """What the scripted expert does next: the task's own actions in order, asking for a yes before each change.

    Args:
        criteria: The task's.
        state: The episode's.
        said: The expert's words so far, without calls.
    """
    domain = state.db.folder.domain
    if not said and domain != "mock":
        return EXPERT["who"]
    made = list(state.calls)
    for call in criteria.calls:
        if call in made:
            made.remove(call)
            continue
        if call.side == "user":
            given = "".join(f", {name}: {value}" for name, value in call.arguments.items())
            return EXPERT["order"].format(tool=call.name, arguments=given)
        asked = EXPERT["confirm"].format(call=f"{call.name}({', '.join(map(str, call.arguments.values()))})")
        if not call.writes(domain) or domain == "mock" or asked in said:
            return call
        return asked
    if any(call.name == "transfer_to_human_agents" for call in criteria.calls):
        return EXPERT["transferred"]
    told = "".join(f" {each}." for each in criteria.communicate)
    return EXPERT["done"].format(told=told)
