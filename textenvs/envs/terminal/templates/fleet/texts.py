"""Files of the template `fleet`; what stands between @ is drawn."""

FLEET = """#!/bin/bash
# Prints reports on the vehicles of a firm. Usage: bin/fleet FOLDER FIRST-DAY LAST-DAY REPORT...
set -eu -o pipefail
HERE=$(cd "$(dirname "$0")/.." && pwd)
export LC_ALL=C
folder=$1 first=$2 last=$3
shift 3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
@shape_reading@
awk -f "$HERE/@lib@/common.awk" -f "$HERE/@lib@/receipts.awk" "$folder"/cards/*.csv |
    sort > "$scratch/receipts.tsv"
PYTHONUTF8=1 python3 -S "$HERE/@lib@/@main@.py" "$folder" "$scratch" "$first" "$last" "$@"
"""

#: Functions of the awk programs, in any order.
COMMON = (
    """# The day of 2025-03-04 or of 4.3.2025.
function iso(text,    parts) {
    if (split(text, parts, ".") < 3) return text
    return sprintf("%04d-%02d-%02d", parts[3], parts[2], parts[1])
}
""",
    """function clock(text,    parts) {
    split(text, parts, ":")
    return sprintf("%02d:%02d", parts[1], parts[2])
}
""",
    """function plate(text) {
    gsub(/[- ]/, "", text)
    return toupper(text)
}
""",
    """function number(text) {
    gsub(/'/, "", text)
    return text == "-" ? "" : text
}
""",
    """# Hundredths of a number such as 45,30 or 45.3.
function hundredths(text) {
    sub(/,/, ".", text)
    return int(text * 100 + 0.5)
}
""",
)

TRIPS = r"""# Reads trips of depots; prints DAY DEPARTURE ARRIVAL PLATE DRIVER START STOP PURPOSE, with tabs.
BEGIN { OFS = "\t" }
{ sub(/\r$/, "") }
/^[ \t]*(#|$)/ { next }
{
    if ($0 ~ /;/) split($0, cells, / *; */)
    else split($0, cells)
    split(cells[2], times, "-")
    purpose = tolower(cells[7])
    sub(/[ ,].*/, "", purpose)
    print iso(cells[1]), clock(times[1]), clock(times[2]), plate(cells[3]), tolower(cells[4]),
        number(cells[5]), number(cells[6]), purpose
}
"""

RECEIPTS = r"""# Reads statements of cards; prints DAY TIME PLATE ODOMETER CENTILITRES CENTS FULL RECEIPT, with tabs.
function cell(name) {
    return cells[place[name]]
}
BEGIN { OFS = "\t" }
{ sub(/\r$/, "") }
/^$/ { next }
FNR == 1 {
    separator = ($0 ~ /;/) ? ";" : ","
    many = split(tolower($0), heads, separator)
    for (i = 1; i <= many; i++) place[heads[i]] = i
    next
}
{
    split($0, cells, separator)
    print iso(cell("date")), clock(cell("time")), plate(cell("plate")), number(cell("odometer")),
        hundredths(cell("litres")), hundredths(cell("amount")), (tolower(cell("full")) ~ /^(x|yes)$/), cell("receipt")
}
"""

