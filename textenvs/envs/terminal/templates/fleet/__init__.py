"""The template *fleet*: trips, receipts of fuel, services and contracts of vehicles; reports by SQLite, awk and Python.

It needs bash, awk (mawk is enough), sort and Python 3 with its module sqlite3.
"""

from __future__ import annotations

import calendar
import datetime
import functools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...project import Check, Fault, Project, Question
from ..parts import ASKED, asked_together, fault_of_command, file_in_the_way, lost_permission, notes
from ..records import draw_journal, draw_lists
from ..variation import DRAWS, Variant
from . import texts
from .data import METRES, NEEDS, Fill, Fleet, Trip, Vehicle, draw_fleet
from .faults import EDITS
from .rules import IDENTIFIERS, RULES

_REPORTS = ("mileage", "fuel", "due", "costs", "drivers", "alerts")
#: Rules whose options may give the same report by chance.
_BY_CHANCE = {"fuel": ("full-filling",), "due": ("due-by",), "alerts": ("long-day",)}
_DAY = datetime.timedelta(days=1)


class _Costs(NamedTuple):
    plate: str
    model: str
    parts: tuple[int, ...]
    km: int

    @property
    def total(self) -> int:
        return sum(self.parts)

    @property
    def lost(self) -> int:
        return self.parts[-1]


