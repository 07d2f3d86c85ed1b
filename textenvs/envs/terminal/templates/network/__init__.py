"""The template *network*: lines, stops, zones and fares in tables, and a program that finds trips and their prices.

It needs sh and Python 3 with its module sqlite3.
"""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...project import Check, Fault, Project, Question
from ..parts import (
    ASKED,
    CITIES,
    GOODS,
    TOWNS,
    asked_together,
    fault_of_edits,
    file_in_the_way,
    lost_permission,
    notes,
    token,
)
from ..variation import Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import ANSWERS, FARES, MAIN, QUERIES, SCHEMA, SEARCH, SETTINGS, TABLES, TRIPS

#: The number of zones of the highest price, and zones of stops at which nothing stops: as text they have another order.
_MOST_ZONES, _EMPTY_ZONES = 12, (21, 100)
#: The fewest journeys among which an answer is: five such answers have 20 bits.
_FEWEST_JOURNEYS = 16
#: The order of zones in an old file; it is no option of the rule.
_OLD_ORDER = "ORDER BY 3, 1"
#: Lines that run side by side, in the same direction in the tables.
_SIDE_BY_SIDE = (15, 16)


@dataclass(frozen=True)
class _Stop:
    """A stop."""

    id: str
    name: str
    zone: int


@dataclass(frozen=True)
class _Link:
    """A link of a line between two stops, with one way or two."""

    line: str
    source: _Stop
    target: _Stop
    seconds: int
    ways: int = 2


@dataclass(frozen=True)
class _Trip:
    """A trip: its seconds, its changes, and its stops."""

    seconds: int
    changes: int
    stops: Sequence[_Stop]


@dataclass(frozen=True)
class _Fares:
    """The numbers of the settings."""

    child_age: int
    percent: int
    group: int
    night: tuple[str, str]
    fee: int
    prices: Sequence[int]
    low: int  # a number of zones for which the fare of a child is rounded down to 10 cents, and one for which up
    high: int

    @classmethod
    def draw(cls, rng: random.Random) -> _Fares:
        """Draw fares for which each rounding of the fare of a child makes a difference."""
        while True:
            percent, prices = rng.choice([35, 45, 55, 65]), [rng.randint(40, 60) * 5]
            while len(prices) < _MOST_ZONES:
                prices.append(prices[-1] + rng.randint(5, 25) * 5)
            rests = {zones: price * percent % 1000 for zones, price in enumerate(prices, start=1)}
            low = [zones for zones, rest in rests.items() if 100 <= rest < 500 and zones > 1]
            high = [zones for zones, rest in rests.items() if rest > 500 and zones > 1]
            if low and high:
                night = (f"{rng.randint(20, 23)}:{rng.choice(['00', '30'])}", f"{rng.randint(4, 6)}:30")
                age, group, fee = rng.randint(12, 17), rng.randint(5, 8), rng.randint(5, 15) * 10 + 1
                return cls(age, percent, group, night, fee, prices, rng.choice(low), rng.choice(high))


