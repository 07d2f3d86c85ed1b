"""The scenario of an episode: the shop, the user who calls, their wishes, and the right outcome.

A scenario is immutable and travels as JSON inside a task row (``extra_info.scenario``), so that generated tasks and
hand-written ones are the same thing.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any, Literal, get_args

from pydantic import TypeAdapter, ValidationError

from ...task import Split, Task, TaskError
from ...text import load_yaml
from .database import Action, Address, Database, DatabaseError, Record

WishKind = Literal["cancel", "return", "exchange", "address", "late_fee", "question", "human"]
_Objection = Literal["shipped", "not_delivered", "window", "final_sale", "cancel_reason", "payment", "stock", "on_time"]
#: Why something must be refused.
Reason = _Objection | Literal["not_yours", "identity"]
Topic = Literal["tracking", "promised", "total", "refund", "balance", "fee", "deadline", "placed", "delivered"]

_KINDS: Mapping[str, Mapping[str, Any]] = load_yaml(__package__, "wishes.yaml")


@dataclass(frozen=True, slots=True)
class Fact(Record):
    """A fact that must be stated to the user."""

    kind: Literal["amount", "date", "text"]
    value: str  # the fact itself: cents, an ISO date, or a text
    ask: str  # how the user asks for it when it was left out
    role: str = ""  # which of the amounts or dates of an order it is, a key of ``accepts`` in replies.yaml; "" for any


@dataclass(frozen=True, slots=True)
class Wish(Record):
    """One thing that the user wants."""

    kind: WishKind
    opening: str  # how the user brings it up: the kind of wish and nothing more
    order_id: str = ""  # the order it is about, if any
    # The slots (of user.py) that the opening discloses already, or that the wish before it disclosed and still hold.
    says: tuple[str, ...] = ()
    things: tuple[
        str, ...
    ] = ()  # the products it is about, in the user's words; all of the order's where it is about all
    item_ids: tuple[str, ...] = ()  # the items that should be returned or exchanged
    new_item_ids: tuple[str, ...] = ()  # what they should be exchanged for, one for one
    wanted: tuple[str, ...] = ()  # the options of the new items, in the user's words
    reason: str = ""  # why, as a code of ``cancel_order`` where it is one
    reason_words: str = ""  # why, in the user's words
    address: Address | None = None  # the new one
    payment_id: str = ""  # where the money should go; empty for wherever it came from
    payment_words: str = ""  # the same in the user's words
    topic: Topic | None = None  # what a question is about
    facts: tuple[Fact, ...] = ()  # the facts that must be stated before the wish is settled
    because: Reason | None = None  # why it must be refused; None where it may be granted
    # When the user goes over to another wish: asked to confirm, they change their mind; refused, they have a second
    # choice. ``instead`` is that other wish; with "confirm" and without it, the wish is dropped.
    switch: Literal["", "confirm", "refused"] = ""
    instead: Wish | None = None
    insist: int = 0  # how often the user asks again after a refusal
    wrong_number: str = ""  # an order number that does not exist and that the user gives first, by mistake
    rejects: tuple[str, ...] = ()  # other products: a proposal that names one of them is about something else, too
    other_options: tuple[str, ...] = ()  # of the product: neither those of the item nor those that are wanted

    def __post_init__(self) -> None:
        if missing := [name for name in _KINDS[self.kind]["needs"] if not getattr(self, name)]:
            raise ValueError(f"a wish of kind {self.kind!r} needs an {missing[0]}")
        if self.kind in ("return", "exchange") and len(self.item_ids) != len(self.things):
            raise ValueError(f"a wish of kind {self.kind!r} needs as many things as item_ids")
        if self.kind == "exchange" and len(self.new_item_ids) != len(self.item_ids):
            raise ValueError("a wish of kind 'exchange' needs as many new_item_ids as item_ids")
        if self.kind == "question" and self.because is None and not self.facts:
            raise ValueError("a wish of kind 'question' needs facts, or a reason to refuse it (because)")
        if self.switch == "refused" and (self.because is None or self.instead is None):
            raise ValueError("a wish with switch 'refused' needs because and instead")

    @property
    def grants(self) -> frozenset[tuple[str, str]]:
        """The changes that a yes to it allows: (tool, order number)."""
        return frozenset((tool, self.order_id) for tool in _KINDS[self.kind]["tools"])

    @property
    def asks(self) -> frozenset[str]:
        """The slots that the user must have been asked for before it may be granted."""
        if self.kind == "human":
            return frozenset(name for name, value in (("order", self.order_id), ("reason", self.reason_words)) if value)
        return frozenset(_KINDS[self.kind]["asks"])

    @property
    def reasons(self) -> frozenset[str]:
        """The reasons that can be given against such a wish, true or not."""
        return frozenset({"identity"} & {self.because}).union(_KINDS[self.kind]["reasons"])

    @property
    def outcome(self) -> str:
        """The right way to settle the wish."""
        if self.switch == "confirm":
            return "changed"
        if self.because is not None:
            return f"refused:{self.because}"
        return {"question": "told", "human": "transferred"}.get(self.kind, "done")


@dataclass(frozen=True, slots=True)
class Persona(Record):
    """The caller, and the data that they know by heart; after ``patience`` useless replies they leave."""

    first_name: str
    last_name: str
    email: str
    zip_code: str
    knows_email: bool = True
    knows_order: bool = True
    patience: int = 8
    voice: int = 0  # picks among phrasings
    split: Split | None = None  # whose wordings they use; ``None`` for all


@dataclass(frozen=True, slots=True)
class Scenario(Record):
    """A whole task."""

    kind: str  # which kind of task, for reports; never shown
    database: Database  # the shop before the talk
    persona: Persona
    customer_id: str  # the user's account; empty when they have none, or cannot prove it
    wishes: tuple[Wish, ...]  # one after the other
    gold: tuple[Action, ...] = ()  # the changes of a right handling; on a fresh database they give the right outcome
    private: tuple[str, ...] = ()  # texts of other customers that must not be disclosed

    @property
    def chain(self) -> tuple[Wish, ...]:
        """All wishes in the order in which a right handling meets them, second choices included."""
        chain: list[Wish] = []
        for first in self.wishes:
            wish: Wish | None = first
            while wish is not None:
                chain.append(wish)
                wish = wish.instead if wish.switch else None
        return tuple(chain)

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The right outcome of each wish of :attr:`chain`."""
        return tuple(wish.outcome for wish in self.chain)


