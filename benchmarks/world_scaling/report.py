"""The table of what policies do by the number of worlds that they were trained on, and its picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from textenvs.evaluate.statistics import estimate

#: A share with its 95 % interval.
Share = Mapping[str, Any]
SOLVED = "solved"
#: Measures, with names for people.
MEASURES = {SOLVED: "solved", "tools": "tools of the expert's calls", "replies": "replies of the expert, to the letter"}
#: The line of each phase.
LINES = {"start": ":", "imitation": "--", "ppo": "-"}


def shares(rows: Sequence[Mapping[str, Any]], measure: str) -> dict[tuple[str, str, int], Share]:
    """Return shares with intervals by phase, axis and number of worlds.

    Args:
        rows: Lines of the results; those of several seeds count together.
        measure: One of :data:`MEASURES`; episodes that failed are left out of what is solved.

    Returns:
        Wilson's interval of solved tasks, with the effective number of trials clustered by task; of the
        others a bootstrap over tasks.
    """
    groups: dict[tuple[str, str, int], dict[int, list[float]]] = {}
    for row in rows:
        for axis, result in row["axes"].items():
            tasks = groups.setdefault((row["phase"], axis, row["worlds"]), {})
            for task, values in enumerate(_values(result, measure)):
                tasks.setdefault(task, []).extend(values)
    return {
        key: estimate([values for values in tasks.values() if values], rate=measure == SOLVED)
        for key, tasks in groups.items()
        if any(tasks.values())
    }


def _values(result: Mapping[str, Any], measure: str) -> list[list[float]]:
    """Return the values of each task."""
    if measure == SOLVED:
        return [[] if digit == "-" else [float(digit)] for digit in result[SOLVED]]
    return [[1.0] * right + [0.0] * (total - right) for right, total in result.get(measure, ())]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return Markdown: a row for each phase and axis, a column for each number of worlds; per cent, with intervals."""
    measured = {measure: shares(rows, measure) for measure in MEASURES}
    solved = measured[SOLVED]
    if not solved:
        return "no results"
    counts = sorted({worlds for _, _, worlds in solved})
    lines = [
        "| trained by | played in | " + " | ".join(f"{count:,} worlds" for count in counts) + " |",
        "|---" * (len(counts) + 2) + "|",
    ]
    for phase, axis in dict.fromkeys((phase, axis) for phase, axis, _ in solved):
        for measure, found in measured.items():
            name = axis if measure == SOLVED else f"{axis}, {measure}"
            cells = [_cell(found.get((phase, axis, count))) for count in counts]
            if any(cells):
                lines.append(f"| {phase} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(share: Share | None) -> str:
    if share is None:
        return ""
    if share["low"] is None:
        return f"{100 * share['value']:.1f}"
    return f"{100 * share['value']:.1f} ({100 * share['low']:.0f} to {100 * share['high']:.0f})"


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw all shares over the number of worlds: a colour an axis, dashed after imitation, a dot for each seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 4.5), layout="constrained")
    for panel, (measure, name) in zip(figure.subplots(1, len(MEASURES)), MEASURES.items(), strict=True):
        measured = shares(rows, measure)
        by_seed = [shares([row], measure) for row in rows]
        axes = list(dict.fromkeys(axis for _, axis, _ in measured))
        for phase, axis in dict.fromkeys((phase, axis) for phase, axis, _ in measured):
            counts = sorted(count for one, other, count in measured if (one, other) == (phase, axis))
            points = [measured[phase, axis, count] for count in counts]
            errors = [[_half(point, end) for point in points] for end in ("low", "high")]
            look = {"color": f"C{axes.index(axis)}", "linestyle": LINES[phase]}
            panel.errorbar(
                counts, [point["value"] for point in points], errors, capsize=2, label=f"{axis}, {phase}", **look
            )
            dots = [(key[2], one["value"]) for seed in by_seed for key, one in seed.items() if key[:2] == (phase, axis)]
            panel.scatter(*zip(*dots, strict=True), s=9, color=look["color"])
        panel.set_xscale("symlog", linthresh=1)
        panel.set(xlabel="worlds trained on", ylabel=name, ylim=(-0.02, 1.02))
        if measured:
            panel.legend(fontsize="x-small")
    figure.savefig(path, dpi=120)


def _half(point: Share, end: str) -> float:
    """Return the distance to an end of the interval; 0 where there is none."""
    return 0.0 if point[end] is None else abs(point[end] - point["value"])
