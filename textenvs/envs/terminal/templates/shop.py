"""The template *shop*: a database that migrations make, an import of CSV files, and reports in SQL.

It needs sh and Python 3 with its module sqlite3.
"""

from __future__ import annotations

import csv
import io
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote

from ..project import Check, Fault, Project, Question
from .parts import CITIES, GOODS, fault_of_command, faults_of, filled, notes, person, token

_SHOP = """#!/bin/sh
# Imports a folder of CSV files and prints all reports. Usage: bin/shop FOLDER MONTH
exec python3 -S -E "$(dirname "$0")/../@code@/main.py" "$@"
"""
_MAIN = """import sys
from pathlib import Path

from database import connect, migrate
from load import load
from reports import reports

ROOT = Path(__file__).resolve().parent.parent


def main(folder, month):
    path = ROOT / "var" / "shop.db"
    path.unlink(missing_ok=True)
    connection = connect(path)
    migrate(connection, ROOT / "migrations")
    print("rejected", load(connection, Path(folder)))
    connection.close()
    connection = connect(path)
    for line in reports(connection, ROOT / "reports", month):
        print(line)


main(*sys.argv[1:])
"""
_DATABASE = '''"""The database, and its migrations."""
import sqlite3


def connect(path):
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def migrate(connection, folder):
    """Run the migrations, NUMBER_name.sql, by number."""
    paths = sorted(folder.glob("*.sql"), key=lambda path: int(path.name.split("_")[0]))
    for path in paths:
        connection.executescript(path.read_text())
'''
_LOAD = '''"""Import of CSV files."""
import csv
import sqlite3

TABLES = ("@customers@", "products", "@orders@", "lines", "payments", "refunds")


def value(name, text):
    if name == "cents":
        return round(float(text) * 100)
    return text or None


def load(connection, folder):
    """Import the files; payments can be in several files. Return how many rows were rejected."""
    rejected = 0
    for table in TABLES:
        for path in sorted(folder.glob(table + "*.csv")):
            with open(path, newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    marks = ", ".join("?" * len(row))
                    command = f"INSERT OR IGNORE INTO {table} ({', '.join(row)}) VALUES ({marks})"
                    try:
                        connection.execute(command, [value(*item) for item in row.items()])
                    except sqlite3.IntegrityError:
                        rejected += 1
    connection.commit()
    return rejected
'''
_REPORTS = '''"""Reports: each file of SQL is one."""


def reports(connection, folder, month):
    for path in sorted(folder.glob("*.sql")):
        yield f"== {path.stem}"
        for row in connection.execute(path.read_text(), {"month": month}):
            yield "|".join(str(cell) for cell in row)
'''
_MIGRATIONS = {
    "1_@customers@": "CREATE TABLE @customers@ (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL);",
    "2_products": (
        "CREATE TABLE products (\n    code TEXT PRIMARY KEY,\n    name TEXT NOT NULL,\n    size INTEGER NOT NULL\n);"
    ),
    "3_@orders@": (
        "CREATE TABLE @orders@ (\n    id INTEGER PRIMARY KEY,\n"
        "    @customer@ INTEGER NOT NULL REFERENCES @customers@ (id),\n    placed TEXT NOT NULL\n);"
    ),
    "4_lines": (
        "CREATE TABLE lines (\n    @order@ INTEGER NOT NULL REFERENCES @orders@ (id),\n"
        "    product TEXT NOT NULL REFERENCES products (code),\n    pieces INTEGER NOT NULL\n);"
    ),
    "5_payments": (
        "CREATE TABLE payments (\n    reference TEXT NOT NULL,\n"
        "    @order@ INTEGER NOT NULL REFERENCES @orders@ (id),\n    cents INTEGER NOT NULL\n);"
    ),
    "6_payments_once": (
        "-- The bank sends some payments twice.\nCREATE UNIQUE INDEX payments_once ON payments (reference);"
    ),
    "7_stock": "ALTER TABLE products ADD COLUMN stock INTEGER NOT NULL DEFAULT 0;",
    "8_coupons": "ALTER TABLE @orders@ ADD COLUMN coupon TEXT;",
    "9_cancelled": "ALTER TABLE @orders@ ADD COLUMN cancelled INTEGER NOT NULL DEFAULT 0;",
    "10_stock_of_lines": (
        "CREATE TRIGGER stock_of_lines AFTER INSERT ON lines BEGIN\n"
        "    UPDATE products SET stock = stock - NEW.pieces WHERE code = NEW.product;\nEND;"
    ),
    "11_refunds": "CREATE TABLE refunds (reference TEXT NOT NULL, cents INTEGER NOT NULL);",
    "12_index_of_lines": "CREATE INDEX lines_@order@ ON lines (@order@);",
}
_QUERIES = {
    "01_cities": """-- Paid amounts and ordered pieces by city.
SELECT c.city, SUM(p.cents), SUM(l.pieces)
FROM @orders@ o
JOIN @customers@ c ON c.id = o.@customer@
JOIN (SELECT @order@, SUM(cents) AS cents FROM payments GROUP BY @order@) p ON p.@order@ = o.id
JOIN (SELECT @order@, SUM(pieces) AS pieces FROM lines GROUP BY @order@) l ON l.@order@ = o.id
GROUP BY c.city ORDER BY c.city;
""",
    "02_quiet": """-- Those who ordered once or never.
SELECT c.id, COUNT(o.id)
FROM @customers@ c LEFT JOIN @orders@ o ON o.@customer@ = c.id
GROUP BY c.id HAVING COUNT(o.id) <= 1 ORDER BY c.id;
""",
    "03_month": """-- How many were placed in the month, and by how many.
SELECT COUNT(*), COUNT(DISTINCT @customer@)
FROM @orders@
WHERE placed >= :month || '-01' AND placed < date(:month || '-01', '+1 month');
""",
    "04_regular": """-- All but those of our staff, who have a coupon.
SELECT COUNT(*) FROM @orders@ WHERE coupon IS NOT '@staff@';
""",
    "05_products": """-- What is left in stock of the series @series@, the smallest first.
SELECT code, size, stock FROM products
WHERE code LIKE '@series@!_%' ESCAPE '!' ORDER BY size, code;
""",
    "06_balance": """-- Payments less refunds.
SELECT SUM(cents) FROM (SELECT cents FROM payments UNION ALL SELECT -cents FROM refunds);
""",
    "07_campaign": """-- Uses of both coupons of the campaign.
SELECT COUNT(*) FROM @orders@ WHERE cancelled = 0 AND (coupon = '@one@' OR coupon = '@other@');
""",
    "08_by_month": """-- Placed by city and month.
SELECT c.city, substr(o.placed, 1, 7), COUNT(*)
FROM @orders@ o JOIN @customers@ c ON c.id = o.@customer@
GROUP BY c.city, substr(o.placed, 1, 7) ORDER BY 1, 2;
""",
}

