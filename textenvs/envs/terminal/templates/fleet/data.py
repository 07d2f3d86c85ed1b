"""The data of a fleet, in which rules and faults show."""

from __future__ import annotations

import calendar
import csv
import datetime
import io
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..parts import COLOURS, FIRST_NAMES, SURNAMES, token

#: Metres of a unit, and the class that a kind of vehicles needs.
METRES = {"km": 1000, "mi": 1609}
NEEDS = {"car": "B", "van": "C1", "truck": "C"}
_KINDS = ("car", "van", "truck", "van", "car", "truck", "van", "car")
_PURPOSES = ("home", "lunch", "family", "errand", "visit", "delivery", "service", "delivery")
_MAKES = ("Arrow", "Bison", "Comet", "Dart", "Elk", "Falcon", "Gull", "Heron", "Ibis")
#: Depots, by their manner of writing, and cards.
_DEPOTS = ("2nd", "east", "west")
_CARDS = ("blue", "red")
_WHATS = ("brakes", "inspection", "oil", "tyres")
_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Vehicle:
    """A vehicle, with the odometer at the start of the records."""

    plate: str
    model: str
    kind: str
    tank: int
    unit: str
    price: int
    bought: datetime.date
    start: int


@dataclass(frozen=True)
class Driver:
    """A driver, with the classes of a licence and its last day."""

    id: str
    name: str
    classes: str
    until: datetime.date


@dataclass(frozen=True)
class Trip:
    """A trip; ``shows_start`` is whether its start is written down, and ``written`` its plate in the file."""

    begins: datetime.datetime
    ends: datetime.datetime
    plate: str
    driver: str
    start: int
    stop: int
    purpose: str
    remark: str
    depot: str
    written: str
    shows_start: bool = True

    def line(self) -> str:
        """Return the line in the manner of the depot."""
        start, stop = str(self.start) if self.shows_start else "-", str(self.stop)
        day, times = f"{self.begins:%Y-%m-%d}", f"{self.begins:%H:%M}-{self.ends:%H:%M}"
        number, purpose = f"{self.written[:2]}-{self.written[2:]}", self.purpose
        if self.depot == "west":
            day = f"{self.begins.day}.{self.begins.month}.{self.begins.year}"
            times = "-".join(f"{time.hour}:{time.minute:02}" for time in (self.begins, self.ends))
            start, stop = (f"{int(text):,}".replace(",", "'") if text != "-" else text for text in (start, stop))
            number = f"{self.written[:2].lower()} - {self.written[2:]}"
            end = f"{purpose.title()}{self.remark and ', ' + self.remark}"
            return "; ".join([day, times, number, self.driver.upper(), start, stop, end])
        if self.depot == "2nd":
            number = self.written.lower()
        return f"{day} {times} {number} {self.driver} {start} {stop} {purpose} {self.remark}".rstrip()


@dataclass(frozen=True)
class Fill:
    """A line of a card's statement."""

    time: datetime.datetime
    plate: str
    written: str
    odometer: int
    centilitres: int
    cents: int
    full: bool
    receipt: str
    card: str

    @property
    def day(self) -> datetime.date:
        return self.time.date()

    @property
    def when(self) -> tuple[int, int]:
        """Its day and its minute, as numbers."""
        return self.time.toordinal(), 60 * self.time.hour + self.time.minute


