"""Files of the template `shop`; what stands between @ is drawn."""

from __future__ import annotations

SHOP = """#!/bin/sh
# Imports a folder of CSV files and prints all reports. Usage: bin/shop FOLDER MONTH
exec python3 -S -E "$(dirname "$0")/../@code@/main.py" "$@"
"""

MAIN = """import sys
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

DATABASE = '''"""The database, and its migrations."""
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

LOAD = '''"""Import of CSV files."""
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

REPORTS = '''"""Reports: each file of SQL is one."""


def reports(connection, folder, month):
    for path in sorted(folder.glob("*.sql")):
        yield @heading@
        for row in connection.execute(path.read_text(), {"month": month}):
            yield @row_of_report@
'''

MIGRATIONS = {
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

SCHEMA = """# Tables

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

QUERIES = {
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
