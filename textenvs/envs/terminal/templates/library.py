"""The template *library*: a Python package for bookings and invoices, its command line, and its examples.

It needs sh and Python 3.
"""

from __future__ import annotations

import calendar
import datetime
import random
from collections.abc import Mapping, Sequence

from ..project import Check, Fault, Project, Question
from .parts import CITIES, fault_of_edits, faults_of, filled, notes, person, token

_COMMAND = """#!/bin/sh
# Usage: ./@package@ FILE: runs the commands of a file, one a line.
exec python3 -S -E "$(dirname "$0")/run.py" "$@"
"""
_RUN = """import sys

from @package@_lib import commands

sys.exit(commands.main(sys.argv[1:]))
"""
_INIT = '''"""Bookings of @rooms@, and what they cost."""
from .dates import add_months, days_in_month, is_leap, nights
from .money import discounted, share
from .slots import free, overlaps
from .text import compare_versions, initials, table

__all__ = [
    "add_months",
    "compare_versions",
    "days_in_month",
    "discounted",
    "free",
    "initials",
    "is_leap",
    "nights",
    "overlaps",
    "share",
    "table",
]
'''
_DATES = '''"""Dates, as (year, month, day)."""

DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def read(text):
    year, month, day = text.split("-")
    return int(year), int(month), int(day)


def write(date):
    return "%04d-%02d-%02d" % date


def is_leap(year):
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_in_month(year, month):
    return DAYS[month - 1] + (month == 2 and is_leap(year))


def add_months(date, count):
    """Return the date some months later; the last day of the month where it has no such day."""
    year, month, day = date
    month += count
    year, month = year + (month - 1) // 12, (month - 1) % 12 + 1
    return year, month, min(day, days_in_month(year, month))


def number(date):
    """Return the days since the year 1 began."""
    year, month, day = date
    before = year - 1
    total = 365 * before + before // 4 - before // 100 + before // 400
    return total + sum(days_in_month(year, m) for m in range(1, month)) + day


def nights(start, end):
    return number(end) - number(start)
'''
_MONEY = '''"""Amounts, in cents."""


def share(total, people):
    """Split an amount so that nothing is lost: the first pay a cent that is over."""
    part, rest = divmod(total, people)
    return [part + (position < rest) for position in range(people)]


def discounted(total, nights):
    """Take off @percent@ % from @from_nights@ nights on."""
    if nights >= @from_nights@:
        return total * (100 - @percent@) // 100
    return total


def read(text):
    """Return the cents of an amount such as 12.50 or -3.05."""
    sign = -1 if text.startswith("-") else 1
    whole, _, part = text.lstrip("-").partition(".")
    return sign * (int(whole) * 100 + int(part or 0))


def write(cents):
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02}"
'''
_SLOTS = '''"""Times of a day that are taken, as (first minute, minute of the end)."""


def minutes(text):
    hours, _, rest = text.partition(":")
    return int(hours) * 60 + int(rest)


def overlaps(one, other):
    """Tell if two slots have a minute in common; one may begin when the other ends."""
    return one[0] < other[1] and other[0] < one[1]


def free(taken, opens, closes):
    """Return the gaps between slots, which are in any order and may overlap."""
    gaps, end = [], opens
    for start, stop in sorted(taken):
        if start > end:
            gaps.append((end, start))
        end = max(end, stop)
    if end < closes:
        gaps.append((end, closes))
    return gaps
'''
_TEXT = '''"""Text: tables, names, versions."""


def initials(name):
    return "".join(part[0].upper() for part in name.split())


def compare_versions(one, other):
    """Return the later of two versions such as 1.10.2."""
    return max(one, other, key=lambda version: [int(part) for part in version.split(".")])


def formats(widths):
    """Return a function for each column that pads a cell."""
    return [lambda cell, width=width: cell.ljust(width) for width in widths]


def table(rows):
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    pads = formats(widths)
    return ["|".join(pad(cell) for pad, cell in zip(pads, row)) for row in rows]


def depth(tree):
    """Return how many levels a nested list has."""
    if not isinstance(tree, list):
        return 0
    return 1 + max((depth(branch) for branch in tree), default=0)
'''
_COMMANDS = '''"""The commands of the command line."""
import json

from @package@_lib import add_months, compare_versions, discounted, free, initials
from @package@_lib import is_leap, nights, overlaps, share, table

from . import dates, money, slots, text


def clock(slot):
    return "-".join("%02d:%02d" % divmod(minute, 60) for minute in slot)


def span(word):
    start, end = word.split("-")
    return slots.minutes(start), slots.minutes(end)


def run(name, words):
    """Run a command; return its line of output."""
    if name == "leap":
        return "yes" if is_leap(int(words[0])) else "no"
    if name == "months":
        return dates.write(add_months(dates.read(words[0]), int(words[1])))
    if name == "nights":
        return str(nights(dates.read(words[0]), dates.read(words[1])))
    if name == "share":
        return " ".join(money.write(part) for part in share(money.read(words[0]), int(words[1])))
    if name == "price":
        return money.write(discounted(money.read(words[0]), int(words[1])))
    if name == "clash":
        return "yes" if overlaps(span(words[0]), span(words[1])) else "no"
    if name == "free":
        opens, closes = span(words[0])
        return " ".join(map(clock, free([span(word) for word in words[1:]], opens, closes))) or "none"
    if name == "initials":
        return initials(" ".join(words))
    if name == "version":
        return compare_versions(*words)
    if name == "table":
        return "/".join(table([row.split(",") for row in words]))
    if name == "depth":
        return str(text.depth(json.loads(words[0])))
    raise ValueError(f"no such command: {name}")


def main(arguments):
    status = 0
    for line in open(arguments[0], encoding="utf-8"):
        name, *words = line.split()
        try:
            print(run(name, words))
        except ValueError as error:
            print(f"error: {error}")
            status = 2
    print(f"status {status}")
    return status
'''

