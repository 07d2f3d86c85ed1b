"""Files of the template `timetable`; what stands between @ is drawn."""

PLAN = """#!/bin/sh
# Answers questions about a school's week, one a line. Usage: bin/plan FOLDER FILE
exec python3 -S -E "$(dirname "$0")/../@code@/main.py" "$@"
"""

MAIN = """import sys
from pathlib import Path

import answers
import tables

ROOT = Path(__file__).resolve().parent.parent


def main(folder, file):
    path = ROOT / "var" / "week.db"
    path.unlink(missing_ok=True)
    connection = tables.build(path, ROOT / "sql", Path(folder))
    for line in open(file, encoding="utf-8"):
        command, *words = [word.strip() for word in line.split(";")]
        print(f"# {line.strip()}")
        for answer in answers.ANSWERS[command](connection, *words):
            print(answer)


main(*sys.argv[1:])
"""

TABLES = '''"""The tables of a school: CSV files become a database."""
import csv
import sqlite3
from types import SimpleNamespace

import dates

TABLES = ("periods", "classes", "teachers", "rooms", "lessons", "absences")
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri")


def value(column, text):
    """Return a cell's value; an empty one is NULL."""
    text = text.strip()
    if column == "day":
        return DAYS.index(text.capitalize())
    if column in ("since", "until"):
        return dates.parse(text).isoformat()
    return text or None


def named(cursor, row):
    """Return a row whose columns are attributes."""
    return SimpleNamespace(**dict(zip((column[0] for column in cursor.description), row)))


def build(path, sql, folder):
    connection = sqlite3.connect(path)
    connection.row_factory = named
    for name in ("schema", "views"):
        connection.executescript((sql / f"{name}.sql").read_text())
    for table in TABLES:
        with open(folder / f"{table}.csv", encoding="utf-8-sig", newline="") as file:
            for row in csv.DictReader(file):
                cells = [value(*cell) for cell in row.items()]
                marks = ", ".join("?" * len(cells))
                connection.execute(f"INSERT OR IGNORE INTO {table} ({', '.join(row)}) VALUES ({marks})", cells)
    first = dates.parse((folder / "term.txt").read_text())
    connection.execute("INSERT INTO term VALUES (?)", [first.isoformat()])
    connection.commit()
    return connection
'''

DATES = '''"""Days, and the weeks A and B."""
import datetime


def parse(text):
    """Return the day of 2026-11-03 or of 3.11.2026."""
    text = text.strip()
    if "." in text:
        day, month, year = text.split(".")
        return datetime.date(int(year), int(month), int(day))
    return datetime.date.fromisoformat(text)


def letter(day, first):
    """Return the letter of a day's week; the term begins with ``first``."""
    monday = first - datetime.timedelta(days=first.weekday())
    number = day.isocalendar()[1]
    return "A" if @week_letter@ else "B"
'''

ANSWERS = '''"""Answers to questions."""
from pathlib import Path

import dates
from tables import DAYS

SQL = Path(__file__).resolve().parent.parent / "sql"


def rows(connection, query, **values):
    return connection.execute((SQL / f"{query}.sql").read_text(), values)


def of_class(connection, name, week):
    for row in rows(connection, "class", name=name, week=week):
        yield @class_line@


def clashes(connection):
    for row in rows(connection, "clashes"):
        yield @clash_line@


def loads(connection):
    for row in rows(connection, "load"):
        yield @load_line@


def free(connection, day, period, week, seats="1"):
    values = {"day": DAYS.index(day), "period": int(period), "week": week, "seats": int(seats)}
    for row in rows(connection, "free", **values):
        yield f"{row.room} {row.seats}"


def small(connection):
    for row in rows(connection, "small"):
        yield f"{DAYS[row.day]} {row.period} {row.letter} {row.room}: {row.pupils} for {row.seats}"


def gaps(connection):
    for row in rows(connection, "gaps"):
        yield @gap_line@


def substitutes(connection, text):
    day = dates.parse(text)
    if day.weekday() > 4:
        yield "no school"
        return
    first = dates.parse(connection.execute("SELECT first FROM term").fetchone().first)
    week = dates.letter(day, first)
    for row in rows(connection, "substitutes", date=day.isoformat(), day=day.weekday(), week=week):
        yield @substitute_line@


ANSWERS = {
    "class": of_class,
    "clashes": clashes,
    "free": free,
    "gaps": gaps,
    "load": loads,
    "small": small,
    "substitutes": substitutes,
}
'''

