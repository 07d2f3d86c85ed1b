"""Grids of the template `metering`: what is drawn for a project, and for a check."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from ..parts import CITIES, FIRST_NAMES, SURNAMES, token

#: Limits that rules have for use a day, and for gaps.
_MOST, _GAPS = (60, 80, 100, 150), (100, 150, 200, 370)
#: Last values of registers that begin again, or seem to, of ten thousand.
_TURNED = (4000, 5000, 7000, 8000, 8600, 9000, 9300, 9500, 9800)
_ROUNDS, _CARDS, _REMOTE = ("2nd-tour.txt", "north.txt", "yard.txt"), ("phone.csv", "post.csv"), ("a.log", "gsm.log")


@dataclass(frozen=True)
class Rates:
    """Hundredths of a rappen for a kilowatt hour, kilowatt hours, and tenths of a per cent."""

    levy: int
    reduction: int
    large: int
    tax: int
    profile: Sequence[int]


@dataclass(frozen=True)
class Meter:
    """A meter, with one register or two."""

    id: str
    customer: str
    digits: int
    factor: int
    installed: datetime.date
    removed: datetime.date | None


@dataclass(frozen=True)
class Reading:
    """A reading of a register."""

    meter: str
    register: str
    day: datetime.date
    time: str
    source: str
    value: Fraction
    is_test: bool = False


@dataclass
class Grid:
    """The data of a grid, which are drawn case by case; days count from the first one of the year."""

    rng: random.Random
    year: int
    customers: dict[str, tuple[str, str]] = field(default_factory=dict)
    meters: dict[str, Meter] = field(default_factory=dict)
    tariffs: list[tuple[str, datetime.date, int, int, int]] = field(default_factory=list)
    payments: list[tuple[str, datetime.date, int, int]] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)

    def day(self, number: int) -> datetime.date:
        return datetime.date(self.year, 1, 1) + datetime.timedelta(days=number)

    @property
    def length(self) -> int:
        return (datetime.date(self.year + 1, 1, 1) - datetime.date(self.year, 1, 1)).days

    def customer(self, zone: int = -1) -> str:
        """Draw a customer; the number has two parts."""
        rng, zones = self.rng, sorted({zone for zone, *_ in self.tariffs})
        id = f"K {101 + 3 * len(self.customers) + rng.randint(0, 2)}"
        name = f"{rng.choice(FIRST_NAMES)} {rng.choice(SURNAMES)}"
        self.customers[id] = (name, zones[zone] if zone >= 0 else rng.choice(zones))
        return id

    def meter(
        self, installed: int = -800, removed: int | None = None, *, customer: str = "", digits: int = 6, factor: int = 1
    ) -> str:
        """Draw a meter, of a new customer where none is named."""
        id = f"M{1001 + 4 * len(self.meters) + self.rng.randint(0, 3)}"
        end = None if removed is None else self.day(removed)
        self.meters[id] = Meter(id, customer or self.customer(), digits, factor, self.day(installed), end)
        return id

    def join(self, one: str, other: str) -> None:
        """Give the second meter to the customer of the first."""
        self.meters[other] = replace(self.meters[other], customer=self.meters[one].customer)

    def read(self, meter: str, rows: Sequence[tuple[int, int]], register: str = "T", source: str = "") -> None:
        """Draw readings of days and values."""
        for number, value in rows:
            self.read_at(meter, number, value, register, source or self.rng.choice(["round", "card", "remote"]))

    def read_at(
        self, meter: str, number: int, value: int, register: str, source: str, *, tenths: int = -1, time: str = ""
    ) -> None:
        rng = self.rng
        exact = Fraction(value)
        if source == "remote":
            exact += Fraction(tenths if tenths >= 0 else rng.choice([0, 2, 5, 7]), 10)
        clock = {"card": "23:59", "remote": f"00:{rng.randint(0, 59):02}"}.get(source, f"{8 + number % 9:02}:30")
        self.readings.append(Reading(meter, register, self.day(number), time or clock, source, exact))

    def files(self) -> dict[str, str]:
        """Return the tables, and the files of readings."""
        rng = self.rng

        def table(head: str, rows: Sequence[Sequence[object]]) -> str:
            return "".join("\t".join(map(str, row)) + "\n" for row in [head.split(), *rows])

        meters = [(m.id, m.customer, m.digits, m.factor, m.installed, m.removed or "") for m in self.meters.values()]
        files = {
            "customers.tsv": table("id name zone", [(id, *rest) for id, rest in self.customers.items()]),
            "meters.tsv": table("meter customer digits factor installed removed", meters),
            "tariffs.tsv": table("zone day high low base", rng.sample(self.tariffs, len(self.tariffs))),
            "payments.tsv": table("customer day year rappen", rng.sample(self.payments, len(self.payments))),
        }
        lines = dict[str, list[str]]()
        groups = dict[tuple[str, datetime.date, str, str, bool], list[Reading]]()
        for one in self.readings:
            key = (one.meter, one.day, one.time, one.source, one.is_test)
            groups.setdefault(key, []).append(one)
        for (meter, day, time, source, is_test), rows in groups.items():
            name = rng.choice([meter, meter, meter.lower()])
            if source == "round":
                pairs = " ".join(f"{one.register} {one.value.numerator:06}" for one in rows)
                lines.setdefault(f"rounds/{rng.choice(_ROUNDS)}", []).append(f"{day} {time} {name} {pairs}")
            elif source == "card":
                for one in rows:
                    register = rng.choice([one.register, one.register.lower()])
                    value = f"{one.value.numerator:_}".replace("_", "'")
                    lines.setdefault(f"cards/{rng.choice(_CARDS)}", []).append(
                        f"{name};{day:%d.%m.%Y};{register};{value}"
                    )
            else:
                pairs = " ".join(f"{one.register}={float(one.value):.1f}" for one in rows)
                status = "test" if is_test else rng.choice(["ok", "low"])
                lines.setdefault(f"remote/{rng.choice(_REMOTE)}", []).append(f"{day}T{time}Z {name} {pairs} {status}\r")
        for path, texts in sorted(lines.items()):
            texts = rng.sample(texts, len(texts))
            head = [f"# {token(rng)}", ""] if path.startswith("rounds") else []
            files[path] = "\n".join([*head, *texts]) + "\n"
        return files


def draw_grid(rng: random.Random) -> Grid:
    """Draw a grid in which each rule and each fault shows."""
    grid = Grid(rng, rng.randint(2022, 2025))
    zones = sorted(city.lower() for city in rng.sample(CITIES, 3))
    highs, lows = iter(rng.sample(range(2400, 3400), 12)), iter(rng.sample(range(1100, 1900), 12))
    for zone, days in zip(zones, ((-700, 90), (-900, -200, 273, grid.length), (-1000, 60, 181)), strict=True):
        for number in days:
            grid.tariffs.append((zone, grid.day(number), next(highs), next(lows), rng.randint(80, 150) * 10))
    _add_estimates(grid)
    _add_odd_readings(grid)
    _add_limits(grid)
    _add_times(grid)
    _add_gaps(grid)
    return grid


def _add_estimates(grid: Grid) -> None:
    """Add meters with readings on the days that matter, or between them, or none after a time."""
    rng, length = grid.rng, grid.length
    for zone in range(3):
        meter, value = grid.meter(customer=grid.customer(zone)), rng.randint(1000, 9000)
        rows, before = list[tuple[int, int]](), -800
        for number, rate in (
            (-800, 0),
            (-395, 5),
            (0, 9),
            (60, 20),
            (181, 2),
            (273, 12),
            (length, 7),
            (length + 40, 15),
        ):
            value += rate * (number - before) + rng.randint(1, 9)
            rows.append((number, value))
            before = number
        grid.read(meter, rows, source="round")
        meter, customer = grid.meter(customer=grid.customer(zone)), [*grid.customers][-1]
        for register in "DN":
            value, rows = rng.randint(1000, 9000), []
            for number in (-300, -45, 50, 120, 250, length + 35):
                value += rng.randint(300, 2300)
                rows.append((number, value))
            grid.read(meter, rows, register)
        for number, meant in ((-20, 0), (8, -1), (12, 0), (150, 0), (length + 19, 0), (length + 40, 0)):
            paid = 100 * rng.randint(40, 90) + rng.randint(1, 99)
            grid.payments.append((customer, grid.day(number), grid.year + meant, paid))
    for register in "TDN":
        meter = grid.meter()
        grid.read(meter, [(-200, 1000), (-100, 1507), (100, 4511), (200, 4999 + rng.randint(1, 40))], register)


def _add_odd_readings(grid: Grid) -> None:
    """Add meters that are read twice a day, tested, replaced, or unknown."""
    rng, length = grid.rng, grid.length
    meter = grid.meter(factor=30)
    for register, shift in (("D", 0), ("N", 2)):
        for place, (number, value) in enumerate(((-60, 1000), (0, 1070), (100, 1170), (200, 1290), (length, 1420))):
            tenths = (0, 3, 5, 8, 6, 2)[place + shift - (place + shift > 5) * 6]
            grid.read_at(meter, number, value, register, "remote", tenths=tenths)
    meter = grid.meter()
    grid.read(meter, [(-300, 4000)], source="round")
    for source, value, time in (
        *(("remote", 5003, "00:05"), ("round", 5002, "10:10"), ("remote", 5009, "18:00")),
        *(("remote", 5000, "20:00"), ("card", 5004, "23:59")),
    ):
        grid.read_at(meter, 0, value, "T", source, tenths=0, time=time)
    grid.read(meter, [(250, 6000), (length, 7000)], source="card")
    meter = grid.meter()
    grid.read(meter, [(-100, 1000), (50, 1400), (300, 4000), (length + 60, 5000)], source="round")
    test = grid.day(length - 1)
    grid.readings.append(Reading(meter, "T", test, "00:20", "remote", Fraction(11 * 500 + rng.randint(1, 99)), True))
    one, other = (grid.meter(installed, removed, customer="") for installed, removed in ((-700, 150), (150, None)))
    grid.join(one, other)
    grid.read(one, [(-50, 2000), (150, 3107), (205, 3900)], source="card")
    grid.read(other, [(140, 3), (150, 12), (300, 1500), (length + 5, 1900)], source="round")
    grid.read("M0999", [(-300, 100), (160, 900)])


def _add_limits(grid: Grid) -> None:
    """Add registers that begin again, and use around the limit of a day."""
    rng = grid.rng
    for last in _TURNED:
        meter = grid.meter(digits=4)
        grid.read(meter, [(-300, last - 900), (-20, last), (200, rng.randint(20, 90)), (420, 1500)], source="round")
    for most in _MOST:
        meter = grid.meter()
        for register, above in (("D", 0), ("N", 5)):
            use = 100 * most + above
            grid.read(meter, [(-30, 1000), (70, 1000 + use), (200, 4000 + use)], register, source="round")
    meter = grid.meter(factor=20)
    grid.read(meter, [(-30, 100), (70, 1100), (200, 1120), (400, 1300)], source="card")
    meter = grid.meter()
    grid.read(meter, [(-10, 10_000), (grid.length + 5, 19_500 + rng.randint(1, 90))], rng.choice("DT"))


def _add_times(grid: Grid) -> None:
    """Add meters that came or went in the year, or before or after it."""
    length = grid.length
    may = (datetime.date(grid.year, 5, 1) - grid.day(0)).days
    for installed in (75, may):
        meter = grid.meter(installed)
        grid.read(meter, [(installed, 7), (installed + 90, 900), (length + 9, 2100)], source="card")
    for removed in (262, may, 0, -100):
        meter = grid.meter(-600, removed)
        grid.read(meter, [(-500, 100), (-170, 1200), (removed, 2900)], source="round")
    grid.read(grid.meter(length + 10), [(length + 10, 0), (length + 50, 900)])
    grid.read(grid.meter(30), [(30, 12)])


def _add_gaps(grid: Grid) -> None:
    """Add meters that were not read for as many days as rules have, or one more."""
    for days in _GAPS:
        value = grid.rng.randint(100, 900)
        meter = grid.meter()
        rows = [(10 - days, value), (10, value + 3 * days), (11 + days, value + 7 * days)]
        for register in "DN":
            grid.read(meter, rows, register, source="round")
    meter = grid.meter()
    grid.read(meter, [(-50, 1000), (90, 1700), (grid.length + 20, 9000)], source="round")
