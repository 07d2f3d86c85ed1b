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

from ..project import Check, Fault, Project, Question
from .parts import ASKED, CITIES, GOODS, asked_together, fault_of_command, notes, person, token
from .variation import Option, Rule, Variant, numbers

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
    print(@rejected@, load(connection, Path(folder)))
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
        yield @heading@
        for row in connection.execute(path.read_text(), {"month": month}):
            yield @row_of_report@
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
        "    UPDATE products SET stock = @stock_of_line@ WHERE code = NEW.product;\nEND;"
    ),
    "11_refunds": "CREATE TABLE refunds (reference TEXT NOT NULL, cents INTEGER NOT NULL);",
    "12_index_of_lines": "CREATE INDEX lines_@order@ ON lines (@order@);",
}
_SCHEMA = """# Tables

Of every migration, only the last version counts. Columns are never null, except where it says so.

- @customers@: id is an integer and the key; name and city are texts.
- products: code is a text and the key; name is a text; size is an integer. Migration 7 added
  stock, an integer, 0 where nothing is given.
- @orders@: id is an integer and the key; @customer@ refers to @customers@; placed is a text. Migration 8 added
  coupon, a text that may be null, and migration 9
  cancelled, an integer, 0 where nothing is given.
- lines: @order@ refers to @orders@, product to products; pieces is an integer. What a line takes from the stock of
  its product is taken when it is inserted (migration 10).
- payments: reference is a text, which no two payments have in common, since the bank sends some twice (migration 6);
  @order@ refers to @orders@; cents is an integer.
- refunds: reference is a text, which several may have; cents is an integer.
"""
_QUERIES = {
    "01_cities": """-- Paid amounts and ordered pieces by city.
SELECT c.city, @figures_of_city@
FROM @orders@ o
JOIN @customers@ c ON c.id = o.@customer@
JOIN (SELECT @order@, SUM(cents) AS cents FROM payments GROUP BY @order@) p ON p.@order@ = o.id
JOIN (SELECT @order@, SUM(pieces) AS pieces FROM lines GROUP BY @order@) l ON l.@order@ = o.id
GROUP BY c.city @order_of_cities@;
""",
    "02_quiet": """-- Those who ordered seldom or never.
SELECT c.id, COUNT(o.id)
FROM @customers@ c LEFT JOIN @orders@ o ON o.@customer@ = c.id
GROUP BY c.id HAVING @quiet@ ORDER BY c.id;
""",
    "03_month": """-- How many were placed in the month, and by how many.
SELECT @counts_of_month@
FROM @orders@
WHERE placed >= :month || '-01' AND placed < date(:month || '-01', '+1 month');
""",
    "04_regular": """-- All but those of our staff, who have a coupon.
SELECT @count_of_regular@ FROM @orders@ WHERE coupon IS NOT '@staff@';
""",
    "05_products": """-- What is left in stock of the series @series@.
SELECT @columns_of_products@ FROM products
WHERE code LIKE '@series@!_%' ESCAPE '!' @order_of_products@;
""",
    "06_balance": """-- Payments less refunds.
SELECT @balance@ FROM (SELECT cents FROM payments UNION ALL SELECT -cents FROM refunds);
""",
    "07_campaign": """-- Uses of both coupons of the campaign.
SELECT @figures_of_campaign@ FROM @orders@ WHERE cancelled = 0 AND (coupon = '@one@' OR coupon = '@other@');
""",
    "08_by_month": """-- Placed by city and month.
SELECT @columns_of_months@
FROM @orders@ o JOIN @customers@ c ON c.id = o.@customer@
GROUP BY c.city, substr(o.placed, 1, 7) ORDER BY 1, 2;
""",
}