SCHEMA = """CREATE TABLE term (first TEXT NOT NULL);
CREATE TABLE week (letter TEXT NOT NULL);
INSERT INTO week VALUES ('A'), ('B');
CREATE TABLE periods (period INTEGER PRIMARY KEY, begins TEXT NOT NULL);
CREATE TABLE classes (class TEXT PRIMARY KEY, pupils INTEGER NOT NULL);
CREATE TABLE teachers (code TEXT PRIMARY KEY, name TEXT NOT NULL, contract INTEGER NOT NULL);
CREATE TABLE rooms (room TEXT PRIMARY KEY, seats INTEGER NOT NULL);
CREATE TABLE lessons (
    class TEXT NOT NULL,
    day INTEGER NOT NULL,
    period INTEGER NOT NULL,
    subject TEXT NOT NULL,
    teacher TEXT,
    room TEXT,
    weeks TEXT NOT NULL
);
-- The program that exports the lessons writes some of them twice.
CREATE UNIQUE INDEX lessons_once ON lessons (class, day, period, subject, teacher, weeks);
CREATE TABLE absences (teacher TEXT NOT NULL, since TEXT NOT NULL, until TEXT NOT NULL);
"""

VIEWS = """-- A lesson of both weeks is one of A and one of B.
CREATE VIEW held AS
SELECT lessons.*, letter FROM lessons JOIN week ON weeks IN (letter, 'both');
"""

CLASS = """SELECT day, period, begins, subject, ifnull(teacher, '?') AS teacher, ifnull(room, 'outside') AS room
FROM held LEFT JOIN periods USING (period)
WHERE class = :name AND letter = :week
@class_order@
"""

CLASHES = """-- Classes that have a lesson together, with one teacher in one room, are no clash.
SELECT teacher AS what, day, period, letter, min(room) AS one, max(room) AS other
FROM held
WHERE teacher IS NOT NULL
GROUP BY teacher, day, period, letter
HAVING count(DISTINCT room) > 1
UNION ALL
SELECT room, day, period, letter, min(teacher), max(teacher)
FROM held
WHERE room IS NOT NULL
GROUP BY room, day, period, letter
HAVING count(DISTINCT teacher) > 1
ORDER BY what, day, period, letter
"""

LOAD = """SELECT code, name, contract, @load_counted@ / 2.0 AS hours
FROM teachers LEFT JOIN held ON teacher = code
GROUP BY code
@order_of_teachers@
"""

FREE = """SELECT room, seats FROM rooms
WHERE seats >= :seats AND room NOT IN (
    SELECT room FROM held
    WHERE day = :day AND period = :period AND letter = :week AND room IS NOT NULL
)
@order_of_rooms@
"""

SMALL = """SELECT day, period, letter, room, sum(pupils) AS pupils, seats
FROM held JOIN classes USING (class) JOIN rooms USING (room)
GROUP BY day, period, letter, room
HAVING @spare_seats@
ORDER BY day, period, letter, room
"""

GAPS = """SELECT class AS class_name, sum(gap) AS gaps, count(*) AS days, max(gap) AS longest FROM (
    SELECT class, max(period) - min(period) + 1 - count(DISTINCT period)
        - @lunch@ AS gap
    FROM held
    GROUP BY class, day, letter
)
WHERE gap > 0
GROUP BY class
ORDER BY length(class), class
"""

SUBSTITUTES = """WITH gone AS (SELECT teacher FROM absences WHERE @absence_end@)
SELECT period, class_name, subject, teacher, ifnull(code, 'nobody') AS substitute FROM (
    SELECT held.period, held.class AS class_name, held.subject, held.teacher, code, row_number() OVER (
        PARTITION BY held.period, held.class, held.subject, held.teacher, held.room
        ORDER BY @substitute@, code
    ) AS place
    FROM held LEFT JOIN teachers ON code NOT IN gone AND NOT EXISTS (
        SELECT 1 FROM held AS busy
        WHERE busy.teacher = code AND busy.day = held.day AND busy.period = held.period AND busy.letter = held.letter
    )
    WHERE held.day = :day AND held.letter = :week AND held.teacher IN gone
)
WHERE place = 1
ORDER BY period, class_name, teacher
"""

QUESTIONS = """# Questions and tables

`bin/plan FOLDER FILE` answers the questions of FILE, one a line, with the tables of FOLDER: CSV files, and `term.txt`
with the first day of the term. Days are such as `2026-11-03` or `3.11.2026`. The `weeks` of a lesson are `A`, `B` or
`both`. A lesson may be without teacher or without room, and classes may have one together: the same teacher, in the
same room, at the same time. A class may be divided as well: then it has several lessons at a time.

- `class; CLASS; WEEK`: the lessons of a class in a week.
- `clashes`: teachers who have to be in two rooms at a time, and rooms with two teachers at a time.
- `load`: the hours of each teacher in a week, on the average of the weeks A and B, and those of the contract.
- `free; DAY; PERIOD; WEEK; SEATS`: free rooms with so many seats at least.
- `small`: lessons in rooms that are too small for all their classes together.
- `gaps`: for each class with free periods between lessons, how many these are in both weeks, on how many days, and
  how many on the worst one. The shortest names of classes come first, and equally long ones by the alphabet.
- `substitutes; DAY`: the lessons of teachers who are absent on a day, and for each one who is neither absent nor has a
  lesson then. One may have to look after several classes. Of equally good ones, the first code is taken.
"""
