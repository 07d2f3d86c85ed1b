"""The template *calibration*: a Python library for a laboratory (units, polynomials, certificates), and its tests.

It needs make, sh and Python 3.
"""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor

from ...project import Check, Fault, Project, Question
from ..parts import ASKED, CITIES, GOODS, asked_together, file_in_the_way, lost_permission, notes, token
from ..records import draw_journal, draw_lists
from ..variation import DRAWS, Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import (
    CERTIFICATES,
    FORMATS,
    INIT,
    MAKEFILE,
    POLYNOMIAL,
    READINGS,
    REPORT,
    REPORT_COMMAND,
    TESTS,
    UNITS,
)

_UNITS = {"bar": ("kPa", Fraction(1, 100)), "mm": ("in", Fraction("25.4")), "g": ("kg", Fraction(1000))}
_BY_CHANCE = ("rounding", "figure", "combined-uncertainty", "reference-temperature", "order-of-readings")


def _fixed(value: Fraction) -> str:
    thousandths = floor(value * 1000 + Fraction(1, 2))
    return f"{'-' * (thousandths < 0)}{abs(thousandths) // 1000}.{abs(thousandths) % 1000:03}"


@dataclass(frozen=True)
class _Certificate:
    instrument: str
    issued: datetime.date
    days: int
    coefficients: Sequence[str]
    low: int
    high: int
    drift: str
    uncertainty: str
    folder: str = ""

    def text(self, place: int) -> str:
        data: dict[str, object] = {
            "instrument": f" {self.instrument.lower()} " if place % 3 else self.instrument,
            "issued": self.issued.isoformat(),
            "days": self.days,
            "coefficients": [float(number) for number in self.coefficients],
            "range": [self.low, self.high],
            "drift": float(self.drift),
            "uncertainty": float(self.uncertainty),
        }
        if self.days == 365:
            del data["days"]
        if self.drift == "0":
            del data["drift"]
        return json.dumps(data, indent=2) + "\n"


@dataclass(frozen=True)
class _Row:
    """A row of readings; the raw value is in the instrument's unit, and ``unit`` the one in which it is written."""

    instrument: str
    day: datetime.date
    raw: Fraction | None
    unit: str = ""
    temperature: int | None = None


@dataclass(frozen=True)
class _Value:
    instrument: str
    day: datetime.date
    value: Fraction
    uncertainty: Fraction
    mark: str


@dataclass(frozen=True)
class _Laboratory:
    """A laboratory, and its report by the rules of a project."""

    variant: Variant
    instruments: Mapping[str, tuple[str, str]]
    certificates: Sequence[_Certificate]
    rows: Sequence[_Row]

    def polynomial(self, coefficients: Sequence[str], x: Fraction) -> Fraction:
        ordered = self.variant["coefficient-order"](list(coefficients))
        return sum((Fraction(number) * x**n for n, number in enumerate(ordered)), Fraction(0))

    def value(self, row: _Row) -> _Value | None:
        variant = self.variant
        own = [
            one
            for one in self.certificates
            if one.instrument == row.instrument and one.issued <= row.day and one.folder != "withdrawn"
        ]
        if not own or row.raw is None:
            return None
        valid = [one for one in own if variant["end-of-validity"]((row.day - one.issued).days, one.days)]
        certificate = max(own, key=lambda one: one.issued)
        uncertainty, mark = Fraction(certificate.uncertainty), ""
        if valid:
            certificate = variant["chosen-certificate"]([self.exact(one) for one in valid])
            uncertainty = Fraction(certificate.uncertainty)
        elif variant["expired-certificate"] is None:
            return None
        else:
            uncertainty, mark = variant["expired-certificate"](uncertainty)
        raw = row.raw
        if not certificate.low <= raw <= certificate.high:
            raw, other = variant["out-of-range"](raw, Fraction(certificate.low), Fraction(certificate.high))
            mark += other
        reference = variant["reference-temperature"]
        celsius = reference if row.temperature is None else row.temperature
        value = self.polynomial(certificate.coefficients, raw) - Fraction(certificate.drift) * (celsius - reference)
        value = Fraction(variant["rounding"](value, Fraction(self.instruments[row.instrument][1])))
        return _Value(row.instrument, row.day, value, uncertainty, mark)

    @staticmethod
    def exact(certificate: _Certificate) -> _Certificate:
        """Return a certificate whose uncertainty has as many digits as those of others, to be compared."""
        return replace(certificate, uncertainty=f"{float(certificate.uncertainty):.3f}")

    def report(self) -> list[str]:
        variant = self.variant
        values = [value for row in self.rows if (value := self.value(row)) is not None]
        lines = [
            variant["reading-line"].format(
                one.day, one.instrument, _fixed(one.value), _fixed(one.uncertainty), one.mark
            )
            for one in sorted(values, key=variant["order-of-readings"])
        ]
        for name in sorted({one.instrument for one in values}):
            own = [one for one in values if one.instrument == name]
            figure = variant["figure"]([one.value for one in own])
            spread = variant["combined-uncertainty"]([one.uncertainty for one in own])
            lines.append(variant["summary-line"].format(name, _fixed(figure), _fixed(spread), len(own)))
        return lines

    def printed(self, variant: Variant) -> list[str]:
        """Return the report by the rules of another project."""
        return replace(self, variant=variant).report()

    def files(self, rng: random.Random, folder: str) -> dict[str, str]:
        """Return its files: readings in three files whose columns have another order."""
        files = {
            "instruments.json": json.dumps(
                {name.lower(): {"unit": unit, "step": step} for name, (unit, step) in self.instruments.items()},
                indent=1,
            )
        }
        for place, one in enumerate(self.certificates):
            files[f"certificates/{f'{one.folder}/' if one.folder else ''}c{place:02}.json"] = one.text(place)
        columns = ["instrument", "day", "raw", "unit", "temperature"]
        for number in range(3):
            order, lines = rng.sample(columns, 5), list[str]()
            for place, row in enumerate(self.rows[number::3]):
                unit = self.instruments[row.instrument][0]
                factor = _UNITS[unit][1] if row.unit == _UNITS[unit][0] else Fraction(1)
                cells = {
                    "instrument": row.instrument.lower() if place % 2 else f" {row.instrument}",
                    "day": row.day.isoformat(),
                    "raw": "" if row.raw is None else _decimal(row.raw / factor),
                    "unit": row.unit,
                    "temperature": "" if row.temperature is None else str(row.temperature),
                }
                lines.append(";".join(cells[name] for name in order))
            mark = "\ufeff" * (number == 1)
            files[f"readings/r{number}{token(rng, 2)}.csv"] = mark + "\n".join([";".join(order), *lines, ""])
        return {f"{folder}/{name}": text for name, text in files.items()}


