"""Rules that the programs of the template `exchange` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers


def _none(*_: object) -> None:
    """Return what stands for a refusal."""


RULES = (
    Rule(
        "same-time",
        "@lib@/merge.sh",
        "Of two messages of one time, the wrong one came first.",
        [
            Option(
                "-k1,1 -k2,2",
                "Of messages of one time, those of the member whose code is first in the alphabet come first.",
                lambda codes, member, action: codes.index(member),
            ),
            Option(
                "-k1,1 -k2,2r",
                "Of messages of one time, those of the member whose code is last in the alphabet come first.",
                lambda codes, member, action: -codes.index(member),
            ),
            Option(
                "-k1,1 -k3,3f -k2,2",
                "Of messages of one time, cancellations come first, then changes, then new orders; of those of one "
                "kind, those of the member whose code is first in the alphabet.",
                lambda codes, member, action: (action.upper(), codes.index(member)),
            ),
        ],
    ),
    Rule(
        "priority-of-orders",
        "@code@/@book@.py",
        "Of orders with one price, the wrong ones trade.",
        [
            Option("order.turn", "Of orders with one price, the earliest one trades first.", lambda turn, rest: turn),
            Option(
                "-order.quantity, order.turn",
                "Of orders with one price, the one of which most remains trades first; of these, the earliest one.",
                lambda turn, rest: (-rest, turn),
            ),
            Option("-order.turn", "Of orders with one price, the latest one trades first.", lambda turn, rest: -turn),
        ],
    ),
    Rule(
        "price-of-trades",
        "@code@/match.py",
        "Trades have prices that the members did not agree on.",
        [
            Option("other.price", "A trade has the price of the order that rested.", lambda new, old: old),
            Option(
                "order.price or other.price",
                "A trade has the price of the order that came; that of the other one, if it is a market order.",
                lambda new, old: new or old,
            ),
            Option(
                "((order.price or other.price) + other.price) // 2",
                "A trade has the middle of both prices, rounded down to the cent; for a market order, the price of the "
                "other one.",
                lambda new, old: ((new or old) + old) // 2,
            ),
        ],
    ),
    Rule(
        "trades-with-oneself",
        "@code@/match.py",
        "Members who trade with themselves are not treated as agreed.",
        [
            Option("pass  # they may", "Members may trade with themselves.", ""),
            Option(
                "order.quantity = 0; break",
                "Where an order would trade with one of the same member, what remains of the one that came is dropped.",
                "new",
            ),
            Option(
                "self.book.remove(other); continue",
                "Where an order would trade with one of the same member, the one that rested is dropped.",
                "old",
            ),
        ],
    ),
    Rule(
        "rest-of-market-orders",
        "@code@/match.py",
        "What remains of market orders is in the book, or is missing in it, against the rules.",
        [
            Option(
                "order.quantity = 0  # dropped", "What remains of a market order is dropped.", lambda last, usual: 0
            ),
            Option(
                "order.price = last",
                "What remains of a market order rests at the price of its last trade; without one, at the price that "
                "prices are compared with.",
                lambda last, usual: last,
            ),
            Option(
                "order.price = self.references[order.symbol]",
                "What remains of a market order rests at the price that prices are compared with.",
                lambda last, usual: usual,
            ),
        ],
    ),
    Rule(
        "orders-for-now",
        "@code@/match.py",
        "Orders with `now` trade too much, or too little.",
        [
            Option("rest = order.quantity", "An order with `now` trades what it can; the rest is dropped.", False),
            Option(
                "available = sum(one.quantity for one in candidates(order, self.book))\n"
                '        if order.until == "now" and available < order.quantity: return',
                "An order with `now` that cannot trade in full does not trade at all.",
                True,
            ),
        ],
    ),
    Rule(
        "changed-orders",
        "@code@/match.py",
        "Orders that were changed have the wrong place among those of their price.",
        [
            Option(
                "order.turn = next(self.turns)",
                "An order that is changed has its place as if it were new.",
                lambda smaller: True,
            ),
            Option(
                "order.turn = order.turn  # its place",
                "An order that is changed keeps its place among those of its price, as the time of the first message.",
                lambda smaller: False,
            ),
            Option(
                "order.turn = order.turn if is_smaller else next(self.turns)",
                "An order that is changed keeps its place if the quantity is not larger and the price the same; else "
                "it has its place as if it were new.",
                lambda smaller: not smaller,
            ),
        ],
    ),
    Rule(
        "off-tick",
        "@code@/@checks@.py",
        "Prices between ticks are not treated as agreed.",
        [
            Option('raise Refused("tick")', "A price that is no multiple of the tick is refused (`tick`).", _none),
            Option(
                "price -= price % step",
                "A price that is no multiple of the tick is rounded down.",
                lambda price, step, side: price - price % step,
            ),
            Option(
                'price += step * (side == "sell") - price % step',
                "A price that is no multiple of the tick is rounded down for a buyer, and up for a seller.",
                lambda price, step, side: price - price % step + (step if side == "sell" else 0),
            ),
        ],
    ),
    Rule(
        "odd-lots",
        "@code@/@checks@.py",
        "Quantities that are no full lots are not treated as agreed.",
        [
            Option('raise Refused("lot")', "A quantity that is no multiple of the lot is refused (`lot`).", _none),
            Option(
                "quantity -= quantity % least",
                "A quantity that is no multiple of the lot is rounded down.",
                lambda quantity, lot: quantity - quantity % lot,
            ),
            Option(
                "quantity += least - quantity % least",
                "A quantity that is no multiple of the lot is rounded up.",
                lambda quantity, lot: quantity - quantity % lot + lot,
            ),
        ],
    ),
    numbers(
        "collar-of-prices",
        "@code@/@checks@.py",
        "Prices far from the usual ones are taken, or near ones are refused.",
        (5, 10, 20),
        "100 > {} *",
        "A price is refused (`collar`) if it differs by more than {} per cent from the one that it is compared with.",
    ),
    Rule(
        "early-messages",
        "@code@/@checks@.py",
        "What was sent before the opening is not treated as agreed.",
        [
            Option('raise Refused("early")', "Before the opening, all messages are refused (`early`).", ()),
            Option(
                "rules.pop(time, None)  # as later ones",
                "Before the opening, messages count as later ones do.",
                ("NEW", "CANCEL", "CHANGE"),
            ),
            Option(
                'if action == "NEW": raise Refused("early")',
                "Before the opening, new orders are refused (`early`); cancellations and changes count.",
                ("CANCEL", "CHANGE"),
            ),
        ],
    ),
    Rule(
        "short-sales",
        "@code@/@checks@.py",
        "Private customers sell what they do not have, or cannot sell what they have.",
        [
            Option(
                'raise Refused("short")',
                "Sales of members of the kind `retail` are refused (`short`) if they are larger than what is held.",
                _none,
            ),
            Option(
                "quantity = held",
                "Sales of members of the kind `retail` become as large as what is held, if they are larger.",
                lambda quantity, held: held,
            ),
            Option(
                'if quantity > 2 * held: raise Refused("short")',
                "Sales of members of the kind `retail` are refused (`short`) if they are over twice what is held.",
                lambda quantity, held: None if quantity > 2 * held else quantity,
            ),
        ],
    ),
    numbers(
        "days-of-orders",
        "@code@/match.py",
        "Old orders rest in the book for too long, or not long enough.",
        (7, 14, 30),
        "days > {}",
        "An order with `gtc` rests for at most {} days after its own.",
    ),
    Rule(
        "numbers-of-trades",
        "@code@/match.py",
        "Trades do not have the numbers that the supervisor expects.",
        [
            Option(
                "1 + len(self.trades)",
                "Trades are numbered from 1 on each day.",
                lambda before, day, symbol: 1 + day,
            ),
            Option(
                "self.before + len(self.trades) + 1",
                "Trades are numbered from 1, and go on from day to day.",
                lambda before, day, symbol: before + day + 1,
            ),
            Option(
                "1 + sum(row[2] == symbol for row in self.trades)",
                "Trades of an instrument are numbered from 1 on each day.",
                lambda before, day, symbol: symbol + 1,
            ),
        ],
    ),
    Rule(
        "who-pays-fees",
        "@code@/@fees@.py",
        "The wrong members pay the fees.",
        [
            Option(
                "return [(first, quick), (second, slow)]",
                "The member whose order came pays `@taker_key@`, and the one whose order rested `@maker_key@`.",
                lambda quick, slow: [quick, slow],
            ),
            Option(
                "return [(first, slow), (second, quick)]",
                "The member whose order came pays `@maker_key@`, and the one whose order rested `@taker_key@`.",
                lambda quick, slow: [slow, quick],
            ),
            Option(
                "return [(second, quick + slow)]",
                "The member whose order rested pays `@taker_key@` and `@maker_key@`, as one rate; the other nothing.",
                lambda quick, slow: [None, quick + slow],
            ),
            Option(
                "return [(first, quick + slow)]",
                "The member whose order came pays `@taker_key@` and `@maker_key@`, as one rate; the other nothing.",
                lambda quick, slow: [quick + slow, None],
            ),
        ],
    ),
    Rule(
        "rounding-of-fees",
        "@code@/@fees@.py",
        "Fees differ by some cents from those on the invoices.",
        [
            Option("amount // 10000", "The fee of a trade is rounded down to the cent.", lambda parts: parts // 10000),
            Option("-(-amount // 10000)", "The fee of a trade is rounded up to the cent.", lambda p: -(-p // 10000)),
            Option(
                "amount // 100000 * 10", "The fee of a trade is rounded down to ten cents.", lambda p: p // 100000 * 10
            ),
        ],
    ),
    numbers(
        "least-fee",
        "@code@/@fees@.py",
        "Fees of small trades are wrong.",
        (40, 75, 120),
        ", {})",
        "The fee of a trade is at least {} cents, for whoever pays one.",
    ),
    numbers(
        "active-members",
        "@code@/@fees@.py",
        "Members with many trades pay too much, or too little.",
        (4, 6, 8),
        ">= {} ",
        "Members with at least {} sides of trades on a day pay half of their fees of the day, rounded down.",
    ),
    Rule(
        "profit-of-sales",
        "@code@/@positions@.py",
        "Profits are not those of the tax office.",
        [
            Option("lot = lots[0]", "What is closed first is the oldest lot.", "first"),
            Option("lot = lots[-1]", "What is closed first is the newest lot.", "last"),
            Option(
                "lots[:] = [[sum(part) for part in zip(*lots)]]; lot = lots[0]",
                "Lots of a member in an instrument are joined to one when some of them is closed: costs are averages.",
                "average",
            ),
        ],
    ),
    Rule(
        "closing-prices",
        "@code@/@positions@.py",
        "The values of positions, and what is refused on the next day, are not as agreed.",
        [
            Option("amounts[-1]", "The closing price is that of the last trade.", lambda trades: trades[-1][1]),
            Option(
                "sum(many * price for many, price in pairs) // sum(many for many, _ in pairs)",
                "The closing price is the average of the day's trades by quantity, rounded down to the cent.",
                lambda trades: sum(many * price for many, price in trades) // sum(many for many, _ in trades),
            ),
            Option(
                "(min(amounts) + max(amounts)) // 2",
                "The closing price is the middle of the day's lowest and highest one, rounded down to the cent.",
                lambda trades: (min(price for _, price in trades) + max(price for _, price in trades)) // 2,
            ),
            Option(
                "max(pairs, key=lambda pair: pair[0])[1]",
                "The closing price is that of the largest trade of the day, of equal ones the first.",
                lambda trades: max(trades, key=lambda trade: trade[0])[1],
            ),
        ],
    ),
    Rule(
        "line-of-trade",
        "@lib@/reports.sh",
        "The ticker does not show trades any more.",
        [
            Option(
                '"$number. $quantity $symbol at $REPLY, $seller to $buyer"',
                "A line of `trades` is NUMBER. QUANTITY SYMBOL at PRICE, SELLER to BUYER.",
                "{0}. {3} {2} at {4}, {6} to {5}",
            ),
            Option(
                '"$time $symbol $REPLY x $quantity ($buyer/$seller) #$number"',
                "A line of `trades` is TIME SYMBOL PRICE x QUANTITY (BUYER/SELLER) #NUMBER.",
                "{1} {2} {4} x {3} ({5}/{6}) #{0}",
            ),
            Option(
                '"$symbol;$number;$REPLY;$quantity;$buyer;$seller"',
                "A line of `trades` is SYMBOL;NUMBER;PRICE;QUANTITY;BUYER;SELLER.",
                "{2};{0};{4};{3};{5};{6}",
            ),
            Option(
                '"[${time%.*}] $number $buyer buys $quantity $symbol from $seller, $REPLY"',
                "A line of `trades` is [TIME] NUMBER BUYER buys QUANTITY SYMBOL from SELLER, PRICE; TIME has no point.",
                "[{7}] {0} {5} buys {3} {2} from {6}, {4}",
            ),
        ],
    ),
    Rule(
        "line-of-order",
        "@lib@/reports.sh",
        "The book on the screens is empty.",
        [
            Option(
                '"$symbol $side $quantity at $REPLY ($member $id)"',
                "A line of `book` is SYMBOL SIDE QUANTITY at PRICE (MEMBER ID).",
                "{3} {2} {4} at {5} ({1} {0})",
            ),
            Option(
                '"$side ${symbol,,} $REPLY $quantity $id/$member"',
                "A line of `book` is SIDE SYMBOL PRICE QUANTITY ID/MEMBER, with small letters for the symbol.",
                "{2} {6} {5} {4} {0}/{1}",
            ),
            Option(
                '"$id: $member, ${side:0:1} $symbol $quantity x $REPLY"',
                "A line of `book` is ID: MEMBER, SIDE SYMBOL QUANTITY x PRICE, where SIDE is `b` or `s`.",
                "{0}: {1}, {7} {3} {4} x {5}",
            ),
        ],
    ),
    Rule(
        "line-of-position",
        "@lib@/reports.sh",
        "The statements for members cannot be printed.",
        [
            Option(
                '"$member $symbol $quantity worth $value, profit $REPLY"',
                "A line of `positions` is MEMBER SYMBOL QUANTITY worth VALUE, profit PROFIT.",
                "{0} {1} {2} worth {3}, profit {4}",
            ),
            Option(
                '"$symbol: $member has $quantity ($value, $REPLY)"',
                "A line of `positions` is SYMBOL: MEMBER has QUANTITY (VALUE, PROFIT).",
                "{1}: {0} has {2} ({3}, {4})",
            ),
            Option(
                '"$member/$symbol|$value|$REPLY|$quantity"',
                "A line of `positions` is MEMBER/SYMBOL|VALUE|PROFIT|QUANTITY.",
                "{0}/{1}|{3}|{4}|{2}",
            ),
        ],
    ),
    Rule(
        "order-of-positions",
        "@lib@/reports.sh",
        "Positions are in an order in which nobody finds them.",
        [
            Option("-k1,1 -k2,2", "Positions are sorted by member and symbol.", lambda one: (one[0], one[1])),
            Option("-k2,2 -k1,1", "Positions are sorted by symbol and member.", lambda one: (one[1], one[0])),
            Option(
                "-k5,5nr -k1,1 -k2,2",
                "Positions are sorted by profit, the largest first, then by member and symbol.",
                lambda one: (-one[4], one[0], one[1]),
            ),
            Option(
                "-k1,1 -k4,4n -k2,2",
                "Positions are sorted by member, then by value, the smallest first, then by symbol.",
                lambda one: (one[0], one[3], one[1]),
            ),
        ],
    ),
)

IDENTIFIERS = (
    "member number time symbol quantity price side buyer seller amount sign rest value step least order other last "
    "today folder reference held kind turn since cost part pairs amounts whole profits gain first second "
    "quick slow total sides action messages crosses candidates rank find covered sized priced booked closing payers "
    "references expired instruments rows_of with_member"
)
