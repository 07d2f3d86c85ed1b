"""Rules that the programs of the template `statements` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers


def _money(cents: int) -> str:
    return f"{'-' * (cents < 0)}{abs(cents) // 100}.{abs(cents) % 100:02}"


RULES = (
    Rule(
        "left-out-status",
        "readers/table.py",
        "Entries of tables are missing, or there are some that are not booked.",
        [
            Option(f'"{status}"', f"Rows of tables with the status `{status}` are no entries.", status)
            for status in ("pending", "reserved", "failed", "draft")
        ],
    ),
    Rule(
        "same-entry",
        "@lib@/unique.awk",
        "Entries are there twice, or entries are missing that are alike.",
        [
            Option(
                "$1 FS $2 FS $3 FS $5",
                "Two entries are the same where account, day, amount and reference are equal.",
                lambda one: (one.account, one.date, one.cents, one.reference),
            ),
            Option(
                "$1 FS $5",
                "Two entries are the same where account and reference are equal.",
                lambda one: (one.account, one.reference),
            ),
            Option(
                "$1 FS $2 FS $3 FS plain($6)",
                "Two entries are the same where account, day, amount and text are equal; in the text, neither the case "
                "of letters nor spaces make a difference.",
                lambda one: (one.account, one.date, one.cents, one.text.lower().replace(" ", "")),
            ),
        ],
    ),
    Rule(
        "chosen-entry",
        "@lib@/unique.awk",
        "Of entries that are the same, the wrong one is printed.",
        [
            Option(
                "latest = 0",
                "Of entries that are the same, the first one is taken, in the order of the files.",
                lambda rows: rows[0],
            ),
            Option(
                "latest = 1",
                "Of entries that are the same, the last one is taken, in the order of the files.",
                lambda rows: rows[-1],
            ),
            Option(
                "latest = length($6) > longest[key]",
                "Of entries that are the same, the one with the longest text is taken.",
                lambda rows: max(rows, key=lambda one: len(one.text)),
            ),
        ],
    ),
    Rule(
        "order-of-entries",
        "bin/import",
        "The entries are in another order than agreed.",
        [
            Option(
                "-k2,2 -k5,5",
                "Entries are in the order of days, then of references.",
                lambda one: (one.date, one.reference),
            ),
            Option(
                "-k1,1 -k2,2 -k5,5",
                "Entries are in the order of accounts, then of days, then of references.",
                lambda one: (one.account, one.date, one.reference),
            ),
            Option(
                "-k3,3n -k5,5",
                "Entries are in the order of amounts, the largest expense first, then of references.",
                lambda one: (one.cents, one.reference),
            ),
            Option(
                "-k4,4 -k3,3nr -k5,5",
                "Entries are in the order of currencies, then of amounts, the largest first, then of references.",
                lambda one: (one.currency, -one.cents, one.reference),
            ),
        ],
    ),
    Rule(
        "entry-line",
        "@lib@/line.awk",
        "The program that reads the entries does not understand them any more.",
        [
            Option(
                '$2 " " money($3) " " $4 " " $5 " " $6 " (" $1 ")"',
                "An entry is such as `2025-03-14 -12.50 EUR X17 TEXT (ACCOUNT)`; `X17` is the reference.",
                lambda one: f"{one.date} {_money(one.cents)} {one.currency} {one.reference} {one.text} ({one.account})",
            ),
            Option(
                '$1 ";" $5 ";" substr($2, 9) "." substr($2, 6, 2) ".;" money($3) ";" $4 ";" $6',
                "An entry is such as `ACCOUNT;X17;14.03.;-12.50;EUR;TEXT`; `X17` is the reference.",
                lambda one: (
                    f"{one.account};{one.reference};{one.date[8:]}.{one.date[5:7]}.;{_money(one.cents)};"
                    f"{one.currency};{one.text}"
                ),
            ),
            Option(
                '$4 " " money($3) " " $2 " " $1 "/" $5 ": " $6',
                "An entry is such as `EUR -12.50 2025-03-14 ACCOUNT/X17: TEXT`; `X17` is the reference.",
                lambda one: f"{one.currency} {_money(one.cents)} {one.date} {one.account}/{one.reference}: {one.text}",
            ),
        ],
    ),
    numbers(
        "status-of-balance",
        "bin/balance",
        "The job that checks balances goes on where it should end.",
        range(2, 10),
        "status={}",
        "`bin/balance` ends with the status {} where a balance is wrong.",
    ),
    Rule(
        "rate-of-day",
        "@lib@/summary.py",
        "Amounts in other currencies are not worth what was agreed.",
        [
            Option(
                "max(day for day in rates if day <= date)",
                "An amount is converted by the last rate that is not after its day.",
                lambda days, date: max(day for day in days if day <= date),
            ),
            Option(
                "min(day for day in rates if day >= date)",
                "An amount is converted by the first rate that is not before its day.",
                lambda days, date: min(day for day in days if day >= date),
            ),
            Option(
                "min(day for day in rates if day[:7] == date[:7])",
                "An amount is converted by the first rate of its month.",
                lambda days, date: min(day for day in days if day[:7] == date[:7]),
            ),
            Option(
                "max(day for day in rates if day[:7] == date[:7])",
                "An amount is converted by the last rate of its month.",
                lambda days, date: max(day for day in days if day[:7] == date[:7]),
            ),
        ],
    ),
    Rule(
        "chosen-category",
        "@lib@/summary.py",
        "Entries that fit several categories are in the wrong one.",
        [
            Option("matches[0]", "Of several patterns that fit, the first one counts.", lambda rows: rows[0]),
            Option("matches[-1]", "Of several patterns that fit, the last one counts.", lambda rows: rows[-1]),
            Option(
                "max(matches, key=lambda match: len(match[0]))",
                "Of several patterns that fit, the longest one counts, and of equally long ones the first.",
                lambda rows: max(rows, key=lambda row: len(row[0])),
            ),
        ],
    ),
    Rule(
        "other-category",
        "@lib@/summary.py",
        "Entries that fit no category are in the wrong one.",
        [
            Option(f'"{name}"', f"An entry that no pattern fits is in the category `{name}`.", name)
            for name in ("other", "unknown", "rest", "various")
        ],
    ),
    Rule(
        "rounding",
        "@lib@/summary.py",
        "Sums in other currencies are wrong by a few cents.",
        [
            Option(
                "rounding=ROUND_HALF_UP",
                "Converted amounts are rounded to cents, half a cent away from zero.",
                "ROUND_HALF_UP",
            ),
            Option(
                "rounding=ROUND_HALF_EVEN",
                "Converted amounts are rounded to cents, half a cent to even ones.",
                "ROUND_HALF_EVEN",
            ),
            Option("rounding=ROUND_DOWN", "Converted amounts are rounded to cents, towards zero.", "ROUND_DOWN"),
        ],
    ),
    numbers(
        "small-amounts",
        "@lib@/summary.py",
        "Small amounts are in the sums, or larger ones are not.",
        (100, 200, 500, 1000),
        "if abs(base) < {}: continue",
        "Amounts of fewer than {} cents of @base@ (after the conversion) are not in the sums.",
    ),
    Rule(
        "transfers",
        "@lib@/summary.py",
        "What we move between our own accounts is not treated as agreed.",
        [
            Option("category = None", "An entry whose text has one of our own accounts as a word is in no sum.", None),
            Option(
                'category = "transfer"',
                "An entry whose text has one of our own accounts as a word is in the category `transfer`.",
                lambda category: "transfer",
            ),
            Option(
                'category += "*"',
                "An entry whose text has one of our own accounts as a word is in a category with `*` behind "
                "the name of the one it would be in.",
                lambda category: f"{category}*",
            ),
        ],
    ),
    Rule(
        "summary-line",
        "@lib@/summary.py",
        "The sums are not printed as agreed.",
        [
            Option('f"{month} {category} {total}"', "A sum is such as `2025-03 food -4550`.", "{0}-{1} {2} {3}"),
            Option(
                'f"{category}: {total} ({month[5:]}/{month[:4]})"',
                "A sum is such as `food: -4550 (03/2025)`.",
                "{2}: {3} ({1}/{0})",
            ),
            Option(
                'f"{total};{month[5:]}.{month[:4]};{category}"',
                "A sum is such as `-4550;03.2025;food`.",
                "{3};{1}.{0};{2}",
            ),
        ],
    ),
)

IDENTIFIERS = (
    "sum opening closing gap raw entries cents parts open_entry total inside trimmed entry longest latest plain "
    "money lines rates patterns matches own sums whole cells"
)
