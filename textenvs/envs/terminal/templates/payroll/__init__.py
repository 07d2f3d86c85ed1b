"""The template *payroll*: clocks, absences and advances become payslips, by join, sort and awk.

It needs bash, awk (mawk is enough) and coreutils.
"""

from __future__ import annotations

import datetime
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...project import Check, Fault, Project, Question
from ..parts import ASKED, COLOURS, FIRST_NAMES, SURNAMES, asked_together, lost_permission, notes, token
from ..variation import Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import CONF, DATES, DAYS, FORMAT, PAY, PAYROLL, SHIFTS, SLIP, TAX

_LABELS = (
    *("basic", "overtime", "night", "sunday", "allowance", "sick"),
    *("pension", "tax", "children", "advance", "net"),
)
_LONG_MONTHS = (1, 3, 5, 7, 8, 10, 12)
#: Logs of clocks; the second one ends lines as another system does.
_CLOCKS = ("gate.log", "hall.log", "yard.log")


_TEAMS = ("bar", "cellar", "garden", "kitchen", "service", "store")


@dataclass(frozen=True)
class _Person:
    id: str
    name: str
    team: str
    rate: int
    birth: datetime.date
    children: int


@dataclass
class _Office:
    """The data of a month, which are drawn person by person."""

    rng: random.Random
    month: int
    teams: Sequence[str]
    people: list[_Person] = field(default_factory=list)
    punches: list[tuple[datetime.datetime, str, str, str]] = field(default_factory=list)  # with person and clock
    absences: list[tuple[str, datetime.date, str]] = field(default_factory=list)
    advances: list[tuple[str, int]] = field(default_factory=list)
    holidays: list[datetime.date] = field(default_factory=list)

    @property
    def first(self) -> datetime.date:
        return datetime.date(2025, self.month, 1)

    def day(self, number: int) -> datetime.date:
        return self.first + datetime.timedelta(days=number - 1)

    def weekday(self, weekday: int, week: int) -> int:
        """Return the number of a day that is this weekday, Monday being 0; ``week`` counts from 0."""
        return 1 + (weekday - self.first.weekday()) % 7 + 7 * week

    def person(self, name: str, *, age: int = 0, month: int = 0, children: int = 0, rate: int = 0) -> str:
        """Draw a person; return the number."""
        rng = self.rng
        month = month or rng.choice([n for n in range(1, 13) if n != self.month])
        year = 2025 - (age or rng.randint(30, 60))
        birth = datetime.date(year, month, rng.randint(1, 28))
        id = f"{1000 + 3 * len(self.people) + rng.randint(0, 2)}"
        team = self.teams[len(self.people) % len(self.teams)]
        self.people.append(_Person(id, name, team, rate or rng.randint(1900, 2900), birth, children))
        return id

    def punch(self, id: str, kind: str, day: int, hour: int, minute: int = -1, clock: str = "") -> None:
        minute = self.rng.randint(0, 59) if minute < 0 else minute
        time = datetime.datetime.combine(self.day(day), datetime.time(hour, minute))
        self.punches.append((time, kind, id, clock or self.rng.choice(_CLOCKS)))

    def shift(self, id: str, day: int, begin: int, end: int, minute: int = -1, clock: str = "") -> None:
        """Add a shift from one hour to another, which may be on the next day."""
        self.punch(id, "in", day, begin, minute, clock)
        self.punch(id, "out", day + end // 24, end % 24, minute, clock)

    def files(self) -> dict[str, str]:
        rng = self.rng
        header = "id\tname\tteam\trate\tbirth\tchildren"
        people = [f"{p.id}\t{p.name}\t{p.team}\t{p.rate}\t{p.birth}\t{p.children}" for p in self.people]
        absences = [f"{id}\t{day}\t{why}" for id, day, why in self.absences]
        advances = [f"{id}\t{cents}" for id, cents in self.advances]
        tables = {
            "people.tsv": [header, *rng.sample(people, len(people))],
            "absences.tsv": rng.sample(absences, len(absences)),
            "advances.tsv": rng.sample(advances, len(advances)),
            "holidays.txt": ["# Days of the canton", *map(str, self.holidays), f"#{self.day(9)}"],
        }
        files = {name: "\n".join(lines) + "\n" for name, lines in tables.items()}
        for clock in _CLOCKS:
            lines = [f"{t:%Y-%m-%d %H:%M} {kind} {id}" for t, kind, id, place in sorted(self.punches) if place == clock]
            files[f"clock/{clock}"] = "".join(f"{line}\r\n" if clock == _CLOCKS[1] else f"{line}\n" for line in lines)
        return files


@dataclass(frozen=True)
class _Payroll:
    """The rules and the tariff of a drawn project, and the payslips by these."""

    variant: Variant
    allowance: int
    pension: int
    child: int
    brackets: Sequence[tuple[int, int]]  # begin and percent

    def text(self, office: _Office) -> str:
        rows, variant = [self._row(office, person) for person in office.people], self.variant
        rows.sort()
        lines, sums = list[str](), dict[str, int]()
        for row in rows:
            sums[row[2]] = sums.get(row[2], 0) + row[-1]
        for row in sorted(rows, key=variant["order-of-slips"]):
            lines += [variant["slip-title"].format(*row), f"hours {variant['hours'](row[3])}"]
            lines += [self._line(label, cents) for label, cents in zip(_LABELS, row[4:], strict=True)]
        order = variant["order-of-teams"]
        teams = sorted(sums.items(), key=order, reverse=order is None)
        lines += [f"{team} {cents}" for team, cents in teams]
        return "\n".join(filter(None, lines))

    def _line(self, label: str, cents: int) -> str:
        if cents == 0 and (text := self.variant["zero-lines"](label)) != "0":
            return str(text)
        money = "-" * (cents < 0) + self.variant["money"].format(*divmod(abs(cents), 100), abs(cents))
        return str(self.variant["slip-line"].format(label, money))

    def _row(self, office: _Office, person: _Person) -> tuple[Any, ...]:
        """Return number, name, team, minutes, and the amounts."""
        variant, rounding = self.variant, self.variant["rounding"]
        minutes, over, night, sunday, days = _minutes(variant, office, person)
        sick = sum((id, why) == (person.id, "sick") and day.month == office.month for id, day, why in office.absences)
        amounts = [
            rounding(minutes * person.rate, 60),
            rounding(over * person.rate * variant["overtime-percent"], 6000),
            rounding(night * person.rate * variant["night-percent"], 6000),
            rounding(sunday * person.rate * variant["sunday-percent"], 6000),
            days * self.allowance,
            rounding(8 * person.rate * variant["sick-pay"](sick), 100),
        ]
        gross = sum(amounts)
        age = 2025 - person.birth.year - (person.birth.month > office.month)
        pension = rounding(gross * self.pension, 100) if age >= variant["pension-age"] else 0
        tax = rounding(variant["tax-of-brackets"](gross - pension, self.brackets), 100)
        family = variant["counted-children"](person.children) * self.child
        net = gross - pension - tax + family
        back = variant["advance"](sum(cents for id, cents in office.advances if id == person.id), net)
        return (person.id, person.name, person.team, minutes, *amounts, pension, tax, family, back, net - back)


def _minutes(variant: Variant, office: _Office, person: _Person) -> tuple[int, int, int, int, int]:
    """Return a person's minutes: all, overtime, night and festive ones; and the days with an allowance."""
    first, length = office.first.toordinal(), 31
    festive = {day.toordinal() for day in office.holidays}
    spent, night, sunday = dict[int, int](), 0, 0
    for begin, end in _shifts(variant, office, person):
        midnights = range(begin // 1440 * 1440, end + 1440, 1440)
        borders = {midnight + minute for midnight in midnights for minute in (0, *variant["night-hours"])}
        cuts = [begin, *sorted(border for border in borders if begin < border < end), end]
        for one, other in itertools.pairwise(cuts):
            day = variant["day-of-shift"](one, begin, end) // 1440
            if first <= day < first + length:
                spent[day] = spent.get(day, 0) + other - one
                dark = one % 1440 >= variant["night-hours"][0] or one % 1440 < variant["night-hours"][1]
                counts = variant["supplements"](dark, day in festive or day % 7 == 0)
                night, sunday = night + (other - one) * counts[0], sunday + (other - one) * counts[1]
    over = sum(max(n - 60 * variant["daily-hours"], 0) for n in spent.values())
    days = sum(n >= 60 * variant["allowance-hours"] for n in spent.values())
    return sum(spent.values()), over, night, sunday, days


def _shifts(variant: Variant, office: _Office, person: _Person) -> list[tuple[int, int]]:
    """Return a person's shifts, in minutes."""
    shifts, started = list[tuple[int, int]](), 0
    for time, kind, id, _ in [*sorted(office.punches), (None, "in", person.id, "")]:
        if id != person.id:
            continue
        now = 0 if time is None else 1440 * time.toordinal() + 60 * time.hour + time.minute
        if started:
            length = now - started if kind == "out" else variant["forgotten-out"]
            shifts += [(started, started + length)] if length else []
        started = now if kind == "in" else 0
    rounded = [variant["clock-rounding"](*shift) for shift in shifts]
    return [(begin, end - variant["unpaid-break"](end - begin)) for begin, end in rounded if end > begin]


def _draw_office(rng: random.Random) -> _Office:
    """Draw a month in which each rule and each fault shows."""
    office = _Office(rng, rng.choice(_LONG_MONTHS), rng.sample(_TEAMS, len(_TEAMS)))
    names = iter(rng.sample([f"{first} {last}" for first in FIRST_NAMES for last in SURNAMES], 20))
    tuesday, sunday = office.weekday(1, 1), office.weekday(6, 1)
    long = office.person(next(names), rate=rng.randint(3000, 3900))
    for day in range(1, 13):
        office.shift(long, day, rng.randint(6, 8), rng.randint(20, 21))
    night = office.person(next(names), children=3)
    for day in (0, tuesday, tuesday + 8, sunday - 1, sunday, 31):
        office.shift(night, day, 19, 24 + rng.randint(6, 7))
    short = office.person(next(names))
    for number, hours in enumerate(([3], [2, 3], [2, 3, 2], [3, 1], [3, 3])):
        begin = 7
        for spent in hours:
            office.shift(short, tuesday + number, begin, begin + spent, 0, _CLOCKS[number % 3])
            begin += spent + 1
    forgetful = office.person(next(names))
    office.shift(forgetful, 2, 8, 17)
    office.punch(forgetful, "in", 5, 9)
    office.shift(forgetful, 6, 9, 15)
    office.punch(forgetful, "in", 10, 9)
    late = office.person(next(names), children=1)
    office.punch(late, "out", 12, 8)
    office.shift(late, 14, 6, 18, 0)
    holiday = office.person(next(names))
    office.holidays.append(office.day(tuesday + 1))
    for day in (tuesday + 1, 9, -12):
        office.shift(holiday, day, 9, 16)
    for age in (18, 21, 25):
        office.shift(office.person(next(names), age=age, month=office.month), 15, 8, 17)
    for age in (19, 23):
        office.shift(office.person(next(names), age=age), 16, 8, 18, clock=_CLOCKS[2])
    office.shift(office.person(next(names), age=16), 31, 9, 15, 0)
    sick = office.person(next(names), children=2)
    office.shift(sick, 3, 7, 16)
    office.absences += [(sick, office.day(day), "sick") for day in (10, 11, 12, -3, 40)]
    office.absences += [
        (id, office.day(day), why) for id, why in ((long, "holidays"), (short, "unpaid")) for day in (20, 21)
    ]
    poor = office.person(next(names))
    office.shift(poor, 18, 8, 14)
    office.advances += [(poor, 30_000), (poor, 40_000), (long, rng.randint(100, 900)), (long, rng.randint(100, 900))]
    office.person(next(names))
    office.person(next(names), children=1)
    return office


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: names of files and keys, a tariff, a month, and the vouchers of some years."""
    allowance_key, other_key = rng.sample(["allowance", "per_day", "daily", "meal"], 2)
    brackets = [
        (0, 0),
        (rng.randint(40, 60) * 1000, 8),
        (rng.randint(80, 99) * 1000, 14),
        (rng.randint(130, 160) * 1000, 22),
    ]
    child = rng.randint(8, 20) * 500
    names: dict[str, object] = {
        "lib": rng.choice(["lib", "steps", "share", "parts"]),
        "shifts": rng.choice(["shifts", "clock", "pairs"]),
        "pay": rng.choice(["pay", "amounts", "cents"]),
        "tariff": rng.choice(["tariff", "rates", "contract"]),
        "allowance_key": allowance_key,
        "other_key": other_key,
        "pension_key": rng.choice(["pension", "pension_percent", "old_age"]),
        "child_key": rng.choice(["child", "family", "per_child"]),
        "allowance": rng.randint(5, 30) * 50,
        "pension": rng.randint(5, 11),
        "child": child,
        "child_units": child // 100,
        "first": brackets[1][0],
        "second": brackets[2][0],
        "third": brackets[3][0],
        "third_units": brackets[3][0] // 1000,
    }
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    payroll = _Payroll(variant, int(str(names["allowance"])), int(str(names["pension"])), child, brackets)
    texts = {
        "bin/payroll": PAYROLL,
        "@lib@/dates.awk": DATES,
        "@lib@/@shifts@.awk": SHIFTS,
        "@lib@/days.awk": DAYS,
        "@lib@/@pay@.awk": PAY,
        "@lib@/slip.awk": SLIP,
        "etc/@tariff@.conf": CONF,
        "etc/tax.tsv": TAX,
        # Nothing reads these two.
        "etc/@tariff@.conf.2023": CONF.replace("@child@", "4000").replace("@pension@", "4"),
        "etc/tax-2023.tsv": TAX.replace("\t8", "\t9").replace("\t22", "\t25"),
    }
    files = variant.files(texts) | variant.document(rng)
    files[f"old/{names['pay']}.awk"] = variant.outdated(PAY)
    files |= {"docs/data.md": variant.words(FORMAT), "docs/notes.md": notes(rng, "Notes on wages", 10)}
    office = _draw_office(rng)
    files |= {f"data/{name}": text for name, text in office.files().items()}
    questions = _questions(rng, files, office)
    fixed = frozenset(path for path in files if path.startswith(("data/", "vouchers/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        drawn = _draw_office(fresh)
        inputs = {f"d/{name}": text for name, text in drawn.files().items()}
        return [Check("slips", f"bin/payroll $IN/d 2025-{drawn.month:02}", payroll.text(drawn), inputs)]

    about = (
        "`bin/payroll FOLDER MONTH` prints the payslips of a month from a folder such as `data/`, for example "
        f"`bin/payroll data 2025-{office.month:02}`. `docs/data.md` describes the data and the slips, and "
        f"`{variant.page}` says what was agreed."
    )
    looks = ["ls * | head -70", f"cat bin/payroll docs/data.md etc/*.conf etc/tax.tsv {names['lib']}/*"]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_file_faults(variant, looks),
    ]
    return Project(about, files, faults, checks, {"bin/payroll": 0o755}, fixed=fixed, questions=questions)


def _file_faults(variant: Variant, looks: Sequence[str]) -> list[Fault]:
    path, old = "etc/tax.tsv", "etc/tax-2023.tsv"
    return [
        Fault(
            "missing-table",
            "Nobody pays any tax.",
            [*looks, "ls etc", f"cat {old}"],
            f"sed 's/\t9$/\t8/; s/\t25$/\t22/' {old} > {path}",
            removed=[path],
        ),
        lost_permission("bin/payroll"),
    ]


def _questions(rng: random.Random, files: dict[str, str], office: _Office) -> list[Question]:
    """Draw the vouchers of two years, and ask about them."""
    cents = iter(rng.sample(range(100, 99_999), 30 * 60))
    by_person, by_kind = dict[_Person, list[tuple[int, str]]](), dict[tuple[str, str], list[tuple[int, str]]]()
    for month in range(rng.randint(18, 30)):
        name, lines = f"{2023 + month // 12}-{month % 12 + 1:02}", list[str]()
        for _ in range(60):
            person, kind, amount, voucher = rng.choice(office.people), rng.choice(COLOURS), next(cents), token(rng)
            lines.append(f"{name}-{rng.randint(1, 28):02};{voucher};{person.id};{kind};{amount}")
            by_person.setdefault(person, []).append((amount, voucher))
            by_kind.setdefault((person.team, kind), []).append((amount, voucher))
        files[f"vouchers/{name}.csv"] = "\n".join(lines) + "\n"
    people = rng.sample(sorted(by_person, key=lambda person: person.id), ASKED)
    kinds = rng.sample(sorted(kind for kind, rows in by_kind.items() if len(rows) > 15), ASKED)
    return [
        asked_together([_largest_of_person(person.name, max(by_person[person])[1]) for person in people]),
        asked_together([_smallest_of_team(*kind, min(by_kind[kind])[1]) for kind in kinds]),
    ]


def _largest_of_person(name: str, voucher: str) -> Question:
    id = f"$(grep '{name}' data/people.tsv | cut -f1)"
    return Question(
        "largest-of-person",
        f"Which voucher of {name} in vouchers/ has the largest amount (the last field)?",
        voucher,
        [
            "head -2 data/people.tsv vouchers/2023-01.csv",
            f"grep -h \";{id};\" vouchers/* | sort -t';' -k5,5nr | sed -n '1s/^[^;]*;\\([^;]*\\);.*/\\1/p'",
        ],
    )


def _smallest_of_team(team: str, kind: str, voucher: str) -> Question:
    program = f'FNR == NR {{ if ($3 == "{team}") p[$1]; next }} ($3 in p) && $4 == "{kind}" {{ print $5, $2 }}'
    return Question(
        "smallest-of-team",
        f"Which voucher of the kind {kind} in vouchers/ has the smallest amount of those of the team {team}?",
        voucher,
        [
            "head -2 data/people.tsv vouchers/2023-01.csv",
            f"awk '{program}' FS='\\t' data/people.tsv FS=';' vouchers/* | sort -n | sed -n '1s/.* //p'",
        ],
    )