@dataclass
class Fleet:
    """Vehicles, drivers, and what happened to them in a period and around it."""

    first: datetime.date
    last: datetime.date
    vehicles: list[Vehicle] = field(default_factory=list)
    drivers: list[Driver] = field(default_factory=list)
    trips: list[Trip] = field(default_factory=list)
    fills: list[Fill] = field(default_factory=list)
    #: Plate, day, odometer, what, cents.
    services: list[tuple[str, datetime.date, int, str, int]] = field(default_factory=list)
    #: By kind: what, kilometres, months.
    intervals: Mapping[str, Sequence[tuple[str, int | None, int | None]]] = field(default_factory=dict)
    #: Plate, what, first and last day, cents a year.
    fixed: list[tuple[str, str, datetime.date, datetime.date | None, int]] = field(default_factory=list)
    #: Former plates, by those of now.
    renamed: Mapping[str, str] = field(default_factory=dict)

    def has_day(self, day: datetime.date) -> bool:
        """Return whether a day is in the period."""
        return self.first <= day <= self.last

    def trips_of(self, vehicle: Vehicle) -> list[Trip]:
        return [trip for trip in self.trips if trip.plate == vehicle.plate]

    def sorted_vehicles(self) -> list[Vehicle]:
        return sorted(self.vehicles, key=lambda vehicle: vehicle.plate)

    def files(self, rng: random.Random) -> dict[str, str]:
        """Return the files, whose tables have their rows in any order."""
        tables: dict[str, list[Sequence[object]]] = {
            "vehicles": [(v.plate, v.model, v.kind, v.tank, v.unit, v.price, v.bought, v.start) for v in self.vehicles],
            "drivers": [(d.name, d.id, d.classes, d.until) for d in self.drivers],
            "services": [*self.services],
            "intervals": [(kind, *row) for kind, rows in self.intervals.items() for row in rows],
            "fixed": [*self.fixed],
            "renamed": [(former, plate) for plate, former in self.renamed.items()],
        }
        heads = {
            "vehicles": "plate,model,kind,tank,unit,price,bought,start",
            "drivers": "name,id,classes,until",
            "services": "plate,day,odometer,what,cents",
            "intervals": "kind,what,km,months",
            "fixed": "plate,what,since,until,cents",
            "renamed": "former,plate",
        }
        files = dict[str, str]()
        for name, rows in tables.items():
            stream = io.StringIO()
            stream.write("\ufeff" * (name == "vehicles") + heads[name] + "\n")
            csv.writer(stream, lineterminator="\n").writerows(rng.sample(rows, len(rows)))
            files[f"{name}.csv"] = stream.getvalue()
        for depot in _DEPOTS:
            lines = [trip.line() for trip in self.trips if trip.depot == depot]
            rng.shuffle(lines)
            lines[2:2] = ["", f"  # {lines[0]}", "# checked"]
            end = "\r\n" if depot == "west" else "\n"
            files[f"depots/{depot}.txt"] = end.join([*lines, ""])
        return files | {f"cards/{card}.csv": self._statement(rng, card) for card in _CARDS}

    def _statement(self, rng: random.Random, card: str) -> str:
        """Return the lines of a card, in the manner of its firm."""
        rows = list[str]()
        for fill in self.fills:
            litres, amount = (f"{number // 100}.{number % 100:02}" for number in (fill.centilitres, fill.cents))
            if fill.card != card:
                continue
            if card == "blue":
                day = f"{fill.time.day}.{fill.time.month}.{fill.time.year}"
                cells = [fill.receipt, day, f"{fill.time.hour}:{fill.time:%M}", fill.written, str(fill.odometer)]
                rows.append(";".join([*cells, litres.replace(".", ","), amount.replace(".", ","), "x" * fill.full]))
            else:
                full = rng.choice(["yes", "Yes"]) if fill.full else "no"
                cells = [str(fill.odometer), amount, litres, full, fill.receipt]
                rows.append(",".join([f"{fill.time:%Y-%m-%d}", f"{fill.time:%H:%M}", fill.written.lower(), *cells]))
        rng.shuffle(rows)
        blue = "receipt;date;time;plate;odometer;litres;amount;full"
        return "\n".join([blue if card == "blue" else "Date,Time,Plate,Odometer,Amount,Litres,Full,Receipt", *rows, ""])


