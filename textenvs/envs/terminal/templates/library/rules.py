"""Rules that the programs of the template `library` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

import datetime

from ..variation import Option, Rule

RULES = (
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

IDENTIFIERS = (
    "is_leap days_in_month add_months overlaps discounted compare_versions before total part "
    "rest position whole sign gaps stop formats widths pads pad branch span clock run taken opens closes"
)
