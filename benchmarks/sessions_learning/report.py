"""The table of what scripts and policies do in held-out lives, and its picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.imitation import IMITATION, REINFORCEMENT
from textenvs.evaluate.statistics import estimate

from .env import EXPERT, WRITERS
from .runs import MEASURES, SCRIPT

Row = Mapping[str, Any]
#: Scripts and policies of all seeds, by phase, writer and discount.
Groups = Mapping[tuple[str, str, float], Sequence[Row]]
_PHASES = (SCRIPT, IMITATION, REINFORCEMENT)
#: Measures with an interval, and shares of lines.
_ALL, _LINES = MEASURES[:6], MEASURES[6:]
#: Iterations of PPO that a point of its curve is the mean of.
_SMOOTHED = 5


def groups(rows: Sequence[Row]) -> Groups:
    """Return the rows of all seeds by phase, writer and discount: scripts first, then as they are trained."""
    grouped: dict[tuple[str, str, float], list[Row]] = {}
    order = [(phase, writer) for phase in _PHASES for writer in WRITERS]
    for row in sorted(rows, key=lambda row: (order.index((row["phase"], row["writer"])), -row["discount"])):
        grouped.setdefault((row["phase"], row["writer"], row["discount"]), []).append(row)
    return grouped


def mean(rows: Sequence[Row], measure: str) -> dict[str, Any]:
    """Return the mean of a measure over the lives of all seeds, with a bootstrap's interval over lives."""
    return estimate([list(values) for values in zip(*(row["lives"][measure] for row in rows), strict=True)])


def name_of(phase: str, writer: str, discount: float) -> str:
    """Return what a group is called in the table and in the picture."""
    if phase == SCRIPT:
        return f"script {writer}"
    if phase == IMITATION:
        return f"imitates {writer}"
    return f"{writer}, then PPO" + ("" if discount == 1.0 else f" with discount {discount:g}")


def table(rows: Sequence[Row]) -> str:
    """Return Markdown: a row for each script, and for each policy of all seeds."""
    if not rows:
        return "no results"
    heads = ["notebook", "seeds", *(measure.replace("_", " ") for measure in MEASURES)]
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|--:" * (len(heads) - 1) + "|"]
    for key, group in groups(rows).items():
        cells = [name_of(*key), str(len(group))]
        cells += [_cell(mean(group, measure)) for measure in _ALL]
        cells += [f"{mean(group, measure)['value']:.2f}" for measure in _LINES]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(part: Mapping[str, Any]) -> str:
    return f"{part['value']:.3f} ({part['low']:.3f} to {part['high']:.3f})"


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw the curves of PPO, and what stands in the notebooks of scripts and policies."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.8), layout="constrained")
    curves, lines = figure.subplots(1, 2)
    _draw_curves(rows, curves)
    _draw_lines(rows, lines)
    for panel in (curves, lines):
        panel.legend(fontsize="x-small")
    figure.savefig(path, dpi=120)


def _draw_curves(rows: Sequence[Row], panel: Any) -> None:
    grouped = groups(rows)
    for number, ((phase, writer, _), group) in enumerate(grouped.items()):
        if phase == SCRIPT and writer != EXPERT:
            height = mean(group, "regret_to_expert")["value"]
            panel.axhline(height, color=f"C{5 + number % 5}", linestyle=":", label=f"script {writer}")
    for row in rows:
        if row["phase"] != REINFORCEMENT:
            continue
        tokens, regret = np.array(row["took"]["curve"]).T
        window = np.ones(min(_SMOOTHED, len(regret))) / min(_SMOOTHED, len(regret))
        smooth, color = np.convolve(regret, window, "valid"), f"C{row['seed']}"
        label = f"seed {row['seed']}" + ("" if row["discount"] else ", discount 0")
        look = {"color": color, "linestyle": "-" if row["discount"] else "--"}
        panel.plot(tokens[len(tokens) - len(smooth) :], smooth, label=label, **look)
        panel.scatter(tokens[-1], mean([row], "regret_to_expert")["value"], marker="*", color=color)
        for before in grouped.get((IMITATION, row["writer"], 1.0), ()):
            if before["seed"] == row["seed"]:
                panel.scatter(0, mean([before], "regret_to_expert")["value"], marker="*", color=color)
    panel.axhline(0, color="black", linewidth=0.8)
    panel.set(xlabel="sampled tokens", ylabel="regret to the expert", title="PPO (stars: held-out lives, greedily)")


def _draw_lines(rows: Sequence[Row], panel: Any) -> None:
    grouped = {key: group for key, group in groups(rows).items() if key[1] != "none"}
    width = 0.8 / max(1, len(grouped))
    for number, (key, group) in enumerate(grouped.items()):
        values = [mean(group, measure)["value"] for measure in _LINES]
        panel.bar(np.arange(len(_LINES)) + width * number, values, 0.9 * width, label=name_of(*key))
    panel.set_xticks(np.arange(len(_LINES)) + 0.4 - width / 2, _LINES)
    panel.set(ylabel="share of a notebook's lines", title="what is written, held-out lives")