def draw_fleet(rng: random.Random) -> Fleet:
    """Draw a fleet, with two months of trips, and some days around them."""
    year, month = rng.randint(2023, 2026), rng.choice([4, 6, 9, 11])
    last = datetime.date(year, month, calendar.monthrange(year, month)[1])
    fleet = Fleet(datetime.date(year, month - 1, 1), last)
    numbers = rng.sample(range(1000, 9999), 12)
    plates = [f"{rng.choice(('ZH', 'BE', 'GR', 'TI'))}{number}" for number in numbers]
    ages = rng.sample([10, 40, 47, 55, 59, 71, 90, 101], 8)
    for place, (kind, age) in enumerate(zip(_KINDS, ages, strict=True)):
        month_number = 12 * year + month - 2 - age
        bought = datetime.date(month_number // 12, month_number % 12 + 1, rng.randint(2, 28))
        start = 99_300 if place == 0 else rng.randint(31_000, 88_000)
        tank = {"car": 50, "van": 70, "truck": 120}[kind] + rng.choice([0, 5, 10])
        unit = "mi" if place in (2, 4) else "km"
        model = f"{_MAKES[place]} {rng.choice(COLOURS)}" if place % 3 else f'{_MAKES[place]} {place}, "long"'
        price = rng.randint(15_000, 60_000) * 100 + rng.randint(1, 99)
        fleet.vehicles.append(Vehicle(plates[place], model, kind, tank, unit, price, bought, start))
    rng.shuffle(plates)
    fleet.renamed = {fleet.vehicles[place].plate: f"AG{numbers[8 + n]}" for n, place in enumerate((3, 5))}
    names = rng.sample([f"{first} {name}" for first in FIRST_NAMES for name in SURNAMES], 9)
    classes = ("B", "B C1", "B C1 C", "C", "C1", "B C", "B C1", "B C1 C", "B C")
    for place, (name, own) in enumerate(zip(names, classes, strict=True)):
        driver = f"d{3 * place + rng.randint(1, 3):02}"
        fleet.drivers.append(Driver(driver, name, own, last + rng.randint(100, 900) * _DAY))
    _add_trips(rng, fleet)
    _add_licences(rng, fleet)
    _add_fills(rng, fleet)
    _add_services(rng, fleet)
    _add_contracts(rng, fleet)
    return fleet


def _times(rng: random.Random, fleet: Fleet) -> list[list[tuple[datetime.datetime, int, int]]]:
    """Return times, minutes and numbers of drivers of each vehicle's trips, which begin at different minutes."""
    span, used = (fleet.last - fleet.first).days, set[tuple[int, int]]()
    noon, (one, other, third, fourth, fifth) = rng.randint(680, 760), rng.sample(range(3, span - 3, 2), 5)
    rows: list[list[tuple[int, int, int, int]]] = [
        # Long days of drivers.
        [(third, 370, 625, 6), (fourth, 371, 575, 7)],
        # Nights, some of them at the edges of the period.
        [(-5, 700, 90, 1), (-1, 1330, 300, 1), (span, 1290, 260, 2), (one, 1230, 400, 2)],
        [(-6, 700, 90, 3), (-1, 1300, 350, 5), (span, 1310, 300, 7)],
        # Two trips of a vehicle at a time, two of a driver, and two that touch.
        [(one, noon, 120, 6), (one, noon + 70, 100, 7), (third, 372, 515, 1)],
        [(other, noon - 3, 130, 0), (fourth, 373, 700, 2), (fifth, 374, 350, 5)],
        # The driver of the second one needs the class C, and has C1.
        [(other, noon + 60, 100, 0), (other + 1, 500, 90, 1), (span + 4, 600, 90, 2)],
        [(one + 1, noon, 60, 1), (one + 1, noon + 60, 60, 1), (fifth, 800, 365, 5)],
    ]
    busy = {(day, driver) for own in rows for day, _, _, driver in own}
    for place, own in enumerate(rows):
        free = [day for day in range(2 if place in (4, 6) else -9, span + 9) if all(day != row[0] for row in own)]
        for day in rng.sample(free, 13):
            length = rng.choice([rng.randint(20, 170), rng.randint(200, 400)])
            driver = rng.choice([number for number in range(8) if (day, number) not in busy])
            own.append((day, rng.randint(365, 1240), length, driver))
    result = list[list[tuple[datetime.datetime, int, int]]]()
    start = datetime.datetime.combine(fleet.first, datetime.time())
    for own in rows:
        times = list[tuple[datetime.datetime, int, int]]()
        for day, minute, length, driver in own:
            while (day, minute) in used:
                minute += 1
            used.add((day, minute))
            times.append((start + datetime.timedelta(days=day, minutes=minute), length, driver))
        result.append(sorted(times))
    return result


def _add_trips(rng: random.Random, fleet: Fleet) -> None:
    for place, times in enumerate(_times(rng, fleet)):
        vehicle = fleet.vehicles[place]
        odometer, renamed = vehicle.start, fleet.first + rng.randint(20, 30) * _DAY
        purposes = list(_PURPOSES) * 3
        rng.shuffle(purposes)
        for number, (begins, length, driver) in enumerate(times):
            gap = rng.choice([0, 0, rng.randint(2, 40)])
            shows = rng.random() < 0.8
            if number == 0 and place in (4, 6):  # the first trip of the records is in the period
                gap, shows = (0, False) if place == 4 else (23, True)
            start = odometer + (gap if shows else 0)
            stop = start + rng.randint(30, 190) + length // 2
            plate = vehicle.plate
            written = fleet.renamed[plate] if plate in fleet.renamed and begins.date() < renamed else plate
            remark = rng.choice(["", "", f"for {rng.choice(SURNAMES)}", "late"])
            own = fleet.drivers[driver].id
            ends = begins + datetime.timedelta(minutes=length)
            depot = _DEPOTS[(place + number) % 3]
            trip = Trip(begins, ends, plate, own, start, stop, purposes[number], remark, depot, written, shows)
            fleet.trips.append(trip)
            odometer = stop
    # Purposes with a remark behind a comma, of each that may be private.
    inside = [trip for trip in fleet.trips if trip.depot == "west" and fleet.first < trip.begins.date() < fleet.last]
    for trip, purpose in zip(inside, _PURPOSES[:4], strict=False):
        fleet.trips[fleet.trips.index(trip)] = replace(trip, purpose=purpose, remark="late")


def _add_licences(rng: random.Random, fleet: Fleet) -> None:
    """Let a licence end on a day of a trip that it is good for, in the period."""
    driver = fleet.drivers[7]
    days = [trip.begins.date() for trip in fleet.trips if trip.driver == driver.id]
    last = rng.choice(sorted({day for day in days if fleet.first < day < fleet.last}))
    fleet.drivers[7] = replace(driver, until=last)


def _add_fills(rng: random.Random, fleet: Fleet) -> None:
    """Add receipts of the vehicles but two; some marks of full tanks contradict the litres."""
    for place, vehicle in enumerate(fleet.vehicles[:6]):
        trips = fleet.trips_of(vehicle)
        inside = [trip for trip in trips if fleet.first < trip.ends.date() <= fleet.last]
        chosen = {*trips[:2], *rng.sample(inside[1:-1], min(9, len(inside) - 2)), inside[-1]}
        ends_open = place in (0, 3)
        stops = sorted(chosen if ends_open else chosen | {trips[-1]}, key=lambda trip: trip.begins)
        for number, trip in enumerate(stops):
            full = rng.random() < 0.4
            part = rng.choice([rng.randint(10, 34), rng.randint(36, 74), rng.randint(76, 96)])
            if number == 4:  # too much for the tank, by some rules
                part, full = (102, 108, 113, 121)[place % 4], True
            if number < 2:
                part, full = 60, True
            if number in (3, 5, 6):  # the mark and the litres say something else
                part, full = {3: (30, True), 5: (80, False), 6: (68, False)}[number]
            if ends_open and number == len(stops) - 1:
                part, full = 20, False
            litres = vehicle.tank * part + rng.randint(0, 49)
            cents = litres * rng.randint(165, 199) // 100
            while int(cents / 100 * 100) == cents:  # a number that is hardly below its hundredths
                cents += 1
            card = _CARDS[(place + number) % 2]
            time = trip.ends + datetime.timedelta(minutes=rng.randint(1, 4))
            fleet.fills.append(
                Fill(time, vehicle.plate, trip.written, trip.stop, litres, cents, full, token(rng, 6), card)
            )
        inside_fills = [fill for fill in fleet.fills if fill.plate == vehicle.plate and fleet.has_day(fill.day)]
        possible = [fill for fill in inside_fills[1:] if fill.centilitres < 100 * vehicle.tank]
        second = inside_fills[-3]  # another one on the same day
        again = replace(second, time=second.time + datetime.timedelta(minutes=5), receipt=token(rng, 6), full=False)
        fleet.fills.append(replace(again, centilitres=again.centilitres // 9, cents=again.cents // 9))
        for sign, fill in zip((1, -1), rng.sample(possible, 2), strict=True):
            time = fill.time + datetime.timedelta(minutes=rng.randint(6, 12))
            change = sign * rng.randint(120, 480)
            copy = replace(fill, time=time, cents=fill.cents + change, centilitres=fill.centilitres + change // 2)
            fleet.fills.append(replace(copy, card=_CARDS[1 - _CARDS.index(fill.card)]))


def _add_services(rng: random.Random, fleet: Fleet) -> None:
    """Add services with little left, or nothing, or much, of kilometres and of days."""
    rows = dict[str, Sequence[tuple[str, int | None, int | None]]]()
    for kind in NEEDS:
        rows[kind] = [
            ("brakes", rng.randint(20, 30) * 1000, rng.randint(18, 30)),
            ("inspection", None, rng.choice([6, 8, 9])),
            ("oil", rng.randint(10, 18) * 1000, rng.randint(9, 14)),
            ("tyres", rng.randint(35, 50) * 1000, None),
        ]
    fleet.intervals = rows
    left, wait = [-250, 150, 600, 1000, 1400, 6000], [-25, 4, 15, 26, 38, 160]
    rests = [150, 160, *rng.sample(left[2:5], 3)]
    cases = {("tyres", place): (rest, 0) for place, rest in zip((0, 2, 4, 5, 6), rests, strict=True)}
    cases |= {("inspection", n): (0, days) for n, days in zip((0, 1, 2, 3, 4, 7), rng.sample(wait, 6), strict=True)}
    cases |= {("tyres", 1): (0, 0), ("inspection", 6): (0, 0), ("brakes", 0): (-250, 160), ("brakes", 1): (6000, -25)}
    for place, vehicle in enumerate(fleet.vehicles):
        stops = [trip.stop for trip in fleet.trips_of(vehicle) if trip.ends.date() <= fleet.last]
        reading = max(stops, default=vehicle.start)
        for what, km, months in rows[vehicle.kind]:
            if what == _WHATS[place % 4] and place > 2:
                continue
            rest, days = cases.get((what, place), (rng.choice(left), rng.choice(wait)))
            odometer = reading - ((km or 9000) - rest) * 1000 // METRES[vehicle.unit]
            target = fleet.last + days * _DAY
            number = 12 * target.year + target.month - 1 - (months or rng.randint(6, 12))
            length = calendar.monthrange(number // 12, number % 12 + 1)[1]
            day = datetime.date(number // 12, number % 12 + 1, min(target.day, length))
            if (place, what) == (6, "inspection"):  # the last day of a longer month
                day = day.replace(day=length)
            fleet.services.append((vehicle.plate, day, odometer, what, rng.randint(90, 900) * 100 + 35))
            earlier = day - rng.randint(300, 500) * _DAY
            fleet.services.append((vehicle.plate, earlier, odometer - 8000, what, rng.randint(90, 900) * 100))
    plate, *_ = (vehicle.plate for vehicle in fleet.vehicles[1:])
    for what, odometer in (("tyres", 1_000_000), ("wash", 500), ("wash", 300)):
        day = fleet.last + 9 * _DAY if what == "tyres" else fleet.first + rng.randint(3, 50) * _DAY
        fleet.services.append((plate, day, odometer, what, rng.randint(20, 80) * 100 + 5))


def _add_contracts(rng: random.Random, fleet: Fleet) -> None:
    """Add yearly costs, of which some begin or end in the period, on its first day or on its last one."""
    for place, vehicle in enumerate(fleet.vehicles):
        since = fleet.first - rng.randint(100, 900) * _DAY
        cents = [rng.randint(40_000, 180_000) for _ in range(3)]
        fleet.fixed.append((vehicle.plate, "insurance", since, None, cents[0]))
        inside = fleet.first + rng.randint(12, 45) * _DAY
        limits = (
            (since, inside),
            (inside, None),
            (fleet.last, None),
            (since, fleet.first),
            (since, fleet.first - _DAY),
            (fleet.last + _DAY, None),
        )
        fleet.fixed.append((vehicle.plate, "tax", *limits[place % 6], cents[1]))
