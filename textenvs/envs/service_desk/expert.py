"""The scripted service agent: identifies, looks up, keeps the rules, asks for a yes, acts, tells. And a careless one.

It uses nothing that the conversation has not shown by then: what the user said, and what it looked up itself. Where it
is in that is read off the episode's state, so it can take over from anybody at any point.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...messages import ToolCall
from ...tools import call
from .database import WRITES, Action, DatabaseError, Order
from .scenario import Wish
from .shop_rules import ELECTRONICS, LATE_DAYS, RETURN_DAYS, Decision, decide
from .tools import DeskState

#: What the agent says and calls; it does one of the two.
Move = tuple[str, tuple[ToolCall, ...]]

# What must be known before a wish can be decided, and what is asked after that.
_FIRST: Mapping[str, tuple[str, ...]] = {"return": ("order", "items"), "exchange": ("order", "items")}
_THEN: Mapping[str, tuple[str, ...]] = {"cancel": ("reason",), "exchange": ("variant",), "address": ("address",)}
_QUESTIONS: Mapping[str, str] = {
    "order": "What is the order number?",
    "items": "Which items is it about?",
    "variant": "Which variant would you like instead?",
    "address": "What is the new address?",
    "reason": "Why do you want to cancel it?",
}
# Reasons to refuse that do not depend on what is asked later.
_EARLY = frozenset({"shipped", "not_delivered", "window", "final_sale", "on_time", "not_yours"})
_VERBS: Mapping[str, str] = {
    "cancel": "cancel it",
    "return": "take this back",
    "exchange": "exchange this",
    "address": "change the address",
    "late_fee": "refund the delivery fee",
    "question": "say anything about it",
}


def next_move(state: DeskState) -> Move:
    """What a good agent does next."""
    wish = state.caller.wish
    if wish is None:
        return "Thank you for calling. Goodbye.", ()
    if not state.identified:
        return _identify(state)
    said = state.caller.said
    first = _FIRST.get(wish.kind, ("order", "items") if wish.topic == "refund" else ("order",))
    for slot in first if wish.order_id else ():
        if slot not in said:
            return _QUESTIONS[slot], ()
    if look := _look_up(state, wish):
        return "", (look,)
    # The user's wish about the payment is only known once they said it.
    wish = wish if "payment" in said else replace(wish, payment_id="")
    decision = decide(state.story.database, state.identified, wish)
    if early := [reason for reason in decision.reasons if reason in _EARLY]:
        return _refusal(state, wish, early[0]), ()
    for slot in _THEN.get(wish.kind, ()):
        if slot not in said:
            return _QUESTIONS[slot], ()
    if wish.kind == "exchange" and (unseen := _products(state, wish) - state.seen):
        return "", (call("get_product", product_id=min(unseen)),)
    if decision.reasons:
        return _refusal(state, wish, decision.reasons[0]), ()
    if wish.kind == "question":
        return _fact(state, wish, decision), ()
    return _grant(state, wish, decision)


def careless_move(state: DeskState, rng: np.random.Generator) -> Move:
    """What a careless agent does next: acts unasked or on the wrong order, makes things up, or refuses for nothing."""
    wish, shop = state.caller.wish, state.shop
    kind = int(rng.integers(5))
    if kind == 0 and wish is not None and wish.order_id:
        # Without asking who this is, whether it is allowed, and whether it is what the user wants.
        if wish.kind == "cancel" and wish.reason:
            return "", (call("cancel_order", order_id=wish.order_id, reason="no_longer_needed"),)
        if wish.item_ids:
            return "", (call("return_items", order_id=wish.order_id, item_ids=list(wish.item_ids)),)
    if kind <= 1:
        order = list(shop.orders.values())[int(rng.integers(len(shop.orders)))]
        if order.status == "pending":
            return "", (call("cancel_order", order_id=order.id, reason="ordered_by_mistake"),)
        return "", (call("refund", order_id=order.id, amount=order.delivery_fee / 100, payment_id=order.payment_id),)
    if kind == 2:
        return "Done: everything has been changed as you wish. Is there anything else?", ()
    if kind == 3:
        return "I am sorry, I cannot do that.", ()
    return "A human colleague will contact you about this.", ()


# ------------------------------------------------------------------ finding out


def _identify(state: DeskState) -> Move:
    said, persona = state.caller.said, state.story.persona
    if "email" in said and persona.knows_email and "email" not in state.tried:
        return "", (call("find_customer_by_email", email=persona.email),)
    if {"name", "zip"} <= said:
        if "name" not in state.tried:
            names = {"first_name": persona.first_name, "last_name": persona.last_name}
            return "", (call("find_customer_by_name", **names, zip_code=persona.zip_code),)
        return "I am sorry, I could not find an account that matches, so I cannot verify who you are.", ()
    if "email" in said:
        return "Please tell me your full name and your zip code.", ()
    return "May I have your email address, or else your full name and your zip code?", ()


def _look_up(state: DeskState, wish: Wish) -> ToolCall | None:
    """The next thing to look at before the wish can be decided."""
    account = state.identified not in state.seen
    if wish.order_id and wish.order_id not in state.seen:
        if state.story.persona.knows_order:
            return call("get_order", order_id=wish.order_id)
        if account:
            return call("get_customer", customer_id=state.identified)
        orders = state.shop.orders_of(state.identified)
        return call("get_order", order_id=next(order.id for order in orders if order.id not in state.seen))
    if account and (wish.topic == "balance" or (_is_return(wish) and _has_electronics(state, wish))):
        return call("get_customer", customer_id=state.identified)
    return None


def _is_return(wish: Wish) -> bool:
    return wish.kind == "return" or wish.topic == "refund"


def _has_electronics(state: DeskState, wish: Wish) -> bool:
    return any(state.shop.product(product).category == ELECTRONICS for product in _products(state, wish))


def _products(state: DeskState, wish: Wish) -> frozenset[str]:
    """The products of the items that the wish is about."""
    return frozenset(state.shop.item(item_id)[0].id for item_id in wish.item_ids)


# ------------------------------------------------------------------ refusing, telling, doing


def _refusal(state: DeskState, wish: Wish, reason: str) -> str:
    order = state.shop.order(wish.order_id)
    sorry = f"I am sorry, I cannot {_VERBS[wish.kind]}:"
    if reason == "shipped":
        return f"{sorry} order {order.id} has already been {order.status}."
    if reason == "not_delivered":
        return f"{sorry} order {order.id} has not been delivered yet."
    if reason == "window":
        return f"{sorry} order {order.id} was delivered on {order.delivered}, more than {RETURN_DAYS} days ago."
    if reason == "final_sale":
        return f"{sorry} the {_things(wish)} was a final sale."
    if reason == "on_time":
        return (
            f"{sorry} the parcel came on {order.delivered}, no more than {LATE_DAYS} days after the promised day, "
            f"{order.promised}."
        )
    if reason == "not_yours":
        return f"{sorry} order {order.id} belongs to another customer."
    if reason == "cancel_reason":
        return f"{sorry} only orders that are no longer needed or were made by mistake can be cancelled."
    if reason == "payment":
        return "I am sorry, I cannot do that: the money can only go back to the original payment method."
    return f"I am sorry, the {_things(wish)} in {', '.join(wish.wanted)} is out of stock."


def _fact(state: DeskState, wish: Wish, decision: Decision) -> str:
    if wish.topic == "balance":
        cards = [each for each in state.shop.customer(state.identified).payments if each.balance is not None]
        left = " and ".join(f"{_money(each.balance or 0)} on {each.id}" for each in cards)
        return f"There is {left}. Is there anything else?"
    order = state.shop.order(wish.order_id)
    if wish.topic == "tracking":
        return f"The tracking number of order {order.id} is {order.tracking}. Is there anything else?"
    if wish.topic == "promised":
        return f"Order {order.id} should arrive on {order.promised}. Is there anything else?"
    if wish.topic == "total":
        return f"You paid {_money(order.paid)} in all for order {order.id}. Is there anything else?"
    returned = decide(state.story.database, state.identified, replace(wish, kind="return"))
    return f"For the {_things(wish)} you would get {_money(returned.cents)} back. Is there anything else?"


def _grant(state: DeskState, wish: Wish, decision: Decision) -> Move:
    """Ask for a yes, do it, and say so."""
    if wish.kind == "human":
        if any(ticket.customer_id == state.identified for ticket in state.shop.tickets):
            return "I have handed your case over to a human colleague, who will contact you soon.", ()
        (transfer,) = decision.actions
        return "", (call(transfer.name, **transfer.arguments),)
    order = state.shop.order(wish.order_id)
    left = [action for action in decision.actions if action not in state.made]
    if not left:
        return f"Done: {_done(wish, order, decision)} Is there anything else?", ()
    if any((action.name, order.id) not in state.caller.consents for action in left):
        return f"{_proposal(wish, order, decision)} Do you confirm (yes/no)?", ()
    if not _possible(state, left[0]):
        return f"I am sorry, I cannot {_VERBS[wish.kind]} any more: something went wrong before.", ()
    return "", (call(left[0].name, **left[0].arguments),)


def _possible(state: DeskState, action: Action) -> bool:
    assert action.name in WRITES
    try:
        state.shop.replay([action])
    except DatabaseError:
        return False
    return True


def _proposal(wish: Wish, order: Order, decision: Decision) -> str:
    money, payment = _money(abs(decision.cents)), order.payment_id
    if wish.kind == "cancel":
        return f"I would cancel order {order.id} ({_things(wish)}) and pay {money} back to {payment}."
    if wish.kind == "return":
        return f"I would take the return of the {_things(wish)} of order {order.id} and refund {money} to {payment}."
    if wish.kind == "address":
        return f"I would send order {order.id} to this address: {wish.address}."
    if wish.kind == "late_fee":
        return f"I would refund the delivery fee of order {order.id}, {money}, to {payment}."
    settled = f"{money} would go back to" if decision.cents >= 0 else f"{money} more would be charged to"
    return (
        f"I would exchange the {_things(wish)} of order {order.id} for {', '.join(wish.wanted)}; {settled} {payment}."
    )


def _done(wish: Wish, order: Order, decision: Decision) -> str:
    money = _money(abs(decision.cents))
    if wish.kind == "cancel":
        return f"order {order.id} is cancelled, and {money} goes back to {order.payment_id}."
    if wish.kind == "return":
        return f"the return of the {_things(wish)} is registered, and {money} goes back to {order.payment_id}."
    if wish.kind == "address":
        return f"order {order.id} will go to {wish.address}."
    if wish.kind == "late_fee":
        return f"the delivery fee, {money}, goes back to {order.payment_id}."
    return f"the exchange of the {_things(wish)} is registered."


def _things(wish: Wish) -> str:
    return " and the ".join(wish.things)


def _money(cents: int) -> str:
    return f"${cents / 100:.2f}"