#: Kind, symptom, path, old and new text.
_EDITS = (
    (
        "sql-join-duplicates",
        "The paid amounts of the cities are higher than what the bank says.",
        "reports/01_cities.sql",
        "(SELECT @order@, SUM(pieces) AS pieces FROM lines GROUP BY @order@)",
        "(SELECT @order@, pieces FROM lines)",
    ),
    (
        "inner-join",
        "Some who should be called are missing from the list of quiet @customers@.",
        "reports/02_quiet.sql",
        "LEFT JOIN",
        "JOIN",
    ),
    (
        "between-end",
        "The figures of the month lack its last day.",
        "reports/03_month.sql",
        "placed < date(:month || '-01', '+1 month')",
        "placed <= date(:month || '-01', '+1 month', '-1 day')",
    ),
    (
        "count-duplicates",
        "More @customers@ are said to have ordered in the month than there are.",
        "reports/03_month.sql",
        "COUNT(DISTINCT @customer@)",
        "COUNT(@customer@)",
    ),
    (
        "null-comparison",
        "The count of regular @orders@ is far too low.",
        "reports/04_regular.sql",
        "coupon IS NOT '@staff@'",
        "coupon <> '@staff@'",
    ),
    (
        "like-wildcard",
        "Products of other series are in the list of the series @series@.",
        "reports/05_products.sql",
        "LIKE '@series@!_%' ESCAPE '!'",
        "LIKE '@series@_%'",
    ),
    (
        "union-drops-rows",
        "The balance is not the difference of what was paid and what was paid back.",
        "reports/06_balance.sql",
        "UNION ALL",
        "UNION",
    ),
    (
        "operator-precedence",
        "Cancelled @orders@ are counted as uses of a coupon of the campaign.",
        "reports/07_campaign.sql",
        "(coupon = '@one@' OR coupon = '@other@')",
        "coupon = '@one@' OR coupon = '@other@'",
    ),
    (
        "group-too-coarse",
        "The table by month has one line for each city.",
        "reports/08_by_month.sql",
        "GROUP BY c.city, substr(o.placed, 1, 7)",
        "GROUP BY c.city",
    ),
    (
        "column-affinity",
        "Products are listed in a strange order: size 9 after size 10.",
        "migrations/2_products.sql",
        "size INTEGER",
        "size TEXT",
    ),
    (
        "index-not-unique",
        "Some payments are counted twice.",
        "migrations/6_payments_once.sql",
        "CREATE UNIQUE INDEX",
        "CREATE INDEX",
    ),
    (
        "trigger-event",
        "The stock never gets less.",
        "migrations/10_stock_of_lines.sql",
        "AFTER INSERT ON lines",
        "AFTER UPDATE ON lines",
    ),
    (
        "foreign-keys-off",
        "Rows that belong to nobody are imported; formerly they were rejected.",
        "@code@/database.py",
        "foreign_keys = ON",
        "foreign_keys = OFF",
    ),
    (
        "migration-order",
        "The database cannot be made any more: no such table.",
        "@code@/database.py",
        'int(path.name.split("_")[0])',
        'path.name.split("_")[0]',
    ),
    (
        "missing-commit",
        "All reports are empty, though the import says nothing unusual.",
        "@code@/load.py",
        "    connection.commit()\n    return rejected",
        "    return rejected",
    ),
    (
        "float-truncation",
        "Some amounts are a cent too low.",
        "@code@/load.py",
        "round(float(text) * 100)",
        "int(float(text) * 100)",
    ),
)


