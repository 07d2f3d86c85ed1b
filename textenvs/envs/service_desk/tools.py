"""The assistant's tools, over the episode's own database.

They do what they are told as far as the database allows it (:mod:`~textenvs.envs.service_desk.database`). The shop's
rules are the assistant's to keep; what it did against them is only noted here, for the reward.
"""

# ruff: noqa: D417  the docstrings are for the model, and the state is not its to give

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

from ...tool_env import ToolState
from ...tools import tool
from .database import Action, CancelReason, Customer, Database, Order
from .scenario import Persona, Scenario
from .user import HANDOVER, UserState

# The shop before the first episode.
_EMPTY = Database(date.min, {}, {}, {})


@dataclass
class DeskState(ToolState):
    """An episode at the service desk. All after ``caller`` are notes for the reward and the scripted expert.

    Args:
        story: The task.
        shop: The shop as it stands.
        right: The shop as it should be in the end.
        caller: The user as they stand.
        tried: ``"email"``, ``"name"``: searches made with what the user said about themselves, whatever they found.
        identified: The id of the customer whom such a search found.
        seen: Orders, customers and products that were looked at.
        made: The changes that were made, in order.
        violations: The rules that were broken.
        standing: The share of the task that is done; see ``ServiceDesk``'s reward term ``progress``.
    """

    story: Scenario = Scenario("", _EMPTY, Persona("", "", "", ""), "", ())
    shop: Database = _EMPTY
    right: Database = _EMPTY
    caller: UserState = UserState(wish=None)
    tried: frozenset[str] = frozenset()
    identified: str = ""
    seen: frozenset[str] = frozenset()
    made: tuple[Action, ...] = ()
    violations: tuple[str, ...] = ()
    standing: float = 0.0

    def note(self, violation: str) -> None:
        if violation not in self.violations:
            self.violations = (*self.violations, violation)


# ------------------------------------------------------------------ looking things up


@tool
def find_customer_by_email(email: str, state: DeskState) -> dict[str, Any]:
    """Find a customer's account by email address.

    Args:
        email: The address that the customer gave.
    """
    said = _said_email(state, email)
    if said:
        state.tried |= {"email"}
    customer = state.shop.customer_by_email(email)
    if said:
        state.identified = customer.id
    return {"customer_id": customer.id}


@tool
def find_customer_by_name(first_name: str, last_name: str, zip_code: str, state: DeskState) -> dict[str, Any]:
    """Find a customer's account by first name, last name and zip code.

    Args:
        first_name: As the customer gave it.
        last_name: As the customer gave it.
        zip_code: As the customer gave it, for example "60601".
    """
    said = _said_name(state, first_name, last_name, zip_code)
    if said:
        state.tried |= {"name"}
    customer = state.shop.customer_by_name(first_name, last_name, zip_code)
    if said:
        state.identified = customer.id
    return {"customer_id": customer.id}


@tool
def get_customer(customer_id: str, state: DeskState) -> dict[str, Any]:
    """Show a customer's account: name, email, address, membership, payment methods, order numbers.

    Args:
        customer_id: For example "ada_abbott_1234".
    """
    customer = state.shop.customer(customer_id)
    state.seen |= {customer.id}
    return _show_customer(state.shop, customer)


@tool
def get_order(order_id: str, state: DeskState) -> dict[str, Any]:
    """Show an order: status, dates, items, address, payment, tracking number.

    Args:
        order_id: For example "W1234567".
    """
    state.seen |= {order_id.strip().lstrip("#").upper()}  # also where there is none: it was looked for
    return _show_order(state.shop, state.shop.order(order_id))


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
        {"item_id": item.id, "options": dict(item.options), "price": _dollars(item.price), "in_stock": item.stock}
        for item in product.items
    ]
    return {"product_id": product.id, "name": product.name, "category": product.category, "items": items}


# ------------------------------------------------------------------ changes


@tool
def cancel_order(order_id: str, reason: CancelReason, state: DeskState) -> str:
    """Cancel a pending order as a whole. All that was paid goes back to its payment method.

    Args:
        order_id: For example "W1234567".
        reason: The customer's reason.
    """
    order = state.shop.order(order_id)
    _change(state, order, state.shop.cancel_order(order_id, reason), "cancel_order", reason=reason)
    return f"Order {order.id} is cancelled. {_money(order.paid)} went back to {order.payment_id}."


@tool
def return_items(order_id: str, item_ids: list[str], state: DeskState) -> str:
    """Take back items of a delivered order. This pays nothing back: call refund for that.

    Args:
        order_id: For example "W1234567".
        item_ids: The ids of the items that come back, for example ["12345678"].
    """
    order = state.shop.order(order_id)
    _change(state, order, state.shop.return_items(order_id, item_ids), "return_items", item_ids=item_ids)
    return f"The return of {len(item_ids)} item(s) of order {order.id} is registered. Nothing has been paid back yet."


