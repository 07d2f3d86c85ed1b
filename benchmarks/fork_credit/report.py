"""The table and the picture of the runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .runs import FAMILIES

#: Of the expert's score.
TARGET_SHARE = 0.9
COLOURS = {"fork": "tab:red", "turn_grpo": "tab:blue", "gigpo": "tab:green", "turn_gae": "tab:orange", "grpo": "grey"}


def tokens_to(run: dict[str, Any], share: float = TARGET_SHARE) -> float | None:
    """Return the sampled tokens at which the mean of two validations reaches the target; ``None`` if it never does.

    The target is a ``share`` of the expert's score.

    Between two such means it is interpolated.
    """
    tokens, scores = np.array(run["curve"], float).T
    smooth = np.concatenate([scores[:1], (scores[1:] + scores[:-1]) / 2])
    target = share * FAMILIES[run["family"]].expert
    at = int(np.argmax(smooth >= target))
    if smooth[at] < target:
        return None
    if at == 0:
        return 0.0
    share = (target - smooth[at - 1]) / (smooth[at] - smooth[at - 1])
    return round(float(tokens[at - 1] + share * (tokens[at] - tokens[at - 1])), 0)


def median(family: str, spent: Sequence[float | None]) -> tuple[float, str]:
    """Return the median, infinite if half of the runs never arrive, and its text with the least and the greatest."""
    numbers = sorted(float("inf") if tokens is None else tokens for tokens in spent)
    middle = float(np.median(numbers)) if np.isfinite(numbers[len(numbers) // 2]) else float("inf")

    def words(number: float) -> str:
        return f"{number:,.0f}" if np.isfinite(number) else f"> {FAMILIES[family].budget:,}"

    return middle, f"{words(middle)} ({words(numbers[0])} to {words(numbers[-1])})"


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Return Markdown: a row an estimator, a column an environment; and the ratio of ``fork`` to the best other."""
    families = [name for name in FAMILIES if any(run["family"] == name for run in runs)]
    rows = ["| | " + " | ".join(families) + " |", "|---" * (len(families) + 1) + "|"]
    medians: dict[tuple[str, str], float] = {}
    for name in COLOURS:
        cells = []
        for family in families:
            own_runs = [run for run in runs if run["family"] == family and run["estimator"] == name]
            if not own_runs:
                cells.append("")
                continue
            medians[family, name], words = median(family, [tokens_to(run) for run in own_runs])
            cells.append(f"{words}, {len(own_runs)} seeds, `{own_runs[0]['try'].partition('=')[2]}`")
        rows.append(f"| `{name}` | " + " | ".join(cells) + " |")
    ratios = []
    for family in families:
        rest = [value for (of, name), value in medians.items() if of == family and name != "fork"]
        fork_median = medians.get((family, "fork"), float("inf"))
        comparable = rest and np.isfinite(fork_median) and np.isfinite(min(rest))
        ratios.append(f"{fork_median / min(rest):.2f}" if comparable else "")
    return "\n".join([*rows, "| `fork` to the best other | " + " | ".join(ratios) + " |"])


def draw(runs: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw scores over sampled tokens: a panel an environment, a thin line a run, a thick one their median."""
    from matplotlib.figure import Figure

    families = [name for name in FAMILIES if any(run["family"] == name for run in runs)]
    figure = Figure(figsize=(5 * len(families), 4), layout="constrained")
    axes = figure.subplots(1, len(families), squeeze=False)
    for axis, family in zip(axes[0], families, strict=True):
        grid = np.linspace(0, FAMILIES[family].budget, 100)
        for name, colour in COLOURS.items():
            curves = [run["curve"] for run in runs if (run["family"], run["estimator"]) == (family, name)]
            for curve in curves:
                axis.plot(*zip(*curve, strict=True), color=colour, linewidth=0.5, alpha=0.5)
            if curves:  # a run that ended early stays where it was
                lines = [np.interp(grid, *np.array(curve, float).T) for curve in curves]
                axis.plot(grid, np.median(lines, axis=0), color=colour, linewidth=2, label=name)
        axis.axhline(TARGET_SHARE * FAMILIES[family].expert, color="black", linewidth=0.8, linestyle="dotted")
        axis.set(title=family, xlabel="sampled tokens")
        axis.legend()
    axes[0][0].set_ylabel("mean return, held-out tasks")
    figure.savefig(path, dpi=100)