def draw(rng: random.Random) -> Project:
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
    texts = {
        "bin/shop": _SHOP,
        "@code@/main.py": _MAIN,
        "@code@/database.py": _DATABASE,
        "@code@/load.py": _LOAD,
        "@code@/reports.py": _REPORTS,
        "var/.keep": "",
        **{f"migrations/{name}.sql": f"{text}\n" for name, text in _MIGRATIONS.items()},
        **{f"reports/{name}.sql": text for name, text in _QUERIES.items()},
        # What nothing reads: the schema as it should be, and a report of last year.
        "docs/schema.sql": "\n\n".join(_MIGRATIONS.values()) + "\n",
        "reports/01_cities.sql.old": _QUERIES["01_cities"].replace("SUM(pieces) AS pieces", "MAX(pieces) AS pieces"),
    }
    files = {filled(path, names): filled(text, names) for path, text in texts.items()}
    files["docs/notes.md"] = notes(rng, "Notes on the shop", 10)
    questions = _questions(rng, files)
    fixed = frozenset(path for path in files if path.startswith("exports/"))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return [_check(fresh, f"reports{number}", names) for number in range(2)]

    about = (
        "`bin/shop FOLDER MONTH` makes a database by the migrations, imports the CSV files of a folder, and prints all "
        "reports. `docs/schema.sql` has what the migrations were when they were reviewed."
    )
    looks = ["ls *", f"cat {names['code']}/*.py", "cat docs/schema.sql"]
    faults = [*faults_of(_EDITS, names, looks), *_file_faults(rng, names, looks)]
    return Project(about, files, faults, checks, {"bin/shop": 0o755}, fixed=fixed, questions=questions)