#: Kind, symptom, path, old and new text.
_EDITS = (
    (
        "leap-day",
        "The number of nights is wrong for some old bookings, by one.",
        "@package@_lib/dates.py",
        "year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)",
        "year % 4 == 0",
    ),
    (
        "month-end",
        "A subscription that began on the 31st is renewed on a day that does not exist.",
        "@package@_lib/dates.py",
        "return year, month, min(day, days_in_month(year, month))",
        "return year, month, day",
    ),
    (
        "year-boundary",
        "Renewals that fall into December have a wrong date.",
        "@package@_lib/dates.py",
        "year + (month - 1) // 12, (month - 1) % 12 + 1",
        "year + month // 12, (month - 1) % 12 + 1",
    ),
    (
        "integer-division",
        "When guests split a bill, the parts do not add up to it.",
        "@package@_lib/money.py",
        "part, rest = divmod(total, people)",
        "part, rest = total // people, 0",
    ),
    (
        "exclusive-limit",
        "Guests who stay just long enough do not get the long stay's price.",
        "@package@_lib/money.py",
        "if nights >= @from_nights@:",
        "if nights > @from_nights@:",
    ),
    (
        "lost-sign",
        "Refunds are read as payments.",
        "@package@_lib/money.py",
        'sign = -1 if text.startswith("-") else 1\n',
        "sign = 1\n",
    ),
    (
        "touching-intervals",
        "A @room@ cannot be booked from the hour at which another booking ends.",
        "@package@_lib/slots.py",
        "one[0] < other[1] and other[0] < one[1]",
        "one[0] <= other[1] and other[0] <= one[1]",
    ),
    (
        "unsorted-input",
        "Times are offered as free that are booked, if bookings were entered in another order.",
        "@package@_lib/slots.py",
        "in sorted(taken):",
        "in taken:",
    ),
    (
        "nested-interval",
        "A time is offered as free in the middle of a long booking.",
        "@package@_lib/slots.py",
        "end = max(end, stop)",
        "end = stop",
    ),
    (
        "version-as-text",
        "The update check takes 1.9 for newer than 1.10.",
        "@package@_lib/text.py",
        '[int(part) for part in version.split(".")]',
        'version.split(".")',
    ),
    (
        "late-binding",
        "The columns of tables are not aligned.",
        "@package@_lib/text.py",
        "lambda cell, width=width: cell",
        "lambda cell: cell",
    ),
    (
        "recursion-base",
        "The depth of nested groups is one too high.",
        "@package@_lib/text.py",
        "        return 0\n",
        "        return 1\n",
    ),
    (
        "swallowed-error",
        "A file with an unknown command is reported as fine.",
        "@package@_lib/commands.py",
        '            print(f"error: {error}")\n            status = 2\n',
        '            print(f"error: {error}")\n',
    ),
    (
        "missing-export",
        "Nothing works since the package was tidied up; it ends with an ImportError.",
        "@package@_lib/__init__.py",
        "import compare_versions, initials, table\n",
        "import initials, table\n",
    ),
)