MAIN = '''"""Load the tables of a fleet, and print reports on them."""
import csv
import sqlite3
import sys
from pathlib import Path

import functions

ROOT = Path(__file__).resolve().parent.parent
TABLES = ("vehicles", "drivers", "services", "intervals", "fixed", "renamed")


def insert(connection, table, cells, columns=""):
    marks = ", ".join("?" * len(cells))
    connection.execute(f"INSERT INTO {table} {columns} VALUES ({marks})", [text.strip() or None for text in cells])


def load_table(connection, table, path):
    with open(path, encoding="utf-8-sig", newline="") as stream:
        for row in csv.DictReader(stream):
            insert(connection, table, row.values(), f"({', '.join(row)})")


def load_lines(connection, table, path):
    with open(path, encoding="utf-8") as stream:
        for line in stream:
            insert(connection, table, line.rstrip("\\n").split("\\t"))


def load(connection, folder, scratch, first, last):
    insert(connection, "period", [first, last])
    for table in TABLES:
        load_table(connection, table, Path(folder, f"{table}.csv"))
    for table in ("units", "needs"):
        load_table(connection, table, ROOT / "etc" / f"{table}.csv")
    for table in ("trips", "receipts"):
        load_lines(connection, table, Path(scratch, f"{table}.tsv"))


def build(*sources):
    """Return a database after all steps; the data are loaded as soon as there are tables."""
    connection = sqlite3.connect(":memory:")
    functions.register(connection)
    for step in (ROOT / "sql" / "steps.txt").read_text().split():
        connection.executescript((ROOT / "sql" / f"{step}.sql").read_text(encoding="utf-8"))
        if step == "tables":
            load(connection, *sources)
    return connection


def main(folder, scratch, first, last, *reports):
    connection = build(folder, scratch, first, last)
    for report in reports:
        print(f"== {report}")
        query = (ROOT / "reports" / f"{report}.sql").read_text(encoding="utf-8")
        for row in connection.execute(query):
            print("@separator@".join(map(str, row)))


main(*sys.argv[1:])
'''

#: The head of the functions of queries; the functions themselves stand in any order.
FUNCTIONS_HEAD = '''"""Functions that queries use."""
@shape_imports@
SETTINGS = json.loads((Path(__file__).resolve().parent.parent / "etc" / "current.json").read_text())
'''

DATES_HEAD = '''"""Days and months."""
import calendar
import datetime
'''

DATES = (
    '''def later(day, months):
    """Return the day some months later, or the last one of a shorter month."""
    if months is None:
        return None
    start = datetime.date.fromisoformat(day)
    year, month = divmod(12 * start.year + start.month - 1 + months, 12)
    length = calendar.monthrange(year, month + 1)[1]
    return datetime.date(year, month + 1, min(start.day, length)).isoformat()
''',
    '''def days(begin, end):
    """Return how many days ``end`` is behind ``begin``."""
    if end is None:
        return None
    return (datetime.date.fromisoformat(end) - datetime.date.fromisoformat(begin)).days
''',
    '''def months_between(begin, end):
    """Return how many months the month of ``end`` is behind that of ``begin``."""
    one, other = datetime.date.fromisoformat(begin), datetime.date.fromisoformat(end)
    return 12 * (other.year - one.year) + other.month - one.month
''',
    '''def minutes(begins, ends):
    """Return the minutes that count between two times."""
    if begins is None:
        return None
    duration = datetime.datetime.fromisoformat(ends) - datetime.datetime.fromisoformat(begins)
    number = duration.days * 1440 + duration.seconds // 60
    @hours_rounding@
''',
)

FUNCTIONS = (
    '''def kilometres(distance, metres):
    """Return the kilometres of a distance, in units of so many metres."""
    return @mile_rounding@ // 1000
''',
    '''def reached(*remaining):
    """Return whether a service has to be done: of kilometres and days, those that its interval has."""
    over = [number <= 0 for number in remaining if number is not None]
    return @due_by@
''',
    """def state(km_left, days_left):
    if reached(km_left, days_left):
        return "due"
    margins = [(km_left, SETTINGS["@km_key@"]), (days_left, SETTINGS["@days_key@"])]
    near = [None if number is None else number - margin for number, margin in margins]
    return "soon" if reached(*near) else "ok"
""",
    '''def share(cents, begin, end):
    """Return the part of yearly costs from one day to another one."""
    @fixed_share@
''',
    '''def decline(price, bought, begin, end):
    """Return by how much a vehicle's value falls in the months from one day to another one."""
    life = 12 * SETTINGS["@years_key@"]
    oldest = min(months_between(bought, end), life - 1)
    youngest = max(months_between(bought, begin), 0)
    return price * @rest_value@ // 100 * max(oldest - youngest + 1, 0) // life
''',
    """def may_drive(classes, needed):
    own = classes.split()
    return @licence_classes@
""",
    """def money(cents):
    return @amount@
""",
)