_ADAPTER = TypeAdapter(Scenario)


def with_other_truth(scenario: Scenario) -> Scenario | None:
    """Return the scenario with another right outcome of its first wish; ``None`` where it can have no other.

    Other facts must be told, or another reason speaks against it; the customer, the shop and the wish are the same.
    """
    first, *rest = scenario.wishes
    if first.facts:
        wish = replace(first, facts=tuple(replace(fact, value=_other_value(fact)) for fact in first.facts))
    elif reasons := [reason for reason in get_args(_Objection) if reason in first.reasons and reason != first.because]:
        wish = replace(first, because=reasons[0])
    else:
        return None
    return replace(scenario, wishes=(wish, *rest))


def _other_value(fact: Fact) -> str:
    if fact.kind == "amount":
        return str(int(fact.value) + 100)
    if fact.kind == "date":
        return (date.fromisoformat(fact.value) + timedelta(days=9)).isoformat()
    return f"{fact.value}9"


def to_json(scenario: Scenario) -> str:
    return _ADAPTER.dump_json(scenario, exclude_defaults=True).decode()


@functools.lru_cache(maxsize=256)
def from_json(text: str) -> Scenario:
    """Return the scenario that :func:`to_json` wrote; a ``ValueError`` says why it cannot be played."""
    try:
        scenario = _ADAPTER.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise ValueError(f"not a scenario: {place}: {first['msg']}") from error
    if not scenario.wishes:
        raise ValueError("not a scenario: the user wants nothing; give at least one wish")
    if scenario.customer_id and scenario.customer_id not in scenario.database.customers:
        raise ValueError(f"not a scenario: customer_id {scenario.customer_id!r} is not in the database")
    try:
        scenario.database.replay(scenario.gold)
    except DatabaseError as error:
        raise ValueError(f"not a scenario: the gold actions cannot be done: {error}") from error
    return scenario


def scenario_of(task: Task) -> Scenario:
    """Return the scenario in a task's ``extra_info.scenario``; a ``TaskError`` if it is missing or cannot be played."""
    text = task.extra.get("scenario")
    if not isinstance(text, str):
        raise TaskError(f"task {task.key}: extra_info.scenario must be a scenario as JSON text, not {text!r:.40}")
    try:
        return from_json(text)
    except ValueError as error:
        raise TaskError(f"task {task.key}: extra_info.scenario: {error}") from error