def _decimal(value: Fraction) -> str:
    """Return a decimal number, where it has at most six digits."""
    millionths = value * 1_000_000
    assert millionths.denominator == 1
    return f"{'-' * (value < 0)}{abs(millionths.numerator) // 1_000_000}.{abs(millionths.numerator) % 1_000_000:06}"


def _laboratory(rng: random.Random, variant: Variant) -> _Laboratory:
    """Draw a laboratory in which each rule shows."""
    for _ in range(DRAWS):
        laboratory = _drawn(rng, variant)
        if variant.separates(_BY_CHANCE, laboratory.printed):
            break
    return laboratory


def _drawn(rng: random.Random, variant: Variant) -> _Laboratory:
    """Draw three instruments, certificates that are valid in turn, together or not at all, and readings."""
    units = rng.sample(sorted(_UNITS), 3)
    names = [f"{letter}{rng.randint(10, 99)}" for letter in rng.sample("ABCDEFGHK", 3)]
    steps = rng.sample(["0.05", "0.02", "0.25"], 3)
    instruments = {name: (unit, step) for name, unit, step in zip(names, units, steps, strict=True)}
    first, second, third = names
    start = datetime.date(2024, rng.randint(1, 6), rng.randint(1, 28))

    def after(days: int) -> datetime.date:
        return start + datetime.timedelta(days)

    def certificate(name: str, days: int, valid: int, uncertainty: int, folder: str = "") -> _Certificate:
        coefficients = [
            f"{'-9' if name == third else ''}0.{rng.randint(101, 989)}",
            f"1.0{rng.randint(11, 98)}",
            f"0.00{rng.randint(11, 98)}",
        ]
        drift = "0" if days == 30 else f"0.0{rng.randint(11, 49)}"
        low = rng.randint(5, 9)
        return _Certificate(name, after(days), valid, coefficients, low, low + 40, drift, f"0.{uncertainty:03}", folder)

    # The first one has two at a time, the middle one of three with the least uncertainty; those of others end.
    certificates = [
        certificate(first, 0, 400, 61),
        certificate(first, 10, 400, 21, "older"),
        certificate(first, 20, 400, 41),
        certificate(second, 0, 100, 35),
        certificate(second, 30, 365, 25, "older"),
        certificate(third, 0, 50, 55),
        certificate(third, 40, 90, 45),
        certificate(third, 60, 900, 15, "withdrawn"),
    ]

    def row(name: str, days: int, raw: Fraction | None = None, **options: object) -> _Row:
        if raw is None:
            raw = Fraction(rng.randint(1000, 4400), 100)
        row = _Row(name, after(days), raw, temperature=rng.choice([None, 12, 17, 18, 22, 27, 31]))
        return replace(row, **options)  # type: ignore[arg-type]

    bounds = [one for one in certificates if one.instrument == second][1]
    rows = [
        *(row(first, days) for days in (25, 60, 90)),
        row(first, 33, temperature=None),
        *(row(second, days) for days in (5, 31, 50)),
        row(second, 150, Fraction(bounds.low), temperature=18),
        row(second, 151, Fraction(bounds.high), temperature=None),
        row(second, 152, Fraction(bounds.high + 7), temperature=None),
        row(second, 153, Fraction(bounds.low - 3), temperature=31),
        row(second, 154, temperature=None),
        replace(row(second, 55), raw=None),
        # The last days of a certificate, and those behind them.
        *(row(third, 40 + days) for days in (0, 89, 90, 91, 103, 104, 105, 300)),
        row(third, -3),
        row(first, 21, Fraction(rng.randint(1000, 4400), 100)),
    ]
    written = {name: _UNITS[unit][0] for name, unit in zip(names, units, strict=True)}
    rows += [
        row(
            name,
            45,
            _UNITS[unit][1] * (Fraction(rng.randint(10, 44)) / _UNITS[unit][1]).__floor__(),
            unit=written[name],
        )
        for name, unit in zip(names, units, strict=True)
        if unit == "mm"
    ]
    rows += [
        row(name, 46 + place, Fraction(rng.randint(1000, 4400), 100), unit=written[name] if unit != "mm" else "")
        for name, unit in zip(names, units, strict=True)
        for place in range(2)
    ]
    rows += [row(name, 47, unit=unit) for name, unit in zip(names, units, strict=True)]
    return _Laboratory(variant, instruments, certificates, rng.sample(rows, len(rows)))