REGISTER = """def register(connection):
    for function in (days, decline, kilometres, later, may_drive, minutes, money, share, state):
        connection.create_function(function.__name__, function.__code__.co_argcount, function)
"""

#: By the year in the name: this one, and the one before, which nothing reads.
SETTINGS = """{
  @soon_km@,
  @soon_days@,
  @depreciation_years@
}
"""

OLD_SETTINGS = """{
  "@km_key@": @old_km@,
  "@days_key@": @old_days@,
  "@years_key@": @old_years@
}
"""

UNITS = """unit,metres
km,1000
mi,1609
"""

NEEDS = """kind,class
car,B
van,C1
truck,C
"""

STEPS = """tables
corrections
trips
fuel
services
costs
@shape_last_steps@
"""

TABLES = """CREATE TABLE period (first TEXT, last TEXT);
CREATE TABLE units (unit TEXT PRIMARY KEY, metres INTEGER);
CREATE TABLE needs (kind TEXT PRIMARY KEY, class TEXT);
CREATE TABLE vehicles (
    plate TEXT PRIMARY KEY,
    model TEXT,
    kind TEXT,
    tank INTEGER,
    unit TEXT,
    price INTEGER,
    bought TEXT,
    start INTEGER
);
CREATE TABLE drivers (id TEXT PRIMARY KEY, name TEXT, classes TEXT, until TEXT);
CREATE TABLE services (plate TEXT, day TEXT, odometer INTEGER, what TEXT, cents INTEGER);
CREATE TABLE intervals (kind TEXT, what TEXT, km INTEGER, months INTEGER);
CREATE TABLE fixed (plate TEXT, what TEXT, since TEXT, until TEXT, cents INTEGER);
CREATE TABLE renamed (former TEXT, plate TEXT);
CREATE TABLE trips (
    day TEXT,
    departure TEXT,
    arrival TEXT,
    plate TEXT,
    driver TEXT,
    start INTEGER,
    stop INTEGER,
    purpose TEXT
);
CREATE TABLE receipts (
    day TEXT,
    time TEXT,
    plate TEXT,
    odometer INTEGER,
    centilitres INTEGER,
    cents INTEGER,
    full INTEGER,
    receipt TEXT
);
"""

CORRECTIONS = """-- Vehicles with a new plate, and trips whose start nobody has written down.
UPDATE trips SET plate = (SELECT r.plate FROM renamed r WHERE r.former = trips.plate)
WHERE plate IN (SELECT former FROM renamed);
UPDATE receipts SET plate = (SELECT r.plate FROM renamed r WHERE r.former = receipts.plate)
WHERE plate IN (SELECT former FROM renamed);
UPDATE trips SET start = coalesce(
    (
        SELECT max(e.stop) FROM trips e
        WHERE e.plate = trips.plate AND (e.day, e.departure) < (trips.day, trips.departure)
    ),
    (SELECT v.start FROM vehicles v WHERE v.plate = trips.plate)
) WHERE start IS NULL;
"""

