"""The template *library*: a Python package for bookings and invoices, its command line, and its examples.

It needs sh and Python 3.
"""

from __future__ import annotations

import calendar
import datetime
import random
from collections.abc import Sequence

from ..project import Check, Fault, Project, Question
from .parts import ASKED, CITIES, asked_together, fault_of_edits, notes, person, token
from .variation import Option, Rule, Variant

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
    """Return the date some months later."""
    year, month, day = date
    month += count
    year, month = year + (month - 1) // 12, (month - 1) % 12 + 1
    if day > days_in_month(year, month):
        @missing_day@
    return year, month, day


def number(date):
    """Return the days since the year 1 began."""
    year, month, day = date
    before = year - 1
    total = 365 * before + before // 4 - before // 100 + before // 400
    return total + sum(days_in_month(year, m) for m in range(1, month)) + day


def nights(start, end):
    return @nights@
'''
_MONEY = '''"""Amounts, in cents."""


def share(total, people):
    """Split an amount so that nothing is lost."""
    part, rest = divmod(total, people)
    return [part + @cents_left_over@ for position in range(people)]


def discounted(total, nights):
    """Take off @percent@ % from @from_nights@ nights on."""
    if nights >= @from_nights@:
        return @discounted@
    return total


def read(text):
    """Return the cents of an amount such as 12.50 or -3.05."""
    sign = -1 if text.startswith("-") else 1
    whole, _, part = text.lstrip("-").partition(".")
    return sign * (int(whole) * 100 + int(part or 0))


def write(cents):
    sign = "-" if cents < 0 else ""
    return @amount@
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
        if @gap@:
            gaps.append((end, start))
        end = max(end, stop)
    if end < closes:
        gaps.append((end, closes))
    return gaps
'''
_TEXT = '''"""Text: tables, names, versions."""


def initials(name):
    return @initials@


def compare_versions(one, other):
    """Return the later of two versions such as 1.10.2."""
    return max(one, other, key=lambda version: [int(part) for part in version.split(".")])


def formats(widths):
    """Return a function for each column that pads a cell."""
    return [lambda cell, width=width: @pad@ for width in widths]


def table(rows):
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    pads = formats(widths)
    return [@table_line@ for row in rows]


def depth(tree):
    """Return how many levels a nested list has."""
    if not isinstance(tree, list):
        return 0
    return @depth@
'''
_COMMANDS = '''"""The commands of the command line."""
import json

from @package@_lib import add_months, compare_versions, discounted, free, initials
from @package@_lib import is_leap, nights, overlaps, share, table

from . import dates, money, slots, text

ANSWERS = @yes_no@


def clock(slot):
    return @clock@


def span(word):
    start, end = word.split("-")
    return slots.minutes(start), slots.minutes(end)


def run(name, words):
    """Run a command; return its line of output."""
    if name == "leap":
        return ANSWERS[is_leap(int(words[0]))]
    if name == "months":
        return dates.write(add_months(dates.read(words[0]), int(words[1])))
    if name == "nights":
        return str(nights(dates.read(words[0]), dates.read(words[1])))
    if name == "share":
        return " ".join(money.write(part) for part in share(money.read(words[0]), int(words[1])))
    if name == "price":
        return money.write(discounted(money.read(words[0]), int(words[1])))
    if name == "clash":
        return ANSWERS[overlaps(span(words[0]), span(words[1]))]
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
            @error_status@
    print(f"status {status}")
    return status
