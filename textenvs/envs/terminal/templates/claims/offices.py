"""Products and offices of the template `claims`: what is drawn for a project, and for a check."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..parts import FIRST_NAMES, SURNAMES

COVER_WORDS = (
    *("theft", "water", "fire", "glass", "storm", "garden", "freezer", "luggage", "bicycle", "legal", "animals"),
    *("dental", "travel", "piano", "cellar", "scooter", "drone", "roof", "lift", "boat"),
)
PRODUCT_WORDS = (
    *("home", "basic", "comfort", "family", "senior", "student", "plus", "gold", "compact", "classic", "premium"),
    *("light", "total", "village", "city", "first"),
)
#: Roles of products and covers, which have other names in each project.
PRODUCT_ROLES = ("home", "plus", "top", "less", "goods", "care")
COVER_ROLES = ("plain", "high", "tiny", "wearing", "travelling", "yearly", "also")
#: Days between due and event, and between event and report: those of rules, and the ones after them.
_SUSPENDED = (9, 10, 13, 14, 19, 20, 29, 30)
_REPORTED = (15, 16, 17, 21, 22, 30, 31, 45, 46)
YEARS = (2024, 2025)


def shifted(day: datetime.date, days: int) -> datetime.date:
    return day + datetime.timedelta(days=days)


@dataclass(frozen=True)
class Cover:
    """Francs, per cent, days and per cent a year; a cover without a limit for a year has none."""

    limit: int
    yearly: int | None
    excess: int
    percent: int
    waiting: int
    wear: int


Products = Mapping[str, Mapping[str, Cover]]


def draw_products(rng: random.Random, words: Mapping[str, str], year: int) -> tuple[Products, dict[str, str]]:
    """Draw the covers of all products, and their files by name."""

    def near(number: int, step: int = 10) -> int:
        # The numbers of two years are never the same.
        return number + step * (2 * rng.randint(0, 4) + (year == max(YEARS)))

    percent = 5 + rng.randint(0, 1) * 2 + (year == max(YEARS))
    plain = Cover(near(8000, 100), None, near(110), percent, 0, 0)
    high = replace(plain, limit=near(60_000, 1000), excess=near(500))
    tiny = replace(plain, limit=near(1500), excess=near(40, 1), percent=10)
    travelling = Cover(near(4000), None, near(80), 6, 30 + rng.randint(0, 15), 0)
    yearly = Cover(near(1700), near(2000), near(50, 1), 5, 60 + rng.randint(0, 20), 0)
    wearing = Cover(near(6000, 100), None, near(80), 6, 0, 11 + rng.randint(0, 3))
    also = replace(yearly, limit=near(1700), yearly=near(2100), waiting=0)
    home = {"plain": plain, "high": high, "tiny": tiny}
    plus = {**home, "plain": replace(plain, limit=near(9000, 100)), "travelling": travelling}
    top = {**plus, "plain": replace(plain, limit=near(10_000, 100), excess=near(300))}
    less = {"plain": plain, "tiny": replace(tiny, excess=near(60, 1))}
    covers = {"home": home, "plus": plus, "top": top, "less": less, "goods": {"wearing": wearing}}
    covers["care"] = {"yearly": yearly, "also": also}
    since = f"  # since {year}-0{rng.randint(1, 9)}"
    texts = {
        "home": ["", "[DEFAULT]", f"percent = {percent}", "waiting = 0", "wear = 0", ""]
        + [*_section("@plain@", plain, "limit excess", since), *_section("@high@", high, "limit excess")]
        + _section("@tiny@", tiny, "limit excess percent"),
        "plus": ["extends = @home@", "", *_section("@plain@", plus["plain"], "limit")]
        + _section("@travelling@", travelling, "limit excess percent waiting wear"),
        "top": ["extends = @plus@", "", *_section("@plain@", top["plain"], "limit excess", since)],
        "less": ["extends = @home@", "", "[@high@]", "dropped = yes", "", *_section("@tiny@", less["tiny"], "excess")],
        "goods": ["", *_section("@wearing@", wearing, "limit excess percent waiting wear", since)],
        "care": ["", "[DEFAULT]", "wear = 0", f"percent = {yearly.percent}", f"excess = {yearly.excess}", ""]
        + [*_section("@yearly@", yearly, "limit yearly waiting"), *_section("@also@", also, "limit yearly waiting")],
    }
    files = dict[str, str]()
    for role, lines in texts.items():
        head = ["[product]", f"title = {words[role].title()}"]
        text = "\n".join([*head, *lines])
        for word, name in words.items():
            text = text.replace(f"@{word}@", name)
        files[f"{words[role]}.ini"] = text
    return covers, files


def _section(name: str, cover: Cover, keys: str, comment: str = "") -> list[str]:
    lines = [f"[{name}]"]
    for key in keys.split():
        number = f"{getattr(cover, key):,}".replace(",", "'")
        lines.append(f"{key} = {number}{comment if key == 'excess' else ''}")
    if comment:
        lines.append("note = see the letter of last spring: 100 % of the new value")
    return [*lines, ""]


@dataclass(frozen=True)
class Policy:
    """A policy; its product is a role."""

    number: str
    holder: str
    product: str
    begin: datetime.date
    end: datetime.date | None
    sum: int


@dataclass(frozen=True)
class Claim:
    """A claim; its amount is in cents, and cover and product are roles."""

    id: int
    number: str
    cover: str
    event: datetime.date
    reported: datetime.date
    cents: int
    value: int
    bought: datetime.date | None


@dataclass
class Office:
    """The data of an office, which are drawn case by case."""

    rng: random.Random
    today: datetime.date
    products: Products
    policies: dict[str, Policy] = field(default_factory=dict)
    changes: list[tuple[str, datetime.date, str]] = field(default_factory=list)
    arrears: list[tuple[str, datetime.date, datetime.date | None]] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    payments: list[tuple[int, datetime.date, str, int]] = field(default_factory=list)

    def ago(self, days: int) -> datetime.date:
        return shifted(self.today, -days)

    def policy(self, product: str, age: int = 0, *, begin: datetime.date | None = None, **more: Any) -> str:
        """Draw a policy; ``age`` is that of its first day."""
        rng, number = self.rng, f"{2001 + 7 * len(self.policies) + self.rng.randint(0, 6)}"
        begin = begin or self.ago(age or rng.randint(1500, 2500))
        holder = more.get("holder") or f"{rng.choice(FIRST_NAMES)} {rng.choice(SURNAMES)}"
        self.policies[number] = Policy(number, holder, product, begin, more.get("end"), more.get("sum", 0))
        return number

    def claim(self, number: str, cover: str, event: datetime.date, francs: float, **more: Any) -> int:
        """Draw a claim, of a thing that was bought or of a value, perhaps with the id of another one."""
        rng = self.rng
        id = more.get("id") or (max([91, *(claim.id for claim in self.claims)]) + rng.randint(1, 3))
        reported = more.get("reported") or min(shifted(event, rng.randint(0, 9)), max(self.today, event))
        cents = round(100 * francs)
        self.claims.append(Claim(id, number, cover, event, reported, cents, more.get("value", 0), more.get("bought")))
        return int(id)

    def files(self, words: Mapping[str, str]) -> dict[str, str]:
        """Return the tables, as two programs write them."""
        rng = self.rng

        def day(value: datetime.date | None) -> str:
            return "" if value is None else f"{value:%d.%m.%Y}" if rng.random() < 0.4 else f"{value}"

        def amount(cents: int) -> str:
            francs, rest = divmod(cents, 100)
            text = f"{francs:_}".replace("_", "'")
            if rest:
                return f"{text}.{rest // 10}" if rest % 10 == 0 else f"{text}.{rest:02}"
            return text

        def spaced(text: str) -> str:
            return f'"{text}"' if ";" in text else text + " " * rng.randint(0, 1)

        def table(head: str, rows: Iterable[Sequence[str]]) -> str:
            return "".join(f"{line}\n" for line in [head, *(";".join(row) for row in rows)])

        policies, payments = self.policies.values(), enumerate(self.payments)
        files = {
            "policies.csv": table(
                "number;holder;product;begin;end;sum",
                (
                    (p.number, spaced(p.holder), words[p.product])
                    + (day(p.begin), day(p.end), amount(p.sum) if p.sum else "")
                    for p in policies
                ),
            ),
            "changes.csv": table("number;day;product", ((n, day(d), words[role]) for n, d, role in self.changes)),
            "arrears.csv": table("number;from;to", ((n, day(one), day(two)) for n, one, two in self.arrears)),
            "claims.csv": table(
                " Claim ;number;Cover;event;reported;amount;value;bought",
                (
                    (f"C-{c.id}", spaced(c.number), words[c.cover].title() if c.id % 3 == 0 else words[c.cover])
                    + (
                        day(c.event),
                        day(c.reported),
                        amount(c.cents),
                        amount(c.value) if c.value else "",
                        day(c.bought),
                    )
                    for c in self.claims
                ),
            ),
            "payments.csv": table(
                "claim;day;kind;amount",
                (
                    (spaced(f"C-{id}"), day(when), kind.title() if place == 2 else kind, amount(cents))
                    for place, (id, when, kind, cents) in payments
                ),
            ),
        }
        return {name: "\ufeff" + text if name[0] in "cp" else text for name, text in files.items()}


def draw_office(rng: random.Random, products: Products) -> Office:
    """Draw an office in which each rule and each fault shows."""
    today = datetime.date(2025, rng.randint(2, 10), rng.randint(3, 27))
    office = Office(rng, today, products)
    _add_lines(office)
    _add_limits_of_years(office)
    _add_times(office)
    _add_waiting(office)
    _add_amounts(office)
    _add_levels(office)
    return office


def _francs(rng: random.Random, low: int, high: int) -> float:
    """Draw an amount with cents, no multiple of five."""
    return rng.randint(low, high) + (5 * rng.randint(0, 18) + rng.randint(1, 4)) / 100


def _add_lines(office: Office) -> None:
    """Add claims that show how tables are read: corrections, late payments, two programs."""
    rng = office.rng
    couple = " & ".join(rng.sample(FIRST_NAMES, 2)) + "; " + rng.choice(SURNAMES)
    names = [f"{first} {last}" for first, last in zip(rng.sample(FIRST_NAMES, 4), rng.sample(SURNAMES, 4), strict=True)]
    first = office.policy("home", holder=couple)
    for low, high in ((600, 900), (900, 600)):
        event = office.ago(rng.randint(300, 900))
        id = office.claim(first, "plain", event, _francs(rng, low, low + 90))
        office.claim(first, "plain", event, _francs(rng, high, high + 90), id=id)
    second, third = office.policy("less", holder=names[0]), office.policy("home", holder=names[0].replace(" ", "  "))
    office.claim(second, "high", office.ago(400), 900)
    office.claim(second, "tiny", office.ago(380), _francs(rng, 500, 900))
    for amount in (_francs(rng, 700, 900), 1200.5, 1400.05, rng.randint(20_000, 30_000)):
        office.claim(third, "high", office.ago(rng.randint(100, 900)), amount)
    office.claim(third, "plain", office.ago(2), 1100, reported=shifted(office.today, 1))
    office.claim(third, "plain", office.ago(3), 1300, reported=office.today)
    office.claim("1999", "plain", office.ago(30), 1500)
    # More claims, fewer costs.
    many = office.policy("home", holder=names[1])
    ids = [office.claim(many, "plain", office.ago(200 + 40 * n), _francs(rng, 700, 900)) for n in range(7)]
    plan = [(60, 0), (700, 0), (9000, 0), (300, 200), (400, -100), (50, 0), (500, 0)]
    for place, (id, (cents, other)) in enumerate(zip(ids, plan, strict=True)):
        kind = "payment" if place % 2 else "instalment"
        office.payments.append((id, office.ago(30 - place), kind, 100 * cents + place))
        if other:
            kind = "recovery" if other > 0 else "reversal"
            office.payments.append((id, office.ago(20), kind, 100 * abs(other)))
    office.payments.append((ids[5], office.today, "payment", 1511))
    office.payments.append((ids[5], office.ago(-1), "payment", 1703))
    for name, cover, francs in zip(names[2:], ("high", "plain"), (15_000, 2000), strict=True):
        office.claim(office.policy("home", holder=name), cover, office.ago(rng.randint(100, 700)), francs)


def _add_limits_of_years(office: Office) -> None:
    """Add claims in the last months of a year that are more than its limit, in different orders."""
    rng, year = office.rng, 2024 - office.rng.randint(0, 2)
    begin = datetime.date(year - 2, rng.randint(3, 5), rng.randint(2, 27))
    start = datetime.date(year, rng.randint(8, 10), rng.randint(1, 28))
    number, other = office.policy("care", begin=begin), office.policy("care", begin=begin)
    office.claim(other, "also", start, _francs(rng, 300, 400), reported=start)
    for francs, first, last in ((1300, 2, 7), (1350, 0, 13), (1400, 1, 5), (1450, 3, 9)):
        office.claim(number, "also", shifted(start, first), francs, reported=shifted(start, last))
    number = office.policy("care", begin=begin)
    for place, francs in enumerate((1300, 1450, 500)):
        day = shifted(start, 4 * place)
        office.claim(number, "yearly", day, francs, reported=day)
    number = office.policy("care", begin=begin)
    for place, francs in enumerate((1450, 1300)):
        day = shifted(start, 3 * place)
        id = office.claim(number, "also", day, francs, reported=day)
        if place == 0:
            office.payments.append((id, shifted(day, 9), "recovery", 70_000 + rng.randint(1, 99)))
    number = office.policy("care", begin=begin)
    for month, number_of_day, gap in ((2, 3, 2), (12, 27, 9), (6, 20, 3), (9, 9, 0)):
        event = datetime.date(year, month, number_of_day)
        office.claim(number, "also", event, _francs(rng, 300, 400), reported=shifted(event, gap))


def _add_times(office: Office) -> None:
    """Add claims around ends of policies, times of arrears, and limits of reports."""
    rng = office.rng
    end = office.ago(rng.randint(60, 200))
    number = office.policy("home", end=end)
    for days in (-1, 0, 1, 6, 7, 8, 13, 14, 15):
        office.claim(number, "plain", shifted(end, days), _francs(rng, 700, 1900))
    begin = office.ago(500)
    number = office.policy("home", begin=begin)
    for days in (-1, 0):
        office.claim(number, "plain", shifted(begin, days), _francs(rng, 700, 1900))
    since, until = office.ago(400), office.ago(310)
    number = office.policy("home")
    office.arrears += [
        (number, since, until),
        (number, office.ago(120), office.ago(80)),
        (number, office.ago(700), office.ago(697)),
    ]
    for days in (*_SUSPENDED, 87, 90):
        office.claim(number, "plain", shifted(since, days), _francs(rng, 700, 1900), reported=shifted(since, days + 6))
    office.claim(number, "plain", office.ago(85), _francs(rng, 700, 1900))
    number = office.policy("home")
    office.arrears.append((number, office.ago(200), None))
    for age in (150, 210):
        office.claim(number, "plain", office.ago(age), _francs(rng, 700, 1900))
    number = office.policy("home")
    for days in _REPORTED:
        event = office.ago(rng.randint(50, 900))
        office.claim(number, "plain", event, _francs(rng, 700, 1900), reported=shifted(event, days))


def _add_waiting(office: Office) -> None:
    """Add claims around waiting periods and changes of products, and some with several reasons."""
    rng = office.rng
    begin = office.ago(rng.randint(350, 400)).replace(day=rng.randint(9, 17))
    number, days = office.policy("care", begin=begin), office.products["care"]["yearly"].waiting
    first = (begin.replace(day=28) + datetime.timedelta(days=4)).replace(day=1)
    for day, gap in ((begin, -2), (begin, -1), (begin, 0), (begin, 1), (first, -2), (first, -1), (first, 0)):
        event = shifted(day, days + gap)
        office.claim(number, "yearly", event, _francs(rng, 200, 290), reported=shifted(event, 5))
    change, again = office.ago(500), office.ago(300)
    number = office.policy("home", 900)
    office.changes += [(number, again, "top"), (number, change, "plus")]
    for event in (shifted(change, -3), change, shifted(change, 5), shifted(again, -1), again, shifted(again, 6)):
        office.claim(number, "travelling", event, _francs(rng, 1000, 1900), reported=shifted(event, 7))
        office.claim(number, "plain", event, _francs(rng, 15_000, 19_000), reported=shifted(event, 7))
    number = office.policy("plus")
    office.claim(number, "travelling", office.ago(300), _francs(rng, 1000, 1900))
    office.claim(number, "plain", office.ago(310), _francs(rng, 15_000, 19_000))
    number = office.policy("top")
    office.claim(number, "travelling", office.ago(300), _francs(rng, 1000, 1900))
    number = office.policy("care", begin=office.ago(300))
    office.arrears.append((number, office.ago(299), None))
    for gap in (3, 60):
        event = office.ago(265)
        office.claim(number, "yearly", event, _francs(rng, 1000, 1900), reported=shifted(event, gap))


def _add_amounts(office: Office) -> None:
    """Add claims about wear, insured sums, excesses and limits."""
    rng, products = office.rng, office.products
    number = office.policy("goods")
    for cents in rng.sample(range(100), 6):
        day = office.ago(rng.randint(30, 700))
        bought = day.replace(year=day.year - rng.randint(1, 2), day=rng.randint(1, 28))
        office.claim(number, "wearing", day, rng.randint(900, 1900) + cents / 100, bought=bought)
    for month, earlier in ((2, 11), (11, 2)):
        day = datetime.date(office.today.year - 1, month, rng.randint(1, 28))
        office.claim(
            number, "wearing", day, _francs(rng, 2000, 2900), bought=day.replace(year=day.year - 2, month=earlier)
        )
    for years in (8, 9):
        day = office.ago(rng.randint(30, 700)).replace(day=9)
        office.claim(number, "wearing", day, _francs(rng, 2000, 2900), bought=day.replace(year=day.year - years))
    number = office.policy("home", sum=100 * 50_000)
    for value in (48_000, 53_000, 60_000, 75_000, 0):
        office.claim(number, "plain", office.ago(rng.randint(30, 700)), _francs(rng, 2000, 2900), value=100 * value)
    number = office.policy("home")
    for low, high in ((300, 900), (5000, 6000), (6000, 7000)):
        office.claim(number, "plain", office.ago(rng.randint(30, 700)), _francs(rng, low, high))
    day = office.ago(rng.randint(30, 700))
    for cover in ("plain", "tiny", "plain"):
        office.claim(number, cover, day, _francs(rng, 600, 900))
    limit = products["home"]["tiny"].limit
    for francs in (limit + 11, 2 * limit + 7):
        office.claim(number, "tiny", office.ago(rng.randint(30, 700)), francs)
    fixed, part = products["home"]["tiny"].excess, products["home"]["tiny"].percent
    for age, least in enumerate((15, 25, 40)):
        for place, amount in enumerate(
            (fixed + least, 100 * (fixed + least) / (100 - part), 100 * least / (100 - part))
        ):
            office.claim(number, "tiny", office.ago(720 + 20 * age + place), amount)


def _add_levels(office: Office) -> None:
    """Add old policies whose years had claims that count, or do not, and one that began on a leap day."""
    rng = office.rng
    office.policy("home", begin=datetime.date(2016, 2, 29))
    for shift in (-1, 1):  # its twelfth year ends tomorrow, or ended yesterday
        begin = _years_before(office.ago(shift), 12)
        number = office.policy("home", begin=begin)
        office.claim(number, "plain", shifted(_years_before(office.today, 1), -40), _francs(rng, 2000, 2900))
        office.claim(number, "plain", shifted(_years_before(office.today, 3), -40), _francs(rng, 300, 600))
    for years, ages in ((14, (2,)), (14, (3, 3)), (9, (8, 8, 7, 7, 7, 6, 6)), (10, (1, 2, 3, 4))):
        begin = _years_before(office.ago(rng.randint(80, 250)), years)
        number = office.policy("home", begin=begin)
        for place, age in enumerate(ages):
            day = shifted(_years_before(office.today, age), -rng.randint(0, 30))
            office.claim(number, "plain", day, _francs(rng, 2000, 2900) if place % 2 == 0 else _francs(rng, 400, 700))
        office.claim(number, "travelling", _years_before(office.today, 1), 900)
    begin = _years_before(office.ago(100), 5)
    number, event = office.policy("home", begin=begin), shifted(begin.replace(year=begin.year + 5), -3)
    office.claim(number, "plain", event, _francs(rng, 2000, 2900), reported=shifted(event, 8))


def _years_before(day: datetime.date, years: int) -> datetime.date:
    return day.replace(year=day.year - years, day=min(day.day, 28))
