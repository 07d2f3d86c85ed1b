"""Files of the template `network`; what stands between @ is drawn."""

TRIPS = """#!/bin/sh
# Answers questions about a network, one a line. Usage: bin/trips FOLDER FILE
exec python3 -S -E "$(dirname "$0")/../@code@/main.py" "$@"
"""

MAIN = """import sys
from pathlib import Path

import answers
import tables

ROOT = Path(__file__).resolve().parent.parent


def main(folder, file):
    path = ROOT / "var" / "@database@.db"
    path.unlink(missing_ok=True)
    connection = tables.build(path, ROOT / "sql" / "schema.sql", Path(folder))
    for text in open(file, encoding="utf-8"):
        command, *words = [word.strip() for word in text.split(";")]
        print(answers.ANSWERS[command](connection, *words))


main(*sys.argv[1:])
"""

TABLES = '''"""The tables of a network: CSV files become a database."""
import csv
import sqlite3

COLUMNS = {"stops": ("id", "name", "zone"), "links": ("line", "source", "target", "seconds", "ways")}


def rows(path, columns):
    with open(path, encoding="utf-8-sig", newline="") as file:
        for row in csv.DictReader(file):
            yield [row[column] for column in columns]


def build(path, schema, folder):
    connection = sqlite3.connect(path)
    connection.executescript(schema.read_text())
    for table, columns in COLUMNS.items():
        marks = ", ".join("?" * len(columns))
        command = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({marks})"
        connection.executemany(command, rows(folder / f"{table}.csv", columns))
    closed = [text.strip() for text in open(folder / "closed.txt", encoding="utf-8")]
    connection.executemany("INSERT INTO closed VALUES (?)", [[stop] for stop in closed])
    connection.commit()
    return connection
'''

SEARCH = '''"""Trips: the best way from a stop to each of the others."""
import heapq


def rides(connection):
    """Return the rides from each stop: line, next stop, seconds."""
    graph = {}
    for line, source, target, seconds in connection.execute("SELECT line, source, target, seconds FROM rides"):
        graph.setdefault(source, []).append((line, target, seconds))
    return graph


def trips(connection, start):
    """Return the seconds, the changes and the stops of the best trip to each stop."""
    graph = rides(connection)
    closed = {row[0] for row in connection.execute("SELECT id FROM closed")}
    queue, done, best = [((0, 0), 0, 0, start, "", [start])], set(), {}
    while queue:
        _, spent, changes, stop, line, path = heapq.heappop(queue)
        state = (stop, line)
        if state in done:
            continue
        done.add(state)
        best.setdefault(stop, (spent, changes, path))
        for other, target, seconds in graph.get(stop, []):
            change = line != "" and other != line
            @closed_stops@
            total = spent + seconds + @change_minutes@
            swaps = changes + change
            hops = len(path)
            heapq.heappush(queue, (@preferred_trip@, total, swaps, target, other, [*path, target]))
    return best
'''

FARES = '''"""Prices, in cents."""
import json
from pathlib import Path

TABLE = json.loads((Path(__file__).resolve().parent.parent / "etc" / "@fares@.json").read_text())


def clock(text):
    hours, _, minutes = text.partition(":")
    return int(hours) * 60 + int(minutes)


def at_night(time):
    return clock(time) >= clock(TABLE["@from_key@"]) or clock(time) < clock(TABLE["@until_key@"])


def crossed(zones):
    """Return how many zones a trip has."""
    return @zones_counted@


def single(zones, age):
    """Return the price for one person; beyond the largest number of zones it does not rise."""
    full = TABLE["zones"][str(min(crossed(zones), max(int(key) for key in TABLE["zones"])))]
    if age < TABLE["@child_key@"]:
        full = full * TABLE["@percent_key@"]
        return @child_rounding@
    return full


def price(zones, age, persons, time):
    total = persons * single(zones, age)
    if persons >= TABLE["@group_key@"]:
        @group_fare@
    if at_night(time):
        @night_fee@
    return total
'''

