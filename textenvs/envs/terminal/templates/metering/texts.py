"""Files of the template `metering`; what stands between @ is drawn."""

METER = """#!/bin/bash
# Prints reports on meters. Usage: bin/meter FOLDER YEAR REPORT...
set -u
HERE=$(cd "$(dirname "$0")/.." && pwd)
LIB=$HERE/@lib@
export LC_ALL=C
folder=$1 year=$2
shift 2
{
    cat "$folder"/rounds/*.txt | awk @round_program@
    cat "$folder"/cards/*.csv | awk @card_program@
    cat "$folder"/remote/*.log | awk @remote_program@
} | sort -k1,1 -k2,2 -k3,4 |
    awk -f "$LIB/days.awk" -f "$LIB/@daily@.awk" |
    awk -f "$LIB/days.awk" -f "$LIB/@totals@.awk" "$folder/meters.tsv" - |
    PYTHONUTF8=1 python3 -S "$HERE/@lib@/@load@.py" "$folder" "$year" "$@"
"""

#: Functions of the programs that read lines of one source; they print METER REGISTER DAY TIME SOURCE VALUE.
COMMON = """# Functions for lines of readings.
function plain(text) {
    gsub(/'/, "", text)
    return @decimals@
}

function iso(text,    parts) {
    split(text, parts, ".")
    return sprintf("%04d-%02d-%02d", parts[3], parts[2], parts[1])
}

function entry(meter, register, day, time, source, text) {
    print toupper(meter), register, day, time, source, plain(text)
}
"""
ROUNDS = """function rounds(    place) {
    if ($0 ~ /^[ \\t]*(#|$)/) return
    @pairs@
}
"""
CARDS = """function cards(    cells) {
    if (split($0, cells, /[ \\t]*;[ \\t]*/) < 4) return
    entry(cells[1], toupper(cells[3]), iso(cells[2]), "23:59", "card", cells[4])
}
"""
REMOTE = """function remote(    n, stamp, pair) {
    sub(/\\r$/, "")
    if ($NF == "test") return
    split($1, stamp, "T")
    for (n = 3; n < NF; n++) {
        split($n, pair, "=")
        entry($2, pair[1], stamp[1], substr(stamp[2], 1, 5), "remote", pair[2])
    }
}
"""

DAYS = """# Days as numbers.
function day_number(text,    parts, y, m) {
    split(text, parts, "-")
    y = parts[1] - (parts[2] < 3)
    m = (parts[2] + 9) % 12
    return 365 * y + int(y / 4) - int(y / 100) + int(y / 400) + int((153 * m + 2) / 5) + parts[3] - 1
}
"""

DAILY = """# Reads METER REGISTER DAY TIME SOURCE VALUE in this order; prints one value a day.
function better(old, new, source) {
    @same_day@
}

function flush() {
    if (current != "") print current, value
}

{
    now = $1 " " $2 " " $3
    if (now != current) {
        flush()
        current = now
        value = $6
    } else if (better(value, $6, $5)) value = $6
}

END { flush() }
"""

TOTALS = """# Reads meters.tsv, then METER REGISTER DAY VALUE; prints what was used since the first reading, or doubts.
function accepted(key, counter, day,    used, days) {
    used = counter - last[key]
    days = day_number(day) - day_number(seen[key])
    if (used < 0 && @rollover@) used += range[$1]
    if (used < 0 || used * factor[$1] > @high_use@) return 0
    total[key] += used * factor[$1]
    return 1
}

function in_service(meter, day) {
    return meter in factor && day >= installed[meter] && (removed[meter] == "" || day <= removed[meter])
}

FILENAME ~ /meters\\.tsv$/ {
    split($0, cells, "\\t")
    range[cells[1]] = 10 ^ cells[3]
    factor[cells[1]] = cells[4]
    installed[cells[1]] = cells[5]
    removed[cells[1]] = cells[6]
    next
}

{
    key = $1 " " $2
    if (!in_service($1, $3)) next
    if (!(key in last)) total[key] = 0
    else if (!accepted(key, $4, $3)) {
        print "doubt", $0
        next
    }
    last[key] = $4
    seen[key] = $3
    print "total", $1, $2, $3, total[key]
}
"""

