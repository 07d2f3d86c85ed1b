"""Files of the template `claims`; what stands between @ is drawn."""

CLAIMS = """#!/bin/sh
# Prints reports on claims. Usage: bin/claims FOLDER DAY REPORT...
root=$(cd "$(dirname "$0")/.." && pwd)
exec python3 -S -E -X utf8 "$root/@code@/main.py" "$@"
"""

MAIN = """import sys
from pathlib import Path

import reports
from @formats@ import day_of
from @office@ import Office


def main(folder, day, *names):
    office = Office(Path(folder), day_of(day))
    for name in names:
        print(f"[{name}]")
        for text in reports.REPORTS[name](office):
            print(text)


main(*sys.argv[1:])
"""

FORMATS_HEAD = '''"""Days and amounts, as they are written in tables and reports."""
import datetime
'''
FORMATS = '''

def day_of(text):
    """Return a day such as 2025-03-31 or 31.03.2025, or None where there is no text."""
    if not text:
        return None
    if "." in text:
        first, second, third = text.split(".")
        return datetime.date(int(third), int(second), int(first))
    return datetime.date.fromisoformat(text)


def years_between(begin, day):
    """Return the completed years from one day to another."""
    return day.year - begin.year - ((day.month, day.day) < (begin.month, begin.day))


def cents_of(text):
    """Return the cents of an amount such as 1'250.5 or 80."""
    francs, _, rest = text.replace("'", "").partition(".")
    return int(francs) * 100 + int(rest.ljust(2, "0"))


def text_of(cents):
    sign, cents = "-" if cents < 0 else "", abs(cents)
    return sign + @amount@
'''

TABLES_HEAD = '''"""Tables of an office, which two programs write: docs/data.md."""
import csv
@imports@from collections import Counter@counter@

from settings import section
'''
TABLES = '''
@records@
MARKS = {"delimiter": ";", "quotechar": '"'}


def tidy(text):
    return " ".join(text.split())


def rows_of(path):
    """Yield the rows of a table, by the names of its columns."""
    @rows@


def policies_of(folder):
    policies = {}
    for row in rows_of(folder / "policies.csv"):
        begin, end = day_of(row["begin"]), day_of(row["end"])
        policies[row["number"]] = Policy(
            row["number"], row["holder"], row["product"], begin, end, cents_of(row["sum"] or "0")
        )
    return policies


def changes_of(folder):
    """Return days and products, by policy."""
    changes = {}
    for row in rows_of(folder / "changes.csv"):
        changes.setdefault(row["number"], []).append((day_of(row["day"]), row["product"]))
    return changes


def arrears_of(folder):
    """Return the times in which premiums were due, by policy; the end is None where they still are."""
    arrears = {}
    for row in rows_of(folder / "arrears.csv"):
        arrears.setdefault(row["number"], []).append((day_of(row["from"]), day_of(row["to"])))
    return arrears


def claims_of(folder, today):
    """Return the claims that were reported until a day."""
    claims = {}
    for row in rows_of(folder / "claims.csv"):
        claim = Claim(
            row["claim"],
            row["number"],
            row["cover"].lower(),
            day_of(row["event"]),
            day_of(row["reported"]),
            cents_of(row["amount"]),
            cents_of(row["value"] or "0"),
            day_of(row["bought"]),
        )
        if claim.reported > today:
            continue
        @corrected_claim@
        claims[claim.id] = claim
    return sorted(claims.values(), key=lambda claim: int(claim.id.partition("-")[2]))


def payments_of(folder, today):
    """Return the cents that were paid, and those that came back from somebody else, by claim."""
    signs = section("@kinds@", "signs")
    paid, recovered = Counter(), Counter()
    for row in rows_of(folder / "payments.csv"):
        kind, cents = row["kind"].lower(), cents_of(row["amount"])
        if day_of(row["day"]) > today:
            continue
        @sum_of_payments@
    return paid, recovered
'''

SETTINGS = '''"""Settings in etc/."""
import configparser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def section(file, name):
    """Return the numbers of a section, by key."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "etc" / f"{file}.ini", encoding="utf-8")
    return {key: int(value) for key, value in parser[name].items()}
'''

