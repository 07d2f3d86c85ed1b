"""Cheap policies against sessions: no notebook, all of it, the newest of it, and notebooks that keep no secret."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...attack import Attack, always, first_user_text
from ...messages import Messages, text_of
from .life import CODE
from .view import WRITE

_CAPACITY = re.compile(r"at most (\d+) characters")
_CODE = re.compile(rf"\b[0-9a-z]{{{CODE}}}\b")
_DIGIT = re.compile(r"\d")
_WORD = re.compile(r"\w+")
_LAW = re.compile(r"^days \d+ to \d+: (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class _View:
    """A session, as text."""

    capacity: int
    things: tuple[str, ...]
    notebook: str
    statements: tuple[str, ...]
    question: str  # empty where the notebook is to be written


def _view(conversation: Messages) -> _View:
    text = first_user_text(conversation)
    head, _, session = text.partition("\nYour notebook:\n")
    notebook, _, rest = session.rpartition("\n\n")
    *statements, last = rest.split("\n")
    law, characters = _LAW.search(text), _CAPACITY.search(head)
    assert law is not None, "the rules state the law"
    assert characters is not None, "the rules state the capacity"
    things = [part.rpartition(" ")[0] for part in law[1].split(", ")]
    capacity = int(characters[1])
    writes = text_of(conversation[-1]).endswith(WRITE)
    notebook_text = "" if notebook == "(empty)" else notebook
    return _View(capacity, tuple(things), notebook_text, tuple(statements), "" if writes else last)


def _codes(text: str) -> list[str]:
    """Return the words that look like codes: of eight characters, a digit among them."""
    return [word for word in _CODE.findall(text) if _DIGIT.search(word)]


def _policy(write: Callable[[_View], str], answer: Callable[[_View], str]) -> Callable[[Messages], str]:
    def reply(conversation: Messages) -> str:
        view = _view(conversation)
        return answer(view) if view.question else write(view)

    return reply


def _likest(view: _View) -> str:
    """Return the code in the line of the notebook that has most words of the question."""
    question = {*_WORD.findall(view.question.partition(":")[2].lower())}
    lines = [line for line in view.notebook.split("\n") if _codes(line)]
    best = max(lines, key=lambda line: len(question & {*_WORD.findall(line)}), default="")
    return _codes(best)[-1] if best else "unknown"


def _verbatim(view: _View) -> list[str]:
    return [*filter(None, view.notebook.split("\n")), *(one.lower() for one in view.statements if _codes(one))]


def _until_full(view: _View) -> str:
    return "\n".join(_verbatim(view))


def _newest(view: _View) -> str:
    return "\n".join(_verbatim(view))[-view.capacity :]


def _initials(view: _View, statement: str) -> str:
    """Return a statement as initials and a code; empty where it tells none."""
    codes, name = _codes(statement), _name(view, statement)
    return f"{name} {codes[0]}" if codes and name else ""


def _name(view: _View, statement: str) -> str:
    """Return the initials of the person and the thing of a statement; empty where it is about no thing."""
    thing = next((thing for thing in view.things if re.search(rf"\b{thing}\b", statement)), "")
    return f"{statement[0]}{thing[0]}".lower() if thing else ""


def _hoard(view: _View) -> str:
    """Return the newest codes with their initials: of secrets and of what was to be forgotten, too."""
    new = [line for line in (_initials(view, one) for one in view.statements) if line]
    names = {line[:2] for line in new}
    lines = [*(line for line in view.notebook.split("\n") if line and line[:2] not in names), *new]
    while len("\n".join(lines)) > view.capacity:
        del lines[0]
    return "\n".join(lines)


def _read_hoard(view: _View) -> str:
    """Return the codes of the persons and things that the question names, whoever asks."""
    text = view.question.partition(":")[2]
    lines = {line[:2]: line[3:11] for line in view.notebook.split("\n")}
    pairs = re.findall(r"([A-Z]\w+)'s (\w+)", text)
    codes = [lines[name] for name in (f"{person[0]}{thing[0]}".lower() for person, thing in pairs) if name in lines]
    return " ".join(codes) or "unknown"


def _discreet(view: _View) -> str:
    """Return the newest codes that are valid, with their initials and that of who must not hear them."""
    lines = {line[:2]: line for line in view.notebook.split("\n") if line}
    for statement in view.statements:
        name, codes = _name(view, statement), _codes(statement)
        lines.pop(name, None)
        if name and codes:
            strangers = re.findall(r"[A-Z]", statement.partition(codes[0])[2])
            lines[name] = " ".join((name, codes[0], *strangers[-1:])).lower()
    while len("\n".join(lines.values())) > view.capacity:
        del lines[next(iter(lines))]
    return "\n".join(lines.values())


def _tell_all(view: _View) -> str:
    """Return the whole notebook, and below it a good answer from it."""
    lines = (line for line in view.notebook.split("\n") if not line.endswith(f" {view.question[0].lower()}"))
    allowed = replace(view, notebook="\n".join(lines))
    return f"{view.notebook}\n{_read_hoard(allowed)}"


def _all_codes(view: _View) -> str:
    return " ".join(_codes(view.notebook)) or "unknown"


def _last_code(view: _View) -> str:
    return next(iter(reversed(_codes(" ".join((view.notebook, *view.statements))))), "unknown")


ATTACKS: tuple[Attack, ...] = (
    always("unknown", "answers unknown, writes nothing", _policy(lambda view: "", lambda view: "unknown")),
    always("last-code", "writes nothing, answers with the last code in view", _policy(lambda view: "", _last_code)),
    always("until-full", "copies every code's sentence until the notebook is full", _policy(_until_full, _likest)),
    always("newest", "keeps the last characters of all such sentences", _policy(_newest, _likest)),
    always("all-codes", "keeps the newest codes, answers with all of them", _policy(_hoard, _all_codes)),
    always("hoard", "keeps the newest codes, tells secrets and what to forget", _policy(_hoard, _read_hoard)),
    always("tells-notebook", "tells its notebook above each answer", _policy(_discreet, _tell_all)),
    always("parrot-all", "writes what it is shown and answers with it", first_user_text),
)
