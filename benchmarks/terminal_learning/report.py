"""The table of what policies do after imitation and after PPO, and its picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.imitation import IMITATION, REINFORCEMENT
from textenvs.evaluate.statistics import estimate

Row = Mapping[str, Any]
#: Place of the repair among the expert's replies.
_REPAIR = 2
#: Iterations of PPO that a point of its curve is the mean of.
_SMOOTHED = 4
#: The measure of the kinds that PPO practises: repaired at temperature 1, of other projects than the other measures.
PRACTISED = "practised"


def _solved(row: Row, task: int) -> list[float]:
    digit = row["solved"][task]
    return [] if digit == "-" else [float(digit)]


def _practised(row: Row, task: int) -> list[float]:
    digit = row.get("practised", "-" * len(row["solved"]))[task]
    return [] if digit == "-" else [float(digit)]


def _repairs(row: Row, task: int) -> list[float]:
    return [float(row["replies"][task][_REPAIR])]


def _replies(row: Row, task: int) -> list[float]:
    return [*map(float, row["replies"][task])]


def _tools(row: Row, task: int) -> list[float]:
    right, total = row["tools"][task]
    return [1.0] * right + [0.0] * (total - right)


#: Values of a task, by the measure's name.
MEASURES: Mapping[str, Callable[[Row, int], list[float]]] = {
    "repaired": _solved,
    "repair to the letter": _repairs,
    "replies to the letter": _replies,
    "tools": _tools,
    PRACTISED: _practised,
}


def share(rows: Sequence[Row], measure: str, kind: str | None = None) -> Mapping[str, Any] | None:
    """Return a share over the tasks of all rows with its 95 % interval; ``None`` where there is no value.

    Args:
        rows: Lines of the results; those of several seeds count together, and their tasks are the same.
        measure: One of :data:`MEASURES`; episodes that failed are left out of what is repaired.
        kind: The kind of faults; ``None`` for all.
    """
    tasks: dict[int, list[float]] = {}
    for row in rows:
        for task, one in enumerate(row["kinds"]):
            if kind in (None, one):
                tasks.setdefault(task, []).extend(MEASURES[measure](row, task))
    values = [trials for trials in tasks.values() if trials]
    return estimate(values, rate=measure in ("repaired", "repair to the letter", PRACTISED)) if values else None


def groups(rows: Sequence[Row]) -> dict[tuple[str, int, int, str], list[Row]]:
    """Return the rows of all seeds by phase, imitated tokens, sampled tokens and what a reply was paid for."""
    names = ("imitated", "sampled", "credit")
    grouped: dict[tuple[str, int, int, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row["phase"] != IMITATION, *(row[name] for name in names), row["seed"])):
        grouped.setdefault((row["phase"], row["imitated"], row["sampled"], row["credit"]), []).append(row)
    return grouped


def table(rows: Sequence[Row]) -> str:
    """Return Markdown: a row for each policy of all seeds, its measures and what is repaired of each kind; per cent."""
    if not rows:
        return "no results"
    kinds = sorted({kind for row in rows for kind in row["kinds"]})
    heads = ["trained by", "imitated", "sampled", "seeds", *MEASURES, *kinds]
    lines = ["| " + " | ".join(heads) + " |", "|---" * 2 + "|--:" * (len(heads) - 2) + "|"]
    for (phase, imitated, sampled, credit), group in groups(rows).items():
        cells = [_name_of(phase, credit), f"{imitated:,}", f"{sampled:,}" if sampled else "", str(len(group))]
        cells += [_cell(share(group, measure), has_interval=True) for measure in MEASURES]
        cells += [_cell(share(group, "repaired", kind)) for kind in kinds]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _name_of(phase: str, credit: str) -> str:
    return phase if phase == IMITATION else f"{phase}, {credit}" if credit else "carelessness"


def _cell(part: Mapping[str, Any] | None, *, has_interval: bool = False) -> str:
    if part is None:
        return ""
    value = f"{100 * part['value']:.0f}"
    return f"{value} ({100 * part['low']:.0f} to {100 * part['high']:.0f})" if has_interval else value


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw the curves of imitation and of PPO, and what is repaired of each kind; dots are seeds."""
    from matplotlib.figure import Figure

    drawings = [_draw_imitation, _draw_kinds]
    if any(row["phase"] == REINFORCEMENT for row in rows):
        drawings.append(_draw_reinforcement)
    figure = Figure(figsize=(5 * len(drawings), 4.5), layout="constrained")
    for drawing, panel in zip(drawings, figure.subplots(1, len(drawings)), strict=True):
        drawing(rows, panel)
        panel.set_ylim(-0.02, 1.02)
        panel.legend(fontsize="x-small")
    figure.savefig(path, dpi=120)


def _draw_imitation(rows: Sequence[Row], panel: Any) -> None:
    policies = {imitated: group for (phase, imitated, *_), group in groups(rows).items() if phase == IMITATION}
    for number, measure in enumerate(measure for measure in MEASURES if measure != PRACTISED):
        points = [share(group, measure) for group in policies.values()]
        values = [point["value"] for point in points if point is not None]
        if len(values) == len(policies):
            panel.plot([*policies], values, color=f"C{number}", label=measure)
        dots = [(row["imitated"], share([row], measure)) for group in policies.values() for row in group]
        for place, dot in dots:
            if dot is not None:
                panel.scatter(place, dot["value"], s=9, color=f"C{number}")
    panel.set(xscale="log", xlabel="imitated tokens", ylabel="share, held-out projects", title="imitation")


def _draw_kinds(rows: Sequence[Row], panel: Any) -> None:
    kinds = sorted({kind for row in rows for kind in row["kinds"]})
    policies = groups(rows)
    width = 0.8 / len(policies)
    for number, ((phase, imitated, _, credit), group) in enumerate(policies.items()):
        shares = [share(group, "repaired", kind) for kind in kinds]
        values = [0.0 if one is None else one["value"] for one in shares]
        panel.bar(
            np.arange(len(kinds)) + width * number,
            values,
            0.9 * width,
            label=f"{_name_of(phase, credit)}, {imitated:,} imitated",
        )
    panel.set_xticks(np.arange(len(kinds)) + 0.4 - width / 2, kinds, rotation=20, fontsize="small")
    panel.set(ylabel="repaired, held-out projects", title="by kind of faults")


def _draw_reinforcement(rows: Sequence[Row], panel: Any) -> None:
    """Draw a curve of a seed for each credit, in its color; stars are held-out projects, before and after."""
    credits = dict.fromkeys(row["credit"] for row in rows if row["credit"])
    for row in rows:
        if row["phase"] != REINFORCEMENT or (place := share([row], PRACTISED)) is None:
            continue
        if not row["credit"]:
            panel.scatter(0, place["value"], marker="*", color="black")
            continue
        tokens, solved = np.array(row["took"]["curve"]).T
        window = np.ones(min(_SMOOTHED, len(solved))) / min(_SMOOTHED, len(solved))
        smooth, color = np.convolve(solved, window, "valid"), f"C{[*credits].index(row['credit'])}"
        panel.plot(tokens[len(tokens) - len(smooth) :], smooth, color=color, linewidth=1)
        panel.scatter(tokens[-1], place["value"], marker="*", color=color)
    for number, credit in enumerate(credits):
        panel.plot([], [], color=f"C{number}", label=credit)
    panel.set(xlabel="sampled tokens", ylabel="repaired at temperature 1 (stars: held out)", title="PPO, two kinds")
