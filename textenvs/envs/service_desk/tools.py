"""The assistant's tools, over the episode's own database.

They do what they are told as far as the data can hold it (:mod:`~textenvs.envs.service_desk.database`). The shop's
rules are the assistant's to keep; what it did against them is only noted here, for the reward.
"""

# ruff: noqa: D417  the docstrings are for the model, and the state is no argument of the calls

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

from ...tool_env import ToolState
from ...tools import tool
from ...users.manners import PLAIN, Manner, Mood
from .database import Action, CancelReason, Customer, Database, Order
from .scenario import Persona, Scenario
from .user import HANDOVER, UserState

# The shop before the first episode.
_EMPTY = Database(date.min, {}, {}, {})


@dataclass
class DeskState(ToolState):
    """An episode at the service desk. All after ``caller`` are notes for the reward and the scripted expert."""

    story: Scenario = Scenario("", _EMPTY, Persona("", "", "", ""), "", ())
    shop: Database = _EMPTY  # as it stands
    right: Database = _EMPTY  # as it should be in the end
    caller: UserState = UserState(wish=None)
    manner: Manner = PLAIN
    mood: Mood = Mood()
    # "email", "name", "zip": searches made with the identity that the user disclosed, with or without a match.
    tried: frozenset[str] = frozenset()
    identified: str = ""  # the id of the customer whom such a search found
    seen: frozenset[str] = frozenset()  # ids of orders, customers and products that were looked at
    made: tuple[Action, ...] = ()  # the changes, in order
    violations: tuple[str, ...] = ()  # the rules that were broken
    standing: float = 0.0  # the share of the task that is done; the reward's ``progress`` is its change

    def note(self, violation: str) -> None:
        if violation not in self.violations:
            self.violations = (*self.violations, violation)


@tool
def find_customer_by_email(email: str, state: DeskState) -> dict[str, Any]:
    """Find a customer's account by email address.

    Args:
        email: The address that the customer gave.
    """
    # A search with another address than the user's own identifies no user.
    matches = state.story.persona.email.casefold() == email.strip().casefold()
    return _find(state, matches, {"email"}, lambda: state.shop.customer_by_email(email))


@tool
def find_customer_by_name(first_name: str, last_name: str, zip_code: str, state: DeskState) -> dict[str, Any]:
    """Find a customer's account by first name, last name and zip code.

    Args:
        first_name: As the customer gave it.
        last_name: As the customer gave it.
        zip_code: As the customer gave it, for example "60601".
    """
    persona = state.story.persona
    identity = [persona.first_name.casefold(), persona.last_name.casefold(), persona.zip_code]
    matches = identity == [first_name.strip().casefold(), last_name.strip().casefold(), zip_code.strip()]
    return _find(state, matches, {"name", "zip"}, lambda: state.shop.customer_by_name(first_name, last_name, zip_code))


@tool
def get_customer(customer_id: str, state: DeskState) -> dict[str, Any]:
    """Show a customer's account: name, email, address, membership, payment methods, order numbers.

    Args:
        customer_id: For example "ada_abbott_1234".
    """
    customer = state.shop.customer(customer_id)
    state.seen |= {customer.id}
    payments = []
    for payment in customer.payments:
        balance = {} if payment.balance is None else {"balance": payment.balance / 100}
        payments.append({"payment_id": payment.id, "kind": payment.kind, **balance})
    return {
        "customer_id": customer.id,
        "name": f"{customer.first_name} {customer.last_name}",
        "email": customer.email,
        "address": str(customer.address),
        "plus_member": customer.plus,
        "payments": payments,
        "orders": [order.id for order in state.shop.orders_of(customer.id)],
    }


@tool
def get_order(order_id: str, state: DeskState) -> dict[str, Any]:
    """Show an order: status, dates, items, address, payment, tracking number.

    Args:
        order_id: For example "W1234567".
    """
    state.seen |= {order_id.strip().lstrip("#").upper()}  # also where there is none: the look-up counts
    order = state.shop.order(order_id)
    items = []
    for line in order.lines:
        product, item = state.shop.item(line.item_id)
        items.append(
            {
                "item_id": line.item_id,
                "product_id": product.id,
                "product": product.name,
                "category": product.category,
                "options": dict(item.options),
                "price": line.price / 100,
                "final_sale": line.final_sale,
                "status": line.status,
            }
        )
    return {
        "order_id": order.id,
        "customer_id": order.customer_id,
        "status": order.status,
        "placed": order.placed.isoformat(),
        "promised": order.promised.isoformat(),
        "delivered": order.delivered.isoformat() if order.delivered else None,
        "address": str(order.address),
        "items": items,
        "delivery_fee": order.delivery_fee / 100,
        "paid": order.net_paid / 100,
        "payment_id": order.payment_id,
        "tracking": order.tracking or None,
    }


@tool
def list_products(state: DeskState) -> dict[str, str]:
    """List all products of the shop by name, with their ids."""
    return {product.name: product.id for product in state.shop.products.values()}


@tool
def get_product(product_id: str, state: DeskState) -> dict[str, Any]:
    """Show a product's variants: item ids, options, prices, how many are in stock.

    Args:
        product_id: For example "P12345".
    """
    product = state.shop.product(product_id)
    state.seen |= {product.id}
    items = [
        {"item_id": item.id, "options": dict(item.options), "price": item.price / 100, "in_stock": item.stock}
        for item in product.items
    ]
    return {"product_id": product.id, "name": product.name, "category": product.category, "items": items}


