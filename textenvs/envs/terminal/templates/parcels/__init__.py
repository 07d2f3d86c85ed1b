"""The template *parcels*: weights, zones and tariffs, ways over depots, scans, and parcels that are late.

It needs bash, awk (mawk is enough), sed, sort, join and coreutils.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ...project import Check, Edit, Fault, Project, Question
from ..parts import ASKED, asked_together, fault_of_command, fault_of_edits, lost_permission, notes
from ..records import draw_journal, draw_lists
from ..variation import DRAWS, Variant
from .data import EVENTS, Builder, Parcel, Region, check_digit
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import (
    BILLS,
    CALENDAR,
    CLEAN,
    CLEAN_LINES,
    CLEANS,
    DAY,
    EVENT_LINES,
    FORMATS,
    FRANCS,
    LATE,
    LISTS,
    NUMBERS,
    ORDER,
    PATH_LINES,
    PATHS,
    PREFIX,
    PREFIXES,
    PRICE_LINES,
    PRICES,
    PROMISE_LINES,
    PROMISES,
    SEARCHES,
    SETTINGS,
    SHORTEST,
    ZONE_LINES,
    ZONES,
)
from .texts import EVENTS as EVENTS_STEP

_EPOCH = datetime(1970, 1, 1)
#: Rules whose options may give the same lists by chance, by lists.
_BY_CHANCE = {
    "late": ("hour-of-promise", "open-parcels", "unit-of-delay", "free-weekdays", "last-minute", "end-of-delivery"),
    "routes": ("measure-of-links", "way-back", "waiting-times"),
    "bills": ("order-of-bills", "parcels-for-discount"),
}


def _minute(time: datetime) -> int:
    return int((time - _EPOCH).total_seconds()) // 60


def _longest(table: Mapping[str, str], code: str) -> str | None:
    return max(((prefix, name) for prefix, name in table.items() if code.startswith(prefix)), default=("", None))[1]


@dataclass(frozen=True)
class _Day:
    """Lists of a day by the rules of a project."""

    variant: Variant
    region: Region
    day: Builder

    @classmethod
    def draw(cls, rng: random.Random, variant: Variant, region: Region) -> _Day:
        builder = Builder(rng, region)
        builder.build()
        return cls(variant, region, builder)

    def text(self, names: Sequence[str]) -> str:
        lines = list[str]()
        for name in names:
            lines += [self.variant["title-of-list"](name), *getattr(self, f"_{name}")()]
        return "\n".join(lines)

    def separates(self) -> bool:
        """Return whether all rules show."""
        return all(
            self.variant.separates(rules, functools.partial(self._text_by, name)) for name, rules in _BY_CHANCE.items()
        )

    def _text_by(self, name: str, variant: Variant) -> str:
        """Return a list by other rules."""
        return replace(self, variant=variant).text([name])

    def _parcels(self) -> list[Parcel]:
        """Return the parcels with valid numbers, one of each number, in the order of numbers."""
        versions = dict[str, list[Parcel]]()
        for parcel in self.day.parcels:
            number = parcel.number.upper()
            if len(number) == 13 and check_digit(number[2:10]) == int(number[10]):
                versions.setdefault(number, []).append(parcel)
        choose = {
            "first": lambda rows: rows[0],
            "last": lambda rows: rows[-1],
            "heaviest": lambda rows: max(rows, key=lambda row: row.grams),
        }[self.variant["repeated-number"]]
        return [replace(choose(rows), number=number) for number, rows in sorted(versions.items())]

    def _priced(self) -> list[tuple[Parcel, int, int, int]]:
        """Return parcels with class, grams and cents."""
        variant, region, rows = self.variant, self.region, list[tuple[Parcel, int, int, int]]()
        for parcel in self._parcels():
            source = _longest(region.zones, parcel.source) or region.far
            goal = _longest(region.zones, parcel.goal) or variant["code-without-zone"](source, region.far)
            if goal is None:
                continue
            number = region.classes[min(source, goal), max(source, goal)]
            small, middle, long = sorted(parcel.sides)
            volume = small * middle * long // variant["volume-of-gram"]
            grams = variant["full-grams"](variant["billed-weight"](parcel.grams, volume))
            steps = [step for step in region.steps if variant["weight-at-step"](grams, step)]
            top = region.steps[-1]
            price = region.tariff[number, parcel.service, steps[0] if steps else top]
            if not steps:
                price += region.limits["kilo"] * variant["heavier-than-all"](grams - top)
            is_bulky = variant["bulky-measure"](long, middle, small) > region.limits["girth"]
            bulky = region.limits["bulky"] if is_bulky else 0
            part = variant["basis-of-fuel"](price, bulky, parcel.service) * region.limits["fuel"]
            rows.append((parcel, number, grams, price + bulky + variant["cents-of-fuel"](part)))
        return rows

    def _prices(self) -> list[str]:
        line = self.variant["line-of-price"]
        return [
            line.format(parcel.number, number, grams, f"{cents // 100}.{cents % 100:02}")
            for parcel, number, grams, cents in self._priced()
        ]

    def _bills(self) -> list[str]:
        sums = dict[str, list[int]]()
        for parcel, _, _, cents in self._priced():
            sums.setdefault(parcel.customer if parcel.customer in self.day.customers else "", []).append(cents)
        rows = []
        for id, prices in sums.items():
            name, percent = self.day.customers.get(id, ("cash", 0))
            off = sum(prices) * percent // 100 if len(prices) >= self.variant["parcels-for-discount"] else 0
            rows.append((name, len(prices), sum(prices) - off))
        rows.sort(key=self.variant["order-of-bills"])
        return [f"{name} {count} {total // 100}.{total % 100:02}" for name, count, total in rows]

    def _routes(self) -> list[str]:
        variant, wait = self.variant, self.region.limits["wait"]
        links = list[tuple[str, str, int]]()
        for tail, head, minutes, kilometres in self.region.links:
            cost = variant["measure-of-links"](minutes, kilometres)
            back = variant["way-back"](cost)
            links += [(tail, head, cost + wait)] + ([] if back is None else [(head, tail, back + wait)])
        lines, ways = list[str](), dict[str, dict[str, tuple[int, list[str]]]]()
        for parcel in self._parcels():
            start, end = (_longest(self.region.depots, code) or "" for code in (parcel.source, parcel.goal))
            if start not in ways:
                best = {start: (0, [start])}
                # Ways of one link, of two, and so on.
                for _ in self.region.depots:
                    longer = [
                        (head, (best[tail][0] + cost, [*best[tail][1], head]))
                        for tail, head, cost in links
                        if tail in best
                    ]
                    for head, way in longer:
                        best[head] = min(best.get(head, way), way)
                ways[start] = best
            cost, path = ways[start][end]
            total = cost + variant["waiting-times"](len(path) - 1, wait)
            lines.append(f"{parcel.number} {'>'.join(path)} {total}")
        return lines

    def _scans(self) -> dict[str, list[tuple[int, int, str, str]]]:
        """Return minute, order, event and depot of scans, in their order, by number."""
        scans, place = dict[str, list[tuple[int, int, str, str]]](), 0
        for depot in sorted(self.day.scans, key=str.lower):
            for one in self.day.scans[depot]:
                place += 1
                if one.event not in EVENTS:
                    continue
                order = {"rank": EVENTS.index(one.event), "file": place, "reverse": -place}
                minute = _minute(one.time - timedelta(minutes=self.day.fast[depot]))
                row = (minute, order[self.variant["scans-of-a-minute"]], one.event, depot)
                scans.setdefault(one.number.upper(), []).append(row)
        return {number: sorted(rows) for number, rows in sorted(scans.items())}

    def _states(self) -> list[str]:
        return [f"{number} {rows[-1][2]} {rows[-1][3]}" for number, rows in self._scans().items()]

    def _due(self, parcel: Parcel) -> int:
        closed = {self.region.monday, self.region.monday + timedelta(days=2)}
        minute = parcel.time.hour * 60 + parcel.time.minute
        day = parcel.time.date() + timedelta(days=self.variant["last-minute"](minute, self.region.evening))

        def is_free() -> bool:
            return day in closed or self.variant["free-weekdays"](day.isoweekday(), parcel.service)

        for number in range(self.region.days[parcel.service] + 1):
            day += timedelta(days=number > 0)
            while is_free():
                day += timedelta(days=1)
        return _minute(datetime.combine(day, datetime.min.time())) + int(self.variant["hour-of-promise"](minute))

    def _late(self) -> list[str]:
        scans, lines = self._scans(), list[str]()
        now = max(row[0] for rows in scans.values() for row in rows)
        for parcel in self._parcels():
            due, ends = self._due(parcel), self.variant["end-of-delivery"]
            moments = [minute for minute, _, event, _ in scans.get(parcel.number, []) if event in ends]
            if not moments:
                lines += [f"{parcel.number} open"] * self.variant["open-parcels"](now, due)
            elif moments[0] > due:
                lines.append(f"{parcel.number} {self.variant['unit-of-delay'](moments[0] - due)}")
        return lines


def _shapes(rng: random.Random) -> dict[str, str]:
    """Draw which of several ways programs are written in."""
    place = rng.randrange(2)
    wrong = PREFIXES[place].replace(*SHORTEST[place])
    return {
        "clean": rng.choice(CLEANS),
        "longest": PREFIXES[place],
        "shortest": wrong,
        "search": rng.choice(SEARCHES),
        "francs": rng.choice(FRANCS),
        "numbers": rng.choice(["", '-f "$root/@awk@/numbers.awk" ']),
    }


def _shaped(text: str, shapes: Mapping[str, str]) -> str:
    for name, shape in shapes.items():
        text = text.replace(f"<<{name}>>", shape)
    return text


def _names(rng: random.Random, region: Region) -> dict[str, object]:
    keys = {
        "kilo": ["kilo", "cents_of_kilo", "heavy"],
        "bulky": ["large", "cents_of_large", "unhandy"],
        "girth": ["size", "largest", "centimetres"],
        "fuel": ["diesel", "percent_of_fuel", "energy"],
        "wait": ["wait", "minutes_of_depot", "handling"],
        "evening": ["evening", "closing", "end_of_day"],
    }
    names: dict[str, object] = {f"{name}_key": rng.choice(words).upper() for name, words in keys.items()}
    names |= dict(region.limits) | {"evening": f"{region.evening // 60}:{region.evening % 60:02}", "far": region.far}
    return names | {
        "awk": rng.choice(["awk", "programs", "lib", "filters"]),
        "steps": rng.choice(["steps", "stages", "work"]),
        "settings": rng.choice(["day", "settings", "prices", "hall"]),
    }


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: tables, programs, an example of a day, logs of lorries, and lists of cages."""
    region, shapes, year = Region.draw(rng), _shapes(rng), rng.randint(2019, 2027)
    names, apart = _names(rng, region), shapes["numbers"] != ""
    names["numbers_file"] = f"{names['awk']}/{'numbers' if apart else 'clean'}.awk"
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    texts = {
        "bin/day": DAY,
        "@steps@/clean.sh": CLEAN,
        "@steps@/zones.sh": ZONES,
        "@steps@/prices.sh": PRICES,
        "@steps@/paths.sh": PATHS,
        "@steps@/events.sh": EVENTS_STEP,
        "@steps@/promises.sh": PROMISES,
        "@awk@/clean.awk": shapes["clean"] + ("" if apart else NUMBERS) + CLEAN_LINES,
        "@awk@/prefix.awk": PREFIX,
        "@awk@/zones.awk": ZONE_LINES,
        "@awk@/prices.awk": PRICE_LINES,
        "@awk@/paths.awk": PATH_LINES,
        "@awk@/calendar.awk": CALENDAR,
        "@awk@/events.awk": EVENT_LINES,
        "@awk@/promises.awk": PROMISE_LINES,
        "@awk@/bills.awk": BILLS,
        "@awk@/late.awk": LATE,
        **{f"lists/{name}.sh": text for name, text in LISTS.items()},
        "etc/steps.txt": ORDER,
        "etc/@settings@.conf": SETTINGS,
    }
    texts |= {"@awk@/numbers.awk": NUMBERS} if apart else {}
    files = variant.files({path: _shaped(text, shapes) for path, text in texts.items()}) | variant.document(rng)
    files |= {"docs/files.md": variant.words(FORMATS), "docs/notes.md": notes(rng, "Notes on the hall", 10)}
    files |= region.files(rng)
    for place in range(3):
        files[f"etc/tariff-{year - place}.txt"] = region.prices(rng, -15 * place)
    # Nothing reads these.
    files["old/calendar.awk"] = variant.text(CALENDAR).replace("month < 3", "month < 2")
    files["old/prices.awk"] = variant.outdated(PRICE_LINES).replace("$3 + 0", "$3")
    files["old/steps.txt"] = ORDER.replace("zones     zones.tsv\nprices    priced.tsv", "prices\nzones")
    files |= {f"example/{name}": text for name, text in _Day.draw(rng, variant, region).day.files().items()}
    questions = _questions(rng, files, sorted(dict.fromkeys(region.depots.values())))
    fixed = frozenset(path for path in files if path.startswith(("example/", "lorries/", "cages/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        for _ in range(DRAWS):
            day = _Day.draw(fresh, variant, region)
            if day.separates():
                break
        inputs = {f"day/{name}": text for name, text in day.day.files().items()}
        return [
            Check(names[0], f"bin/day $IN/day {' '.join(names)}", day.text(names), inputs)
            for names in (("prices", "bills", "routes"), ("states", "late"))
        ]

    about = (
        "`bin/day FOLDER LIST...` makes lists of parcels: prices, bills, routes, states and late, for example "
        f"`bin/day example prices late`. `docs/files.md` describes files, tables and lists, and `{variant.page}` says "
        f"what was agreed. `etc/tariff.txt` is a link to the tariff of {year}."
    )
    looks = ["ls * | head -80", "cat bin/day docs/files.md etc/steps.txt etc/*.conf"]
    looks += [variant.words("tail -n +1 @steps@/* lists/* @awk@/*")]
    rows = [(*row[:3], _shaped(row[3], shapes), _shaped(row[4], shapes)) for row in EDITS]
    faults = [
        *variant.edits(rows, files, looks),
        *variant.faults(rng, files, looks),
        *_faults_of_files(rng, variant, region, files, looks, year),
    ]
    setup = f"ln -s tariff-{year}.txt etc/tariff.txt"
    return Project(about, files, faults, checks, {"bin/day": 0o755}, setup=setup, fixed=fixed, questions=questions)


def _faults_of_files(
    rng: random.Random, variant: Variant, region: Region, files: Mapping[str, str], looks: Sequence[str], year: int
) -> list[Fault]:
    """Return faults of tables, links and permissions."""
    tariff, number = f"etc/tariff-{year}.txt", 1
    changes = []
    for step in region.steps[:2]:
        cents = region.tariff[number, "normal", step]
        old = f"\n{number} normal {step} {cents}\n"
        changes.append((tariff, old, old.replace(f"{cents}\n", f"{cents // 100}.{cents % 100:02}\n")))
    monday = region.monday
    table = "etc/free-days.txt"
    holiday = Edit(table, f"{monday}\n", f"{monday:%d.%m.%Y}\n")
    return [
        fault_of_edits(
            "francs-in-tariff",
            "Some parcels cost nearly nothing since the new prices were typed.",
            [change for change in changes if files[tariff].count(change[1]) == 1],
            [*looks, f"cat {tariff}"],
        ),
        Fault(
            "day-before-month",
            "What comes before a long weekend is promised one day too early.",
            [*looks, f"cat {table}"],
            holiday.undo,
            [holiday],
        ),
        fault_of_command(
            "tariff-of-last-year",
            "Prices are those that customers had before.",
            [*looks, "ls -l etc"],
            f"ln -sf tariff-{year - rng.randint(1, 2)}.txt etc/tariff.txt",
            f"ln -sf tariff-{year}.txt etc/tariff.txt",
        ),
        fault_of_command(
            "line-ends-of-depots",
            "No way is printed since somebody has added a depot.",
            [*looks, "cat -A etc/depots.txt"],
            r"sed -i 's/$/\r/' etc/depots.txt",
            r"sed -i 's/\r$//' etc/depots.txt",
        ),
        lost_permission("bin/day", looks),
    ]


def _questions(rng: random.Random, files: dict[str, str], depots: Sequence[str]) -> list[Question]:
    """Draw logs of lorries and lists of cages, and ask about them."""
    heaviest = draw_journal(
        rng,
        files,
        "lorries/2025-{:02}.log",
        depots,
        range(1000, 90_000),
        lambda month, depot, grams, lorry: (
            f"2025-{month:02}-{rng.randint(1, 28):02} lorry={lorry} from={depot} load={grams}"
        ),
    )
    kinds = ("letter", "parcel", "roll", "sack")
    cage_of = draw_lists(rng, files, "cages", "cage", lambda item: f"{rng.choice(kinds)} {item}", counts=(8, 16))
    return [
        asked_together([_heaviest_lorry(one, heaviest[one]) for one in rng.sample([*heaviest], ASKED)]),
        asked_together([_cage_of_item(one, cage_of[one]) for one in rng.sample(sorted(cage_of), ASKED)]),
    ]


def _heaviest_lorry(depot: str, lorry: str) -> Question:
    command = f"grep -h ' from={depot} ' lorries/* | sed 's/.*lorry=\\(.*\\) from.*load=/\\1 /' | sort -k2,2n | tail -1"
    return Question(
        "heaviest-lorry",
        f"Which lorry from {depot} had the largest load, by lorries/?",
        lorry,
        ["head -3 lorries/2025-01.log", f"{command} | cut -d' ' -f1"],
    )


def _cage_of_item(item: str, cage: str) -> Question:
    return Question(
        "cage-of-item",
        f"Which cage is {item} in, by cages/?",
        cage,
        [f"grep -r {item} cages", f"grep -l ' {item}$' cages/* | xargs sed -n 's/^cage //p'"],
    )
