"""The shop's written rules, and the same rules as functions.

The assistant reads ``shop_rules.yaml`` and must keep it by itself: the tools do not. The functions decide what is right
for generated tasks and for the scripted expert.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from datetime import timedelta
from typing import Any

from ...text import load_yaml
from .database import Action, Customer, Database, Line, Order, Record
from .scenario import Reason, Wish

#: Items may come back this many days after delivery.
RETURN_DAYS = 30
#: Days, percentages and dollars of the rules, by their names in ``shop_rules.yaml``.
_NUMBERS = {
    "return_days": RETURN_DAYS,
    "restocking_percent": 15,
    "wear_days": 14,
    "wear_percent": 10,
    "return_postage": 4,
    "packing_days": 5,
    "cancel_percent": 10,
    "packed_cancel_percent": 20,
    "plus_cancel_percent_less": 5,
    "near_fee": 3,
    "far_fee": 7,
    "packed_fee": 2,
    "exchange_fee": 4,
    "electronics_exchange_fee": 9,
    "wear_exchange_fee": 3,
    "plus_exchange_less": 4,
    "late_days": 3,
    "later_days": 7,
    "very_late_days": 14,
    "latest_days": 21,
    "very_late_extra": 5,
    "latest_extra": 10,
    "plus_late_extra": 2,
    "lost_days": 14,
}
#: Why an order may be cancelled.
CANCEL_REASONS = ("no_longer_needed", "ordered_by_mistake")
#: The category that costs a restocking fee.
ELECTRONICS = "electronics"


@dataclass(frozen=True, slots=True)
class Decision(Record):
    """The rules' decision about a wish."""

    reasons: tuple[Reason, ...] = ()  # all reasons to refuse it; empty when it is allowed
    actions: tuple[Action, ...] = ()  # the changes that grant it
    cents: int = 0  # what goes back to the customer by them; below zero, what the customer pays


def policy_text(database: Database) -> str:
    """Return the system prompt for a shop."""
    rules = str(load_yaml(__package__, "shop_rules.yaml")["rules"])
    return rules.format(today=database.today.isoformat(), **_NUMBERS).strip()


def decide(database: Database, customer_id: str, wish: Wish) -> Decision:
    """Return the right decision about ``wish``; ``customer_id`` is empty for somebody who cannot be identified."""
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


def refund_for(database: Database, customer: Customer, order: Order, lines: Sequence[Line]) -> int:
    """Return the refund for those lines of ``order``, in cents: their prices, less postage and a share of the prices.

    The share is higher for electronics, and for what was delivered some time ago. Plus members pay for the latter
    alone. The fee of a line is rounded down to a cent.
    """
    cents = sum(line.price for line in lines)
    if not customer.plus:
        cents -= 100 * _NUMBERS["return_postage"]
    for line in lines:
        electronic = database.product(line.product_id).category == ELECTRONICS
        percent = _NUMBERS["restocking_percent"] * (electronic and not customer.plus)
        percent += _NUMBERS["wear_percent"] * _worn(database, order)
        cents -= line.price * percent // 100
    return cents


def refund_of_cancelled(database: Database, customer: Customer, order: Order) -> int:
    """Return the refund for a cancelled order, in cents: all on its first two days, then less a share of the items."""
    if database.today - order.placed <= timedelta(days=1):
        return order.net_paid
    percent = _NUMBERS["packed_cancel_percent" if _packed(database, order) else "cancel_percent"]
    percent -= _NUMBERS["plus_cancel_percent_less"] * customer.plus
    return order.net_paid - sum(line.price * percent // 100 for line in order.lines)


def refund_of_late(customer: Customer, order: Order) -> int:
    """Return the refund for a late parcel, in cents, by how late it came."""
    assert order.delivered is not None, "the parcel has not come"
    late = (order.delivered - order.promised).days
    extra = _NUMBERS["plus_late_extra"] * customer.plus
    if late <= _NUMBERS["later_days"]:
        return order.delivery_fee // 2 + 100 * extra
    if late > _NUMBERS["latest_days"]:
        extra += _NUMBERS["latest_extra"]
    elif late > _NUMBERS["very_late_days"]:
        extra += _NUMBERS["very_late_extra"]
    return order.delivery_fee + 100 * extra


def fee_for_address(database: Database, customer: Customer, order: Order, state: str) -> int:
    """Return the fee for sending an order to an address in ``state``, in cents."""
    far = state.strip().casefold() != order.address.state.casefold()
    dollars = _NUMBERS["far_fee" if far else "near_fee"] + _NUMBERS["packed_fee"] * _packed(database, order)
    return 100 * dollars // (2 if customer.plus else 1)


def fee_for_exchange(database: Database, customer: Customer, order: Order, lines: Sequence[Line]) -> int:
    """Return the fee for exchanging those lines, in cents, beside the difference in price: the highest of theirs."""
    electronic = any(database.product(line.product_id).category == ELECTRONICS for line in lines)
    fee = _NUMBERS["electronics_exchange_fee" if electronic else "exchange_fee"]
    fee += _NUMBERS["wear_exchange_fee"] * _worn(database, order) - _NUMBERS["plus_exchange_less"] * customer.plus
    return 100 * fee


def _packed(database: Database, order: Order) -> bool:
    return database.today - order.placed > timedelta(days=_NUMBERS["packing_days"])


def _worn(database: Database, order: Order) -> bool:
    return order.delivered is not None and database.today - order.delivered > timedelta(days=_NUMBERS["wear_days"])


def _lines_of(order: Order, item_ids: Sequence[str]) -> Iterator[Line]:
    """Yield the lines of ``order`` that the customer still has, one for each of ``item_ids``."""
    counts = Counter(item_ids)
    for line in order.lines:
        if line.status == "kept" and counts[line.item_id]:
            counts[line.item_id] -= 1
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

    def charges(cents: int) -> tuple[Action, ...]:
        return (change("charge", amount=cents / 100, payment_id=order.payment_id),) if cents else ()

    if wish.kind == "cancel":
        cents = refund_of_cancelled(database, customer, order)
        return Decision(actions=(change("cancel_order", reason=wish.reason), refund(cents)), cents=cents)
    if wish.kind == "address" and wish.address is not None:
        parts = zip(("street", "city", "state_code", "zip_code"), astuple(wish.address), strict=True)
        fee = fee_for_address(database, customer, order, wish.address.state)
        return Decision(actions=(change("change_address", **dict(parts)), *charges(fee)), cents=-fee)
    if wish.kind == "late_fee":
        cents = refund_of_late(customer, order)
        return Decision(actions=(refund(cents),), cents=cents)
    if wish.kind == "return":
        cents = refund_for(database, customer, order, lines)
        return Decision(actions=(change("return_items", **items), refund(cents)), cents=cents)
    price = sum(database.item(item_id)[1].price for item_id in wish.new_item_ids)
    exchange = change("exchange_items", **items, new_item_ids=list(wish.new_item_ids))
    fee = fee_for_exchange(database, customer, order, lines)
    return Decision(actions=(exchange, *charges(fee)), cents=sum(line.price for line in lines) - price - fee)