ANSWERS = '''"""What is answered to each question."""
from pathlib import Path

import fares
import search

SQL = Path(__file__).resolve().parent.parent / "sql"


def shown(seconds):
    return @shown_time@


def find(connection, name):
    return connection.execute("SELECT id FROM stops WHERE name = ?", [name]).fetchone()[0]


def names(connection, stops):
    return [connection.execute("SELECT name FROM stops WHERE id = ?", [stop]).fetchone()[0] for stop in stops]


def trip(connection, start, end):
    best = search.trips(connection, find(connection, start)).get(find(connection, end))
    if best is None:
        return "no trip"
    spent, changes, stops = best
    @route_mark@.join(names(connection, stops))
    return @trip_line@


def price(connection, start, end, age, persons, time):
    _, _, stops = search.trips(connection, find(connection, start))[find(connection, end)]
    zones = [connection.execute("SELECT zone FROM stops WHERE id = ?", [stop]).fetchone()[0] for stop in stops]
    cents = fares.price(zones, int(age), int(persons), time)
    return @price_line@


def reach(connection, start, minutes):
    best = search.trips(connection, find(connection, start))
    near = [(spent, *names(connection, [stop])) for stop, (spent, _, _) in best.items() if spent @reach_limit@]
    return ", ".join(f"{name} {shown(spent)}" for spent, name in sorted(near, key=lambda @order_of_reach@)


def table(name):
    """Return a function that answers by a query."""

    def answer(connection, *words):
        @row_mark@
        command = (SQL / f"{name}.sql").read_text()
        return mark.join("/".join(map(str, row)) for row in connection.execute(command, words))

    return answer


ANSWERS = {"trip": trip, "price": price, "reach": reach}
ANSWERS |= {name: table(name) for name in ("zone", "zones", "line", "hubs")}
'''

SCHEMA = """CREATE TABLE IF NOT EXISTS stops (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL COLLATE NOCASE,
    zone INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS links (
    line TEXT NOT NULL,
    source TEXT NOT NULL REFERENCES stops (id),
    target TEXT NOT NULL REFERENCES stops (id),
    seconds INTEGER NOT NULL,
    ways INTEGER NOT NULL,
    UNIQUE (line, source, target)
);
CREATE TABLE IF NOT EXISTS closed (id TEXT NOT NULL);
-- A link with two ways is a ride in both directions.
CREATE VIEW IF NOT EXISTS rides AS
    SELECT line, source, target, seconds FROM links
    UNION ALL
    SELECT line, target, source, seconds FROM links WHERE ways = 2;
"""

QUERIES = {
    "zone": """-- The stops of a zone that are open.
SELECT name FROM stops WHERE zone = ? AND id NOT IN (SELECT id FROM closed) @order_of_zone@;
""",
    "zones": """-- Every zone, its stops, and how many rides begin at them.
SELECT s.zone, COUNT(DISTINCT s.id), COUNT(r.line)
FROM stops s LEFT JOIN rides r ON r.source = s.id
GROUP BY s.zone @order_of_zones@;
""",
    "line": """-- The links of a line, and the seconds that they take.
SELECT COUNT(*), @seconds_of_line@ FROM links WHERE line = ?;
""",
    "hubs": """-- The stops at which several lines meet.
SELECT s.name, COUNT(DISTINCT r.line) AS meeting
FROM stops s JOIN rides r ON r.source = s.id
GROUP BY s.id HAVING meeting @fewest_lines@ ORDER BY s.name;
""",
}

SETTINGS = """{
  "@child_key@": @child_age@,
  "@percent_key@": @child_percent@,
  "@group_key@": @group@,
  "@from_key@": "@night_from@",
  "@until_key@": "@night_until@",
  "@fee_key@": @night_cents@,
  "zones": {
@prices@
  }
}
"""
