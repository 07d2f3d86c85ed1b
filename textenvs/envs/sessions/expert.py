"""The expert: plain lines for the codes that the law makes worth most, and answers from these lines alone."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from .facts import UNKNOWN, Key, Statement
from .law import DUE, INTRUDES, PROGRAMS
from .life import CODE, Life, Session

#: The worth of a later day beside that of one day before, if the code holds until then: the room may be needed before.
_HORIZON = 0.95

_LINE = re.compile(rf"([a-z])(?:([a-z])( was )?|(\d{{1,4}}) )([0-9a-z]{{{CODE}}})(?: ([a-z]))?")


@dataclass(frozen=True)
class Line:
    """A line of a plain notebook: a code and what it is the code of.

    ``mlk3f9xq2b`` is the code of M.'s l., ``ml was k3f9xq2b`` the one before, ``mlk3f9xq2b o`` one that O. must not
    learn, and ``m12 k3f9xq2b`` what M. promised for day 12.

    Args:
        key: As in a statement.
        code: The code.
        hidden_from: The person who must not learn it.
        was: Whether it is the code before the last change.
    """

    key: Key
    code: str
    hidden_from: str | None = None
    was: bool = False

    @property
    def text(self) -> str:
        """The line as it stands in the notebook."""
        person, about = self.key
        name = f"{person[0]}{about[0]}" if isinstance(about, str) else f"{person[0]}{about} "
        stranger = f" {self.hidden_from[0]}" if self.hidden_from else ""
        return f"{name}{' was ' if self.was else ''}{self.code}{stranger}".lower()


def read(life: Life, notebook: str) -> list[Line]:
    """Return the plain lines of a notebook; other lines are left out."""
    people = {person[0].lower(): person for person in life.people}
    things = {thing[0].lower(): thing for thing in life.things}
    lines = []
    for text in notebook.split("\n"):
        if (match := _LINE.fullmatch(text)) is None:
            continue
        person, letter, was, day, code, hidden = match.groups()
        about = int(day) if day else things.get(letter or "")
        if person in people and about is not None and (hidden is None or hidden in people):
            lines.append(Line((people[person], about), code, people[hidden] if hidden else None, was is not None))
    return lines


def updated(lines: Sequence[Line], statements: Iterable[Statement], day: int) -> list[Line]:
    """Return the lines that are right after what was said on a day, in the order in which their codes were told."""
    current = {(line.key, line.was): line for line in lines if isinstance(line.key[1], str) or line.key[1] > day}
    for statement in statements:
        if statement.kind == "nothing":
            continue
        key = statement.key
        old = current.pop((key, False), None)
        current.pop((key, True), None)
        if statement.kind == "change" and old is not None:
            current[key, True] = replace(old, was=True)
        if statement.value:
            current[key, False] = Line(key, statement.value, statement.hidden_from)
    return list(current.values())


def write(life: Life, notebook: str, session: Session) -> str:
    """Return the notebook that the expert writes at the end of a session, given the one that it had."""
    lines = updated(read(life, notebook), session.statements, session.day)
    best = sorted(lines, key=lambda line: -worth_of(life, line, session.day) / (len(line.text) + 1))
    chosen = fitting(best, life.scale.capacity)
    return "\n".join(line.text for line in lines if line in chosen)


def fitting(lines: Iterable[Line], capacity: int) -> list[Line]:
    """Return those lines that fit into a notebook, the first ones first."""
    chosen, room = [], capacity + 1  # a line break after each line but the last
    for line in lines:
        if len(line.text) < room:
            chosen.append(line)
            room -= len(line.text) + 1
    return chosen


def careless_notebook(life: Life, notebook: str, session: Session) -> str:
    """Return a notebook that keeps what it had and adds what fits, whatever will be asked."""
    lines = updated(read(life, notebook), session.statements, session.day)
    return "\n".join(line.text for line in fitting(lines, life.scale.capacity))


def answer(life: Life, notebook: str, session: Session) -> str:
    """Return the answer that the expert reads in its notebook; ``"unknown"`` where the code is not in it."""
    question = session.question
    assert question is not None, "a session without a question has no answer"
    lines = {(line.key, line.was): line for line in read(life, notebook)}
    matches = [lines.get((key, question.program == "before")) for key in question.keys]
    allowed = [line for line in matches if line is not None and line.hidden_from != question.asker]
    if len(allowed) < len(matches):
        return UNKNOWN
    if question.program == "newest":
        allowed.sort(key=list(lines.values()).index, reverse=True)
    return " ".join(line.code for line in allowed)


def worth_of(life: Life, line: Line, day: int) -> float:
    """Return the worth of a line at the end of a day: by the law, the expected right answers of the days to come."""
    return _worths(life).of(line, day)


class _Worths:
    """The worth of lines by the law: the expected right answers of the days to come."""

    def __init__(self, life: Life) -> None:
        later = _HORIZON * (1.0 - life.turnover)
        #: By day, and by thing: the worth of one person's code at the end of that day.
        self.after = [dict.fromkeys(life.things, 0.0)]
        for day in range(life.scale.sessions, 0, -1):
            percent, last = life.phase(day).percent, self.after[-1]
            self.after.append(
                {thing: percent[thing] / 100.0 / life.scale.people + later * last[thing] for thing in life.things}
            )
        self.after.reverse()

    def of(self, line: Line, day: int) -> float:
        """Return the worth of a line at the end of a day."""
        about = line.key[1]
        if isinstance(about, int):
            return DUE
        share = PROGRAMS["before"] if line.was else 1.0
        return share * self.after[day][about] * (1.0 if line.hidden_from is None else 1.0 - INTRUDES)


@functools.lru_cache(64)
def _worths(life: Life) -> _Worths:
    return _Worths(life)


@dataclass(frozen=True)
class Plan:
    """The expert's life.

    Args:
        notebooks: At the end of each session but the last.
        right: Of each question, whether its answer is right.
    """

    notebooks: tuple[str, ...]
    right: tuple[bool, ...]


@functools.lru_cache(64)
def plan_of(life: Life) -> Plan:
    """Return what the expert writes in a life, and which questions it answers right."""
    notebook, notebooks, right = "", [], []
    for session in life.sessions:
        if session.question is not None:
            right.append(answer(life, notebook, session) == session.answer)
        notebook = write(life, notebook, session)
        notebooks.append(notebook)
    return Plan(tuple(notebooks[:-1]), tuple(right))
