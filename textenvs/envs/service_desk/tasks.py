"""Generated service desk tasks: seeded, endless, with the right outcome worked out by the shop's rules.

Training and test tasks are disjoint by construction: who calls, about which products, with which kind of task, hashes
to one split or the other, and a generator draws again until it falls into its own.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, get_args

from ...messages import system, user
from ...task import Endless, Split, Task, split_by_hash
from .cases import KINDS, Draft, draft
from .database import Action, Database
from .scenario import Fact, Persona, Scenario, Wish, to_json
from .shop_rules import decide, policy_text
from .user import begin
from .world import World, catalogue

Level = Literal["easy", "medium", "hard"]
LEVELS: tuple[str, ...] = get_args(Level)

# The customer's question for the money that moves with a change; independent of the amount.
_ASKS = {
    **dict.fromkeys(("cancel", "return", "late_fee"), "How much do I get back?"),
    **dict.fromkeys(("address", "exchange"), "How much money is that in the end?"),
}
#: One combination in this many is held out for the test split.
_HELD_OUT = 8


@dataclass(frozen=True)
class ServiceDeskTasks(Endless):
    """An endless :class:`~textenvs.task.TaskSet` of service desk tasks.

    Args:
        level: ``"easy"`` (one wish, the user knows the order number and the email address), ``"medium"`` (more rules;
            the user may know neither) or ``"hard"`` (several wishes, changes of mind, insistence, impostors).
        seed: Another seed is another sequence of tasks.
        split: ``"train"`` or ``"test"``; the two never share a caller with the same kind of task about the same things.
        kinds: Only these kinds of the level; ``None`` for all.

    Raises:
        ValueError: An unknown level, split or kind, no kind, or a seed that is not an integer.
    """

    level: Level = "easy"
    seed: int = 0
    split: Split = "train"
    kinds: Sequence[str] | None = None

    def __post_init__(self) -> None:
        self.check_choices(LEVELS)
        if self.kinds is None:
            return
        level_kinds = KINDS[self.level]
        if isinstance(self.kinds, str) or not isinstance(self.kinds, Sequence) or not self.kinds:
            raise ValueError(f"kinds must be None or a list of at least one kind, not {self.kinds!r}")
        if unknown := [kind for kind in self.kinds if kind not in level_kinds]:
            raise ValueError(
                f"kinds: {unknown[0]!r} is not a kind of level {self.level!r}; it has {', '.join(level_kinds)}"
            )
        object.__setattr__(self, "kinds", tuple(self.kinds))

    @property
    def name(self) -> str:
        only = "" if self.kinds is None else f", only {', '.join(self.kinds)}"
        return f"generated {self.level} service desk tasks ({self.split}, seed {self.seed}{only})"

    def _generate(self, index: int) -> Task:
        key = f"{self.level}/{self.split}/{self.seed}/{index}"
        rng = random.Random(f"service-desk/{key}")
        kinds = self.kinds or tuple(KINDS[self.level])
        (kind,) = rng.choices(kinds, [KINDS[self.level][name] for name in kinds])
        products = catalogue(rng)
        while True:
            world = World(rng, products, self.split)
            drawn = draft(world, kind)
            if _split_of(kind, drawn) == self.split:
                return task_of(_scenario(self.level, kind, world, drawn), key, f"textenvs/service-desk-{self.level}")


def task_of(scenario: Scenario, key: str, data_source: str = "textenvs/service-desk") -> Task:
    """Return the task row of a scenario, generated or written by hand."""
    facts = [fact.value for wish in scenario.chain for fact in wish.facts]
    truth = {"actions": [asdict(action) for action in scenario.gold], "outcomes": scenario.outcomes, "facts": facts}
    return Task(
        key=key,
        data_source=data_source,
        prompt=(system(policy_text(scenario.database)), user(begin(scenario)[1])),
        ground_truth=json.dumps(truth),
        ability="service",
        extra={"scenario": to_json(scenario)},
    )


def _split_of(kind: str, draft: Draft) -> str:
    who = f"{draft.customer.first_name} {draft.customer.last_name}"
    core = "\n".join((kind, who, *sorted(thing for wish in draft.wishes for thing in wish.things)))
    return split_by_hash(core, _HELD_OUT)


def _scenario(level: str, kind: str, world: World, draft: Draft) -> Scenario:
    rng = world.rng
    if not draft.impostor:
        world.noise(draft.customer, rng.randint(0, 1) if level == "easy" else rng.randint(1, 2))
    for _ in range(2):
        world.noise(world.customer(), 1)
    customer_id = "" if draft.impostor else draft.customer.id
    start = after = world.database
    wishes: list[Wish] = []
    gold: tuple[Action, ...] = ()
    for wish in draft.wishes:
        settled, actions = settle(after, customer_id, wish)
        after = after.replay(actions)
        wishes.append(settled)
        gold += actions
    return Scenario(kind, start, _persona(level, world, draft), customer_id, tuple(wishes), gold, draft.private)


def _persona(level: str, world: World, draft: Draft) -> Persona:
    customer, rng = draft.customer, world.rng
    email, zip_code = customer.email, customer.address.zip_code
    if draft.impostor:
        email = email.replace("@example.com", "@example.net")
        zip_code = str(10000 + (int(zip_code) - 10000 + rng.randint(1, 80000)) % 90000)
    return Persona(
        first_name=customer.first_name,
        last_name=customer.last_name,
        email=email,
        zip_code=zip_code,
        knows_email=level == "easy" or rng.random() < 0.5,
        knows_order=level == "easy" or draft.number_known or rng.random() < 0.5,
        patience=6 if level == "hard" else 8,
        voice=rng.randrange(1000),
        split=world.split,
    )


def settle(database: Database, customer_id: str, wish: Wish) -> tuple[Wish, tuple[Action, ...]]:
    """Return the wish with the facts that come with granting it, and the right changes for it."""
    decision = decide(database, customer_id, wish)
    expected = () if wish.because is None else (wish.because,)
    if decision.reasons != expected:
        raise AssertionError(f"the rules refuse a generated wish for {decision.reasons}, not for {expected}: {wish}")
    actions = () if wish.switch == "confirm" else decision.actions
    if actions and wish.kind in _ASKS:  # also where no money moves: the question must not disclose that it does
        roles = {"late_fee": "fee", "address": "cost"}
        role = roles.get(wish.kind, "refund" if decision.cents > 0 else "charge")
        wish = replace(wish, facts=(Fact("amount", str(abs(decision.cents)), _ASKS[wish.kind], role),))
    if wish.switch and wish.instead is not None:
        instead, actions = settle(database, customer_id, wish.instead)  # nothing was done about the first
        wish = replace(wish, instead=instead)
    return wish, actions
