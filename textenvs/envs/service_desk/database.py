"""The shop's database: immutable records, and changes that return a new database.

A snapshot of an episode costs nothing, and forks share no mutable state. A method refuses (:class:`DatabaseError`)
only what the data cannot hold: ids that do not exist, an item that came back before, paying back more than was paid.
The shop's *rules* (an order's status, deadlines, stock, fees, who may ask for what) are not enforced here: keeping them
is the assistant's task, and no error tells that one was broken.

Money is in integer cents inside, and dollars in the arguments and texts of the tools.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, Literal, Self, TypeVar

from ...tools import ToolError

T = TypeVar("T")
OrderStatus = Literal["pending", "shipped", "delivered", "cancelled"]
LineStatus = Literal["kept", "returned", "exchanged"]
PaymentKind = Literal["card", "paypal", "gift_card"]
#: Why customers cancel. The shop's rules accept the first two; the database takes them all.
CancelReason = Literal["no_longer_needed", "ordered_by_mistake", "found_cheaper", "wants_coupon", "takes_too_long"]

#: The methods of :class:`Database` that change it; the tools of the same names call them.
WRITES = ("cancel_order", "return_items", "refund", "exchange_items", "change_address", "charge", "transfer_to_human")


class DatabaseError(ToolError):
    """A change that the database cannot hold, or an id that is not in it; the text is for the assistant to read."""


class Record:
    """Something immutable: a deep copy of it is itself."""

    __slots__ = ()

    def __deepcopy__(self, memo: object) -> Self:
        return self


@dataclass(frozen=True, slots=True)
class Address(Record):
    """A postal address."""

    street: str
    city: str
    state: str
    zip_code: str

    def __str__(self) -> str:
        return f"{self.street}, {self.city}, {self.state} {self.zip_code}"

    @property
    def normal(self) -> tuple[str, ...]:
        """The parts, normalised for case and spacing."""
        parts = (self.street, self.city, self.state, self.zip_code)
        return tuple(" ".join(part.casefold().replace(".", " ").split()) for part in parts)


@dataclass(frozen=True, slots=True)
class Payment(Record):
    """A way to pay. ``balance`` is what is left on a gift card, in cents, and ``None`` for the other kinds."""

    id: str
    kind: PaymentKind
    balance: int | None = None


@dataclass(frozen=True, slots=True)
class Customer(Record):
    """Somebody with an account. ``plus`` members pay no restocking fee."""

    id: str
    first_name: str
    last_name: str
    email: str
    address: Address
    plus: bool
    payments: tuple[Payment, ...]

    def payment(self, payment_id: str) -> Payment:
        payments = {payment.id: payment for payment in self.payments}
        problem = f"customer {self.id} has no payment method {payment_id!r}; there are: {', '.join(payments)}"
        return _found(payments.get(payment_id.strip()), problem)


@dataclass(frozen=True, slots=True)
class Item(Record):
    """One variant of a product: what is actually bought. ``price`` is in cents; ``stock`` below 0 is back-ordered."""

    id: str
    options: tuple[tuple[str, str], ...]
    price: int
    stock: int

    @property
    def variant(self) -> str:
        return ", ".join(value for _, value in self.options)


@dataclass(frozen=True, slots=True)
class Product(Record):
    """Something the shop sells, in variants."""

    id: str
    name: str
    category: str
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Line(Record):
    """One bought item in an order. ``price`` is what was paid for it, in cents."""

    item_id: str
    product_id: str
    price: int
    final_sale: bool = False
    status: LineStatus = "kept"


@dataclass(frozen=True, slots=True)
class Transaction(Record):
    """Money that moved for an order: ``cents`` above zero was charged, below zero was paid back."""

    payment_id: str
    cents: int


@dataclass(frozen=True, slots=True)
class Order(Record):
    """An order and all that happened to it. ``delivery_fee`` is in cents."""

    id: str
    customer_id: str
    status: OrderStatus
    placed: date
    promised: date
    delivered: date | None
    address: Address
    payment_id: str
    delivery_fee: int
    tracking: str
    lines: tuple[Line, ...]
    transactions: tuple[Transaction, ...]
    cancel_reason: str = ""

    @property
    def net_paid(self) -> int:
        """The net amount paid for the order so far, in cents: charges less refunds."""
        return sum(transaction.cents for transaction in self.transactions)

    @property
    def outcome(self) -> tuple[Any, ...]:
        """The final state for comparisons; in which order and in how many parts it came about does not matter."""
        money: Counter[str] = Counter()
        for transaction in self.transactions:
            money[transaction.payment_id] += transaction.cents
        lines = sorted((line.item_id, line.price, line.status) for line in self.lines)
        amounts = sorted((payment, cents) for payment, cents in money.items() if cents)
        return self.status, self.cancel_reason, self.address.normal, lines, amounts


@dataclass(frozen=True, slots=True)
class Ticket(Record):
    """A customer's case in the hands of a human colleague. Two are the same whatever their summaries say."""

    customer_id: str
    summary: str = field(compare=False)


