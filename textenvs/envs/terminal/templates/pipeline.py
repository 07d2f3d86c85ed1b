"""The template *pipeline*: readings in CSV files, a settings file, and scripts that clean and sum them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from shlex import quote

from ..project import Check, Fault, Project, Question, edit

_CLEAN = '''"""Read readings: drop bad rows, convert units."""
import csv


def rows(path, settings):
    with open(path, encoding=settings["encoding"]) as file:
        for row in csv.DictReader(file, delimiter=settings["delimiter"]):
            if not row["{column}"].strip():
                continue
            value = float(row["{column}"]) * settings["factor"]
            if settings["low"] <= value <= settings["high"]:
                yield row["{key}"], value
'''
_SUMS = '''"""Sums and ranks of cleaned readings."""


def totals(rows):
    result = {}
    for key, value in rows:
        result[key] = result.get(key, 0.0) + value
    return result


def top(sums, count):
    ranked = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    return ranked[:count]
'''
_MAIN = """import json
import sys
from pathlib import Path

from lib.clean import rows
from lib.sums import top, totals

HERE = Path(__file__).parent


def main():
    settings = json.loads((HERE / "etc" / "settings.json").read_text())
    sums = totals(row for path in sorted(sys.argv[1:]) for row in rows(path, settings))
    for key, value in top(sums, settings["top"]):
        print(f"{key} {value:.2f}")


main()
"""
_RUN = """#!/bin/sh
cd "$(dirname "$0")" || exit 1
exec python3 -S main.py "$@"
"""


def draw(rng: random.Random) -> Project:
    """Draw a project: names, columns, units and limits."""
    column, key = rng.choice(["reading", "amount", "level"]), rng.choice(["station", "meter", "site"])
    factor, top, high = rng.choice([0.1, 0.01, 2.5]), rng.randint(3, 6), rng.choice([500, 800, 1200])
    settings = "".join(
        f'  "{name}": {value},\n'
        for name, value in (
            ("delimiter", '";"'),
            ("encoding", '"utf-8"'),
            ("factor", factor),
            ("low", 0),
            ("high", high),
        )
    )
    files = {
        "main.py": _MAIN,
        "run.sh": _RUN,
        "lib/__init__.py": "",
        "lib/clean.py": _CLEAN.replace("{column}", column).replace("{key}", key),
        "lib/sums.py": _SUMS,
        "etc/settings.json": "{\n" + settings + f'  "top": {top}\n' + "}\n",
    }
    names = [f"{rng.choice('ABCDEF')}{number}" for number in range(10, 10 + rng.randint(6, 12))]
    for day in range(rng.randint(30, 60)):
        files[f"data/day{day:03}.csv"] = _readings(rng, names, column, key, 20, factor, high)[0]

    def checks(fresh: random.Random) -> Sequence[Check]:
        result = []
        for number in range(3):
            text, sums = _readings(fresh, names, column, key, 40, factor, high)
            ranked = sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:top]
            expected = "\n".join(f"{name} {value:.2f}" for name, value in ranked)
            result.append(Check(f"sums{number}", "./run.sh $IN/new.csv", expected, {"new.csv": text}))
        return result

    faults = [
        edit(
            "wrong-unit",
            "The sums are far too high, or no reading counts any more.",
            "etc/settings.json",
            f'"factor": {factor},',
            f'"factor": {factor * 10:g},',
        ),
        edit(
            "wrong-delimiter",
            "It ends with an error for every file of readings.",
            "etc/settings.json",
            '"delimiter": ";"',
            '"delimiter": ","',
        ),
        edit(
            "wrong-encoding",
            "It ends with an error for some files of readings.",
            "etc/settings.json",
            '"encoding": "utf-8"',
            '"encoding": "ascii"',
        ),
        edit("renamed-key", "It ends with an error.", "etc/settings.json", '"high":', '"maximum":'),
        edit(
            "off-by-one",
            "One line is missing from the report.",
            "lib/sums.py",
            "ranked[:count]",
            "ranked[: count - 1]",
        ),
        edit(
            "wrong-order",
            "The report lists the wrong places.",
            "lib/sums.py",
            "(-item[1], item[0])",
            "(item[1], item[0])",
        ),
        edit(
            "swapped-column",
            "The names in the report are nonsense.",
            "lib/clean.py",
            f'yield row["{key}"]',
            f'yield row["{column}"]',
        ),
        edit(
            "wrong-path",
            "It ends with an error before it reads anything.",
            "main.py",
            '"etc" / "settings.json"',
            '"config" / "settings.json"',
        ),
        Fault(
            "permission",
            "It cannot be started.",
            ["ls -l", "./run.sh data/day000.csv"],
            "chmod +x run.sh",
            modes={"run.sh": 0o644},
        ),
    ]
    about = "`./run.sh FILES` reads files of readings, drops rows that are not valid, and prints the largest sums."
    fixed = frozenset(path for path in files if path.startswith("data/"))
    questions = _questions({path: files[path] for path in sorted(fixed)}, factor, high)
    return Project(about, files, faults, checks, {"run.sh": 0o755}, fixed=fixed, questions=questions)


def _questions(data: Mapping[str, str], factor: float, high: float) -> list[Question]:
    """Return questions about all files of readings."""
    rows = [(path, *line.split(";")) for path, text in data.items() for line in text.splitlines()[1:]]
    raw = [(path, place, int(value)) for path, _, place, value in rows if value]
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
            ["head -3 data/day000.csv", f"awk -F';' {quote(over)} data/*"],
        ),
        Question(
            "largest-files-of-place",
            "Which two files of `data/` have the largest sums of raw values from Bern, dropped or not (of equal ones "
            "the first by name)? Answer with path and sum of the one, then of the other.",
            f"{first} {sums[first]} {second} {sums[second]}",
            [
                "head -3 data/day000.csv",
                f"awk -F';' {quote(bern)} data/* | LC_ALL=C sort -k2,2nr -k1,1 | head -2 | paste -sd' '",
            ],
        ),
    ]


def _readings(
    rng: random.Random, names: Sequence[str], column: str, key: str, count: int, factor: float, high: float
) -> tuple[str, dict[str, float]]:
    """Draw a file of readings; return its text and the sums of its valid rows."""
    lines, sums = [f"{key};place;{column}"], dict[str, float]()
    for _ in range(count):
        name, raw = rng.choice(names), rng.randint(1, round(1.2 * high / factor))
        blank = rng.random() < 0.1
        lines.append(f"{name};{rng.choice(['Zürich', 'Köln', 'Bern'])};{'' if blank else raw}")
        if not blank and raw * factor <= high:
            sums[name] = sums.get(name, 0.0) + raw * factor
    return "\n".join(lines) + "\n", sums