def draw(rng: random.Random) -> Project:
    """Draw a project: the package's name, its limits, and the bookings of some years."""
    room = rng.choice(["room", "court", "studio", "cabin", "boat"])
    names = {
        "package": rng.choice(["stay", "booker", "rooms", "agenda", "hostel", "planner"]),
        "room": room,
        "rooms": f"{room}s",
        "percent": rng.randint(5, 30),
        "from_nights": rng.randint(5, 14),
    }
    package = names["package"]
    library = f"{package}_lib"
    texts = {
        str(package): _COMMAND,
        "run.py": _RUN,
        f"{library}/__init__.py": _INIT,
        f"{library}/dates.py": _DATES,
        f"{library}/money.py": _MONEY,
        f"{library}/slots.py": _SLOTS,
        f"{library}/text.py": _TEXT,
        f"{library}/commands.py": _COMMANDS,
    }
    files = {path: filled(text, names) for path, text in texts.items()}
    # An old copy, which nothing imports.
    files["old/dates.py"] = files[f"{library}/dates.py"].replace("(year % 100 != 0 or year % 400 == 0)", "year % 100")
    files["docs/changes.md"] = notes(rng, "Changes", 15)
    questions = _questions(rng, files, room)
    fixed = frozenset(path for path in files if path.startswith("bookings/"))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return [_check(fresh, "commands", names, fails=True), _check(fresh, "right commands", names, fails=False)]

    about = (
        f"`./{package} FILE` runs commands of the package `{library}`, one a line, for the booking of {room}s: see "
        f"`{library}/commands.py`. It prints a line for each of them, then the status, with which it ends."
    )
    looks = ["ls -R | head -40", f"cat {library}/commands.py"]
    faults = [*faults_of(_EDITS, names, looks), *_import_faults(names, looks[:1])]
    return Project(about, files, faults, checks, {str(package): 0o755}, fixed=fixed, questions=questions)


def _import_faults(names: Mapping[str, object], looks: Sequence[str]) -> list[Fault]:
    library, package = f"{names['package']}_lib", names["package"]
    end = 'minute of the end)."""'
    run = [*looks, f"echo 'leap 2024' > /tmp/c; ./{package} /tmp/c"]
    return [
        Fault(
            "shadowed-module",
            "It ends with an AttributeError in a module that nobody has changed.",
            [*run, "cat json.py"],
            "rm json.py",
            added={"json.py": '"""Notes on the format of exports, for later."""\n\nFORMAT = "lines"\n'},
        ),
        fault_of_edits(
            "circular-import",
            "It cannot be imported any more.",
            [(f"{library}/slots.py", f"{end}\n", f"{end}\nfrom .commands import clock\n")],
            run,
        ),
        Fault(
            "missing-file",
            "It cannot be imported any more, on no machine.",
            [*run, f"ls {library} old"],
            f"sed 's/ and year % 100$/ and (year % 100 != 0 or year % 400 == 0)/' old/dates.py > {library}/dates.py",
            removed=[f"{library}/dates.py"],
        ),
    ]


