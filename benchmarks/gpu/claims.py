"""The claims about GPUs (``claims.json``), and what was measured of them: ``python -m benchmarks.gpu --list``.

A claim names a part, the results of it that count (``where``), a figure of them and a bar. Of the newest run on one
device with one state of the code, the best of these results counts; of ``good`` all must be. With ``over``, the figure
is divided by that of another part with the same ``where``, on the same device. Results on a CPU prove nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Line = Mapping[str, Any]

CLAIMS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("claims.json").read_text(encoding="utf-8"))


class Measured(NamedTuple):
    """The newest measurement of a claim, and its verdict."""

    bar: str
    value: str
    verdict: str  #: ``never ran``, ``met`` or ``missed``
    where: str  #: device, commit and day of the measurement


def measured(claim: Mapping[str, Any], lines: Sequence[Line]) -> Measured:
    """Return what these results say of a claim."""
    bar = "all right" if claim["figure"] == "good" else f"at most {claim['at_most']:,}" if "at_most" in claim else ""
    bar = bar or f"at least {claim['at_least']:,}"
    newest = _newest(claim["part"], claim, lines)
    if not newest:
        return Measured(bar, "", "never ran", "")
    last = newest[-1]
    where = ", ".join(str(last[name]) for name in ("device", "commit") if last.get(name))
    where += f", {last['time'][:10]}" if "time" in last else ""
    if claim["figure"] == "good":
        right = sum(bool(line["good"]) for line in newest)
        return Measured(bar, f"{right} of {len(newest)}", "met" if right == len(newest) else "missed", where)
    best = min if "at_most" in claim else max
    value = best(line[claim["figure"]] for line in newest)
    if "over" in claim:
        divisors = [line for line in _newest(claim["over"], claim, lines) if line["device"] == last["device"]]
        if not divisors:
            return Measured(bar, "", "never ran", f"without {claim['over']}: {value:,} on {where}")
        value /= divisors[-1][claim["figure"]]
    met = value <= claim["at_most"] if "at_most" in claim else value >= claim["at_least"]
    return Measured(bar, f"{value:,.3g}" if value < 1000 else f"{value:,.0f}", "met" if met else "missed", where)


def listing(lines: Sequence[Line]) -> str:
    """Return all claims with their parts, those that never ran first, for a terminal."""
    order = ("never ran", "missed", "met")
    rows = [(f"[{claim['part']}] {claim['claim']}", measured(claim, lines)) for claim in whole_names()]
    rows.sort(key=lambda row: order.index(row[1].verdict))
    printed = []
    for name, result in rows:
        value = f"{result.value} ({result.where})" if result.value else result.where
        printed.append(f"{result.verdict:9}  {name}: {result.bar}{f'; {value}' if value else ''}")
    counts = ", ".join(f"{sum(row[1].verdict == verdict for row in rows)} {verdict}" for verdict in order)
    return "\n".join([*printed, f"{len(rows)} claims: {counts}"])


def table(lines: Sequence[Line]) -> str:
    """Return all claims, in order, as a table in Markdown."""
    rows = ["| claim | bar | measured | | on |", "|---|---|--:|---|---|"]
    for claim in CLAIMS:
        result = measured(claim, lines)
        verdict = f"**{result.verdict}**" if result.verdict == "met" else result.verdict
        rows.append(f"| {claim['claim']} | {result.bar} | {result.value} | {verdict} | {result.where} |")
    return "\n".join(rows)


def whole_names() -> list[dict[str, Any]]:
    """Return the claims, with those that begin with dots under whole names."""
    named, before = [], ""
    for claim in CLAIMS:
        before = before if claim["claim"].startswith("... ") else claim["claim"].partition(":")[0]
        named.append({**claim, "claim": claim["claim"].replace("... ", f"{before}: ", 1)})
    return named


def _newest(part: str, claim: Mapping[str, Any], lines: Sequence[Line]) -> list[Line]:
    """Return the results that count, of the newest run."""
    fitting = [
        line
        for line in lines
        if line.get("part") == part
        and line.get("device", "cpu") != "cpu"
        and claim.get("device", "") in line["device"]
        and line.get(claim["figure"]) is not None
        and all(line.get(name) == value for name, value in claim["where"].items())
    ]
    return [line for line in fitting if _run_of(line) == _run_of(fitting[-1])]


def _run_of(line: Line) -> tuple[Any, ...]:
    return line.get("device"), line.get("source"), line.get("commit")