PRODUCTS = '''"""Products and their covers: docs/products.md."""
import configparser
import hashlib
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "etc" / "products" / "current"
STORED = ROOT / "var" / "products.json"


def read(name):
    """Return the covers of a product, with those of the product that it extends."""
    parser = configparser.ConfigParser(inline_comment_prefixes=["#"], interpolation=None)
    parser.read(FOLDER / f"{name}.ini", encoding="utf-8")
    covers, basis = {}, parser["product"].get("extends")
    if basis:
        covers.update(read(basis))
    for cover in parser.sections():
        if cover == "product":
            continue
        if parser.has_option(cover, "dropped"):
            covers.pop(cover, None)
        else:
            covers[cover] = {**covers.get(cover, {}), **parser[cover]}
    return covers


def load():
    """Return all products; the file of an earlier run is used where nothing is different since."""
    paths = sorted(FOLDER.glob("*.ini"))
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    texts = [path.read_text(encoding="utf-8") for path in paths]
    digest = hashlib.sha256("".join(texts).encode()).hexdigest()
    if stored["digest"] == digest:
        return stored["covers"]
    return {path.stem: read(path.stem) for path in paths}
'''

COVERS = '''"""Why a claim is refused."""
import datetime


def in_force(policy, event):
    return policy.begin <= event and (policy.end is None or @last_insured_day@)


def steps_of(policy, changes):
    """Return the products of a policy with their first days."""
    return [(policy.begin, policy.product), *sorted(changes.get(policy.number, []))]


def product_on(steps, event):
    @product_on@


def cover_of(office, claim):
    """Return the cover of a claim on the day of its event, or None."""
    steps = steps_of(office.policies[claim.number], office.changes)
    return office.products[product_on(steps, claim.event)].get(claim.cover)


def covered_since(office, claim):
    """Return the day from which the waiting period of a claim's cover counts."""
    steps, since = steps_of(office.policies[claim.number], office.changes), None
    for start, product in steps:
        if start > claim.event:
            break
        has = claim.cover in office.products[product]
        @changed_product@
    return since


def is_waiting(office, claim, cover):
    days = int(cover["waiting"])
    if days == 0:
        return False
    since, event = covered_since(office, claim), claim.event
    @waiting_end@
    return event < counted + datetime.timedelta(days=days)


def is_suspended(arrears, event):
    for start, end in arrears:
        first = start + datetime.timedelta(@suspension_days@)
        if first <= event and (end is None or event < end):
            return True
    return False


def refusals(office, claim):
    """Return the reasons for which a claim is refused, in the order of docs/data.md."""
    policy = office.policies.get(claim.number)
    if policy is None:
        return ["unknown policy"]
    if not in_force(policy, claim.event):
        return ["not in force"]
    cover = cover_of(office, claim)
    @refusals@
'''

AMOUNTS_HEAD = '''"""What a claim is worth."""
from covers import cover_of
from @formats@ import cents_of, years_between
'''
AMOUNTS = '''

def share(cents, part, whole):
    """Return a part of an amount, rounded."""
    return @rounding@


def depreciated(claim, cover):
    """Return what things were worth that had been used for years."""
    if claim.bought is None:
        return claim.cents
    years = @years_of_use@
    lost = min(int(cover["wear"]) * @most_wear@
    return share(claim.cents, 100 - lost, 100)


def insured_part(cents, policy, claim):
    """Return what is insured of an amount where the insured sum is too low."""
    if @underinsured@:
        return share(cents, policy.sum, claim.value)
    return cents


def deduction(cents, cover):
    """Return the excess."""
    fixed, part = cents_of(cover["excess"]), share(cents, int(cover["percent"]), 100)
    return @kind_of_excess@


def payable(office, claim, first):
    """Return the amount of a claim, before the limit of the year; the first one of an event has the excess."""
    policy, cover = office.policies[claim.number], cover_of(office, claim)
    cents = insured_part(depreciated(claim, cover), policy, claim)
    most, own = cents_of(cover["limit"]), deduction(cents, cover) if first else 0
    cents = @excess_and_limit@
    return cents if @small_amounts@ else 0
'''