RIDES = """-- Rides are trips with their times, and with the odometer of those before and after.
CREATE TABLE rides AS
SELECT plate, driver, purpose, start, stop,
    day || ' ' || departure AS begins,
    @shape_arrival@ || ' ' || arrival AS ends,
    lag(stop) OVER turn AS previous_stop,
    lead(start) OVER turn AS next_start
FROM trips
WINDOW turn AS (PARTITION BY plate ORDER BY day, departure);
CREATE VIEW distances AS
SELECT r.*, @private_purpose@ AS private,
    kilometres(r.stop - r.start, u.metres) AS km,
    kilometres(r.start - coalesce(r.previous_stop, v.start), u.metres) AS gap,
    kilometres(coalesce(r.next_start, r.stop) - r.stop, u.metres) AS next_gap
FROM rides r JOIN vehicles v USING (plate) JOIN units u USING (unit);
CREATE VIEW counted AS
SELECT d.* FROM distances d JOIN period p ON @day_of_trip@ BETWEEN p.first AND p.last;
CREATE VIEW mileage AS
SELECT v.plate,
    coalesce(sum(c.km), 0) AS km,
    coalesce(sum(c.km * c.private), 0) AS private_km,
    coalesce(sum(c.gap), 0) AS missing
FROM vehicles v LEFT JOIN counted c USING (plate)
GROUP BY v.plate;
"""

FUEL = """-- Fillings, and stages from one full tank to the next one.
CREATE TABLE fillings AS
SELECT plate, day, time, odometer, centilitres, cents, full, receipt FROM (
    SELECT *, row_number() OVER (PARTITION BY receipt @repeated_receipt@ AS turn FROM receipts
)
WHERE turn = 1;
CREATE VIEW marked AS
SELECT f.*, @full_filling@ AS complete FROM fillings f JOIN vehicles v USING (plate);
CREATE VIEW numbered AS
@shape_stages@;
CREATE VIEW stages AS
SELECT plate, stage,
    max(day) AS day,
    max(odometer) AS odometer,
    sum(centilitres) AS centilitres,
    lag(max(odometer)) OVER (PARTITION BY plate ORDER BY stage) AS origin
FROM numbered
GROUP BY plate, stage
HAVING max(complete);
CREATE VIEW consumption AS
SELECT s.plate, count(*) AS rounds,
    sum(s.centilitres) AS burned,
    sum(kilometres(s.odometer - s.origin, u.metres)) AS driven
FROM stages s JOIN vehicles v USING (plate) JOIN units u USING (unit)
JOIN period p ON s.day BETWEEN p.first AND p.last
WHERE s.origin IS NOT NULL
GROUP BY s.plate;
CREATE VIEW fuel AS
SELECT v.plate, count(f.receipt) AS fillings, coalesce(sum(f.centilitres), 0) AS centilitres,
    coalesce(sum(f.cents), 0) AS cents, c.rounds, c.burned, c.driven
FROM vehicles v
LEFT JOIN fillings f ON f.plate = v.plate AND f.day BETWEEN (SELECT first FROM period) AND (SELECT last FROM period)
LEFT JOIN consumption c ON c.plate = v.plate
GROUP BY v.plate;
"""

SERVICES = """-- When services have to be done again.
CREATE VIEW latest AS
SELECT s.plate, s.what, max(s.day) AS day, s.odometer
FROM services s JOIN period p ON s.day <= p.last
GROUP BY s.plate, s.what;
CREATE VIEW readings AS
@shape_readings@;
CREATE VIEW plan AS
SELECT v.plate, i.what,
    i.km - kilometres(n.odometer - coalesce(l.odometer, v.start), u.metres) AS km_left,
    later(coalesce(l.day, v.bought), i.months) AS next_day
FROM vehicles v JOIN units u USING (unit) JOIN readings n USING (plate) JOIN intervals i ON i.kind = v.kind
@never_serviced@ l ON l.plate = v.plate AND l.what = i.what;
CREATE VIEW due AS
SELECT p.*, state(p.km_left, days(d.last, p.next_day)) AS state FROM plan p JOIN period d;
"""

