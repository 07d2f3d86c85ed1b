"""Twin worlds of a task: shops that differ in one value of the customer's account or order, and require other ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

from ...task import TWINS, Task, proven_facts
from .cases import answer_to
from .database import Customer, Database, Order
from .scenario import Scenario, scenario_of
from .shop_rules import decide
from .tasks import settle, task_of

#: Other values: days between two dates of an order, and cents that are added to an amount.
_DAYS = (1, 3, 5, 8, 12, 16, 20, 24, 28, 33, 40, 55)
_CENTS = (100, 250, 400, 700, 1100, 1900, 2300, 3100)


def twins_of(task: Task) -> list[tuple[str, list[Task]]]:
    """Return facts of a shop with the tasks in which they have other values (``TextEnv.twin_worlds``).

    Only of a customer who can be identified and has one wish: with several, an earlier one changes what a later finds.
    """
    scenario = scenario_of(task)
    if not scenario.customer_id or len(scenario.chain) > 1:
        return []

    def others(name: str, databases: Iterator[Database]) -> Iterator[Task]:
        for number, database in enumerate(databases):
            if (other := _in_shop(scenario, database)) is not None:
                twin = task_of(other, f"{task.key}~{name} {number}", task.data_source)
                if twin.prompt == task.prompt:
                    yield twin

    return proven_facts(task, ((name, others(name, databases)) for name, databases in _changes(scenario)))


def _in_shop(scenario: Scenario, database: Database) -> Scenario | None:
    """Return the scenario in another shop, with its right end there; ``None`` where it has no single one."""
    (wish,), customer = scenario.wishes, database.customer(scenario.customer_id)
    order = database.orders.get(wish.order_id)
    if wish.kind == "question" and wish.because is None:
        assert wish.topic is not None
        lines = [] if order is None else [line for line in order.lines if line.item_id in wish.item_ids]
        (fact,) = wish.facts
        value = answer_to(wish.topic, database, customer, order, lines)
        wish = replace(wish, facts=(replace(fact, value=value),))
        return replace(scenario, database=database, wishes=(wish,))
    reasons = decide(database, scenario.customer_id, wish).reasons
    if len(reasons) > 1 or not wish.reasons.issuperset(reasons):
        return None
    because = reasons[0] if reasons else None
    settled, gold = settle(database, scenario.customer_id, replace(wish, because=because, facts=()))
    return replace(scenario, database=database, wishes=(settled,), gold=gold)


def _changes(scenario: Scenario) -> Iterator[tuple[str, Iterator[Database]]]:
    """Yield facts of the customer's account and order, each with shops in which it has other values."""
    database, (wish,) = scenario.database, scenario.wishes
    customer, order = database.customer(scenario.customer_id), database.orders.get(wish.order_id)

    def with_customer(other: Customer) -> Database:
        return replace(database, customers={**database.customers, customer.id: other})

    def with_order(other: Order) -> Database:
        return replace(database, orders={**database.orders, other.id: other})

    yield "the membership", iter([with_customer(replace(customer, plus=not customer.plus))])
    cards = [payment for payment in customer.payments if payment.balance is not None]
    if cards:
        balances = [replace(cards[0], balance=(cards[0].balance or 0) + cents) for cents in _CENTS]
        methods = (tuple(other if other.id == own.id else own for own in customer.payments) for other in balances)
        yield "the balance", (with_customer(replace(customer, payments=payments)) for payments in methods)
    if order is None or order.customer_id != customer.id:
        return
    yield "the delivery fee", map(with_order, _paid_more(order, fee=True))
    for number, line in enumerate(order.lines):
        if not wish.item_ids or line.item_id in wish.item_ids:
            yield f"the price of item {line.item_id}", map(with_order, _paid_more(order, line=number))
    dates = {name: list(_dates(order, name, database)) for name in ("placed", "promised", "delivered")}
    for name, others in dates.items():
        yield f"when it was {name}", map(with_order, others)
    if order.tracking:
        numbers = (f"{order.tracking[:-2]}{(int(order.tracking[-2:]) + step) % 100:02}" for step in range(1, TWINS))
        yield "the tracking number", (with_order(replace(order, tracking=number)) for number in numbers)


def _paid_more(order: Order, *, fee: bool = False, line: int = -1) -> Iterator[Order]:
    """Yield the order with more paid for its delivery or one of its lines."""
    first, *rest = order.transactions
    for cents in _CENTS:
        lines = tuple(replace(own, price=own.price + cents * (n == line)) for n, own in enumerate(order.lines))
        paid = (replace(first, cents=first.cents + cents), *rest)
        yield replace(order, delivery_fee=order.delivery_fee + cents * fee, lines=lines, transactions=paid)


def _dates(order: Order, name: str, database: Database) -> Iterator[Order]:
    """Yield the order with another date that can be: placed first, and delivered by today."""
    for days in _DAYS:
        ago = database.today - timedelta(days=days)
        if name == "promised":
            other = replace(order, promised=order.placed + timedelta(days=days))
        elif name == "placed":
            other = replace(order, placed=ago)
        elif order.delivered is None:
            return
        else:
            other = replace(order, delivered=ago)
        if other.placed <= min(other.promised, other.delivered or other.promised):
            yield other