YEARS_HEAD = '''"""The limits of insurance years."""
from @amounts@ import payable
from covers import cover_of
from @formats@ import cents_of
'''
SETTLEMENT_HEAD = '''"""What is paid for claims."""
from covers import cover_of
from @formats@ import cents_of, years_between
'''
YEARS_TEXT = '''

def year_of(policy, claim):
    """Return the insurance year that a claim belongs to."""
    @insurance_year@


def settle(office):
    """Return the cents that are granted, by claim, and those that are used of the limits, by policy, cover and year."""
    amounts, seen = {}, set()
    for claim in office.claims:
        if office.reasons[claim.id]:
            amounts[claim.id] = 0
            continue
        @excess_of_event@
        amounts[claim.id] = payable(office, claim, key not in seen)
        seen.add(key)
    return within_years(office, amounts)


def within_years(office, amounts):
    granted, used, closed = dict(amounts), {}, set()
    for claim in sorted(office.claims, key=@order_of_limits@):
        cover = None if office.reasons[claim.id] else cover_of(office, claim)
        if cover is None or "yearly" not in cover:
            continue
        key = (claim.number, claim.cover, year_of(office.policies[claim.number], claim))
        cents, rest = amounts[claim.id], cents_of(cover["yearly"]) - used.get(key, 0)
        @beyond_limit@
        granted[claim.id] = cents
        used[key] = used.get(key, 0) + cents - office.recovered[claim.id]
    return granted, used
'''

OFFICE = '''"""An office: its tables, and what follows from them."""
from covers import refusals
from @products@ import load
from @tables@ import arrears_of, changes_of, claims_of, payments_of, policies_of
from @years@ import settle


class Office:
    def __init__(self, folder, today):
        self.today = today
        self.products = load()
        self.policies, self.changes = policies_of(folder), changes_of(folder)
        self.arrears, self.claims = arrears_of(folder), claims_of(folder, today)
        self.paid, self.recovered = payments_of(folder, today)
        self.reasons = {claim.id: refusals(self, claim) for claim in self.claims}
        self.granted, self.used = settle(self)
'''

BONUS = '''"""Levels of premiums, which rise with claims."""
from @formats@ import years_between
from settings import section

BOUNDS = section("bonus", "levels")


def level_of(office, policy):
    level = BOUNDS["start"]
    own = [claim for claim in office.claims if claim.number == policy.number]
    for year in range(years_between(policy.begin, office.today)):
        claims = [claim for claim in own if years_between(policy.begin, claim.event) == year]
        count = sum(@bonus_claims@ for claim in claims)
        if count == 0:
            level -= 1
        else:
            @bonus_step@
        level = min(max(level, BOUNDS["low"]), BOUNDS["high"])
    return level
'''

REPORTS = '''"""Reports on claims."""
from collections import Counter

from bonus import level_of
from @formats@ import text_of


def decisions(office):
    for claim in office.claims:
        reasons = office.reasons[claim.id]
        answer = @several_reasons@ if reasons else text_of(office.granted[claim.id])
        yield @line_of_decision@


def years(office):
    for (number, cover, year), cents in sorted(office.used.items()):
        yield f"{number} {cover} {year} {text_of(cents)}"


def due(office):
    for claim in office.claims:
        cents = office.granted[claim.id] - office.paid[claim.id]
        @overpaid@


def holders(office):
    counts, costs = Counter(), Counter()
    for claim in office.claims:
        cents = office.granted[claim.id]
        if cents > 0:
            holder = office.policies[claim.number].holder
            counts[holder] += 1
            costs[holder] += cents - office.recovered[claim.id]
    for holder in sorted(counts, key=@order_of_holders@):
        yield f"{holder}: {counts[holder]} {text_of(costs[holder])}"


def bonus(office):
    for number, policy in sorted(office.policies.items()):
        yield f"{number} {level_of(office, policy)}"


REPORTS = {"decisions": decisions, "years": years, "due": due, "holders": holders, "bonus": bonus}
'''