def _check(rng: random.Random, name: str, names: Mapping[str, object], *, fails: bool) -> Check:
    """Draw commands, with those that need care always among them; compute the answers with the standard library.

    ``fails`` is whether one of them does not exist.
    """
    percent, limit = int(str(names["percent"])), int(str(names["from_nights"]))
    century = rng.choice([1700, 1800, 1900])
    dialogue = [("leap 2000", "yes"), (f"leap {century}", "no"), ("leap 2024", "yes"), ("leap 2023", "no")]
    for year in (century, rng.randint(1990, 2030), rng.randint(1990, 2030)):
        start = datetime.date(year, rng.randint(1, 2), rng.randint(1, 20))
        end = start + datetime.timedelta(days=rng.randint(60, 700))
        dialogue.append((f"nights {start} {end}", str((end - start).days)))
    for date, count in (
        (datetime.date(rng.randint(2000, 2030), 1, 31), 1),
        (datetime.date(rng.randint(2000, 2030), rng.randint(1, 11), rng.randint(1, 28)), 0),
        (datetime.date(rng.randint(2000, 2030), rng.randint(1, 12), rng.randint(1, 28)), rng.randint(1, 30)),
        (datetime.date(rng.randint(2000, 2030), 10, 31), 2),
    ):
        later, month = divmod(date.month - 1 + count, 12)
        last = calendar.monthrange(date.year + later, month + 1)[1]
        due = datetime.date(date.year + later, month + 1, min(date.day, last))
        dialogue.append((f"months {date} {count}", str(due)))
    people = rng.randint(3, 7)
    total = people * rng.randint(1000, 9000) + rng.randint(1, people - 1)
    parts = [total // people + 1] * (total % people) + [total // people] * (people - total % people)
    dialogue.append((f"share {total / 100:.2f} {people}", " ".join(f"{part / 100:.2f}" for part in parts)))
    for stay in (limit - 1, limit, limit + rng.randint(1, 20)):
        cents = rng.randint(10, 400) * 100
        due_cents = cents if stay < limit else cents // 100 * (100 - percent)
        dialogue.append((f"price {cents / 100:.2f} {stay}", f"{due_cents / 100:.2f}"))
    refund = rng.randint(1, 99) * 100
    dialogue.append((f"price -{refund / 100:.2f} 1", f"-{refund / 100:.2f}"))
    dialogue += _slots(rng) + _texts(rng)
    if fails:
        dialogue.append((f"{token(rng)} 1", "error: no such command: "))
    rng.shuffle(dialogue)
    answers = [text + line.split()[0] if text.endswith("command: ") else text for line, text in dialogue]
    inputs = {"commands.txt": "\n".join(line for line, _ in dialogue) + "\n"}
    return Check(name, f"./{names['package']} $IN/commands.txt", "\n".join([*answers, f"status {2 * fails}"]), inputs)


def _slots(rng: random.Random) -> list[tuple[str, str]]:
    """Draw commands on slots; the answers are computed minute by minute."""

    def clock(minute: int) -> str:
        return f"{minute // 60:02}:{minute % 60:02}"

    def span(start: int, end: int) -> str:
        return f"{clock(start)}-{clock(end)}"

    first = rng.randint(500, 600)
    middle, end = first + rng.randint(30, 90), first + rng.randint(100, 200)
    outer = (first + 300, first + 500)
    taken = [outer, (first + 320, first + 340 + rng.randint(0, 40)), (middle, end), (first + 220, first + 260)]
    busy = {minute for start, stop in taken for minute in range(start, stop)}
    gaps, start = list[str](), None
    for minute in range(400, 1201):
        if minute == 1200 or minute in busy:
            if start is not None:
                gaps.append(span(start, minute))
            start = None
        elif start is None:
            start = minute
    return [
        (f"clash {span(first, middle)} {span(middle, end)}", "no"),
        (f"clash {span(middle, end)} {span(first, middle)}", "no"),
        (f"clash {span(first, middle + 1)} {span(middle, end)}", "yes"),
        (f"free {span(400, 1200)} {' '.join(span(*slot) for slot in taken)}", " ".join(gaps)),
    ]


def _texts(rng: random.Random) -> list[tuple[str, str]]:
    major, minor = rng.randint(1, 3), rng.randint(10, 89)  # as text it is less than 9
    name = person(rng)
    rows = [[rng.choice(CITIES), token(rng, rng.randint(2, 9)), "x" * rng.randint(3, 4)] for _ in range(3)]
    rows.append(["a", "bb" * 8, "c"])
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["|".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
    levels = rng.randint(2, 6)
    return [
        (f"version {major}.{minor} {major}.9", f"{major}.{minor}"),
        (f"initials {name.lower()}", "".join(part[0] for part in name.split())),
        (f"table {' '.join(','.join(row) for row in rows)}", "/".join(lines)),
        (f"depth {'[' * levels}{rng.randint(1, 9)}{']' * levels}", str(levels)),
    ]


def _questions(rng: random.Random, files: dict[str, str], room: str) -> list[Question]:
    """Draw the bookings of each month, and ask about them."""
    guests = sorted({person(rng) for _ in range(60)})
    best, rows_of = "", dict[str, list[tuple[int, str]]]()
    for year in range(2021, 2021 + rng.randint(2, 4)):
        for month in range(1, 13):
            spent = rng.sample(range(100, 99_999), 60)
            lines = [f"reference;guest;{room};cents"]
            for cents in spent:
                guest, reference = rng.choice(guests), token(rng)
                lines.append(f"{reference};{guest};{room}{rng.randint(1, 20)};{cents}")
                rows_of.setdefault(guest, []).append((cents, reference))
            files[f"bookings/{year}-{month:02}.csv"] = "\n".join(lines) + "\n"
            best = max(best, f"{year}-{month:02}")
    guest = rng.choice([guest for guest in guests if len({cents for cents, _ in rows_of[guest]}) > 10])
    # Amounts of different months can be equal: the largest must be the guest's only one of that amount.
    cents = max(cents for cents, _ in rows_of[guest] if [other for other, _ in rows_of[guest]].count(cents) == 1)
    reference = next(reference for amount, reference in rows_of[guest] if amount == cents)
    last = files[f"bookings/{best}.csv"].splitlines()[1:]
    cheapest = min(last, key=lambda line: int(line.split(";")[3]))
    return [
        Question(
            "reference-of-amount",
            f"What is the reference of the booking of {guest} over exactly {cents} cents?",
            reference,
            ["ls bookings | head", f"grep -h ';{guest};.*;{cents}$' bookings/*.csv | cut -d';' -f1"],
        ),
        Question(
            "cheapest-booking",
            "What is the reference of the cheapest booking in the last month of which there are any?",
            cheapest.split(";")[0],
            [
                "ls bookings | tail -1",
                "tail -n +2 $(ls bookings/*.csv | tail -1) | sort -t';' -k4,4n | head -1 | cut -d';' -f1",
            ],
        ),
    ]
