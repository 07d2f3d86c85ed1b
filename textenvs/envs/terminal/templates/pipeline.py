"""The template *pipeline*: readings in CSV files, a settings file, and scripts that clean and sum them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import TypeAlias

from ..project import Check, Fault, Project, Question
from .variation import Option, Rule, Variant, numbers

_CLEAN = '''"""Read readings: drop bad rows, convert units."""
import csv


def rows(path, settings):
    with open(path, encoding=settings["encoding"]) as file:
        for row in csv.DictReader(file, delimiter=settings["delimiter"]):
            if not row["@column@"].strip() or row["place"] == @ignored_place@:
                continue
            value = float(row["@column@"]) * settings["@factor_key@"]
            @above_limit@
            if settings["@low_key@"] <= value <= settings["@high_key@"]:
                yield row["@key@"], value
'''
_SUMS = '''"""Figures and ranks of cleaned readings."""


def figure(values):
    return @figure@


def totals(rows):
    groups = {}
    for key, value in rows:
        groups.setdefault(key, []).append(value)
    return {key: figure(values) for key, values in groups.items() if len(values) >= @fewest_readings@}


def top(sums, count):
    ranked = sorted(sums.items(), key=lambda item: @order_of_lines@)
    return ranked[:count]
'''
_MAIN = """import json
import sys
from pathlib import Path

from @lib@.@clean@ import rows
from @lib@.@sums@ import top, totals

HERE = Path(__file__).parent


def main():
    settings = json.loads((HERE / "etc" / "@settings@.json").read_text())
    sums = totals(row for path in sorted(sys.argv[1:]) for row in rows(path, settings))
    for key, value in top(sums, settings["@top_key@"]):
        print(@line@)


