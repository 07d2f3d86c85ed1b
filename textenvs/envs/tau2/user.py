"""The scripted user: it knows a task's instructions, and tells them sentence by sentence, as it is asked.

There is no chance in it: equal words, equal answers. What it says are the task's own sentences in the first person. It
understands the assistant by the patterns of ``user.yaml``, follows its instructions on its side (one action a message)
and reports the results. It cannot see whether the assistant did right: it reads its instructions, the talk and
its own phone, and nothing of the task's criteria.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...text import load_yaml
from ...tools import ToolError
from .database import Database
from .evaluator import Criteria
from .world import TRANSFER_TOOL, Call, Tau2State, carry_out, kind_of

_DATA: Mapping[str, Any] = load_yaml(__package__, "user.yaml")
SAYS: Mapping[str, str] = _DATA["says"]
_COMMON = frozenset(_DATA["common"].split())
EXPERT: Mapping[str, str] = _DATA["expert"]
_PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in _DATA["understood"].items()}
_TOOLS = {name: re.compile(f"{name}|{pattern}", re.IGNORECASE) for name, pattern in _DATA["tools"].items()}
_VALUES: Mapping[str, Mapping[str, str]] = _DATA["values"]
#: Longer replies are not read, and none with more numbers.
MAX_CHARS, MAX_NUMBERS = 4000, 100
#: So many useless replies, and the user leaves.
PATIENCE = 8

_NUMBER = re.compile(r"\d+")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_WORD = re.compile(r"[a-z0-9#@]{3,}")
#: An id, or a number of three digits and more.
_VALUE = re.compile(r"#?\b(?=\w*\d)(?!\d{1,2}\b)\w+")
_CHECKS = [{**check, "about": re.compile(check["about"], re.I)} for check in _DATA["checks"]]
#: How many values of a proposal are asked about at once.
_MOST_QUESTIONED = 6


def sentences(task: Mapping[str, Any]) -> tuple[list[str], range, range]:
    """Return all that the user may say, in the first person; the opening sentences; and those of its identity."""
    instructions = task["user_scenario"]["instructions"]
    parts = ("reason_for_call", "known_info", "unknown_info", "task_instructions")
    texts = [instructions] if isinstance(instructions, str) else [instructions.get(name) or "" for name in parts]
    split = [[sentence.strip() for sentence in _SENTENCE.split(text) if len(sentence.strip()) > 1] for text in texts]
    first = max(1, len(split[0]))
    who = range(first, first + sum(map(len, split[1:3])))
    return [_first_person(sentence) for part in split for sentence in part], range(first), who


def readable(words: str) -> bool:
    """Return whether the user reads a reply: it has words, and is neither too long nor a list of numbers."""
    return bool(re.search(r"\w", words)) and len(words) <= MAX_CHARS and len(_NUMBER.findall(words)) <= MAX_NUMBERS


def opening(task: Mapping[str, Any], state: Tau2State) -> str:
    """Return the user's first words: why it calls."""
    texts, first, _ = sentences(task)
    state.disclosed = tuple(first)
    return " ".join(texts[i] for i in first)


def answer(task: Mapping[str, Any], state: Tau2State, words: str) -> str:
    """Return the user's answer to the assistant's words. Its own calls and how it leaves are noted in the state."""
    state.move = "answers"
    if not readable(words):
        return _useless(state, SAYS["unclear"])
    reply = _answer(task, state, words)
    state.known_values |= _values(words) | _values(reply)
    return reply


def _answer(task: Mapping[str, Any], state: Tau2State, words: str) -> str:
    sees = {name: bool(pattern.search(words)) for name, pattern in _PATTERNS.items()}
    if sees["transfer"] and any(call.name == TRANSFER_TOOL for call in state.calls):
        state.ended, state.move = "transfer", "ends"
        return SAYS["transferred"]
    if ordered := _order(state.db, words):
        return _do(state, *ordered)
    if sees["ask"] and not sees["closing"]:
        if sees["confirm"]:
            return _consent(task, state, words)
        return _tell(task, state, words, sees["identity"])
    if sees["closing"]:
        return _close(task, state)
    return _useless(state, SAYS["all" if sees["done"] else "unclear"])


def _useless(state: Tau2State, words: str) -> str:
    state.patience += 1
    state.move = "complains"
    if state.patience < PATIENCE:
        return words
    state.ended, state.move = "left", "gives_up"
    return SAYS["left"]


def _tell(task: Mapping[str, Any], state: Tau2State, words: str, identity: bool) -> str:
    """Tell the sentence that the question is about, or else the next that was not said yet."""
    texts, _, who = sentences(task)
    if identity and who:
        about = who
    else:
        question = set(_WORD.findall(words.lower()))
        scores = [len(question & set(_WORD.findall(text.lower()))) for text in texts]
        new = [i for i in range(len(texts)) if i not in state.disclosed]
        best = max(range(len(texts)), key=lambda i: (scores[i], i in new, -i))
        if not new and not scores[best]:
            return _useless(state, SAYS["nothing_more"])
        one = best if scores[best] or not new else new[0]
        about = range(one, one + 1)
    state.move = "reveals"
    if set(about) <= set(state.disclosed):
        state.patience += 1  # asked again
        state.move = "repeats"
    if state.patience >= PATIENCE:
        return _useless(state, "")
    state.disclosed = tuple(sorted({*state.disclosed, *about}))
    return " ".join(texts[i] for i in about)


def _values(words: str) -> frozenset[str]:
    return frozenset(_VALUE.findall(words))


