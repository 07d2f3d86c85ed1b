"""Generated requests, some of which leave out what is needed to meet them: seeded, endless, short.

A request is of a kind (a sum, a purchase, a booking, ...) with a few *slots*: numbers, days, colours. What it does not
say of them only the user knows. A slot's values are drawn evenly and independently of all that the request says, from
at least ``MIN_VALUES``: so a guess is right once in as many times at most, whatever is read out of the rest. The kinds
are data, in ``requests.yaml``.

Requests are a function of (options, split, seed, index) alone. Training and test requests are disjoint by construction:
what a request says (its kind and its visible values, without names and things) decides its split, and so its wording:
of each kind's wordings some are for test requests alone, and these use no others. The hidden value has no part in
either, or it could be guessed from the split.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...messages import user
from ...task import Endless, Split, Task, TaskError, split_choices
from ...text import load_yaml, quoted
from ...tools.calculator import as_text, evaluate
from ...users.guard import values_in

Level = Literal["easy", "medium"]
Value = int | str

#: Every slot has at least this many values.
MIN_VALUES = 7
# One request in this many is held out for the test split.
_HELD_OUT = 8
# How many slots a request with a gap may leave out, at most.
_MOST_MISSING: dict[str, int] = {"easy": 1, "medium": 2}


@dataclass(frozen=True)
class Slot:
    """Something a request may say or leave out; what the texts are for is said in ``requests.yaml``."""

    name: str
    values: tuple[Value, ...]
    ask: str
    tell: str
    about: str
    says: str = "{}"
    blank: str = ""


@dataclass(frozen=True)
class Kind:
    """A kind of request: an entry of ``requests.yaml``, with slots that have the shared ones' fields and its own."""

    name: str
    requests: tuple[str, ...]
    slots: tuple[Slot, ...]
    things: tuple[str, ...] = ("",)
    work: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    result: str = r"(?!)"

    @property
    def form(self) -> str:
        """The parts of an answer, for the request's last sentence."""
        return " ".join(self.order) if self.order else "and the number"


_DATA: dict[str, Any] = load_yaml(__package__, "requests.yaml")


def _slot(name: str, own: Mapping[str, Any] | None) -> Slot:
    fields = {**_DATA["slots"].get(name, {}), **(own or {})}
    words, span = fields.pop("words", None), fields.pop("range", None)
    if span is None:
        return Slot(name, tuple(_DATA["words"][words]), **fields)
    first, last, *step = span
    return Slot(name, tuple(range(first, last + 1, *step)), **fields)


def _kind(name: str, entry: Mapping[str, Any]) -> Kind:
    things = entry.get("things", [""])
    lists = {
        **{field: entry.get(field, ()) for field in ("requests", "work", "order")},
        "slots": [_slot(*slot) for slot in entry["slots"].items()],
        "things": _DATA["words"][things] if isinstance(things, str) else things,
    }
    return Kind(name, **{**entry, **{field: tuple(listed) for field, listed in lists.items()}})


#: The kinds of each level, by name.
KINDS: Mapping[str, Mapping[str, Kind]] = {
    level: {name: _kind(name, entry) for name, entry in kinds.items()} for level, kinds in _DATA["kinds"].items()
}
LEVELS: tuple[str, ...] = tuple(KINDS)
_BY_NAME = {name: kind for kinds in KINDS.values() for name, kind in kinds.items()}


