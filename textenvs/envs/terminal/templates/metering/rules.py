"""Rules that the programs of the template `metering` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

import math
from fractions import Fraction

from ..variation import Option, Rule, numbers

_HALF = Fraction(1, 2)

RULES = (
    Rule(
        "decimals",
        "@lib@/@common@.awk",
        "The registers of the meters that send their readings differ by 1 from what was agreed.",
        [
            Option("int(text)", "The decimals of a reading are cut off.", math.floor),
            Option(
                "int(text + 0.5)",
                "A reading is rounded to the nearest integer, a half up.",
                lambda exact: math.floor(exact + _HALF),
            ),
            Option("int(text) + (text + 0 > int(text))", "A reading with decimals is rounded up.", math.ceil),
        ],
    ),
    Rule(
        "same-day",
        "@lib@/@daily@.awk",
        "Where a register was read twice on a day, the wrong reading counts.",
        [
            Option(
                "return 0", "Of several readings of a register on a day, the first counts.", lambda rows: rows[0][1]
            ),
            Option(
                "return 1", "Of several readings of a register on a day, the last counts.", lambda rows: rows[-1][1]
            ),
            Option(
                "return new > old",
                "Of several readings of a register on a day, the highest counts.",
                lambda rows: max(value for _, value in rows),
            ),
            Option(
                "return new < old",
                "Of several readings of a register on a day, the lowest counts.",
                lambda rows: min(value for _, value in rows),
            ),
            Option(
                'return source == "round"',
                "Of several readings of a register on a day, the one of a round counts, or else the first.",
                lambda rows: [*(value for source, value in rows if source == "round"), rows[0][1]][0],
            ),
        ],
    ),
    numbers(
        "rollover",
        "@lib@/@totals@.awk",
        "Registers that begin again are called doubtful, or doubtful ones are billed.",
        (50, 80, 90, 95),
        "100 * last[key] >= {} * range[$1]",
        "A register that went backwards has begun again where the reading before was at {} per cent of its range at "
        "least.",
    ),
    numbers(
        "high-use",
        "@lib@/@totals@.awk",
        "Readings are called doubtful that are not, or the other way round.",
        (60, 80, 100, 150),
        "days * {}",
        "More than {} kilowatt hours a day are doubtful.",
    ),
    Rule(
        "weight-of-days",
        "sql/10-calendar.sql",
        "Estimates are not distributed over the days as agreed.",
        [
            Option("day, 1", "In estimates, all days have the same weight.", lambda day, profile: 1),
            Option(
                "day, CASE WHEN strftime('%m', day) IN ('11', '12', '01', '02') THEN 3 ELSE 1 END",
                "In estimates, a day from November to February has the weight of three others.",
                lambda day, profile: 3 if day.month in (11, 12, 1, 2) else 1,
            ),
            Option(
                "day, CASE WHEN strftime('%w', day) IN ('0', '6') THEN 2 ELSE 1 END",
                "In estimates, a Saturday or Sunday has the weight of two other days.",
                lambda day, profile: 2 if day.weekday() > 4 else 1,
            ),
            Option(
                "day, (SELECT weight FROM profile WHERE month = strftime('%m', day))",
                "In estimates, a day has the weight of its month in `etc/profile.tsv`.",
                lambda day, profile: profile[day.month - 1],
            ),
        ],
    ),
    Rule(
        "after-last",
        "sql/@marks@.sql",
        "The use after the last reading is not estimated as agreed.",
        [
            Option(
                "SELECT MAX(t.day)",
                "After the last reading, a register goes on as between the last two readings.",
                "last",
            ),
            Option(
                "SELECT MIN(t.day)",
                "After the last reading, a register goes on as between the first reading and the last.",
                "first",
            ),
            Option(
                "SELECT NULL", "After the last reading, a register stands still until there is another one.", "none"
            ),
        ],
    ),
    Rule(
        "rounded-estimate",
        "sql/@levels@.sql",
        "Estimates differ by 1 from what was agreed.",
        [
            Option("gain * part / whole", "Estimates are rounded down.", math.floor),
            Option(
                "(2 * gain * part + whole) / (2 * whole)",
                "Estimates are rounded to the nearest integer, a half up.",
                lambda exact: math.floor(exact + _HALF),
            ),
            Option("(gain * part + whole - 1) / whole", "Estimates are rounded up.", math.ceil),
        ],
    ),
    Rule(
        "price-day",
        "sql/@prices@.sql",
        "Where the tariff changes in a year, the energy has a wrong price.",
        [
            Option("o.day <= p.day", "Energy has the price of the day on which it is used.", "piece"),
            Option("o.day <= s.first", "The energy of a year has the price of its first day.", "first"),
            Option("o.day < s.after", "The energy of a year has the price of its last day.", "last"),
        ],
    ),
    Rule(
        "single-price",
        "sql/@prices@.sql",
        "Customers with one register pay a price that was not agreed.",
        [
            Option("ELSE t.high", "The price of register T is the one by day.", lambda high, low: high),
            Option(
                "ELSE (t.high + t.low) / 2",
                "The price of register T is the mean of those by day and by night, rounded down to a hundredth of a "
                "rappen.",
                lambda high, low: (high + low) // 2,
            ),
            Option(
                "ELSE (2 * t.high + t.low) / 3",
                "The price of register T is two thirds of the one by day and a third of the one by night, rounded down "
                "to a hundredth of a rappen.",
                lambda high, low: (2 * high + low) // 3,
            ),
            Option(
                "ELSE t.low + 300",
                "The price of register T is 3 rappen more than by night.",
                lambda high, low: low + 300,
            ),
        ],
    ),
    Rule(
        "base-fee",
        "sql/@fees@.sql",
        "The base fee of those who came or went during the year is wrong.",
        [
            Option(
                "(strftime('%m', date(k.until, '-1 day')) - strftime('%m', k.begin) + 1) * t.base",
                "The base fee is for each month in which a customer has a meter.",
                lambda months, base: base * len(months),
            ),
            Option(
                "max(12 * (strftime('%Y', k.until) - strftime('%Y', k.begin)) + strftime('%m', k.until) - "
                "strftime('%m', k.begin) - (strftime('%d', k.begin) > '01'), 0) * t.base",
                "The base fee is for each month on all of whose days a customer has a meter.",
                lambda months, base: base * sum(days == length for days, length in months),
            ),
            Option(
                "CAST(julianday(k.until) - julianday(k.begin) AS INTEGER) * 12 * t.base / 365",
                "The base fee is 12 times the fee of a month, times the days with a meter, by 365, rounded down.",
                lambda months, base: 12 * base * sum(days for days, _ in months) // 365,
            ),
        ],
    ),
    Rule(
        "large-use",
        "sql/@bills@.sql",
        "Large customers do not get off what was agreed.",
        [
            Option(
                "(e.kwh >= r.large) * r.reduction * e.kwh",
                "A large customer gets the reduction for all kilowatt hours.",
                lambda kwh, large, off, fee: off * kwh if kwh >= large else 0,
            ),
            Option(
                "r.reduction * max(e.kwh - r.large, 0)",
                "A large customer gets the reduction for the kilowatt hours above the limit.",
                lambda kwh, large, off, fee: off * max(kwh - large, 0),
            ),
            Option(
                "(e.kwh >= r.large) * 100 * f.fee",
                "A large customer gets no reduction for kilowatt hours, but the amount of the base fee off the energy.",
                lambda kwh, large, off, fee: 100 * fee if kwh >= large else 0,
            ),
        ],
    ),
    Rule(
        "levied",
        "sql/@bills@.sql",
        "The levy is not on what was agreed.",
        [
            Option("r.levy * e.kwh", "The levy is on all kilowatt hours.", lambda kwh, night: kwh),
            Option(
                "r.levy * (e.kwh - e.night)", "The levy is not on those of register N.", lambda kwh, night: kwh - night
            ),
            Option(
                "r.levy * max(e.kwh - 1000, 0)",
                "The first 1,000 kilowatt hours of a year have no levy.",
                lambda kwh, night: max(kwh - 1000, 0),
            ),
        ],
    ),
    Rule(
        "taxed",
        "sql/@bills@.sql",
        "The tax is wrong.",
        [
            Option(
                "tax * (energy + fee + levy)",
                "The tax is on all of a bill.",
                lambda energy, fee, levy: energy + fee + levy,
            ),
            Option("tax * (energy + fee)", "The tax is on all but the levy.", lambda energy, fee, levy: energy + fee),
            Option("tax * energy", "The tax is on the energy alone.", lambda energy, fee, levy: energy),
            Option(
                "tax * (energy + levy)", "The tax is on all but the base fee.", lambda energy, fee, levy: energy + levy
            ),
        ],
    ),
    Rule(
        "rounded-total",
        "sql/@bills@.sql",
        "Bills differ by a few rappen from those of the accountants.",
        [
            Option("exact / 100000", "A bill is rounded down to a rappen.", math.floor),
            Option(
                "(exact + 50000) / 100000",
                "A bill is rounded to the nearest rappen, a half up.",
                lambda exact: math.floor(exact + _HALF),
            ),
            Option(
                "(exact + 250000) / 500000 * 5",
                "A bill is rounded to the nearest 5 rappen, a half up.",
                lambda exact: 5 * math.floor(exact / 5 + _HALF),
            ),
            Option(
                "(exact + 499999) / 500000 * 5",
                "A bill is rounded up to 5 rappen.",
                lambda exact: 5 * math.ceil(exact / 5),
            ),
        ],
    ),
    Rule(
        "payments-of-year",
        "sql/@bills@.sql",
        "Payments count for a wrong year.",
        [
            Option(
                "p.day >= s.first AND p.day < s.after",
                "A payment counts for the year of its day.",
                lambda day, meant: day.year,
            ),
            Option(
                "p.day >= date(s.first, '+31 days') AND p.day < date(s.after, '+31 days')",
                "A payment counts for the year of its day, but one of January for the year before.",
                lambda day, meant: day.year - (day.month == 1),
            ),
            Option(
                "p.year = strftime('%Y', s.first) + 0",
                "A payment counts for the year that it is meant for.",
                lambda day, meant: meant,
            ),
        ],
    ),
    numbers(
        "small-balance",
        "reports/balance.sql",
        "Small sums are asked for, or larger ones are not.",
        (2, 5, 10, 20),
        "cents) < {}00",
        "Where less than {} francs are due, or are to be paid back, `balance` has 0.",
    ),
    numbers(
        "instalments",
        "reports/plan.sql",
        "The instalments of the next year do not add up to the bill.",
        (3, 4, 6, 10, 12),
        "cents / {}",
        "A bill becomes {} instalments of the next year; first, the rappen of one are cut off behind the point.",
    ),
    Rule(
        "instalment-step",
        "reports/plan.sql",
        "Instalments are not rounded as agreed.",
        [
            Option(
                "(part + 99) / 100 * 100", "An instalment is rounded up to a franc.", lambda part: -(-part // 100) * 100
            ),
            Option(
                "(part + 250) / 500 * 500",
                "An instalment is rounded to the nearest 5 francs, a half up.",
                lambda part: (2 * part + 500) // 1000 * 500,
            ),
            Option(
                "part / 1000 * 1000", "An instalment is rounded down to 10 francs.", lambda part: part - part % 1000
            ),
            Option(
                "(part + 499) / 500 * 500",
                "An instalment is rounded up to 5 francs.",
                lambda part: -(-part // 500) * 500,
            ),
        ],
    ),
    numbers(
        "gap-days",
        "reports/gaps.sql",
        "Gaps are reported that are none, or not reported.",
        (100, 150, 200, 370),
        "> {}",
        "A gap is more than {} days without a reading.",
    ),
    Rule(
        "amount",
        "@lib@/@load@.py",
        "The bank does not read the amounts.",
        [
            Option('f"{cents // 100}.{cents % 100:02}"', "Amounts are such as 1250.05.", "{0}.{1:02}"),
            Option('f"{cents // 100},{cents % 100:02} Fr."', "Amounts are such as 1250,05 Fr.", "{0},{1:02} Fr."),
            Option('f"{cents // 100:,}.{cents % 100:02}"', "Amounts are such as 1,250.05.", "{0:,}.{1:02}"),
            Option('f"Fr. {cents // 100}.{cents % 100:02}"', "Amounts are such as Fr. 1250.05.", "Fr. {0}.{1:02}"),
        ],
    ),
    Rule(
        "line-of-bills",
        "reports/bills.sql",
        "The printer of the bills does not find what it needs.",
        [
            Option(
                "c.name, b.kwh, money(b.cents)",
                "`bills` has name, kilowatt hours and amount.",
                ("name", "kwh", "cents"),
            ),
            Option(
                "b.customer, money(b.cents), b.kwh",
                "`bills` has customer, amount and kilowatt hours.",
                ("id", "cents", "kwh"),
            ),
            Option(
                "b.customer, c.name, money(b.cents)", "`bills` has customer, name and amount.", ("id", "name", "cents")
            ),
            Option(
                "c.zone, b.customer, b.kwh, money(b.cents)",
                "`bills` has zone, customer, kilowatt hours and amount.",
                ("zone", "id", "kwh", "cents"),
            ),
        ],
    ),
    Rule(
        "order-of-bills",
        "reports/bills.sql",
        "The bills are in the wrong order for the envelopes.",
        [
            Option("ORDER BY b.kwh DESC", "`bills` begins with the largest use.", lambda row: -row["kwh"]),
            Option("ORDER BY b.cents", "`bills` begins with the lowest amount.", lambda row: row["cents"]),
            Option("ORDER BY c.name", "`bills` is sorted by name.", lambda row: row["name"]),
            Option("ORDER BY c.zone", "`bills` is sorted by zone, and then by customer.", lambda row: row["zone"]),
        ],
    ),
    Rule(
        "row-mark",
        "@lib@/@load@.py",
        "The tables of the office have one column alone.",
        [
            Option(f'print("{mark}".join(', f"Between the values of a line stands `{mark}`.", mark)
            for mark in (" | ", ";", " / ", ", ")
        ],
    ),
)

IDENTIFIERS = (
    "plain iso entry parts stamp pair better flush current now accepted in_service counter used seen cells money "
    "insert tables_of load lines settings pairs query row rows"
)
