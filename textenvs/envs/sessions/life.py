"""A life: people, what they say in each session, what is asked then, and the law of that. Drawn from a key."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

from ...task import SPLITS, Split, split_choices
from ...text import load_yaml
from .facts import FactStore, Key, Kind, Question, Statement, answer_of
from .law import Phase, draw_question

#: Characters of codes, and of notebooks beside a space and a line break.
ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
#: Characters of a code. Any other is as likely as the right one: 36**8 codes, 41 bits.
CODE = 8
_CODE = re.compile(rf"[{ALPHABET}]{{{CODE}}}")
#: How often somebody may not hear a code; and a thing has one at the first session.
_SECRET, _FIRST = 0.15, 0.6
_Drawn = Literal["code", "promise", "forget", "retract", "cancel"]
#: How often each kind of statement is made, where it can be.
_KINDS: Mapping[_Drawn, float] = {"code": 0.66, "promise": 0.16, "forget": 0.08, "retract": 0.05, "cancel": 0.05}
#: A promise is for a day of the next so many, from the second on.
_AHEAD = 8
#: The share of a thing among the questions is that of the one before times this, in the order of its phase.
_DECAY = 0.45
#: The most sessions and the most characters of a notebook. Drawing a life takes time by the square of its sessions.
_MOST_SESSIONS, _MOST_CAPACITY = 1_000, 20_000
#: Lives that a process keeps.
_CACHED = 64


@dataclass(frozen=True)
class Scale:
    """The size of a life.

    Args:
        sessions: How many there are, from 2 to 1,000; one a day.
        people: How many.
        things: Kinds of things, of which everybody has one each.
        capacity: The most characters of the notebook, from 1 to 20,000.
        statements: How many there are in a session after the first.
        phase: Days after which the law changes.
    """

    sessions: int
    people: int
    things: int
    capacity: int
    statements: int
    phase: int


SCALES: Mapping[str, Scale] = {
    "easy": Scale(20, 4, 4, 77, 3, 7),
    "medium": Scale(50, 6, 6, 121, 4, 10),
    "hard": Scale(100, 8, 8, 165, 5, 12),
}
#: The options that replace a part of a level's scale.
OWN_SCALE = ("sessions", "people", "things", "capacity")


@dataclass(frozen=True)
class Session:
    """One session.

    Args:
        day: From 1.
        statements: What is said.
        question: What is asked then; ``None`` where nothing is.
        needs: The numbers of the statements whose codes are the answer; empty: it is ``"unknown"``.
        answer: The right one.
        secrets: Codes that were ever kept from the one who asks, whatever the question is about.
        forgotten: Codes that nobody may be told, and that must not be in the notebook when the session ends.
    """

    day: int
    statements: tuple[Statement, ...]
    question: Question | None
    needs: tuple[int, ...]
    answer: str
    secrets: frozenset[str]
    forgotten: frozenset[str]

    @property
    def protected(self) -> frozenset[str]:
        """The codes that the one who asks must not be told. The right answer has none of them."""
        return self.secrets | self.forgotten


@dataclass(frozen=True, eq=False)
class Life:
    """Sessions with the same people.

    Args:
        key: It was drawn from.
        scale: Its size.
        split: Whose words it uses.
        people: Names, with different first letters.
        things: Names, with different first letters.
        phases: The law.
        sessions: In order. All but the first ask something.
        codes: Of statements whose codes are not those that were drawn: number and code.
        silent: Numbers of statements that are not made: who made them says that there is nothing to say.
    """

    key: str
    scale: Scale
    split: Split
    people: tuple[str, ...]
    things: tuple[str, ...]
    phases: tuple[Phase, ...]
    sessions: tuple[Session, ...]
    codes: tuple[tuple[int, str], ...] = ()
    silent: tuple[int, ...] = ()

    @functools.cached_property
    def statements(self) -> dict[int, Statement]:
        """All statements, by number."""
        return {one.number: one for session in self.sessions for one in session.statements}

    @functools.cached_property
    def questions(self) -> int:
        """The number of questions."""
        return sum(session.question is not None for session in self.sessions)

    @property
    def answers(self) -> tuple[str, ...]:
        """The right answers, in order."""
        return tuple(session.answer for session in self.sessions if session.question is not None)

    @property
    def turnover(self) -> float:
        """About the share of codes that a day replaces or takes back: a thing's first code counts as if it did."""
        rate = sum(_KINDS[kind] for kind in ("code", "forget", "retract"))
        return min(0.5, self.scale.statements * rate / (self.scale.people * self.scale.things))

    def phase(self, day: int) -> Phase:
        """Return the phase that a day is in."""
        return self.phases[min((day - 1) // self.scale.phase, len(self.phases) - 1)]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the key in the place of the life."""
        return life_of, (self.key, self.codes, self.silent)


def _session(store: FactStore, day: int, statements: tuple[Statement, ...], question: Question | None) -> Session:
    """Return a session with the answer that is right by the facts, which know its statements already."""
    needs = () if question is None else store.needs(question)
    secrets = frozenset[str]() if question is None else store.secrets.get(question.asker, frozenset())
    numbers = tuple(one.number for one in needs)
    return Session(day, statements, question, numbers, answer_of(needs), secrets, store.forgotten)


@functools.cache
def words(split: Split) -> dict[str, tuple[str, ...]]:
    """Return the words of a split: names of people and things, and the wordings of statements and questions."""
    lists: dict[str, list[str]] = load_yaml(__package__, "words.yaml")
    return {name: split_choices(choices, split) for name, choices in lists.items()}


def key_of(level: str, split: str, seed: int, own: Mapping[str, int], index: int) -> str:
    """Return the key of a life; ``own`` replaces parts of the level's scale."""
    parts = ["+".join(f"{name}={own[name]}" for name in OWN_SCALE if name in own)] if own else []
    return "/".join(map(str, (level, split, seed, *parts, index)))


def scale_of(level: str, own: Mapping[str, int]) -> Scale:
    """Return the scale of a level with parts of its own.

    Raises:
        ValueError: A part is outside its range. Of people and things there are as many as have names.
    """
    scale = replace(SCALES[level], **own)
    ranges = {"sessions": (2, _MOST_SESSIONS), "capacity": (1, _MOST_CAPACITY)}
    for name in ("people", "things"):
        most = min(len({word[0].lower() for word in words(split)[name]}) for split in SPLITS)  # type: ignore[arg-type]
        ranges[name] = (1, most)
    for name, (least, most) in ranges.items():
        if not least <= (size := getattr(scale, name)) <= most:
            raise ValueError(f"{name} must be from {least:,} to {most:,}, not {size:,}")
    return scale


def life_of(key: str, codes: tuple[tuple[int, str], ...] = (), silent: tuple[int, ...] = ()) -> Life:
    """Return the life of a key: level, split, seed, perhaps parts of the scale, number.

    With codes or silent statements (see :class:`Life`) it has the same questions, and the answers that are then right.

    Raises:
        ValueError: It is no such key; a number is of no statement that tells a code, or stands twice; a code is not 8
            of :data:`ALPHABET`, or another statement of the life has it.
    """
    return _changed_life_of(key, codes, silent) if codes or silent else _life_of(key)


@functools.lru_cache(_CACHED)
def _life_of(key: str) -> Life:
    level, split, seed, *own, index = parts = key.split("/") if key.count("/") in (3, 4) else [key] * 4
    if level not in SCALES or split not in SPLITS or not index.isdecimal():
        raise ValueError(f"{key!r} is no key of a life")
    own_scale: dict[str, int] = {}
    for part in own[0].split("+") if own else ():
        name, _, value = part.partition("=")
        if name not in OWN_SCALE or not value.isdecimal() or len(value) > 6:
            raise ValueError(f"{key!r} is no key of a life")
        own_scale[name] = int(value)
    scale = scale_of(level, own_scale)
    if key != key_of(level, split, seed, own_scale, int(index)):  # type: ignore[arg-type]
        raise ValueError(f"{'/'.join(parts)!r} is no key of a life")
    return _draw(key, scale, split, Random(f"sessions/{key}"))  # type: ignore[arg-type]


def _draw(key: str, scale: Scale, split: Split, rng: Random) -> Life:
    chosen = words(split)
    people, things = (
        _different(chosen[name], size, rng) for name, size in (("people", scale.people), ("things", scale.things))
    )
    phases = _phases(things, scale, rng)
    life = Life(key, scale, split, people, things, phases, ())
    store, sessions = FactStore(), list[Session]()
    number = 0
    for day in range(1, scale.sessions + 1):
        statements = _statements(life, store, day, number, rng)
        number += len(statements)
        for statement in statements:
            store.add(statement)
        stated = [one.key for one in statements]
        question = draw_question(store, life.phase(day), day, stated, people, len(chosen["value"]), rng)
        sessions.append(_session(store, day, statements, question))
    return replace(life, sessions=tuple(sessions))


@functools.lru_cache(_CACHED)
def _changed_life_of(key: str, codes: tuple[tuple[int, str], ...], silent: tuple[int, ...]) -> Life:
    life = _life_of(key)
    other = dict(codes)
    _check_changes(life, codes, silent)
    store, sessions = FactStore(), list[Session]()
    for session in life.sessions:
        own = tuple(
            replace(one, kind="nothing", value="", hidden_from=None)
            if one.number in silent
            else replace(one, value=other.get(one.number, one.value))
            for one in session.statements
        )
        for statement in own:
            store.add(statement)
        sessions.append(_session(store, session.day, own, session.question))
    return replace(life, sessions=tuple(sessions), codes=codes, silent=silent)


def _check_changes(life: Life, codes: tuple[tuple[int, str], ...], silent: tuple[int, ...]) -> None:
    """Raise ``ValueError`` where codes or silent statements are not those of :func:`life_of`."""
    numbers = Counter([*(number for number, _ in codes), *silent])
    values = {number: one.value for number, one in life.statements.items() if one.value}
    for number, times in numbers.items():
        if number not in values:
            raise ValueError(f"the life {life.key} has no statement {number!r} that tells a code")
        if times > 1:
            raise ValueError(f"statement {number} is changed twice: give it once, either in codes or in silent")
    counts = Counter({**values, **dict(codes)}.values())
    for number, code in codes:
        if not _CODE.fullmatch(code):
            raise ValueError(f"the code {code!r} of statement {number} must be {CODE} digits or small letters")
        if counts[code] > 1:
            raise ValueError(f"another statement has the code {code!r} of statement {number}: all must differ")


def _different(names: tuple[str, ...], count: int, rng: Random) -> tuple[str, ...]:
    """Return names with different first letters."""
    chosen: dict[str, str] = {}
    for name in rng.sample(names, len(names)):
        chosen.setdefault(name[0].lower(), name)
    return tuple(list(chosen.values())[:count])


def _phases(things: tuple[str, ...], scale: Scale, rng: Random) -> tuple[Phase, ...]:
    """Draw the law: in each phase the same shares, of things in another order."""
    raw = [_DECAY**place for place in range(len(things))]
    percent = [max(1, round(100 * share / sum(raw))) for share in raw]
    percent[0] += 100 - sum(percent)
    phases = []
    for first in range(1, scale.sessions + 1, scale.phase):
        last = min(first + scale.phase - 1, scale.sessions)
        phases.append(Phase(first, last, dict(zip(rng.sample(things, len(things)), percent, strict=True))))
    return tuple(phases)


def _statements(life: Life, store: FactStore, day: int, number: int, rng: Random) -> tuple[Statement, ...]:
    """Draw what is said on a day; no two statements are about the same key."""
    plan: dict[Key, Kind] = {}
    if day == 1:
        keys = [(person, thing) for person in life.people for thing in life.things]
        plan = dict.fromkeys(rng.sample(keys, max(1, round(_FIRST * len(keys)))), "tell")
    for _ in range(life.scale.statements if day > 1 else 0):
        key, kind = _drawn(life, store, day, rng)
        rest = (one for one in store.history if isinstance(one[1], str) and one != key and one not in plan)
        if kind is not None and any(rest):  # something is left to ask about
            plan.setdefault(key, kind)
    chosen, statements = words(life.split), list[Statement]()
    for key, kind in plan.items():
        tells = kind in ("tell", "change", "promise")
        code = "".join(rng.choices(ALPHABET, k=CODE)) if tells else ""
        hidden = None
        if kind in ("tell", "change") and len(life.people) > 1 and rng.random() < _SECRET:
            hidden = rng.choice([person for person in life.people if person != key[0]])
        statements.append(
            Statement(number + len(statements), kind, key, code, hidden, rng.randrange(len(chosen[kind])))
        )
    return tuple(statements)


def _drawn(life: Life, store: FactStore, day: int, rng: Random) -> tuple[Key, Kind | None]:
    """Draw what a statement is about, and its kind; ``None`` where that cannot be said of it."""
    kind = rng.choices(list(_KINDS), list(_KINDS.values()))[0]
    person, due = rng.choice(life.people), day + rng.randint(2, _AHEAD)
    if kind == "promise":
        key: Key = (person, due)
        return key, "promise" if due <= life.scale.sessions and key not in store.history else None
    key = (person, rng.choice(life.things))
    if kind == "code":
        return key, "tell" if store.version(key) is None else "change"
    if kind == "cancel":
        keys = [key for key in store.chains if isinstance(key[1], int) and key[1] > day]
    else:
        keys = [key for key in store.chains if isinstance(key[1], str)]
    return (rng.choice(keys), kind) if keys else (key, None)
