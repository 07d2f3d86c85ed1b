"""The kinds of generated tasks: what the user wants, in a shop that makes it right or wrong to grant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from .database import Customer, Order
from .scenario import Fact, Reason, Wish
from .shop_rules import CANCEL_REASONS, LATE_DAYS, LOST_DAYS, RETURN_DAYS, lines_of, refund_for
from .world import World

_OPENINGS: Mapping[str, tuple[str, ...]] = {
    "cancel": ("I want to cancel an order.", "I would like to cancel something that I ordered."),
    "return": ("I want to send something back.", "I would like to return something."),
    "exchange": ("I would like to exchange something.", "I want to swap something for another version."),
    "address": ("I need an order sent to another address.", "An order of mine has to go to a different address."),
    "late_fee": (
        "My parcel came late. I want the delivery fee back.",
        "A parcel was late. I want the fee for it back.",
    ),
    "tracking": ("I need the tracking number of a parcel.", "I would like to have a tracking number."),
    "promised": ("I would like to know when a parcel will come.", "I want to know on which day a parcel will be here."),
    "total": ("I need to know what I paid for an order in all.", "I want to know the total that I paid for an order."),
    "refund": ("I would like to know how much I would get back for something if I returned it.",),
    "balance": ("I would like to know how much is left on my gift card.",),
    "lost": ("My parcel never came, and it has been weeks.", "I still wait for a parcel that should be here long ago."),
    "dispute": ("There is a charge of yours on my bank statement that I do not recognise.",),
    "close": ("I want my account closed.", "Please close my account."),
}
_CANCEL_WORDS: Mapping[str, str] = {
    "no_longer_needed": "I do not need it any more.",
    "ordered_by_mistake": "I ordered it by mistake.",
    "found_cheaper": "I found it for a better price in another shop.",
    "wants_coupon": "I would like to buy it again with a coupon that I forgot.",
}
_RETURN_WORDS = (
    "I do not like it after all.",
    "It is not what I expected.",
    "It was a present, and it was not wanted.",
)


@dataclass(frozen=True)
class Draft:
    """A task before its right outcome is worked out.

    Args:
        customer: Whose account the talk is about.
        wishes: What the user wants.
        private: Texts that the user must not be told.
        number_known: The user has to know the order's number.
        impostor: The user is not the customer and cannot prove to be.
    """

    customer: Customer
    wishes: tuple[Wish, ...]
    private: tuple[str, ...] = ()
    number_known: bool = False
    impostor: bool = False


# ------------------------------------------------------------------ wishes


def _opening(world: World, name: str) -> str:
    return world.rng.choice(_OPENINGS[name])


def _names(world: World, order: Order, item_ids: Sequence[str] = ()) -> tuple[str, ...]:
    lines = lines_of(order, item_ids) if item_ids else order.lines
    return tuple(world.products[line.product_id].name for line in lines)


def _cancel_wish(world: World, order: Order, reason: str = "") -> Wish:
    reason = reason or world.rng.choice(CANCEL_REASONS)
    return Wish(
        "cancel",
        _opening(world, "cancel"),
        order.id,
        things=_names(world, order),
        reason=reason,
        reason_words=_CANCEL_WORDS[reason],
    )


def _return_wish(world: World, order: Order, item_ids: Sequence[str]) -> Wish:
    return Wish(
        "return",
        _opening(world, "return"),
        order.id,
        things=_names(world, order, item_ids),
        item_ids=tuple(item_ids),
        reason_words=world.rng.choice(_RETURN_WORDS),
    )


def _exchange_wish(world: World, order: Order, item_id: str, *, in_stock: bool = True) -> Wish:
    (line,) = lines_of(order, [item_id])
    new = world.other_items(line)[0]
    if not in_stock:
        new = world.stock(new, 0)
    return Wish(
        "exchange",
        _opening(world, "exchange"),
        order.id,
        things=_names(world, order, [item_id]),
        item_ids=(item_id,),
        new_item_ids=(new.id,),
        wanted=tuple(value for _, value in new.options),
    )


def _address_wish(world: World, order: Order) -> Wish:
    opening = _opening(world, "address")
    return Wish("address", opening, order.id, things=_names(world, order), address=world.address())


def _fee_wish(world: World, order: Order) -> Wish:
    return Wish("late_fee", _opening(world, "late_fee"), order.id, things=_names(world, order))


def _tracking_wish(world: World, order: Order) -> Wish:
    others = tuple(each.tracking for each in world.orders.values() if each.tracking and each.id != order.id)
    fact = Fact("text", order.tracking, "What is the tracking number?", others)
    opening, things = _opening(world, "tracking"), _names(world, order)
    return Wish("question", opening, order.id, things=things, topic="tracking", facts=(fact,))


def _refused(wish: Wish, because: Reason) -> Wish:
    return replace(wish, because=because, facts=())


def _delivered(
    world: World,
    customer: Customer,
    count: int = 1,
    category: str | None = None,
    *,
    ago: int | None = None,
    late_by: int | None = None,
) -> Order:
    names = world.product_names(customer, count, category)
    ago = world.rng.randint(2, RETURN_DAYS - 2) if ago is None else ago
    late_by = world.rng.randint(-2, 0) if late_by is None else late_by
    return world.order(customer, names, "delivered", delivered_ago=ago, late_by=late_by)


def _pending(world: World, customer: Customer) -> Order:
    return world.order(customer, world.product_names(customer, world.rng.randint(1, 2)), "pending")


def _shipped(world: World, customer: Customer, overdue: int = -2) -> Order:
    return world.order(customer, world.product_names(customer, 1), "shipped", overdue=overdue)


def _first_item(order: Order) -> list[str]:
    return [order.lines[0].item_id]


# ------------------------------------------------------------------ easy: one wish, all at hand


def _cancel(world: World) -> Draft:
    customer = world.customer()
    return Draft(customer, (_cancel_wish(world, _pending(world, customer)),))


def _change_address(world: World) -> Draft:
    customer = world.customer()
    return Draft(customer, (_address_wish(world, _pending(world, customer)),))


def _return(world: World) -> Draft:
    customer = world.customer()
    order = _delivered(world, customer, world.rng.randint(1, 2), "-electronics")
    return Draft(customer, (_return_wish(world, order, _first_item(order)),))


def _question(world: World) -> Draft:
    customer = world.customer(gift_card=True)
    order = _shipped(world, customer)
    topic = world.rng.choice(("tracking", "promised", "total", "balance"))
    wish = _tracking_wish(world, order)
    if topic == "promised":
        wish = replace(wish, topic="promised", facts=(Fact("date", order.promised.isoformat(), "On which day?"),))
    elif topic == "total":
        wish = replace(wish, topic="total", facts=(Fact("amount", str(order.paid), "How much was it in all?"),))
    elif topic == "balance":
        balance = next(each.balance for each in customer.payments if each.balance is not None)
        wish = replace(wish, topic="balance", order_id="", things=())
        wish = replace(wish, facts=(Fact("amount", str(balance), "How much is it?"),))
    return Draft(customer, (replace(wish, opening=_opening(world, topic)),))


def _cancel_sent(world: World) -> Draft:
    customer = world.customer()
    order = _shipped(world, customer) if world.rng.random() < 0.5 else _delivered(world, customer)
    wish = _cancel_wish(world, order) if world.rng.random() < 0.7 else _address_wish(world, order)
    return Draft(customer, (_refused(wish, "shipped"),))


def _return_too_late(world: World) -> Draft:
    customer = world.customer()
    order = _delivered(world, customer, ago=RETURN_DAYS + world.rng.randint(1, 60))
    return Draft(customer, (_refused(_return_wish(world, order, _first_item(order)), "window"),))


# ------------------------------------------------------------------ medium: things to find out, rules to know


def _exchange(world: World) -> Draft:
    customer = world.customer()
    order = _delivered(world, customer, world.rng.randint(1, 2))
    return Draft(customer, (_exchange_wish(world, order, order.lines[0].item_id),))


def _return_electronics(world: World) -> Draft:
    customer = world.customer(plus=world.rng.random() < 0.4)
    order = _delivered(world, customer, category="electronics")
    return Draft(customer, (_return_wish(world, order, _first_item(order)),))


def _late_parcel(world: World) -> Draft:
    customer = world.customer()
    order = _delivered(world, customer, late_by=LATE_DAYS + world.rng.randint(1, 6))
    return Draft(customer, (_fee_wish(world, order),))


def _parcel_on_time(world: World) -> Draft:
    customer = world.customer()
    order = _delivered(world, customer, late_by=world.rng.randint(0, LATE_DAYS))
    return Draft(customer, (_refused(_fee_wish(world, order), "on_time"),))


def _return_final_sale(world: World) -> Draft:
    customer = world.customer()
    names = world.product_names(customer, 2)
    order = world.order(customer, names, "delivered", delivered_ago=world.rng.randint(2, 20), final_sale=names[:1])
    item = order.lines[0].item_id
    wish = _return_wish(world, order, [item]) if world.rng.random() < 0.6 else _exchange_wish(world, order, item)
    return Draft(customer, (_refused(wish, "final_sale"),))


def _return_undelivered(world: World) -> Draft:
    customer = world.customer()
    order = _shipped(world, customer)
    return Draft(customer, (_refused(_return_wish(world, order, _first_item(order)), "not_delivered"),))


def _not_theirs(world: World) -> Draft:
    customer, other = world.customer(), world.customer()
    if world.rng.random() < 0.5:
        order = _pending(world, other)
        wish = _cancel_wish(world, order)
    else:
        order = _shipped(world, other)
        wish = _tracking_wish(world, order)
    private = (other.email, other.address.street, *filter(None, (order.tracking,)))
    return Draft(customer, (_refused(wish, "not_yours"),), private, number_known=True)


def _cancel_for_no_good_reason(world: World) -> Draft:
    customer = world.customer()
    reason = world.rng.choice([reason for reason in _CANCEL_WORDS if reason not in CANCEL_REASONS])
    wish = _cancel_wish(world, _pending(world, customer), reason)
    return Draft(customer, (_refused(wish, "cancel_reason"),))


def _human(world: World) -> Draft:
    customer = world.customer()
    what = world.rng.choice(("lost", "dispute", "close"))
    if what == "lost":
        order = _shipped(world, customer, overdue=LOST_DAYS + world.rng.randint(1, 30))
        return Draft(customer, (Wish("human", _opening(world, what), order.id, things=_names(world, order)),))
    world.noise(customer, 1)
    return Draft(customer, (Wish("human", _opening(world, what)),))


def _dropped(world: World) -> Draft:
    draft = world.rng.choice((_cancel, _return, _change_address))(world)
    return replace(draft, wishes=(replace(draft.wishes[0], switch="confirm"),))


def _how_much_back(world: World) -> Draft:
    customer = world.customer(plus=world.rng.random() < 0.4)
    order = _delivered(world, customer, 2, world.rng.choice(("electronics", "-electronics")))
    lines = order.lines[: world.rng.randint(1, 2)]
    cents = refund_for(world.database, customer, lines)
    wish = Wish(
        "question",
        _opening(world, "refund"),
        order.id,
        things=_names(world, order, [line.item_id for line in lines]),
        item_ids=tuple(line.item_id for line in lines),
        topic="refund",
        facts=(Fact("amount", str(cents), "How much would it be?"),),
    )
    return Draft(customer, (wish,))


# ------------------------------------------------------------------ hard: several wishes, second thoughts, no giving in


def _return_two_exchange_one(world: World) -> Draft:
    customer = world.customer(plus=world.rng.random() < 0.4)
    order = _delivered(world, customer, world.rng.randint(3, 4))
    items = [line.item_id for line in order.lines]
    back = _return_wish(world, order, items[:2])
    swap = replace(
        _exchange_wish(world, order, items[2]),
        opening="I would also like to exchange something from the same order.",
        says=("order",),
    )
    return Draft(customer, (back, swap))


def _out_of_stock(world: World) -> Draft:
    customer = world.customer()
    order = _delivered(world, customer, world.rng.randint(1, 2))
    line = order.lines[0]
    gone, second = (item for item in world.other_items(line)[:2])
    world.stock(gone, 0)
    first = replace(
        _exchange_wish(world, order, line.item_id),
        new_item_ids=(gone.id,),
        wanted=tuple(value for _, value in gone.options),
    )
    instead = replace(
        first,
        opening=f"Then I would take {second.variant}.",
        says=("order", "items", "variant"),
        new_item_ids=(second.id,),
        wanted=tuple(value for _, value in second.options),
    )
    return Draft(customer, (replace(_refused(first, "stock"), switch="refused", instead=instead),))


def _refund_elsewhere(world: World) -> Draft:
    customer = world.customer(gift_card=True)
    order = _delivered(world, customer, world.rng.randint(1, 2))
    other = world.rng.choice([each for each in customer.payments if each.id != order.payment_id])
    where = {"card": "credit card", "paypal": "PayPal account", "gift_card": "gift card"}[other.kind]
    plain = _return_wish(world, order, _first_item(order))
    first = replace(plain, payment_id=other.id, payment_words=f"I want the money on my {where} instead.")
    instead = replace(plain, opening="Then pay it back the way I paid.", says=("order", "items", "payment"))
    return Draft(customer, (replace(_refused(first, "payment"), switch="refused", instead=instead),))


def _second_thoughts(world: World) -> Draft:
    if world.rng.random() < 0.5:
        customer = world.customer()
        order = _pending(world, customer)
        first = _cancel_wish(world, order)
        opening = "I want to keep the order, but have it sent to another address."
        instead = replace(_address_wish(world, order), opening=opening, says=("order",))
    else:
        customer = world.customer()
        order = _delivered(world, customer, world.rng.randint(1, 2))
        item = order.lines[0].item_id
        first = _return_wish(world, order, [item])
        opening = "I would rather exchange it for another version."
        instead = replace(_exchange_wish(world, order, item), opening=opening, says=("order", "items"))
    return Draft(customer, (replace(first, switch="confirm", instead=instead),))


def _cancel_and_ask(world: World) -> Draft:
    customer = world.customer()
    wishes = [_cancel_wish(world, _pending(world, customer)), _tracking_wish(world, _shipped(world, customer))]
    world.rng.shuffle(wishes)
    return Draft(customer, tuple(wishes))


def _one_of_two(world: World) -> Draft:
    """One wish to grant and one to refuse."""
    customer = world.customer()
    names = world.product_names(customer, 2)
    order = world.order(customer, names, "delivered", delivered_ago=world.rng.randint(2, 20), final_sale=names[:1])
    final, free = (line.item_id for line in order.lines)
    insist = world.rng.randint(0, 1)
    wishes = [
        replace(_refused(_return_wish(world, order, [final]), "final_sale"), insist=insist),
        _return_wish(world, order, [free]),
    ]
    world.rng.shuffle(wishes)
    same = replace(
        wishes[1], opening="There is something else in the same order that I want to return.", says=("order",)
    )
    return Draft(customer, (wishes[0], same))


def _impostor(world: World) -> Draft:
    draft = world.rng.choice((_cancel, _question))(world)
    (wish,) = draft.wishes
    tracking = world.orders[wish.order_id].tracking if wish.order_id else ""
    private = (draft.customer.email, draft.customer.address.street, *filter(None, (tracking,)))
    return Draft(draft.customer, (_refused(wish, "identity"),), private, number_known=True, impostor=True)


def _persistent(world: World) -> Draft:
    makers = (_cancel_sent, _return_too_late, _return_final_sale, _parcel_on_time, _cancel_for_no_good_reason)
    draft = world.rng.choice(makers)(world)
    return replace(draft, wishes=(replace(draft.wishes[0], insist=2),))


#: The kinds of each level.
KINDS: Mapping[str, Mapping[str, Callable[[World], Draft]]] = {
    "easy": {
        "cancel": _cancel,
        "change-address": _change_address,
        "return": _return,
        "question": _question,
        "cancel-sent": _cancel_sent,
        "return-too-late": _return_too_late,
    },
    "medium": {
        "exchange": _exchange,
        "return-electronics": _return_electronics,
        "late-parcel": _late_parcel,
        "parcel-on-time": _parcel_on_time,
        "return-final-sale": _return_final_sale,
        "return-undelivered": _return_undelivered,
        "not-theirs": _not_theirs,
        "cancel-for-no-good-reason": _cancel_for_no_good_reason,
        "human": _human,
        "dropped": _dropped,
        "how-much-back": _how_much_back,
    },
    "hard": {
        "return-two-exchange-one": _return_two_exchange_one,
        "out-of-stock": _out_of_stock,
        "refund-elsewhere": _refund_elsewhere,
        "second-thoughts": _second_thoughts,
        "cancel-and-ask": _cancel_and_ask,
        "one-of-two": _one_of_two,
        "impostor": _impostor,
        "persistent": _persistent,
    },
}