_SCRIPT = """import sys

sys.path.insert(0, ".")
from fractions import Fraction as F

import @lib@ as lib


def show(*values):
    print(*(value if value in ("none", "error") else f"{float(value):.6f}" for value in values))


def attempt(value, source, target):
    try:
        show(lib.convert(value, source, target))
    except lib.UnitError:
        show("error")


@lines@
"""


def _library(rng: random.Random, variant: Variant) -> Check:
    """Call functions of the library with numbers of which the results are known."""
    calls, expected = list[str](), list[str]()

    def call(text: str, *results: Fraction | str) -> None:
        calls.append(text)
        expected.append(" ".join(one if isinstance(one, str) else f"{float(one):.6f}" for one in results))

    low, width = rng.randint(0, 9), rng.randint(10, 20)
    rising = [Fraction(rng.randint(1, 99)), Fraction(rng.randint(2, 9)), Fraction(1, rng.randint(20, 40))]
    falling = [Fraction(rng.randint(1, 99)), Fraction(-rng.randint(12, 19))]
    for coefficients in (rising, falling):
        ordered = variant["coefficient-order"](list(coefficients))
        written = f"[{', '.join(f'F({one.numerator}, {one.denominator})' for one in ordered)}]"
        x = Fraction(low + 3)

        def at(x: Fraction, coefficients: Sequence[Fraction] = coefficients) -> Fraction:
            return sum((number * x**n for n, number in enumerate(coefficients)), Fraction(0))

        slope = sum((n * number * x ** (n - 1) for n, number in enumerate(coefficients) if n), Fraction(0))
        call(f"show(lib.evaluate({written}, {x}))", at(x))
        call(f"show(lib.derivative({written}, {x}))", slope)
        begin = low
        y, place = at(Fraction(begin + 4)), Fraction(begin + 4)
        bounds = f"{begin}, {begin + width}"
        call(f"show(lib.inverse({written}, F({y.numerator}, {y.denominator}), {bounds}))", place)
        call(f"show(lib.inverse({written}, {10**6}, {bounds}) or 'none')", "none")
    points = [(n, rng.randint(-90, 90)) for n in rng.sample(range(30), 5)]
    mean_x, mean_y = (Fraction(sum(row[n] for row in points), 5) for n in (0, 1))
    spread = sum(((x - mean_x) ** 2 for x, _ in points), Fraction(0))
    slope = sum(((x - mean_x) * (y - mean_y) for x, y in points), Fraction(0)) / spread
    call(f"show(*lib.fit_line({points}))", slope, mean_y - slope * mean_x)
    number = rng.randint(2, 900)
    for source, target, result in (
        ("kPa", "bar", Fraction(number, 100)),
        ("cm", "m", Fraction(number, 100)),
        ("m", "mm", Fraction(1000 * number)),
        ("in", "cm", Fraction(number) * Fraction("2.54")),
        ("lb", "kg", Fraction(number) * Fraction("0.45359237")),
        ("F", "C", Fraction(5 * (number - 32), 9)),
        ("C", "F", Fraction(9 * number, 5) + 32),
        ("C", "K", number + Fraction("273.15")),
        ("g", "m", "error"),
        ("xPa", "Pa", "error"),
    ):
        call(f"attempt({number}, {source!r}, {target!r})", result)
    script = _SCRIPT.replace("@lib@", str(variant.names["lib"])).replace("@lines@", "\n".join(calls))
    return Check("library", "python3 -B $IN/use.py", "\n".join(expected), {"use.py": script})


