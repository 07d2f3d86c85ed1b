"""The template *metering*: readings of meters, estimates, tariffs and bills of a year, by awk and SQLite.

It needs bash, awk (mawk is enough), coreutils and Python 3 with its module sqlite3.
"""

from __future__ import annotations

import datetime
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from ...project import Check, Fault, Project, Question
from ..parts import (
    ASKED,
    SURNAMES,
    asked_together,
    carriage_returns,
    file_in_the_way,
    lost_permission,
    notes,
)
from ..records import draw_journal, draw_lists
from ..variation import DRAWS, Variant
from .faults import EDITS
from .grids import Grid, Meter, Rates, draw_grid
from .rules import IDENTIFIERS, RULES
from .texts import (
    ANCHORS,
    BALANCES,
    BILLS,
    BOUNDS,
    CALENDAR,
    CARDS,
    COMMON,
    DAILY,
    DAYS,
    ENERGY,
    FEES,
    FORMAT,
    LEVELS,
    LOAD,
    METER,
    NEIGHBOURS,
    PIECES,
    POINTS,
    PRICED,
    RATES,
    REMOTE,
    REPORTS,
    ROUNDS,
    SHAPES,
    SHARES,
    TABLES,
    TOTALS,
)

#: How views are divided over files.
_DIVISIONS = (
    (("marks", "levels"), ("prices", "fees", "bills")),
    (("marks",), ("levels",), ("prices", "fees"), ("bills",)),
    (("marks", "levels"), ("prices",), ("fees", "bills")),
    (("marks",), ("levels", "prices"), ("fees",), ("bills",)),
)
#: Rules whose options may give the same reports by chance.
_BY_CHANCE = ("rounded-total", "rounded-estimate", "order-of-bills", "instalment-step")
#: Totals by meter and register: days, and kilowatt hours since the first of them.
_Totals = Mapping[tuple[str, str], Sequence[tuple[datetime.date, int]]]


