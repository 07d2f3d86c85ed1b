"""Files of the template `warehouse`; what stands between @ is drawn."""

STOCK = """#!/bin/bash
# Prints reports on a warehouse. Usage: bin/stock FOLDER DAY REPORT...
set -u
HERE=$(cd "$(dirname "$0")/.." && pwd)
export LC_ALL=C
folder=$1 day=$2
shift 2
cat "$folder"/moves/*.txt |
    awk -f "$HERE/@lib@/scan.awk" "$folder/items.tsv" - |
    sort -s -k1,2 |
    awk -v today="$day" -f "$HERE/@lib@/clean.awk" |
    PYTHONUTF8=1 python3 -S "$HERE/@lib@/@load@.py" "$folder" "$day" "$@"
"""

SCAN = r"""# Reads items.tsv, then lines of scanners; prints DAY TIME KIND SKU PIECES PLACE REF CENTS.
function iso(text,    parts) {
    if (split(text, parts, ".") < 3) return text
    return parts[3] "-" parts[2] "-" parts[1]
}
FILENAME ~ /items\.tsv$/ {
    split($0, cells, "\t")
    boxes[cells[1]] = cells[3]
    next
}
{ sub(/\r$/, "") }
/^[ \t]*(#|$)/ { next }
toupper($3) == "VOID" {
    print iso($1), $2, "VOID", "-", 0, "-", $4, 0
    next
}
{
    sku = toupper($4)
    number = $5
    gsub(/'/, "", number)
    size = tolower($6)
    factor = 1
    if (size == "box") factor = boxes[sku]
    if (size == "pal") factor = @pallet_boxes@
    print iso($1), $2, toupper($3), sku, number * factor, $7, $8, $9 + 0
}
"""

CLEAN = """# Reads lines by time; prints those that count. A move has two of them, one for each place.
function chosen(first, last) {
    @repeated_line@
}
@last_day@ { next }
{
    key = $1 SUBSEP $2 SUBSEP $3 SUBSEP $4 SUBSEP $6 SUBSEP $7
    if (key in numbers) {
        older = numbers[key]
        pieces[older] = chosen(pieces[older], $5)
        next
    }
    numbers[key] = ++count
    days[count] = $1 " " $2
    kinds[count] = $3
    skus[count] = $4
    pieces[count] = $5
    places[count] = $6
    refs[count] = $7
    cents[count] = $8
}
END {
    for (n = 1; n <= count; n++) {
        if (kinds[n] != "VOID") continue
        @voided_lines@
    }
    for (n = 1; n <= count; n++) {
        if (n in dropped || kinds[n] == "VOID") continue
        if (kinds[n] == "MOVE") {
            split(places[n], ends, ">")
            print days[n], "FROM", skus[n], pieces[n], ends[1], refs[n], 0
            print days[n], "TO", skus[n], pieces[n], ends[2], refs[n], 0
        } else print days[n], kinds[n], skus[n], pieces[n], places[n], refs[n], cents[n]
    }
}
"""

LOAD = '''"""Load the tables of a warehouse, and print reports on them."""
import csv
import sqlite3
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def insert(connection, table, rows):
    for row in rows:
        connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)


def load(connection, folder, today, lines):
    for path in sorted((ROOT / "sql").glob("*.sql")):
        connection.executescript(path.read_text(encoding="utf-8"))
    insert(connection, "today", [[today]])
    for table in ("items", "offers", "reservations"):
        with open(folder / f"{table}.tsv", encoding="utf-8", newline="") as file:
            rows = csv.reader(file, delimiter="\\t", quoting=csv.QUOTE_NONE)
            next(rows)
            insert(connection, table, rows)
    insert(connection, "moves", ([number, *line.split()] for number, line in enumerate(lines, start=1)))


def main(folder, today, *reports):
    connection = sqlite3.connect(":memory:")
    load(connection, Path(folder), today, sys.stdin)
    for report in reports:
        print(@heading@)
        query = (ROOT / "reports" / f"{report}.sql").read_text(encoding="utf-8")
        for row in connection.execute(query):
            print(@row_mark@.join(map(str, row)))


main(*sys.argv[1:])
'''

