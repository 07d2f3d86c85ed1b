"""Files of the template `calibration`; what stands between @ is drawn."""

MAKEFILE = """# Tests the library, which do not cover what was agreed with the laboratory. Usage: make test
.PHONY: test report

test:
	python3 -m unittest discover -q -s tests -t .

# Prints the report of a folder. Usage: make -s report FOLDER=example
report:
	bin/report $(FOLDER)
"""

REPORT_COMMAND = """#!/bin/sh
# Prints corrected readings and a summary. Usage: bin/report FOLDER
root=$(cd "$(dirname "$0")/.." && pwd)
PYTHONPATH=$root exec python3 -m @lib@.report "$@"
"""

INIT = '''"""Calibration of instruments: units, polynomials, certificates, readings."""
from .certificates import Certificate, certificate_of, load
from .polynomial import derivative, evaluate, fit_line, inverse
from .units import UnitError, convert

__all__ = "Certificate UnitError certificate_of convert derivative evaluate fit_line inverse load".split()
'''

UNITS = '''"""Units with prefixes; a temperature has an offset as well."""
from fractions import Fraction

PREFIXES = {"M": 10**6, "k": 1000, "h": 100, "c": Fraction(1, 100), "m": Fraction(1, 1000), "u": Fraction(1, 10**6)}
#: Dimension, factor and offset to the base unit.
UNITS = {
    "m": ("length", 1, 0),
    "in": ("length", Fraction("0.0254"), 0),
    "g": ("mass", 1, 0),
    "lb": ("mass", Fraction("453.59237"), 0),
    "Pa": ("pressure", 1, 0),
    "bar": ("pressure", 100_000, 0),
    "psi": ("pressure", Fraction("6894.757"), 0),
    "K": ("temperature", 1, 0),
    "C": ("temperature", 1, Fraction("273.15")),
    "F": ("temperature", Fraction(5, 9), Fraction("459.67") * 5 / 9),
}


class UnitError(ValueError):
    """A unit that does not exist, or that is of something else."""


def parse(unit):
    """Return the dimension, factor and offset of a unit; a unit goes before a prefix."""
    if unit in UNITS:
        return UNITS[unit]
    if unit[:1] in PREFIXES and unit[1:] in UNITS:
        dimension, factor, offset = UNITS[unit[1:]]
        return dimension, factor * PREFIXES[unit[0]], offset
    raise UnitError(f"no such unit: {unit}")


def convert(value, source, target):
    """Convert a number to another unit."""
    dimension, factor, offset = parse(source)
    other, divisor, shift = parse(target)
    if dimension != other:
        raise UnitError(f"{source} is {dimension}, {target} is {other}")
    return (Fraction(value) * factor + offset - shift) / divisor
'''

POLYNOMIAL = '''"""Polynomials with exact coefficients."""
from fractions import Fraction


def powers(coefficients):
    """Return the coefficients, that of the lowest power first."""
    return @coefficient_order@


def evaluate(coefficients, x):
    result = Fraction(0)
    for coefficient in reversed(powers(coefficients)):
        result = result * x + coefficient
    return result


def derivative(coefficients, x):
    """Return the slope at x."""
    return sum((n * coefficient * x ** (n - 1) for n, coefficient in enumerate(powers(coefficients)) if n), Fraction(0))


def inverse(coefficients, y, low, high):
    """Return the x between two bounds at which a polynomial has a value, by bisection; None where there is none."""
    low, high = Fraction(low), Fraction(high)
    rises = evaluate(coefficients, high) >= evaluate(coefficients, low)
    if not min(evaluate(coefficients, low), evaluate(coefficients, high)) <= y <= max(
        evaluate(coefficients, low), evaluate(coefficients, high)
    ):
        return None
    for _ in range(40):
        middle = (low + high) / 2
        if (evaluate(coefficients, middle) < y) == rises:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def fit_line(points):
    """Return slope and intercept of the line with the least squares through points."""
    count = len(points)
    mean_x = sum(Fraction(x) for x, _ in points) / count
    mean_y = sum(Fraction(y) for _, y in points) / count
    spread = sum((Fraction(x) - mean_x) ** 2 for x, _ in points)
    slope = sum((Fraction(x) - mean_x) * (Fraction(y) - mean_y) for x, y in points) / spread
    return slope, mean_y - slope * mean_x
'''

CERTIFICATES = '''"""Certificates of instruments: JSON files."""
import datetime
import json
from dataclasses import dataclass
from fractions import Fraction


@dataclass
class Certificate:
    instrument: str
    issued: datetime.date
    days: int
    coefficients: list
    low: Fraction
    high: Fraction
    drift: Fraction
    uncertainty: Fraction

    def is_valid(self, day):
        return @end_of_validity@


def read(path):
    data = json.loads(path.read_text(encoding="utf-8"), parse_float=str)
    return Certificate(
        data["instrument"].strip().upper(),
        datetime.date.fromisoformat(data["issued"]),
        int(data.get("days", 365)),
        [Fraction(number) for number in data["coefficients"]],
        Fraction(data["range"][0]),
        Fraction(data["range"][1]),
        Fraction(data.get("drift", 0)),
        Fraction(data["uncertainty"]),
    )


def load(folder):
    """Return the certificates of a folder and its subfolders; those that were withdrawn are in none."""
    paths = [path for path in sorted(folder.rglob("*.json")) if "withdrawn" not in path.parts]
    return [read(path) for path in paths]


def certificate_of(certificates, instrument, day):
    """Return the certificate of an instrument on a day, and if it is valid; None where there was none."""
    own = [one for one in certificates if one.instrument == instrument.upper() and one.issued <= day]
    valid = [one for one in own if one.is_valid(day)]
    if valid:
        return @chosen_certificate@, True
    return (max(own, key=lambda one: one.issued), False) if own else (None, False)
'''

