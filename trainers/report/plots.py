"""Curves of a run as one picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

Curves: TypeAlias = Mapping[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]

_BLUE, _ORANGE, _GREEN, _PURPLE = "#2a6f97", "#e07a1f", "#4f8a4b", "#7b5aa6"
_TRAIN, _VAL = {"linewidth": 1.0}, {"linewidth": 1.8, "marker": "o", "markersize": 4}
_Line: TypeAlias = tuple[str, str, str]  # metric, label, colour


def _both(metric: str) -> tuple[_Line, ...]:
    return (f"train/{metric}", "training", _BLUE), (f"val/{metric}", "validation", _ORANGE)


# Panels of lines by their titles. Panels without data are left out.
_PANELS: Mapping[str, tuple[_Line, ...]] = {
    "Solved within the turns": _both("solved"),
    "Solved by the first reply": _both("first_reply"),
    "Reward an episode": _both("reward"),
    "KL, a token": (("actor/approx_kl_k3", "of an update", _GREEN), ("actor/ref_kl", "to the reference", _PURPLE)),
    "Entropy, a token": (("actor/entropy", "training", _BLUE),),
    "Turns an episode": _both("turns"),
    "Lengths": (
        ("train/turn_tokens", "tokens a turn", _GREEN),
        ("train/response_tokens", "sampled tokens an episode", _PURPLE),
    ),
}


def curves_of(rows: Iterable[tuple[int, Mapping[str, float]]]) -> Curves:
    """Collect steps and values of each metric; where a step gives a metric twice, the later value counts."""
    points: dict[str, dict[int, float]] = {}
    for step, metrics in rows:
        for name, value in metrics.items():
            points.setdefault(name, {})[step] = value
    return {
        name: (np.array(sorted(values)), np.array([values[step] for step in sorted(values)], np.float64))
        for name, values in points.items()
    }


def plot(rows: Iterable[tuple[int, Mapping[str, float]]], path: str | Path, title: str = "") -> Path:
    """Draw steps with metrics as the PNG file ``path``; raises ``ValueError`` where none of them is drawn."""
    curves = curves_of(rows)
    present = {title: [line for line in lines if line[0] in curves] for title, lines in _PANELS.items()}
    panels: list[tuple[str, Callable[[Axes, Curves], None]]] = [
        (title, partial(_lines, lines)) for title, lines in present.items() if lines
    ]
    if any(_is_phase(name) for name in curves):
        panels.append(("Seconds an iteration, by phase", _phases))
    if not panels:
        raise ValueError(f"nothing to draw: the metrics are {sorted(curves) or 'empty'}")

    columns = min(len(panels), 4 if len(panels) > 6 else 3)
    rows_of_panels = -(-len(panels) // columns)
    width, height = 4.2 * columns, 3.1 * rows_of_panels
    figure = Figure(figsize=(width, height), dpi=120)
    # Fixed margins, in inches: fitting them to the labels draws everything several times.
    near, right, bottom, top, apart = 0.6, 0.15, 0.5, 0.7 if title else 0.35, 0.85
    across = (width - near - right - (columns - 1) * apart) / columns
    along = (height - bottom - top - (rows_of_panels - 1) * apart) / rows_of_panels
    figure.subplots_adjust(
        near / width, bottom / height, 1 - right / width, 1 - top / height, apart / across, apart / along
    )
    for place, (name, draw) in enumerate(panels, 1):
        axes = figure.add_subplot(rows_of_panels, columns, place)
        draw(axes, curves)
        axes.set_title(name, fontsize=10, loc="left")
        axes.set_xlabel("iteration", fontsize=8)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        axes.tick_params(labelsize=8)
        axes.grid(visible=True, color="0.92", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    if title:
        figure.suptitle(title, fontsize=11, x=0.01, ha="left", parse_math=False)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _lines(lines: Sequence[_Line], axes: Axes, curves: Curves) -> None:
    for name, label, colour in lines:
        steps, values = curves[name]
        validation = name.startswith("val/")
        if len(values) >= 20 and not validation:
            axes.plot(steps, values, color=colour, linewidth=0.8, alpha=0.35)
            axes.plot(steps, _smooth(values), color=colour, linewidth=1.8, label=f"{label} (smoothed)")
        else:
            axes.plot(steps, values, color=colour, label=label, **(_VAL if validation or len(values) < 2 else _TRAIN))
    if lines[0][0].endswith(("/solved", "/first_reply")):
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    else:
        finite = np.concatenate([curves[name][1][np.isfinite(curves[name][1])] for name, *_ in lines])
        if finite.size and finite.min() >= 0 and finite.max() > 0:
            axes.set_ylim(0, 1.08 * finite.max())
    if len(lines) > 1:
        axes.legend(fontsize=8, frameon=False)


def _phases(axes: Axes, curves: Curves) -> None:
    """Draw stacked seconds; a phase that an iteration did not have took none."""
    names = sorted((name for name in curves if _is_phase(name)), key=lambda name: -float(np.nansum(curves[name][1])))
    steps = np.unique(np.concatenate([curves[name][0] for name in names]))
    stacked = np.zeros((len(names), len(steps)))
    for row, name in enumerate(names):
        stacked[row, np.searchsorted(steps, curves[name][0])] = np.nan_to_num(curves[name][1])
    labels = [name.removeprefix("time/").removesuffix("_s") for name in names]
    colours = (_BLUE, _ORANGE, _GREEN, _PURPLE, "#b8860b", "#888888", "#c45a6a", "#3aa6a0")
    axes.stackplot(steps, stacked, labels=labels, colors=colours, step="mid")
    axes.set_ylim(0, 1.4 * max(float(stacked.sum(axis=0).max()), 1e-9))  # room for the legend above the stack
    axes.legend(fontsize=8, frameon=False, ncols=3, loc="upper left")


def _is_phase(name: str) -> bool:
    return name.startswith("time/") and name.endswith("_s") and name != "time/iteration_s"


def _smooth(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a centred running mean over about a tenth of the points; at the ends the window is cut."""
    half = max(1, len(values) // 20)
    window = np.ones(2 * half + 1)
    return np.convolve(values, window, "same") / np.convolve(np.ones(len(values)), window, "same")