VIEWS = {
    "a_tables": """CREATE TABLE today (day TEXT);
CREATE TABLE items (sku TEXT PRIMARY KEY, name TEXT, box INTEGER, point INTEGER, full INTEGER, lot INTEGER);
CREATE TABLE offers (supplier TEXT, sku TEXT, cents INTEGER, days INTEGER);
CREATE TABLE reservations (ref TEXT, day TEXT, sku TEXT, pieces INTEGER);
CREATE TABLE moves (
    seq INTEGER PRIMARY KEY,
    day TEXT,
    time TEXT,
    kind TEXT,
    sku TEXT,
    pieces INTEGER,
    place TEXT,
    ref TEXT,
    cents INTEGER
);
CREATE TABLE signs (kind TEXT PRIMARY KEY, sign INTEGER);
INSERT INTO signs VALUES ('IN', 1), ('OUT', -1), ('FROM', -1), ('TO', 1);
""",
    "stock": """-- Pieces of each item in each place, and the ones on hand.
CREATE VIEW IF NOT EXISTS counts AS
SELECT sku, place, day, MAX(seq) AS seq, pieces FROM moves WHERE kind = 'COUNT' GROUP BY sku, place;
CREATE VIEW IF NOT EXISTS stock AS
SELECT p.sku, p.place, coalesce(c.pieces, 0) + coalesce((
    SELECT SUM(s.sign * m.pieces)
    FROM moves m JOIN signs s ON s.kind = m.kind
    WHERE m.sku = p.sku AND m.place = p.place AND (c.seq IS NULL OR @stocktake@)
), 0) AS pieces
FROM (SELECT DISTINCT sku, place FROM moves WHERE place <> '-') p
LEFT JOIN counts c ON c.sku = p.sku AND c.place = p.place;
CREATE VIEW IF NOT EXISTS on_hand AS
SELECT i.sku, coalesce(SUM(s.pieces), 0) AS pieces
FROM items i LEFT JOIN stock s ON s.sku = i.sku AND s.place NOT LIKE @blocked_places@
GROUP BY i.sku;
""",
    "held": """-- Pieces of each item that somebody has reserved.
CREATE VIEW IF NOT EXISTS open AS
SELECT r.sku, r.ref, r.pieces AS pieces, coalesce((
    SELECT SUM(m.pieces) FROM moves m WHERE m.kind = 'OUT' AND m.ref = r.ref AND m.sku = r.sku
), 0) AS shipped
FROM reservations r
WHERE r.day >= date((SELECT day FROM today), @reservation_days@);
CREATE VIEW IF NOT EXISTS held AS
SELECT i.sku, coalesce(SUM(@partial_shipment@), 0) AS pieces
FROM items i LEFT JOIN open o ON o.sku = i.sku
GROUP BY i.sku;
""",
    "available": """-- Pieces that can be sold, and the ones that are ordered and have not come.
CREATE VIEW IF NOT EXISTS ordered AS
SELECT i.sku, coalesce(SUM(m.pieces), 0) AS pieces
FROM items i LEFT JOIN moves m ON m.sku = i.sku AND m.kind = 'ORDER'
    AND m.ref NOT IN (SELECT ref FROM moves WHERE kind = 'IN')
GROUP BY i.sku;
CREATE VIEW IF NOT EXISTS available AS
SELECT i.*, h.pieces AS on_hand, r.pieces AS held, h.pieces - r.pieces AS available, o.pieces AS ordered
FROM items i
JOIN on_hand h ON h.sku = i.sku
JOIN held r ON r.sku = i.sku
JOIN ordered o ON o.sku = i.sku;
""",
    "needed": """-- Items to order, with the pieces that are missing, and the best offer.
CREATE VIEW IF NOT EXISTS base AS SELECT a.*, @reorder_base@ AS base FROM available a;
CREATE VIEW IF NOT EXISTS ranked AS
SELECT *, ROW_NUMBER() OVER (PARTITION BY sku @best_offer@, supplier) AS place FROM offers;
CREATE VIEW IF NOT EXISTS missing AS SELECT *, full - base AS n FROM base WHERE base @at_point@;
CREATE VIEW IF NOT EXISTS needed AS
SELECT r.supplier, m.sku, @order_quantity@ AS quantity, r.cents
FROM missing m JOIN ranked r ON r.sku = m.sku AND r.place = 1;
""",
    "value": """-- What the pieces cost that are there, in all places.
CREATE VIEW IF NOT EXISTS totals AS SELECT sku, SUM(pieces) AS pieces FROM stock GROUP BY sku;
CREATE VIEW IF NOT EXISTS lots AS
SELECT sku, pieces, cents, SUM(pieces) OVER (PARTITION BY sku ORDER BY @lots_in_stock@) - pieces AS before
FROM moves WHERE kind = 'IN';
CREATE VIEW IF NOT EXISTS value AS
SELECT t.sku, SUM(max(0, min(l.pieces, t.pieces - l.before)) * l.cents) AS cents
FROM totals t JOIN lots l ON l.sku = t.sku
GROUP BY t.sku HAVING t.pieces > 0;
""",
}

