"""Rules that the programs of the template `ledger` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from collections.abc import Callable

from ..variation import Option, Rule, numbers


def _fiscal_year(begin: int) -> Callable[[str], str]:
    return lambda date: str(int(date[:4]) + (int(date[5:7]) >= begin))


RULES = (
    Rule(
        "rate-of-day",
        "@code@/rates.py",
        "Amounts in other currencies are converted at the rate of the wrong day.",
        [
            Option(
                "max(row for row in rows if row[0] <= date)",
                "A currency is converted at its last rate up to and including the day of the entry.",
                lambda rows, date: max(row for row in rows if row[0] <= date),
            ),
            Option(
                "max(row for row in rows if row[0] < date)",
                "A currency is converted at its last rate before the day of the entry.",
                lambda rows, date: max(row for row in rows if row[0] < date),
            ),
            Option(
                "min(row for row in rows if row[0] >= date)",
                "A currency is converted at its first rate since the day of the entry, including it.",
                lambda rows, date: min(row for row in rows if row[0] >= date),
            ),
            Option(
                "min(row for row in rows if row[0] > date)",
                "A currency is converted at its first rate after the day of the entry.",
                lambda rows, date: min(row for row in rows if row[0] > date),
            ),
            Option(
                "min(row for row in rows if row[0][:7] == date[:7])",
                "A currency is converted at its first rate in the month of the entry.",
                lambda rows, date: min(row for row in rows if row[0][:7] == date[:7]),
            ),
        ],
    ),
    Rule(
        "rounded-conversion",
        "@code@/rates.py",
        "Converted amounts differ from those of the bank by a few cents.",
        [
            Option(
                "((product + 5_000) // 10_000)",
                "A converted amount is rounded to the nearest cent, halves away from zero.",
                lambda product: (product + 5_000) // 10_000,
            ),
            Option(
                "(product // 10_000)",
                "A converted amount is rounded to a cent towards zero.",
                lambda product: product // 10_000,
            ),
            Option(
                "(-(-product // 10_000))",
                "A converted amount is rounded to a cent away from zero.",
                lambda product: -(-product // 10_000),
            ),
            Option(
                "((product + 25_000) // 50_000 * 5)",
                "A converted amount is rounded to the nearest 5 cents, halves away from zero.",
                lambda product: (product + 25_000) // 50_000 * 5,
            ),
        ],
    ),
    Rule(
        "counted-states",
        "@code@/report.py",
        "Entries are counted that should not be, or some are missing.",
        [
            Option('state == "*"', "Entries with the state `*` count, those with `!` or `?` do not.", "*"),
            Option('state in "*!"', "Entries with the state `*` or `!` count, those with `?` do not.", "*!"),
            Option('state in "*?"', "Entries with the state `*` or `?` count, those with `!` do not.", "*?"),
            Option('state in "*!?"', "Entries count in every state: `*`, `!` and `?`.", "*!?"),
        ],
    ),
    Rule(
        "money",
        "@code@/report.py",
        "The program that reads the reports does not understand the amounts any more.",
        [
            Option('f"{sign}{whole}.{part:02}"', "Amounts are printed such as -1250.00.", "{0}{1}.{2:02}"),
            Option('f"{sign}{whole:,}.{part:02}"', "Amounts are printed such as -1,250.00.", "{0}{1:,}.{2:02}"),
            Option('f"{whole}.{part:02}{sign}"', "Amounts are printed such as 1250.00-.", "{1}.{2:02}{0}"),
            Option('f"{sign}{whole},{part:02}"', "Amounts are printed such as -1250,00.", "{0}{1},{2:02}"),
            Option('f"{sign}{whole:_}.{part:02}"', "Amounts are printed such as -1_250.00.", "{0}{1:_}.{2:02}"),
        ],
    ),
    numbers(
        "depth-of-balances",
        "@code@/report.py",
        "The balances are too detailed, or not detailed enough.",
        (2, 3, 4),
        "< {} and",
        "`balances` lists accounts of up to {} parts: a:b has two. A part has the sum of what is below it.",
    ),
    Rule(
        "small-balances",
        "@code@/report.py",
        "Accounts are missing from the balances, or some are in them that nobody needs.",
        [
            Option("value != 0", "`balances` leaves out accounts with a balance of zero.", 1),
            Option(
                "abs(value) >= 100", "`balances` leaves out accounts with less than 1.00, above or below zero.", 100
            ),
            Option(
                "abs(value) >= 500", "`balances` leaves out accounts with less than 5.00, above or below zero.", 500
            ),
            Option("value is not None", "`balances` has accounts with a balance of zero as well.", 0),
        ],
    ),
    Rule(
        "order-of-accounts",
        "@code@/report.py",
        "The balances are in the wrong order.",
        [
            Option("row: row[0])", "`balances` is sorted by name.", lambda name, value: name),
            Option(
                "row: (-row[1], row[0]))",
                "`balances` begins with the largest balance (before signs are changed); equal ones by name.",
                lambda name, value: (-value, name),
            ),
            Option(
                "row: (row[1], row[0]))",
                "`balances` begins with the smallest balance (before signs are changed); equal ones by name.",
                lambda name, value: (value, name),
            ),
            Option(
                'row: (row[0].count(":"), row[0]))',
                "`balances` begins with the accounts of one part, then those of two, and so on; each by name.",
                lambda name, value: (name.count(":"), name),
            ),
        ],
    ),
    Rule(
        "shown-sign",
        "@code@/report.py",
        "Balances have the wrong sign.",
        [
            Option(
                "shown = value", "`balances` prints balances as they are, income below zero.", lambda name, value: value
            ),
            Option(
                'shown = 0 - value if name.startswith("income") else value',
                "`balances` changes the sign of income.",
                lambda name, value: -value if name.startswith("income") else value,
            ),
            Option(
                'shown = 0 - value if name.startswith(("income", "liabilities")) else value',
                "`balances` changes the sign of income and liabilities.",
                lambda name, value: -value if name.startswith(("income", "liabilities")) else value,
            ),
            Option("shown = 0 - value", "`balances` changes the sign of every account.", lambda name, value: -value),
        ],
    ),
    Rule(
        "order-of-day",
        "@code@/report.py",
        "Within a day, the lines of a statement are in the wrong order.",
        [
            Option(
                "(row[0], row[1])", "Of one day, `statement` sorts postings by reference.", lambda row: row.reference
            ),
            Option("(row[0], row[2])", "Of one day, `statement` sorts postings by payee.", lambda row: row.payee),
            Option(
                "(row[0], row[4])", "Of one day, `statement` lists the smallest amount first.", lambda row: row.value
            ),
            Option(
                "(row[0], -row[4])", "Of one day, `statement` lists the largest amount first.", lambda row: -row.value
            ),
        ],
    ),
    Rule(
        "sides",
        "@code@/report.py",
        "The side of a posting is not called as agreed.",
        [
            Option(f'("{debit}", "{credit}")', f"A posting above zero is called `{debit}`, one below `{credit}`.", pair)
            for pair in (("debit", "credit"), ("D", "C"), ("in", "out"), ("Dr", "Cr"), ("left", "right"))
            for debit, credit in [pair]
        ],
    ),
    Rule(
        "statement-line",
        "@code@/report.py",
        "The program that reads the statements does not understand them any more.",
        [
            Option(
                'f"{date} {reference} {payee} {side} {money(abs(value))} {money(total)}"',
                "A line of `statement` is DATE REFERENCE PAYEE SIDE AMOUNT TOTAL, the amount without a sign.",
                "{0} {1} {2} {3} {4} {6}",
            ),
            Option(
                'f"{date} {side} {money(abs(value))} {payee} ({reference}) {money(total)}"',
                "A line of `statement` is DATE SIDE AMOUNT PAYEE (REFERENCE) TOTAL, the amount without a sign.",
                "{0} {3} {4} {2} ({1}) {6}",
            ),
            Option(
                'f"{reference} {date} {payee} {money(value)} {side} {money(total)}"',
                "A line of `statement` is REFERENCE DATE PAYEE AMOUNT SIDE TOTAL, the amount with its sign.",
                "{1} {0} {2} {5} {3} {6}",
            ),
            Option(
                'f"{date}|{payee}|{reference}|{side}|{money(value)}|{money(total)}"',
                "A line of `statement` is DATE|PAYEE|REFERENCE|SIDE|AMOUNT|TOTAL, the amount with its sign.",
                "{0}|{2}|{1}|{3}|{5}|{6}",
            ),
        ],
    ),
    numbers(
        "tolerance",
        "@code@/report.py",
        "Entries are reported that are right, or wrong ones are not.",
        range(6),
        "abs(difference) > {}",
        "`check` lists entries in which no amount was left out, and whose sum is more than {} cents away from zero.",
    ),
    Rule(
        "unbalanced-line",
        "@code@/report.py",
        "The program that reads the list of wrong entries does not understand it any more.",
        [
            Option('f"{reference} {money(difference)}"', "A line of `check` is REFERENCE SUM.", "{0} {1}"),
            Option('f"{money(difference)} in {reference}"', "A line of `check` is SUM in REFERENCE.", "{1} in {0}"),
            Option('f"{reference}: {difference}"', "A line of `check` is REFERENCE: SUM, in cents.", "{0}: {2}"),
            Option('f"{reference};{-difference}"', "A line of `check` is REFERENCE;MISSING, in cents.", "{0};{3}"),
        ],
    ),
    Rule(
        "period",
        "@code@/months.awk",
        "The periods are not those that were agreed.",
        [
            Option("substr($1, 1, 7)", "`months` sums by month, such as 2024-05.", lambda date: date[:7]),
            Option(
                'substr($1, 1, 4) "Q" int((month + 2) / 3)',
                "`months` sums by quarter, such as 2024Q2.",
                lambda date: f"{date[:4]}Q{(int(date[5:7]) + 2) // 3}",
            ),
            *(
                Option(
                    f"substr($1, 1, 4) + (month >= {begin})",
                    f"`months` sums by business year, from {name} on, called after the year of its end.",
                    _fiscal_year(begin),
                )
                for begin, name in ((3, "March"), (6, "June"), (9, "September"))
            ),
        ],
    ),
    Rule(
        "figure-of-period",
        "@code@/months.awk",
        "The figures of the periods mean something else than before.",
        [
            Option("+= $3", "`months` has the sum of the postings of a period.", lambda cents: cents),
            Option(
                "+= $3 < 0 ? -$3 : $3",
                "`months` has the turnover of a period: amounts are added without their sign.",
                abs,
            ),
            Option(
                "+= $3 > 0 ? $3 : 0",
                "`months` has the sum of the postings above zero of a period.",
                lambda cents: max(cents, 0),
            ),
            Option(
                "+= $3 < 0 ? $3 : 0",
                "`months` has the sum of the postings below zero of a period.",
                lambda cents: min(cents, 0),
            ),
        ],
    ),
    Rule(
        "period-line",
        "@code@/months.awk",
        "The program that reads the periods does not understand them any more.",
        [
            Option("%s %.2f", "A line of `months` is such as `PERIOD 12.50`.", "{0} {1:.2f}"),
            Option("%s: %.2f", "A line of `months` is such as `PERIOD: 12.50`.", "{0}: {1:.2f}"),
            Option("%s;%.1f", "A line of `months` is such as `PERIOD;12.5`.", "{0};{1:.1f}"),
            Option("%s=%.3f", "A line of `months` is such as `PERIOD=12.500`.", "{0}={1:.3f}"),
        ],
    ),
    Rule(
        "order-of-periods",
        "bin/ledger",
        "The periods are in the wrong order.",
        [
            Option("| sort\n", "`months` lists the earliest period first.", False),
            Option("| sort -r\n", "`months` lists the latest period first.", True),
        ],
    ),
)

IDENTIFIERS = (
    "cached make folder words lines prices seen sign whole part codes base result names old new account amount "
    "value currency rows date rate product postings values complete accounts state reference payee sums until "
    "parts depth shown inside total side difference month"
)