main()
"""
_RUN = """#!/bin/sh
cd "$(dirname "$0")" || exit 1
exec python3 -S main.py "$@"
"""
_SETTINGS = """{
  "delimiter": "@delimiter@",
  "encoding": "utf-8",
  "@factor_key@": @factor@,
  "@low_key@": 0,
  "@high_key@": @high@,
  "@top_key@": @top@
}
"""
_UNIT = "The values in the files are raw: a reading is a raw value times @factor@."
_IDENTIFIERS = "rows path settings file row value figure values totals groups top sums count ranked item main"
_PLACES = ("Zürich", "Köln", "Bern", "Genève")

_RULES = (
    Rule(
        "ignored-place",
        "@lib@/@clean@.py",
        "Readings of a place count that is no longer ours, or one of ours is missing.",
        [Option(f'"{place}"', f"Readings from {place} do not count: they are not ours.", place) for place in _PLACES],
    ),
    Rule(
        "above-limit",
        "@lib@/@clean@.py",
        "Readings above the limit are not treated as agreed.",
        [
            Option(
                'value = value if value <= settings["@high_key@"] else -1',
                "Readings above `@high_key@` are dropped.",
                lambda value, high: value if value <= high else None,
            ),
            Option(
                'value = min(value, settings["@high_key@"])',
                "Readings above `@high_key@` count as `@high_key@`.",
                lambda value, high: min(value, high),
            ),
            Option(
                'value = value / 2 if value > settings["@high_key@"] else value',
                "Of readings above `@high_key@`, one half counts.",
                lambda value, high: value / 2 if value > high else value,
            ),
            Option(
                'value = settings["@high_key@"] / 10 if value > settings["@high_key@"] else value',
                "Readings above `@high_key@` count as a tenth of it.",
                lambda value, high: high / 10 if value > high else value,
            ),
        ],
    ),
    Rule(
        "figure",
        "@lib@/@sums@.py",
        "The figures of the report are not the ones that were agreed.",
        [
            Option("sum(values)", "The report has the sum of the readings of each @key@.", sum),
            Option("sum(values) / len(values)", "The report has the mean of each @key@.", lambda v: sum(v) / len(v)),
            Option(
                "sum(values) - min(values)",
                "The report has the sum of the readings of each @key@ without the smallest one.",
                lambda v: sum(v) - min(v),
            ),
            Option(
                "sum(values) - max(values)",
                "The report has the sum of the readings of each @key@ without the largest one.",
                lambda v: sum(v) - max(v),
            ),
            Option(
                "sum(values) + len(values)",
                "The report has, for each @key@, the sum plus the number of readings.",
                lambda v: sum(v) + len(v),
            ),
        ],
    ),
    numbers(
        "fewest-readings",
        "@lib@/@sums@.py",
        "Names are missing from the report, or some are in it that have too few readings.",
        range(2, 9),
        "{}",
        "A @key@ with fewer than {} readings that count is left out.",
    ),
    Rule(
        "order-of-lines",
        "@lib@/@sums@.py",
        "The report lists the wrong places.",
        [
            Option(
                "(-item[1], item[0])",
                "The report has the largest figures, the largest first; equal ones by name.",
                (-1, False),
            ),
            Option(
                "(item[1], item[0])",
                "The report has the smallest figures, the smallest first; equal ones by name.",
                (1, False),
            ),
            Option("item[0]", "The report has the names that are first in the alphabet.", (0, False)),
            Option("item[0][::-1]", "The report is sorted by name, read from the end (A2 before B1).", (0, True)),
        ],
    ),
    Rule(
        "line",
        "main.py",
        "The program that reads the report does not understand it any more.",
        [
            Option('f"{key} {value:.2f}"', "A line of the report is such as `A10 12.50`.", "{0} {1:.2f}"),
            Option('f"{key}: {value:.1f}"', "A line of the report is such as `A10: 12.5`.", "{0}: {1:.1f}"),
            Option('f"{value:.2f} {key}"', "A line of the report is such as `12.50 A10`.", "{1:.2f} {0}"),
            Option('f"{key};{value:.3f}"', "A line of the report is such as `A10;12.500`.", "{0};{1:.3f}"),
            Option('f"{key}={value:010.2f}"', "A line of the report is such as `A10=0000012.50`.", "{0}={1:010.2f}"),
        ],
    ),
)
#: Kind, symptom, path, old and new text.
_EDITS = (
    (
        "wrong-unit",
        "The figures are far too high, or no reading counts any more.",
        "etc/@settings@.json",
        '"@factor_key@": @factor@,',
        '"@factor_key@": @wrong_factor@,',
    ),
    (
        "wrong-delimiter",
        "It ends with an error for every file of readings.",
        "etc/@settings@.json",
        '"delimiter": "@delimiter@"',
        '"delimiter": ","',
    ),
    (
        "wrong-encoding",
        "It ends with an error for some files of readings.",
        "etc/@settings@.json",
        '"encoding": "utf-8"',
        '"encoding": "ascii"',
    ),
    ("renamed-key", "It ends with an error.", "etc/@settings@.json", '"@high_key@":', '"@other_key@":'),
    ("off-by-one", "One line is missing from the report.", "@lib@/@sums@.py", "ranked[:count]", "ranked[: count - 1]"),
    (
        "swapped-column",
        "The names in the report are nonsense.",
        "@lib@/@clean@.py",
        'yield row["@key@"]',
        'yield row["@column@"]',
    ),
    (
        "wrong-path",
        "It ends with an error before it reads anything.",
        "main.py",
        '"etc" / "@settings@.json"',
        '"config" / "@settings@.json"',
    ),
)


#: A reading: its station, its place, and its raw value, where there is one.
_Row: TypeAlias = tuple[str, str, int | None]


@dataclass(frozen=True)
class _Readings:
    """Readings of a drawn project, and the report on them."""

    variant: Variant
    stations: Sequence[str]
    factor: float
    high: float
    top: int

    def rows(self, rng: random.Random, stations: Sequence[str]) -> list[_Row]:
        """Draw a row for each of the stations; one in ten is blank."""
        most = round(1.2 * self.high / self.factor)
        raws = [None if rng.random() < 0.1 else rng.randint(1, most) for _ in stations]
        return [(key, rng.choice(_PLACES), raw) for key, raw in zip(stations, raws, strict=True)]

    def text(self, rows: Sequence[_Row]) -> str:
        """Return a file of readings."""
        names = self.variant.names
        lines = [(key, place, "" if raw is None else raw) for key, place, raw in rows]
        separator = str(names["delimiter"])
        return "".join(
            separator.join(map(str, line)) + "\n" for line in [(names["key"], "place", names["column"]), *lines]
        )

    def report(self, rows: Sequence[_Row]) -> str:
        groups, variant = dict[str, list[float]](), self.variant
        for key, place, raw in rows:
            if raw is None or place == variant["ignored-place"]:
                continue
            if (value := variant["above-limit"](raw * self.factor, self.high)) is not None:
                groups.setdefault(key, []).append(value)
        figures = {
            key: variant["figure"](values)
            for key, values in groups.items()
            if len(values) >= variant["fewest-readings"]
        }
        sign, backwards = variant["order-of-lines"]
        ranked = sorted(figures.items(), key=lambda item: (sign * item[1], item[0][::-1] if backwards else item[0]))
        return "\n".join(variant["line"].format(*item) for item in ranked[: self.top])


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: names, columns, units, limits and rules."""
    factor, high = rng.choice([0.1, 0.01, 2.5]), rng.choice([500, 800, 1200])
    high_key, other_key = rng.sample(["high", "maximum", "upper", "ceiling", "most"], 2)
    names = {
        "column": rng.choice(["reading", "amount", "level"]),
        "key": rng.choice(["station", "meter", "site"]),
        "lib": rng.choice(["lib", "core", "steps", "parts"]),
        "clean": rng.choice(["clean", "reader", "intake", "parse"]),
        "sums": rng.choice(["sums", "ranks", "figures", "groups"]),
        "settings": rng.choice(["settings", "options", "limits", "units"]),
        "delimiter": rng.choice([";", "|", ":"]),
        "factor_key": rng.choice(["factor", "scale", "unit"]),
        "low_key": rng.choice(["low", "minimum", "floor"]),
        "high_key": high_key,
        "other_key": other_key,
        "top_key": rng.choice(["top", "lines", "length"]),
        "factor": factor,
        "wrong_factor": f"{factor * 10:g}",
        "high": high,
        "top": rng.randint(4, 7),
    }
    variant = Variant.draw(rng, _RULES, _IDENTIFIERS, names, stated)
    texts = {
        "main.py": _MAIN,
        "run.sh": _RUN,
        "@lib@/__init__.py": "",
        "@lib@/@clean@.py": _CLEAN,
        "@lib@/@sums@.py": _SUMS,
        "etc/@settings@.json": _SETTINGS,
    }
    files = variant.files(texts) | variant.document(rng, _UNIT)
    stations = [f"{rng.choice('ABCDEF')}{number}" for number in range(10, 10 + rng.randint(9, 16))]
    readings = _Readings(variant, stations, factor, high, int(str(names["top"])))
    data = {
        f"data/day{day:03}.csv": readings.rows(rng, rng.choices(stations, k=20)) for day in range(rng.randint(30, 60))
    }
    files |= {path: readings.text(rows) for path, rows in data.items()}

    def checks(fresh: random.Random) -> Sequence[Check]:
        return [_check(fresh, f"report{number}", readings) for number in range(2)]

    looks = ["ls . */*.py", "cat main.py"]
    permission = Fault(
        "permission",
        "It cannot be started.",
        ["ls -l", "./run.sh data/day000.csv"],
        "chmod +x run.sh",
        modes={"run.sh": 0o644},
    )
    about = (
        "`./run.sh FILES` reads files of readings, drops rows that are not valid, and prints a report, which is "
        f"described in `{variant.page}`."
    )
    faults = [*variant.edits(_EDITS, files, looks), *variant.faults(rng, files, looks), permission]
    questions = _questions(data, readings)
    return Project(about, files, faults, checks, {"run.sh": 0o755}, fixed=frozenset(data), questions=questions)