@dataclass(frozen=True)
class _Network:
    """Stops and links. It has a part for each thing that can go wrong; ``places`` are the stops of the parts."""

    stops: Sequence[_Stop]
    links: Sequence[_Link]
    closed: Sequence[_Stop]
    places: Mapping[str, _Stop]
    longest: str  # the name of a line
    minutes: int  # to one of the stops within reach

    @classmethod
    def draw(cls, rng: random.Random) -> _Network:
        """Draw a network."""
        while True:
            network = cls._drawn(rng)
            near = [network.places[name] for name in ("center", "near", "p1", "p2", "p3")]
            names = [stop.name for stop in near]
            orders = [names, names[::-1], sorted(names), sorted(names, key=lambda name: name[::-1])]
            zone = sorted(network.of_zone(network.places["J"].zone), key=lambda stop: stop.name.lower())
            ids = [stop.id for stop in zone]
            if len({*map(tuple, orders)}) == len(orders) and sorted(ids) not in (ids, ids[::-1]):
                return network

    @classmethod
    def _drawn(cls, rng: random.Random) -> _Network:
        names = rng.sample([f"{city} {word.title()}" for city in (*CITIES, *TOWNS) for word in GOODS], 80)
        ids = rng.sample(range(100, 999), len(names))
        lines = rng.sample([f"{letter}{number}" for letter in "ABCDEFGH" for number in range(1, 20)], 23)
        stops, links, minutes = dict[str, _Stop](), list[_Link](), rng.randint(9, 15)

        def stop(key: str, zone: int = 0) -> _Stop:
            if key not in stops:
                name = names[len(stops)].replace(" ", ", ", 1) if key == "C" else names[len(stops)]
                stops[key] = _Stop(f"s{ids[len(stops)]}", name, zone or rng.randint(1, 14))
            return stops[key]

        def line(number: int, keys: str, *seconds: int, ways: int = 2) -> None:
            words = keys.split()
            for one, other, spent in zip(words[:-1], words[1:], seconds, strict=True):
                pair = (stop(one), stop(other))
                source, target = pair if ways == 1 or number in _SIDE_BY_SIDE or rng.random() < 0.5 else pair[::-1]
                links.append(_Link(lines[number], source, target, spent, ways))

        def about(seconds: int) -> int:
            return seconds + rng.randint(0, 29)

        for place in range(1, 15):
            stop(f"zone{place}", place)
        for key, zone in (("i1", 1), ("i2", 2), ("i3", 1), ("i4", 5)):
            stop(key, zone)
        for zone in _EMPTY_ZONES:
            stop(f"empty{zone}", zone)
        for place, key in enumerate(("J", "J1", "J2", "J3", "J4")):
            stop(key, 15 + place // 5)
        # The fastest trip, the one without changes, and the one with the fewest stops are three.
        line(0, "A x1 x2 x3 x4 B", *(about(700) for _ in range(5)))
        line(1, "A y1", about(1000))
        line(2, "y1 B", about(1000))
        line(3, "A z1 z2", about(100), about(100))
        line(4, "z2 z3", about(100))
        line(5, "z3 B", about(100))
        # A change that cannot be avoided; the seconds are rounded up and down.
        rest = rng.randint(31, 55)
        line(6, "C c1", 60 * rng.randint(3, 9) + rest)
        line(7, "c1 D", 60 * rng.randint(3, 9) + 60 - rest + rng.randint(1, 29))
        # A line that goes in one direction.
        line(8, "E F", about(300), ways=1)
        line(9, "E G F", about(400), about(400))
        # A closed stop on the way.
        line(10, "H J I", about(100), about(100))
        line(11, "H K I", about(500), about(500))
        line(12, "Q J", about(100))
        line(13, "Q K2 I", about(600), about(600))
        # The stop that is nearer is not on the better way.
        line(14, "S m1 T", about(100), about(900))
        line(14, "S m2 T", about(200), about(300))
        # Two lines side by side: the slower one goes on.
        slow = rng.randint(300, 400)
        line(15, "R U", slow)
        line(16, "R U V", slow + rng.randint(65, 100), about(500))
        line(17, " ".join(f"zone{place}" for place in range(1, 15)), *(rng.randint(60, 300) for _ in range(13)))
        line(18, "i1 i2 i3 i4", *(rng.randint(60, 300) for _ in range(3)))
        line(19, "center exact", minutes * 60)
        line(20, "center near", minutes * 60 - rng.randint(31, 50))
        line(21, "center far", minutes * 60 + rng.randint(31, 55))
        line(21, "center further", minutes * 60 + rng.randint(130, 190))
        line(22, "center p1 p2 p3", *(rng.randint(70, 110) for _ in range(3)))
        closed = [stops["J"], stops["J2"]]
        order = [*stops.values()]
        rng.shuffle(order)
        rng.shuffle(links)
        return cls(order, links, closed, stops, lines[0], minutes)

    def of_zone(self, zone: int) -> list[_Stop]:
        """Return the open stops of a zone."""
        return [stop for stop in self.stops if stop.zone == zone and stop not in self.closed]

    def rides(self) -> list[_Link]:
        back = [_Link(link.line, link.target, link.source, link.seconds) for link in self.links if link.ways == 2]
        return [*self.links, *back]

    def ways(self, variant: Variant, start: _Stop) -> Iterator[_Trip]:
        """Try all ways from a stop that visit no stop twice."""
        mode, walk = variant["closed-stops"]
        rides, waiting = dict[_Stop, list[_Link]](), [(_Trip(0, 0, [start]), "")]
        for ride in self.rides():
            rides.setdefault(ride.source, []).append(ride)
        while waiting:
            trip, line = waiting.pop()
            yield trip
            for ride in rides.get(trip.stops[-1], []):
                changes = line not in ("", ride.line)
                avoided = (mode == "avoid" and ride.target in self.closed) or (
                    mode == "pass" and changes and ride.source in self.closed
                )
                if ride.target not in trip.stops and not avoided:
                    spent = (
                        ride.seconds + 60 * changes * variant["change-minutes"] + walk * (ride.target in self.closed)
                    )
                    longer = _Trip(trip.seconds + spent, trip.changes + changes, [*trip.stops, ride.target])
                    waiting.append((longer, ride.line))

    def trips(self, variant: Variant, start: _Stop) -> dict[_Stop, _Trip]:
        """Return the best trip to each stop that can be reached."""
        best = dict[_Stop, tuple[tuple[int, int], _Trip]]()
        for trip in self.ways(variant, start):
            key = variant["preferred-trip"](trip.seconds, trip.changes, len(trip.stops) - 1)
            if trip.stops[-1] not in best or key < best[trip.stops[-1]][0]:
                best[trip.stops[-1]] = (key, trip)
        return {stop: trip for stop, (_, trip) in best.items()}

    def files(self, *, reverse: bool) -> dict[str, str]:
        """Return the tables. With ``reverse``, the order of the columns is reversed, and a file begins with a mark."""
        stops = [(stop.id, stop.name, stop.zone) for stop in self.stops]
        links = [(link.line, link.source.id, link.target.id, link.seconds, link.ways) for link in self.links]
        return {
            "stops.csv": _table(("id", "name", "zone"), stops, reverse),
            "links.csv": _table(("line", "source", "target", "seconds", "ways"), links, reverse),
            "closed.txt": "".join(f"{stop.id}\n" for stop in self.closed),
        }


def _table(header: Sequence[str], rows: Sequence[Sequence[object]], reverse: bool) -> str:
    file = io.StringIO()
    step = -1 if reverse else 1
    csv.writer(file, lineterminator="\n").writerows(row[::step] for row in (header, *rows))
    return "\ufeff" * reverse + file.getvalue()


@dataclass(frozen=True)
class _Answers:
    """The answers to questions about a network."""

    variant: Variant
    fares: _Fares
    network: _Network

    def trip(self, start: _Stop, end: _Stop) -> str:
        trip = self.network.trips(self.variant, start).get(end)
        if trip is None:
            return "no trip"
        route = self.variant["route-mark"].join(stop.name for stop in trip.stops)
        return str(self.variant["trip-line"].format(route, self.variant["shown-time"](trip.seconds), trip.changes))

    def price(self, start: _Stop, end: _Stop, age: int, persons: int, time: str) -> str:
        variant, fares = self.variant, self.fares
        zones = variant["zones-counted"]([stop.zone for stop in self.network.trips(variant, start)[end].stops])
        cents = fares.prices[min(zones, _MOST_ZONES) - 1]
        cents = persons * (variant["child-rounding"](cents * fares.percent) if age < fares.child_age else cents)
        if persons >= fares.group:
            cents = variant["group-fare"](cents, persons)
        # Padded to the same length, times are sorted as texts are.
        now, begin, end_of_night = (text.zfill(5) for text in (time, *fares.night))
        if now >= begin or now < end_of_night:
            cents = variant["night-fee"](cents, persons, fares.fee)
        return str(variant["price-line"](cents, persons, age))

    def reach(self, start: _Stop, minutes: int) -> str:
        trips = self.network.trips(self.variant, start)
        near = [(trip.seconds, stop.name) for stop, trip in trips.items()]
        near = [pair for pair in near if self.variant["reach-limit"](pair[0], minutes)]
        near.sort(key=self.variant["order-of-reach"])
        return ", ".join(f"{name} {self.variant['shown-time'](seconds)}" for seconds, name in near)

    def tables(self) -> list[tuple[str, str]]:
        """Return the questions about tables, with their answers."""
        network, variant = self.network, self.variant
        rides = network.rides()
        key, backwards = variant["order-of-zone"]
        zone = network.places["J"].zone
        names = [stop.name for stop in sorted(network.of_zone(zone), key=key, reverse=backwards)]
        zones = []
        for number in sorted({stop.zone for stop in network.stops}):
            inside = {stop for stop in network.stops if stop.zone == number}
            zones.append((number, len(inside), sum(ride.source in inside for ride in rides)))
        zones.sort(key=variant["order-of-zones"])
        line = [(link.seconds, link.ways) for link in network.links if link.line == network.longest]
        lines = {stop: {ride.line for ride in rides if ride.source == stop} for stop in network.stops}
        hubs = [(stop.name, len(meeting)) for stop, meeting in lines.items() if len(meeting) >= variant["fewest-lines"]]
        # The column of names is compared without regard to case.
        hubs.sort(key=lambda hub: hub[0].lower())
        rows: list[tuple[str, Sequence[Sequence[object]]]] = [
            (f"zone; {zone}", [[name] for name in names]),
            ("zones", zones),
            (f"line; {network.longest}", [(len(line), variant["seconds-of-line"](line))]),
            ("hubs", hubs),
        ]
        mark = variant["row-mark"]
        return [(command, mark.join("/".join(map(str, row)) for row in answers)) for command, answers in rows]


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: names of files and keys, fares, a network, and a record of journeys."""
    fares = _Fares.draw(rng)
    group_key, other_key = rng.sample(["group", "party", "persons_of_group", "crowd"], 2)
    names: dict[str, object] = {
        "code": rng.choice(["code", "src", "planner", "core"]),
        "database": rng.choice(["network", "lines", "tables"]),
        "fares": rng.choice(["fares", "tariff", "prices"]),
        "child_key": rng.choice(["child_age", "adult_from", "age"]),
        "percent_key": rng.choice(["percent", "child_percent", "reduced"]),
        "group_key": group_key,
        "other_key": other_key,
        "from_key": rng.choice(["night_from", "late", "dusk"]),
        "until_key": rng.choice(["night_until", "early", "dawn"]),
        "fee_key": rng.choice(["fee", "surcharge", "extra"]),
        "child_age": fares.child_age,
        "child_percent": fares.percent,
        "other_percent": 100 - fares.percent,
        "group": fares.group,
        "night_from": fares.night[0],
        "night_until": fares.night[1],
        "night_cents": fares.fee,
        "night_units": f"{fares.fee / 100:g}",
        "prices": ",\n".join(f'    "{zones}": {price}' for zones, price in enumerate(fares.prices, start=1)),
    }
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    texts = {
        "bin/trips": TRIPS,
        "@code@/main.py": MAIN,
        "@code@/tables.py": TABLES,
        "@code@/search.py": SEARCH,
        "@code@/fares.py": FARES,
        "@code@/answers.py": ANSWERS,
        "sql/schema.sql": SCHEMA,
        **{f"sql/{name}.sql": text for name, text in QUERIES.items()},
        "etc/@fares@.json": SETTINGS,
        "var/.keep": "",
        # Nothing reads these two.
        "etc/@fares@-2019.json": SETTINGS.replace("@night_cents@", "50").replace('": @group@', '": 20'),
        "sql/zones.sql.old": QUERIES["zones"]
        .replace("LEFT JOIN", "CROSS JOIN")
        .replace("@order_of_zones@", _OLD_ORDER),
    }
    also = (
        "Children are younger than @child_age@ and pay @child_percent@ % of a fare; groups are @group@ or more.",
        "Night is from @night_from@, including it, until @night_until@, excluding it; the fee is @night_cents@ cents.",
        "A price is that of the best trip, and `reach` has the times of the best trips as well.",
    )
    files = variant.files(texts) | variant.document(rng, *also)
    files["docs/notes.md"] = notes(rng, "Notes on the network", 10)
    network = _Network.draw(rng)
    files |= {f"data/{name}": text for name, text in network.files(reverse=False).items()}
    one, other = network.places["C"].name, network.places["D"].name
    files["data/questions.txt"] = f"trip; {one}; {other}\nprice; {one}; {other}; 40; 1; 12:00\nzones\nhubs\n"
    questions = _questions(rng, files, network)
    fixed = frozenset(path for path in files if path.startswith(("data/", "journeys/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return _checks(fresh, variant, fares)

    about = (
        "`bin/trips FOLDER FILE` answers the questions of a file about the network of a folder, such as `data/` and "
        "`data/questions.txt`: trip, price (with age, number of persons and time), reach (with minutes), zone, zones, "
        f"line and hubs. `{variant.page}` says what the answers are."
    )
    looks = ["ls *", f"cat {names['code']}/main.py {names['code']}/tables.py", "bin/trips data data/questions.txt"]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_other_faults(variant, files, looks),
    ]
    return Project(about, files, faults, checks, {"bin/trips": 0o755}, fixed=fixed, questions=questions)


def _other_faults(variant: Variant, files: Mapping[str, str], looks: Sequence[str]) -> list[Fault]:
    code, order = variant.names["code"], variant.text("@order_of_zones@")
    settled = [
        (
            "        if state in done:\n            continue\n        done.add(state)\n        best.",
            "        best.",
        ),
        (
            "            heapq.heappush(queue, (",
            "            if (target, other) in done:\n                continue\n"
            "            done.add((target, other))\n            heapq.heappush(queue, (",
        ),
    ]
    return [
        fault_of_edits(
            "settled-too-early",
            "Some trips take longer than they have to.",
            [(f"{code}/search.py", variant.text(old), variant.text(new)) for old, new in settled],
            [*looks, f"cat {code}/search.py"],
        ),
        file_in_the_way(
            f"{code}/csv.py",
            '"""How tables are written."""\n\nMARK, QUOTE = ",", "\\""\n',
            looks,
            "It ends with an AttributeError in a module that nobody has changed.",
        ),
        Fault(
            "missing-query",
            "One of the questions about tables ends with an error.",
            [*looks, "ls sql", f"cat sql/zones.sql.old {variant.page}"],
            f"sed 's/CROSS JOIN/LEFT JOIN/; s/{_OLD_ORDER}/{order}/' sql/zones.sql.old > sql/zones.sql",
            removed=["sql/zones.sql"],
        ),
        lost_permission("bin/trips"),
    ]


def _checks(rng: random.Random, variant: Variant, fares: _Fares) -> list[Check]:
    """Draw a network, and the same one before a line was closed; compute the answers by trying all ways."""
    network = _Network.draw(rng)
    places, answers = network.places, _Answers(variant, fares, network)
    shortcut = _Link("Z1", places["A"], places["B"], 61)
    before = _Network(network.stops, [*network.links, shortcut], network.closed, places, "", 0)
    start = _Answers(variant, fares, before)
    pairs = ("A B", "C D", "C c1", "D C", "F E", "E F", "H I", "Q I", "S T", "R U", "R V", "A E")
    trips = [(places[pair.split()[0]], places[pair.split()[1]]) for pair in pairs]
    rng.shuffle(trips)
    first = trips[0][0]
    questions = [f"trip; {one.name.lower() if one is first else one.name}; {other.name}" for one, other in trips]
    inputs = {
        **{f"before/{name}": text for name, text in before.files(reverse=False).items()},
        **{f"after/{name}": text for name, text in network.files(reverse=True).items()},
        "one.txt": f"trip; {places['A'].name}; {places['B'].name}\n",
        "trips.txt": "\n".join(questions) + "\n",
    }
    expected = [start.trip(places["A"], places["B"]), *(answers.trip(*pair) for pair in trips)]
    prices = _prices(rng, fares, places)
    begin, minutes = places["center"], network.minutes
    requests = [
        *(
            (
                f"price; {one.name}; {other.name}; {age}; {persons}; {time}",
                answers.price(one, other, age, persons, time),
            )
            for one, other, age, persons, time in prices
        ),
        (f"reach; {begin.name}; {minutes}", answers.reach(begin, minutes)),
        *answers.tables(),
    ]
    rng.shuffle(requests)
    return [
        Check(
            "trips",
            "bin/trips $IN/before $IN/one.txt; bin/trips $IN/after $IN/trips.txt",
            "\n".join(expected),
            inputs,
        ),
        Check(
            "prices-tables",
            "bin/trips $IN/after $IN/requests.txt",
            "\n".join(answer for _, answer in requests),
            {**inputs, "requests.txt": "".join(f"{question}\n" for question, _ in requests)},
        ),
    ]


def _prices(rng: random.Random, fares: _Fares, places: Mapping[str, _Stop]) -> list[tuple[_Stop, _Stop, int, int, str]]:
    """Draw questions about prices: start, end, age, persons, time."""
    first = places["zone1"]
    adult, child = rng.randint(30, 60), fares.child_age - 1
    day, night = f"{rng.randint(8, 11)}:{rng.randint(10, 59)}", f"{rng.randint(1, 3)}:{rng.randint(10, 59)}"
    cases = [
        (first, places[f"zone{fares.low}"], child, 1, day),
        (first, places[f"zone{fares.high}"], child, 1, day),
        (first, places[f"zone{rng.randint(2, 12)}"], fares.child_age, 1, day),
        (first, places["zone14"], adult, 1, day),
        (places["i1"], places["i4"], adult, 2, f"12:{rng.randint(10, 59)}"),
        (first, places[f"zone{rng.randint(6, 9)}"], adult, fares.group, day),
        (first, places[f"zone{rng.randint(3, 5)}"], adult, fares.group + rng.choice([1, 3]), day),
        (first, places[f"zone{rng.randint(2, 12)}"], adult, 3, night),
        (first, places[f"zone{rng.randint(2, 12)}"], adult, 3, "23:45"),
        (first, places[f"zone{rng.randint(2, 12)}"], adult, fares.group, fares.night[1]),
    ]
    rng.shuffle(cases)
    return cases


def _questions(rng: random.Random, files: dict[str, str], network: _Network) -> list[Question]:
    """Draw the journeys of some months, and ask about them."""
    months = [f"{year}-{month:02}" for year in (2023, 2024, 2025) for month in range(1, 13)][: rng.randint(20, 34)]
    cents = iter(rng.sample(range(200, 90_000), 80 * len(months)))
    by_start, by_zone = dict[_Stop, list[tuple[int, str]]](), dict[int, list[tuple[int, str]]]()
    for month in months:
        rows = list[tuple[str, str, str, str, int]]()
        for _ in range(80):
            identity, price = token(rng), next(cents)
            one, other = rng.sample(network.stops, 2)
            rows.append((identity, f"{month}-{rng.randint(1, 28):02}", one.id, other.id, price))
            by_start.setdefault(one, []).append((price, identity))
            by_zone.setdefault(other.zone, []).append((price, identity))
        files[f"journeys/{month}.csv"] = _table(("journey", "day", "start", "end", "cents"), rows, False)
    # Without a comma, the name of a stop is a column of its table.
    many = [stop for stop, rows in by_start.items() if len(rows) >= _FEWEST_JOURNEYS and "," not in stop.name]
    zones = sorted(zone for zone, rows in by_zone.items() if len(rows) >= _FEWEST_JOURNEYS)
    return [
        asked_together([_dearest_journey(stop, max(by_start[stop])[1]) for stop in rng.sample(many, ASKED)]),
        asked_together([_cheapest_arrival(zone, min(by_zone[zone])[1]) for zone in rng.sample(zones, ASKED)]),
    ]


def _dearest_journey(stop: _Stop, journey: str) -> Question:
    identity = f"$(awk -F, '$2 == \"{stop.name}\" {{ print $1 }}' data/stops.csv)"
    return Question(
        "dearest-journey",
        f"Which journey in journeys/ cost most of those that began at {stop.name}?",
        journey,
        [
            "head -2 data/stops.csv journeys/* | head -20",
            f"awk -F, -v s={identity} '$3 == s {{ print $5, $1 }}' journeys/* | sort -rn | sed -n '1s/.* //p'",
        ],
    )


def _cheapest_arrival(zone: int, journey: str) -> Question:
    program = f"FNR == NR {{ if ($NF == {zone}) z[$1]; next }} FNR > 1 && ($4 in z) {{ print $5, $1 }}"
    return Question(
        "cheapest-arrival",
        f"Which journey in journeys/ cost least of those that ended in zone {zone}?",
        journey,
        [
            "head -2 data/stops.csv journeys/* | head -20",
            f"awk -F, '{program}' data/stops.csv journeys/* | sort -n | sed -n '1s/.* //p'",
        ],
    )
