"""Rules that the programs of the template `payroll` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers


def _down(time: int, step: int) -> int:
    return time // step * step


def _up(time: int, step: int) -> int:
    return -(-time // step) * step


RULES = (
    Rule(
        "clock-rounding",
        "@lib@/@shifts@.awk",
        "The clock counts minutes in another way than was agreed.",
        [
            Option(
                "begin = up(begin, 15); end = down(end, 15)",
                "A shift begins with the next quarter of an hour, and ends with the last one.",
                lambda begin, end: (_up(begin, 15), _down(end, 15)),
            ),
            Option(
                "begin = down(begin, 15); end = up(end, 15)",
                "A quarter of an hour in which somebody was there counts as a whole one.",
                lambda begin, end: (_down(begin, 15), _up(end, 15)),
            ),
            Option(
                "begin = down(begin + 2, 5); end = down(end + 2, 5)",
                "Begin and end of a shift are rounded to the nearest 5 minutes.",
                lambda begin, end: (_down(begin + 2, 5), _down(end + 2, 5)),
            ),
            Option(
                "begin = up(begin, 6); end = down(end, 6)",
                "A shift begins with the next tenth of an hour, and ends with the last one.",
                lambda begin, end: (_up(begin, 6), _down(end, 6)),
            ),
        ],
    ),
    Rule(
        "unpaid-break",
        "@lib@/@shifts@.awk",
        "The breaks that are taken off are not those of the contracts.",
        [
            Option(
                "spent > 360 ? 30 : 0",
                "A shift of more than 6 hours has a break of 30 minutes.",
                lambda t: 30 * (t > 360),
            ),
            Option(
                "spent > 360 ? 45 : 0",
                "A shift of more than 6 hours has a break of 45 minutes.",
                lambda t: 45 * (t > 360),
            ),
            Option(
                "spent > 540 ? 60 : spent > 300 ? 20 : 0",
                "A shift of more than 5 hours has a break of 20 minutes, one of more than 9 hours 60 minutes.",
                lambda t: 60 if t > 540 else 20 * (t > 300),
            ),
            Option(
                "int(spent / 240) * 15",
                "A shift has a break of 15 minutes per 4 full hours.",
                lambda t: t // 240 * 15,
            ),
        ],
    ),
    Rule(
        "forgotten-out",
        "@lib@/@shifts@.awk",
        "Somebody who forgot to check out does not get what was agreed.",
        [
            Option("return 0", "An `in` that is followed by no `out` of the person counts nothing.", 0),
            Option("finish(started, started + 240)", "An `in` that is followed by no `out` counts as 4 hours.", 240),
            Option("finish(started, started + 480)", "An `in` that is followed by no `out` counts as 8 hours.", 480),
        ],
    ),
    Rule(
        "day-of-shift",
        "@lib@/days.awk",
        "Shifts over midnight are counted on another day than agreed.",
        [
            Option(
                "int($2 / 1440)", "All of a shift belongs to the day on which it begins.", lambda now, begin, end: begin
            ),
            Option(
                "int(now / 1440)", "A shift over midnight belongs to both days, in parts.", lambda now, begin, end: now
            ),
            Option(
                "int(($3 - 1) / 1440)",
                "All of a shift belongs to the day on which it ends.",
                lambda now, b, end: end - 1,
            ),
        ],
    ),
    numbers(
        "daily-hours",
        "@lib@/days.awk",
        "There is too much overtime, or too little.",
        (8, 9, 10),
        "> 60 * {}",
        "What is worked on a day beyond {} hours is overtime.",
    ),
    Rule(
        "night-hours",
        "@lib@/days.awk",
        "The night is too long or too short.",
        [
            Option(
                f"time >= {60 * begin} || time < {60 * end}",
                f"Night is from {begin}:00 to {end}:00.",
                (60 * begin, 60 * end),
            )
            for begin, end in ((20, 5), (22, 6), (23, 6), (22, 4))
        ],
    ),
    Rule(
        "supplements",
        "@lib@/days.awk",
        "Nights before and after Sundays are not paid as agreed.",
        [
            Option(
                "night[$1] += dark; sunday[$1] += feast",
                "At night on a Sunday, both supplements are paid.",
                lambda dark, feast: (dark, feast),
            ),
            Option(
                "night[$1] += dark && !feast; sunday[$1] += feast",
                "At night on a Sunday, the supplement of the Sunday alone is paid.",
                lambda dark, feast: (dark and not feast, feast),
            ),
            Option(
                "night[$1] += dark; sunday[$1] += feast && !dark",
                "At night on a Sunday, the supplement of the night alone is paid.",
                lambda dark, feast: (dark, feast and not dark),
            ),
        ],
    ),
    numbers(
        "allowance-hours",
        "@lib@/days.awk",
        "The allowance is paid for too many days, or too few.",
        (3, 5, 7),
        "60 * {})",
        "The allowance is paid for days with at least {} hours.",
    ),
    Rule(
        "rounding",
        "@lib@/@pay@.awk",
        "Amounts differ from those of the accountants by some cents.",
        [
            Option(
                "int(cents + 0.5)",
                "Amounts are rounded to the nearest cent, a half up.",
                lambda n, d: (2 * n + d) // (2 * d),
            ),
            Option("int(cents)", "Amounts are rounded down to a cent.", lambda n, d: n // d),
            Option(
                "int(cents / 5 + 0.5) * 5",
                "Amounts are rounded to the nearest 5 cents, a half up.",
                lambda n, d: (2 * n + 5 * d) // (10 * d) * 5,
            ),
            Option("int(cents / 10) * 10", "Amounts are rounded down to 10 cents.", lambda n, d: n // (10 * d) * 10),
        ],
    ),
    Rule(
        "tax-of-brackets",
        "@lib@/@pay@.awk",
        "The office says that the taxes are wrong.",
        [
            Option(
                "if (sum > from[n]) total += (least(sum, n < count ? from[n + 1] : sum) - from[n]) * percent[n]",
                "The percents of a bracket are for what is within it.",
                lambda cents, brackets: sum(
                    (min(cents, end) - begin) * percent
                    for (begin, percent), (end, _) in zip(brackets, [*brackets[1:], (10**12, 0)], strict=True)
                    if cents > begin
                ),
            ),
            Option(
                "if (sum > from[n]) total = sum * percent[n]",
                "The percents of the highest bracket that is reached are for the whole amount.",
                lambda cents, brackets: (
                    cents * max(percent for begin, percent in brackets if cents > begin or begin == 0)
                ),
            ),
            Option(
                "if (sum > from[n]) total = (sum - from[n]) * percent[n]",
                "The percents of the highest bracket that is reached are for what is above its begin.",
                lambda cents, brackets: max(
                    (begin, (cents - begin) * percent) for begin, percent in brackets if cents > begin or begin == 0
                )[1],
            ),
        ],
    ),
    numbers(
        "overtime-percent",
        "@lib@/@pay@.awk",
        "Overtime is not paid as agreed.",
        (25, 30, 50),
        "$8 * rate * {}",
        "The supplement of overtime is {} %.",
    ),
    numbers(
        "night-percent",
        "@lib@/@pay@.awk",
        "Work at night is not paid as agreed.",
        (20, 25, 40),
        "$9 * rate * {}",
        "The supplement of nights is {} %.",
    ),
    numbers(
        "sunday-percent",
        "@lib@/@pay@.awk",
        "Work on Sundays is not paid as agreed.",
        (50, 75, 100),
        "$10 * rate * {}",
        "The supplement of Sundays is {} %.",
    ),
    Rule(
        "sick-pay",
        "@lib@/@pay@.awk",
        "Sick days are not paid as agreed.",
        [
            Option("sick * 8 * rate * 80 / 100", "Sick days are paid at 80 %.", lambda days: days * 80),
            Option("sick * 8 * rate * 60 / 100", "Sick days are paid at 60 %.", lambda days: days * 60),
            Option("sick * 8 * rate", "Sick days are paid in full.", lambda days: days * 100),
            Option(
                "(sick > 1 ? sick - 1 : 0) * 8 * rate",
                "Sick days are paid in full, but for the first of a month.",
                lambda days: max(days - 1, 0) * 100,
            ),
        ],
    ),
    numbers(
        "pension-age",
        "@lib@/@pay@.awk",
        "Some pay for a pension who should not, or the other way round.",
        (18, 21, 25),
        ">= {}",
        "Those who are {} or older pay for the pension.",
    ),
    Rule(
        "counted-children",
        "@lib@/@pay@.awk",
        "Families get too much or too little.",
        [
            Option("family = children", "Money for children is paid for each child.", lambda n: n),
            Option(
                "family = (children > 2 ? 2 : children)",
                "Money for children is paid for two at most.",
                lambda n: min(n, 2),
            ),
            Option(
                "family = (children > 2 ? 2 * children - 2 : children)",
                "Money for children is paid for each child, and twice from the third on.",
                lambda n: max(n, 2 * n - 2),
            ),
        ],
    ),
    Rule(
        "advance",
        "@lib@/@pay@.awk",
        "Those who got a large advance do not get what was agreed.",
        [
            Option(
                "back = $13", "All of an advance is taken off, even if less than nothing is left.", lambda n, net: n
            ),
            Option("back = $13 > net ? net : $13", "Of an advance, no more than the net amount is taken off.", min),
            Option(
                "back = 2 * $13 > net ? int(net / 2) : $13",
                "Of an advance, no more than half of the net amount is taken off, rounded down to a cent.",
                lambda n, net: min(n, net // 2),
            ),
        ],
    ),
    Rule(
        "order-of-slips",
        "bin/payroll",
        "The slips are not in the order of the envelopes.",
        [
            Option('-k2,2 "$work/pay"', "Slips are sorted by name.", lambda row: row[1]),
            Option(
                '-k3,3 -k2,2 "$work/pay"', "Slips are sorted by team, and then by name.", lambda row: (row[2], row[1])
            ),
            Option(
                '-k15,15nr -k1,1 "$work/pay"',
                "Slips begin with the highest net amount; equal ones by number.",
                lambda row: (-row[14], row[0]),
            ),
            Option(
                '-k4,4n -k1,1 "$work/pay"',
                "Slips begin with the fewest hours; equal ones by number.",
                lambda row: (row[3], row[0]),
            ),
        ],
    ),
    Rule(
        "order-of-teams",
        "bin/payroll",
        "The totals of teams are in the wrong order.",
        [
            Option("-k1,1 |", "Totals are sorted by team.", lambda row: row[0]),
            Option("-k1,1r |", "Totals are sorted by team, backwards.", None),
            Option("-k2,2n |", "Totals begin with the smallest.", lambda row: row[1]),
            Option("-k2,2nr |", "Totals begin with the largest.", lambda row: -row[1]),
        ],
    ),
    Rule(
        "money",
        "@lib@/slip.awk",
        "The bank does not read the amounts.",
        [
            Option('sprintf("%d.%02d", cents / 100, cents % 100)', "An amount is such as 1250.40.", "{0}.{1:02}"),
            Option('sprintf("%d,%02d", cents / 100, cents % 100)', "An amount is such as 1250,40.", "{0},{1:02}"),
            Option(
                'sprintf("EUR%d.%02d", cents / 100, cents % 100)', "An amount is such as EUR1250.40.", "EUR{0}.{1:02}"
            ),
            Option('sprintf("%d", cents)', "An amount is such as 125040: in cents.", "{2}"),
        ],
    ),
    Rule(
        "zero-lines",
        "@lib@/slip.awk",
        "Lines are missing on slips, or there are too many.",
        [
            Option("if (cents == 0) return", "Amounts of 0 are left out, even net.", lambda label: ""),
            Option(
                'if (cents == 0 && label != "net") return',
                "Amounts of 0 are left out, but net is always there.",
                lambda label: "0" if label == "net" else "",
            ),
            Option(
                'if (cents == 0) { print "no " label; return }',
                "For an amount of 0, a line is such as `no overtime`.",
                "no {}".format,
            ),
        ],
    ),
    Rule(
        "slip-line",
        "@lib@/slip.awk",
        "The program that prints the slips does not understand them.",
        [
            Option('label ": " money(cents)', "A line of a slip is such as `tax: AMOUNT`.", "{0}: {1}"),
            Option('money(cents) " " label', "A line of a slip is such as `AMOUNT tax`.", "{1} {0}"),
            Option('label "=" money(cents)', "A line of a slip is such as `tax=AMOUNT`.", "{0}={1}"),
            Option('"- " label " " money(cents)', "A line of a slip is such as `- tax AMOUNT`.", "- {0} {1}"),
        ],
    ),
    Rule(
        "slip-title",
        "@lib@/slip.awk",
        "Slips do not reach those whom they are for.",
        [
            Option('$2 " (" $1 ")"', "The title of a slip is NAME (NUMBER).", "{1} ({0})"),
            Option('$1 " " $2', "The title of a slip is NUMBER NAME.", "{0} {1}"),
            Option('"* " $2 ", " $3', "The title of a slip is * NAME, TEAM.", "* {1}, {2}"),
            Option('$3 "/" $2', "The title of a slip is TEAM/NAME.", "{2}/{1}"),
        ],
    ),
    Rule(
        "hours",
        "@lib@/slip.awk",
        "Nobody understands the hours on the slips.",
        [
            Option(
                'sprintf("%d:%02d", $4 / 60, $4 % 60)', "Hours are such as 7:45.", lambda n: f"{n // 60}:{n % 60:02}"
            ),
            Option('sprintf("%d", $4)', "Hours are in minutes, such as 465.", str),
            Option(
                'sprintf("%dh%d", $4 / 60, $4 % 60)',
                "Hours are such as 7h45, and 7h5.",
                lambda n: f"{n // 60}h{n % 60}",
            ),
            Option('sprintf("%d", $4 / 60)', "Hours are whole ones, rounded down, such as 7.", lambda n: str(n // 60)),
        ],
    ),
)

IDENTIFIERS = (
    "person started forgotten finish unpaid spent begin end now down up step total over days dark feast festive "
    "cells rounded age duty family gross ill back rate labels line money"
)
