"""Data of the template `parcels`: tables of a region, and days with parcels and scans in which every rule shows."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

from ..parts import FIRST_NAMES, SURNAMES, token

SERVICES = ("eco", "normal", "express")
#: Events in the order of their ranks.
EVENTS = ("accepted", "sorted", "loaded", "failed", "deposited", "returned", "delivered")
_WEIGHTS = (8, 6, 4, 2, 3, 5, 9, 7)
#: Mondays without work, after a February.
_MONDAYS = ("2023-03-06", "2024-03-04", "2025-03-03", "2026-03-02", "2027-03-01")
_DEPOTS = ("ARBON", "BRIG", "CHUR", "DAVOS", "GENF", "OLTEN", "SION", "THUN", "VEVEY", "WIL", "AARAU", "MURI")


@dataclass(frozen=True)
class Region:
    """Tables and settings of a project.

    Args:
        zones: Names by prefix; no code that begins with 9 has one.
        far: The zone of senders without one.
        classes: Classes by two zones, in alphabetical order.
        tariff: Cents by class, service and grams.
        depots: Names by prefix.
        links: Depot, depot, minutes and kilometres.
        days: Working days by service.
        monday: A day without work.
        limits: Settings by name.
        evening: The minute at which a day ends.
    """

    zones: Mapping[str, str]
    far: str
    classes: Mapping[tuple[str, str], int]
    tariff: Mapping[tuple[int, str, int], int]
    depots: Mapping[str, str]
    links: Sequence[tuple[str, str, int, int]]
    days: Mapping[str, int]
    monday: date
    limits: Mapping[str, int]
    evening: int

    @classmethod
    def draw(cls, rng: random.Random) -> Region:
        names = rng.sample(["North", "South", "East", "West", "Alps", "Lakes", "Jura"], 5)
        zones = {str(digit): names[digit % 5] for digit in range(1, 9)}
        zones |= {"12": names[3], "305": names[1], "71": names[0], "7105": names[4]}
        pairs = [(one, other) for one in sorted(names) for other in sorted(names) if one <= other]
        classes = {pair: 1 if pair[0] == pair[1] else 2 + place % 3 for place, pair in enumerate(pairs)}
        steps = [500, 1000, 3000, *rng.choice([(5000, 10_000), (4000, 8000, 12_000), (6000, 15_000)])]
        tariff = {
            (number, service, step): 350 + 170 * number + 275 * place + 190 * row + rng.randint(0, 80)
            for number in (1, 2, 3, 4)
            for place, service in enumerate(SERVICES)
            for row, step in enumerate(steps)
        }
        order = rng.sample(range(9), 9)
        depots = rng.sample(_DEPOTS, 9)
        by_prefix = {str(place + 1): depots[number] for place, number in enumerate(order)}
        by_prefix |= {"44": depots[0], "830": depots[3]}
        limits = {
            "kilo": rng.randint(9, 19) * 10,
            "bulky": rng.randint(30, 90) * 10,
            "girth": rng.randint(110, 145),
            "fuel": rng.choice([7, 9, 11, 12, 13]),
            "wait": rng.randint(3, 9),
        }
        days = {"eco": rng.randint(4, 5), "normal": 2, "express": 1}
        monday, evening = date.fromisoformat(rng.choice(_MONDAYS)), rng.randint(16 * 60 + 31, 18 * 60 + 29)
        return cls(zones, names[2], classes, tariff, by_prefix, _links(rng, depots), days, monday, limits, evening)

    @property
    def steps(self) -> list[int]:
        return sorted({step for *_, step in self.tariff})

    def files(self, rng: random.Random) -> dict[str, str]:
        """Return the tables of etc but for that of prices."""
        zones = [f"{prefix:<6} {name}" for prefix, name in self.zones.items()]
        depots = [f"{prefix:<6} {name}" for prefix, name in self.depots.items()]
        pairs = [pair if rng.random() < 0.5 else pair[::-1] for pair in self.classes]
        classes = [f"{one} {other} {self.classes[min(one, other), max(one, other)]}" for one, other in pairs]
        second = self.monday + timedelta(days=2)
        tables = {
            "zones": ["# prefix, zone", *rng.sample(zones, len(zones))],
            "depots": ["# prefix, depot", *rng.sample(depots, len(depots))],
            "classes": ["# zone, zone, class", *rng.sample(classes, len(classes))],
            "links": ["# depot, depot, minutes, kilometres", *(" ".join(map(str, row)) for row in self.links)],
            "services": ["# service, working days", *(f"{name} {days}" for name, days in self.days.items())],
            "ranks": ["# event, rank", *(f"{name} {place}" for place, name in enumerate(EVENTS, start=1))],
            "free-days": ["# days without work", f"{self.monday.year}-01-01", str(self.monday), str(second)],
        }
        return {f"etc/{name}.txt": "\n".join([*lines, ""]) for name, lines in tables.items()}

    def prices(self, rng: random.Random, extra: int = 0) -> str:
        """Return a table of prices, in any order; ``extra`` is added to them."""
        rows = [f"{number} {service} {step} {cents + extra}" for (number, service, step), cents in self.tariff.items()]
        # The highest steps are the first lines, so that neither the first nor the last line that fits is the right one.
        lines = sorted(rng.sample(rows, len(rows)), key=lambda row: f" {self.steps[-1]} " not in row)
        return "\n".join(["# class, service, grams, cents", *lines, ""])


def _links(rng: random.Random, depots: Sequence[str]) -> list[tuple[str, str, int, int]]:
    """Draw a ring of links in one direction, two ways of equal cost, and further links."""
    first, upper, lower, last, *further = depots
    one, other = (rng.randint(11, 19), rng.randint(11, 19)), (rng.randint(11, 19), rng.randint(11, 19))
    links = [(first, upper, *one), (upper, last, *other), (first, lower, *other), (lower, last, *one)]
    ring = [last, *further, first]
    links += [(tail, head, rng.randint(30, 60), rng.randint(30, 60)) for tail, head in itertools.pairwise(ring)]
    # Fast ones that are long, and short ones that are slow.
    links += [(further[0], further[2], rng.randint(10, 15), rng.randint(120, 150))]
    links += [(further[1], further[4], rng.randint(120, 150), rng.randint(10, 15))]
    links += [(last, further[1], rng.randint(35, 45), rng.randint(35, 45))]
    return rng.sample(links, len(links))


@dataclass(frozen=True)
class Parcel:
    """A line about a parcel; the sides are in any order."""

    number: str
    customer: str
    source: str
    goal: str
    grams: int
    sides: Sequence[int]
    service: str
    time: datetime

    def line(self, rng: random.Random) -> str:
        kilos = f"{self.grams / 1000:.3f}"
        weight = rng.choice([f"{self.grams}", f"{self.grams}g", f"{kilos}kg", f"{kilos.replace('.', ',')}kg"])
        sides = "x".join(map(str, rng.sample(list(self.sides), 3)))
        fields = (self.number, self.customer, self.source, self.goal, weight, sides, self.service)
        gap = " " * rng.choice([0, 0, 1, 2])
        return f";{gap}".join([*fields, self.time.strftime("%Y-%m-%dT%H:%M")]) + gap


@dataclass(frozen=True)
class Scan:
    """An event at a depot, by its clock."""

    time: datetime
    depot: str
    number: str
    event: str


def check_digit(digits: str) -> int:
    rest = 11 - sum(weight * int(digit) for weight, digit in zip(_WEIGHTS, digits, strict=True)) % 11
    return {10: 0, 11: 5}.get(rest, rest)


@dataclass
class Builder:
    """Draws a day: parcels at each limit, customers with few parcels, and scans of one minute."""

    rng: random.Random
    region: Region
    volume_weights: Sequence[int] = (3, 4, 5, 6)
    parcels: list[Parcel] = field(default_factory=list)
    scans: dict[str, list[Scan]] = field(default_factory=dict)
    clocks: list[tuple[str, int]] = field(default_factory=list)
    customers: dict[str, tuple[str, int]] = field(default_factory=dict)
    numbers: set[str] = field(default_factory=set)
    fast: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = self.rng
        ids = [f"{rng.choice('CKM')}{number}" for number in rng.sample(range(100, 999), 7)]
        names = rng.sample([f"{first} {last}" for first in FIRST_NAMES for last in SURNAMES], 7)
        self.customers = {id: (name, rng.randint(4, 15)) for id, name in zip(ids, names, strict=True)}
        self.few = [id for place, id in enumerate(ids[:4]) for _ in range(place + 1)]
        self.many = [*ids[4:6], f"X{rng.randint(10, 99)}", f"X{rng.randint(10, 99)}"]

    def number(self, rest: int | None = None) -> str:
        """Draw a number that is not used yet, perhaps with this rest of the sum of its digits."""
        while True:
            digits = f"{self.rng.randint(0, 99_999_999):08}"
            total = sum(weight * int(digit) for weight, digit in zip(_WEIGHTS, digits, strict=True))
            if digits not in self.numbers and rest in (None, total % 11):
                self.numbers.add(digits)
                return f"{self.rng.choice(['RA', 'CP', 'LX'])}{digits}{check_digit(digits)}CH"

    def code(self, digits: str = "12345678") -> str:
        return f"{self.rng.choice(digits)}{self.rng.randint(0, 999):03}"

    def moment(self) -> datetime:
        """Draw a time in the days around the Monday without work."""
        day = self.region.monday + timedelta(days=self.rng.randint(-12, 3))
        return datetime.combine(day, datetime.min.time()) + timedelta(minutes=self.rng.randint(420, 1200))

    def add(
        self,
        *,
        grams: int = 0,
        sides: Sequence[int] = (),
        codes: Sequence[str] = (),
        service: str = "",
        time: datetime | None = None,
        number: str = "",
        many: bool = False,
    ) -> Parcel:
        rng = self.rng
        source, goal = codes or (self.code(), self.code())
        customer = self.few.pop() if self.few and not many else rng.choice(self.many)
        row = (source, goal, grams or rng.randint(60, 4900), sides or [rng.randint(3, 14) for _ in range(3)])
        parcel = Parcel(number or self.number(), customer, *row, service or rng.choice(SERVICES), time or self.moment())
        self.parcels.append(parcel)
        return parcel

    def build(self) -> None:
        self._weights()
        self._places()
        self._lines()
        self._times()
        self._journeys()
        self._shuffle()

    def _shuffle(self) -> None:
        """Draw the order of parcels; lines with one number are in their order."""
        rows = self.rng.sample(self.parcels, len(self.parcels))
        for number in sorted({one.number.upper() for one in rows}):
            places = [place for place, one in enumerate(rows) if one.number.upper() == number]
            versions = [one for one in self.parcels if one.number.upper() == number]
            for place, one in zip(places, versions, strict=True):
                rows[place] = one
        self.parcels = rows

    def _weights(self) -> None:
        rng, limits, top = self.rng, self.region.limits, self.region.steps[-1]
        for service in SERVICES:
            for codes in (("1800", "6100"), ("2300", "5400")):
                self.add(service=service, codes=codes, grams=rng.randint(510, 740), sides=(5, 4, 3))
        self.add(grams=rng.randint(600, 900), sides=(40, 30, 25))
        self.add(grams=3900, sides=(40, 30, 20))
        self.add(grams=5000, sides=(40, 30, 20))
        # At a step: by weight, and by the mean with the weight of the volume.
        self.add(grams=1000, sides=(5, 4, 3))
        self.add(grams=3000, sides=(5, 4, 3))
        for volume in self.volume_weights:
            self.add(grams=6000 - 12_000 // volume, sides=(30, 20, 20))
        for grams in (top + 300, 2 * top + 600, top + 1300, 2 * top + 2600):
            self.add(grams=grams, sides=(6, 5, 5))
        girth = limits["girth"]
        for sides in (
            (girth + 10, 8, 8),
            (girth - 20, 9, 8),
            (girth - 20, 13, 12),
            (girth, 5, 5),
            (girth - 20, 12, 8),
            (girth - 20, 6, 4),
        ):
            self.add(sides=sides)
        self.add(sides=(girth + 12, 9, 7), service="express")

    def _places(self) -> None:
        region, rng = self.region, self.rng
        by_depot = {name: prefix for prefix, name in region.depots.items() if len(prefix) == 1}
        near = [prefix for prefix, zone in region.zones.items() if len(prefix) == 1 and zone != region.far]
        for _ in range(2):
            self.add(codes=(self.code(rng.choice(near)), self.code("9")), many=True)
        self.add(codes=(self.code("9"), self.code(rng.choice(near))), many=True)
        for code in ("1234", "3051", "7166", "7105", "4412", "8301"):
            self.add(codes=rng.sample([code, self.code("26")], 2))
        tails = {tail: [link[1] for link in region.links if link[0] == tail] for tail, *_ in region.links}
        for tail, heads in tails.items():
            for head in heads:
                for goal in (head, *tails[head]):
                    if len(heads) > 1 and goal != tail:
                        ends = [by_depot[tail] + "999", by_depot[goal] + "999"]
                        self.add(codes=ends, many=True)
        for tail, head in ((link[0], link[1]) for link in rng.sample(region.links, 3)):
            self.add(codes=[by_depot[head] + "999", by_depot[tail] + "999"], many=True)
        self.add(codes=["5999", "5998"], many=True)

    def _lines(self) -> None:
        rng = self.rng
        for rest in (0, 1, 0, 1):
            self.add(number=self.number(rest), many=True)
        number, other = self.number(), self.number()
        for one in (number, other):
            for grams in (rng.randint(1600, 1900), rng.randint(4100, 4400), rng.randint(200, 400)):
                self.add(number=one, grams=grams, sides=(7, 6, 5), many=True)
                one = one.lower()
        for _ in range(3):
            wrong = self.number()
            digit = (int(wrong[10]) + rng.randint(1, 9)) % 10
            self.add(number=f"{wrong[:10]}{digit}CH", many=True)
        self.add(number=f"RA{rng.randint(100, 999)}CH", many=True)

    def _times(self) -> None:
        region = self.region
        monday = datetime.combine(region.monday, datetime.min.time())
        evening = timedelta(minutes=region.evening)
        for days in (-13, -6, 2, -11):
            for shift in (-1, 0, 1):
                self.add(time=monday + timedelta(days=days, minutes=shift) + evening, many=True)
        for days in (-11, -10, -9, -8, -5, -4, -3, -2, -1, 0):
            for service in SERVICES:
                minutes = timedelta(days=days, minutes=self.rng.randint(500, 900))
                self.add(time=monday + minutes, service=service, many=True)
        for service in ("eco", "eco", "normal"):
            self.add(time=monday + timedelta(days=3, hours=9), service=service, many=True)

    def _journeys(self) -> None:
        """Draw the scans of parcels, by the clocks of depots, which are wrong."""
        rng = self.rng
        depots = sorted(dict.fromkeys(self.region.depots.values()))
        self.fast = dict.fromkeys(depots, 0)
        for depot, minutes in zip(rng.sample(depots, 5), (23, -18, 41, -35, 12), strict=True):
            self.clocks.append((depot, minutes - 7 * (minutes == 41)))
            self.fast[depot] = minutes
            if minutes == 41:
                self.clocks.append((depot, 7))
        self.scans = {depot: [] for depot in depots}

        latest = datetime.combine(self.region.monday, datetime.min.time()) + timedelta(days=4, hours=20)
        for place, (number, parcel) in enumerate({one.number.upper(): one for one in self.parcels}.items()):
            time = parcel.time
            for event in ("accepted", "sorted", "loaded"):
                time += timedelta(minutes=rng.randint(25, 300))
                self.scan(
                    number.lower() if place % 5 == 0 and event == "loaded" else number, time, event, rng.choice(depots)
                )
            time = time.replace(hour=9, minute=0)
            times = [time + timedelta(days=days, minutes=rng.randint(0, 660)) for days in (1, 3, 6, 9)]
            last = {
                0: ["delivered"],
                1: ["failed", "delivered"],
                2: ["deposited", "delivered"],
                3: [],
                4: ["delivered", "delivered"],
                5: ["failed", "failed", "returned"],
                6: ["delivered"],
            }[place % 7]
            begin = rng.choice([0, 1, 1, 2])
            for event, moment in zip(last, times[begin:] if len(last) < 3 else times, strict=False):
                if moment < latest:
                    self.scan(number, moment, event, rng.choice(depots))
            if place % 4 == 0:
                self.scan(number, latest - timedelta(minutes=1), rng.choice(["jammed", "weighed"]), rng.choice(depots))
        self.scan(self.parcels[0].number, latest, "sorted", depots[1])
        self._scans_of_a_minute(depots)

    def scan(self, number: str, time: datetime, event: str, depot: str) -> None:
        """Add a scan at a time, which the clock of the depot shows as another one."""
        self.scans[depot].append(Scan(time + timedelta(minutes=self.fast[depot]), depot, number, event))

    def _scans_of_a_minute(self, depots: Sequence[str]) -> None:
        """Draw parcels whose last scans are of one minute; the middle one of the files has the highest rank."""
        rng = self.rng
        for _ in range(3):
            number = self.number()
            time = self.moment()
            self.scan(number, time - timedelta(minutes=rng.randint(1, 4)), "returned", rng.choice(depots))
            chosen = sorted(rng.sample(depots, 3))
            for depot, event in zip(chosen, ("sorted", "delivered", "loaded"), strict=True):
                self.scan(number, time, event, depot)

    def files(self) -> dict[str, str]:
        """Return the files of the day; one has ends of lines of another system."""
        rng, lines = self.rng, [one.line(self.rng) for one in self.parcels]
        half = len(lines) // 2
        files = {"parcels.txt": ["# typed", "", *lines[:half]], "parcels2.txt": ["  # late", *lines[half:]]}
        files["customers.txt"] = [f"# {token(rng)}"]
        files["customers.txt"] += [f"{id};{name};{percent}" for id, (name, percent) in self.customers.items()]
        files["clocks.txt"] = [f"{depot} {minutes}" for depot, minutes in self.clocks]
        texts = {name: "\n".join([*rows, ""]) for name, rows in files.items()}
        for place, (depot, scans) in enumerate(self.scans.items()):
            rows = [f"{one.time:%Y-%m-%dT%H:%M} {depot} {one.number} {one.event}" for one in scans]
            ends = "\r\n" if place == 2 else "\n"
            texts[f"scans/{depot.lower()}.log"] = ends.join([f"# {token(rng)}", *rows, ""])
        return texts
