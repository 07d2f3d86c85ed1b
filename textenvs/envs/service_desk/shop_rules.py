"""The shop's written rules, and the same rules as functions.

The assistant reads ``shop_rules.yaml`` and must keep it by itself: the tools do not. The functions decide what is right
for generated tasks and for the scripted expert.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from datetime import timedelta
from typing import Any, get_args

from ...text import load_yaml
from .database import Action, CancelReason, Customer, Database, Line, Order, Record
from .scenario import Reason, Wish

#: Items may come back this many days after delivery.
RETURN_DAYS = 30
#: A return of electronics costs this many percent of the price; a parcel is late when it came more than so many days
#: after the promised day, and lost when it has not come so many days after that.
_NUMBERS = {"return_days": RETURN_DAYS, "restocking_percent": 15, "late_days": 3, "lost_days": 14}
CANCEL_REASONS: tuple[str, ...] = get_args(CancelReason)
#: The category that costs a restocking fee.
ELECTRONICS = "electronics"


@dataclass(frozen=True, slots=True)
class Decision(Record):
    """What the rules say about a wish."""

    reasons: tuple[Reason, ...] = ()  # all reasons to refuse it; empty when it is allowed
    actions: tuple[Action, ...] = ()  # the changes that grant it
    cents: int = 0  # what goes back to the customer by them; below zero, what the customer pays


def policy_text(database: Database) -> str:
    """The system prompt for a shop."""
    rules = str(load_yaml(__package__, "shop_rules.yaml")["rules"])
    return rules.format(today=database.today.isoformat(), **_NUMBERS).strip()


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
    total = sum(line.price for line in lines)
    if customer.plus:
        return total
    dear = [line for line in lines if database.product(line.product_id).category == ELECTRONICS]
    return total - sum(line.price * _NUMBERS["restocking_percent"] // 100 for line in dear)


def _lines_of(order: Order, item_ids: Sequence[str]) -> Iterator[Line]:
    """The lines of ``order`` that the customer still has, one for each of ``item_ids``."""
    left = Counter(item_ids)
    for line in order.lines:
        if line.status == "kept" and left[line.item_id]:
            left[line.item_id] -= 1
            yield line


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
        if order.delivered - order.promised <= timedelta(days=_NUMBERS["late_days"]):
            yield "on_time"
        return
    if database.today - order.delivered > timedelta(days=RETURN_DAYS):
        yield "window"
    if any(line.final_sale for line in _lines_of(order, wish.item_ids)):
        yield "final_sale"
    if wish.payment_id and wish.payment_id != order.payment_id:
        yield "payment"
    if any(database.item(item_id)[1].stock < 1 for item_id in wish.new_item_ids):
        yield "stock"


def _granting(database: Database, customer: Customer, order: Order, wish: Wish) -> Decision:
    lines, items = tuple(_lines_of(order, wish.item_ids)), {"item_ids": list(wish.item_ids)}

    def change(name: str, **arguments: Any) -> Action:
        return Action(name, {"order_id": order.id, **arguments})

    def refund(cents: int) -> Action:
        return change("refund", amount=cents / 100, payment_id=order.payment_id)

    if wish.kind == "cancel":
        return Decision(actions=(change("cancel_order", reason=wish.reason),), cents=order.paid)
    if wish.kind == "address" and wish.address is not None:
        parts = zip(("street", "city", "state_code", "zip_code"), astuple(wish.address), strict=True)
        return Decision(actions=(change("change_address", **dict(parts)),))
    if wish.kind == "late_fee":
        return Decision(actions=(refund(order.delivery_fee),), cents=order.delivery_fee)
    if wish.kind == "return":
        cents = refund_for(database, customer, lines)
        return Decision(actions=(change("return_items", **items), refund(cents)), cents=cents)
    price = sum(database.item(item_id)[1].price for item_id in wish.new_item_ids)
    exchange = change("exchange_items", **items, new_item_ids=list(wish.new_item_ids))
    return Decision(actions=(exchange,), cents=sum(line.price for line in lines) - price)