@tool
def refund(order_id: str, amount: float, payment_id: str, state: DeskState) -> str:
    """Pay money back for an order.

    Args:
        order_id: For example "W1234567".
        amount: In dollars, for example 19.8.
        payment_id: Where it goes, for example "card_1234".
    """
    order = state.shop.order(order_id)
    changed = state.shop.refund(order_id, amount, payment_id)
    _change(state, order, changed, "refund", amount=amount, payment_id=payment_id)
    return f"${amount:.2f} went back to {payment_id.strip()} for order {order.id}."


@tool
def exchange_items(order_id: str, item_ids: list[str], new_item_ids: list[str], state: DeskState) -> str:
    """Exchange items of a delivered order for others of the same product. The order's payment method settles the price.

    Args:
        order_id: For example "W1234567".
        item_ids: The ids of the items that come back.
        new_item_ids: The ids of the items to send instead, in the same order.
    """
    order = state.shop.order(order_id)
    changed = state.shop.exchange_items(order_id, item_ids, new_item_ids)
    _change(state, order, changed, "exchange_items", item_ids=item_ids, new_item_ids=new_item_ids)
    difference = changed.order(order_id).paid - order.paid
    settled = f"{_money(abs(difference))} {'were charged to' if difference > 0 else 'went back to'} {order.payment_id}"
    return f"The exchange in order {order.id} is registered. {settled}."


@tool
def change_address(order_id: str, street: str, city: str, state_code: str, zip_code: str, state: DeskState) -> str:
    """Send a pending order to another address.

    Args:
        order_id: For example "W1234567".
        street: Number and street, for example "12 Oak Street".
        city: The city.
        state_code: The state, for example "IL".
        zip_code: For example "60601".
    """
    order = state.shop.order(order_id)
    changed = state.shop.change_address(order_id, street, city, state_code, zip_code)
    address = {"street": street, "city": city, "state_code": state_code, "zip_code": zip_code}
    _change(state, order, changed, "change_address", **address)
    return f"Order {order.id} will go to {changed.order(order_id).address}."


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


TOOLS = (
    find_customer_by_email,
    find_customer_by_name,
    get_customer,
    get_order,
    list_products,
    get_product,
    cancel_order,
    return_items,
    refund,
    exchange_items,
    change_address,
    transfer_to_human,
)


# ------------------------------------------------------------------ inside


def _change(state: DeskState, order: Order, changed: Database, name: str, **arguments: Any) -> None:
    """Keep a change of an order, and note the rules that it broke."""
    if not state.identified:
        state.note("unidentified")
    elif order.customer_id != state.identified:
        state.note("not_theirs")
    if (name, order.id) not in state.caller.consents:
        state.note("unconfirmed")
    if order.id not in state.seen:
        state.note("not_looked_at")
    state.made = (*state.made, Action(name, {"order_id": order.id, **arguments}))
    state.shop = changed


def _said_email(state: DeskState, email: str) -> bool:
    """Whether the user has given that email address: a search with another one does not identify them."""
    persona = state.story.persona
    return "email" in state.caller.said and persona.email.casefold() == email.strip().casefold()


def _said_name(state: DeskState, first_name: str, last_name: str, zip_code: str) -> bool:
    persona = state.story.persona
    known = (persona.first_name.casefold(), persona.last_name.casefold(), persona.zip_code)
    given = (first_name.strip().casefold(), last_name.strip().casefold(), zip_code.strip())
    return {"name", "zip"} <= state.caller.said and known == given


def _show_customer(database: Database, customer: Customer) -> dict[str, Any]:
    payments = []
    for payment in customer.payments:
        shown: dict[str, Any] = {"payment_id": payment.id, "kind": payment.kind}
        if payment.balance is not None:
            shown["balance"] = _dollars(payment.balance)
        payments.append(shown)
    return {
        "customer_id": customer.id,
        "name": f"{customer.first_name} {customer.last_name}",
        "email": customer.email,
        "address": str(customer.address),
        "plus_member": customer.plus,
        "payments": payments,
        "orders": [order.id for order in database.orders_of(customer.id)],
    }


def _show_order(database: Database, order: Order) -> dict[str, Any]:
    items = []
    for line in order.lines:
        product, item = database.item(line.item_id)
        items.append(
            {
                "item_id": line.item_id,
                "product_id": product.id,
                "product": product.name,
                "category": product.category,
                "options": dict(item.options),
                "price": _dollars(line.price),
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
        "delivery_fee": _dollars(order.delivery_fee),
        "paid": _dollars(order.paid),
        "payment_id": order.payment_id,
        "tracking": order.tracking or None,
    }


def _dollars(cents: int) -> float:
    return cents / 100


def _money(cents: int) -> str:
    return f"${cents / 100:.2f}"