LOAD = '''"""Load readings and tables into SQLite, and print reports on them."""
import csv
import sqlite3
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def money(cents):
    """Return an amount as it is printed."""
    sign, cents = "-" if cents < 0 else "", abs(cents)
    return sign + @amount@


def insert(connection, table, rows):
    for row in rows:
        connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)


def rates(path):
    """Return the values of a file of settings by key."""
    lines = [line.partition("#")[0] for line in path.read_text(encoding="utf-8").splitlines()]
    pairs = [line.partition("=") for line in lines if line.strip()]
    return {key.strip(): int(text) for key, _, text in pairs}


def tables_of(connection, folder):
    for table in ("customers", "meters", "tariffs", "payments"):
        with open(folder / f"{table}.tsv", encoding="utf-8", newline="") as file:
            rows = csv.reader(file, delimiter="\\t", quoting=csv.QUOTE_NONE)
            next(rows)
            insert(connection, table, rows)


def load(connection, folder, year, lines):
    connection.create_function("money", 1, money)
    connection.executescript((ROOT / "sql" / "tables.sql").read_text(encoding="utf-8"))
    settings = rates(ROOT / "etc" / "@rates@.conf")
    insert(connection, "rates", [[settings[key] for key in ("levy", "large", "reduction", "tax")]])
    insert(connection, "span", [[f"{year}-01-01", f"{year + 1}-01-01"]])
    @profile@
    tables_of(connection, folder)
    for line in lines:
        kind, *cells = line.split()
        insert(connection, f"{kind}s", [cells])
    for path in sorted((ROOT / "sql").glob("[0-9]*.sql")):
        connection.executescript(path.read_text(encoding="utf-8"))


def main(folder, year, *reports):
    connection = sqlite3.connect(":memory:")
    load(connection, Path(folder), int(year), sys.stdin)
    for report in reports:
        print(f"[{report}]")
        query = (ROOT / "reports" / f"{report}.sql").read_text(encoding="utf-8")
        for row in connection.execute(query):
            @row_mark@map(str, row)))


main(*sys.argv[1:])
'''

TABLES = """CREATE TABLE span (first TEXT, after TEXT);
CREATE TABLE rates (levy INTEGER, large INTEGER, reduction INTEGER, tax INTEGER);
CREATE TABLE profile (month TEXT PRIMARY KEY, weight INTEGER);
CREATE TABLE customers (id TEXT PRIMARY KEY, name TEXT, zone TEXT);
CREATE TABLE meters (
    meter TEXT PRIMARY KEY,
    customer TEXT,
    digits INTEGER,
    factor INTEGER,
    installed TEXT,
    removed TEXT
);
CREATE TABLE tariffs (zone TEXT, day TEXT, high INTEGER, low INTEGER, base INTEGER);
CREATE TABLE payments (customer TEXT, day TEXT, year INTEGER, cents INTEGER);
CREATE TABLE totals (meter TEXT, register TEXT, day TEXT, total INTEGER, PRIMARY KEY (meter, register, day));
CREATE TABLE doubts (meter TEXT, register TEXT, day TEXT, value INTEGER);
CREATE TABLE calendar (day TEXT PRIMARY KEY, passed INTEGER);
"""

CALENDAR = """-- Days, with the weight of all days before.
INSERT INTO calendar
WITH RECURSIVE days (day) AS (
    SELECT min(first, (SELECT MIN(day) FROM totals)) FROM span
    UNION ALL
    SELECT date(day, '+1 day') FROM days, span WHERE day < max(after, (SELECT MAX(day) FROM totals))
), weighted (day, weight) AS (
    SELECT @weight_of_days@ FROM days
)
SELECT day, SUM(weight) OVER (ORDER BY day) - weight FROM weighted;
"""

