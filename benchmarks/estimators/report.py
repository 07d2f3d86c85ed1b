"""Tables and a picture of the measurements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .ways import CORRECTIONS, DEFAULT, NO_CORRECTION, SHAPES, TOKEN_TIS, WAYS

Row = Mapping[str, Any]
#: Of the picture's upper half; all others are grey.
_NAMED = {
    **{"grpo": "tab:red", "dr_grpo": "tab:orange", "rloo, group": "tab:olive", "remax": "tab:brown"},
    **{"turn_grpo, mixed": "tab:blue", "turn_grpo, group": "tab:cyan", "turn_grpo, optimal_token": "tab:purple"},
    **{"gigpo": "tab:pink", "turn_gae λ=1, rough critic": "tab:green"},
    "turn_grpo, mixed, seq-mean-token-mean": "black",
}
#: Of its lower half.
_LINES = ("none", "old_logprobs=rollout", "token_tis", "sequence_tis", "rejection=geometric", "rejection=token_k3")
_LEAST_BIAS = 1e-4  # below it, a bias cannot be told from its standard error


def write(rows: Sequence[Row], folder: Path) -> None:
    """Write ``estimators.md`` and ``estimators.png``."""
    games = [row for row in rows if row["part"] == "games"]
    texts = [row for row in rows if row["part"] == "text"]
    parts = ["# Estimators against the true gradient\n"]
    where = "[algorithms](../../docs/algorithms.md#estimators-measured)"
    parts += [
        f"`python -m benchmarks.estimators`; {where} says what is shown. ± is a standard error, noise in tokens.\n"
    ]
    usual = [row for row in games if (row["groups"], row["size"]) == (16, 8)]
    for title, some in (("Games", usual), ("Text environments", texts)):
        if some:
            parts += [f"## {title}\n", _about(some), *_usual(some)]
    if games:
        parts += ["## Baselines, by the size of a group\n", _by_size([row for row in games if row["staleness"] == 0])]
        parts += ["## Shapes, by the size of a batch\n", _by_groups([row for row in games if row["size"] == 8])]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "estimators.md").write_text("\n".join(parts))
    _picture([*usual, *texts], folder / "estimators.png")


def _where(row: Row) -> str:
    return str(row.get("game") or row.get("env"))


def _places(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(_where(row) for row in sorted(rows, key=lambda row: str(row["part"]))))


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in rows) + "\n"


def _bias(row: Row) -> str:
    if not np.isfinite(row["bias2"]) or row["bias2"] >= 10:
        return "> 10"
    return f"{row['bias2']:.4f} ± {row['bias2_se']:.4f}"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value < 1e6 else "> 1,000,000"


def _about(rows: Sequence[Row]) -> str:
    """Return a table of the places: returns, samples, and distances of the policies."""
    lines = []
    for place in _places(rows):
        of_place = {row["staleness"]: row for row in rows if _where(row) == place}
        first = next(iter(of_place.values()))
        kl = ", ".join(f"{stale}: {row['kl']:.4f}" for stale, row in sorted(of_place.items()) if stale)
        sample = f"{first['batches']} batches" + (f" of {first['episodes']} episodes" if "episodes" in first else "")
        floor = f"{first['floor']:.3f}" if "floor" in first else "0"
        lines.append([f"`{place}`", f"{first['return']:.3f}", sample, kl, floor])
    return _table(["", "mean return", "sample", "KL a token, by staleness", "bias² that cannot be resolved"], lines)


def _usual(rows: Sequence[Row]) -> Iterable[str]:
    places = _places(rows)
    cell = {(_where(row), row["staleness"], row["way"], row["correction"]): row for row in rows}
    ways = [way.name for way in WAYS if any(key[2] == way.name for key in cell)]
    head = ["staleness 0", *(f"{place}: {what}" for place in places for what in ("bias²", "noise", "cosine"))]
    lines = []
    for way in ways:
        at_places = [cell[place, 0, way, "none"] for place in places]
        cells = [(_bias(row), _count(row["noise"]), f"{row['cosine']:.3f}") for row in at_places]
        lines.append([way, *(text for three in cells for text in three)])
    yield _table(head, lines)
    stales = sorted({row["staleness"] for row in rows})
    yield "Cosine by staleness, without a correction and (in brackets) with `token_tis`:\n"
    head = ["", *(f"{place}: {stale}" for place in places for stale in stales)]
    lines = []
    for way in ways:
        line = [way]
        for key in ((place, stale, way) for place in places for stale in stales):
            plain, corrected = cell.get((*key, NO_CORRECTION.name)), cell.get((*key, TOKEN_TIS.name))
            cell_text = "" if plain is None else f"{plain['cosine']:.3f}"
            line.append(cell_text + ("" if corrected is None else f" ({corrected['cosine']:.3f})"))
        lines.append(line)
    yield _table(head, lines)
    yield f"Corrections of `{DEFAULT.name}`, bias² / noise / cosine:\n"
    head = ["", *(f"{place}: {stale}" for place in places for stale in stales if stale)]
    lines = []
    for correction in CORRECTIONS:
        line = [correction.name]
        for place, stale in ((place, stale) for place in places for stale in stales if stale):
            row = cell.get((place, stale, DEFAULT.name, correction.name))
            line.append("" if row is None else _three(row))
        lines.append(line)
    yield _table(head, lines)


def _three(row: Row) -> str:
    bias = f"{row['bias2']:.3f}" if row["bias2"] < 10 else "> 10"
    return f"{bias} / {_count(row['noise'])} / {row['cosine']:.3f}"


def _by_size(rows: Sequence[Row]) -> str:
    """Return the noise of each baseline in batches of 128 episodes."""
    some = [row for row in rows if row["groups"] * row["size"] == 128]
    cell = {(row["game"], row["size"], row["way"]): row for row in some}
    sizes = sorted({row["size"] for row in some})
    keys = [(place, size) for place in _places(some) for size in sizes]
    ways = [way.name for way in WAYS if all((place, size, way.name) in cell for place, size in keys)]
    lines = [[way, *(_count(cell[place, size, way]["noise"]) for place, size in keys)] for way in ways]
    return _table(["noise", *(f"{place}, N = {size}" for place, size in keys)], lines)


def _by_groups(rows: Sequence[Row]) -> str:
    """Return the bias of the mean update by normalisation and aggregation."""
    some = [row for row in rows if row["staleness"] == 0]
    cell = {(row["game"], row["groups"], row["way"]): row for row in some}
    keys = [(place, groups) for place in _places(some) for groups in sorted({row["groups"] for row in some})]
    lines = []
    for way in (DEFAULT, *SHAPES):
        matches = [cell.get((place, groups, way.name)) for place, groups in keys]
        lines.append([way.name, *("" if row is None else f"{_bias(row)}, {row['cosine']:.3f}" for row in matches)])
    return _table(["bias², cosine", *(f"{place}, {8 * groups} episodes" for place, groups in keys)], lines)


def _picture(rows: Sequence[Row], path: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    places = _places(rows)
    if not places:
        return
    figure = Figure(figsize=(4.2 * len(places), 8))
    axes = figure.subplots(2, len(places), squeeze=False)
    for (upper, lower), place in zip(axes.T, places, strict=True):
        rows_here = [row for row in rows if _where(row) == place]
        upper.set(xscale="log", yscale="log", title=place, xlabel="noise (tokens)", ylabel="bias²")
        for row in (row for row in rows_here if row["staleness"] == 0 and row["noise"] < 1e6):
            at = row["noise"], max(row["bias2"], _LEAST_BIAS)
            named = row["way"] in _NAMED
            style = {"label": row["way"], "color": _NAMED[row["way"]], "zorder": 3} if named else {"color": "lightgrey"}
            upper.scatter(*at, s=36 if named else 14, **style)
        upper.xaxis.set_minor_formatter(NullFormatter())
        floor = max(row.get("floor", 0.0) for row in rows_here)
        if floor:
            upper.axhline(floor, color="grey", linestyle=":", linewidth=1)
        for name in _LINES:
            line = sorted(
                (row["staleness"], row["cosine"])
                for row in rows_here
                if row["way"] == DEFAULT.name and (row["correction"] == name or row["staleness"] == 0)
            )
            lower.plot(*zip(*line, strict=True), marker="o", markersize=3, label=name)
        lower.set(xlabel="staleness (updates)", ylabel=f"cosine, {DEFAULT.name}")
    for half in axes:
        half[-1].legend(*half[0].get_legend_handles_labels(), fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    figure.savefig(path, dpi=110)
