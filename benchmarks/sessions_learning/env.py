"""A small form of ``textenv/sessions``: two people, three things, a notebook of two lines, and a few short words."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.sessions import by_todays_law
from textenvs.envs.sessions.env import Sessions, SessionsState
from textenvs.envs.sessions.expert import Line, fitting, read, updated, write
from textenvs.envs.sessions.facts import Key, Question, Statement
from textenvs.envs.sessions.life import Life, Session, life_of
from textenvs.envs.sessions.regret import expected_of
from textenvs.messages import Message, Messages, user
from textenvs.task import Task
from textenvs.turn import Turn

#: Of people and of things, for lines of the notebook: all lives have the same ones.
PEOPLE, THINGS = "ab", "xyz"
#: Lines of plain codes that fit in; each of both may have a secret.
CAPACITY = 25
#: The word of a statement that tells no new code, or a changed one.
_KINDS = {"change": "Now ", "retract": "Gone ", "forget": "Forget ", "cancel": "Off ", "nothing": "Nothing"}

#: Orders lines by how much they are preferred, for a notebook written at the end of a session.
Order = Callable[[Life, Session, list[Line], np.random.Generator], Iterable[Line]]
#: Scripted writers that keep lines in an order of their own, as far as they fit.
ORDERS: Mapping[str, Order] = {
    "none": lambda life, session, lines, rng: (),
    "any": lambda life, session, lines, rng: [lines[place] for place in rng.permutation(len(lines))],
    "until-full": lambda life, session, lines, rng: lines,
    "newest": lambda life, session, lines, rng: lines[::-1],
    "today": lambda life, session, lines, rng: by_todays_law(life, session, lines),
}
EXPERT = "expert"
WRITERS = (*ORDERS, EXPERT)


@dataclass(frozen=True, eq=False)
class ShortLife(Life):
    """A life whose people and things have names of one letter."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _pickled, (self.key, self.codes, self.silent)


def _pickled(key: str, codes: tuple[tuple[int, str], ...], silent: tuple[int, ...]) -> Life:
    return shortened(life_of(key, codes, silent))


@functools.lru_cache(64)
def shortened(life: Life) -> ShortLife:
    """Return a life with names of one letter in the place of its own; all else is the same."""
    names = {**dict(zip(life.people, PEOPLE, strict=True)), **dict(zip(life.things, THINGS, strict=True))}

    def key_of(key: Key) -> Key:
        person, about = key
        return names[person], names[about] if isinstance(about, str) else about

    def statement_of(one: Statement) -> Statement:
        return replace(one, key=key_of(one.key), hidden_from=one.hidden_from and names[one.hidden_from])

    def question_of(one: Question) -> Question:
        return replace(one, asker=names[one.asker], keys=tuple(map(key_of, one.keys)))

    sessions = tuple(
        replace(
            one,
            statements=tuple(map(statement_of, one.statements)),
            question=one.question and question_of(one.question),
        )
        for one in life.sessions
    )
    phases = tuple(
        replace(phase, percent={names[thing]: share for thing, share in phase.percent.items()}) for phase in life.phases
    )
    parts = {**vars(life), "people": tuple(PEOPLE), "things": tuple(THINGS), "phases": phases, "sessions": sessions}
    for cached in ("statements", "questions"):
        parts.pop(cached, None)
    return ShortLife(**parts)


@dataclass
class SmallState(SessionsState):
    """An episode: also the notebooks that were written."""

    notebooks: tuple[str, ...] = ()