#: Views, in any order.
POINTS = """CREATE VIEW points AS
SELECT t.*, c.passed FROM totals t JOIN calendar c ON c.day = t.day;
"""
BOUNDS = """CREATE VIEW bounds AS
SELECT zone, first AS day FROM tariffs, span
UNION
SELECT zone, after FROM tariffs, span
UNION
SELECT zone, day FROM tariffs, span WHERE day > first AND day < after;
"""
NEIGHBOURS = """CREATE VIEW neighbours AS
SELECT m.meter, m.removed, t.register, b.day,
    MAX(CASE WHEN t.day <= b.day THEN t.day END) AS before,
    MIN(CASE WHEN t.day > b.day THEN t.day END) AS next
FROM meters m
JOIN customers c ON c.id = m.customer
JOIN bounds b ON b.zone = c.zone
JOIN totals t ON t.meter = m.meter
GROUP BY m.meter, t.register, b.day;
"""
ANCHORS = """CREATE VIEW anchors AS
SELECT n.*, (
    @after_last@ FROM totals t WHERE t.meter = n.meter AND t.register = n.register AND t.day < n.before
) AS anchor
FROM neighbours n;
"""
SHARES = """CREATE VIEW shares AS
SELECT a.meter, a.register, a.day, coalesce(p.total, 0) AS base,
    CASE
        WHEN n.day IS NOT NULL THEN n.total - p.total
        WHEN a.removed <> '' AND a.removed <= a.day THEN 0
        ELSE p.total - q.total
    END AS gain,
    c.passed - p.passed AS part,
    CASE WHEN n.day IS NOT NULL THEN n.passed - p.passed ELSE p.passed - q.passed END AS whole
FROM anchors a
JOIN calendar c ON c.day = a.day
LEFT JOIN points p ON p.meter = a.meter AND p.register = a.register AND p.day = a.before
LEFT JOIN points n ON n.meter = a.meter AND n.register = a.register AND n.day = a.next
LEFT JOIN points q ON q.meter = a.meter AND q.register = a.register AND q.day = a.anchor;
"""
LEVELS = """CREATE VIEW levels AS
SELECT meter, register, day, base + coalesce(@rounded_estimate@, 0) AS level FROM shares;
"""
PIECES = (
    """CREATE VIEW pieces AS
SELECT meter, register, day, lead(level) OVER (PARTITION BY meter, register ORDER BY day) - level AS kwh FROM levels;
""",
    """CREATE VIEW pieces AS
SELECT l.meter, l.register, l.day, n.level - l.level AS kwh
FROM levels l LEFT JOIN levels n ON n.meter = l.meter AND n.register = l.register AND n.day = (
    SELECT MIN(b.day) FROM bounds b JOIN customers c ON c.zone = b.zone JOIN meters m ON m.customer = c.id
    WHERE m.meter = l.meter AND b.day > l.day
);
""",
)
PRICED = """CREATE VIEW priced AS
SELECT c.id AS customer, p.register, p.kwh,
    CASE p.register WHEN 'D' THEN t.high WHEN 'N' THEN t.low @single_price@ END AS price
FROM pieces p
JOIN meters m ON m.meter = p.meter
JOIN customers c ON c.id = m.customer
JOIN span s
JOIN tariffs t ON t.zone = c.zone AND t.day = (
    SELECT MAX(o.day) FROM tariffs o WHERE o.zone = c.zone AND @price_day@
)
WHERE p.kwh IS NOT NULL;
"""
ENERGY = """CREATE VIEW energy AS
SELECT customer, SUM(kwh) AS kwh, SUM(kwh * price) AS cost, SUM(CASE register WHEN 'N' THEN kwh ELSE 0 END) AS night
FROM priced GROUP BY customer;
"""
FEES = """CREATE VIEW connected AS
SELECT m.customer, max(MIN(m.installed), s.first) AS begin,
    min(MAX(CASE m.removed WHEN '' THEN s.after ELSE m.removed END), s.after) AS until
FROM meters m JOIN span s GROUP BY m.customer;
CREATE VIEW fees AS
SELECT k.customer, @base_fee@ AS fee
FROM connected k
JOIN span s
JOIN customers c ON c.id = k.customer
JOIN tariffs t ON t.zone = c.zone AND t.day = (
    SELECT MAX(f.day) FROM tariffs f WHERE f.zone = c.zone AND f.day <= s.first
)
WHERE k.begin < k.until;
"""
BILLS = """CREATE VIEW sums AS
SELECT e.customer, e.kwh, e.cost - @large_use@ AS energy, 100 * f.fee AS fee, @levied@ AS levy, r.tax
FROM energy e JOIN fees f ON f.customer = e.customer JOIN rates r;
CREATE VIEW bills AS
SELECT customer, kwh, @rounded_total@ AS cents
FROM (SELECT customer, kwh, 1000 * (energy + fee + levy) + @taxed@ AS exact FROM sums);
"""
BALANCES = """CREATE VIEW balances AS
SELECT b.customer, b.cents - coalesce(SUM(p.cents), 0) AS cents
FROM bills b JOIN span s LEFT JOIN payments p ON p.customer = b.customer AND @payments_of_year@
GROUP BY b.customer;
"""

