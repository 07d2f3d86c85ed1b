"""The template *shop*: a database that migrations make, an import of CSV files, and reports in SQL.

It needs sh and Python 3 with its module sqlite3.
"""

from __future__ import annotations

import calendar
import csv
import io
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote

from ...project import Check, Fault, Project, Question
from ..parts import ASKED, CITIES, GOODS, asked_together, fault_of_command, notes, person, token
from ..variation import Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import DATABASE, LOAD, MAIN, MIGRATIONS, QUERIES, REPORTS, SCHEMA, SHOP


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: names of tables and columns, coupons, a series of products, and older exports."""
    customer, order = rng.choice(["customer", "client", "member"]), rng.choice(["booking", "purchase", "sale"])
    names = {
        "code": rng.choice(["code", "shop", "lib", "tools"]),
        "customer": customer,
        "customers": f"{customer}s",
        "order": order,
        "orders": f"{order}s",
        "series": rng.choice("ABCDEF") + rng.choice("KLMN"),
        "staff": f"STAFF{rng.randint(10, 99)}",
        "one": f"SPRING{rng.randint(10, 99)}",
        "other": f"FRIEND{rng.randint(10, 99)}",
    }
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    texts = {
        "bin/shop": SHOP,
        "@code@/main.py": MAIN,
        "@code@/database.py": DATABASE,
        "@code@/load.py": LOAD,
        "@code@/reports.py": REPORTS,
        "var/.keep": "",
        **{f"migrations/{name}.sql": f"{text}\n" for name, text in MIGRATIONS.items()},
        **{f"reports/{name}.sql": text for name, text in QUERIES.items()},
        "docs/schema.md": SCHEMA,
    }
    files = variant.files(texts) | variant.document(rng)
    # A report of last year, which nothing reads.
    old = QUERIES["01_cities"].replace("SUM(pieces) AS pieces", "MAX(pieces) AS pieces")
    files["reports/01_cities.sql.old"] = variant.outdated(old)
    files["docs/notes.md"] = notes(rng, "Notes on the shop", 10)
    questions = _questions(rng, files)
    fixed = frozenset(path for path in files if path.startswith("exports/"))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return [_check(fresh, f"reports{number}", variant) for number in range(2)]

    about = (
        "`bin/shop FOLDER MONTH` makes a database by the migrations, imports the CSV files of a folder, and prints all "
        f"reports. `docs/schema.md` describes the tables, and `{variant.page}` the output."
    )
    looks = ["ls *", f"cat {names['code']}/*.py", "cat docs/schema.md"]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_file_faults(rng, variant, looks),
    ]
    return Project(about, files, faults, checks, {"bin/shop": 0o755}, fixed=fixed, questions=questions)


def _file_faults(rng: random.Random, variant: Variant, looks: Sequence[str]) -> list[Fault]:
    lost = rng.choice(["7_stock", "8_coupons", "9_cancelled"])
    text = variant.text(MIGRATIONS[lost])
    cleanup = variant.text("-- Indexes that no query has used this week.\nDROP INDEX payments_once;\n")
    return [
        fault_of_command(
            "missing-migration",
            "The import ends with an error: a column does not exist.",
            [*looks, "ls migrations"],
            f"rm migrations/{lost}.sql",
            f"echo {quote(text)} > migrations/{lost}.sql",
        ),
        Fault(
            "lost-index",
            "Since this week, payments that the bank sent twice are counted twice.",
            [*looks, "cat migrations/13_*"],
            "rm migrations/13_cleanup.sql",
            added={"migrations/13_cleanup.sql": cleanup},
        ),
    ]


@dataclass(frozen=True)
class _Order:
    """An order; ``lines`` are products and pieces, ``payments`` references and cents."""

    number: int
    customer: int
    placed: str
    coupon: str
    cancelled: int
    lines: Sequence[tuple[str, int]]
    payments: Sequence[tuple[str, int]]


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([header, *rows])
    return file.getvalue()


def _orders(rng: random.Random, month: str, codes: Sequence[str], coupons: Sequence[str]) -> list[_Order]:
    """Draw orders on the month's first and last day, and in the next one; some have two payments."""
    year, number = map(int, month.split("-"))
    last = calendar.monthrange(year, number)[1]
    # The last of the customers ordered nothing, others once, twice, and three times.
    buyers = [*(1 + place % 3 for place in range(12)), 5, 6, 6, 7, 7, 7, *(rng.choice([1, 2, 3, 8]) for _ in range(6))]
    orders = []
    for place, buyer in enumerate(buyers):
        at = f"{month}-{(1, 15, last)[place % 3]:02}" if place % 6 != 5 else f"{year}-{number + 1:02}-02"
        at += f" {rng.randint(8, 19):02}:{rng.randint(10, 59)}"
        lines = [(rng.choice(codes), rng.randint(1, 9)) for _ in range(2 + place % 2)]
        cents = 1999 if place % 6 == 0 else rng.randint(100, 99_999)
        payments = [(token(rng), cents), *([(token(rng), rng.randint(100, 9999))] if place % 4 == 0 else [])]
        cancelled = int(place in (1, 2) or place % 5 == 4)
        orders.append(_Order(100 + place, buyer, at, coupons[place % 6], cancelled, lines, payments))
    # Each product that is listed was ordered, in a number of which each option takes another one.
    orders[0] = replace(orders[0], lines=[(code, 6) for code in codes])
    return orders


