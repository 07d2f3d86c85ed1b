"""The tables and the pictures of docs/credit-bench.md, from the settings' results."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages import fill, table

from .games import GAMES

PAGE = Path(__file__).parents[2] / "docs" / "credit-bench.md"
#: The picture of each kind of tasks.
PICTURES = {
    "Text": PAGE.parent / "images" / "credit-bench.png",
    "Games": PAGE.parent / "images" / "credit-bench-games.png",
}
#: What half of the truth's forks say: no estimator, but what one without bias and with that noise would reach.
CEILING = "half of the forks, against the other half"
#: The facts of a setting that the page shows, and whether they are shares.
FACTS = {
    "turns": False,
    "turns an episode": False,
    "solved": True,
    "clear": True,
    "helpful, of turns of other episodes": True,
    "harmful, of turns of other episodes": True,
    "helpful, of turns of solved episodes": True,
    "harmful, of turns of solved episodes": True,
    "without a peer of the same observation": True,
    "without a peer of the same history": True,
    "episodes left out, with a fork that failed": True,
}

Result = dict[str, Any]  #: what a setting's JSON file has


def results(data: Path) -> list[Result]:
    """Return the results of all settings, by name."""
    return [json.loads(path.read_text()) for path in sorted(data.glob("*.json"))]


def kinds(rows: Sequence[Result]) -> dict[str, list[Result]]:
    """Return the results by :data:`PICTURES`' kinds; only what is there."""
    games = [row for row in rows if row["task"] in GAMES]
    kinds = {"Text": [row for row in rows if row["task"] not in GAMES], "Games": games}
    return {name: chosen for name, chosen in kinds.items() if chosen}


def order(rows: Sequence[Result]) -> list[str]:
    """Return the estimators that all settings have, by the mean share of wrong signs; the ceiling last."""
    shared = [name for name in rows[0]["estimators"] if all(name in row["estimators"] for row in rows)]
    names = [name for name in shared if name != CEILING]

    def mean(name: str) -> float:
        values = [row["estimators"][name]["wrong"][0] for row in rows]
        return math.inf if any(map(math.isnan, values)) else sum(values) / len(values)

    return [*sorted(names, key=mean), *(name for name in shared if name == CEILING)]


def cost(name: str, row: Result) -> float:
    """Return the sampled tokens that an estimate needs, in those of the episodes alone."""
    forks = int(name.removeprefix("fork, ")) if name.startswith("fork, ") else 0
    return 1.0 + forks * float(row["facts"]["tokens of one fork at every turn, of those of the episodes"])


def tables(rows: Sequence[Result]) -> str:
    """Return the tables of results of one kind, as Markdown."""
    heads = [f"{row['task']}, {row['policy']}" for row in rows]
    parts = [
        "**Turns whose advantage has the wrong sign**, of those whose sign is clear, in percent, with an interval of "
        "95 %. In brackets, those for which the estimate is 0.",
        table(["estimator", *heads, "sampled tokens"], _wrong(rows)),
        "**Cosine** between estimates and true advantages: 1 where the estimates are a multiple of the truth. After the"
        " interval, Spearman's rank correlation.",
        table(["estimator", *heads], _cosine(rows)),
        "**What the truth says about the episodes.**",
        table(["", *heads], _facts(rows)),
    ]
    return "\n\n".join(parts)


def _wrong(rows: Sequence[Result]) -> Iterator[list[str]]:
    for name in order(rows):
        measures = [row["estimators"][name] for row in rows]
        costs = [cost(name, row) for row in rows]
        spent = f"{min(costs):.1f}" if max(costs) - min(costs) < 0.05 else f"{min(costs):.1f} to {max(costs):.1f}"
        yield [name, *(f"{_percent(m['wrong'])} ({100 * m['silent'][0]:.0f})" for m in measures), f"{spent} times"]


def _cosine(rows: Sequence[Result]) -> Iterator[list[str]]:
    for name in order(rows):
        measures = [row["estimators"][name] for row in rows]
        yield [name, *(_cosine_and_rank(measure) for measure in measures)]


def _facts(rows: Sequence[Result]) -> Iterator[list[str]]:
    for name, share in FACTS.items():
        values = [row["facts"][name] for row in rows]
        yield [name, *("" if math.isnan(v) else f"{100 * v:.0f} %" if share else f"{v:,.4g}" for v in values)]


def _cosine_and_rank(measures: dict[str, Sequence[float]]) -> str:
    (value, low, high), rank = measures["cosine"], measures["rank"][0]
    return "all are 0" if math.isnan(value) else f"{value:.2f} ({low:.2f} to {high:.2f}), {rank:.2f}"


def _percent(measure: Sequence[float]) -> str:
    value, low, high = (100 * number for number in measure)
    return "none clear" if math.isnan(value) else f"{value:.1f} ({low:.1f} to {high:.1f})"


def filled(page: str, rows: Sequence[Result]) -> str:
    """Return the page with the tables of these results.

    Raises:
        ValueError: The page lacks the lines between which they stand.
    """
    parts = "\n\n".join(f"### {kind}\n\n{tables(chosen)}" for kind, chosen in kinds(rows).items())
    return fill(page, parts)


def draw(rows: Sequence[Result], path: Path) -> None:
    """Draw each estimator's share of wrong signs, a panel a setting, with its interval and that of the ceiling."""
    from matplotlib.figure import Figure

    names = order(rows)[::-1]
    across = min(len(rows), 4)
    down = -(-len(rows) // across)
    figure = Figure(figsize=(2.2 + 2.4 * across, 0.6 + (0.5 + 0.21 * len(names)) * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False, sharey=True)
    for axis, row in zip(axes.flat, rows, strict=False):
        for at, name in enumerate(names):
            value, low, high = (100 * number for number in row["estimators"][name]["wrong"])
            colour = "grey" if name == CEILING else "tab:red" if name.startswith("fork") else "tab:blue"
            axis.plot([low, high], [at, at], color=colour, linewidth=1.5)
            axis.plot([value], [at], "o", color=colour, markersize=4)
        axis.set(title=f"{row['task']}, {row['policy']}", yticks=range(len(names)), yticklabels=names)
        axis.set_xlim(left=0)
        axis.axvline(50, color="black", linewidth=0.6, linestyle="dotted")
        axis.grid(axis="x", linewidth=0.3)
    for axis in [*axes.flat][len(rows) :]:
        axis.set_visible(False)
    figure.supxlabel("turns with the wrong sign, percent of those with a clear one", fontsize="medium")
    figure.savefig(path, dpi=100)


def write(data: Path) -> None:
    """Put the tables into the page, and draw the pictures again."""
    rows = results(data)
    if rows:
        PAGE.write_text(filled(PAGE.read_text(), rows))
    for kind, chosen in kinds(rows).items():
        draw(chosen, PICTURES[kind])
