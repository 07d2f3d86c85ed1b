"""The shop's database: any calls conserve money and goods; databases are values."""

import copy
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from textenvs.envs.service_desk import ServiceDesk
from textenvs.envs.service_desk.database import WRITES, Action, Database, DatabaseError, Ticket
from textenvs.messages import assistant
from textenvs.tools import call

ENV = ServiceDesk(level="medium", call_format="native")  # reset by each test that uses it

numbers = st.integers(0, 30)
#: A tool call whose ids are looked up in the shop when it is made: mostly ids that exist.
wild = st.tuples(st.sampled_from(WRITES), numbers, st.lists(numbers, min_size=1, max_size=2), numbers, numbers)


def made(shop, name, which, items, price, payment):
    """The arguments of a wild call, in terms of what the shop has."""
    orders = list(shop.orders.values())
    order = orders[which % len(orders)]
    lines = [order.lines[i % len(order.lines)] for i in items]
    owner = shop.customers[order.customer_id]
    variants = [shop.products[line.product_id].items for line in lines]
    return {
        "cancel_order": {"order_id": order.id, "reason": "no_longer_needed"},
        "return_items": {"order_id": order.id, "item_ids": [line.item_id for line in lines]},
        "refund": {
            "order_id": order.id,
            "amount": (0, order.delivery_fee, order.net_paid, order.net_paid + 1, price * 100)[price % 5] / 100,
            "payment_id": owner.payments[payment % len(owner.payments)].id,
        },
        "charge": {
            "order_id": order.id,
            "amount": price,
            "payment_id": owner.payments[payment % len(owner.payments)].id,
        },
        "exchange_items": {
            "order_id": order.id,
            "item_ids": [line.item_id for line in lines],
            "new_item_ids": [variant_items[price % len(variant_items)].id for variant_items in variants],
        },
        "change_address": {
            "order_id": f"#{order.id.lower()}",
            "street": "1 New Street",
            "city": "Boston",
            "state_code": "MA",
            "zip_code": "02101",
        },
        "transfer_to_human": {"customer_id": order.customer_id, "summary": str(price)},
    }[name]


written = TypeAdapter(Database).dump_json


def cards(shop):
    """Return the sum of each gift card's balance and of its transactions in orders."""
    total = Counter()
    for customer in shop.customers.values():
        for payment in customer.payments:
            if payment.balance is not None:
                assert payment.balance >= 0
                total[payment.id] += payment.balance
    for order in shop.orders.values():
        for transaction in order.transactions:
            if transaction.payment_id in total:
                total[transaction.payment_id] += transaction.cents
    return total


def goods(shop):
    """Return the count of each item: in stock, and in orders that are not cancelled (also on their way back)."""
    total = Counter({item.id: item.stock for product in shop.products.values() for item in product.items})
    for order in shop.orders.values():
        if order.status != "cancelled":
            total.update(line.item_id for line in order.lines)
    return total


def check_orders(before, after):
    for order in after.orders.values():
        old = before.orders[order.id]
        assert order.status in (old.status, "cancelled")
        assert (order.status == "cancelled") == bool(order.cancel_reason)
        assert order.net_paid >= 0
        lines = [(line.item_id, line.price, line.final_sale) for line in order.lines]
        assert lines[: len(old.lines)] == [(line.item_id, line.price, line.final_sale) for line in old.lines]
        exchanged = sum(line.status == "exchanged" for line in order.lines)
        assert len(order.lines) == len(old.lines) + exchanged
        owner = after.customers[order.customer_id]
        assert {transaction.payment_id for transaction in order.transactions} <= {
            payment.id for payment in owner.payments
        }


@given(index=st.integers(0, 300), calls=st.lists(wild, max_size=12))
def test_random_calls_conserve_money_and_goods(index, calls):
    ENV.reset(options={"task_index": index})
    before = ENV.state.shop
    text, money, things = written(before), cards(before), goods(before)
    for name, *rest in calls:
        earlier = ENV.state.shop
        messages, _, _, _, info = ENV.step(assistant("", [call(name, **made(earlier, name, *rest))]))
        now = ENV.state.shop
        assert (now is earlier) == bool(info["metrics"]["tool_errors"])
        assert messages[-1]["role"] == "tool"
        assert cards(now) == money
        assert goods(now) == things
        check_orders(before, now)
    assert written(before) == text  # the old value is what it was