@dataclass(frozen=True, slots=True)
class Action(Record):
    """A change as a tool call: the name of one of :data:`WRITES`, and its arguments as in JSON."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Database(Record):
    """The whole shop. The mappings are keyed by id and never changed in place."""

    today: date
    customers: Mapping[str, Customer]
    products: Mapping[str, Product]
    orders: Mapping[str, Order]
    tickets: tuple[Ticket, ...] = ()

    def customer_by_email(self, email: str) -> Customer:
        target = email.strip().casefold()
        match = (customer for customer in self.customers.values() if customer.email.casefold() == target)
        return _found(next(match, None), f"no customer has the email address {email!r}")

    def customer_by_name(self, first_name: str, last_name: str, zip_code: str) -> Customer:
        target = [part.strip().casefold() for part in (first_name, last_name, zip_code)]
        for customer in self.customers.values():
            if target == [customer.first_name.casefold(), customer.last_name.casefold(), customer.address.zip_code]:
                return customer
        raise DatabaseError(f"no customer is called {first_name!r} {last_name!r} with the zip code {zip_code!r}")

    def customer(self, customer_id: str) -> Customer:
        problem = f"no customer has the id {customer_id!r}; find the customer by email or name first"
        return _found(self.customers.get(customer_id.strip()), problem)

    def order(self, order_id: str) -> Order:
        """Return the order of that number; a leading ``#`` and the case do not matter."""
        match = self.orders.get(order_id.strip().lstrip("#").upper())
        return _found(match, f"there is no order {order_id!r}; an order number looks like W1234567")

    def orders_of(self, customer_id: str) -> tuple[Order, ...]:
        """Return a customer's orders, the newest first."""
        orders = [order for order in self.orders.values() if order.customer_id == customer_id]
        return tuple(sorted(orders, key=lambda order: (order.placed, order.id), reverse=True))

    def product(self, product_id: str) -> Product:
        problem = f"there is no product {product_id!r}; list_products shows the ids"
        return _found(self.products.get(product_id.strip()), problem)

    def item(self, item_id: str) -> tuple[Product, Item]:
        """Return the product and the item of that id, which is a variant of the product."""
        target = item_id.strip()
        match = ((product, item) for product in self.products.values() for item in product.items if item.id == target)
        return _found(next(match, None), f"there is no item {item_id!r}; get_product shows a product's items")

    def cancel_order(self, order_id: str, reason: str) -> Database:
        """Cancel an order, whatever its status. Moves no money: that is :meth:`refund`'s."""
        order = self._active(order_id)
        return self._restock(order.lines, 1)._with_order(replace(order, status="cancelled", cancel_reason=reason))

    def return_items(self, order_id: str, item_ids: Sequence[str]) -> Database:
        """Note that items of an order come back. Moves no money: that is :meth:`refund`'s."""
        order = self._active(order_id)
        lines, _ = _hand_back(order, item_ids, "returned")
        return self._with_order(replace(order, lines=lines))

    def refund(self, order_id: str, amount: float, payment_id: str) -> Database:
        order = self.order(order_id)
        payment = self.customer(order.customer_id).payment(payment_id)
        return self._move(order, payment.id, -_cents(amount))

    def charge(self, order_id: str, amount: float, payment_id: str) -> Database:
        order = self.order(order_id)
        payment = self.customer(order.customer_id).payment(payment_id)
        return self._move(order, payment.id, _cents(amount))

    def exchange_items(self, order_id: str, item_ids: Sequence[str], new_item_ids: Sequence[str]) -> Database:
        """Replace items of an order by others; the order's payment method settles the difference."""
        order = self._active(order_id)
        if len(item_ids) != len(new_item_ids):
            raise DatabaseError(
                f"{len(item_ids)} items to give back but {len(new_item_ids)} new ones; give one for one"
            )
        lines, old_lines = _hand_back(order, item_ids, "exchanged")
        new_lines = []
        for line, new_id in zip(old_lines, new_item_ids, strict=True):
            product, new = self.item(new_id)
            if product.id != line.product_id:
                old = self.product(line.product_id)
                raise DatabaseError(f"item {new.id} is a {product.name}, but item {line.item_id} is a {old.name}")
            if new.id == line.item_id:
                raise DatabaseError(f"item {new.id} would be exchanged for itself")
            new_lines.append(Line(new.id, product.id, new.price))
        difference = sum(line.price for line in new_lines) - sum(line.price for line in old_lines)
        return self._restock(new_lines, -1)._move(
            replace(order, lines=(*lines, *new_lines)), order.payment_id, difference
        )

    def change_address(self, order_id: str, street: str, city: str, state_code: str, zip_code: str) -> Database:
        order = self._active(order_id)
        parts = [" ".join(part.split()) for part in (street, city, state_code, zip_code)]
        if not all(parts):
            raise DatabaseError("an address needs a street, a city, a state and a zip code")
        return self._with_order(replace(order, address=Address(*parts)))

    def transfer_to_human(self, customer_id: str, summary: str) -> Database:
        ticket = Ticket(self.customer(customer_id).id, summary.strip())
        if ticket in self.tickets:
            raise DatabaseError(f"the case of customer {ticket.customer_id} has been handed over already")
        return replace(self, tickets=(*self.tickets, ticket))

    def replay(self, actions: Iterable[Action]) -> Database:
        database = self
        for action in actions:
            if action.name not in WRITES:
                raise DatabaseError(f"{action.name!r} is not a change; there are: {', '.join(WRITES)}")
            try:
                database = getattr(database, action.name)(**action.arguments)
            except (TypeError, AttributeError, KeyError) as error:
                raise DatabaseError(f"{action.name}: wrong arguments {dict(action.arguments)!r}: {error}") from error
        return database

    def differences(self, other: Database) -> frozenset[str]:
        """Return the ids of orders and of customers with tickets that differ from those in ``other``, of the same shop.

        Stock, balances and how a change came about (in one part or two) follow from the orders and are not compared.
        """
        pairs = [(order, other.orders[order.id]) for order in self.orders.values()]
        orders = {one.id for one, two in pairs if one is not two and one.outcome != two.outcome}
        return frozenset(orders | {ticket.customer_id for ticket in set(self.tickets) ^ set(other.tickets)})

    def _active(self, order_id: str) -> Order:
        """Return the order, unless it is cancelled: then only its money can change."""
        order = self.order(order_id)
        if order.status == "cancelled":
            raise DatabaseError(f"order {order.id} is cancelled already")
        return order

    def _with_order(self, order: Order) -> Database:
        return replace(self, orders={**self.orders, order.id: order})

    def _move(self, order: Order, payment_id: str, cents: int) -> Database:
        """Charge (above zero) or pay back (below zero) ``cents`` for ``order``, and keep the order."""
        if not cents:
            return self._with_order(order)
        if order.net_paid + cents < 0:
            raise DatabaseError(
                f"${-cents / 100:.2f} is more than the ${order.net_paid / 100:.2f} that remain paid "
                f"for order {order.id}"
            )
        customer = self.customer(order.customer_id)
        payment = customer.payment(payment_id)
        customers = self.customers
        if payment.balance is not None:
            if payment.balance < cents:
                raise DatabaseError(f"{payment.id} has ${payment.balance / 100:.2f} left, not ${cents / 100:.2f}")
            charged = replace(payment, balance=payment.balance - cents)
            payments = tuple(charged if other.id == payment.id else other for other in customer.payments)
            customers = {**customers, customer.id: replace(customer, payments=payments)}
        noted = replace(order, transactions=(*order.transactions, Transaction(payment.id, cents)))
        return replace(self, customers=customers)._with_order(noted)

    def _restock(self, lines: Iterable[Line], count: int) -> Database:
        """Put the item of each line into the stock (``count`` 1), or take it out (-1), below 0 if need be."""
        products = dict(self.products)
        for line in lines:
            product = products[line.product_id]
            items = tuple(replace(item, stock=item.stock + count * (item.id == line.item_id)) for item in product.items)
            products[product.id] = replace(product, items=items)
        return replace(self, products=products)