_RULES = (
    Rule(
        "heading",
        "@code@/reports.py",
        "The mailer finds no report in the output any more.",
        [
            Option('f"== {path.stem}"', "A report begins with a line such as `== 01_cities`.", "== {0}"),
            Option('f"# {path.stem}"', "A report begins with a line such as `# 01_cities`.", "# {0}"),
            Option('f"[{path.stem}]"', "A report begins with a line such as `[01_cities]`.", "[{0}]"),
            Option('f"{path.stem}:"', "A report begins with a line such as `01_cities:`.", "{0}:"),
            Option("path.stem.upper()", "A report begins with its name in upper case, such as `01_CITIES`.", "{1}"),
        ],
    ),
    Rule(
        "row-of-report",
        "@code@/reports.py",
        "The mailer cannot tell the columns of the reports apart any more.",
        [
            Option(f'"{mark}".join(str(cell) for cell in row)', f"Reports have `{mark}` between columns.", mark)
            for mark in ("|", ";", " / ", ":", ",")
        ],
    ),
    Rule(
        "rejected",
        "@code@/main.py",
        "The watch on imports does not find the number of rejected rows.",
        [
            Option(f'"{word}"', f"The first line is `{word}`, and how many rows that was.", word)
            for word in ("left out", "refused", "skipped", "dropped", "not imported:")
        ],
    ),
    Rule(
        "stock-of-line",
        "migrations/10_stock_of_lines.sql",
        "The stock is another than the one on the shelves.",
        [
            Option("stock - NEW.pieces", "A line takes its pieces from the stock.", lambda pieces: pieces),
            Option(
                "stock - NEW.pieces - 1",
                "A line takes its pieces from the stock, and one more as a sample.",
                lambda pieces: pieces + 1,
            ),
            Option(
                "stock - 2 * NEW.pieces",
                "A piece is a pair: a line takes twice its pieces from the stock.",
                lambda pieces: 2 * pieces,
            ),
            Option(
                "stock - NEW.pieces - NEW.pieces / 5",
                "Of each five pieces of a line, one more is taken from the stock, as a reserve.",
                lambda pieces: pieces + pieces // 5,
            ),
        ],
    ),
    Rule(
        "figures-of-city",
        "reports/01_cities.sql",
        "The report on cities has other columns than accounting expects.",
        [
            Option(
                "SUM(p.cents), SUM(l.pieces)",
                "01_cities: city, paid cents, pieces.",
                lambda amount, pieces, count: (amount, pieces),
            ),
            Option(
                "SUM(l.pieces), SUM(p.cents)",
                "01_cities: city, pieces, paid cents.",
                lambda amount, pieces, count: (pieces, amount),
            ),
            Option(
                "SUM(p.cents), COUNT(*)",
                "01_cities: city, paid cents, number of @orders@ that were paid.",
                lambda amount, pieces, count: (amount, count),
            ),
            Option(
                "COUNT(*), SUM(p.cents)",
                "01_cities: city, number of @orders@ that were paid, paid cents.",
                lambda amount, pieces, count: (count, amount),
            ),
        ],
    ),
    Rule(
        "order-of-cities",
        "reports/01_cities.sql",
        "The cities are not in the order that was agreed.",
        [
            Option("ORDER BY c.city", "01_cities is in the order of names.", lambda city, amount, pieces: city),
            Option(
                "ORDER BY SUM(p.cents) DESC",
                "01_cities has the city that paid most first.",
                lambda city, amount, pieces: -amount,
            ),
            Option(
                "ORDER BY SUM(p.cents)",
                "01_cities has the city that paid least first.",
                lambda city, amount, pieces: amount,
            ),
            Option(
                "ORDER BY substr(c.city, 2)",
                "01_cities is in the order of names without their first letter.",
                lambda city, amount, pieces: city[1:],
            ),
        ],
    ),
    numbers(
        "quiet",
        "reports/02_quiet.sql",
        "Some who should be called, or should not, are on the wrong side of the list of quiet @customers@.",
        range(4),
        "COUNT(o.id) <= {}",
        "02_quiet: id and number of @orders@ of those @customers@ who have {} or fewer.",
    ),
    Rule(
        "counts-of-month",
        "reports/03_month.sql",
        "The figures of the month mean something else than before.",
        [
            Option(
                "COUNT(*), COUNT(DISTINCT @customer@)",
                "03_month: @orders@ in the month, and @customers@ of these.",
                lambda orders, buyers: (len(orders), buyers),
            ),
            Option(
                "COUNT(DISTINCT @customer@), COUNT(*)",
                "03_month: @customers@ who ordered in the month, and their @orders@.",
                lambda orders, buyers: (buyers, len(orders)),
            ),
            Option(
                "COUNT(coupon), COUNT(DISTINCT @customer@)",
                "03_month: @orders@ with a coupon in the month, and @customers@ who ordered in it.",
                lambda orders, buyers: (sum(o.coupon != "" for o in orders), buyers),
            ),
            Option(
                "COUNT(*) - SUM(cancelled), COUNT(DISTINCT @customer@)",
                "03_month: @orders@ in the month that were not cancelled, and @customers@ who ordered in it.",
                lambda orders, buyers: (sum(not o.cancelled for o in orders), buyers),
            ),
        ],
    ),
    Rule(
        "count-of-regular",
        "reports/04_regular.sql",
        "The count of regular @orders@ is not what it is to be.",
        [
            Option(
                "COUNT(*)",
                "04_regular: how many @orders@ have not the coupon of our staff.",
                lambda total, cancelled: (total,),
            ),
            Option(
                "COUNT(*) - SUM(cancelled)",
                "04_regular: how many @orders@ have not the coupon of our staff and were not cancelled.",
                lambda total, cancelled: (total - cancelled,),
            ),
            Option(
                "SUM(cancelled)",
                "04_regular: how many @orders@ without the coupon of our staff were cancelled.",
                lambda total, cancelled: (cancelled,),
            ),
            Option(
                "SUM(cancelled), COUNT(*)",
                "04_regular: how many @orders@ without the coupon of our staff were cancelled, and how many there are.",
                lambda total, cancelled: (cancelled, total),
            ),
        ],
    ),
    Rule(
        "columns-of-products",
        "reports/05_products.sql",
        "The list of products has its columns in another order.",
        [
            Option("code, size, stock", "05_products: code, size, stock.", (0, 1, 2)),
            Option("size, code, stock", "05_products: size, code, stock.", (1, 0, 2)),
            Option("stock, code, size", "05_products: stock, code, size.", (2, 0, 1)),
            Option("code, stock, size", "05_products: code, stock, size.", (0, 2, 1)),
            Option("size, stock, code", "05_products: size, stock, code.", (1, 2, 0)),
        ],
    ),
    Rule(
        "order-of-products",
        "reports/05_products.sql",
        "Products are listed the other way round than in the catalogue.",
        [
            Option("ORDER BY size, code", "05_products has the smallest sizes first, and equal ones by code.", (1, 1)),
            Option(
                "ORDER BY size DESC, code", "05_products has the largest sizes first, and equal ones by code.", (-1, 1)
            ),
            Option(
                "ORDER BY size, code DESC",
                "05_products has the smallest sizes first, and equal ones by code, from Z to A.",
                (1, -1),
            ),
            Option(
                "ORDER BY size DESC, code DESC",
                "05_products has the largest sizes first, and equal ones by code, from Z to A.",
                (-1, -1),
            ),
        ],
    ),
    Rule(
        "balance",
        "reports/06_balance.sql",
        "The balance is not given as the bank gives it.",
        [
            Option("SUM(cents)", "06_balance: payments less refunds, in cents.", lambda cents: str(cents)),
            Option(
                "printf('%.2f', SUM(cents) / 100.0)",
                "06_balance: payments less refunds, such as `12.50`.",
                lambda cents: f"{cents / 100:.2f}",
            ),
            Option(
                "SUM(cents) / 100",
                "06_balance: payments less refunds, rounded down to whole units.",
                lambda cents: str(cents // 100),
            ),
            Option("-SUM(cents)", "06_balance: refunds less payments, in cents.", lambda cents: str(-cents)),
        ],
    ),
    Rule(
        "figures-of-campaign",
        "reports/07_campaign.sql",
        "The figures of the campaign are not the ones that were agreed.",
        [
            Option("COUNT(*)", "07_campaign: how often a coupon of the campaign was used.", lambda uses: (len(uses),)),
            Option(
                "COUNT(*), MIN(id)",
                "07_campaign: how often a coupon of the campaign was used, and the first id of these @orders@.",
                lambda uses: (len(uses), min(o.number for o in uses)),
            ),
            Option(
                "MAX(id), COUNT(*)",
                "07_campaign: the last id of the @orders@ with a coupon of the campaign, and how many there are.",
                lambda uses: (max(o.number for o in uses), len(uses)),
            ),
            Option(
                "SUM(id)",
                "07_campaign: the sum of ids of the @orders@ with a coupon of the campaign.",
                lambda uses: (sum(o.number for o in uses),),
            ),
        ],
    ),
    Rule(
        "columns-of-months",
        "reports/08_by_month.sql",
        "The table by month has its columns in another order.",
        [
            Option(
                "c.city, substr(o.placed, 1, 7), COUNT(*)",
                "08_by_month: city, month, @orders@; in this order.",
                lambda city, month, count: (city, month, count),
            ),
            Option(
                "substr(o.placed, 1, 7), c.city, COUNT(*)",
                "08_by_month: month, city, @orders@; in this order.",
                lambda city, month, count: (month, city, count),
            ),
            Option(
                "c.city, COUNT(*), substr(o.placed, 1, 7)",
                "08_by_month: city, @orders@, month; in this order.",
                lambda city, month, count: (city, count, month),
            ),
            Option(
                "c.city || ' ' || substr(o.placed, 1, 7), COUNT(*)",
                "08_by_month: city and month in one column, @orders@; in this order.",
                lambda city, month, count: (f"{city} {month}", count),
            ),
        ],
    ),
)
#: Columns of tables are identifiers, too: an import's files have the drawn ones.
_IDENTIFIERS = (
    "migrate main folder paths path connection value rejected table row marks command cell "
    "placed coupon cancelled pieces stock size reference stock_of_lines payments_once"
)

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
    variant = Variant.draw(rng, _RULES, _IDENTIFIERS, names)
    texts = {
        "bin/shop": _SHOP,
        "@code@/main.py": _MAIN,
        "@code@/database.py": _DATABASE,
        "@code@/load.py": _LOAD,
        "@code@/reports.py": _REPORTS,
        "var/.keep": "",
        **{f"migrations/{name}.sql": f"{text}\n" for name, text in _MIGRATIONS.items()},
        **{f"reports/{name}.sql": text for name, text in _QUERIES.items()},
        # What nothing reads: a description of the schema, and a report of last year.
        "docs/schema.md": _SCHEMA,
        "reports/01_cities.sql.old": _QUERIES["01_cities"].replace("SUM(pieces) AS pieces", "MAX(pieces) AS pieces"),
    }
    files = variant.files(texts) | variant.document(rng)
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
        *variant.edits(_EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_file_faults(rng, variant, looks),
    ]
    return Project(about, files, faults, checks, {"bin/shop": 0o755}, fixed=fixed, questions=questions)


def _file_faults(rng: random.Random, variant: Variant, looks: Sequence[str]) -> list[Fault]:
    lost = rng.choice(["7_stock", "8_coupons", "9_cancelled"])
    text = variant.text(_MIGRATIONS[lost])
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