REPORTS = {
    "use": """-- Kilowatt hours by customer and register.
SELECT customer, register, SUM(kwh) FROM priced GROUP BY customer, register ORDER BY customer, register;
""",
    "bills": """SELECT @line_of_bills@ FROM bills b JOIN customers c ON c.id = b.customer @order_of_bills@, b.customer;
""",
    "balance": """-- Money that is due; less than nothing is paid back.
SELECT customer, money(CASE WHEN abs(@small_balance@ THEN 0 ELSE cents END) FROM balances ORDER BY customer;
""",
    "plan": """-- Instalments of the next year.
SELECT customer, money(@instalment_step@) FROM (SELECT customer, @instalments@ AS part FROM bills)
ORDER BY customer;
""",
    "gaps": """-- Times without a reading, in the year or at its ends.
SELECT meter, register, before, day
FROM (SELECT *, lag(day) OVER (PARTITION BY meter, register ORDER BY day) AS before FROM totals), span
WHERE julianday(day) - julianday(before) @gap_days@ AND day >= first AND before < after
ORDER BY meter, register, day;
""",
    "doubts": """-- Readings that do not count.
SELECT meter, register, day, value FROM doubts ORDER BY meter, register, day;
""",
}

#: Equivalent ways to write a part of a file; one of each is drawn.
SHAPES = {
    "pairs": (
        'for (place = 4; place < NF; place += 2) entry($3, $place, $1, $2, "round", $(place + 1))',
        """place = 4
    while (place < NF) {
        entry($3, $place, $1, $2, "round", $(place + 1))
        place += 2
    }""",
    ),
    "profile": (
        """lines_of_profile = (ROOT / "etc" / "profile.tsv").read_text(encoding="utf-8").splitlines()
    insert(connection, "profile", [line.split("\\t") for line in lines_of_profile])""",
        """with open(ROOT / "etc" / "profile.tsv", encoding="utf-8") as file:
        insert(connection, "profile", csv.reader(file, delimiter="\\t"))""",
    ),
}

RATES = """# Hundredths of a rappen for a kilowatt hour: the levy, and what large customers get off.
levy = @levy@
reduction = @reduction@
# From this many kilowatt hours on, a customer is large.
large = @large@
tax = @tax@  # tenths of a per cent
"""

FORMAT = """# Data and reports

Tables have tabs between their columns and a first line of names.

- `customers.tsv`: number, name, zone.
- `meters.tsv`: meter, customer, digits of its registers, factor, the day on which it was installed, and the day on
  which it was removed (or nothing). What a register counts, times the factor, is kilowatt hours. A register begins
  again with 0 behind its highest number.
- `tariffs.tsv`: zone, first day, price of a kilowatt hour by day and by night in hundredths of a rappen, and the base
  fee of a month in rappen. The base fee of a year is that of its first day.
- `payments.tsv`: customer, day, the year that it is meant for, rappen.
- `rounds/*.txt`: `DAY TIME METER REGISTER VALUE`, perhaps with more registers behind, by those who go from house to
  house. `#` begins a comment. Zeros in front of a value mean nothing.
- `cards/*.csv`: `METER;DAY;REGISTER;VALUE`, by customers; a day is such as 31.03.2025, a value such as 12'345. The time
  is the last minute of the day.
- `remote/*.log`: `DAYTtimeZ METER REGISTER=VALUE... STATUS`, such as 2025-03-31T00:15Z, by the meters, with decimals.
  Their lines end as in another system. A line with the status `test` means nothing.

Registers are D (by day), N (by night) and T (all the time). Letters of both cases are used in meters, and on cards in
registers. Readings of a meter that is unknown, or not in the house on the day, mean nothing.

A reading is doubtful, and does not count, where a register has gone backwards without beginning again, or where too
much was used since the last reading that counts. The first reading of a register always counts.

The use of a year lies between its first day and the first of the next one, in pieces where the tariff changes. On a
day without a reading, the register is estimated between the readings before and after, so that each day has its weight;
after the last reading, it goes on as agreed. After its removal, a meter uses nothing.

A bill is the energy, the levy and the base fee, and the tax. `etc/@rates@.conf` has the levy (@levy_rappen@ rappen for
a kilowatt hour), the tax (@tax_percent@ per cent) and the reduction for large customers (@off_rappen@ rappen for a
kilowatt hour). Large customers use @large@ kilowatt hours in a year or more. Customers without a meter in the year have
no bill.

Reports: `use` has customer, register and kilowatt hours; `bills`; `balance` has customer and what is due; `plan` has
customer and instalment; `gaps` has meter, register and two days of readings, of which the second is not before the year
and the first is not after it; `doubts` has meter, register, day and value.
"""
