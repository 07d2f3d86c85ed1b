"""Rules that the programs of the template `agenda` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

import calendar
import datetime
from collections.abc import Callable

from ..variation import Option, Rule, numbers

_DAY = datetime.timedelta(days=1)


def _next(day: datetime.date, is_off: Callable[[datetime.date], bool]) -> datetime.date:
    return next(later for days in range(99) if not is_off(later := day + days * _DAY))


def _previous(day: datetime.date, is_off: Callable[[datetime.date], bool]) -> datetime.date:
    return next(earlier for days in range(99) if not is_off(earlier := day - days * _DAY))


def _clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


RULES = (
    Rule(
        "month-without-day",
        "@app@/repeat.py",
        "What is planned for the end of each month is on a wrong day, or lost.",
        [
            Option(
                "return date(year, month, length)",
                "An event of a day that a month does not have takes place on the month's last day.",
                lambda year, month: datetime.date(year, month, calendar.monthrange(year, month)[1]),
            ),
            Option(
                "return None",
                "An event of a day that a month does not have does not take place.",
                lambda year, month: None,
            ),
            Option(
                "return date(year, month, length) + timedelta(days=1)",
                "An event of a day that a month does not have takes place on the first day of the next one.",
                lambda year, month: datetime.date(year, month, calendar.monthrange(year, month)[1]) + _DAY,
            ),
        ],
    ),
    Rule(
        "counted-repetitions",
        "@app@/repeat.py",
        "Series of events end too early or too late.",
        [
            Option(
                "number < event.count",
                "What does not take place because of EXCEPT, or because its month lacks the day, is one of the "
                "number of times.",
                True,
            ),
            Option(
                "count < event.count",
                "What does not take place because of EXCEPT, or because its month lacks the day, is none of the "
                "number of times: the event goes on for longer.",
                False,
            ),
        ],
    ),
    Rule(
        "tag-on-days-off",
        "@app@/repeat.py",
        "Days off are not observed for what they should be, or for what they should not.",
        [
            Option(f'"{tag}"', f"Events of the tag `{tag}` take place on days off as on all others.", tag)
            for tag in ("family", "travel", "sport", "press")
        ],
    ),
    Rule(
        "on-day-off",
        "@app@/repeat.py",
        "What falls on a day off is in the agenda where nobody expects it.",
        [
            Option(
                "continue",
                "What falls on a day off does not take place, but is one of the number of times.",
                lambda day, off: None,
            ),
            Option("planned = off.next(planned)", "What falls on a day off is on the next working day.", _next),
            Option(
                "planned = off.next(planned, -1)",
                "What falls on a day off is on the last working day before it.",
                _previous,
            ),
            Option(
                "planned += timedelta(days=1)",
                "What falls on a day off is on the day after it, working day or not.",
                lambda day, off: day + _DAY,
            ),
        ],
    ),
    Rule(
        "weekend",
        "@app@/daysoff.py",
        "People are called to work when they are at home.",
        [
            Option("(5, 6)", "Nobody works on Saturday and Sunday.", (5, 6)),
            Option("(4, 5)", "Nobody works on Friday and Saturday.", (4, 5)),
            Option("(6,)", "Nobody works on Sunday.", (6,)),
            Option("(0, 6)", "Nobody works on Sunday and Monday.", (0, 6)),
        ],
    ),
    numbers(
        "pause",
        "@app@/free.py",
        "People have no time between two meetings, or too much.",
        (5, 10, 15, 20, 25),
        "end = max(end, stop + {})",
        "The {} minutes after an event are not free.",
    ),
    Rule(
        "order-of-ties",
        "bin/occurrences",
        "The agenda is sorted in another way than on the wall.",
        [
            Option("-k4,4", "Of events that begin together, the agenda is in the order of titles.", lambda e: e[3]),
            Option(
                "-k3,3n", "Of events that begin together, the one that ends first comes first.", lambda e: int(e[2])
            ),
            Option(
                "-k3,3nr", "Of events that begin together, the one that ends last comes first.", lambda e: -int(e[2])
            ),
            Option("-k5,5", "Of events that begin together, the agenda is in the order of tags.", lambda e: e[4]),
        ],
    ),
    Rule(
        "order-of-tags",
        "bin/hours",
        "The table of hours is sorted in another way than it was.",
        [
            Option("-k1,1", "`bin/hours` is in the order of tags.", lambda tag, minutes: (tag,)),
            Option(
                "-k2,2n -k1,1",
                "`bin/hours` has the tag with the least time first, and equal ones by name.",
                lambda tag, minutes: (minutes, tag),
            ),
            Option(
                "-k2,2nr -k1,1",
                "`bin/hours` has the tag with the most time first, and equal ones by name.",
                lambda tag, minutes: (-minutes, tag),
            ),
        ],
    ),
    Rule(
        "hours-of-tag",
        "@app@/hours.awk",
        "Payroll refuses the table of hours.",
        [
            Option(
                'sprintf("%d:%02d", int(minutes / 60), minutes % 60)',
                "`bin/hours` prints such as `3:05`.",
                lambda minutes: f"{minutes // 60}:{minutes % 60:02}",
            ),
            Option(
                'sprintf("%d.%02d", int(minutes / 60), int(minutes % 60 * 100 / 60))',
                "`bin/hours` prints hundredths of an hour, rounded down, such as `3.08`.",
                lambda minutes: f"{minutes // 60}.{minutes % 60 * 100 // 60:02}",
            ),
            Option(
                "int((minutes + 59) / 60)", "`bin/hours` prints hours, rounded up.", lambda minutes: -(-minutes // 60)
            ),
            Option(
                'int((minutes + 14) / 15) " quarters"',
                "`bin/hours` prints quarters of an hour, rounded up, such as `13 quarters`.",
                lambda minutes: f"{-(-minutes // 15)} quarters",
            ),
        ],
    ),
    Rule(
        "past-midnight",
        "@app@/show.awk",
        "It cannot be seen from the agenda when something ends at night.",
        [
            Option("clock(0 + minute)", "An end after midnight is printed such as `25:30`.", _clock),
            Option(
                "clock(minute - 1440)",
                "An end after midnight is printed such as `01:30`.",
                lambda minute: _clock(minute - 1440),
            ),
            Option('"24:00"', "An end after midnight is printed as `24:00`.", lambda minute: "24:00"),
            Option(
                'clock(minute - 1440) "+1"',
                "An end after midnight is printed such as `01:30+1`.",
                lambda minute: _clock(minute - 1440) + "+1",
            ),
        ],
    ),
    Rule(
        "day-heading",
        "@app@/show.awk",
        "The screen in the hall does not show the days any more.",
        [
            Option('"== " $1', "The line above a day is such as `== 2025-03-09`.", "== {0}-{1}-{2}"),
            Option(
                'substr($1, 9) "." substr($1, 6, 2) "." substr($1, 1, 4)',
                "The line above a day is such as `09.03.2025`.",
                "{2}.{1}.{0}",
            ),
            Option(
                '"[" substr($1, 9) "/" substr($1, 6, 2) "]"',
                "The line above a day is such as `[09/03]`: day and month.",
                "[{2}/{1}]",
            ),
            Option('$1 ":"', "The line above a day is such as `2025-03-09:`.", "{0}-{1}-{2}:"),
        ],
    ),
    Rule(
        "clash",
        "@app@/show.awk",
        "Events are marked that should not be, or the other way round.",
        [
            Option(
                "$2 < busy",
                "An event that begins in the minute in which another ends is not marked.",
                lambda start, busy: start < busy,
            ),
            Option(
                "busy && $2 <= busy",
                "An event that begins in the minute in which another ends is marked, too.",
                lambda start, busy: bool(busy) and start <= busy,
            ),
            Option(
                "$2 + 5 < busy",
                "An event is not marked where another one goes on for 5 minutes or less.",
                lambda start, busy: start + 5 < busy,
            ),
        ],
    ),
    Rule(
        "event-line",
        "@app@/show.awk",
        "The screen in the hall shows dates without events.",
        [
            Option('clock($2) "-" end($3) " " $4', "A line of an event is such as `09:00-10:30 Title`.", "{0}-{1} {2}"),
            Option('clock($2) " " $4 " (" end($3) ")"', "A line is such as `09:00 Title (10:30)`.", "{0} {2} ({1})"),
            Option(
                'clock($2) ".." end($3) " #" $5 " " $4',
                "A line is such as `09:00..10:30 #tag Title`.",
                "{0}..{1} #{3} {2}",
            ),
            Option('$4 ", " clock($2) " to " end($3)', "A line is such as `Title, 09:00 to 10:30`.", "{2}, {0} to {1}"),
        ],
    ),
)

IDENTIFIERS = (
    "planned later events read minutes piece without offset shift off spans gaps "
    "busy shown mark total dates entries months amount own"
)