@dataclass(frozen=True)
class _Reports:
    """The reports on a fleet by the rules of a project."""

    variant: Variant
    fleet: Fleet
    separator: str
    gaps: Mapping[Trip, int] = field(init=False)

    def __post_init__(self) -> None:
        """Find the odometer's distance before each trip, in units of the vehicle."""
        gaps = dict[Trip, int]()
        for vehicle in self.fleet.vehicles:
            before = vehicle.start
            for trip in self.fleet.trips_of(vehicle):
                gaps[trip] = trip.start - before
                before = trip.stop
        object.__setattr__(self, "gaps", gaps)

    def text(self, names: Sequence[str] = _REPORTS) -> str:
        rows = {name: getattr(self, f"_{name}")() for name in names}
        return "\n".join(
            line
            for name in names
            for line in [f"== {name}", *(self.separator.join(map(str, row)) for row in rows[name])]
        )

    def text_by(self, variant: Variant, names: Sequence[str] = _REPORTS) -> str:
        """Return reports by other rules."""
        return _Reports(variant, self.fleet, self.separator).text(names)

    def _km(self, vehicle: Vehicle, distance: int) -> int:
        return (distance * METRES[vehicle.unit] + int(self.variant["mile-rounding"])) // 1000

    def _counts(self, trip: Trip) -> bool:
        return self.fleet.has_day(trip.ends.date() if self.variant["day-of-trip"] else trip.begins.date())

    def _minutes(self, trip: Trip) -> int:
        return int(self.variant["hours-rounding"](int((trip.ends - trip.begins).total_seconds()) // 60))

    def _distances(self, vehicle: Vehicle) -> tuple[int, int, int]:
        """Return the kilometres of a vehicle's trips, those of private ones, and missing ones."""
        km = private = missing = 0
        for trip in filter(self._counts, self.fleet.trips_of(vehicle)):
            own = self._km(vehicle, trip.stop - trip.start)
            km += own
            missing += self._km(vehicle, self.gaps[trip])
            if trip.purpose == self.variant["private-purpose"]:
                private += own
        return km, private, missing

    def _mileage(self) -> list[Sequence[object]]:
        columns = self.variant["mileage-columns"]
        return [(one.plate, *columns(*self._distances(one))) for one in self.fleet.sorted_vehicles()]

    def _fills(self, vehicle: Vehicle) -> list[Fill]:
        """Return the receipts of a vehicle that count, by time."""
        best = dict[str, Fill]()
        for fill in self.fleet.fills:
            rank = self.variant["repeated-receipt"]
            if fill.receipt not in best or rank(fill) < rank(best[fill.receipt]):
                best[fill.receipt] = fill
        own = [fill for fill in best.values() if fill.plate == vehicle.plate]
        return sorted(own, key=lambda fill: fill.when)

    def _consumption(self, vehicle: Vehicle) -> tuple[int, str]:
        """Return the number of stages, and the consumption."""
        origin, burned, km, since, stages = None, 0, 0, 0, 0
        for fill in self._fills(vehicle):
            since += fill.centilitres
            if not self.variant["full-filling"](fill.full, fill.centilitres / vehicle.tank):
                continue
            if origin is not None and self.fleet.has_day(fill.day):
                stages += 1
                burned += since
                km += self._km(vehicle, fill.odometer - origin)
            origin, since = fill.odometer, 0
        return stages, self.variant["consumption-figure"](burned, km) if km else "-"

    def _fuel(self) -> Iterator[Sequence[object]]:
        for vehicle in self.fleet.sorted_vehicles():
            fills = [fill for fill in self._fills(vehicle) if self.fleet.has_day(fill.day)]
            litres, cents = (sum(getattr(fill, name) for fill in fills) for name in ("centilitres", "cents"))
            price = 100 * cents // litres if litres else "-"
            figures = f"{litres // 100}.{litres % 100:02}", price, *self._consumption(vehicle)
            yield vehicle.plate, len(fills), *figures

    def _reading(self, vehicle: Vehicle) -> int:
        stops = [trip.stop for trip in self.fleet.trips_of(vehicle) if trip.ends.date() <= self.fleet.last]
        return max(stops, default=vehicle.start)

    def _is_over(self, *remaining: int | None) -> bool:
        return bool(self.variant["due-by"]([number <= 0 for number in remaining if number is not None]))

    def _due(self) -> Iterator[Sequence[object]]:
        fleet, variant = self.fleet, self.variant
        for vehicle in fleet.sorted_vehicles():
            for what, km, months in sorted(fleet.intervals[vehicle.kind]):
                past = [one for one in fleet.services if one[0] == vehicle.plate and one[3] == what]
                past = [one for one in past if one[1] <= fleet.last]
                if not past and not variant["never-serviced"]:
                    continue
                _, day, odometer, *_ = (
                    max(past, key=lambda one: one[1]) if past else ("", vehicle.bought, vehicle.start)
                )
                left, again, wait = None, None, None
                if km is not None:
                    left = km - self._km(vehicle, self._reading(vehicle) - odometer)
                if months is not None:
                    again = later(day, months)
                    wait = (again - fleet.last).days
                near = [
                    None if left is None else left - variant["soon-km"],
                    None if wait is None else wait - variant["soon-days"],
                ]
                if self._is_over(left, wait) or self._is_over(*near):
                    state = "due" if self._is_over(left, wait) else "soon"
                    yield vehicle.plate, what, "-" if left is None else left, again or "-", state

    def _fixed(self, vehicle: Vehicle) -> int:
        total = 0
        for plate, _, since, until, cents in self.fleet.fixed:
            begin, end = max(since, self.fleet.first), min(until or self.fleet.last, self.fleet.last)
            if plate == vehicle.plate and begin <= end:
                months = len({(day.year, day.month) for day in _days(begin, end)})
                total += self.variant["fixed-share"](cents, (end - begin).days + 1, months)
        return total

    def _lost(self, vehicle: Vehicle) -> int:
        life = 12 * self.variant["depreciation-years"]
        months = {(day.year, day.month) for day in _days(self.fleet.first, self.fleet.last)}
        born = 12 * vehicle.bought.year + vehicle.bought.month
        alive = sum(born <= 12 * year + month < born + life for year, month in months)
        return int(vehicle.price * (100 - self.variant["rest-value"]) // 100 * alive // life)

    def _costs(self) -> list[Sequence[object]]:
        rows = list[_Costs]()
        for one in self.fleet.sorted_vehicles():
            km, private, missing = self._distances(one)
            minus, plus = self.variant["cost-per-km"]
            fuel = sum(fill.cents for fill in self._fills(one) if self.fleet.has_day(fill.day))
            service = sum(
                c for plate, day, _, _, c in self.fleet.services if plate == one.plate and self.fleet.has_day(day)
            )
            parts = (fuel, service, self._fixed(one), self._lost(one))
            rows.append(_Costs(one.plate, one.model, parts, km + minus * private + plus * missing))
        rows.sort(key=self.variant["order-of-costs"])

        def money(cents: int) -> str:
            return str(self.variant["amount"].format(*divmod(cents, 100)))

        return [
            (row.plate, *map(money, (*row.parts, row.total)), row.total // row.km if row.km else "-") for row in rows
        ]

    def _drivers(self) -> Iterator[Sequence[object]]:
        fleet, whose = self.fleet, self.variant["gap-km"]
        for driver in fleet.drivers:
            km = count = spent = 0
            for vehicle in fleet.vehicles:
                trips = fleet.trips_of(vehicle)
                for place, trip in enumerate(trips):
                    if trip.driver != driver.id or not self._counts(trip):
                        continue
                    count += 1
                    spent += self._minutes(trip)
                    km += self._km(vehicle, trip.stop - trip.start)
                    if whose == "after":
                        km += self._km(vehicle, self.gaps[trip])
                    if whose == "before" and place + 1 < len(trips):
                        km += self._km(vehicle, self.gaps[trips[place + 1]])
            yield driver.id, driver.name, count, f"{spent // 60}:{spent % 60:02}", km

    def _alerts(self) -> list[Sequence[object]]:
        fleet, variant, alerts = self.fleet, self.variant, set[tuple[datetime.date, str, str, str]]()
        spent = dict[tuple[datetime.date, str], int]()
        drivers = {driver.id: driver for driver in fleet.drivers}
        for vehicle in fleet.vehicles:
            for fill in self._fills(vehicle):
                if fill.centilitres > variant["tank-tolerance"] * vehicle.tank:
                    alerts.add((fill.day, "tank", vehicle.plate, fill.receipt))
            for trip in fleet.trips_of(vehicle):
                day, driver = trip.begins.date(), drivers[trip.driver]
                spent[day, driver.id] = spent.get((day, driver.id), 0) + self._minutes(trip)
                last = driver.until - variant["licence-last-day"] * _DAY
                if day > last or not variant["licence-classes"](driver.classes.split(), NEEDS[vehicle.kind]):
                    alerts.add((day, "licence", driver.id, vehicle.plate))
        same = variant["overlapping-trips"]
        for trip in fleet.trips:
            rivals = [one for one in fleet.trips if getattr(one, same) == getattr(trip, same)]
            if any(one.begins < trip.begins < one.ends for one in rivals):
                alerts.add((trip.begins.date(), "overlap", trip.driver, trip.plate))
        alerts |= {(*key[:1], "hours", key[1], str(n)) for key, n in spent.items() if n > 60 * variant["long-day"]}
        return [alert for alert in sorted(alerts) if self.fleet.has_day(alert[0])]


def _days(first: datetime.date, last: datetime.date) -> Iterator[datetime.date]:
    while first <= last:
        yield first
        first += _DAY


def later(day: datetime.date, months: int) -> datetime.date:
    """Return the same day of a later month, or its last one."""
    month = day.month
    year = day.year
    for _ in range(months):
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)
    return datetime.date(year, month, min(day.day, calendar.monthrange(year, month)[1]))


def _drawn_names(rng: random.Random) -> tuple[dict[str, object], dict[str, str]]:
    """Draw the names of a project, and the ways in which parts of its programs are written."""
    km_key, days_key, years_key = rng.choice(
        [("soon_km", "soon_days", "life"), ("km_before", "days_before", "years"), ("near", "ahead", "lifetime")]
    )
    names: dict[str, object] = {
        "lib": rng.choice(["lib", "share", "inside", "core", "tools"]),
        "main": rng.choice(["main", "report", "fleet", "run"]),
        "year": rng.choice([2024, 2025, 2026]),
        "separator": rng.choice([" | ", ";", " / ", " ~ "]),
        "km_key": km_key,
        "days_key": days_key,
        "years_key": years_key,
        "old_km": rng.choice([500, 700, 900]),
        "old_days": rng.choice([7, 14, 21]),
        "old_years": rng.choice([7, 9, 10]),
    }
    shapes = {name: rng.choice(ways) for name, ways in texts.SHAPES.items()}
    apart, module = rng.random() < 0.5, rng.choice(["dates", "calendars", "months"])
    names["dates"] = module if apart else "functions"
    imports = "import json\nfrom pathlib import Path\n"
    shapes["shape_imports"] = (
        f"{imports}\nfrom {module} import days, later, minutes, months_between\n"
        if apart
        else f"import calendar\nimport datetime\n{imports}"
    )
    functions = [*texts.FUNCTIONS, *(() if apart else texts.DATES)]
    shapes["functions"] = "\n\n".join(
        [texts.FUNCTIONS_HEAD, *rng.sample(functions, len(functions)), texts.REGISTER]
    ).replace("@shape_imports@", shapes["shape_imports"])
    shapes["dates"] = "\n\n".join([texts.DATES_HEAD, *rng.sample(texts.DATES, len(texts.DATES))]) if apart else ""
    shapes["common"] = "\n".join(rng.sample(texts.COMMON, len(texts.COMMON)))
    shapes["alerts"] = "UNION ALL\n".join(rng.sample(texts.ALERTS, len(texts.ALERTS)))
    return names, shapes


def _programs(shapes: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of programs, by path."""
    programs = {
        "bin/fleet": texts.FLEET,
        "@lib@/common.awk": "# Functions for files of depots and cards.\n\n" + shapes["common"],
        "@lib@/trips.awk": texts.TRIPS,
        "@lib@/receipts.awk": texts.RECEIPTS,
        "@lib@/@main@.py": texts.MAIN,
        "@lib@/functions.py": shapes["functions"],
        "@lib@/@dates@.py": shapes["dates"] or shapes["functions"],
        "sql/steps.txt": texts.STEPS,
        "sql/tables.sql": texts.TABLES,
        "sql/corrections.sql": texts.CORRECTIONS,
        "sql/trips.sql": texts.RIDES,
        "sql/fuel.sql": texts.FUEL,
        "sql/services.sql": texts.SERVICES,
        "sql/costs.sql": texts.COSTS,
        "sql/drivers.sql": texts.DRIVERS,
        "sql/alerts.sql": f"-- What somebody should look at.\nCREATE VIEW alerts AS\n{shapes['alerts'].rstrip()};\n",
        **{f"reports/{name}.sql": query for name, query in texts.REPORTS.items()},
        "etc/@year@.json": texts.SETTINGS,
        "etc/units.csv": texts.UNITS,
        "etc/needs.csv": texts.NEEDS,
    }
    for name in texts.SHAPES:
        programs = {path: text.replace(f"@{name}@", shapes[name]) for path, text in programs.items()}
    return programs


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: names and ways of writing, a fleet, and the key boxes and journals of a garage."""
    names, shapes = _drawn_names(rng)
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    programs = _programs(shapes)
    files = variant.files(programs) | variant.document(rng)
    year, lib = int(str(names["year"])), str(names["lib"])
    # Nothing reads these.
    files[f"etc/{year - 1}.json"] = variant.text(texts.OLD_SETTINGS)
    files[f"old/{year - 1}/fuel.sql"] = variant.outdated(programs["sql/fuel.sql"])
    files[f"old/{year - 1}/drivers.sql"] = variant.text(texts.DRIVERS).replace("LEFT JOIN", "JOIN")
    files["old/functions.py"] = variant.outdated(programs["@lib@/functions.py"])
    files["docs/notes.md"] = notes(rng, "Notes on the vehicles", 12)
    files["docs/data.md"] = texts.FORMAT
    fleet = draw_fleet(rng)
    files |= {f"data/{name}": text for name, text in fleet.files(rng).items()}
    questions = _questions(rng, files, [vehicle.plate for vehicle in fleet.vehicles])
    fixed = frozenset(path for path in files if path.startswith(("data/", "journal/", "garage/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return _checks(fresh, variant, str(names["separator"]))

    about = (
        "`bin/fleet FOLDER FIRST-DAY LAST-DAY REPORT...` prints reports on the vehicles of a firm: mileage, fuel, due, "
        f"costs, drivers and alerts, for example `bin/fleet data {fleet.first} {fleet.last} mileage due`. "
        f"`docs/data.md` describes the data and the reports, and `{variant.page}` says what was agreed. "
        "`etc/current.json` is a link."
    )
    looks = [
        "ls * | head -90",
        f"tail -n +1 bin/fleet {lib}/*.awk {lib}/*.py docs/data.md",
        "tail -n +1 sql/* reports/*",
        "ls -l etc; tail -n +1 etc/*",
    ]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_file_faults(variant, looks),
    ]
    setup = f"ln -s {year}.json etc/current.json"
    return Project(about, files, faults, checks, {"bin/fleet": 0o755}, setup=setup, fixed=fixed, questions=questions)


def _checks(rng: random.Random, variant: Variant, separator: str) -> list[Check]:
    """Print three reports, and three others, on a fleet in which all other options of rules show."""
    for _ in range(DRAWS):
        fleet = draw_fleet(rng)
        reports = _Reports(variant, fleet, separator)
        if all(
            variant.separates(rules, functools.partial(reports.text_by, names=[name]))
            for name, rules in _BY_CHANCE.items()
        ):
            break
    inputs = {f"a fleet/{name}": text for name, text in fleet.files(rng).items()}
    return [
        Check(
            "-".join(names),
            f'bin/fleet "$IN/a fleet" {fleet.first} {fleet.last} {" ".join(names)}',
            reports.text(names),
            inputs,
        )
        for names in (_REPORTS[:3], _REPORTS[3:])
    ]


def _file_faults(variant: Variant, looks: Sequence[str]) -> list[Fault]:
    lib, year = variant.names["lib"], int(str(variant.names["year"]))
    old = f"old/{year - 1}/drivers.sql"
    return [
        file_in_the_way(
            f"{lib}/json.py",
            '"""Trips of Jason, who drives on Sundays."""\n\nTRIPS = ["church", "lake"]\n',
            looks,
            "It ends with an AttributeError in a module that nobody has changed.",
            "namesake-module",
        ),
        fault_of_command(
            "link-to-older-year",
            "Services and the loss of value follow what held before the last meeting.",
            looks,
            f"ln -sfn {year - 1}.json etc/current.json",
            f"ln -sfn {year}.json etc/current.json",
        ),
        Fault(
            "missing-step-file",
            "No report is printed: a file is not there.",
            [*looks, f"cat {old}"],
            f"sed 's/ JOIN/ LEFT JOIN/' {old} > sql/drivers.sql",
            removed=["sql/drivers.sql"],
        ),
        lost_permission("bin/fleet", looks),
    ]


def _questions(rng: random.Random, files: dict[str, str], plates: Sequence[str]) -> list[Question]:
    """Draw journals of the washing plant, and boxes of keys; ask about them."""
    dearest = draw_journal(
        rng,
        files,
        "journal/2025-{:02}.log",
        plates,
        range(1000, 90_000),
        lambda month, plate, litres, ticket: (
            f"{rng.randint(1, 28):02}.{month:02}. wash ticket={ticket} plate={plate} water={litres}"
        ),
        months=8,
    )
    kinds = ("spare", "first", "trailer", "padlock")
    box_of = draw_lists(rng, files, "garage", "box", lambda key: f"{rng.choice(kinds)} {key}", counts=(10, 22))
    return [
        asked_together([_wettest_wash(one, dearest[one]) for one in rng.sample([*dearest], ASKED)]),
        asked_together([_box_of_key(one, box_of[one]) for one in rng.sample(sorted(box_of), ASKED)]),
    ]


def _wettest_wash(plate: str, ticket: str) -> Question:
    command = (
        f"grep -h ' plate={plate} ' journal/* | sed 's/.*ticket=\\(.*\\) plate.*water=/\\1 /' | sort -k2,2n | tail -1"
    )
    return Question(
        "wettest-wash",
        f"Which ticket of a wash of {plate} has most water, by journal/?",
        ticket,
        ["head -3 journal/2025-01.log", f"{command} | cut -d' ' -f1"],
    )


def _box_of_key(key: str, box: str) -> Question:
    return Question(
        "box-of-key",
        f"In which box is the key {key}, by garage/?",
        box,
        [f"grep -r {key} garage", f"grep -l ' {key}$' garage/* | xargs sed -n 's/^box //p'"],
    )
