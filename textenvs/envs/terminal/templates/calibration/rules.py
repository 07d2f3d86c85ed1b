"""Rules that the programs of the template `calibration` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor

from ..variation import Option, Rule, numbers

RULES = (
    Rule(
        "coefficient-order",
        "@lib@/polynomial.py",
        "All corrected values are nonsense.",
        [
            Option("list(coefficients)", "The coefficient of the lowest power is the first one.", list),
            Option(
                "list(reversed(coefficients))",
                "The coefficient of the highest power is the first one.",
                lambda c: c[::-1],
            ),
        ],
    ),
    Rule(
        "end-of-validity",
        "@lib@/certificates.py",
        "On some days, certificates are taken for valid that are not, or the other way round.",
        [
            Option(
                "(day - self.issued).days < self.days",
                "A certificate of 365 days is valid on the day it was issued and the 364 days after it.",
                lambda age, days: age < days,
            ),
            Option(
                "(day - self.issued).days <= self.days",
                "A certificate of 365 days is valid on the day it was issued and the 365 days after it.",
                lambda age, days: age <= days,
            ),
            Option(
                "(day - self.issued).days < self.days + 14",
                "A certificate of 365 days is valid on the day it was issued and 378 more: two weeks longer.",
                lambda age, days: age < days + 14,
            ),
        ],
    ),
    Rule(
        "chosen-certificate",
        "@lib@/certificates.py",
        "Of several certificates that are valid, the wrong one is taken.",
        [
            Option(
                "max(valid, key=lambda one: one.issued)",
                "Of several valid certificates, the one that was issued last counts.",
                lambda rows: max(rows, key=lambda one: one.issued),
            ),
            Option(
                "min(valid, key=lambda one: one.issued)",
                "Of several valid certificates, the one that was issued first counts.",
                lambda rows: min(rows, key=lambda one: one.issued),
            ),
            Option(
                "min(valid, key=lambda one: one.uncertainty)",
                "Of several valid certificates, the one with the least uncertainty counts.",
                lambda rows: min(rows, key=lambda one: one.uncertainty),
            ),
        ],
    ),
    numbers(
        "reference-temperature",
        "@lib@/readings.py",
        "Values in warm rooms are wrong.",
        (0, 15, 20, 23, 25),
        "REFERENCE = {}",
        "The reference temperature is {} degrees.",
    ),
    Rule(
        "expired-certificate",
        "@lib@/readings.py",
        "Readings without a valid certificate are not treated as agreed.",
        [
            Option("return None", "A reading without a valid certificate is left out.", None),
            Option(
                "uncertainty *= 2",
                "A reading without a valid certificate has twice the uncertainty of the expired one.",
                lambda uncertainty: (uncertainty * 2, ""),
            ),
            Option(
                'mark += "!"',
                "A reading without a valid certificate is marked with `!`.",
                lambda uncertainty: (uncertainty, "!"),
            ),
        ],
    ),
    Rule(
        "out-of-range",
        "@lib@/readings.py",
        "Readings out of the range of a certificate are not treated as agreed.",
        [
            Option(
                "raw = min(max(raw, certificate.low), certificate.high)",
                "A raw value out of the range counts as the bound that it is beyond.",
                lambda raw, low, high: (min(max(raw, low), high), ""),
            ),
            Option(
                'mark += "?"', "A raw value out of the range is marked with `?`.", lambda raw, low, high: (raw, "?")
            ),
            Option(
                "raw, mark = (certificate.low + certificate.high) / 2, mark",
                "A raw value out of the range counts as the middle of the range.",
                lambda raw, low, high: ((low + high) / 2, ""),
            ),
        ],
    ),
    Rule(
        "rounding",
        "@lib@/readings.py",
        "Values are wrong by one step.",
        [
            Option(
                "(value / step + Fraction(1, 2)).__floor__() * step",
                "Values are rounded to the nearest step, and upwards from the middle.",
                lambda value, step: floor(value / step + Fraction(1, 2)) * step,
            ),
            Option(
                "(value / step).__floor__() * step",
                "Values are rounded down to a step.",
                lambda value, step: floor(value / step) * step,
            ),
            Option(
                "(value / step).__ceil__() * step",
                "Values are rounded up to a step.",
                lambda value, step: ceil(value / step) * step,
            ),
        ],
    ),
    Rule(
        "combined-uncertainty",
        "@lib@/report.py",
        "Uncertainties of instruments are not combined as agreed.",
        [
            Option("max(uncertainties)", "The uncertainty of an instrument is the largest one of its readings.", max),
            Option("sum(uncertainties)", "The uncertainty of an instrument is the sum of those of its readings.", sum),
            Option(
                "sum(uncertainties) / len(uncertainties)",
                "The uncertainty of an instrument is the mean of those of its readings.",
                lambda rows: sum(rows) / len(rows),
            ),
            Option(
                "sum(one * one for one in uncertainties)",
                "The uncertainty of an instrument is the sum of the squares of those of its readings.",
                lambda rows: sum(one * one for one in rows),
            ),
        ],
    ),
    Rule(
        "figure",
        "@lib@/report.py",
        "The figures of instruments are not the ones that were agreed.",
        [
            Option("sum(values) / len(values)", "The figure of an instrument is the mean.", lambda v: sum(v) / len(v)),
            Option(
                "statistics.median_low(values)",
                "The figure of an instrument is the median, and of two the smaller one.",
                lambda v: sorted(v)[(len(v) - 1) // 2],
            ),
            Option(
                "(min(values) + max(values)) / 2",
                "The figure of an instrument is the middle between its least and its largest value.",
                lambda v: (min(v) + max(v)) / 2,
            ),
            Option(
                "max(values) - min(values)",
                "The figure of an instrument is the span of its values.",
                lambda v: max(v) - min(v),
            ),
        ],
    ),
    Rule(
        "order-of-readings",
        "@lib@/report.py",
        "The readings are in another order than agreed.",
        [
            Option(
                "(reading.name, reading.day, reading.value)",
                "Readings are in the order of instruments, then of days, then of values.",
                lambda one: (one.instrument, one.day, one.value),
            ),
            Option(
                "(reading.day, reading.name, reading.value)",
                "Readings are in the order of days, then of instruments, then of values.",
                lambda one: (one.day, one.instrument, one.value),
            ),
            Option(
                "(-reading.value, reading.name, reading.day)",
                "Readings have the largest value first; equal ones are in the order of instruments, then of days.",
                lambda one: (-one.value, one.instrument, one.day),
            ),
        ],
    ),
    Rule(
        "reading-line",
        "@lib@/report.py",
        "The lines of readings are not as agreed.",
        [
            Option(
                'f"{reading.day} {reading.name} {fixed(reading.value)}{reading.mark} +-{fixed(reading.uncertainty)}"',
                "A reading is such as `2025-03-14 P7 12.500? +-0.050`, with marks behind the value.",
                "{0} {1} {2}{4} +-{3}",
            ),
            Option(
                'f"{reading.name};{fixed(reading.value)};{fixed(reading.uncertainty)};{reading.day};{reading.mark}"',
                "A reading is such as `P7;12.500;0.050;2025-03-14;?`, with marks at the end.",
                "{1};{2};{3};{0};{4}",
            ),
            Option(
                'f"{reading.name} {reading.day} {reading.mark}{fixed(reading.value)} / {fixed(reading.uncertainty)}"',
                "A reading is such as `P7 2025-03-14 ?12.500 / 0.050`, with marks before the value.",
                "{1} {0} {4}{2} / {3}",
            ),
        ],
    ),
    Rule(
        "summary-line",
        "@lib@/report.py",
        "The summary is not as agreed.",
        [
            Option(
                'f"{name}: {fixed(figure)} +-{fixed(spread)} ({len(own)})"',
                "A line of the summary is such as `P7: 12.500 +-0.050 (9)`: figure, uncertainty, readings.",
                "{0}: {1} +-{2} ({3})",
            ),
            Option(
                'f"{len(own)} x {name} = {fixed(figure)}, {fixed(spread)}"',
                "A line of the summary is such as `9 x P7 = 12.500, 0.050`: readings, figure, uncertainty.",
                "{3} x {0} = {1}, {2}",
            ),
            Option(
                'f"{name};{fixed(spread)};{fixed(figure)};{len(own)}"',
                "A line of the summary is such as `P7;0.050;12.500;9`: uncertainty, figure, readings.",
                "{0};{2};{1};{3}",
            ),
        ],
    ),
)

IDENTIFIERS = (
    "parse dimension divisor shift powers result rises middle mean_x mean_y slope spread valid paths rounded correct "
    "celsius fixed thousandths combined uncertainties values figure"
)