def _report(rng: random.Random, variant: Variant) -> Check:
    """Print the report of a laboratory whose folder has a space in its name, from another folder."""
    laboratory = _laboratory(rng, variant)
    inputs = laboratory.files(rng, "the lab") | {
        f"plain/{p.partition('/')[2]}": t for p, t in laboratory.files(random.Random(1), "x").items()
    }
    command = 'make -s report FOLDER=$IN/plain; cd /tmp; /project/bin/report "$IN/the lab"'
    return Check("report", command, "\n".join([*laboratory.report()] * 2), inputs)


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: the library, its tests, an example, and books of measurements."""
    names = {"lib": rng.choice(["labcal", "gauge", "calib", "metro", "trueup"])}
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    texts = {
        "Makefile": MAKEFILE,
        "bin/report": REPORT_COMMAND,
        "@lib@/__init__.py": INIT,
        "@lib@/units.py": UNITS,
        "@lib@/polynomial.py": POLYNOMIAL,
        "@lib@/certificates.py": CERTIFICATES,
        "@lib@/readings.py": READINGS,
        "@lib@/report.py": REPORT,
        "tests/__init__.py": "",
        "tests/test_library.py": TESTS,
    }
    files = variant.files(texts) | variant.document(rng)
    files |= {
        # Nothing reads these two.
        "old/readings.py": variant.outdated(READINGS).replace("raw) - certificate", "raw) + certificate"),
        "old/units.py": variant.text(UNITS).replace('"k": 1000', '"k": 1024'),
        "docs/files.md": FORMATS,
        "docs/notes.md": notes(rng, "Notes on calibration", 10),
    }
    files |= _drawn(rng, variant).files(rng, "example")
    questions = _questions(rng, files)
    fixed = frozenset(path for path in files if path.startswith(("example/", "books/", "boxes/", "tests/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return [_report(fresh, variant), _library(fresh, variant)]

    about = (
        f"`{names['lib']}` is a Python library for a laboratory, and `bin/report FOLDER` prints corrected readings and "
        "a summary. `make test` runs some tests, `example/` is an example, `docs/files.md` describes the files and the "
        f"library, and `{variant.page}` says what was agreed."
    )
    looks = ["ls * | head -70", "cat Makefile bin/report docs/files.md", variant.words("tail -n +1 @lib@/*")]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_faults_of_files(variant, looks),
    ]
    return Project(about, files, faults, checks, {"bin/report": 0o755}, fixed=fixed, questions=questions)


def _faults_of_files(variant: Variant, looks: Sequence[str]) -> list[Fault]:
    path = variant.words("@lib@/units.py")
    return [
        Fault(
            "missing-file",
            "It ends with an ImportError.",
            [*looks, "cat old/units.py"],
            f"sed 's/1024/1000/' old/units.py > {path}",
            removed=[path],
        ),
        file_in_the_way(
            "fractions.py",
            '"""Fractions of shares, for a later version."""\n\nHALF = 0.5\n',
            looks,
            "It ends with an ImportError before it reads anything.",
        ),
        lost_permission("bin/report", looks),
    ]


def _questions(rng: random.Random, files: dict[str, str]) -> list[Question]:
    """Draw books of measurements and lists of boxes, and ask about them."""
    longest = draw_journal(
        rng,
        files,
        "books/{:02}.txt",
        CITIES,
        range(10, 90_000),
        lambda month, city, seconds, run: f"{city};{run};{rng.randint(1, 28)}.{month}.;{seconds}",
    )
    owner_of = draw_lists(rng, files, "boxes", "owner", lambda probe: f"{rng.choice(GOODS)} {probe}")
    return [
        asked_together([_longest_measurement(one, longest[one]) for one in rng.sample([*longest], ASKED)]),
        asked_together([_owner_of_probe(one, owner_of[one]) for one in rng.sample(sorted(owner_of), ASKED)]),
    ]


def _longest_measurement(city: str, run: str) -> Question:
    return Question(
        "longest-measurement",
        f"Which measurement in {city} took longest, by the last column of books/?",
        run,
        ["head -3 books/01.txt", f"grep -h '^{city};' books/* | sort -t';' -k4,4n | tail -1 | cut -d';' -f2"],
    )


def _owner_of_probe(probe: str, owner: str) -> Question:
    return Question(
        "owner-of-probe",
        f"Who is the owner of the box with the probe {probe}, by boxes/?",
        owner,
        [f"grep -r {probe} boxes", f"grep -l ' {probe}$' boxes/* | xargs sed -n 's/^owner //p'"],
    )
