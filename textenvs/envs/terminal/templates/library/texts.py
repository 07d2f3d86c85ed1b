"""Files of the template `library`; what stands between @ is drawn."""

COMMAND = """#!/bin/sh
# Usage: ./@package@ FILE: runs the commands of a file, one a line.
exec python3 -S -E "$(dirname "$0")/run.py" "$@"
"""

RUN = """import sys

from @package@_lib import commands

sys.exit(commands.main(sys.argv[1:]))
"""

INIT = '''"""Bookings of @rooms@, and what they cost."""
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

DATES = '''"""Dates, as (year, month, day)."""

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

MONEY = '''"""Amounts, in cents."""


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

SLOTS = '''"""Times of a day that are taken, as (first minute, minute of the end)."""


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

TEXT = '''"""Text: tables, names, versions."""


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

COMMANDS = '''"""The commands of the command line."""
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