@dataclass(frozen=True)
class Request:
    """One request: all that the user knows."""

    kind: Kind
    name: str  # whom it is about
    thing: str  # empty for kinds without things
    values: Mapping[str, Value]  # of every slot, by name
    missing: tuple[str, ...]  # the slots that it leaves out, in the order of the kind's

    @property
    def text(self) -> str:
        fields = {
            slot.name: slot.blank if slot.name in self.missing else slot.says.format(self.values[slot.name])
            for slot in self.kind.slots
        }
        wording = self._wording().format(name=self.name, thing=self.thing, **fields)
        return f"{wording} Answer with #### {self.kind.form}."

    def _wording(self) -> str:
        """Return one of its split's wordings, chosen by all that is visible: what is hidden has no part in it."""
        wordings = split_choices(self.kind.requests, _split_of(self))
        visible = [str(self.values[slot.name]) for slot in self.kind.slots if slot.name not in self.missing]
        digest = zlib.crc32("/".join((self.name, self.thing, *self.missing, *visible)).encode())
        return wordings[digest % len(wordings)]

    @property
    def equations(self) -> tuple[str, ...]:
        """Calculations of the worked answer, of which the last gives the result; none for bookings and orders."""
        results: list[str] = []
        equations = []
        for expression in self.kind.work:
            written = expression.format(*results, **self.values)
            results.append(as_text(evaluate(written)))
            equations.append(f"{written}={results[-1]}")
        return tuple(equations)

    @property
    def answer(self) -> tuple[str, ...]:
        if self.kind.order:
            return tuple(str(self.values[name]) for name in self.kind.order)
        return (self.equations[-1].rpartition("=")[2],)

    def question(self, slot: Slot) -> str:
        return slot.ask.format(name=self.name, thing=self.thing)

    def telling(self, slot: Slot) -> str:
        return slot.tell.format(name=self.name, thing=self.thing, value=self.values[slot.name])

    @property
    def goal(self) -> str:
        """The instruction for a model that plays the user."""
        slots = [slot for slot in self.kind.slots if slot.name in self.missing]
        hidden = [_DATA["goal"]["hidden"].format(ask=self.question(slot), tell=self.telling(slot)) for slot in slots]
        return "\n".join([_DATA["goal"]["request"].format(self.text), *(hidden or [_DATA["goal"]["clear"]])])

    def tells(self, name: str, text: str, context: str) -> bool:
        """Return whether ``text`` gives a slot's value away that ``context`` (all said before) does not have."""
        value = str(self.values[name])
        if value.isdigit():
            return value in values_in(text) - values_in(context)
        whole = re.compile(rf"\b{re.escape(value)}\b", re.IGNORECASE)
        return whole.search(text) is not None and whole.search(context) is None

    def to_task(self, key: str, data_source: str) -> Task:
        """Return the request as a task; :meth:`from_task` reads it back."""
        return Task(
            key=key,
            data_source=data_source,
            prompt=(user(self.text),),
            ground_truth=" ".join(self.answer),
            ability="clarify",
            extra={
                "kind": self.kind.name,
                "name": self.name,
                "thing": self.thing,
                "values": dict(self.values),
                "missing": list(self.missing),
            },
        )

    @classmethod
    def from_task(cls, task: Task) -> Request:
        """Return a task's request; raise :class:`TaskError` if it is none, or its ground truth is not the answer."""
        where, extra = f"task {task.key}: extra_info", task.extra
        kind = _BY_NAME.get(str(extra.get("kind")))
        if kind is None:
            raise TaskError(f"{where}.kind is {extra.get('kind')!r}; it must be one of {', '.join(_BY_NAME)}")
        values, missing = extra.get("values"), extra.get("missing")
        names = [slot.name for slot in kind.slots]
        if not isinstance(values, Mapping) or set(values) != set(names):
            raise TaskError(f"{where}.values must give {', '.join(names)} of a {kind.name!r} request, not {values!r}")
        for slot in kind.slots:
            if type(values[slot.name]) is not type(slot.values[0]):
                expected = type(slot.values[0]).__name__
                raise TaskError(f"{where}.values.{slot.name} must be of type {expected}, not {values[slot.name]!r}")
        if isinstance(missing, (str, Mapping)) or not isinstance(missing, Sequence) or not set(missing) <= set(names):
            raise TaskError(f"{where}.missing must be a list out of {', '.join(names)}, not {missing!r}")
        left_out = tuple(name for name in names if name in missing)
        request = cls(kind, str(extra.get("name", "")), str(extra.get("thing", "")), dict(values), left_out)
        if task.ground_truth != " ".join(request.answer):
            computed, expected = quoted(" ".join(request.answer)), quoted(task.ground_truth)
            raise TaskError(f"{where}.values lead to {computed}, but the ground truth is {expected}")
        return request


def _split_of(request: Request) -> Split:
    # A weighted sum of what is visible, and not a hash: so some requests of every kind are held out whatever they leave
    # out, be it all but one slot of seven values. Odd weights, each another, so that the sum gives no answer away.
    place = 0
    for i, slot in enumerate(request.kind.slots):
        value = request.values[slot.name]
        if slot.name not in request.missing and value in slot.values:  # a row by hand may have others
            place += (2 * i + 1) * slot.values.index(value)
    return "test" if place % _HELD_OUT == 3 else "train"


@dataclass(frozen=True)
class GeneratedRequests(Endless):
    """An endless :class:`~textenvs.task.TaskSet` of requests.

    Args:
        level: ``"easy"`` (arithmetic with numbers up to 20, bookings and orders of two or three parts; at most one part
            missing; up to 25 words) or ``"medium"`` (two steps, three or four parts, one or two missing).
        ambiguous: The share of requests that leave something out, from 0 to 1.
        kinds: Only these kinds of the level (see ``requests.yaml``); ``None`` for all.
        seed: Another seed is another sequence of requests.
        split: ``"train"`` or ``"test"``; the two never share a request, whatever their seeds.
    """

    level: Level = "easy"
    ambiguous: float = 0.5
    kinds: Sequence[str] | None = None
    seed: int = 0
    split: Split = "train"

    levels = LEVELS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kinds is not None:
            kinds = KINDS[self.level]
            if isinstance(self.kinds, str) or not self.kinds or not set(self.kinds) <= set(kinds):
                raise ValueError(f"kinds must be a list out of {', '.join(kinds)}, or None, not {self.kinds!r}")
            object.__setattr__(self, "kinds", tuple(self.kinds))

    @property
    def name(self) -> str:
        return f"generated {self.level} requests, {self.ambiguous:.0%} ambiguous ({self.split}, seed {self.seed})"

    def _generate(self, index: int) -> Task:
        place = f"{self.level}/{self.split}/{self.seed}/{index}"
        rng = random.Random(f"clarify/{place}")  # by a string: neighbouring indices are unrelated
        ambiguous = rng.random() < self.ambiguous
        request = self._draw(rng, ambiguous)
        while _split_of(request) != self.split:
            request = self._draw(rng, ambiguous)
        return request.to_task(f"clarify-{place}", f"textenvs/clarify-{self.level}")

    def _draw(self, rng: random.Random, ambiguous: bool) -> Request:
        kind = _BY_NAME[rng.choice(self.kinds or tuple(KINDS[self.level]))]
        names = [slot.name for slot in kind.slots]
        left_out = rng.sample(names, rng.randint(1, _MOST_MISSING[self.level])) if ambiguous else []
        return Request(
            kind,
            name=rng.choice(_DATA["names"]),
            thing=rng.choice(kind.things),
            values={slot.name: rng.choice(slot.values) for slot in kind.slots},
            missing=tuple(name for name in names if name in left_out),
        )
