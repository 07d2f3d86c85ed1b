"""The kinds of generated tasks: what the customer wants, in a shop that makes it right or wrong to grant.

A kind is data in ``cases.yaml``. Its keys: ``customer`` (chances of ``plus`` and ``gift_card``), ``order`` (how the
order is made, see :func:`_order`), ``wish`` (what the customer wants: one, a list to draw from, or one for each status
of the order), ``items`` (how many of the order's), ``because`` (why it must be refused), ``insist``, ``drop`` (changes
their mind), ``instead`` (another wish after a change of mind or a refusal), ``then`` (a second wish for the rest of the
order), ``any`` (one of other kinds, with the further keys added), ``both`` (two kinds in one talk).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from ...text import load_yaml
from .database import Customer, Database, Line, Order
from .scenario import Fact, Wish
from .shop_rules import RETURN_DAYS, refund_for
from .world import World, money

Spec = Mapping[str, Any]
_CASES: Mapping[str, Any] = load_yaml(__package__, "cases.yaml")
#: The kinds of each level, and how often each is drawn beside the others.
KINDS: Mapping[str, Mapping[str, int]] = _CASES["levels"]


@dataclass(frozen=True)
class Draft:
    """A task before its right outcome is worked out."""

    customer: Customer  # the owner of the account that the talk is about
    wishes: tuple[Wish, ...]
    private: tuple[str, ...] = ()  # texts that must not be disclosed to the user
    number_known: bool = False  # the user has to know the order's number
    impostor: bool = False  # the user is not the customer and cannot prove to be


def draft(world: World, kind: str) -> Draft:
    return _draft(world, _CASES["kinds"][kind], None)


def _draft(world: World, spec: Spec, customer: Customer | None) -> Draft:
    rng = world.rng
    while "any" in spec:
        spec = {**_CASES["kinds"][rng.choice(spec["any"])], **{key: spec[key] for key in spec if key != "any"}}
    if customer is None:
        chances = {"plus": 0.4, **spec.get("customer", {"gift_card": 1} if "both" in spec else {})}
        customer = world.customer(**{name: rng.random() < chance for name, chance in chances.items()})
    if "both" not in spec:
        return _single(world, spec, customer)
    one, two = spec["both"]
    rest = {key: spec[key] for key in spec if key != "both"}
    parts = [_draft(world, {"any": one, **rest}, customer), _draft(world, {"any": two}, customer)]
    rng.shuffle(parts)
    wishes = tuple(wish for part in parts for wish in part.wishes)
    private = tuple(text for part in parts for text in part.private)
    return Draft(customer, wishes, private, number_known=any(part.number_known for part in parts))


def _single(world: World, spec: Spec, customer: Customer) -> Draft:
    owner = world.customer() if spec["order"].get("other") else customer
    maker = _WishMaker(world, customer, _order(world, spec["order"], owner))
    wish, impostor = maker.wish(spec), bool(spec.get("impostor"))
    if spec.get("wrong_number") and wish.order_id:
        wish = replace(wish, wrong_number=f"W{world.number(7)}")
    private: tuple[str, ...] = ()
    if impostor or owner is not customer:
        tracking = maker.order.tracking if wish.order_id else ""
        private = (owner.email, owner.address.street, *filter(None, (tracking,)))
    if spec.get("drop"):
        wish = replace(wish, switch="confirm", insist=0)
    elif "instead" in spec:
        instead = maker.instead(spec["instead"], wish)
        wish = replace(wish, switch="refused" if wish.because else "confirm", instead=instead)
    wishes = [wish]
    if "then" in spec:
        wishes.append(replace(maker.wish(spec["then"], skip=len(wish.item_ids)), says=("order",)))
    return Draft(customer, tuple(wishes), private, bool(private or wish.wrong_number), impostor)


def _order(world: World, spec: Spec, owner: Customer) -> Order:
    """Add an order of ``count`` products of a ``category`` in a ``status``.

    ``ago`` days after delivery, ``late_by`` days after the promised day, or ``overdue``; placed ``placed_ago`` days
    ago; ``final_sale`` for its first product.
    """
    products = world.new_to(owner, world.pick(spec.get("count", 1)), spec.get("category"))
    return world.order(
        owner,
        products,
        world.pick(spec["status"]),
        delivered_ago=world.pick(spec.get("ago"), world.rng.randint(2, RETURN_DAYS - 2)),
        late_by=world.pick(spec.get("late_by"), world.rng.randint(-2, 0)),
        overdue=world.pick(spec.get("overdue")),
        placed_ago=world.pick(spec.get("placed_ago")),
        final_sale=spec.get("final_sale", False),
    )


def answer_to(topic: str, database: Database, customer: Customer, order: Order | None, lines: Sequence[Line]) -> str:
    """Return the right answer to a question on a topic; those about an order need it, and a refund its lines."""
    value: object
    if topic == "balance":
        value = next(payment.balance for payment in customer.payments if payment.balance is not None)
    elif order is None:
        raise ValueError(f"a question about {topic!r} is about an order")
    elif topic == "refund":
        value = refund_for(database, customer, order, lines)
    elif topic == "deadline":
        value = order.delivered and order.delivered + timedelta(days=RETURN_DAYS)
    else:
        value = getattr(order, {"total": "net_paid", "fee": "delivery_fee"}.get(topic, topic))
    return str(value)


@dataclass(frozen=True)
class _WishMaker:
    """Makes the wishes of a customer about an order."""

    world: World
    customer: Customer
    order: Order

    def wish(self, spec: Spec, skip: int = 0, avoid: tuple[str, ...] = ()) -> Wish:
        """Make a wish that is not about the first ``skip`` lines of the order and asks for no new item in ``avoid``."""
        name = self.world.pick(spec["wish"][self.order.status] if isinstance(spec["wish"], Mapping) else spec["wish"])
        lines = self.order.lines
        if name in ("return", "exchange", "refund"):
            lines = lines[skip : skip + self.world.pick(spec.get("items", 1))]
        opening = self.say(spec.get("opening", name))
        things = tuple(self.world.products[line.product_id].name for line in lines)
        values: dict[str, Any] = {"order_id": self.order.id, "things": things, "opening": opening}
        if name in _CASES["questions"]:
            values |= self.question(name, lines)
        elif name in ("lost", "dispute", "close"):
            values |= {"kind": "human"} if name == "lost" else {"kind": "human", "order_id": "", "things": ()}
            if reasons := _CASES["reasons"].get(name):
                words = self.world.word(reasons)
                values["reason_words"] = words.format(amount=f"{money(self.world.rng, 20, 90) / 100:.2f}")
        else:
            values |= {"kind": name} | self.change(name, lines, spec, avoid)
        if because := spec.get("because"):
            values |= {"because": because, "facts": ()}
        insist = self.world.pick(spec.get("insist", 0))
        # The products that a proposal about the wish must not name.
        rejects = sorted({product.name for product in self.world.products.values()} - set(values["things"]))
        return Wish(**values, insist=insist, rejects=tuple(rejects))

    def instead(self, spec: Spec, first: Wish) -> Wish:
        second = self.wish(spec, avoid=first.new_item_ids)
        opening = second.opening if "opening" in spec else self.say("take", variant=", ".join(second.wanted))
        return replace(second, opening=opening, says=tuple(spec["says"]))

    def question(self, topic: str, lines: tuple[Line, ...]) -> dict[str, Any]:
        about, values = _CASES["questions"][topic], dict[str, Any]()
        if topic == "balance":
            values = {"order_id": "", "things": ()}
        elif topic == "refund":
            values = {"item_ids": tuple(line.item_id for line in lines)}
        value = answer_to(topic, self.world.database, self.customer, self.order, lines)
        fact = Fact(about["kind"], value, about["ask"], about["role"])
        return {**values, "kind": "question", "topic": topic, "facts": (fact,)}

    def change(self, name: str, lines: tuple[Line, ...], spec: Spec, avoid: tuple[str, ...]) -> dict[str, Any]:
        world, rng = self.world, self.world.rng
        ids = tuple(line.item_id for line in lines)
        if name == "cancel":
            words = _CASES["reasons"]["bad_cancel" if spec.get("bad_reason") else "cancel"]
            reason = rng.choice([*words])
            return {"reason": reason, "reason_words": world.word(words[reason])}
        if name == "return":
            values = {"item_ids": ids, "reason_words": world.word(_CASES["reasons"]["return"])}
            if spec.get("elsewhere"):
                other = rng.choice(
                    [payment for payment in self.customer.payments if payment.id != self.order.payment_id]
                )
                words = world.word(_CASES["elsewhere"]).format(where=_CASES["where"][other.kind])
                values |= {"payment_id": other.id, "payment_words": words}
            return values
        if name == "address":
            return {"address": world.address(self.order.address.state if rng.random() < 0.4 else None)}
        if name == "late_fee":
            return {}
        (line,) = lines
        product = world.products[line.product_id]
        variants = [item for item in product.items if item.id != line.item_id]
        rng.shuffle(variants)
        new = next(item for item in variants if item.id not in avoid)
        if spec.get("sold_out"):
            world.sell_out(product, new)
        own_values = {value for item in product.items if item.id in (new.id, line.item_id) for _, value in item.options}
        return {
            "item_ids": ids,
            "new_item_ids": (new.id,),
            "wanted": tuple(value for _, value in new.options),
            "other_options": tuple(sorted({value for item in product.items for _, value in item.options} - own_values)),
        }

    def say(self, name: str, **values: str) -> str:
        return self.world.word(_CASES["openings"][name]).format(**values)