#: Equivalent ways to write a part of a file; one of each is drawn.
SHAPES = {
    "rows": (
        """with open(path, encoding="utf-8-sig", newline="") as file:
        for row in csv.DictReader(file, **MARKS):
            yield {tidy(name).lower(): tidy(value) for name, value in row.items()}""",
        """with open(path, encoding="utf-8-sig", newline="") as file:
        names, *lines = csv.reader(file, **MARKS)
    for line in lines:
        if line:
            yield {tidy(name).lower(): tidy(value) for name, value in zip(names, line, strict=True)}""",
    ),
    "product_on": (
        """for start, product in steps:
        if start <= event:
            last = product
    return last""",
        "return [product for start, product in steps if start <= event][-1]",
    ),
    "sum_of_payments": (
        """paid[row["claim"]] += signs[kind] * cents
        if kind == "recovery":
            recovered[row["claim"]] += cents""",
        """paid.update({row["claim"]: signs[kind] * cents})
        recovered.update({row["claim"]: cents * (kind == "recovery")})""",
    ),
    "refusals": (
        """reasons = []
    if cover is None:
        reasons.append("not covered")
    if is_suspended(office.arrears.get(claim.number, []), claim.event):
        reasons.append("suspended")
    if cover is not None and is_waiting(office, claim, cover):
        reasons.append("waiting")
    if (claim.reported - claim.event).@late_report@:
        reasons.append("late")
    return reasons""",
        """holds = {
        "not covered": cover is None,
        "suspended": is_suspended(office.arrears.get(claim.number, []), claim.event),
        "waiting": cover is not None and is_waiting(office, claim, cover),
        "late": (claim.reported - claim.event).@late_report@,
    }
    return [reason for reason in holds if holds[reason]]""",
    ),
    "records": (
        """Policy = namedtuple("Policy", "number holder product begin end sum")
Claim = namedtuple("Claim", "id number cover event reported cents value bought")
""",
        """
class Policy(NamedTuple):
    number: str
    holder: str
    product: str
    begin: datetime.date
    end: datetime.date
    sum: int


class Claim(NamedTuple):
    id: str
    number: str
    cover: str
    event: datetime.date
    reported: datetime.date
    cents: int
    value: int
    bought: datetime.date

""",
    ),
}

KINDS = """# What the kinds of payments.csv do to the sum that was paid. A recovery is what somebody else pays to us.
[signs]
payment = 1
instalment = 1
reversal = -1
recovery = 0
"""

BONUS_INI = """# The level of a new policy, and the lowest and the highest one.
[levels]
start = @start@
low = @low@
high = @high@
"""

FORMAT = """# Data and reports

Tables have `;` between their columns, names of columns in the first line, and perhaps quotes. One program writes days
such as 2025-03-31, the other one such as 31.03.2025. Spaces around a text, and more than one in it, mean nothing.
Amounts are in francs, such as 80, 1'250.5 or 19.95.

- `policies.csv`: number, holder, product, first day, last day (or nothing), and the insured sum (or nothing).
- `changes.csv`: number, day and product: from this day on, the policy has this product in place of the one before.
- `arrears.csv`: number, the day on which a premium was due, and the day on which it was paid (or nothing). On the day
  of the payment, the policy is not suspended any more. Who pays early enough is not suspended at all.
- `claims.csv`: claim, number of the policy, cover, day of the event, day of the report, amount, value of all things
  that are insured (or nothing), and the day on which the thing was bought (or nothing).
- `payments.csv`: claim, day, kind and amount. `etc/@kinds@.ini` has the kinds.

Reports are made as of a day: claims that were reported later are not there yet, and neither are later payments. Both
of the day itself count.

A claim is refused for these reasons: `unknown policy`; else `not in force`; else `not covered` (the product of the
day of the event does not have the cover), `suspended`, `waiting`, `late`, of which several may hold.

The amount of any other claim is computed so: what was bought some years ago has lost some per cent a year (`wear`);
where all things are worth more than the insured sum, a part of the amount is insured; the excess is taken off; what
is small is not paid. Claims with an excess in common are taken in the order of their numbers. At last, where the cover
has a limit for a year, what is used of it by the claims before is not there any more. A recovery gives its amount back
to the limit. All parts of an amount are rounded.

- decisions: what is granted for a claim, or why it is refused;
- years: policy, cover, year, and what is used of the limit, recoveries taken off;
- due: claims for which something else was paid than is granted. What a recovery brings is no payment of ours;
- holders: claims for which something is granted, and what they have cost, recoveries taken off;
- bonus: the level of each policy. It begins with @start@. After a completed year of the policy without any claim it
  is one lower, and else it rises. It is never below @low@ or above @high@, in no year.
"""