def _check(rng: random.Random, name: str, readings: _Readings) -> Check:
    """Draw readings of many stations; and of a few, with one to eight readings that count, all in the report."""
    ignored = readings.variant["ignored-place"]
    many = readings.rows(rng, [station for station in readings.stations for _ in range(rng.randint(9, 14))])
    parts = [many]
    for counts in (range(1, 5), range(5, 9)):
        stations = rng.sample(readings.stations, 4)
        rows = readings.rows(
            rng, [station for station, count in zip(stations, counts, strict=True) for _ in range(count)]
        )
        place = next(place for place in _PLACES if place != ignored)
        parts.append([(key, place, rng.randint(1, round(readings.high / readings.factor))) for key, *_ in rows])
    for part in parts:
        rng.shuffle(part)
    inputs = {f"new{number}.csv": readings.text(part) for number, part in enumerate(parts)}
    command = "; ".join(f"./run.sh $IN/{name}" for name in inputs)
    return Check(name, command, "\n".join(filter(None, map(readings.report, parts))), inputs)


def _questions(data: Mapping[str, Sequence[_Row]], readings: _Readings) -> list[Question]:
    """Return questions about all files of readings."""
    factor, high, separator = readings.factor, readings.high, readings.variant.names["delimiter"]
    raw = [(path, place, value) for path, rows in data.items() for _, place, value in rows if value is not None]
    dropped = [value for *_, value in raw if value * factor > high]
    sums = dict[str, int]()
    for path, place, value in raw:
        if place == "Bern":
            sums[path] = sums.get(path, 0) + value
    first, second = sorted(sums, key=lambda path: (-sums[path], path))[:2]
    over = f'FNR > 1 && $3 != "" && $3 * {factor} > {high} {{ s += $3; n++ }} END {{ printf "%d %d\\n", s, n }}'
    bern = '$2 == "Bern" { s[FILENAME] += $3 } END { for (f in s) printf "%s %d\\n", f, s[f] }'
    return [
        Question(
            "sum-of-dropped",
            f"Some raw values in `data/` are above the limit of {high} after the conversion by {factor}. What is their "
            "sum, and how many are they? Answer with the two numbers.",
            f"{sum(dropped)} {len(dropped)}",
            ["head -3 data/day000.csv", f"awk -F'{separator}' {quote(over)} data/*"],
        ),
        Question(
            "largest-files-of-place",
            "Which two files of `data/` have the largest sums of raw values from Bern, dropped or not (of equal ones "
            "the first by name)? Answer with path and sum of the one, then of the other.",
            f"{first} {sums[first]} {second} {sums[second]}",
            [
                "head -3 data/day000.csv",
                f"awk -F'{separator}' {quote(bern)} data/* | LC_ALL=C sort -k2,2nr -k1,1 | head -2 | paste -sd' '",
            ],
        ),
    ]
