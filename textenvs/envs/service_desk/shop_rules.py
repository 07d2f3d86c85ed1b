"""The shop's written rules, and the same rules as functions.

The assistant reads ``shop_rules.yaml`` and must keep it by itself: the tools do not. The functions decide what is right
for generated tasks and for the scripted expert.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from .database import Action, Address, Customer, Database, Item, Line, Order, Record
from .scenario import Reason, Wish
from .texts import load

#: Items may come back this many days after delivery.
RETURN_DAYS = 30
#: What a return of electronics costs, in percent of the price.
RESTOCKING_PERCENT = 15
#: A parcel is late when it came more than this many days after the promised day.
LATE_DAYS = 3
#: A parcel counts as lost this many days after the promised day.
LOST_DAYS = 14
#: The good reasons for cancelling an order, as ``cancel_order`` takes them.
CANCEL_REASONS: tuple[str, ...] = ("no_longer_needed", "ordered_by_mistake")
#: The category that costs a restocking fee.
ELECTRONICS = "electronics"


@dataclass(frozen=True, slots=True)
class Decision(Record):
    """What the rules say about a wish.

    Args:
        reasons: All reasons to refuse it; empty when it is allowed.
        actions: The changes that grant it.
        cents: What goes back to the customer by them; below zero, what the customer pays.
    """

    reasons: tuple[Reason, ...] = ()
    actions: tuple[Action, ...] = ()
    cents: int = 0


def policy_text(database: Database) -> str:
    """The system prompt for a shop."""
    return (
        str(load("shop_rules")["rules"])
        .format(
            today=database.today.isoformat(),
            return_days=RETURN_DAYS,
            restocking_percent=RESTOCKING_PERCENT,
            late_days=LATE_DAYS,
            lost_days=LOST_DAYS,
        )
        .strip()
    )


def decide(database: Database, customer_id: str, wish: Wish) -> Decision:
    """What is right to do about ``wish``; ``customer_id`` is empty for somebody who cannot be identified."""
    if not customer_id:
        return Decision(("identity",))
    customer = database.customer(customer_id)
    if wish.kind == "human":
        return Decision(actions=(Action("transfer_to_human", {"customer_id": customer.id, "summary": wish.opening}),))
    if not wish.order_id:
        return Decision()
    order = database.order(wish.order_id)
    if order.customer_id != customer.id:
        return Decision(("not_yours",))
    if wish.kind == "question":
        return Decision()
    if reasons := tuple(_objections(database, order, wish)):
        return Decision(reasons)
    return _granting(database, customer, order, wish)


def refund_for(database: Database, customer: Customer, lines: Sequence[Line]) -> int:
    """What returning those lines pays back, in cents: their prices, less the restocking fee on electronics.

    The fee of a line is rounded down to a cent.
    """
    total = 0
    for line in lines:
        fee = 0
        if database.product(line.product_id).category == ELECTRONICS and not customer.plus:
            fee = line.price * RESTOCKING_PERCENT // 100
        total += line.price - fee
    return total


def lines_of(order: Order, item_ids: Sequence[str]) -> tuple[Line, ...]:
    """The lines of ``order`` that the customer still has, one for each of ``item_ids``."""
    kept = [line for line in order.lines if line.status == "kept"]
    found = []
    for item_id in item_ids:
        line = next((line for line in kept if line.item_id == item_id), None)
        if line is not None:
            kept.remove(line)
            found.append(line)
    return tuple(found)


def _objections(database: Database, order: Order, wish: Wish) -> Iterator[Reason]:
    if wish.kind in ("cancel", "address"):
        if order.status != "pending":
            yield "shipped"
        if wish.kind == "cancel" and wish.reason not in CANCEL_REASONS:
            yield "cancel_reason"
        return
    if order.delivered is None or order.status != "delivered":
        yield "not_delivered"
        return
    if wish.kind == "late_fee":
        if order.delivered - order.promised <= timedelta(days=LATE_DAYS):
            yield "on_time"
        return
    if database.today - order.delivered > timedelta(days=RETURN_DAYS):
        yield "window"
    if any(line.final_sale for line in lines_of(order, wish.item_ids)):
        yield "final_sale"
    if wish.payment_id and wish.payment_id != order.payment_id:
        yield "payment"
    if wish.kind == "exchange" and any(_item(database, item_id).stock < 1 for item_id in wish.new_item_ids):
        yield "stock"


def _granting(database: Database, customer: Customer, order: Order, wish: Wish) -> Decision:
    order_id = {"order_id": order.id}
    items = {"item_ids": list(wish.item_ids)}
    if wish.kind == "cancel":
        return Decision(actions=(Action("cancel_order", order_id | {"reason": wish.reason}),), cents=order.paid)
    if wish.kind == "address":
        assert wish.address is not None
        return Decision(actions=(Action("change_address", order_id | _parts(wish.address)),))
    if wish.kind == "late_fee":
        return Decision(actions=(_refund(order, order.delivery_fee),), cents=order.delivery_fee)
    lines = lines_of(order, wish.item_ids)
    if wish.kind == "return":
        cents = refund_for(database, customer, lines)
        return Decision(actions=(Action("return_items", order_id | items), _refund(order, cents)), cents=cents)
    new = [_item(database, item_id) for item_id in wish.new_item_ids]
    difference = sum(line.price for line in lines) - sum(item.price for item in new)
    exchange = Action("exchange_items", order_id | items | {"new_item_ids": list(wish.new_item_ids)})
    return Decision(actions=(exchange,), cents=difference)


def _refund(order: Order, cents: int) -> Action:
    return Action("refund", {"order_id": order.id, "amount": cents / 100, "payment_id": order.payment_id})


def _parts(address: Address) -> dict[str, str]:
    return {
        "street": address.street,
        "city": address.city,
        "state_code": address.state,
        "zip_code": address.zip_code,
    }


def _item(database: Database, item_id: str) -> Item:
    return database.item(item_id)[1]