COSTS = """-- Costs of a vehicle in the period.
CREATE VIEW service_costs AS
SELECT s.plate, sum(s.cents) AS cents
FROM services s JOIN period p ON s.day BETWEEN p.first AND p.last
GROUP BY s.plate;
CREATE VIEW fixed_costs AS
SELECT f.plate, sum(share(f.cents, max(f.since, p.first), min(coalesce(f.until, p.last), p.last))) AS cents
FROM fixed f JOIN period p ON f.since <= p.last AND coalesce(f.until, p.last) >= p.first
GROUP BY f.plate;
CREATE VIEW totals AS
SELECT *, fuel + service + fixed + lost AS total FROM (
    SELECT v.plate, v.model, m.km, m.private_km, m.missing, f.cents AS fuel, coalesce(s.cents, 0) AS service,
        coalesce(x.cents, 0) AS fixed, decline(v.price, v.bought, p.first, p.last) AS lost
    FROM vehicles v JOIN period p JOIN mileage m ON m.plate = v.plate JOIN fuel f ON f.plate = v.plate
    LEFT JOIN service_costs s ON s.plate = v.plate
    LEFT JOIN fixed_costs x ON x.plate = v.plate
);
"""

DRIVERS = """-- Trips, minutes and kilometres of each driver.
CREATE VIEW shifts AS
SELECT d.id, d.name, count(c.plate) AS trips, coalesce(sum(minutes(c.begins, c.ends)), 0) AS spent,
    coalesce(sum(@gap_km@), 0) AS km
FROM drivers d LEFT JOIN counted c ON c.driver = d.id
GROUP BY d.id;
"""

#: Parts of a union, in any order.
ALERTS = (
    """SELECT f.day AS day, 'tank' AS alert, f.plate AS subject, f.receipt AS detail
FROM fillings f JOIN vehicles v USING (plate)
WHERE f.centilitres > @tank_tolerance@
""",
    """SELECT date(r.begins) AS day, 'licence' AS alert, r.driver AS subject, r.plate AS detail
FROM rides r JOIN drivers d ON d.id = r.driver JOIN vehicles v USING (plate) JOIN needs n USING (kind)
WHERE @licence_last_day@ OR NOT may_drive(d.classes, n.class)
""",
    """SELECT date(r.begins) AS day, 'overlap' AS alert, r.driver AS subject, r.plate AS detail
FROM rides r WHERE EXISTS (
    SELECT 1 FROM rides e WHERE @overlapping_trips@ AND e.begins < r.begins AND e.ends > r.begins
)
""",
    """SELECT date(begins) AS day, 'hours' AS alert, driver AS subject, sum(minutes(begins, ends)) AS detail
FROM rides GROUP BY driver, date(begins)
HAVING sum(minutes(begins, ends)) > @long_day@
""",
)

REPORTS = {
    "mileage": """SELECT @mileage_columns@ FROM mileage ORDER BY plate;
""",
    "fuel": """-- Litres, cents for a litre, and the consumption between full tanks.
SELECT plate, fillings, printf('%d.%02d', centilitres / 100, centilitres % 100),
    coalesce(cents * 100 / centilitres, '-'), coalesce(rounds, 0),
    CASE WHEN driven THEN @consumption_figure@ ELSE '-' END
FROM fuel ORDER BY plate;
""",
    "due": """SELECT plate, what, coalesce(km_left, '-'), coalesce(next_day, '-'), state
FROM due WHERE state <> 'ok' ORDER BY plate, what;
""",
    "costs": """-- Fuel, services, fixed costs and loss of value, their sum, and cents for a kilometre.
SELECT plate, money(fuel), money(service), money(fixed), money(lost), money(total),
    coalesce(total / @cost_per_km@, '-')
FROM totals @order_of_costs@, plate;
""",
    "drivers": """SELECT id, name, trips, printf('%d:%02d', spent / 60, spent % 60), km FROM shifts ORDER BY id;
""",
    "alerts": """SELECT DISTINCT a.day, a.alert, a.subject, a.detail
FROM alerts a JOIN period p ON a.day BETWEEN p.first AND p.last
ORDER BY a.day, a.alert, a.subject, a.detail;
""",
}

