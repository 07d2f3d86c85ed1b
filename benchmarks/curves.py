"""Parts of benchmarks that train runs from one policy and compare their curves: results that stay, and a run's curve.

Results are a JSON line for each run. Some keys of the line name the run; its line takes the place of its last one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.fork_credit.runs import FAMILIES, Start, make_start, missing_start
from trainers.report.loggers import METRICS_FILE, read_jsonl
from trainers.rollout.demonstrations import Example
from trainers.trajectory import Trajectory

#: Settings of runs that go on until they are stopped, at one learning rate, and of their batches.
SETTINGS = (
    *("trainer.threads=1", "engine.threads=1", "model.device=cpu", "trainer.logger=[jsonl,console]"),
    *("actor.lr_schedule=constant", "actor.lr_warmup_steps=0", "actor.mini_batches=1"),
    *("rollout.groups_per_batch=32", "rollout.n=2", "data.val_size=96", "trainer.keep_last_n=1"),
    "trainer.keep_rollouts=0",
)


def parser_of(
    name: str, description: str | None, *, iterations: int, every: int | None = None
) -> argparse.ArgumentParser:
    """Return a parser with the options that these benchmarks share; each adds its own.

    Args:
        name: Of the benchmark: its folder and its file of results.
        description: Its docstring.
        iterations: Of a run, by default.
        every: By default, the iterations between validations; without it there is no such option.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=lambda text: [*map(int, text.split(","))], default=[0, 1, 2], metavar="0,1,2")
    parser.add_argument("--iterations", type=int, default=iterations, help="of a run")
    if every is not None:
        parser.add_argument("--every", type=int, default=every, help="iterations between validations")
    parser.add_argument("--folder", type=Path, default=Path("outputs") / name)
    parser.add_argument("--results", type=Path, default=Path(f"benchmarks/results/{name}.jsonl"))
    parser.add_argument("--report", action="store_true", help="print the results that are there")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    return parser


def add_starts(parser: argparse.ArgumentParser) -> None:
    """Add the option for the folder of :func:`start_of`."""
    parser.add_argument("--starts", type=Path, default=Path("outputs/fork_credit"), help="policies to start from")


def add_choice(parser: argparse.ArgumentParser, name: str, known: Iterable[str], **words: Any) -> None:
    """Add an option that takes names with commas between them: all known ones by default, and no others."""
    names = [*known]

    def chosen(text: str) -> list[str]:
        unknown = sorted(set(text.split(",")) - set(names))
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}; there are {', '.join(names)}")
        return text.split(",")

    parser.add_argument(name, type=chosen, default=names, metavar=f"{names[0]},...", **words)


def start_of(family: str, seed: int, folder: Path) -> Path:
    """Return the policy of `benchmarks.fork_credit` that the runs of a seed start from, made unless it is there."""
    while (missing := missing_start(family, seed, folder)) is not None:
        make_start(missing, folder)
    return Start(family, seed).path(folder)


def context_of(family: str) -> int:
    """Return the positions that an episode of a family may have."""
    return int(
        next(word for word in FAMILIES[family].common if word.startswith("engine.max_context")).partition("=")[2]
    )


def call(module: str, *words: str) -> None:
    """Run a command of the trainers with one thread; it resumes in its folder."""
    subprocess.run([sys.executable, "-m", module, *words], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def measured(folder: Path) -> bool:
    """Return whether a run has measured something."""
    return (folder / METRICS_FILE).exists()


def curve_of(folder: Path, *reported: str) -> tuple[list[list[float]], dict[str, list[float]], float]:
    """Return a run's validations as ``[sampled tokens, score]``, its reported metrics by name, and its seconds."""
    curve, tokens, seconds = list[list[float]](), 0, 0.0
    series = {name: list[float]() for name in reported}
    for _, metrics in read_jsonl(folder / METRICS_FILE):
        tokens += int(metrics.get("perf/sampled_tokens", 0))
        seconds += float(metrics.get("time/iteration_s", 0.0))
        if "val/reward" in metrics:
            curve.append([tokens, round(metrics["val/reward"], 4)])
        for name, values in series.items():
            if f"actor/{name}" in metrics:
                values.append(round(metrics[f"actor/{name}"], 4))
    return curve, series, seconds


def save(row: dict[str, Any], path: Path, key: Sequence[str]) -> None:
    """Put a run's line into the results; other runs' lines are kept."""
    others = [other for other in saved(path) if any(other[name] != row[name] for name in key)]
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text("".join(f"{json.dumps(line)}\n" for line in [*others, row]))
    unfinished.replace(path)


def saved(path: Path) -> list[dict[str, Any]]:
    """Return the lines of the results; none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def learned(trajectory: Trajectory, weights: NDArray[np.float32]) -> Example:
    """Return an episode of which the tokens with a weight are imitated, whoever wrote them; float32 ``[tokens]``.

    The first token has none: nothing stands before it.
    """
    actions = weights > 0
    actions[0] = False
    whole = replace(
        trajectory,
        action_mask=actions,
        logprobs=np.zeros(len(actions), np.float32),
        weight_version=np.where(actions, 0, -1).astype(np.int32),
        turn_id=np.where(actions, 0, -1).astype(np.int32),
        turn_rewards=np.zeros(1),
        turn_terms=(),
        turn_moves=(),
        observation_mask=np.zeros(0, np.bool_),
    )
    return Example(whole, weights[actions])