@dataclass(frozen=True)
class _Import:
    """Data that a check imports: customers (id, name, city), products (code, name, size, stock), orders and refunds."""

    month: str
    customers: Sequence[tuple[int, str, str]]
    products: Sequence[tuple[str, str, int, int]]
    orders: Sequence[_Order]
    refunds: Sequence[tuple[str, int]]
    unknown: int  # orders of nobody

    @classmethod
    def draw(cls, rng: random.Random, names: Mapping[str, object]) -> _Import:
        """Draw an import. Amounts that floats cannot express, and all corner cases, are always in it."""
        month, series = f"{rng.randint(2019, 2025)}-{rng.randint(1, 9):02}", names["series"]
        cities = rng.sample(CITIES, 3)
        customers = [(identity, person(rng), cities[identity % 3]) for identity in range(1, 13)]
        codes = [f"{series}{'_' if place < 5 else ''}{token(rng, 4)}{place}" for place in range(8)]  # all different
        sizes = [9, 10, 10, *rng.sample([7, 8, 11, 12, 110], 5)]
        products = [
            (code, rng.choice(GOODS), size, rng.randint(100, 300)) for code, size in zip(codes, sizes, strict=True)
        ]
        coupons = [str(names["staff"]), str(names["one"]), str(names["other"]), "", "", f"X{token(rng, 4)}"]
        refunds = [(token(rng), cents) for cents in (500, 500, rng.randint(1, 9) * 100)]
        return cls(month, customers, products, _orders(rng, month, codes, coupons), refunds, rng.randint(1, 3))

    def files(self, variant: Variant) -> dict[str, str]:
        """Return the files: payments are in two, which have some rows in common."""
        order, orders = str(variant.names["order"]), variant.names["orders"]
        customer, customers = str(variant.names["customer"]), variant.names["customers"]

        def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
            return _table([variant.identifiers.get(name, name) for name in header], rows)

        def amount(cents: int) -> str:
            return f"{cents / 100:.2f}"

        rows = [
            (reference, entry.number, amount(cents)) for entry in self.orders for reference, cents in entry.payments
        ]
        own = [(entry.number, entry.customer, entry.placed, entry.coupon, entry.cancelled) for entry in self.orders]
        strangers = [(900 + place, 99, f"{self.month}-10 10:00", "", 0) for place in range(self.unknown)]
        lines = [(entry.number, *line) for entry in self.orders for line in entry.lines]
        refunds = [(reference, amount(cents)) for reference, cents in self.refunds]
        columns = ["reference", order, "cents"]
        return {
            f"{customers}.csv": table(["id", "name", "city"], self.customers),
            "products.csv": table(["code", "name", "size", "stock"], self.products),
            f"{orders}.csv": table(["id", customer, "placed", "coupon", "cancelled"], [*own, *strangers]),
            "lines.csv": table([order, "product", "pieces"], lines),
            "payments1.csv": table(columns, rows[: len(rows) // 2 + 3]),
            "payments2.csv": table(columns, rows[len(rows) // 2 :]),
            "refunds.csv": table(["reference", "cents"], refunds),
        }

    def reports(self, variant: Variant) -> dict[str, list[tuple[object, ...]]]:
        """Return the rows of each report."""
        names, orders = variant.names, self.orders
        city_of = {identity: city for identity, _, city in self.customers}
        amounts, pieces, number = Counter[str](), Counter[str](), Counter[str]()
        monthly, sold, count = Counter[tuple[str, str]](), Counter[str](), Counter[int]()
        for entry in orders:
            city = city_of[entry.customer]
            amounts[city] += sum(cents for _, cents in entry.payments)
            pieces[city] += sum(number for _, number in entry.lines)
            number[city] += 1
            monthly[city, entry.placed[:7]] += 1
            count[entry.customer] += 1
            for code, ordered in entry.lines:
                sold[code] += variant["stock-of-line"](ordered)
        inside = [entry for entry in orders if entry.placed[:7] == self.month]
        regular = [entry for entry in orders if entry.coupon != names["staff"]]
        used = [entry for entry in orders if entry.coupon in (names["one"], names["other"]) and not entry.cancelled]
        cities = sorted(amounts, key=lambda city: variant["order-of-cities"](city, amounts[city], pieces[city]))
        listed = [
            (code, size, stock - sold[code])
            for code, _, size, stock in self.products
            if code.startswith(f"{names['series']}_")
        ]
        by_size, by_code = variant["order-of-products"]
        listed.sort(reverse=by_code < 0)
        listed.sort(key=lambda product: by_size * product[1])
        balance = sum(amounts.values()) - sum(cents for _, cents in self.refunds)
        return {
            "01_cities": [
                (city, *variant["figures-of-city"](amounts[city], pieces[city], number[city])) for city in cities
            ],
            "02_quiet": [(one, count[one]) for one, *_ in self.customers if count[one] <= variant["quiet"]],
            "03_month": [variant["counts-of-month"](inside, len({entry.customer for entry in inside}))],
            "04_regular": [variant["count-of-regular"](len(regular), sum(entry.cancelled for entry in regular))],
            "05_products": [tuple(row[place] for place in variant["columns-of-products"]) for row in listed],
            "06_balance": [(variant["balance"](balance),)],
            "07_campaign": [variant["figures-of-campaign"](used)],
            "08_by_month": sorted(variant["columns-of-months"](*key, number) for key, number in monthly.items()),
        }


def _check(rng: random.Random, name: str, variant: Variant) -> Check:
    """Draw an import; compute the reports from the orders."""
    drawn = _Import.draw(rng, variant.names)
    expected = [f"{variant['rejected']} {drawn.unknown}"]
    for report, rows in drawn.reports(variant).items():
        expected.append(variant["heading"].format(report, report.upper()))
        expected += [variant["row-of-report"].join(map(str, row)) for row in rows]
    return Check(name, f"bin/shop $IN {drawn.month}", "\n".join(expected), drawn.files(variant))


def _questions(rng: random.Random, files: dict[str, str]) -> list[Question]:
    """Draw exports of payments by month, and ask about them."""
    people = sorted({person(rng) for _ in range(40)})
    numbers = dict(zip(people, rng.sample(range(1000, 9999), len(people)), strict=True))
    files["exports/people.csv"] = _table(["number", "name"], [(numbers[name], name) for name in people])
    rows, months = (
        list[tuple[str, int, int]](),
        [f"{year}-{month:02}" for year in (2023, 2024) for month in range(1, 13)],
    )
    for month in months:
        part = [(token(rng), numbers[rng.choice(people)], cents) for cents in rng.sample(range(100, 90_000), 60)]
        files[f"exports/payments-{month}.csv"] = _table(["reference", "number", "cents"], part)
        rows += part
    orphans = [token(rng) for _ in range(ASKED)]
    refunds = [*rng.sample([reference for reference, _, _ in rows], 60), *orphans]
    rng.shuffle(refunds)
    orphans.sort(key=refunds.index)
    files["exports/refunds.csv"] = _table(["reference", "reason"], [(line, rng.choice(GOODS)) for line in refunds])
    names = rng.sample([name for name in people if any(row[1] == numbers[name] for row in rows)], ASKED)
    return [
        asked_together([_payment_of_person(name, [row for row in rows if row[1] == numbers[name]]) for name in names]),
        Question(
            "refund-without-payment",
            f"Which {ASKED} references in exports/refunds.csv are of no payment in exports/? Answer with them in the "
            "order of the file, with one space between them.",
            " ".join(orphans),
            [
                "head -2 exports/refunds.csv",
                "awk -F, '/refer/ { next } FILENAME ~ /payments/ { seen[$1]; next } !($1 in seen) { print $1 }' "
                "exports/payments-*.csv exports/refunds.csv | paste -sd' '",
            ],
        ),
    ]


def _payment_of_person(name: str, rows: Sequence[tuple[str, int, int]]) -> Question:
    number = f"$(awk -F, '$2 == \"{name}\" {{ print $1 }}' exports/people.csv)"
    return Question(
        "payment-of-person",
        f"What is the reference of the largest payment of {name} in exports/ (the first in order of equal ones)?",
        min(rows, key=lambda row: (-row[2], row[0]))[0],
        [
            "head -2 exports/*.csv | head -20",
            f"grep -h \",{number},\" exports/payments-*.csv | sort -t, -k3,3nr -k1,1 | sed -n '1s/,.*//p'",
        ],
    )
