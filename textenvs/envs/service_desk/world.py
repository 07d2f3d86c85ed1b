"""A random shop: its catalogue, some customers, and orders made to measure."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

from ...task import Split, split_choices
from ...text import load_yaml
from .database import Address, Customer, Database, Item, Line, Order, OrderStatus, Payment, Product, Transaction

_GOODS: Mapping[str, Any] = load_yaml(__package__, "goods.yaml")
#: How many variants of a product the shop has.
_VARIANTS = 4

#: No price, fee or balance is a fraction of this many cents, so that a fee in percent is whole cents.
_STEP = 20


class World:
    """A shop that is being furnished; ``rng`` decides everything. Customers use the wordings of ``split``."""

    def __init__(self, rng: random.Random, products: Mapping[str, Product], split: Split) -> None:
        self.rng, self.split = rng, split
        self.today = date(2025, 1, 1) + timedelta(days=rng.randrange(700))
        self.products = dict(products)
        self.customers: dict[str, Customer] = {}
        self.orders: dict[str, Order] = {}
        self._numbers: set[int] = set()
        self._bought: dict[str, set[str]] = {}  # the ids of the products in each customer's orders

    @property
    def database(self) -> Database:
        return Database(self.today, dict(self.customers), dict(self.products), dict(self.orders))

    def address(self, in_state: str | None = None) -> Address:
        """Draw an address in ``in_state``, or in any state."""
        city, state = self.rng.choice([city for city in _GOODS["cities"] if in_state in (None, city[1])])
        street = f"{self.rng.randint(1, 199)} {self.rng.choice(_GOODS['streets'])}"
        return Address(street, city, state, str(self.rng.randint(10000, 99999)))

    def customer(self, *, plus: bool = False, gift_card: bool = False) -> Customer:
        """Add a customer, with a name that is new to the shop, with two payment methods at least."""
        names = {(other.first_name, other.last_name) for other in self.customers.values()}
        first = last = ""
        while not first or (first, last) in names:
            first, last = self.rng.choice(_GOODS["first_names"]), self.rng.choice(_GOODS["last_names"])
        number = self.number(4)
        payments = [Payment(f"card_{self.number(4)}", "card"), Payment(f"paypal_{self.number(4)}", "paypal")]
        if gift_card or self.rng.random() < 0.3:
            payments.append(Payment(f"gift_card_{self.number(4)}", "gift_card", money(self.rng, 20, 150)))
        email = f"{first}.{last}{number % 100}@example.com".lower()
        address = self.address()
        customer = Customer(f"{first}_{last}_{number}".lower(), first, last, email, address, plus, tuple(payments))
        self.customers[customer.id] = customer
        self._bought[customer.id] = set()
        return customer

    def new_to(self, customer: Customer, count: int, category: str | None = None) -> list[Product]:
        """Draw products that the customer has not bought yet; with ``category="-electronics"``, none of electronics."""
        fits = [
            product
            for product in self.products.values()
            if product.id not in self._bought[customer.id]
            and (category is None or (product.category == category.lstrip("-")) != category.startswith("-"))
        ]
        return self.rng.sample(fits, count)

    def order(
        self,
        customer: Customer,
        products: Sequence[Product],
        status: OrderStatus,
        *,
        delivered_ago: int = 0,
        late_by: int = 0,
        overdue: int | None = None,
        placed_ago: int | None = None,
        final_sale: bool = False,
    ) -> Order:
        """Add an order of one item of each product, the first perhaps a final sale, not paid by gift card.

        A delivered one came ``delivered_ago`` days ago, ``late_by`` days after the promised day. For another the
        promised day is ``overdue`` days past; below zero (the default) when it is to come. It was placed ``placed_ago``
        days ago, where that is given.
        """
        rng = self.rng
        lines: list[Line] = []
        for product in products:
            self._bought[customer.id].add(product.id)
            item = rng.choice(product.items)
            lines.append(Line(item.id, product.id, item.price, final_sale and not lines))
        delivered = self.today - timedelta(days=delivered_ago) if status == "delivered" else None
        overdue = -rng.randint(1, 9) if overdue is None else overdue
        promised = self.today - timedelta(days=delivered_ago + late_by if delivered else overdue)
        placed = min(promised - timedelta(days=rng.randint(3, 9)), self.today)
        if placed_ago is not None:
            placed = self.today - timedelta(days=placed_ago)
        fee = money(self.rng, 4, 9)
        payment = rng.choice([method for method in customer.payments if method.kind != "gift_card"])
        total = sum(line.price for line in lines) + fee
        order = Order(
            id=f"W{self.number(7)}",
            customer_id=customer.id,
            status=status,
            placed=placed,
            promised=promised,
            delivered=delivered,
            address=customer.address,
            payment_id=payment.id,
            delivery_fee=fee,
            tracking="" if status in ("pending", "cancelled") else f"TRK{self.number(9)}",
            lines=tuple(lines),
            transactions=(Transaction(payment.id, total),),
        )
        self.orders[order.id] = order
        return order

    def noise(self, customer: Customer, orders: int) -> None:
        """Give a customer orders that the task is not about."""
        for _ in range(orders):
            status: OrderStatus = self.rng.choice(("pending", "shipped", "delivered"))
            products = self.new_to(customer, self.rng.randint(1, 2))
            self.order(customer, products, status, delivered_ago=self.rng.randint(2, 60))

    def sell_out(self, product: Product, item: Item) -> None:
        items = tuple(replace(variant, stock=0) if variant.id == item.id else variant for variant in product.items)
        self.products[product.id] = replace(product, items=items)

    def pick(self, spec: Any, default: Any = None) -> Any:
        """Pick a word of a list or a number of a range ``[low, high]``, of one of several ranges; else ``spec``.

        Where ``spec`` is ``None``, return ``default``.
        """
        if isinstance(spec, list):
            return self.rng.randint(*spec) if isinstance(spec[0], int) else self.pick(self.rng.choice(spec))
        return default if spec is None else spec

    def word(self, wordings: Sequence[str]) -> str:
        return self.rng.choice(split_choices(wordings, self.split))

    def number(self, digits: int) -> int:
        """Draw a number of so many digits that was not drawn before."""
        while True:
            number = self.rng.randint(10 ** (digits - 1), 10**digits - 1)
            if number not in self._numbers:
                self._numbers.add(number)
                return number


def catalogue(rng: random.Random) -> dict[str, Product]:
    """Products by id, each in four variants with prices and stock."""
    products: dict[str, Product] = {}
    ids = iter(rng.sample(range(10**7, 10**8), _VARIANTS * len(_GOODS["products"])))
    for name, category, lowest, options in _GOODS["products"]:
        variants = list(itertools.product(*options.values()))
        items = tuple(
            Item(
                id=str(next(ids)),
                options=tuple(zip(options, values, strict=True)),
                price=money(rng, lowest, lowest + 30),
                stock=rng.randint(1, 9),
            )
            for values in sorted(rng.sample(variants, _VARIANTS))
        )
        product = Product(f"P{len(products):02}{rng.randint(100, 999)}", name, category, items)
        products[product.id] = product
    return products


def money(rng: random.Random, low: int, high: int) -> int:
    return rng.randrange(low * 100, high * 100, _STEP)
