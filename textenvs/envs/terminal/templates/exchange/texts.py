"""Files of the template `exchange`; what stands between @ is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..programs import Program

DAY = """#!/bin/bash
# Runs a day of the exchange. Usage: bin/day FOLDER DATE
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
. "$here/@lib@/merge.sh"
folder=$1
today=$2
mkdir -p "$folder/state" "$folder/days/$today"
merge "$folder/inbox/$today" > "$folder/days/$today/messages.txt"
for step in match settle; do
    python3 -S -E -X utf8 "$here/@code@/${step}.py" "$folder" "$today"
done
"""

REPORT = """#!/bin/bash
# Prints reports on a day: trades, refused, book, volume, fees, positions. Usage: bin/report FOLDER DATE REPORT...
here=$(cd "$(dirname "$0")/.." && pwd)
. "$here/@lib@/reports.sh"
folder=$1
out=$1/days/$2
shift 2
for report in "$@"; do
    echo "== $report"
    "print_$report"
done
"""

MERGE = r"""# Brings the messages of members into one order.

# Prints the lines of the files of a folder, with the member behind the time.
merge() {
    awk '
        FNR == 1 {
            member = FILENAME
            sub(/.*\//, "", member)
            sub(/\.msg$/, "", member)
        }
        { sub(/\r$/, "") }
        { sub(/#.*/, "") }
        NF {
            $1 = $1 " " member
            print
        }
    ' "$1"/*.msg | LC_ALL=C sort -s @same_time@
}
"""

REPORTS = (
    """# Functions that print reports on a day.
export LC_ALL=C
""",
    """# Sets REPLY to an amount of cents, with a point.
money() {
    local amount=$1 sign=
    if ((amount < 0)); then
        sign=-
        amount=$((-amount))
    fi
    printf -v REPLY '%s%d.%02d' "$sign" $((amount / 100)) $((amount % 100))
}
""",
    """print_trades() {
    local number time symbol quantity price buyer seller
    while IFS=';' read -r number time symbol quantity price buyer seller _; do
        money "$price"
        echo @line_of_trade@
    done < "$out/trades.csv"
}
""",
    """print_refused() {
    tr ';' ' ' < "$out/refused.csv"
}
""",
    """print_book() {
    local id member side symbol quantity price
    while IFS=';' read -r id member side symbol quantity price _; do
        money "$price"
        echo @line_of_order@
    done < <(sort -t ';' -k4,4 -k3,3 -k6,6n -k1,1 "$out/orders.csv")
}
""",
    """print_volume() {
    awk -F ';' '{ sum[$3] += $4; many[$3]++ } END { for (name in sum) print name, sum[name], many[name] }' \\
        "$out/trades.csv" | sort
    echo "all $(cat "$folder/state/count.csv")"
}
""",
    """print_fees() {
    local member name amount
    while IFS=';' read -r member name amount; do
        money "$amount"
        echo "$name ($member) $REPLY"
    done < <(
        join -t ';' -o 1.1,1.2,2.2 <(grep -v '^#' "$folder/members.csv" | sort -t ';' -k1,1) \\
            <(sort -t ';' -k1,1 "$out/fees.csv")
    )
}
""",
    """print_positions() {
    local member symbol quantity value profit
    while IFS=';' read -r member symbol quantity value profit; do
        money "$value"
        value=$REPLY
        money "$profit"
        echo @line_of_position@
    done < <(sort -t ';' @order_of_positions@ "$out/positions.csv")
}
""",
)

TABLES = Program(
    "Tables in files, and settings.",
    (
        "import csv",
        "from pathlib import Path",
    ),
    "HERE = Path(__file__).resolve().parent.parent",
    (
        '''def rows_of(path):
    """Return the rows of a table; none where it does not exist yet."""
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return [row for row in csv.reader(file, delimiter=";") if row and not row[0].startswith("#")]''',
        """def write(path, rows):
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=";", lineterminator="\\n").writerows(rows)""",
        """def settings():
    rules = {}
    for line in (HERE / "etc" / "@conf@.conf").read_text().splitlines():
        key, sign, value = line.partition("#")[0].partition("=")
        if sign:
            rules[key.strip()] = value.strip()
    return rules""",
        '''def instruments(folder):
    """Return tick, lot and reference price in cents, by symbol."""
    rows = rows_of(folder / "instruments.csv")
    return {symbol: (cents(step), int(least), cents(usual)) for symbol, step, least, usual in rows}''',
        '''def cents(text):
    """Return the cents of a price such as 12.5 or 1,234.50."""
    text = text.replace(",", "")
    @cents@''',
        '''def references(folder):
    """Return the prices that orders are compared with: those of the last day with trades, or of the instrument."""
    usual = {symbol: price for symbol, (_, _, price) in instruments(folder).items()}
    return usual | {symbol: int(price) for symbol, price in rows_of(folder / "state" / "prices.csv")}''',
    ),
)

BOOK = Program(
    "Orders that rest, and their order.",
    ("from dataclasses import astuple, dataclass",),
    'OPPOSITE = {"buy": "sell", "sell": "buy"}',
    (
        """@dataclass
class Order:
    id: str
    member: str
    side: str
    symbol: str
    quantity: int
    price: int
    until: str
    since: str
    turn: int""",
        '''def rank(order):
    """Return what sorts orders of one side: the best one is first."""
    price = @better_price@
    return price, @priority_of_orders@''',
        '''def crosses(order, other):
    """Tell whether an order can trade with one that rests."""
    if other.symbol != order.symbol or other.side != OPPOSITE[order.side]:
        return False
    if order.price is None:
        return True
    return @crossing@''',
        '''def candidates(order, book):
    """Return the orders that an order can trade with, the best one first."""
    return sorted((other for other in book if crosses(order, other)), key=rank)''',
        """def find(book, member, id):
    @find@""",
        """def row_of(order):
    return astuple(order)""",
        """def order_of(row):
    id, member, side, symbol, quantity, price, until, since, turn = row
    return Order(id, member, side, symbol, int(quantity), int(price), until, since, int(turn))""",
    ),
)

CHECKS = Program(
    "Checks of orders before they are taken.",
    (),
    "",
    (
        '''class Refused(Exception):
    """A message that is not taken, with the reason."""''',
        """def check_time(time, action, rules):
    if time < rules["@opens_key@"]:
        @early_messages@
    if time >= rules["@closes_key@"]:
        raise Refused("late")""",
        '''def sized(quantity, least):
    """Return the quantity of an order, in full lots."""
    if quantity % least:
        @odd_lots@
    return quantity''',
        '''def priced(side, price, step, reference):
    """Return the price of an order, in full ticks and near the reference."""
    if price % step:
        @off_tick@
    if @distance@ * @collar_of_prices@ reference:
        raise Refused("collar")
    return price''',
        '''def covered(side, quantity, kind, held):
    """Return the quantity of an order of somebody who holds so much."""
    if side == "sell" and kind == "retail" and quantity > held:
        @short_sales@
    return quantity''',
    ),
)

MATCH = Program(
    "Matches the orders of a day. Usage: match.py FOLDER DATE",
    (
        "import sys",
        "from datetime import date",
        "from itertools import count",
        "from pathlib import Path",
        "",
        "from @book@ import Order, candidates, find, order_of, row_of",
        "from @checks@ import Refused, check_time, covered, priced, sized",
        "from tables import cents, instruments, references, rows_of, settings, write",
    ),
    "",
    (
        '''def expired(order, today):
    """Tell whether an order has rested too long."""
    return (date.fromisoformat(today) - date.fromisoformat(order.since)).@days_of_orders@''',
        '''class Day:
    def __init__(self, folder, today):
        self.folder, self.today, self.rules = folder, today, settings()
        self.instruments, self.references = instruments(folder), references(folder)
        self.kinds = {code: kind for code, _, kind in rows_of(folder / "members.csv")}
        lots = rows_of(folder / "state" / "lots.csv") or rows_of(folder / "holdings.csv")
        self.held = {}
        for member, symbol, quantity, _ in lots:
            self.held[member, symbol] = self.held.get((member, symbol), 0) + int(quantity)
        orders = [order_of(row) for row in rows_of(folder / "state" / "orders.csv")]
        self.book = [order for order in orders if not expired(order, today)]
        self.turns = count(1 + max((order.turn for order in orders), default=0))
        self.before = int((rows_of(folder / "state" / "count.csv") or [[0]])[0][0])
        self.trades, self.refused = [], []

    def price_of(self, symbol, side, text):
        step, _, _ = self.instruments[symbol]
        return priced(side, cents(text), step, self.references[symbol])

    def new(self, time, member, id, side, symbol, quantity, price, until):
        if symbol not in self.instruments:
            raise Refused("instrument")
        quantity = sized(int(quantity), self.instruments[symbol][1])
        price = None if price == "market" else self.price_of(symbol, side, price)
        quantity = covered(side, quantity, self.kinds[member], self.held.get((member, symbol), 0))
        if quantity < 1:
            raise Refused("empty")
        self.execute(time, Order(id, member, side, symbol, quantity, price, until, self.today, next(self.turns)))

    def cancel(self, time, member, id):
        order = find(self.book, member, id)
        if order is None:
            raise Refused("unknown")
        self.book.remove(order)

    def change(self, time, member, id, quantity, price):
        order = find(self.book, member, id)
        if order is None:
            raise Refused("unknown")
        quantity = sized(int(quantity), self.instruments[order.symbol][1])
        price = self.price_of(order.symbol, order.side, price)
        is_smaller = quantity <= order.quantity and price == order.price
        self.book.remove(order)
        order.quantity, order.price = quantity, price
        @changed_orders@
        self.execute(time, order)

    def execute(self, time, order):
        """Trade an order with those that rest; what remains may rest."""
        @orders_for_now@
        last = self.references[order.symbol]
        while order.quantity:
            other = next(iter(candidates(order, self.book)), None)
            if other is None:
                break
            if other.member == order.member:
                @trades_with_oneself@
            last = self.trade(time, order, other)
            if not other.quantity:
                self.book.remove(other)
        if order.price is None:
            @rest_of_market_orders@
        if order.quantity and order.price is not None and order.until != "now":
            self.book.append(order)

    def trade(self, time, order, other):
        """Add a trade of an order with one that rests; return its price."""
        symbol, quantity = order.symbol, min(order.quantity, other.quantity)
        price = @price_of_trades@
        number = @numbers_of_trades@
        buyer, seller = (order, other) if order.side == "buy" else (other, order)
        taker = order.side
        self.trades.append((number, time, symbol, quantity, price, buyer.member, seller.member, taker))
        order.quantity -= quantity
        other.quantity -= quantity
        return price

    def run(self):
        messages = self.folder / "days" / self.today / "messages.txt"
        for line in messages.read_text(encoding="utf-8").splitlines():
            time, member, action, id, *rest = line.split()
            try:
                check_time(time, action.upper(), self.rules)
                getattr(self, action.lower())(time, member, id, *rest)
            except Refused as reason:
                self.refused.append((time, member, id, reason))

    def save(self):
        out, state = self.folder / "days" / self.today, self.folder / "state"
        write(out / "trades.csv", self.trades)
        write(out / "refused.csv", self.refused)
        write(out / "orders.csv", [row_of(order) for order in self.book])
        write(state / "orders.csv", [row_of(order) for order in self.book if order.until == "gtc"])
        write(state / "count.csv", [[self.before + len(self.trades)]])''',
    ),
)

MATCH_END = """

day = Day(Path(sys.argv[1]), sys.argv[2])
day.run()
day.save()
"""

FEES = Program(
    "Fees of trades.",
    ("from collections import Counter",),
    "",
    (
        '''def fee(value, rate):
    """Return the fee for a value in cents; rates are parts of 10,000."""
    amount = value * rate
    return max(@rounding_of_fees@@least_fee@''',
        '''def payers(buyer, seller, taker, rules):
    """Return who pays for a trade, and the rates."""
    first, second = (buyer, seller) if taker == "buy" else (seller, buyer)
    quick, slow = int(rules["@taker_key@"]), int(rules["@maker_key@"])
    @who_pays_fees@''',
        '''def fees(trades, rules):
    """Return the fees of members for the trades of a day."""
    total, sides = Counter(), Counter()
    for _, _, _, quantity, price, buyer, seller, taker in trades:
        sides.update([buyer, seller])
        for member, rate in payers(buyer, seller, taker, rules):
            total[member] += fee(int(quantity) * int(price), rate)
    return {member: amount // (2 if sides[member] @active_members@else 1) for member, amount in total.items()}''',
    ),
)

SETTLE = Program(
    "Fees, positions and prices behind the trades of a day. Usage: settle.py FOLDER DATE",
    (
        "import sys",
        "from pathlib import Path",
        "",
        "from @fees@ import fees",
        "from @positions@ import booked, closing",
        "from tables import references, rows_of, settings, write",
    ),
    "",
    (
        '''def prices(trades):
    """Return the closing prices by symbol."""
    pairs = {}
    for _, _, symbol, quantity, price, *_ in trades:
        pairs.setdefault(symbol, []).append((int(quantity), int(price)))
    return {symbol: closing(own) for symbol, own in pairs.items()}''',
        """def settle(folder, today):
    out, state = folder / "days" / today, folder / "state"
    trades = rows_of(out / "trades.csv")
    write(out / "fees.csv", fees(trades, settings()).items())
    lots, profits = {}, {}
    for member, symbol, quantity, cost in rows_of(state / "lots.csv") or rows_of(folder / "holdings.csv"):
        lots.setdefault((member, symbol), []).append([int(quantity), int(cost)])
    for _, _, symbol, quantity, price, buyer, seller, _ in trades:
        for member, sign in ((buyer, 1), (seller, -1)):
            key = member, symbol
            gain = booked(lots.setdefault(key, []), sign * int(quantity), int(price))
            profits[key] = profits.get(key, 0) + gain
    close = references(folder) | prices(trades)
    write(state / "prices.csv", close.items())
    write(state / "lots.csv", [(*key, *lot) for key, own in lots.items() for lot in own])
    rows = []
    for key, own in lots.items():
        quantity = sum(lot[0] for lot in own)
        if quantity or key in profits:
            rows.append((*key, quantity, quantity * close[key[1]], profits.get(key, 0)))
    write(out / "positions.csv", rows)""",
    ),
)

SETTLE_END = """

settle(Path(sys.argv[1]), sys.argv[2])
"""

POSITIONS = Program(
    "Positions of members: lots are lists of a quantity, negative if it was sold, and of what it cost.",
    (),
    "",
    (
        '''def booked(lots, quantity, price):
    """Book a trade into the lots of a member; return the profit of those that it closes."""
    profit = 0
    while quantity and lots and lots[0][0] * quantity < 0:
        @profit_of_sales@
        part = min(abs(quantity), abs(lot[0]))
        sign = 1 if lot[0] > 0 else -1
        cost = lot[1] * part // abs(lot[0])
        profit += sign * (part * price - cost)
        lot[0] -= sign * part
        lot[1] -= cost
        quantity += sign * part
        if not lot[0]:
            lots.remove(lot)
    if quantity:
        lots.append([quantity, abs(quantity) * price])
    return profit''',
        '''def closing(pairs):
    """Return the closing price of an instrument, by quantities and prices of its trades."""
    amounts = [price for _, price in pairs]
    return @closing_prices@''',
    ),
)

CONF = """# The exchange
@opens_key@ = 09:00
@closes_key@ = 17:30
@taker_key@ = @taker_rate@  # of 10,000
@maker_key@ = @maker_rate@
"""

FORMAT = """# The exchange

A folder has `instruments.csv` (symbol, tick, lot, reference price), `members.csv` (code, name, kind), `holdings.csv`
(what members have before the first day: member, symbol, quantity, cost in cents) and `inbox/DATE/MEMBER.msg`: the
messages of a day, in the order in which a member sent them. `bin/day FOLDER DATE` writes `days/DATE/` and `state/`.

- `09:00:01.250 NEW ID buy SYMBOL 100 12.50 gtc`: an order with a price or `market`; it rests for the day (`day`), for
  some days (`gtc`), or not at all (`now`).
- `CANCEL ID`, and `CHANGE ID QUANTITY PRICE`, of an order that rests. An order that is changed may trade at once.

Actions may be in any case of letters, prices have a comma before each three digits, or none; `#` begins a comment.
Prices are in @currency@, with up to two digits behind the point; all figures of files that programs write are in cents.
From `@opens_key@` on, messages count, and from `@closes_key@` on no more (`late`). Messages of one time, one member and
one kind have the order of the file.

An order trades with those of the other side with the best price first, as long as its price allows it. Reasons to
refuse a message, in their order: `early`, `late`, `instrument` (nobody knows it), `lot`, `tick`, `collar`, `short`,
`unknown` (no such order of the member rests). A market order has no tick and no collar. Prices are compared with the
closing price of the last day with trades in the instrument, or with its reference price; what is held is what was held
in the morning.

Fees are parts of 10,000 of the value: `@taker_key@` of the order that came, and `@maker_key@` of the one that rested. A
sale closes lots that were bought, or else is one that is negative; the cost of a part of a lot is rounded down, and the
profit of a day is that of the lots that are closed. The value of a position is that at closing prices; positions of
nothing are printed on a day with trades in them.

Reports of `bin/report FOLDER DATE REPORT...`: trades, refused, book (what rests in the evening, by symbol, side, price
and id), volume (quantity and trades by symbol, and the number of all trades since the first day), fees, positions.
"""

#: Ways to write a part of a program, the second of them a wrong one.
SHAPES: Mapping[str, Sequence[tuple[str, str]]] = {
    "cents": (
        (
            'whole, _, rest = text.partition(".")\n    return 100 * int(whole) + int((rest + "00")[:2])',
            'whole, _, rest = text.partition(".")\n    return 100 * int(whole) + int(rest or "0")',
        ),
        ("return round(float(text) * 100)", "return int(float(text) * 100)"),
        (
            'whole, rest = (text + ".").split(".")[:2]\n    return int(whole + rest.ljust(2, "0"))',
            'whole, rest = (text + ".").split(".")[:2]\n    return int(whole + rest.rjust(2, "0"))',
        ),
    ),
    "better_price": (
        ('-order.price if order.side == "buy" else order.price', "order.price"),
        ('order.price * (1 if order.side == "sell" else -1)', "-order.price"),
    ),
    "crossing": (
        (
            'other.price <= order.price if order.side == "buy" else other.price >= order.price',
            'other.price < order.price if order.side == "buy" else other.price > order.price',
        ),
        (
            '(order.price - other.price) * (1 if order.side == "buy" else -1) >= 0',
            '(order.price - other.price) * (1 if order.side == "buy" else -1) > 0',
        ),
    ),
    "find": (
        (
            "return next((order for order in book if (order.member, order.id) == (member, id)), None)",
            "return next((order for order in book if order.id == id), None)",
        ),
        (
            "for order in book:\n        if order.id == id and order.member == member:\n            return order\n"
            "    return None",
            "for order in book:\n        if order.id == id or order.member == member:\n            return order\n"
            "    return None",
        ),
    ),
    "distance": (
        ("abs(price - reference)", "(price - reference)"),
        ("max(price - reference, reference - price)", "(price - reference)"),
    ),
}