def _found(what: T | None, problem: str) -> T:
    if what is None:
        raise DatabaseError(problem)
    return what


def _hand_back(order: Order, item_ids: Sequence[str], status: LineStatus) -> tuple[tuple[Line, ...], list[Line]]:
    """Return the order's lines with those items marked, and those lines before."""
    if not item_ids:
        raise DatabaseError("name at least one item")
    lines, marked = list(order.lines), []
    for item_id in item_ids:
        target = item_id.strip()
        place = next((i for i, line in enumerate(lines) if line.item_id == target and line.status == "kept"), None)
        if place is None:
            available = ", ".join(line.item_id for line in lines if line.status == "kept") or "none"
            raise DatabaseError(f"order {order.id} has no item {item_id!r} to give back; it has: {available}")
        marked.append(lines[place])
        lines[place] = replace(lines[place], status=status)
    return tuple(lines), marked


def _cents(amount: float) -> int:
    # A float of dollars is a decimal that somebody wrote: 19.99 * 100 is not whole, but near enough to 1999.
    cents = round(amount * 100) if abs(amount) < 1e9 else 0
    if cents <= 0 or abs(amount * 100 - cents) > 1e-6:
        raise DatabaseError(f"an amount is in dollars, above 0 and in whole cents, for example 19.99, not {amount!r}")
    return cents