REPORTS = {
    "stock": """SELECT sku, name, on_hand, @shown_shortage@, ordered FROM available ORDER BY sku;
""",
    "orders": """SELECT @order_line@ FROM needed @order_of_orders@, sku;
""",
    "value": """SELECT sku, @amount@ FROM value ORDER BY sku;
""",
    "places": """-- Places, with the number of items in them and of pieces.
SELECT place, SUM(pieces > 0) AS items, SUM(pieces) AS pieces
FROM stock GROUP BY place @empty_places@ @order_of_places@, place;
""",
    "slow": """-- Items that nobody has taken for long, or never, with the last time.
SELECT sku, coalesce(day, 'never'), coalesce(ref, '-') FROM (
    SELECT i.sku, m.day, m.ref, MAX(m.seq) FROM items i LEFT JOIN moves m ON m.sku = i.sku AND m.kind = 'OUT'
    GROUP BY i.sku
)
WHERE coalesce(day, '') < date((SELECT day FROM today), @slow_days@) ORDER BY sku;
""",
    "last": """-- The reference that came or went last, of each item.
SELECT sku, ref FROM (SELECT sku, ref, MAX(seq) FROM moves WHERE kind <> 'ORDER' GROUP BY sku) ORDER BY sku;
""",
}

FORMAT = """# Data of a warehouse

- `items.tsv`: sku, name (which may have quotes in it), pieces in a box, reorder point, pieces when full, and the pieces
  of a lot, in which suppliers sell.
- `offers.tsv`: supplier, sku, cents for a piece, and days of delivery. One offer is chosen for each item.
- `reservations.tsv`: reference, day, sku and pieces. What goes OUT with this reference is for the reservation of the
  same item. A reservation that is too old does not hold; one that is just as old as allowed does.
- `moves/*.txt`: lines of scanners, `DAY TIME KIND SKU NUMBER UNIT PLACE REFERENCE`, some with cents for a piece.

A day is such as 2025-03-31, or 31.03.2025 by the old scanners. Units are pcs, box and pal, kinds IN, OUT, MOVE (from
`A>B`), COUNT (what was counted in the place; of several counts the last one holds), ORDER, and
`DAY TIME VOID REFERENCE`.
Letters of both cases are used in skus, kinds and units; a number may be such as 1'200. Lines with # in front are
comments. Two scanners may send the same line, and the time of a line, not its file, says what came first. An order is
open until something comes IN with its reference.

Reports:

- stock: sku, name, on hand, reserved, available (on hand less reserved), and ordered, of all items;
- orders: what to order, so that the item is full;
- value: of the items that are there, in all places. Pieces that never came IN have none;
- places: with the number of items that are there, and of pieces;
- slow: items that were not taken OUT for long, with the day and the reference of the last time;
- last: of each item, the reference of its last line, other than that of an order.
"""
