"""Rules that the programs of the template `claims` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

import datetime
import math
from fractions import Fraction

from ..variation import Option, Rule, numbers


def _days(number: int) -> datetime.timedelta:
    return datetime.timedelta(days=number)


def _next_month(day: datetime.date) -> datetime.date:
    return (day.replace(day=28) + _days(4)).replace(day=1)


RULES = (
    Rule(
        "amount",
        "@code@/@formats@.py",
        "The bank does not read the amounts.",
        [
            Option(
                'f"{cents // 100}.{cents % 100:02}"',
                "Amounts are printed such as 1250.05.",
                lambda francs, rest: f"{francs}.{rest:02}",
            ),
            Option(
                'f"{cents // 100:,}.{cents % 100:02}".replace(",", "\'")',
                "Amounts are printed such as 1'250.05.",
                lambda francs, rest: f"{francs:_}.{rest:02}".replace("_", "'"),
            ),
            Option(
                'f"{cents // 100},{cents % 100:02}"',
                "Amounts are printed such as 1250,05.",
                lambda francs, rest: f"{francs},{rest:02}",
            ),
            Option(
                "str(cents)", "Amounts are printed in cents, such as 125005.", lambda francs, rest: 100 * francs + rest
            ),
        ],
    ),
    Rule(
        "corrected-claim",
        "@code@/@tables@.py",
        "Claims that somebody has corrected are not treated as agreed.",
        [
            Option(
                "if claim.id in claims: continue", "Of several lines of a claim, the first holds.", lambda rows: rows[0]
            ),
            Option("claims.pop(claim.id, None)", "Of several lines of a claim, the last holds.", lambda rows: rows[-1]),
            Option(
                "if claim.id in claims and claims[claim.id].cents >= claim.cents: continue",
                "Of several lines of a claim, the one with the highest amount holds.",
                lambda rows: max(rows, key=lambda row: row.cents),
            ),
            Option(
                "if claim.id in claims and claims[claim.id].cents <= claim.cents: continue",
                "Of several lines of a claim, the one with the lowest amount holds.",
                lambda rows: min(rows, key=lambda row: row.cents),
            ),
        ],
    ),
    Rule(
        "last-insured-day",
        "@code@/covers.py",
        "Claims around the end of a policy are refused, or granted, against the agreement.",
        [
            Option("event <= policy.end", "The last day of a policy is insured, and no later one.", 0),
            Option("event < policy.end", "The last day of a policy is not insured any more.", -1),
            Option(
                "(event - policy.end).days <= 7", "A policy is in force for 7 days more after its last day, as well.", 7
            ),
            Option(
                "(event - policy.end).days <= 14",
                "A policy is in force for 14 days more after its last day, as well.",
                14,
            ),
        ],
    ),
    Rule(
        "waiting-end",
        "@code@/covers.py",
        "Waiting periods end too early or too late.",
        [
            Option(
                "counted = since",
                "The first day of a waiting period is the day from which it counts.",
                lambda since: since,
            ),
            Option(
                "counted = since + datetime.timedelta(days=1)",
                "The first day of a waiting period is the day after the one from which it counts.",
                lambda since: since + _days(1),
            ),
            Option(
                "counted = (since.replace(day=28) + datetime.timedelta(days=4)).replace(day=1)",
                "The first day of a waiting period is the first of the month after the day from which it counts.",
                _next_month,
            ),
        ],
    ),
    Rule(
        "changed-product",
        "@code@/covers.py",
        "After a change of the product, people wait too long, or not at all.",
        [
            Option(
                "since = (since or start) if has else None",
                "A waiting period counts from the change that brought the cover, and other changes do not matter.",
                "run",
            ),
            Option(
                "since = start if has else None",
                "A waiting period counts anew from each change of the product.",
                "last",
            ),
            Option(
                "since = steps[0][0] if has else None",
                "A waiting period counts from the first day of the policy, whatever its product was then.",
                "begin",
            ),
        ],
    ),
    numbers(
        "suspension-days",
        "@code@/covers.py",
        "Policies of late payers are suspended too early or too late.",
        (10, 14, 20, 30),
        "days={}",
        "A policy is suspended from the day on that is {} days after the day on which the premium was due.",
    ),
    numbers(
        "late-report",
        "@code@/covers.py",
        "Claims are called late that are not, or the other way round.",
        (16, 21, 30, 45),
        "days > {}",
        "A claim is late where more than {} days lie between event and report.",
    ),
    Rule(
        "rounding",
        "@code@/@amounts@.py",
        "Some amounts differ by a few cents from those of the accountants.",
        [
            Option("cents * part // whole", "Parts are rounded down to cents.", math.floor),
            Option("-(-cents * part // whole)", "Parts are rounded up to cents.", math.ceil),
            Option(
                "(2 * cents * part + whole) // (2 * whole)",
                "Parts are rounded to the nearest cent, a half up.",
                lambda exact: math.floor(exact + Fraction(1, 2)),
            ),
            Option(
                "cents * part // (5 * whole) * 5",
                "Parts are rounded down to 5 cents.",
                lambda exact: 5 * math.floor(exact / 5),
            ),
        ],
    ),
    Rule(
        "years-of-use",
        "@code@/@amounts@.py",
        "The worth of used things is not the one that was agreed.",
        [
            Option(
                "years_between(claim.bought, claim.event)",
                "Completed years of use count for the wear.",
                lambda whole, bought, event: whole,
            ),
            Option(
                "years_between(claim.bought, claim.event) + 1",
                "Years of use count for the wear, the one that has begun as well.",
                lambda whole, bought, event: whole + 1,
            ),
            Option(
                "claim.event.year - claim.bought.year",
                "For the wear counts by how much the calendar's year of the event is higher than that of the purchase.",
                lambda whole, bought, event: event - bought,
            ),
        ],
    ),
    numbers(
        "most-wear",
        "@code@/@amounts@.py",
        "Old things are paid with too little, or with too much.",
        (40, 50, 60, 70),
        "years, {})",
        "By wear, a thing loses {} per cent at most.",
    ),
    Rule(
        "underinsured",
        "@code@/@amounts@.py",
        "Those who are insured for less than they own get other amounts than agreed.",
        [
            Option(
                "claim.value > policy.sum",
                "An amount is reduced where the insured sum is below the value.",
                Fraction(1),
            ),
            Option(
                "10 * policy.sum < 9 * claim.value",
                "An amount is reduced where the insured sum is below 90 per cent of the value.",
                Fraction(9, 10),
            ),
            Option(
                "4 * policy.sum < 3 * claim.value",
                "An amount is reduced where the insured sum is below three quarters of the value.",
                Fraction(3, 4),
            ),
        ],
    ),
    Rule(
        "kind-of-excess",
        "@code@/@amounts@.py",
        "The excess is too high or too low.",
        [
            Option("max(fixed, part)", "The excess is the fixed one or the percentage, the higher of the two.", max),
            Option(
                "fixed + part", "The excess is the sum of the fixed one and the percentage.", lambda one, two: one + two
            ),
            Option("min(fixed, part)", "The excess is the fixed one or the percentage, the lower of the two.", min),
        ],
    ),
    Rule(
        "excess-of-event",
        "@code@/@years@.py",
        "Where much happened on a day, the excess is not taken off as agreed.",
        [
            Option("key = claim.id", "Each claim has an excess of its own.", lambda claim: claim.id),
            Option(
                "key = (claim.number, claim.event)",
                "All claims of a policy and of a day of events have one excess, that of the first.",
                lambda claim: (claim.number, claim.event),
            ),
            Option(
                "key = (claim.number, claim.event, claim.cover)",
                "The claims of a policy, a day of events and a cover have one excess, that of the first.",
                lambda claim: (claim.number, claim.event, claim.cover),
            ),
        ],
    ),
    Rule(
        "excess-and-limit",
        "@code@/@amounts@.py",
        "Large claims are paid with other amounts than agreed.",
        [
            Option(
                "min(cents, most) - own",
                "An amount is cut to the limit first, and then the excess is taken off.",
                lambda cents, most, own: min(cents, most) - own,
            ),
            Option(
                "min(cents - own, most)",
                "The excess is taken off first, and then an amount is cut to the limit.",
                lambda cents, most, own: min(cents - own, most),
            ),
            Option(
                "cents - own if cents <= most else most",
                "An amount above the limit is cut to it, without an excess.",
                lambda cents, most, own: most if cents > most else cents - own,
            ),
        ],
    ),
    numbers(
        "small-amounts",
        "@code@/@amounts@.py",
        "Small sums are paid that should not be, or the other way round.",
        (10, 20, 30, 50),
        "cents >= {}00",
        "Less than {} francs is not paid.",
    ),
    Rule(
        "insurance-year",
        "@code@/@years@.py",
        "Claims are booked in the wrong year.",
        [
            Option(
                "return claim.event.year",
                "The insurance year of a claim is the calendar's year of the event.",
                lambda begin, event, reported: event.year,
            ),
            Option(
                "return claim.event.year - "
                "((claim.event.month, claim.event.day) < (policy.begin.month, policy.begin.day))",
                "An insurance year begins on the day of the year on which the policy began, and has the number of the "
                "year in which it begins; the event decides.",
                lambda begin, event, reported: event.year - (f"{event:%m%d}" < f"{begin:%m%d}"),
            ),
            Option(
                "return claim.reported.year",
                "The insurance year of a claim is the calendar's year of the report.",
                lambda begin, event, reported: reported.year,
            ),
            Option(
                "return claim.event.year - (claim.event.month < 7)",
                "An insurance year begins in July, and has the number of the year in which it begins; the event "
                "decides.",
                lambda begin, event, reported: event.year - (event.month <= 6),
            ),
        ],
    ),
    Rule(
        "order-of-limits",
        "@code@/@years@.py",
        "Where the limit of a year is not enough, the wrong claims are paid.",
        [
            Option(
                "lambda claim: claim.event",
                "Limits of years are used in the order of events.",
                lambda claim, cents: claim.event.toordinal(),
            ),
            Option(
                "lambda claim: claim.reported",
                "Limits of years are used in the order of reports.",
                lambda claim, cents: claim.reported.toordinal(),
            ),
            Option(
                "lambda claim: int(claim.id[2:])",
                "Limits of years are used in the order of the claims' numbers.",
                lambda claim, cents: 0,
            ),
            Option(
                "lambda claim: -amounts[claim.id]",
                "Limits of years are used by the claims with the highest amounts first.",
                lambda claim, cents: -cents,
            ),
        ],
    ),
    Rule(
        "beyond-limit",
        "@code@/@years@.py",
        "Claims beyond the limit of a year are not treated as agreed.",
        [
            Option(
                "cents = min(cents, rest)", "Of a claim beyond the limit of a year, what is left of it is paid.", "part"
            ),
            Option(
                "cents = cents if cents <= rest else 0",
                "Of a claim beyond the limit of a year nothing is paid, but of a smaller one after it.",
                "smaller",
            ),
            Option(
                "closed.update([key] * (cents > rest)); cents = 0 if key in closed else cents",
                "Of a claim beyond the limit of a year nothing is paid, and of none after it in that year.",
                "none",
            ),
        ],
    ),
    Rule(
        "overpaid",
        "@code@/reports.py",
        "What is due is wrong for those who got too much.",
        [
            Option(
                'if cents != 0: yield f"{claim.id} {text_of(cents)}"',
                "What was paid too much is due with a minus.",
                "{0} -{1}",
            ),
            Option('if cents > 0: yield f"{claim.id} {text_of(cents)}"', "What was paid too much is not in `due`.", ""),
            Option(
                "if cents != 0: yield f\"{claim.id} {'back ' * (cents < 0)}{text_of(abs(cents))}\"",
                "What was paid too much is due with the word back in front.",
                "{0} back {1}",
            ),
        ],
    ),
    Rule(
        "several-reasons",
        "@code@/reports.py",
        "The letters about refused claims have reasons that were not agreed.",
        [
            Option(
                "reasons[0]", "Of several reasons, the first one of docs/data.md is printed.", lambda names: names[0]
            ),
            Option("reasons[-1]", "Of several reasons, the last one of docs/data.md is printed.", lambda n: n[-1]),
            Option('"+".join(reasons)', "Several reasons are all printed, with a + between them.", "+".join),
            Option("min(reasons)", "Of several reasons, the first one of the alphabet is printed.", min),
        ],
    ),
    Rule(
        "line-of-decision",
        "@code@/reports.py",
        "The program that writes letters does not understand the decisions.",
        [
            Option('f"{claim.id} {answer}"', "A line of `decisions` is `CLAIM ANSWER`.", "{0} {2}"),
            Option(
                'f"{claim.number}/{claim.id} {answer}"',
                "A line of `decisions` is `POLICY/CLAIM ANSWER`.",
                "{1}/{0} {2}",
            ),
            Option(
                'f"{claim.id}: {answer} ({claim.cover})"',
                "A line of `decisions` is `CLAIM: ANSWER (COVER)`.",
                "{0}: {2} ({3})",
            ),
            Option(
                'f"{answer} = {claim.number} {claim.id}"',
                "A line of `decisions` is `ANSWER = POLICY CLAIM`.",
                "{2} = {1} {0}",
            ),
        ],
    ),
    Rule(
        "order-of-holders",
        "@code@/reports.py",
        "The holders are in the wrong order.",
        [
            Option(
                "lambda name: (-costs[name], name)",
                "`holders` begins with those who cost most.",
                lambda name, count, cost: (-cost, name),
            ),
            Option(
                "lambda name: (-counts[name], name)",
                "`holders` begins with those who have most claims; equal ones by name.",
                lambda name, count, cost: (-count, name),
            ),
            Option(
                "lambda name: name.split()[::-1]",
                "`holders` is sorted by the last name, and then by the first.",
                lambda name, count, cost: name.split()[::-1],
            ),
            Option("None", "`holders` is sorted by the whole name.", lambda name, count, cost: name),
        ],
    ),
    Rule(
        "bonus-claims",
        "@code@/bonus.py",
        "Levels rise for claims that should not count, or do not rise.",
        [
            Option(
                "office.granted[claim.id] > 0",
                "For the level, those claims count of which something is granted.",
                lambda cents: cents > 0,
            ),
            Option(
                "claim.id in office.granted", "For the level, all claims count, refused ones as well.", lambda c: True
            ),
            Option(
                "office.granted[claim.id] >= 100_000",
                "For the level, those claims count of which 1'000 francs or more are granted.",
                lambda cents: cents >= 100_000,
            ),
        ],
    ),
    Rule(
        "bonus-step",
        "@code@/bonus.py",
        "Levels rise too much, or not enough.",
        [
            Option("level += 2 * count", "A level rises by 2 for each claim of a year.", lambda count: 2 * count),
            Option("level += 3 * count", "A level rises by 3 for each claim of a year.", lambda count: 3 * count),
            Option("level += 4", "A level rises by 4 for a year with claims, however many.", lambda count: 4),
            Option("level += 1 + count", "A level rises by 1 and by the number of claims of a year.", lambda c: 1 + c),
        ],
    ),
)

IDENTIFIERS = (
    "day_of years_between cents_of text_of francs tidy rows_of policies_of changes_of arrears_of claims_of payments_of "
    "recovered parser basis stored in_force steps_of product_on cover_of covered_since is_waiting "
    "is_suspended refusals steps since counted has share depreciated insured_part deduction lost fixed own most "
    "payable settle within_years year_of seen used closed granted level_of count answer counts costs"
)
