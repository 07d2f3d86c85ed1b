"""The scripted service agent: identifies, looks up, keeps the rules, asks for a yes, acts, tells. And a careless one.

It uses nothing that the conversation has not shown by then: what the user said, and what it looked up itself. Where it
is in that is read off the episode's state, so it can take over at any point. Its sentences are ``expert.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np

from ...messages import ToolCall
from ...text import load_yaml
from ...tools import call
from .database import DatabaseError
from .scenario import Wish
from .shop_rules import RETURN_DAYS, Decision, decide
from .tools import DeskState
from .user import HANDOVER

# Kinds and topics that depend on the customer's account: fees depend on the membership.
_ON_ACCOUNT = frozenset({"cancel", "return", "exchange", "address", "late_fee", "refund", "balance"})
#: What the agent says or calls.
Move = str | ToolCall

_TEXTS: Mapping[str, Any] = load_yaml(__package__, "expert.yaml")
# Slots to ask for before the order is looked at; the others are asked when nothing speaks against the wish.
_FIRST = ("order", "items")
_THEN = ("variant", "address", "reason")
# Reasons to refuse that do not depend on what is asked later.
_EARLY = frozenset({"shipped", "not_delivered", "window", "final_sale", "on_time", "not_yours"})


def next_move(state: DeskState) -> Move:
    wish = state.caller.wish
    if wish is None:
        return str(_TEXTS["thanks"])
    if not state.identified:
        return _identify(state)
    disclosed = state.caller.disclosed
    asks = wish.asks | ({"order", "items"} if wish.topic == "refund" else {"order"} if wish.order_id else set())
    if slot := next((slot for slot in _FIRST if slot in asks - disclosed), None):
        return str(_TEXTS["questions"][slot])
    if wish.wrong_number and "corrected" not in disclosed and state.story.persona.knows_order:
        if wish.wrong_number in state.seen:
            return str(_TEXTS["no_such_order"].format(order=wish.wrong_number))
        return call("get_order", order_id=wish.wrong_number)
    if look := _look_up(state, wish):
        return look
    # The user's payment method is unknown until they disclose it.
    wish = wish if "payment" in disclosed else replace(wish, payment_id="")
    decision = decide(state.story.database, state.identified, wish)
    if early := [reason for reason in decision.reasons if reason in _EARLY]:
        return _say("refusals", early[0], state, wish, decision)
    if slot := next((slot for slot in _THEN if slot in asks - disclosed), None):
        return str(_TEXTS["questions"]["case" if wish.kind == "human" else slot])
    if (wish.topic in _ON_ACCOUNT or wish.kind in _ON_ACCOUNT) and state.identified not in state.seen:
        return call("get_customer", customer_id=state.identified)
    if wish.kind == "exchange" and (unseen := _products(state, wish) - state.seen):
        return call("get_product", product_id=min(unseen))
    if decision.reasons:
        return _say("refusals", decision.reasons[0], state, wish, decision)
    if wish.kind == "question":
        return _say("facts", str(wish.topic), state, wish, decision)
    return _grant(state, wish, decision)


def careless_move(state: DeskState, rng: np.random.Generator) -> Move:
    """Return a careless move: a change without consent or on the wrong order, a false claim, a bare refusal."""
    wish, shop = state.caller.wish, state.shop
    kind = int(rng.integers(5))
    if kind == 0 and wish is not None and wish.order_id:
        # Without asking who this is, whether it is allowed, and whether it is what the user wants.
        if wish.kind == "cancel" and wish.reason:
            return call("cancel_order", order_id=wish.order_id, reason="no_longer_needed")
        if wish.item_ids:
            return call("return_items", order_id=wish.order_id, item_ids=list(wish.item_ids))
    if kind <= 1:
        order = list(shop.orders.values())[int(rng.integers(len(shop.orders)))]
        if order.status == "pending":
            return call("cancel_order", order_id=order.id, reason="ordered_by_mistake")
        return call("refund", order_id=order.id, amount=order.delivery_fee / 100, payment_id=order.payment_id)
    return str(_TEXTS["careless"][kind - 2])


def _identify(state: DeskState) -> Move:
    disclosed, persona = state.caller.disclosed, state.story.persona
    if "email" in disclosed and persona.knows_email and "email" not in state.tried:
        return call("find_customer_by_email", email=persona.email)
    if {"name", "zip"} <= disclosed:
        if "name" not in state.tried:
            names = {"first_name": persona.first_name, "last_name": persona.last_name}
            return call("find_customer_by_name", **names, zip_code=persona.zip_code)
        return str(_TEXTS["unverified"])
    return str(_TEXTS["name_instead" if "email" in disclosed else "identify"])


def _look_up(state: DeskState, wish: Wish) -> ToolCall | None:
    """Return the next look-up that the decision needs; ``None`` if there is none."""
    account = state.identified not in state.seen
    if wish.order_id and wish.order_id not in state.seen:
        if state.story.persona.knows_order:
            return call("get_order", order_id=wish.order_id)
        if account:
            return call("get_customer", customer_id=state.identified)
        orders = state.shop.orders_of(state.identified)
        return call("get_order", order_id=next(order.id for order in orders if order.id not in state.seen))
    return None


def _products(state: DeskState, wish: Wish) -> frozenset[str]:
    return frozenset(state.shop.item(item_id)[0].id for item_id in wish.item_ids)


def _grant(state: DeskState, wish: Wish, decision: Decision) -> Move:
    """Return the next step of granting a wish: ask for a yes, make the changes, report them."""
    if wish.kind == "human":
        if any(ticket.customer_id == state.identified for ticket in state.shop.tickets):
            return str(_TEXTS["handed_over"])
        assert HANDOVER in state.caller.consents
        (transfer,) = decision.actions
        return call(transfer.name, **transfer.arguments)
    remaining = [action for action in decision.actions if action not in state.made]
    if not remaining:
        return _say("dones", wish.kind, state, wish, decision)
    if any((action.name, wish.order_id) not in state.caller.consents for action in remaining):
        return _say("proposals", wish.kind, state, wish, decision)
    try:
        state.shop.replay(remaining[:1])
    except DatabaseError:
        return str(_TEXTS["too_late"].format(verb=_TEXTS["verbs"][wish.kind]))
    return call(remaining[0].name, **remaining[0].arguments)


def _say(what: str, which: str, state: DeskState, wish: Wish, decision: Decision) -> str:
    """Format a sentence of ``expert.yaml`` about a wish and its order."""
    order = state.shop.orders.get(wish.order_id)
    things, variant = " and the ".join(wish.things), ", ".join(wish.wanted)
    values = {"verb": _TEXTS["verbs"][wish.kind], "things": things, "wanted": variant, "address": wish.address}
    payments = state.shop.customer(state.identified).payments
    cents = {"money": abs(decision.cents), "balance": sum(payment.balance or 0 for payment in payments)}
    values["settled"] = "would go back to" if decision.cents > 0 else "more would be charged to"
    if order is not None:
        cents |= {"paid": order.net_paid, "fee": order.delivery_fee}
        values["deadline"] = order.delivered and order.delivered + timedelta(days=RETURN_DAYS)
    if wish.topic == "refund":
        cents["refund"] = decide(state.story.database, state.identified, replace(wish, kind="return")).cents
    dollars = {name: f"${value / 100:.2f}" for name, value in cents.items()}
    text = str(_TEXTS[what][which]).format(order=order, **values, **dollars)
    return str(_TEXTS["frames"].get(what, "{}")).format(text)
