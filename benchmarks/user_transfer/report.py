"""The matrix, the losses off its diagonal, and its picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from textenvs.evaluate.statistics import mean_interval, rate_interval

from .runs import MODEL, POPULATION, START, TRAINED, UNSEEN

#: The most that a population may lose against a policy trained with the user that it meets.
MOST_LOST = 0.05
Outcomes = Mapping[
    tuple[str, str], NDArray[np.float64]
]  # by policy and user, of (seeds, tasks): 1 is solved, NaN failed


def outcomes(cells: Sequence[Mapping[str, Any]]) -> Outcomes:
    """Return the outcome of every policy and user, a row a seed; incomplete seeds are left out."""
    counts = Counter(cell["seed"] for cell in cells if cell["policy"] != START)
    whole = [seed for seed, count in counts.items() if count == max(counts.values())]
    cells = [cell for cell in cells if cell["policy"] == START or cell["seed"] in whole]
    rows_of: dict[tuple[str, str], list[list[float]]] = {}
    for cell in sorted(cells, key=lambda cell: cell["seed"]):
        row = [float("nan") if digit == "-" else float(digit) for digit in cell["solved"]]
        rows_of.setdefault((cell["policy"], cell["user"]), []).append(row)
    return {key: np.array(rows) for key, rows in rows_of.items()}


def table(matrix: Outcomes) -> str:
    """Return Markdown: a row a policy, a column a user; per cent solved, with the interval clustered by task."""
    users = [user for user in (*TRAINED, *UNSEEN, MODEL) if any(of == user for _, of in matrix)]
    lines = ["| trained on | " + " | ".join(f"`{user}`" for user in users) + " |", "|---" * (len(users) + 1) + "|"]
    for policy in (START, *TRAINED, MODEL, POPULATION):
        cells = [_cell(matrix[policy, user]) if (policy, user) in matrix else "" for user in users]
        if any(cells):
            lines.append(f"| {policy} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(solved: NDArray[np.float64]) -> str:
    groups = [task[~np.isnan(task)].tolist() for task in solved.T]
    low, high = rate_interval([group for group in groups if group])
    return f"{100 * np.nanmean(solved):.1f} ({100 * low:.0f} to {100 * high:.0f})"


def losses(matrix: Outcomes) -> dict[str, tuple[float, float, float]]:
    """Return differences in the share solved, with intervals: a bootstrap over tasks, paired, means over seeds.

    Returns:
        ``single``: the loss of a policy trained on one family with the users of another, against the policy trained
        there; ``plain``: the same of the policy trained on plain users; ``population``: of the one trained on all;
        ``unseen``: the advantage of the population over the single ones with users that none was trained on. Each is a
        mean over users (and policies); those that have not been run are absent.
    """
    users = [user for user in (*TRAINED, MODEL) if (user, user) in matrix]
    pairs = {
        "single": [((user, user), (policy, user)) for user in users for policy in users if policy != user],
        "plain": [((user, user), (TRAINED[0], user)) for user in users if user != TRAINED[0]],
        "population": [((user, user), (POPULATION, user)) for user in users],
        "unseen": [((POPULATION, user), (policy, user)) for user in UNSEEN for policy in users],
    }
    lost = {}
    for name, compared in pairs.items():
        if compared and all(key in matrix for pair in compared for key in pair):
            tasks = np.nanmean([np.nanmean(matrix[own] - matrix[other], axis=0) for own, other in compared], axis=0)
            low, high = mean_interval([[value] for value in tasks.tolist()]) or (float("nan"), float("nan"))
            lost[name] = float(tasks.mean()), low, high
    return lost


def summary(matrix: Outcomes) -> str:
    """Return the losses in words; "recovered" is the share of a single family's loss that the population avoids."""
    texts = {
        "single": "trained on one family, met by another: loses",
        "plain": "trained on plain users, met by the other families: loses",
        "population": "trained on all, against the policy trained on the family that it meets: loses",
        "unseen": "trained on all, against those trained on one, with users that none was trained on: gains",
    }
    lost = losses(matrix)
    lines = [
        f"{texts[name]} {100 * value:+.1f} points ({100 * a:+.1f} to {100 * b:+.1f})"
        for name, (value, a, b) in lost.items()
    ]
    if {"single", "population"} <= set(lost):
        single, population = lost["single"][0], lost["population"][0]
        share = f"{1 - population / single:.0%} recovered; " if single > 0 else ""
        verdict = "kept" if population <= MOST_LOST else "MISSED"
        lines.append(f"{share}at most {100 * MOST_LOST:.0f} points lost by the population: {verdict}")
    return "\n".join(lines)


def draw(matrix: Outcomes, path: Path) -> None:
    from matplotlib.figure import Figure

    users = [user for user in (*TRAINED, *UNSEEN, MODEL) if any(of == user for _, of in matrix)]
    policies = [policy for policy in (START, *TRAINED, MODEL, POPULATION) if any(of == policy for of, _ in matrix)]
    values = np.array(
        [[100 * np.nanmean(matrix[p, u]) if (p, u) in matrix else np.nan for u in users] for p in policies], float
    )
    figure = Figure(figsize=(1.2 * len(users) + 2, 0.6 * len(policies) + 1.6), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(values, vmin=0, vmax=100, cmap="viridis", aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            own = policies[row] == users[column]
            colour = "white" if value < 60 else "black"
            axis.text(
                column, row, f"{value:.0f}", ha="center", va="center", color=colour, weight="bold" if own else None
            )
    axis.set_xticks(range(len(users)), users, rotation=30, ha="right")
    axis.set_yticks(range(len(policies)), policies)
    axis.set(xlabel="users that it meets", ylabel="users that it was trained on")
    figure.colorbar(image, label="solved, per cent")
    figure.savefig(path, dpi=110)