READINGS = '''"""Readings: CSV files, and what they are after correction."""
import csv
import datetime
from dataclasses import dataclass
from fractions import Fraction

from .certificates import certificate_of
from .polynomial import evaluate
from .units import convert

REFERENCE = @reference_temperature@


@dataclass
class Reading:
    name: str
    day: datetime.date
    value: Fraction
    uncertainty: Fraction
    mark: str


def rounded(value, step):
    """Round a value to a multiple of a step."""
    return @rounding@


def correct(row, certificates, instruments):
    """Return the reading of a row, None where it has none."""
    name, day = row["instrument"].strip().upper(), datetime.date.fromisoformat(row["day"])
    certificate, is_valid = certificate_of(certificates, name, day)
    if certificate is None or not row["raw"].strip():
        return
    instrument, mark, uncertainty = instruments[name], "", certificate.uncertainty
    raw = convert(row["raw"].strip(), row["unit"].strip() or instrument["unit"], instrument["unit"])
    if not is_valid:
        @expired_certificate@
    if not certificate.low <= raw <= certificate.high:
        @out_of_range@
    celsius = Fraction(row["temperature"].strip() or REFERENCE)
    value = evaluate(certificate.coefficients, raw) - certificate.drift * (celsius - REFERENCE)
    return Reading(name, day, rounded(value, Fraction(instrument["step"])), uncertainty, mark)


def read(folder, certificates, instruments):
    """Return the readings of the files of a folder."""
    readings = []
    for path in sorted(folder.glob("*.csv")):
        with open(path, encoding="utf-8-sig", newline="") as file:
            for row in csv.DictReader(file, delimiter=";"):
                reading = correct(row, certificates, instruments)
                if reading is not None:
                    readings.append(reading)
    return readings
'''

REPORT = '''"""The report of a folder: corrected readings, and a summary of each instrument."""
import json
import math
import statistics
import sys
from fractions import Fraction
from pathlib import Path

from .certificates import load
from .readings import read


def fixed(value):
    """Return a number with three digits behind the point."""
    thousandths = math.floor(value * 1000 + Fraction(1, 2))
    sign = "-" if thousandths < 0 else ""
    return f"{sign}{abs(thousandths) // 1000}.{abs(thousandths) % 1000:03}"


def combined(uncertainties):
    """Return the uncertainty of several readings together."""
    return @combined_uncertainty@


def main(folder):
    folder = Path(folder)
    instruments = {
        name.upper(): one for name, one in json.loads((folder / "instruments.json").read_text()).items()
    }
    readings = read(folder / "readings", load(folder / "certificates"), instruments)
    for reading in sorted(readings, key=lambda reading: @order_of_readings@):
        print(@reading_line@)
    for name in sorted({reading.name for reading in readings}):
        own = [reading for reading in readings if reading.name == name]
        values = [reading.value for reading in own]
        figure = @figure@
        spread = combined([reading.uncertainty for reading in own])
        print(@summary_line@)


if __name__ == "__main__":
    main(sys.argv[1])
'''

TESTS = '''"""Tests of the library."""
import unittest
from fractions import Fraction

from @lib@ import UnitError, convert, fit_line


class Units(unittest.TestCase):
    def test_lengths(self):
        self.assertEqual(convert("25.4", "mm", "in"), 1)

    def test_pressure(self):
        self.assertEqual(convert(1, "bar", "hPa"), 1000)

    def test_other_dimension(self):
        with self.assertRaises(UnitError):
            convert(1, "m", "g")


class Lines(unittest.TestCase):
    def test_exact_line(self):
        self.assertEqual(fit_line([(0, 1), (1, 3), (2, 5)]), (Fraction(2), Fraction(1)))
'''

FORMATS = """# Files of a laboratory

- `instruments.json`: by name (in any case of letters, as everywhere) the `unit` of an instrument and its `step`.
- `certificates/`, in folders as well, those of `withdrawn` left out: `instrument`, `issued`, `days` (365 if not named),
  the `coefficients` of a polynomial, the `range` of raw values (bounds belong to it), the `drift` for each degree, and
  the `uncertainty`.
- `readings/*.csv`: `instrument`, `day`, `raw` (empty: nothing was read), `unit` (empty: that of the instrument) and
  `temperature` (empty: that of reference), in any order of columns.

A value is that of the polynomial at the raw value, less the drift times the degrees above the reference temperature,
rounded to a multiple of the step. A reading for which there is no certificate yet is left out. Where no certificate is
valid, the last one that was issued before is taken. Numbers are printed with three digits behind the point.

From Python: `convert(value, "kPa", "bar")`, `evaluate(coefficients, x)`, `derivative(coefficients, x)`,
`inverse(coefficients, y, low, high)`, `fit_line(points)`. All are exact (`fractions.Fraction`), but `inverse`, which is
by bisection. Prefixes are M, k, h, c, m and u.
"""