def _consent(task: Mapping[str, Any], state: Tau2State, words: str) -> str:
    """Answer a proposal: yes where each id and number in it was said by the user, or was in a message before.

    The user asks once about new values; it cannot know whether they are right.
    """
    texts, _, _ = sentences(task)
    statements = " ".join(texts[i] for i in state.disclosed)
    values = list(dict.fromkeys(_VALUE.findall(words)))
    if new := [value for value in values if value not in state.known_values | _values(statements)]:
        return SAYS["new"].format(values=", ".join(new[:_MOST_QUESTIONED]))
    if not values and not _content(words) & _content(statements):
        return _useless(state, SAYS["what"])
    state.agreed, state.move = (*state.agreed, words), "confirms"
    return SAYS["yes"]


def _content(words: str) -> set[str]:
    return {word for word in _WORD.findall(words.lower()) if len(word) > 3} - _COMMON


def _close(task: Mapping[str, Any], state: Tau2State) -> str:
    """Answer a claim that all is done: is it, as far as the user can see, and was everything said?"""
    texts, first, who = sentences(task)
    if not set(who) <= set(state.disclosed):
        return _useless(state, SAYS["unknown"])
    reason = " ".join(texts[i] for i in first)
    for check in _CHECKS:
        if kind_of(state.db.folder.domain, "user", check["tool"]) and check["about"].search(reason):
            output = _do(state, check["tool"], {})
            if not re.search(check["works"], output):
                text = _useless(state, f"{SAYS['broken']} {output}")
                state.move = state.move if state.ended else "corrects"
                return text
            break
    rest = range(who.stop, len(texts))
    if unsaid := [i for i in rest if i not in state.disclosed and _PATTERNS["wish"].search(texts[i])]:
        state.disclosed, state.move = tuple(sorted({*state.disclosed, *unsaid})), "reveals"
        return " ".join([SAYS["more"], *(texts[i] for i in unsaid)])
    for name, arguments in _own_plan(task, state.db.folder.domain):
        _do(state, name, arguments)
    state.ended, state.move = "stop", "ends"
    return SAYS["thanks"]


def _own_plan(task: Mapping[str, Any], domain: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the tools, of those that change something, that the instructions tell the user to use at the end."""
    instructions = task["user_scenario"]["instructions"]
    for sentence in _SENTENCE.split(
        instructions if isinstance(instructions, str) else instructions.get("task_instructions") or ""
    ):
        for name in _TOOLS:
            if name in sentence and kind_of(domain, "user", name) == "write":
                yield name, _arguments(name, sentence)


def _order(db: Database, words: str) -> tuple[str, dict[str, str]] | None:
    """Return the tool of the user that the assistant's words tell it to use, with its arguments."""
    for sentence in _SENTENCE.split(words):
        if _PATTERNS["report"].search(sentence) or not _PATTERNS["order"].search(sentence):
            continue
        matches = [
            (match.start(), -len(match[0]), name)
            for name, pattern in _TOOLS.items()
            if kind_of(db.folder.domain, "user", name) and (match := pattern.search(sentence))
        ]
        exact = [candidate for candidate in matches if candidate[2] in sentence]
        if matches:
            name = min(exact, key=lambda candidate: candidate[1])[2] if exact else min(matches)[2]
            return name, _arguments(name, sentence)
    return None


def _arguments(name: str, sentence: str) -> dict[str, str]:
    arguments = {}
    rest = sentence.replace(name, " ")
    for argument in _DATA["arguments"].get(name, ()):
        for value, pattern in _VALUES[argument].items():
            if match := re.search(pattern, rest, re.IGNORECASE):
                arguments[argument] = value or match[0]
                break
    return arguments


def _do(state: Tau2State, name: str, arguments: Mapping[str, str]) -> str:
    """Use a tool of the user's own; return its output."""
    try:
        return str(carry_out(state, Call("user", name, dict(arguments))))
    except (ToolError, TypeError) as error:
        state.tool_errors += 1
        return str(error) if isinstance(error, ToolError) else SAYS["which"]


def _first_person(sentence: str) -> str:
    for pattern, instead in _DATA["first_person"]:
        sentence = re.sub(pattern, instead, sentence)
    return sentence


def order_of(call: Call) -> str:
    """Return the words by which the scripted expert tells the user to make a call."""
    values = "".join(f", {name}: {value}" for name, value in call.arguments.items())
    return EXPERT["order"].format(tool=call.name, arguments=values)


def next_move(criteria: Criteria, state: Tau2State, messages: Sequence[str]) -> Call | str:
    """Return the scripted expert's next move: the task's own actions in order, asking for a yes before each change.

    Args:
        criteria: The task's.
        state: The episode's.
        messages: The expert's words so far, without calls.
    """
    domain = state.db.folder.domain
    if not messages and domain != "mock":
        return EXPERT["who"]
    made = list(state.calls)
    for call in criteria.calls:
        if call in made:
            made.remove(call)
            continue
        if call.side == "user":
            return order_of(call)
        question = EXPERT["confirm"].format(call=f"{call.name}({', '.join(map(str, call.arguments.values()))})")
        if not call.writes(domain) or domain == "mock" or any(question in words for words in state.agreed):
            return call
        return EXPERT["explain"].format(asked=question) if question in messages else question
    if any(call.name == TRANSFER_TOOL for call in criteria.calls):
        return EXPERT["transferred"]
    communicated = "".join(f" {info}." for info in criteria.communicate)
    return EXPERT["done"].format(told=communicated)
