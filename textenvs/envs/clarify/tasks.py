"""Generated requests, some of which leave out what is needed to meet them: seeded, endless, short.

A request is of a kind (a sum, a purchase, a booking, ...) with a few *slots*: numbers, days, colours. What it does not
say of them only the user knows. A slot's values are drawn evenly and independently of all that the request says, from
at least ``MIN_VALUES``: so a guess is right once in as many times at most, whatever is read out of the rest.

Requests are a function of (options, split, seed, index) alone. Training and test requests are disjoint by construction:
what a request says (its kind and its visible values, without names and things) decides its split. The hidden value has
no part in that, or it could be guessed from the split.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...data.endless import Endless
from ...messages import user
from ...task import Split, Task, TaskError
from ...text import quoted
from .kinds import KINDS, NAMES, Kind, Slot, Value

Level = Literal["easy", "medium"]

# One request in this many is held out for the test split.
_HELD_OUT = 8
# How many slots a request with a gap may leave out, at most.
_MOST_MISSING: dict[str, int] = {"easy": 1, "medium": 2}
_BY_NAME = {name: kind for kinds in KINDS.values() for name, kind in kinds.items()}

LEVELS: tuple[str, ...] = tuple(KINDS)


@dataclass(frozen=True)
class Request:
    """One request: all that the user knows.

    Args:
        kind: Its kind.
        name: Whom it is about.
        thing: What it is about; empty for kinds without things.
        values: The value of every slot, by name.
        missing: The slots that the request leaves out, in the order of the kind's.
    """

    kind: Kind
    name: str
    thing: str
    values: Mapping[str, Value]
    missing: tuple[str, ...]

    @property
    def text(self) -> str:
        """What the user asks for, and how to answer."""
        said = {
            slot.name: slot.blank if slot.name in self.missing else slot.says.format(self.values[slot.name])
            for slot in self.kind.slots
        }
        return (
            f"{self.kind.request.format(name=self.name, thing=self.thing, **said)} Answer with #### {self.kind.form}."
        )

    @property
    def equations(self) -> tuple[str, ...]:
        """The calculations of the worked answer; none where there is nothing to work out."""
        return self.kind.equations(self.values)

    @property
    def answer(self) -> tuple[str, ...]:
        """The parts of the right answer, in order."""
        if self.kind.order:
            return tuple(str(self.values[name]) for name in self.kind.order)
        return (self.equations[-1].rpartition("=")[2],)

    def question(self, slot: Slot) -> str:
        """The expert's question for ``slot``."""
        return slot.ask.format(name=self.name, thing=self.thing)

    def telling(self, slot: Slot) -> str:
        """What the user says of ``slot``."""
        return slot.tell.format(name=self.name, thing=self.thing, value=self.values[slot.name])

    def to_task(self, key: str, data_source: str) -> Task:
        """The request as a task; :meth:`from_task` reads it back."""
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
        """The request that a task stands for.

        Raises:
            TaskError: ``extra_info`` does not describe one, or not the one that the row's ground truth answers.
        """
        where = f"task {task.key}: extra_info"
        extra = task.extra
        kind = _BY_NAME.get(str(extra.get("kind")))
        if kind is None:
            raise TaskError(f"{where}.kind is {extra.get('kind')!r}; it must be one of {', '.join(_BY_NAME)}")
        values, missing = extra.get("values"), extra.get("missing")
        names = [slot.name for slot in kind.slots]
        if not isinstance(values, Mapping) or set(values) != set(names):
            raise TaskError(f"{where}.values must give {', '.join(names)} of a {kind.name!r} request, not {values!r}")
        for slot in kind.slots:
            if type(values[slot.name]) is not type(slot.values[0]):
                wanted = type(slot.values[0]).__name__
                raise TaskError(f"{where}.values.{slot.name} must be of type {wanted}, not {values[slot.name]!r}")
        if isinstance(missing, (str, Mapping)) or not isinstance(missing, Sequence) or not set(missing) <= set(names):
            raise TaskError(f"{where}.missing must be a list out of {', '.join(names)}, not {missing!r}")
        request = cls(
            kind,
            name=str(extra.get("name", "")),
            thing=str(extra.get("thing", "")),
            values=dict(values),
            missing=tuple(name for name in names if name in missing),
        )
        if task.ground_truth != " ".join(request.answer):
            found, wanted = quoted(" ".join(request.answer)), quoted(task.ground_truth)
            raise TaskError(f"{where}.values lead to {found}, but the ground truth is {wanted}")
        return request


def _split_of(request: Request) -> str:
    # A weighted sum of what is visible, and not a hash: so some requests of every kind are held out whatever they leave
    # out, be it all but one slot of seven values. Odd weights, each another, so that the sum gives no answer away.
    place = sum(
        (2 * i + 1) * slot.values.index(request.values[slot.name])
        for i, slot in enumerate(request.kind.slots)
        if slot.name not in request.missing
    )
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

    Raises:
        ValueError: A value outside the above.
    """

    level: Level = "easy"
    ambiguous: float = 0.5
    kinds: Sequence[str] | None = None
    seed: int = 0
    split: Split = "train"

    def __post_init__(self) -> None:
        self.check_choices(LEVELS)
        share = self.ambiguous
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
            raise ValueError(f"ambiguous must be a share from 0 to 1, not {share!r}")
        if self.kinds is not None:
            known = KINDS[self.level]
            if isinstance(self.kinds, str) or not isinstance(self.kinds, Sequence) or not self.kinds:
                raise ValueError(f"kinds must be a list out of {', '.join(known)}, or None, not {self.kinds!r}")
            if unknown := [kind for kind in self.kinds if kind not in known]:
                raise ValueError(f"kinds: the level {self.level!r} has {', '.join(known)}, not {unknown[0]!r}")
            object.__setattr__(self, "kinds", tuple(self.kinds))

    @property
    def name(self) -> str:
        """Which requests these are, in a line."""
        return f"generated {self.level} requests, {self.ambiguous:.0%} ambiguous ({self.split}, seed {self.seed})"

    def _generate(self, index: int) -> Task:
        # Seeding by a string goes through SHA-512, so neighbouring indices are unrelated.
        rng = random.Random(f"clarify/{self.level}/{self.split}/{self.seed}/{index}")
        ambiguous = rng.random() < self.ambiguous
        request = self._draw(rng, ambiguous)
        while _split_of(request) != self.split:
            request = self._draw(rng, ambiguous)
        return request.to_task(
            key=f"clarify-{self.level}/{self.split}/{self.seed}/{index}",
            data_source=f"textenvs/clarify-{self.level}",
        )

    def _draw(self, rng: random.Random, ambiguous: bool) -> Request:
        kind = _BY_NAME[rng.choice(self.kinds or tuple(KINDS[self.level]))]
        names = [slot.name for slot in kind.slots]
        left_out = rng.sample(names, rng.randint(1, _MOST_MISSING[self.level])) if ambiguous else []
        return Request(
            kind,
            name=rng.choice(NAMES),
            thing=rng.choice(kind.things),
            values={slot.name: rng.choice(slot.values) for slot in kind.slots},
            missing=tuple(name for name in names if name in left_out),
        )