def _file_faults(rng: random.Random, names: Mapping[str, str], looks: Sequence[str]) -> list[Fault]:
    lost = rng.choice(["7_stock", "8_coupons", "9_cancelled"])
    text = filled(_MIGRATIONS[lost], names)
    cleanup = "-- Indexes that no query has used this week.\nDROP INDEX payments_once;\n"
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


def _check(rng: random.Random, name: str, names: Mapping[str, str]) -> Check:
    """Draw the files of an import. Amounts that floats cannot express, and all corner cases, are always in them."""
    year, number = rng.randint(2019, 2025), rng.randint(1, 9)
    month, series = f"{year}-{number:02}", names["series"]
    cities = rng.sample(CITIES, 3)
    customers = [(identity, person(rng), cities[identity % 3]) for identity in range(1, 13)]
    codes = [f"{series}{'_' if place < 5 else ''}{token(rng, 4)}{place}" for place in range(8)]  # all different
    products = [
        (code, rng.choice(GOODS), size, rng.randint(100, 300))
        for code, size in zip(codes, rng.sample([7, 8, 9, 10, 11, 12, 100, 110], 8), strict=True)
    ]
    coupons = [names["staff"], names["one"], names["other"], "", "", f"X{token(rng, 4)}"]
    orders = []
    for place in range(24):
        days = ["01", "15", f"{[31, 29 if year % 4 == 0 else 28, 31, 30, 31, 30, 31, 31, 30][number - 1]:02}"]
        placed = f"{year}-{number + (place % 6 == 5):02}-{days[place % 3] if place % 6 != 5 else '02'}"
        placed += f" {rng.randint(8, 19):02}:{rng.randint(10, 59)}"
        lines = [(rng.choice(codes), rng.randint(1, 9)) for _ in range(2 + place % 2)]
        cents = 1999 if place % 6 == 0 else rng.randint(100, 99_999)
        payments = [(token(rng), cents), *([(token(rng), rng.randint(100, 9999))] if place % 4 == 0 else [])]
        # The last of the customers ordered nothing.
        buyer = 1 + place % 3 if place < 12 else rng.randint(1, 11)
        cancelled = 1 if place in (1, 2) else place % 5 == 4
        orders.append(_Order(100 + place, buyer, placed, coupons[place % 6], int(cancelled), lines, payments))
    refunds = [(token(rng), cents) for cents in (500, 500, rng.randint(1, 9) * 100)]
    unknown = rng.randint(1, 3)
    strangers = [(900 + place, 99, f"{month}-10 10:00", "", 0) for place in range(unknown)]
    order = names["order"]
    rows = [(reference, entry.number, cents) for entry in orders for reference, cents in entry.payments]

    def amounts(part: Sequence[tuple[str, int, int]]) -> str:
        return _table(["reference", order, "cents"], [(*row[:2], f"{row[2] / 100:.2f}") for row in part])

    own = [(entry.number, entry.customer, entry.placed, entry.coupon, entry.cancelled) for entry in orders]
    inputs = {
        f"{names['customers']}.csv": _table(["id", "name", "city"], customers),
        "products.csv": _table(["code", "name", "size", "stock"], products),
        f"{names['orders']}.csv": _table(
            ["id", names["customer"], "placed", "coupon", "cancelled"], [*own, *strangers]
        ),
        "lines.csv": _table(
            [order, "product", "pieces"], [(entry.number, *line) for entry in orders for line in entry.lines]
        ),
        "payments1.csv": amounts(rows[: len(rows) // 2 + 3]),
        "payments2.csv": amounts(rows[len(rows) // 2 :]),
        "refunds.csv": _table(
            ["reference", "cents"], [(reference, f"{cents / 100:.2f}") for reference, cents in refunds]
        ),
    }
    expected = [f"rejected {unknown}", *_expected(names, month, customers, products, orders)]
    balance = sum(cents for _, _, cents in rows) - sum(cents for _, cents in refunds)
    expected = [str(balance) if line == "BALANCE" else line for line in expected]
    return Check(name, f"bin/shop $IN {month}", "\n".join(expected), inputs)


def _expected(
    names: Mapping[str, str],
    month: str,
    customers: Sequence[tuple[int, str, str]],
    products: Sequence[tuple[str, str, int, int]],
    orders: Sequence[_Order],
) -> list[str]:
    """Return the lines of all reports, computed from the orders; the balance is left out."""
    city_of = {identity: city for identity, _, city in customers}
    paid, pieces, monthly = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    sold, count = Counter[str](), Counter[int]()
    for entry in orders:
        city = city_of[entry.customer]
        paid[city] += sum(cents for _, cents in entry.payments)
        pieces[city] += sum(number for _, number in entry.lines)
        monthly[city, entry.placed[:7]] += 1
        count[entry.customer] += 1
        for code, number in entry.lines:
            sold[code] += number
    inside = [entry for entry in orders if entry.placed[:7] == month]
    campaign = [entry for entry in orders if entry.coupon in (names["one"], names["other"]) and not entry.cancelled]
    listed = sorted(
        (product for product in products if product[0].startswith(names["series"] + "_")), key=lambda p: p[2]
    )
    return [
        "== 01_cities",
        *(f"{city}|{paid[city]}|{pieces[city]}" for city in sorted(paid)),
        "== 02_quiet",
        *(f"{identity}|{count[identity]}" for identity, _, _ in customers if count[identity] <= 1),
        "== 03_month",
        f"{len(inside)}|{len({entry.customer for entry in inside})}",
        "== 04_regular",
        str(sum(entry.coupon != names["staff"] for entry in orders)),
        "== 05_products",
        *(f"{code}|{size}|{stock - sold[code]}" for code, _, size, stock in listed),
        "== 06_balance",
        "BALANCE",
        "== 07_campaign",
        str(len(campaign)),
        "== 08_by_month",
        *(f"{city}|{at}|{number}" for (city, at), number in sorted(monthly.items())),
    ]


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
    orphan = token(rng)
    refunds = [*rng.sample([reference for reference, _, _ in rows], 60), orphan]
    rng.shuffle(refunds)
    files["exports/refunds.csv"] = _table(["reference", "reason"], [(line, rng.choice(GOODS)) for line in refunds])
    name = rng.choice([name for name in people if any(row[1] == numbers[name] for row in rows)])
    own = sorted((row for row in rows if row[1] == numbers[name]), key=lambda row: (-row[2], row[0]))
    number = f"$(awk -F, '$2 == \"{name}\" {{ print $1 }}' exports/people.csv)"
    return [
        Question(
            "payment-of-person",
            f"What is the reference of the largest payment of {name} in exports/ (the first in order of equal ones)?",
            own[0][0],
            [
                "head -2 exports/*.csv | head -20",
                f"grep -h \",{number},\" exports/payments-*.csv | sort -t, -k3,3nr -k1,1 | sed -n '1s/,.*//p'",
            ],
        ),
        Question(
            "refund-without-payment",
            "Which reference in exports/refunds.csv is of no payment in exports/?",
            orphan,
            [
                "head -2 exports/refunds.csv",
                "awk -F, '/refer/ { next } FILENAME ~ /payments/ { seen[$1]; next } !($1 in seen) { print $1 }' "
                "exports/payments-*.csv exports/refunds.csv",
            ],
        ),
    ]
