"""The kinds of generated tasks: what the customer wants, in a shop that makes it right or wrong to grant.

A kind is data in ``cases.yaml``. Its keys: ``customer`` (chances of ``plus`` and ``gift_card``), ``order`` (how the
order is made, see :func:`_order`), ``wish`` (what the customer wants: one, a list to draw from, or one for each status
of the order), ``items`` (how many of the order's), ``because`` (why it must be refused), ``insist``, ``drop`` (changes
their mind), ``instead`` (another wish after a change of mind or a refusal), ``then`` (a second wish for the rest of the
order), ``any`` (one of other kinds, with the further keys added), ``both`` (two kinds in one talk).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from .database import Customer, Line, Order
from .scenario import Fact, Wish
from .shop_rules import CANCEL_REASONS, RETURN_DAYS, refund_for
from .texts import load
from .world import World

Spec = Mapping[str, Any]
_CASES: Mapping[str, Any] = load("cases")
#: The kinds of each level, and how often each is drawn beside the others.
KINDS: Mapping[str, Mapping[str, int]] = _CASES["levels"]

_HUMAN = ("lost", "dispute", "close")
_ANSWERS: Mapping[str, Callable[[Order], str]] = {
    "tracking": lambda order: order.tracking,
    "promised": lambda order: order.promised.isoformat(),
    "placed": lambda order: order.placed.isoformat(),
    "delivered": lambda order: order.delivered.isoformat() if order.delivered else "",
    "deadline": lambda order: (order.delivered + timedelta(days=RETURN_DAYS)).isoformat() if order.delivered else "",
    "total": lambda order: str(order.paid),
    "fee": lambda order: str(order.delivery_fee),
}


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


def draft(world: World, kind: str) -> Draft:
    return _draft(world, _CASES["kinds"][kind], None)


def _draft(world: World, spec: Spec, customer: Customer | None) -> Draft:
    rng = world.rng
    while "any" in spec:
        spec = {**_CASES["kinds"][rng.choice(spec["any"])], **{key: spec[key] for key in spec if key != "any"}}
    if customer is None:
        chances = spec.get("customer", {"plus": 0.2, "gift_card": 1} if "both" in spec else {})
        customer = world.customer(**{name: rng.random() < chance for name, chance in chances.items()})
    if "both" in spec:
        rest = {key: spec[key] for key in spec if key != "both"}
        parts = [
            _draft(world, {"any": kinds, **(rest if not i else {})}, customer) for i, kinds in enumerate(spec["both"])
        ]
        rng.shuffle(parts)
        return Draft(
            customer,
            tuple(wish for part in parts for wish in part.wishes),
            tuple(text for part in parts for text in part.private),
            number_known=any(part.number_known for part in parts),
        )
    return _single(world, spec, customer)


def _single(world: World, spec: Spec, customer: Customer) -> Draft:
    owner = world.customer() if spec["order"].get("other") else customer
    order = _order(world, spec["order"], owner)
    wish = _wish(world, customer, order, spec, 0)
    if spec.get("wrong_number") and wish.order_id:
        wish = replace(wish, wrong_number=f"W{world.number(7)}")
    private: tuple[str, ...] = ()
    if spec.get("impostor") or owner is not customer:
        tracking = order.tracking if wish.order_id else ""
        private = (owner.email, owner.address.street, *filter(None, (tracking,)))
    if spec.get("drop"):
        wish = replace(wish, switch="confirm", insist=0)
    elif "instead" in spec:
        instead = _instead(world, customer, order, spec["instead"], wish)
        wish = replace(wish, switch="refused" if wish.because else "confirm", instead=instead)
    wishes = [wish]
    if "then" in spec:
        wishes.append(replace(_wish(world, customer, order, spec["then"], len(wish.item_ids)), says=("order",)))
    impostor = bool(spec.get("impostor"))
    number_known = bool(impostor or private or wish.wrong_number)
    return Draft(customer, tuple(wishes), private, number_known=number_known, impostor=impostor)


def _instead(world: World, customer: Customer, order: Order, spec: Spec, first: Wish) -> Wish:
    second = _wish(world, customer, order, spec, 0, avoid=first.new_item_ids)
    opening = second.opening if "opening" in spec else _say(world, "take", variant=", ".join(second.wanted))
    return replace(second, opening=opening, says=tuple(spec["says"]), wrong_number="")


def _number(world: World, given: Any, default: int) -> int:
    return default if given is None else given if isinstance(given, int) else world.rng.randint(*given)


def _one(world: World, given: Any) -> Any:
    return world.rng.choice(given) if isinstance(given, list) else given


def _say(world: World, name: str, **values: str) -> str:
    return str(world.rng.choice(_CASES["openings"][name])).format(**values)


def _order(world: World, spec: Spec, owner: Customer) -> Order:
    """An order of ``count`` products of a ``category`` in a ``status``.

    ``ago`` days after delivery, ``late_by`` days after the promised day, or ``overdue``; ``final_sale`` for its first
    product.
    """
    rng = world.rng
    names = world.product_names(owner, _number(world, spec.get("count"), 1), spec.get("category"))
    return world.order(
        owner,
        names,
        _one(world, spec["status"]),
        delivered_ago=_number(world, spec.get("ago"), rng.randint(2, RETURN_DAYS - 2)),
        late_by=_number(world, spec.get("late_by"), rng.randint(-2, 0)),
        overdue=None if "overdue" not in spec else _number(world, spec["overdue"], 0),
        final_sale=names[:1] if spec.get("final_sale") else (),
    )


def _wish(world: World, customer: Customer, order: Order, spec: Spec, skip: int, avoid: tuple[str, ...] = ()) -> Wish:
    """What the customer wants of ``order``, whose first ``skip`` lines another wish is about."""
    name = spec["wish"][order.status] if isinstance(spec["wish"], Mapping) else _one(world, spec["wish"])
    lines = order.lines
    if name in ("return", "exchange", "refund"):
        lines = lines[skip : skip + _number(world, spec.get("items"), 1)]
    opening = _say(world, spec.get("opening", name))
    things = tuple(world.products[line.product_id].name for line in lines)
    wish = Wish("question", opening, order.id, things=things, facts=(Fact("text", "-", "-"),))
    if name in _CASES["questions"]:
        wish = _question(world, customer, order, wish, name, lines)
    elif name in _HUMAN:
        reasons = _CASES["reasons"].get(name)
        words = str(world.rng.choice(reasons)).format(amount=f"{world.money(20, 90) / 100:.2f}") if reasons else ""
        wish = Wish("human", opening, reason_words=words)
        if name == "lost":
            wish = replace(wish, order_id=order.id, things=things)
    else:
        wish = _change(world, customer, order, wish, name, lines, spec, avoid)
    because = spec.get("because")
    if because:
        wish = replace(wish, because=because, facts=())
    return replace(wish, insist=_number(world, spec.get("insist"), 0), rejects=_others(world, wish, order))


def _question(world: World, customer: Customer, order: Order, wish: Wish, topic: Any, lines: tuple[Line, ...]) -> Wish:
    about = _CASES["questions"][topic]
    if topic == "balance":
        value = str(next(each.balance for each in customer.payments if each.balance is not None))
        wish = replace(wish, order_id="", things=())
    elif topic == "refund":
        value = str(refund_for(world.database, customer, lines))
        wish = replace(wish, item_ids=tuple(line.item_id for line in lines))
    else:
        value = _ANSWERS[topic](order)
    return replace(wish, topic=topic, facts=(Fact(about["kind"], value, about["ask"], about["role"]),))


def _change(
    world: World,
    customer: Customer,
    order: Order,
    wish: Wish,
    name: Any,
    lines: tuple[Line, ...],
    spec: Spec,
    avoid: tuple[str, ...],
) -> Wish:
    rng, reasons = world.rng, _CASES["reasons"]
    ids = tuple(line.item_id for line in lines)
    if name == "cancel":
        words = reasons["bad_cancel" if spec.get("bad_reason") else "cancel"]
        reason = rng.choice([*words])
        assert (reason in CANCEL_REASONS) != bool(spec.get("bad_reason"))
        return replace(wish, kind="cancel", facts=(), reason=reason, reason_words=rng.choice(words[reason]))
    if name == "return":
        wish = replace(wish, kind="return", facts=(), item_ids=ids, reason_words=rng.choice(reasons["return"]))
        if spec.get("elsewhere"):
            other = rng.choice([each for each in customer.payments if each.id != order.payment_id])
            words = str(_CASES["elsewhere"]).format(where=_CASES["where"][other.kind])
            wish = replace(wish, payment_id=other.id, payment_words=words)
        return wish
    if name == "address":
        return replace(wish, kind="address", facts=(), address=world.address())
    if name == "late_fee":
        return replace(wish, kind="late_fee", facts=())
    (line,) = lines
    new = next(item for item in world.other_items(line) if item.id not in avoid)
    if spec.get("sold_out"):
        new = world.stock(new, 0)
    product = world.products[line.product_id]
    (old,) = (item for item in product.items if item.id == line.item_id)
    wanted = tuple(value for _, value in new.options)
    known = {*wanted, *(value for _, value in old.options)}
    others = {value for item in product.items for _, value in item.options} - known
    return replace(
        wish,
        kind="exchange",
        facts=(),
        item_ids=ids,
        new_item_ids=(new.id,),
        wanted=wanted,
        other_options=tuple(sorted(others)),
    )


def _others(world: World, wish: Wish, order: Order) -> tuple[str, ...]:
    """The products that a proposal about the wish has no business with."""
    return tuple(sorted(product.name for product in world.products.values() if product.name not in wish.things))