@dataclass(frozen=True)
class _Utility:
    """Reports on a grid by the rules of a project."""

    variant: Variant
    grid: Grid
    rates: Rates

    def text(self, names: Sequence[str]) -> str:
        totals, doubts = self._totals()
        pieces = self._pieces(totals)
        bills = self._bills(pieces)
        reports: dict[str, Callable[[], Sequence[Sequence[object]]]] = {
            "use": lambda: [
                (customer, register, sum(kwh for _, kwh in rows))
                for (customer, register), rows in sorted(pieces.items())
            ],
            "bills": lambda: self._lines_of_bills(bills),
            "balance": lambda: [(id, self._money(self.due(id, bills[id][1], True))) for id in sorted(bills)],
            "plan": lambda: [(id, self._money(self._instalment(bills[id][1]))) for id in sorted(bills)],
            "gaps": lambda: self._gaps(totals),
            "doubts": lambda: sorted(doubts),
        }
        mark = self.variant["row-mark"]
        return "\n".join(
            line for name in names for line in [f"[{name}]", *(mark.join(map(str, row)) for row in reports[name]())]
        )

    def shows_rules(self) -> bool:
        """Return whether each option of rules about many lines gives reports of its own."""

        def printed(variant: Variant) -> str:
            return replace(self, variant=variant).text(["bills", "plan"])

        return self.variant.separates(_BY_CHANCE, printed)

    def add_payments(self) -> None:
        """Let some customers pay nearly what they owe: about as much less, or more, as rules call small."""
        bills = self.bills()
        unpaid = [id for id in sorted(bills) if id not in {id for id, *_ in self.grid.payments} and bills[id][1] > 9000]
        day = self.grid.day(200)
        for id, rest in zip(unpaid, (150, 300, -450, 700, 1500, -3000, 200, 1000), strict=False):
            self.grid.payments.append((id, day, self.grid.year, bills[id][1] - rest))

    def bills(self) -> dict[str, tuple[int, int]]:
        """Return kilowatt hours and rappen, by customer."""
        return self._bills(self._pieces(self._totals()[0]))

    def _values(self) -> dict[tuple[str, str], list[tuple[datetime.date, int]]]:
        """Return one value a day for each register, by meter and register."""
        rows = dict[tuple[str, str, datetime.date], list[tuple[str, int]]]()
        for one in sorted(self.grid.readings, key=lambda one: one.time):
            meter = self.grid.meters.get(one.meter)
            if meter is None or one.is_test or one.day < meter.installed or (meter.removed and one.day > meter.removed):
                continue
            value = int(self.variant["decimals"](one.value))
            rows.setdefault((one.meter, one.register, one.day), []).append((one.source, value))
        values = dict[tuple[str, str], list[tuple[datetime.date, int]]]()
        for (meter_id, register, day), group in sorted(rows.items()):
            values.setdefault((meter_id, register), []).append((day, self.variant["same-day"](group)))
        return values

    def _totals(
        self,
    ) -> tuple[dict[tuple[str, str], list[tuple[datetime.date, int]]], list[tuple[str, str, datetime.date, int]]]:
        """Return days and kilowatt hours since the first reading, by meter and register, and doubtful readings."""
        totals, doubts = (
            dict[tuple[str, str], list[tuple[datetime.date, int]]](),
            list[tuple[str, str, datetime.date, int]](),
        )
        for (id, register), rows in self._values().items():
            meter, (begin, counter), total = self.grid.meters[id], rows[0], 0
            totals[id, register] = [(begin, 0)]
            for day, value in rows[1:]:
                whole = 10**meter.digits
                turned = value < counter and Fraction(counter, whole) >= Fraction(self.variant["rollover"], 100)
                used = meter.factor * (value - counter + whole * turned)
                if not 0 <= used <= self.variant["high-use"] * (day - begin).days:
                    doubts.append((id, register, day, value))
                    continue
                total, begin, counter = total + used, day, value
                totals[id, register].append((day, total))
        return totals, doubts

    def _passed(self, totals: _Totals) -> dict[datetime.date, int]:
        """Return the weight of all days before a day."""
        days = [day for rows in totals.values() for day, _ in rows]
        begin, end = min([*days, self.grid.day(0)]), max([*days, self.grid.day(self.grid.length)])
        dates = [begin + datetime.timedelta(days=number) for number in range((end - begin).days + 1)]
        weights = [self.variant["weight-of-days"](day, self.rates.profile) for day in dates]
        return dict(zip(dates, itertools.accumulate(weights, initial=0), strict=False))

    def _level(
        self,
        meter: Meter,
        rows: Sequence[tuple[datetime.date, int]],
        day: datetime.date,
        passed: Mapping[datetime.date, int],
    ) -> int:
        """Return the kilowatt hours of a register until the morning of a day."""
        before, after = [row for row in rows if row[0] <= day], [row for row in rows if row[0] > day]
        if not before:
            return 0
        first, base = before[-1]
        if after:
            other, gain = after[0][0], after[0][1] - base
        else:
            mode = self.variant["after-last"]
            if mode == "none" or len(before) == 1 or (meter.removed and meter.removed <= day):
                return base
            other, start = before[-2 if mode == "last" else 0]
            gain = base - start
        part = Fraction(passed[day] - passed[first], abs(passed[other] - passed[first]))
        return base + int(self.variant["rounded-estimate"](gain * part))

    def _pieces(self, totals: _Totals) -> dict[tuple[str, str], list[tuple[datetime.date, int]]]:
        """Return first days and kilowatt hours of the pieces of the year, by customer and register."""
        pieces = dict[tuple[str, str], list[tuple[datetime.date, int]]]()
        first, after, passed = self.grid.day(0), self.grid.day(self.grid.length), self._passed(totals)
        for (id, register), rows in totals.items():
            meter = self.grid.meters[id]
            zone = self.grid.customers[meter.customer][1]
            days = [first, *sorted(day for name, day, *_ in self.grid.tariffs if name == zone and first < day < after)]
            levels = [self._level(meter, rows, day, passed) for day in [*days, after]]
            for day, (low, high) in zip(days, itertools.pairwise(levels), strict=True):
                pieces.setdefault((meter.customer, register), []).append((day, high - low))
        return pieces

    def _tariff(self, customer: str, day: datetime.date) -> tuple[int, int, int]:
        zone = self.grid.customers[customer][1]
        rows = sorted((when, prices) for name, when, *prices in self.grid.tariffs if name == zone and when <= day)
        high, low, base = rows[-1][1]
        return high, low, base

    def _bills(self, pieces: _Totals) -> dict[str, tuple[int, int]]:
        variant, first = self.variant, self.grid.day(0)
        days = {"first": first, "last": self.grid.day(self.grid.length - 1)}
        bills = dict[str, tuple[int, int]]()
        for customer in sorted({customer for customer, _ in pieces}):
            months = self._months(customer)
            if not months:
                continue
            kwh, night, cost = 0, 0, 0
            for register in "DNT":
                for day, used in pieces.get((customer, register), []):
                    high, low, _ = self._tariff(customer, days.get(variant["price-day"], day))
                    cost += used * {"D": high, "N": low}.get(register, variant["single-price"](high, low))
                    kwh, night = kwh + used, night + used * (register == "N")
            fee = variant["base-fee"](months, self._tariff(customer, first)[2])
            energy = cost - variant["large-use"](kwh, self.rates.large, self.rates.reduction, fee)
            levy = self.rates.levy * variant["levied"](kwh, night)
            taxed = variant["taxed"](energy, 100 * fee, levy)
            exact = Fraction(energy + 100 * fee + levy, 100) + Fraction(taxed * self.rates.tax, 100_000)
            bills[customer] = (kwh, int(variant["rounded-total"](exact)))
        return bills

    def _months(self, customer: str) -> list[tuple[int, int]]:
        """Return the days with a meter and all days, of the months of the year with a meter."""
        meters = [meter for meter in self.grid.meters.values() if meter.customer == customer]
        begin = min(meter.installed for meter in meters)
        end = max(meter.removed or datetime.date.max for meter in meters)
        firsts = [datetime.date(self.grid.year, month, 1) for month in range(1, 13)]
        months = [
            ((min(end, after) - max(begin, first)).days, (after - first).days)
            for first, after in itertools.pairwise([*firsts, self.grid.day(self.grid.length)])
        ]
        return [(days, length) for days, length in months if days > 0]

    def due(self, customer: str, cents: int, as_printed: bool) -> int:
        """Return what is due of a bill."""
        for id, day, meant, paid in self.grid.payments:
            if id == customer and self.variant["payments-of-year"](day, meant) == self.grid.year:
                cents -= paid
        return 0 if as_printed and abs(cents) < 100 * self.variant["small-balance"] else cents

    def _instalment(self, cents: int) -> int:
        return int(self.variant["instalment-step"](cents // self.variant["instalments"]))

    def _money(self, cents: int) -> str:
        return "-" * (cents < 0) + str(self.variant["amount"].format(*divmod(abs(cents), 100)))

    def _lines_of_bills(self, bills: Mapping[str, tuple[int, int]]) -> list[list[object]]:
        rows = list[dict[str, object]]()
        for id, (kwh, cents) in bills.items():
            name, zone = self.grid.customers[id]
            rows.append({"id": id, "name": name, "zone": zone, "kwh": kwh, "cents": cents, "text": self._money(cents)})
        order = self.variant["order-of-bills"]
        rows.sort(key=lambda row: (order(row), row["id"]))
        return [[row[key.replace("cents", "text")] for key in self.variant["line-of-bills"]] for row in rows]

    def _gaps(self, totals: _Totals) -> list[tuple[object, ...]]:
        first, after = self.grid.day(0), self.grid.day(self.grid.length)
        return [
            (id, register, one, other)
            for (id, register), rows in sorted(totals.items())
            for (one, _), (other, _) in itertools.pairwise(rows)
            if (other - one).days > self.variant["gap-days"] and first <= other and one < after
        ]


def _split_views(rng: random.Random, names: dict[str, object]) -> dict[str, str]:
    """Draw how the views are divided over files, and their order; return the files by path."""
    views = {
        "marks": [POINTS, BOUNDS, NEIGHBOURS, ANCHORS],
        "levels": [SHARES, LEVELS, rng.choice(PIECES)],
        "prices": [PRICED, ENERGY],
        "fees": [FEES],
        "bills": [BILLS, BALANCES],
    }
    files = dict[str, str]()
    for number, group in enumerate(rng.choice(_DIVISIONS), start=2):
        file = f"{number}0-{rng.choice(group)}"
        names |= dict.fromkeys(group, file)
        texts = [text for part in group for text in views[part]]
        files[f"sql/{file}.sql"] = "".join(rng.sample(texts, len(texts)))
    return files


def _split_scanners(rng: random.Random, names: dict[str, object]) -> dict[str, str]:
    """Draw whether the three sources have a program each; return the files by path."""
    parts = {"round": ("rounds", ROUNDS), "card": ("cards", CARDS), "remote": ("remote", REMOTE)}
    names["common"] = rng.choice(["common", "lines", "values"])
    texts = _shuffled(rng, COMMON)
    merged = rng.random() < 0.4
    for key, (function, _) in parts.items():
        names[function] = names["common"] if merged else function
        program = f'-f "$LIB/@common@.awk" -f "$LIB/{function}.awk"'
        names[f"{key}_program"] = f'-v form={function} -f "$LIB/@common@.awk"' if merged else program
    if merged:
        calls = "".join(f'form == "{function}" {{ {function}() }}\n' for function, _ in parts.values())
        return {"@lib@/@common@.awk": "\n".join([texts, *(text for _, text in parts.values()), calls])}
    return {"@lib@/@common@.awk": texts} | {
        f"@lib@/{name}.awk": f"# Prints METER REGISTER DAY TIME SOURCE VALUE.\n{text}\n{{ {name}() }}\n"
        for name, text in parts.values()
    }


def _shuffled(rng: random.Random, text: str) -> str:
    """Return a program of awk with its functions in a drawn order."""
    blocks = text.rstrip("\n").split("\n\n")
    places = [place for place, block in enumerate(blocks) if block.startswith("function ")]
    for place, block in zip(places, [blocks[place] for place in rng.sample(places, len(places))], strict=True):
        blocks[place] = block
    return "\n\n".join(blocks) + "\n"


def _draw_rates(rng: random.Random) -> Rates:
    profile = [rng.randint(2, 4) if month in (4, 5, 6, 7, 8, 9) else rng.randint(5, 9) for month in range(1, 13)]
    levy, reduction = rng.randint(15, 29) * 10, rng.randint(10, 25) * 10
    return Rates(levy, reduction, 100 * rng.randint(50, 70), rng.choice([77, 78, 79, 81, 82, 83]), profile)


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: names of files, rates, a grid, and visits and seals of some months."""
    rates = _draw_rates(rng)
    names: dict[str, object] = {
        "lib": rng.choice(["lib", "tools", "share", "programs"]),
        "daily": rng.choice(["daily", "once", "days-only"]),
        "totals": rng.choice(["totals", "counters", "sums"]),
        "load": rng.choice(["load", "report", "tables"]),
        "rates": rng.choice(["rates", "levy", "prices"]),
        "levy": rates.levy,
        "reduction": rates.reduction,
        "large": rates.large,
        "tax": rates.tax,
        "levy_wrong": rates.levy // 10,
        "tax_wrong": (rates.tax + 5) // 10,
        "levy_rappen": f"{rates.levy / 100:g}",
        "off_rappen": f"{rates.reduction / 100:g}",
        "tax_percent": f"{rates.tax / 10:g}",
    }
    shapes = {name: rng.choice(ways) for name, ways in SHAPES.items()}
    texts = {"bin/meter": METER, **_split_scanners(rng, names), **_split_views(rng, names)}
    texts |= {"@lib@/days.awk": DAYS, "@lib@/@daily@.awk": _shuffled(rng, DAILY)}
    texts |= {"@lib@/@totals@.awk": _shuffled(rng, TOTALS), "@lib@/@load@.py": LOAD}
    texts |= {"sql/tables.sql": TABLES, "sql/10-calendar.sql": CALENDAR}
    texts |= {f"reports/{name}.sql": text for name, text in REPORTS.items()}
    for name, way in shapes.items():
        texts = {path: text.replace(f"@{name}@", way) for path, text in texts.items()}
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    files = variant.files({**texts, "etc/@rates@.conf": RATES}) | variant.document(rng)
    files["etc/profile.tsv"] = "".join(f"{month:02}\t{weight}\n" for month, weight in enumerate(rates.profile, start=1))
    # Nothing reads these four.
    files["old/fees.sql"] = variant.outdated(FEES)
    files["old/shares.sql"] = SHARES.replace("<= a.day", "< a.day").replace(
        "c.passed - p.passed", "n.passed - c.passed"
    )
    files[f"old/{names['totals']}.awk"] = variant.outdated(TOTALS)
    files["etc/2019.conf"] = "levy = 190\nreduction = 150\nlarge = 5000\ntax = 77\n"
    files |= {"docs/data.md": variant.words(FORMAT), "docs/notes.md": notes(rng, "Notes of the grid", 10)}
    grid = draw_grid(rng)
    files |= {f"data/{name}": text for name, text in grid.files().items()}
    questions = _questions(rng, files)
    fixed = frozenset(path for path in files if path.startswith(("data/", "visits/", "seals/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        groups = (["use", "bills", "balance"], ["plan", "gaps", "doubts"])
        for _ in range(DRAWS):
            utility = _Utility(variant, draw_grid(fresh), rates)
            if utility.shows_rules():
                break
        utility.add_payments()
        inputs = {f"grid of today/{name}": text for name, text in utility.grid.files().items()}
        return [
            Check(
                "-".join(group),
                f'bin/meter "$IN/grid of today" {utility.grid.year} {" ".join(group)}',
                utility.text(group),
                inputs,
            )
            for group in groups
        ]

    about = (
        "`bin/meter FOLDER YEAR REPORT...` prints reports on meters of electricity and their bills: use, bills, "
        f"balance, plan, gaps and doubts, for example `bin/meter data {grid.year} use bills`. `docs/data.md` describes "
        f"the data and the reports, and `{variant.page}` says what was agreed."
    )
    looks = ["ls * | head -90", f"cat bin/meter docs/data.md {names['lib']}/*", "tail -n +1 sql/* reports/* etc/*"]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_faults_of_files(variant, files, looks),
    ]
    return Project(about, files, faults, checks, {"bin/meter": 0o755}, fixed=fixed, questions=questions)


def _faults_of_files(variant: Variant, files: Mapping[str, str], looks: Sequence[str]) -> list[Fault]:
    lib, fees = variant.names["lib"], variant.words("sql/@fees@.sql")
    return [
        file_in_the_way(
            "sql/15-points.sql",
            "-- Of the first version: every reading weighs the same.\n"
            "CREATE VIEW IF NOT EXISTS points AS SELECT t.*, 0 AS passed FROM totals t;\n",
            [*looks, f"grep -l points sql/* {fees}"],
            "It ends with an error about a view.",
            "view-twice",
        ),
        file_in_the_way(
            f"{lib}/sqlite3.py",
            '"""How many meters a light needs."""\n\nMETERS = {"hall": 2, "stairs": 4}\n',
            looks,
            "It ends with an AttributeError in a module that nobody has changed.",
            "own-sqlite3",
        ),
        carriage_returns("bin/meter", "It ends at once, and the shell's words about it make no sense.", looks),
        lost_permission("bin/meter", looks),
    ]


def _questions(rng: random.Random, files: dict[str, str]) -> list[Question]:
    """Draw visits of technicians and lists of seals, and ask about them."""
    technicians = rng.sample(SURNAMES, 14)
    longest = draw_journal(
        rng,
        files,
        "visits/2025-{:02}.txt",
        technicians,
        range(10, 90_000),
        lambda month, name, seconds, visit: f"{rng.randint(1, 28):02}.{month:02}. {name} {visit} {seconds}",
    )
    roll_of = draw_lists(
        rng, files, "seals", "roll", lambda seal: f"{seal} M{rng.randint(1000, 1999)}", counts=(14, 24)
    )
    return [
        asked_together([_longest_visit(one, longest[one]) for one in rng.sample([*longest], ASKED)]),
        asked_together([_roll_of_seal(one, roll_of[one]) for one in rng.sample(sorted(roll_of), ASKED)]),
    ]


def _longest_visit(name: str, visit: str) -> Question:
    return Question(
        "visit-of-technician",
        f"Which visit of {name} took most seconds (the last column), by visits/?",
        visit,
        ["head -2 visits/2025-01.txt", f"grep -h ' {name} ' visits/* | sort -k4n | tail -1 | cut -d' ' -f3"],
    )


def _roll_of_seal(seal: str, roll: str) -> Question:
    return Question(
        "roll-of-seal",
        f"Which roll is the seal {seal} of, by seals/?",
        roll,
        ["head -2 seals/*1*.txt", f"grep -l '^{seal} ' seals/* | xargs sed -n 's/^roll //p'"],
    )