class SmallSessions(Sessions):
    """Lives of a few days, told with a word or two a sentence; the notebook has two lines.

    At the end ``info["metrics"]`` also has what :func:`writing` returns.

    Args:
        writer: Who writes the notebook of the scripted policy that ``demonstration`` returns: one of :data:`WRITERS`.
            It answers as the expert does.
        seed: Which endless sequence of lives.
        sessions: How many there are.
        capacity: The most characters of the notebook.
        **options: ``correct``, ``leak`` and those of :class:`~textenvs.env.TextEnv`.
    """

    state_type = SmallState
    write_request = "Write:"

    def __init__(
        self, *, writer: str = EXPERT, seed: int = 0, sessions: int = 6, capacity: int = CAPACITY, **options: Any
    ) -> None:
        if writer not in WRITERS:
            raise ValueError(f"writer: {writer!r} is not one of {', '.join(WRITERS)}")
        super().__init__(
            seed=seed, sessions=sessions, people=len(PEOPLE), things=len(THINGS), capacity=capacity, **options
        )
        self.writer = writer

    def opening(self, task: Task) -> Sequence[Message]:
        """Return the first session, of a life with short names."""
        super().opening(task)
        self.state.life = shortened(self.life)
        return self.shown()

    def shown(self) -> Messages:
        """Return the law, the notebook, what is told, and the question."""
        return (user(text_of_session(self.life, self.session, self.state.notebook)),)

    @property
    def notebooks(self) -> tuple[str, ...]:
        """The notebooks of this episode."""
        assert isinstance(self.state, SmallState)
        return self.state.notebooks

    def _take_notebook(self, text: str) -> Turn:
        assert isinstance(self.state, SmallState)
        turn = super()._take_notebook(text)
        self.state.notebooks = (*self.state.notebooks, self.state.notebook)
        return turn

    def _take_answer(self, text: str) -> Turn:
        turn = super()._take_answer(text)
        if not turn.terminated:
            return turn
        return replace(turn, metrics={**turn.metrics, **writing(self.life, self.notebooks)})

    def demonstration(self, rng: np.random.Generator) -> str:
        """Answer from the plain lines of the notebook; write those that the writer prefers."""
        state = self.state
        if not state.writes or self.writer == EXPERT:
            return super().demonstration(rng)
        return written(self.writer, self.life, state.notebook, self.session, rng)


def written(writer: str, life: Life, notebook: str, session: Session, rng: np.random.Generator) -> str:
    """Return the notebook that a scripted writer writes at the end of a session, given the one that it had."""
    if writer == EXPERT:
        return write(life, notebook, session)
    lines = updated(read(life, notebook), session.statements, session.day)
    chosen = fitting(ORDERS[writer](life, session, lines, rng), life.scale.capacity)
    return "\n".join(line.text for line in lines if line in chosen)


def writing(life: Life, notebooks: Sequence[str]) -> dict[str, float]:
    """Return what the notebooks of a life are worth, whatever its answers were.

    Args:
        life: The life.
        notebooks: At the end of each session but the last.

    Returns:
        ``written``: the expected share of right answers of a policy that answers as the expert does from those of their
        lines that are right. Of the lines, the shares that are right (``right``), a right code of the thing that is
        asked for most on the next day (``most``) and least (``least``), a right one before a change (``before``), and
        a right promise (``promise``).
    """
    current: list[Line] = []
    good: list[str] = []
    counts = dict.fromkeys(("right", "most", "least", "before", "promise"), 0)
    total = 0
    for session, notebook in zip(life.sessions, notebooks, strict=False):
        current = updated(current, session.statements, session.day)
        lines = [line for line in read(life, notebook) if line in current]
        good.append("\n".join(line.text for line in lines))
        total += len(notebook.split("\n")) if notebook else 0
        percent = life.phase(session.day + 1).percent
        most, least = max(percent, key=percent.__getitem__), min(percent, key=percent.__getitem__)
        for line in lines:
            kind = "before" if line.was else {most: "most", least: "least"}.get(str(line.key[1]))
            for name in ("right", "promise" if isinstance(line.key[1], int) else kind):
                if name is not None:
                    counts[name] += 1
    return {"written": expected_of(life, good), **{name: count / max(1, total) for name, count in counts.items()}}


# ---------------------------------------------------------------------- texts


def text_of_session(life: Life, session: Session, notebook: str) -> str:
    """Return what the policy is shown when a session begins."""
    lines = [
        f"Days {phase.first} {phase.last}"
        + "".join(f" {share} {thing}" for thing, share in sorted(phase.percent.items(), key=lambda one: -one[1]))
        for phase in life.phases
        if phase.last >= session.day
    ]
    lines += [f"Day {session.day}", "Notes", *([notebook] if notebook else []), "Today"]
    lines += map(text_of_statement, session.statements)
    lines.append(SmallSessions.write_request if session.question is None else text_of_question(session.question))
    return "\n".join(lines)


def text_of_statement(one: Statement) -> str:
    """Return a statement as a line of a notebook, or as a word and what it is about."""
    told = Line(one.key, one.value, one.hidden_from).text if one.value else name_of(one.key)
    return _KINDS.get(one.kind, "") + ("" if one.kind == "nothing" else told)


def text_of_question(question: Question) -> str:
    """Return the program, who asks, and about what."""
    return " ".join([question.program.capitalize(), question.asker, *map(name_of, question.keys)])


def name_of(key: Key) -> str:
    """Return how a line of the notebook begins that has a code of a key."""
    return Line(key, "").text.rstrip()
