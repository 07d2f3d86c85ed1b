"""Rules that the programs of the template `warehouse` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers

RULES = (
    numbers(
        "pallet-boxes",
        "@lib@/scan.awk",
        "The stock of some items is far from what stands in the hall.",
        (8, 10, 12, 16, 20),
        "boxes[sku] * {}",
        "A pallet (`pal`) has {} boxes.",
    ),
    Rule(
        "repeated-line",
        "@lib@/clean.awk",
        "Corrections at a scanner are not treated as agreed.",
        [
            Option(
                "return first",
                "Of lines that are the same but for the number, the first holds.",
                lambda first, last: first,
            ),
            Option(
                "return last",
                "Of lines that are the same but for the number, the last holds.",
                lambda first, last: last,
            ),
            Option(
                "return first > last ? first : last",
                "Of lines that are the same but for the number, the largest holds.",
                max,
            ),
            Option(
                "return first < last ? first : last",
                "Of lines that are the same but for the number, the smallest holds.",
                min,
            ),
        ],
    ),
    Rule(
        "last-day",
        "@lib@/clean.awk",
        "The reports of a day have too much of it, or too little.",
        [
            Option(
                "$1 > today", "Reports have the lines up to the end of the day.", lambda day, time, today: day <= today
            ),
            Option(
                "$1 >= today",
                "Reports have the lines of the days before, and none of the day.",
                lambda d, t, today: d < today,
            ),
            Option(
                '$1 > today || ($1 == today && $2 >= "12:00")',
                "Reports have the lines up to noon of the day.",
                lambda day, time, today: (day, time) < (today, "12:00"),
            ),
        ],
    ),
    Rule(
        "voided-lines",
        "@lib@/clean.awk",
        "Cancelled lines are not treated as agreed.",
        [
            Option(
                "for (m = 1; m < n; m++) if (refs[m] == refs[n]) dropped[m] = 1",
                "VOID cancels all lines with its reference before it.",
                "before",
            ),
            Option(
                "for (m = n - 1; m > 0; m--) if (refs[m] == refs[n]) { dropped[m] = 1; break }",
                "VOID cancels the last line with its reference before it, and no other.",
                "last",
            ),
            Option(
                "for (m = 1; m <= count; m++) if (refs[m] == refs[n]) dropped[m] = 1",
                "VOID cancels all lines with its reference, before it and after it.",
                "all",
            ),
        ],
    ),
    Rule(
        "stocktake",
        "sql/stock.sql",
        "After a stocktake, the stock is not what was counted.",
        [
            Option(
                "m.seq > c.seq", "A count holds from its time on: lines after it change it.", lambda m, c: m[0] > c[0]
            ),
            Option(
                "m.day > c.day",
                "A count holds for its whole day: lines of the days after it change it.",
                lambda m, c: m[1] > c[1],
            ),
            Option(
                "m.day >= c.day",
                "A count holds from the morning of its day: all lines of that day change it, and those after it.",
                lambda m, c: m[1] >= c[1],
            ),
        ],
    ),
    Rule(
        "blocked-places",
        "sql/stock.sql",
        "Pieces are sold that are blocked, or good ones are not.",
        [
            Option(
                f"'{letter}%'", f"Places that begin with {letter} are blocked: what is in them is not on hand.", letter
            )
            for letter in "QRTX"
        ],
    ),
    numbers(
        "reservation-days",
        "sql/held.sql",
        "Reservations hold for too long, or not long enough.",
        (5, 7, 10, 14, 21),
        "'-{} days'",
        "A reservation holds for {} days.",
    ),
    Rule(
        "partial-shipment",
        "sql/held.sql",
        "What is reserved after a first delivery is not what was agreed.",
        [
            Option(
                "max(o.pieces - o.shipped, 0)",
                "After a delivery, the rest stays reserved.",
                lambda pieces, shipped: max(pieces - shipped, 0),
            ),
            Option(
                "CASE WHEN o.shipped > 0 THEN 0 ELSE o.pieces END",
                "The first delivery ends a reservation.",
                lambda pieces, shipped: 0 if shipped else pieces,
            ),
            Option(
                "CASE WHEN o.shipped < o.pieces THEN o.pieces ELSE 0 END",
                "A reservation stays as a whole until all of it is delivered.",
                lambda pieces, shipped: pieces if shipped < pieces else 0,
            ),
        ],
    ),
    Rule(
        "shown-shortage",
        "reports/stock.sql",
        "The shop shows something else than was agreed for items that are oversold.",
        [
            Option(
                "held, available",
                "Where more is reserved than on hand, `stock` has a negative number.",
                lambda n: str(n),
            ),
            Option(
                "held, max(available, 0)",
                "Where more is reserved than on hand, `stock` has 0.",
                lambda n: str(max(n, 0)),
            ),
            Option(
                "held, CASE WHEN available < 0 THEN 'short' ELSE available END",
                "Where more is reserved than on hand, `stock` has the word short.",
                lambda n: "short" if n < 0 else str(n),
            ),
            Option(
                "held, CASE WHEN available < 0 THEN '-' ELSE available END",
                "Where more is reserved than on hand, `stock` has `-`.",
                lambda n: "-" if n < 0 else str(n),
            ),
        ],
    ),
    Rule(
        "reorder-base",
        "sql/needed.sql",
        "Items are ordered that need not be, or others are not.",
        [
            Option(
                "a.available + a.ordered",
                "What decides about an order is what is available, and what is ordered.",
                lambda hand, held, ordered: hand - held + ordered,
            ),
            Option(
                "a.available",
                "What decides about an order is what is available, whatever is ordered.",
                lambda hand, held, ordered: hand - held,
            ),
            Option(
                "a.on_hand + a.ordered",
                "What decides about an order is what is on hand, reserved or not, and what is ordered.",
                lambda hand, held, ordered: hand + ordered,
            ),
        ],
    ),
    Rule(
        "at-point",
        "sql/needed.sql",
        "Orders are made too early or too late.",
        [
            Option("< point", "An item is ordered below its reorder point.", lambda n, point, box: n < point),
            Option("<= point", "An item is ordered at its reorder point or below.", lambda n, point, box: n <= point),
            Option(
                "<= point + box",
                "An item is ordered at one box above its reorder point, or below.",
                lambda n, point, box: n <= point + box,
            ),
        ],
    ),
    Rule(
        "order-quantity",
        "sql/needed.sql",
        "The suppliers get orders of other sizes than agreed.",
        [
            Option(
                "(m.n + m.lot - 1) / m.lot * m.lot",
                "Orders are rounded up to whole lots.",
                lambda n, lot: -(-n // lot) * lot,
            ),
            Option(
                "max(m.n / m.lot, 1) * m.lot",
                "Orders are rounded down to whole lots, but have one at least.",
                lambda n, lot: max(n // lot, 1) * lot,
            ),
            Option(
                "max((m.n + m.lot / 2) / m.lot, 1) * m.lot",
                "Orders are rounded to the nearest number of whole lots, but have one at least.",
                lambda n, lot: max((n + lot // 2) // lot, 1) * lot,
            ),
            Option("max(m.n, m.lot)", "Orders are exact, but have one lot at least.", max),
        ],
    ),
    Rule(
        "best-offer",
        "sql/needed.sql",
        "Orders go to suppliers who were not meant.",
        [
            Option(
                "ORDER BY cents",
                "The cheapest offer is chosen; of equal ones, the first name.",
                lambda cents, days: cents,
            ),
            Option(
                "ORDER BY days", "The fastest offer is chosen; of equal ones, the first name.", lambda cents, days: days
            ),
            Option(
                "ORDER BY cents + 20 * days",
                "The cheapest offer is chosen, where a day of delivery counts as 20 cents.",
                lambda cents, days: cents + 20 * days,
            ),
            Option(
                "ORDER BY cents DESC",
                "The dearest offer is chosen: it is the one with a guarantee.",
                lambda cents, days: -cents,
            ),
        ],
    ),
    Rule(
        "order-line",
        "reports/orders.sql",
        "The mail to the suppliers cannot be read.",
        [
            Option("supplier, sku, quantity", "`orders` has supplier, sku and pieces.", (0, 1, 2)),
            Option("sku, quantity, supplier", "`orders` has sku, pieces and supplier.", (1, 2, 0)),
            Option(
                "quantity, sku, supplier, cents",
                "`orders` has pieces, sku, supplier and cents of a piece.",
                (2, 1, 0, 3),
            ),
            Option("supplier, sku, quantity * cents", "`orders` has supplier, sku and cents of the order.", (0, 1, 4)),
        ],
    ),
    Rule(
        "order-of-orders",
        "reports/orders.sql",
        "The orders are in the wrong order.",
        [
            Option("ORDER BY supplier", "`orders` is sorted by supplier, and then by sku.", lambda row: row[0]),
            Option("ORDER BY sku DESC", "`orders` is sorted by sku, backwards.", None),
            Option(
                "ORDER BY quantity * cents",
                "`orders` begins with what costs least; equal ones by sku.",
                lambda row: row[4],
            ),
            Option(
                "ORDER BY quantity DESC",
                "`orders` begins with the most pieces; equal ones by sku.",
                lambda row: -row[2],
            ),
        ],
    ),
    Rule(
        "lots-in-stock",
        "sql/value.sql",
        "The value of the stock is not the one that was agreed.",
        [
            Option(
                "day DESC, seq DESC",
                "First in, first out: what is valued is what came last.",
                lambda place, cents: -place,
            ),
            Option("day, seq", "Last in, first out: what is valued is what came first.", lambda place, cents: place),
            Option(
                "cents, seq",
                "The dearest pieces went first: the cheapest are valued.",
                lambda place, cents: (cents, place),
            ),
            Option(
                "cents DESC, seq",
                "The cheapest pieces went first: the dearest are valued.",
                lambda p, cents: (-cents, p),
            ),
        ],
    ),
    Rule(
        "amount",
        "reports/value.sql",
        "The program of the accountants does not read the values.",
        [
            Option("printf('%d.%02d', cents / 100, cents % 100)", "A value is such as 1250.40.", "{0}.{1:02}"),
            Option("printf('%d,%02d', cents / 100, cents % 100)", "A value is such as 1250,40.", "{0},{1:02}"),
            Option("cents / 100", "A value is such as 1250, without the cents.", "{0}"),
            Option(
                "(cents / 100) || 'u' || (cents % 100)", "A value is such as 1250u40, and 3u5 for 305 cents.", "{0}u{1}"
            ),
        ],
    ),
    Rule(
        "empty-places",
        "reports/places.sql",
        "Empty places are missing or too many.",
        [
            Option(
                "HAVING SUM(pieces) > 0", "`places` leaves out places that are empty now.", lambda pieces: pieces > 0
            ),
            Option("HAVING SUM(pieces) >= 0", "`places` has empty places, too.", lambda pieces: pieces >= 0),
            Option(
                "HAVING SUM(pieces) > 5", "`places` has the places with more than 5 pieces.", lambda pieces: pieces > 5
            ),
        ],
    ),
    Rule(
        "order-of-places",
        "reports/places.sql",
        "The list of places is sorted in another way than they are walked by.",
        [
            Option(
                "ORDER BY substr(place, 2)",
                "`places` is sorted by the names without their first letter.",
                lambda row: row[0][1:],
            ),
            Option("ORDER BY 3 DESC", "`places` begins with the most pieces; equal ones by name.", lambda row: -row[2]),
            Option("ORDER BY 3", "`places` begins with the fewest pieces; equal ones by name.", lambda row: row[2]),
            Option("ORDER BY 2 DESC", "`places` begins with the most items; equal ones by name.", lambda row: -row[1]),
        ],
    ),
    numbers(
        "slow-days",
        "reports/slow.sql",
        "Items are called slow that are not, or others are missing.",
        (30, 45, 60, 90),
        "'-{} days'",
        "An item is slow that was taken last more than {} days ago, or never.",
    ),
    Rule(
        "heading",
        "@lib@/@load@.py",
        "The page of the hall does not find the reports in the output.",
        [
            Option('f"[{report}]"', "A report begins with a line such as `[stock]`.", "[{}]"),
            Option('f"== {report}"', "A report begins with a line such as `== stock`.", "== {}"),
            Option('report.upper() + ":"', "A report begins with a line such as `STOCK:`.", ":"),
            Option('f"{report} {today}"', "A report begins with a line of its name and the day.", "{} {}"),
        ],
    ),
    Rule(
        "row-mark",
        "@lib@/@load@.py",
        "The tables of the hall have one column alone.",
        [
            Option(f'"{mark}"', f"Between the values of a line stands `{mark}`.", mark)
            for mark in (" | ", ";", " , ", " / ")
        ],
    ),
)

IDENTIFIERS = (
    "iso parts cells boxes number size factor chosen first last older numbers pieces kinds skus places refs "
    "dropped ends insert connection rows load line lines row query"
)