@tool
def cancel_order(order_id: str, reason: CancelReason, state: DeskState) -> str:
    """Cancel an order as a whole. This pays nothing back: call refund for that.

    Args:
        order_id: For example "W1234567".
        reason: The customer's reason.
    """
    order, _ = _change(state, "cancel_order", order_id, reason=reason)
    return f"Order {order.id} is cancelled. Nothing has been paid back yet."


@tool
def return_items(order_id: str, item_ids: list[str], state: DeskState) -> str:
    """Take back items of an order. This pays nothing back: call refund for that.

    Args:
        order_id: For example "W1234567".
        item_ids: The ids of the items that come back, for example ["12345678"].
    """
    order, _ = _change(state, "return_items", order_id, item_ids=item_ids)
    return f"The return of {len(item_ids)} item(s) of order {order.id} is registered. Nothing has been paid back yet."


@tool
def refund(order_id: str, amount: float, payment_id: str, state: DeskState) -> str:
    """Pay money back for an order.

    Args:
        order_id: For example "W1234567".
        amount: In dollars, for example 19.8.
        payment_id: Where it goes, for example "card_1234".
    """
    order, _ = _change(state, "refund", order_id, amount=amount, payment_id=payment_id)
    return f"${amount:.2f} went back to {payment_id.strip()} for order {order.id}."


@tool
def charge(order_id: str, amount: float, payment_id: str, state: DeskState) -> str:
    """Charge money for an order, such as a fee.

    Args:
        order_id: For example "W1234567".
        amount: In dollars, for example 19.8.
        payment_id: What is charged, for example "card_1234".
    """
    order, _ = _change(state, "charge", order_id, amount=amount, payment_id=payment_id)
    return f"${amount:.2f} were charged to {payment_id.strip()} for order {order.id}."


@tool
def exchange_items(order_id: str, item_ids: list[str], new_item_ids: list[str], state: DeskState) -> str:
    """Exchange items of an order for others of the same product. The order's payment method settles the difference.

    Args:
        order_id: For example "W1234567".
        item_ids: The ids of the items that come back.
        new_item_ids: The ids of the items to send instead, in the same order.
    """
    order, after = _change(state, "exchange_items", order_id, item_ids=item_ids, new_item_ids=new_item_ids)
    extra = after.net_paid - order.net_paid
    settled = f"${abs(extra) / 100:.2f} {'were charged to' if extra > 0 else 'went back to'} {order.payment_id}"
    return f"The exchange in order {order.id} is registered. {settled}."


@tool
def change_address(order_id: str, street: str, city: str, state_code: str, zip_code: str, state: DeskState) -> str:
    """Send an order to another address. This charges nothing: call charge for that.

    Args:
        order_id: For example "W1234567".
        street: Number and street, for example "12 Oak Street".
        city: The city.
        state_code: The state, for example "IL".
        zip_code: For example "60601".
    """
    address = {"street": street, "city": city, "state_code": state_code, "zip_code": zip_code}
    order, after = _change(state, "change_address", order_id, **address)
    return f"Order {order.id} will go to {after.address}."


@tool
def transfer_to_human(customer_id: str, summary: str, state: DeskState) -> str:
    """Hand the customer's case over to a human colleague.

    Args:
        customer_id: For example "ada_abbott_1234".
        summary: What it is about, in a sentence.
    """
    changed = state.shop.transfer_to_human(customer_id, summary)
    if state.identified != customer_id.strip():
        state.note("unidentified")
    if HANDOVER not in state.caller.consents:
        state.note("not_asked")
    if any(wish.kind == "human" and wish.order_id and wish.order_id not in state.seen for wish in state.story.chain):
        state.note("not_looked_at")
    state.shop = changed
    return "The case is with a human colleague now."


_LOOKUPS = (find_customer_by_email, find_customer_by_name, get_customer, get_order, list_products, get_product)
TOOLS = (*_LOOKUPS, cancel_order, return_items, refund, exchange_items, change_address, charge, transfer_to_human)


def _find(state: DeskState, right: bool, by: set[str], search: Callable[[], Customer]) -> dict[str, Any]:
    """Search for an account. It identifies the user when they said ``by`` themselves, and it was that."""
    matches = right and by <= state.caller.disclosed
    if matches:
        state.tried |= by
    customer = search()
    if matches:
        state.identified = customer.id
    return {"customer_id": customer.id}


def _change(state: DeskState, name: str, order_id: str, **arguments: Any) -> tuple[Order, Order]:
    """Change an order, and note the rules that it broke; the order before and after."""
    order = state.shop.order(order_id)
    action = Action(name, {"order_id": order.id, **arguments})
    state.shop = getattr(state.shop, name)(order_id, **arguments)
    if not state.identified:
        state.note("unidentified")
    elif order.customer_id != state.identified:
        state.note("not_theirs")
    if (name, order.id) not in state.caller.consents:
        state.note("unconfirmed")
    if order.id not in state.seen:
        state.note("not_looked_at")
    state.made = (*state.made, action)
    return order, state.shop.order(order_id)
