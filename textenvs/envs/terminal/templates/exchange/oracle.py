"""Days of the template `exchange`, and what becomes of their messages by the rules of a project."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..variation import Variant

OPENS, CLOSES = "09:00", "17:30"


@dataclass(frozen=True)
class Instrument:
    """An instrument; its tick and its reference price are in cents."""

    symbol: str
    tick: int
    lot: int
    usual: int


@dataclass(frozen=True)
class Message:
    """A message; ``price`` is 0 for a market order, and ``until`` is empty but for new orders."""

    time: str
    member: str
    action: str
    id: str
    side: str = ""
    symbol: str = ""
    quantity: int = 0
    price: int = 0
    until: str = ""


@dataclass
class _Order:
    turn: int
    day: int
    message: Message
    rest: int
    price: int

    @property
    def is_sale(self) -> bool:
        return self.message.side == "sell"


class _Refusal(Exception):
    """A message that is refused, with the reason."""


@dataclass
class Evening:
    """The state after a day, and the lines of its reports."""

    orders: list[_Order] = field(default_factory=list)
    prices: dict[str, int] = field(default_factory=dict)
    #: Quantity and cost of lots, by member and symbol.
    lots: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)
    trades: int = 0
    turn: int = 0
    lines: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Market:
    """Instruments, members with names and kinds, what they hold at first, and rates of fees."""

    instruments: Mapping[str, Instrument]
    members: Mapping[str, tuple[str, str]]
    holdings: Sequence[tuple[str, str, int, int]]
    rates: tuple[int, int]

    def first(self) -> Evening:
        """Return the state before the first day."""
        evening = Evening(prices={one.symbol: one.usual for one in self.instruments.values()})
        for member, symbol, quantity, cost in self.holdings:
            evening.lots.setdefault((member, symbol), []).append((quantity, cost))
        return evening


def money(cents: int) -> str:
    return f"{'-' * (cents < 0)}{abs(cents) // 100}.{abs(cents) % 100:02}"


class Day:
    """A day by the rules of a project; ``number`` counts the days of the calendar."""

    def __init__(self, variant: Variant, market: Market, before: Evening, number: int) -> None:
        self.variant, self.market, self.before, self.number = variant, market, before, number
        self.turn = before.turn
        self.book = [one for one in before.orders if number - one.day <= variant["days-of-orders"]]
        #: Number, time, symbol, quantity, price, buyer, seller, and who came.
        self.trades: list[tuple[int, str, str, int, int, str, str, str]] = []
        self.refused: list[str] = []

    def evening(self, messages: Sequence[Message]) -> Evening:
        codes = sorted(self.market.members)
        files = sorted(messages, key=lambda one: (codes.index(one.member), one.time))
        rule = self.variant["same-time"]
        for one in sorted(files, key=lambda one: (one.time, rule(codes, one.member, one.action))):
            try:
                self._check_time(one)
                {"NEW": self._new, "CANCEL": self._cancel, "CHANGE": self._change}[one.action](one)
            except _Refusal as reason:
                self.refused.append(f"{one.time} {one.member} {one.id} {reason}")
        after = Evening(turn=self.turn, trades=self.before.trades + len(self.trades))
        after.prices = dict(self.before.prices)
        for symbol in {one[2]: None for one in self.trades}:
            pairs = [(quantity, price) for _, _, other, quantity, price, *_ in self.trades if other == symbol]
            after.prices[symbol] = self.variant["closing-prices"](pairs)
        lines = self._settled(after)
        after.orders = [one for one in self.book if one.message.until == "gtc"]
        after.lines = ["== trades", *self._ticker(), "== refused", *self.refused, "== book", *self._screen()]
        after.lines += ["== volume", *self._volume(after.trades), "== fees", *self._fees(), "== positions", *lines]
        return after

    def _check_time(self, one: Message) -> None:
        if one.time < OPENS and one.action not in self.variant["early-messages"]:
            raise _Refusal("early")
        if one.time >= CLOSES:
            raise _Refusal("late")

    def _quantity(self, symbol: str, quantity: int) -> int:
        lot = self.market.instruments[symbol].lot
        full = self.variant["odd-lots"](quantity, lot) if quantity % lot else quantity
        if full is None:
            raise _Refusal("lot")
        return int(full)

    def _price(self, symbol: str, side: str, price: int) -> int:
        tick, usual = self.market.instruments[symbol].tick, self.before.prices[symbol]
        rounded = self.variant["off-tick"](price, tick, side) if price % tick else price
        if rounded is None:
            raise _Refusal("tick")
        low, high = (usual * (100 + sign * self.variant["collar-of-prices"]) for sign in (-1, 1))
        if not low <= 100 * rounded <= high:
            raise _Refusal("collar")
        return int(rounded)

    def _new(self, one: Message) -> None:
        if one.symbol not in self.market.instruments:
            raise _Refusal("instrument")
        quantity = self._quantity(one.symbol, one.quantity)
        price = self._price(one.symbol, one.side, one.price) if one.price else 0
        held = sum(quantity for quantity, _ in self.before.lots.get((one.member, one.symbol), ()))
        if one.side == "sell" and self.market.members[one.member][1] == "retail" and quantity > held:
            allowed = self.variant["short-sales"](quantity, held)
            if allowed is None:
                raise _Refusal("short")
            quantity = allowed
        if quantity < 1:
            raise _Refusal("empty")
        self.turn += 1
        self._execute(one.time, _Order(self.turn, self.number, one, quantity, price))

    def _own(self, one: Message) -> _Order:
        for order in self.book:
            if (order.message.member, order.message.id) == (one.member, one.id):
                return order
        raise _Refusal("unknown")

    def _cancel(self, one: Message) -> None:
        self.book.remove(self._own(one))

    def _change(self, one: Message) -> None:
        order = self._own(one)
        symbol, side = order.message.symbol, order.message.side
        quantity, price = self._quantity(symbol, one.quantity), self._price(symbol, side, one.price)
        if self.variant["changed-orders"](quantity <= order.rest and price == order.price):
            self.turn += 1
            order.turn = self.turn
        self.book.remove(order)
        order.rest, order.price = quantity, price
        self._execute(one.time, order)

    def _opposite(self, order: _Order) -> list[_Order]:
        """Return the orders that an order can trade with, the best one first."""
        own, sign = order.message, -1 if order.is_sale else 1
        resting = [
            one
            for one in self.book
            if one.message.symbol == own.symbol
            and one.message.side != own.side
            and (not order.price or sign * one.price <= sign * order.price)
        ]
        rule = self.variant["priority-of-orders"]
        return sorted(resting, key=lambda one: (sign * one.price, rule(one.turn, one.rest)))

    def _execute(self, time: str, order: _Order) -> None:
        own, usual = order.message, self.before.prices[order.message.symbol]
        last = usual
        available = sum(one.rest for one in self._opposite(order))
        if own.until == "now" and self.variant["orders-for-now"] and available < order.rest:
            return
        while order.rest and (resting := self._opposite(order)):
            other = resting[0]
            if other.message.member == own.member and self.variant["trades-with-oneself"] == "new":
                order.rest = 0
            elif other.message.member == own.member and self.variant["trades-with-oneself"] == "old":
                self.book.remove(other)
            else:
                last = self._trade(time, order, other)
        if not order.price and order.rest:
            order.price = self.variant["rest-of-market-orders"](last, usual)
        if order.rest and order.price and own.until != "now":
            self.book.append(order)

    def _trade(self, time: str, order: _Order, other: _Order) -> int:
        own, symbol = order.message, order.message.symbol
        price: int = self.variant["price-of-trades"](order.price, other.price)
        quantity = min(order.rest, other.rest)
        many = len(self.trades), sum(one[2] == symbol for one in self.trades)
        number = self.variant["numbers-of-trades"](self.before.trades, *many)
        seller, buyer = (own, other.message) if order.is_sale else (other.message, own)
        self.trades.append((number, time, symbol, quantity, price, buyer.member, seller.member, own.side))
        order.rest -= quantity
        other.rest -= quantity
        self.book = [one for one in self.book if one.rest]
        return price

    def _ticker(self) -> list[str]:
        line = self.variant["line-of-trade"]
        return [
            line.format(number, time, symbol, quantity, money(price), buyer, seller, time.split(".")[0])
            for number, time, symbol, quantity, price, buyer, seller, _ in self.trades
        ]

    def _screen(self) -> list[str]:
        orders = [(one.message.symbol, one.message.side, one.price, one.message.id, one) for one in self.book]
        line = self.variant["line-of-order"]
        return [
            line.format(id, one.message.member, side, symbol, one.rest, money(price), symbol.lower(), side[0])
            for symbol, side, price, id, one in sorted(orders, key=lambda row: row[:4])
        ]

    def _volume(self, count: int) -> list[str]:
        quantities, many = Counter[str](), Counter[str]()
        for _, _, symbol, quantity, *_ in self.trades:
            quantities[symbol] += quantity
            many[symbol] += 1
        return [*(f"{symbol} {quantities[symbol]} {many[symbol]}" for symbol in sorted(many)), f"all {count}"]

    def _fees(self) -> list[str]:
        variant, total, sides = self.variant, Counter[str](), Counter[str]()
        rates = variant["who-pays-fees"](*self.market.rates)
        for _, _, _, quantity, price, buyer, seller, side in self.trades:
            came, rested = (buyer, seller) if side == "buy" else (seller, buyer)
            for member, rate in zip((came, rested), rates, strict=True):
                sides[member] += 1
                if rate is not None:
                    total[member] += max(variant["rounding-of-fees"](quantity * price * rate), variant["least-fee"])
        names = self.market.members
        return [
            f"{names[one][0]} ({one}) {money(total[one] // (1 + (sides[one] >= variant['active-members'])))}"
            for one in sorted(total)
        ]

    def _settled(self, after: Evening) -> list[str]:
        """Book the trades into lots; return the lines about positions."""
        after.lots = {key: list(own) for key, own in self.before.lots.items()}
        profits = Counter[tuple[str, str]]()
        for _, _, symbol, quantity, price, buyer, seller, _ in self.trades:
            for key, sign in (((buyer, symbol), 1), ((seller, symbol), -1)):
                lots, profit = _booked(after.lots.get(key, []), sign * quantity, price, self.variant["profit-of-sales"])
                after.lots[key] = lots
                profits[key] += profit
        after.lots = {key: own for key, own in after.lots.items() if own or key in profits}
        rows = [
            (*key, quantity, quantity * after.prices[key[1]], profits[key])
            for key, own in after.lots.items()
            for quantity in [sum(one for one, _ in own)]
        ]
        line = self.variant["line-of-position"]
        rows.sort(key=self.variant["order-of-positions"])
        return [
            line.format(member, symbol, quantity, money(value), money(profit))
            for member, symbol, quantity, value, profit in rows
        ]


def _booked(
    lots: Sequence[tuple[int, int]], quantity: int, price: int, basis: str
) -> tuple[list[tuple[int, int]], int]:
    """Return the lots after a trade, and the profit of those that it closes."""
    own, profit = list(lots), 0
    if own and own[0][0] * quantity < 0 and basis == "average":
        own = [(sum(one for one, _ in own), sum(cost for _, cost in own))]
    while quantity and own and own[0][0] * quantity < 0:
        place = len(own) - 1 if basis == "last" else 0
        size, cost = own[place]
        part = min(abs(size), abs(quantity))
        share = cost * part // abs(size)
        long = size > 0
        profit += part * price - share if long else share - part * price
        quantity += part if long else -part
        own[place : place + 1] = [] if part == abs(size) else [(size - part if long else size + part, cost - share)]
    return own + [(quantity, abs(quantity) * price)] * (quantity != 0), profit