'''

_RULES = (
    Rule(
        "missing-day",
        "@package@_lib/dates.py",
        "A subscription that began on the 31st is renewed on the wrong day.",
        [
            Option(
                "day = days_in_month(year, month)",
                "`months` gives the last day of the month where there is no such day in it.",
                lambda date, last: date.replace(day=last),
            ),
            Option(
                "year, month, day = year + month // 12, month % 12 + 1, 1",
                "`months` gives the first day of the next month where there is no such day.",
                lambda date, last: date.replace(day=last) + datetime.timedelta(days=1),
            ),
            Option(
                "day = 28",
                "`months` gives the 28th where there is no such day.",
                lambda date, last: date.replace(day=28),
            ),
            Option(
                "day = 15",
                "`months` gives the 15th where there is no such day.",
                lambda date, last: date.replace(day=15),
            ),
            Option(
                "day = 1",
                "`months` gives the 1st of the month where it has no such day.",
                lambda date, last: date.replace(day=1),
            ),
        ],
    ),
    Rule(
        "nights",
        "@package@_lib/dates.py",
        "The lengths of stays are not counted as they were.",
        [
            Option("number(end) - number(start)", "`nights` counts the nights between two days.", lambda n: n),
            Option("number(end) - number(start) + 1", "`nights` counts days, both included.", lambda n: n + 1),
            Option("(number(end) - number(start)) // 7", "`nights` counts whole weeks.", lambda n: n // 7),
            Option(
                "-(-(number(end) - number(start)) // 7)",
                "`nights` counts weeks; one that has begun is whole.",
                lambda n: -(-n // 7),
            ),
            Option(
                "number(end) - number(start) - 1",
                "`nights` counts the days between two days, both left out.",
                lambda n: n - 1,
            ),
        ],
    ),
    Rule(
        "cents-left-over",
        "@package@_lib/money.py",
        "When guests split a bill, the wrong ones pay a cent more.",
        [
            Option(
                "(position < rest)",
                "`share` gives the cents that are left over to the first ones, one to each.",
                lambda n, r: [i < r for i in range(n)],
            ),
            Option(
                "(position >= people - rest)",
                "`share` gives the cents that are left over to the last ones, one to each.",
                lambda n, r: [i >= n - r for i in range(n)],
            ),
            Option(
                "rest * (position == 0)",
                "`share` gives all cents that are left over to the first one.",
                lambda n, r: [r, *[0] * (n - 1)],
            ),
            Option(
                "rest * (position == people - 1)",
                "`share` gives all cents that are left over to the last one.",
                lambda n, r: [*[0] * (n - 1), r],
            ),
        ],
    ),
    Rule(
        "discounted",
        "@package@_lib/money.py",
        "The price of a long stay is not the one on the web site.",
        [
            Option(
                "total * (100 - @percent@) // 100",
                "`price` takes off @percent@ % from @from_nights@ nights on; what is left is rounded down.",
                lambda c, p, n, a: c * (100 - p) // 100,
            ),
            Option(
                "-(-total * (100 - @percent@) // 100)",
                "`price` takes off @percent@ % from @from_nights@ nights on; what is left is rounded up.",
                lambda c, p, n, a: -(-c * (100 - p) // 100),
            ),
            Option(
                "total - nights * @percent@",
                "`price` takes off @percent@ cents for each night from @from_nights@ nights on.",
                lambda c, p, n, a: c - n * p,
            ),
            Option(
                "total * (100 - @percent@) // 10000 * 100",
                "`price` takes off @percent@ % from @from_nights@ nights on; whole units are left.",
                lambda c, p, n, a: c * (100 - p) // 10000 * 100,
            ),
            Option(
                "total - (nights - @from_nights@ + 1) * @percent@",
                "`price` takes off @percent@ cents for the night of number @from_nights@ and each later one.",
                lambda c, p, n, a: c - (n - a + 1) * p,
            ),
        ],
    ),
    Rule(
        "amount",
        "@package@_lib/money.py",
        "The accounts cannot read the amounts any more.",
        [
            Option(
                'f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02}"',
                "Amounts are printed such as `-3.05`.",
                "{0}{1}.{2:02}",
            ),
            Option(
                'f"{sign}{abs(cents) // 100},{abs(cents) % 100:02}"',
                "Amounts are printed such as `-3,05`.",
                "{0}{1},{2:02}",
            ),
            Option(
                'f"{abs(cents) // 100}.{abs(cents) % 100:02}{sign}"',
                "Amounts are printed such as `3.05-`.",
                "{1}.{2:02}{0}",
            ),
            Option(
                'f"{sign}${abs(cents) // 100}.{abs(cents) % 100:02}"',
                "Amounts are printed such as `-$3.05`.",
                "{0}${1}.{2:02}",
            ),
        ],
    ),
    Rule(
        "gap",
        "@package@_lib/slots.py",
        "Times are offered that are too short, or some are not offered.",
        [
            Option(
                f"start > end + {minutes}",
                f"`free` offers gaps between bookings that are longer than {minutes} minutes; the last gap always.",
                minutes,
            )
            for minutes in (5, 10, 15, 20, 30)
        ],
    ),
    Rule(
        "initials",
        "@package@_lib/text.py",
        "The labels of guests look different from those on the doors.",
        [
            Option(
                '"".join(part[0].upper() for part in name.split())',
                "`initials` is such as `AL`.",
                ("{0}{1}", str.upper),
            ),
            Option(
                '".".join(part[0].upper() for part in name.split())',
                "`initials` is such as `A.L`.",
                ("{0}.{1}", str.upper),
            ),
            Option(
                '"".join(part[0].lower() for part in name.split())',
                "`initials` is such as `al`.",
                ("{0}{1}", str.lower),
            ),
            Option(
                '"".join(part[0].upper() for part in name.split()[::-1])',
                "`initials` is such as `LA`, the last name's first.",
                ("{1}{0}", str.upper),
            ),
        ],
    ),
    Rule(
        "table-line",
        "@package@_lib/text.py",
        "The mail with the table of guests looks different.",
        [
            Option(
                f'"{mark}".join(pad(cell) for pad, cell in zip(pads, row))',
                f"The cells of a line of `table` have `{mark}` between them.",
                mark,
            )
            for mark in ("|", ":", "!", "#", " | ")
        ],
    ),
    Rule(
        "pad",
        "@package@_lib/text.py",
        "The columns of tables are not as they were agreed.",
        [
            Option(
                "cell.ljust(width)",
                "`table` fills cells with spaces on the right.",
                lambda cell, width: cell.ljust(width),
            ),
            Option(
                "cell.rjust(width)",
                "`table` fills cells with spaces on the left.",
                lambda cell, width: cell.rjust(width),
            ),
            Option(
                'cell.ljust(width, ".")',
                "`table` fills cells with dots on the right.",
                lambda cell, width: cell.ljust(width, "."),
            ),
            Option(
                'cell.rjust(width, "_")',
                "`table` fills cells with underscores on the left.",
                lambda cell, width: cell.rjust(width, "_"),
            ),
        ],
    ),
    Rule(
        "depth",
        "@package@_lib/text.py",
        "The nesting of groups is not counted as agreed.",
        [
            Option(
                "1 + max((depth(branch) for branch in tree), default=0)",
                "`depth` counts the levels of a nested list.",
                lambda levels, leaves: levels,
            ),
            Option(
                "sum(depth(branch) for branch in tree) + len(tree)",
                "`depth` counts all members of a nested list and of the lists in it.",
                lambda levels, leaves: levels + leaves - 1,
            ),
        ],
    ),
    Rule(
        "clock",
        "@package@_lib/commands.py",
        "The screen at the door cannot read times any more.",
        [
            Option(
                '"-".join("%02d:%02d" % divmod(minute, 60) for minute in slot)',
                "`free` prints times such as `08:00-09:30`.",
                ("{0:02}:{1:02}", "-"),
            ),
            Option(
                '"-".join("%02d%02d" % divmod(minute, 60) for minute in slot)',
                "`free` prints times such as `0800-0930`.",
                ("{0:02}{1:02}", "-"),
            ),
            Option(
                '"..".join("%02d:%02d" % divmod(minute, 60) for minute in slot)',
                "`free` prints times such as `08:00..09:30`.",
                ("{0:02}:{1:02}", ".."),
            ),
            Option(
                '"/".join("%dh%02d" % divmod(minute, 60) for minute in slot)',
                "`free` prints times such as `8h00/9h30`.",
                ("{0}h{1:02}", "/"),
            ),
        ],
    ),
    Rule(
        "yes-no",
        "@package@_lib/commands.py",
        "The screen at the door shows no answers any more.",
        [
            Option(
                repr(words), f"Where a command asks something, the answers are `{words[1]}` and `{words[0]}`.", words
            )
            for words in (("no", "yes"), ("false", "true"), ("0", "1"), ("n", "y"), ("-", "+"))
        ],
    ),
    Rule(
        "error-status",
        "@package@_lib/commands.py",
        "A file with an unknown command does not end as the job's documents say.",
        [
            Option(f"status = {status}", f"After an error, the status is {status}.", str(status))
            for status in (2, 3, 4, 7, 9)
        ]
        + [Option("status += 1", "The status is the number of errors.", "1")],
    ),
)
_IDENTIFIERS = (
    "is_leap days_in_month add_months overlaps discounted compare_versions before total part "
    "rest position whole sign gaps stop formats widths pads pad branch span clock run taken opens closes"
)

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
        "lambda cell, width=width:",
        "lambda cell:",
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
        '            print(f"error: {error}")\n            @error_status@\n',
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
    variant = Variant.draw(rng, _RULES, _IDENTIFIERS, names)
    texts = {
        "@package@": _COMMAND,
        "run.py": _RUN,
        "@package@_lib/__init__.py": _INIT,
        "@package@_lib/dates.py": _DATES,
        "@package@_lib/money.py": _MONEY,
        "@package@_lib/slots.py": _SLOTS,
        "@package@_lib/text.py": _TEXT,
        "@package@_lib/commands.py": _COMMANDS,
    }
    files = variant.files(texts) | variant.document(rng)
    package = names["package"]
    library = f"{package}_lib"
    # An old copy, which nothing imports.
    files["old/dates.py"] = files[f"{library}/dates.py"].replace("(year % 100 != 0 or year % 400 == 0)", "year % 100")
    files["docs/changes.md"] = notes(rng, "Changes", 15)
    questions = _questions(rng, files, room)
    fixed = frozenset(path for path in files if path.startswith("bookings/"))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return [_check(fresh, "commands", variant, fails=True), _check(fresh, "right commands", variant, fails=False)]

    about = (
        f"`./{package} FILE` runs commands of the package `{library}`, one a line, for the booking of {room}s: see "
        f"`{library}/commands.py`. It prints a line for each of them, then the status, with which it ends. "
        f"What they print is in `{variant.page}`."
    )
    looks = ["ls -R | head -40", f"cat {library}/commands.py"]
    faults = [
        *variant.edits(_EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_import_faults(variant, looks[:1]),
    ]
    return Project(about, files, faults, checks, {str(package): 0o755}, fixed=fixed, questions=questions)


def _import_faults(variant: Variant, looks: Sequence[str]) -> list[Fault]:
    package = variant.names["package"]
    library = f"{package}_lib"
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
            [(f"{library}/slots.py", f"{end}\n", variant.text(f"{end}\nfrom .commands import clock\n"))],
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


def _check(rng: random.Random, name: str, variant: Variant, *, fails: bool) -> Check:
    """Draw commands, with those that need care always among them; compute the answers with the standard library.

    ``fails`` is whether one of them does not exist.
    """
    no, yes = variant["yes-no"]

    def money(cents: int) -> str:
        return str(variant["amount"].format("-" if cents < 0 else "", *divmod(abs(cents), 100)))

    dialogue = [("leap 2000", yes), ("leap 2024", yes), ("leap 2023", no), *_date_commands(rng, variant)]
    people = rng.randint(3, 7)
    part, rest = rng.randint(1000, 9000), rng.randint(2, people - 1)
    shares = [part + cents for cents in variant["cents-left-over"](people, rest)]
    dialogue.append((f"share {(people * part + rest) / 100:.2f} {people}", " ".join(map(money, shares))))
    percent, limit = int(str(variant.names["percent"])), int(str(variant.names["from_nights"]))
    for stay in (limit - 1, limit, limit + rng.randint(1, 20)):
        # Both roundings make a difference.
        draws = (rng.randint(2000, 30_000) for _ in range(1000))
        cents = next(cents for cents in draws if cents * (100 - percent) % 100)
        due = cents if stay < limit else variant["discounted"](cents, percent, stay, limit)
        dialogue.append((f"price {cents / 100:.2f} {stay}", money(due)))
    refund = rng.randint(1, 99) * 100
    dialogue.append((f"price -{refund / 100:.2f} 1", money(-refund)))
    dialogue += _slots(rng, variant) + _texts(rng, variant)
    if fails:
        dialogue.append((f"{token(rng)} 1", "error: no such command: "))
    rng.shuffle(dialogue)
    answers = [text + line.split()[0] if text.endswith("command: ") else text for line, text in dialogue]
    inputs = {"commands.txt": "\n".join(line for line, _ in dialogue) + "\n"}
    status = f"status {variant['error-status'] if fails else 0}"
    return Check(name, f"./{variant.names['package']} $IN/commands.txt", "\n".join([*answers, status]), inputs)


def _date_commands(rng: random.Random, variant: Variant) -> list[tuple[str, str]]:
    century = rng.choice([1700, 1800, 1900])
    dialogue = [(f"leap {century}", variant["yes-no"][0])]
    for year, over in ((century, 0), (century, 6), (rng.randint(1990, 2030), rng.randint(1, 5))):
        start = datetime.date(year, rng.randint(1, 2), rng.randint(1, 20))
        # A day too many shows in weeks as well, however they are rounded.
        end = start + datetime.timedelta(days=7 * rng.randint(9, 100) + over)
        dialogue.append((f"nights {start} {end}", str(variant["nights"]((end - start).days))))
    for date, count in (
        (datetime.date(rng.randint(2000, 2030), 1, 31), 1),
        (datetime.date(rng.randint(2000, 2030), rng.randint(1, 11), rng.randint(1, 28)), 0),
        (datetime.date(rng.randint(2000, 2030), rng.randint(1, 12), rng.randint(1, 28)), rng.randint(1, 30)),
        (datetime.date(rng.randint(2000, 2030), 10, 31), 2),
    ):
        later, month = divmod(date.month - 1 + count, 12)
        first = datetime.date(date.year + later, month + 1, 1)
        last = calendar.monthrange(first.year, first.month)[1]
        due = first.replace(day=date.day) if date.day <= last else variant["missing-day"](first, last)
        dialogue.append((f"months {date} {count}", str(due)))
    return dialogue


def _slots(rng: random.Random, variant: Variant) -> list[tuple[str, str]]:
    """Draw commands on slots; the answers are computed minute by minute."""
    form, between = variant["clock"]
    no, yes = variant["yes-no"]

    def clock(minute: int) -> str:
        return f"{minute // 60:02}:{minute % 60:02}"

    def span(start: int, end: int) -> str:
        return f"{clock(start)}-{clock(end)}"

    def gaps(booked: Sequence[tuple[int, int]]) -> str:
        busy = {minute for start, stop in booked for minute in range(start, stop)}
        spans, start = list[str](), None
        for minute in range(400, 1201):
            if minute == 1200 or minute in busy:
                if start is not None and (minute == 1200 or minute - start > variant["gap"]):
                    spans.append(between.join(form.format(*divmod(end, 60)) for end in (start, minute)))
                start = None
            elif start is None:
                start = minute
        return " ".join(spans)

    first = rng.randint(500, 600)
    middle, end = first + rng.randint(30, 90), first + rng.randint(100, 200)
    outer = (first + 300, first + 500)
    booked = [outer, (first + 320, first + 340 + rng.randint(0, 40)), (middle, end), (first + 230, first + 260)]
    close = [(first, first + 10)]
    for gap in rng.sample([5, 7, 12, 18, 25, 35], 6):
        close.append((close[-1][1] + gap, close[-1][1] + gap + rng.randint(5, 50)))
    return [
        (f"clash {span(first, middle)} {span(middle, end)}", no),
        (f"clash {span(middle, end)} {span(first, middle)}", no),
        (f"clash {span(first, middle + 1)} {span(middle, end)}", yes),
        *(
            (f"free {span(400, 1200)} {' '.join(span(*slot) for slot in slots)}", gaps(slots))
            for slots in (booked, close)
        ),
    ]


def _texts(rng: random.Random, variant: Variant) -> list[tuple[str, str]]:
    major, minor = rng.randint(1, 3), rng.randint(10, 89)  # as text it is less than 9
    name = person(rng)
    rows = [[rng.choice(CITIES), token(rng, rng.randint(2, 9)), "x" * rng.randint(3, 4)] for _ in range(3)]
    rows.append(["a", "bb" * 8, "c"])
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    pad, mark = variant["pad"], variant["table-line"]
    lines = [mark.join(pad(cell, width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    levels, leaves = rng.randint(2, 6), rng.randint(2, 5)
    nested = "[" * levels + ",".join(str(rng.randint(1, 9)) for _ in range(leaves)) + "]" * levels
    form, case = variant["initials"]
    return [
        (f"version {major}.{minor} {major}.9", f"{major}.{minor}"),
        (f"initials {name.lower()}", case(form.format(*(part[0] for part in name.split())))),
        (f"table {' '.join(','.join(row) for row in rows)}", "/".join(lines)),
        (f"depth {nested}", str(variant["depth"](levels, leaves))),
    ]


def _questions(rng: random.Random, files: dict[str, str], room: str) -> list[Question]:
    """Draw the bookings of each month, and ask about them."""
    guests = sorted({person(rng) for _ in range(60)})
    rows_of = dict[str, list[tuple[int, str]]]()
    for year in range(2021, 2021 + rng.randint(2, 4)):
        for month in range(1, 13):
            spent = rng.sample(range(100, 99_999), 60)
            lines = [f"reference;guest;{room};cents"]
            for cents in spent:
                guest, reference = rng.choice(guests), token(rng)
                lines.append(f"{reference};{guest};{room}{rng.randint(1, 20)};{cents}")
                rows_of.setdefault(guest, []).append((cents, reference))
            files[f"bookings/{year}-{month:02}.csv"] = "\n".join(lines) + "\n"
    guests = rng.sample([guest for guest in guests if len({cents for cents, _ in rows_of[guest]}) > 10], ASKED)
    months = rng.sample(sorted(path for path in files if path.startswith("bookings/")), ASKED)
    return [
        asked_together([_reference_of_amount(guest, rows_of[guest]) for guest in guests]),
        asked_together([_cheapest_booking(path, files[path]) for path in months]),
    ]


def _reference_of_amount(guest: str, rows: Sequence[tuple[int, str]]) -> Question:
    # Amounts of different months can be equal: the largest must be the guest's only one of that amount.
    amounts = [cents for cents, _ in rows]
    cents = max(cents for cents in amounts if amounts.count(cents) == 1)
    return Question(
        "reference-of-amount",
        f"What is the reference of the booking of {guest} over exactly {cents} cents?",
        next(reference for amount, reference in rows if amount == cents),
        ["ls bookings | head", f"grep -h ';{guest};.*;{cents}$' bookings/*.csv | cut -d';' -f1"],
    )


def _cheapest_booking(path: str, text: str) -> Question:
    cheapest = min(text.splitlines()[1:], key=lambda line: int(line.split(";")[3]))
    return Question(
        "cheapest-booking",
        f"What is the reference of the cheapest booking in {path}?",
        cheapest.split(";")[0],
        ["ls bookings | tail -1", f"tail -n +2 {path} | sort -t';' -k4,4n | head -1 | cut -d';' -f1"],
    )