#: Two ways to write a part of a program.
SHAPES = {
    "shape_reading": (
        """for depot in "$folder"/depots/*.txt; do
    awk -f "$HERE/@lib@/common.awk" -f "$HERE/@lib@/trips.awk" "$depot"
done | sort > "$scratch/trips.tsv\"""",
        """awk -f "$HERE/@lib@/common.awk" -f "$HERE/@lib@/trips.awk" "$folder"/depots/*.txt |
    sort > "$scratch/trips.tsv\"""",
    ),
    "shape_arrival": (
        "CASE WHEN arrival <= departure THEN date(day, '+1 day') ELSE day END",
        "date(day, '+' || (arrival <= departure) || ' days')",
    ),
    "shape_stages": (
        """SELECT *, coalesce(sum(complete) OVER (
    PARTITION BY plate ORDER BY day, time ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
), 0) AS stage
FROM marked""",
        """SELECT m.*, (
    SELECT count(*) FROM marked e
    WHERE e.plate = m.plate AND e.complete AND (e.day, e.time) < (m.day, m.time)
) AS stage
FROM marked m""",
    ),
    "shape_readings": (
        """SELECT v.plate, coalesce(max(r.stop), v.start) AS odometer
FROM vehicles v LEFT JOIN rides r ON r.plate = v.plate AND date(r.ends) <= (SELECT last FROM period)
GROUP BY v.plate""",
        """SELECT v.plate, coalesce((
    SELECT r.stop FROM rides r JOIN period p
    WHERE r.plate = v.plate AND date(r.ends) <= (SELECT last FROM period)
    ORDER BY r.stop DESC LIMIT 1
), v.start) AS odometer
FROM vehicles v""",
    ),
    "shape_last_steps": ("drivers\nalerts", "alerts\ndrivers"),
}

FORMAT = """# Data of a fleet

Tables (CSV, perhaps with quotes, in any order of columns):

- `vehicles.csv`: plate, model, kind, litres of the tank, unit of the odometer (`etc/units.csv` has the metres of one),
  price in cents, the day when it was bought, and the odometer at the start of the records.
- `drivers.csv`: id, name, classes of the licence, and its last day. `etc/needs.csv` says which class a kind needs.
- `services.csv`: plate, day, odometer, what was done, cents. `intervals.csv` says for each kind after how many km and
  how many months it is to be done again; an empty cell is no limit. The last time up to the end of the period counts.
- `fixed.csv`: plate, what, first and last day (may be empty), and cents a year.
- `renamed.csv`: former plates of vehicles, which trips and receipts may have. All other tables have the new ones.

Depots write `depots/*.txt`, a trip a line, with spaces or with semicolons between the cells: day, times, plate, driver,
odometer at the start (`-`: nobody looked, it is where the trip before ended, or the start of the records) and at the
end, and purpose, perhaps with remarks after a space or a comma. A trip that ends at an earlier time of day than it
begins ends on the next day. Days are such as 2025-03-04 or 4.3.2025; plates and drivers are written in many ways;
12'345 is a number. Lines with # in front are comments.

`cards/*.csv` are statements of fuel cards. Their first line names the columns. The tank was filled up where `full` is
`x` or `yes`. A receipt may stand there twice.

Reports, of a period from its first to its last day:

- mileage: of the trips that count. Missing km are those between the trip before (or the start of the records) and such
  a trip. Distances are in km, trip by trip;
- fuel: number of fillings, litres, cents for a litre (cut off), and the number and the consumption of the stages from
  one full tank to the next one that end in the period. What is filled in on the way belongs to the stage;
- due: services that are due or will be soon, with the km that are left at the last reading of the odometer in the
  period, and the day. Due is what has nothing left;
- costs: of fuel, services, fixed costs, and loss of value, their sum, and cents for a km (cut off). A vehicle loses
  the same in each month of its life, of which the one when it was bought is the first; a month of the period counts as
  a whole;
- drivers: trips, hours and km;
- alerts: too much fuel for a tank (with the receipt), trips without a licence that is good for them, trips that
  overlap an earlier one, and days of a driver with too many minutes (of the trips that begin on it).
"""