def test_database_copy_is_the_same_object():
    env = ServiceDesk()
    env.reset(seed=0)
    assert copy.deepcopy(env.state.shop) is env.state.shop
    assert env.snapshot().shop is env.state.shop


# ------------------------------------------------------------------ one call at a time


@pytest.fixture
def shop():
    env = ServiceDesk(level="medium", kinds=["exchange"])
    env.reset(seed=1)
    return env.state.shop


def an_order(shop, status, lines=1):
    return next(order for order in shop.orders.values() if order.status == status and len(order.lines) >= lines)


def twice(shop, name, **arguments):
    """Call a change of one order two times."""
    order = an_order(shop, "delivered")
    if name == "refund":
        arguments["payment_id"] = order.payment_id
    return getattr(getattr(shop, name)(order.id, **arguments), name)(order.id, **arguments)


def test_id_look_up_ignores_case_and_spaces(shop):
    order = an_order(shop, "delivered")
    assert shop.order(f" #{order.id.lower()} ") is order
    customer = shop.customers[order.customer_id]
    assert shop.customer_by_email(f" {customer.email.upper()} ") is customer
    match = shop.customer_by_name(customer.first_name.upper(), f" {customer.last_name}", customer.address.zip_code)
    assert match is customer


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda shop: shop.order("W1"), "no order 'W1'"),
        (lambda shop: shop.customer_by_email("x@y.z"), "no customer has the email"),
        (lambda shop: shop.item("0"), "get_product"),
        (lambda shop: twice(shop, "cancel_order", reason="no_longer_needed"), "is cancelled already"),
        (lambda shop: twice(shop, "refund", amount=0.0), "above 0"),
        (lambda shop: shop.return_items(an_order(shop, "delivered").id, []), "at least one item"),
        (lambda shop: shop.return_items(an_order(shop, "delivered").id, ["0"]), "to give back; it has"),
        (lambda shop: shop.refund(an_order(shop, "delivered").id, 1.0, "card_0"), "no payment method"),
        (lambda shop: shop.replay([Action("rob_bank", {})]), "'rob_bank' is not a change"),
        (lambda shop: shop.replay([Action("cancel_order", {"id": 1})]), "wrong arguments"),
        (lambda shop: shop.replay([Action("cancel_order", {"order_id": 1, "reason": ""})]), "wrong arguments"),
    ],
)
def test_impossible_changes_are_refused(shop, change, message):
    with pytest.raises(DatabaseError, match=message):
        change(shop)


@pytest.mark.parametrize("amount", [0, -1, 0.001, 19.999, float("nan"), float("inf"), 1e12])
def test_amount_must_be_positive_whole_cents(shop, amount):
    order = an_order(shop, "delivered")
    with pytest.raises(DatabaseError, match="in dollars|more than"):
        shop.refund(order.id, amount, order.payment_id)


def test_address_needs_all_parts():
    env = ServiceDesk(kinds=["cancel"])
    env.reset(seed=0)
    order = an_order(env.state.shop, "pending")
    with pytest.raises(DatabaseError, match="needs a street"):
        env.state.shop.change_address(order.id, "1 A Street", " ", "MA", "02101")


def test_split_refund_equals_one_refund(shop):
    order = an_order(shop, "delivered")
    whole = shop.refund(order.id, 3.0, order.payment_id)
    parts = shop.refund(order.id, 1.2, order.payment_id).refund(order.id, 1.8, order.payment_id)
    assert not whole.differences(parts)
    assert whole.differences(shop) == {order.id}
    other = next(payment.id for payment in shop.customers[order.customer_id].payments if payment.id != order.payment_id)
    assert whole.differences(shop.refund(order.id, 3.0, other)) == {order.id}


def test_tickets_compare_without_their_summary(shop):
    who = next(iter(shop.customers))
    assert Ticket(who, "one") == Ticket(who, "two")
    one, two = shop.transfer_to_human(who, "one"), shop.transfer_to_human(who, "two")
    assert not one.differences(two)
    assert one.differences(shop) == {who}
    with pytest.raises(DatabaseError, match="already"):
        one.transfer_to_human(who, "again")
