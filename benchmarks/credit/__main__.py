"""CreditBench: which advantage estimator gives turns the credit that they have?

    python -m benchmarks.credit [--tasks clarify,...] [--policies imitated,trained] [--turns 2000]
                                [--folder FOLDER] [--data FOLDER]
    python -m benchmarks.credit --score module:Class     another estimator, against the stored truth
    python -m benchmarks.credit --report                 what is there; also makes the page again

For each task and policy it plays episodes in groups, and at every turn :data:`.truth.FORKS` forks, which say what the
states before and after it are worth (:mod:`.truth`); the values of games are exact (:mod:`.games`). Against that truth
it scores the advantages that every estimator computes of the episodes alone, as a batch of a training run has them
(:mod:`.score`). The truth of a setting, a file of less than a megabyte for 2,000 turns, is kept in ``--data``: to score
another estimator takes seconds. The tables of docs/credit-bench.md and its pictures are made of the results that are
kept where ``--data`` is by default.

It resumes where it was stopped, batch by batch. One thread; two commands with other ``--tasks`` run side by side.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from . import games, page, policies, score, truth

DATA = Path(__file__).parents[1] / "results" / "credit"


def main() -> int:
    """Make what is missing; print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = (*games.GAMES, *policies.TASKS)
    names: dict[str, Any] = {"type": lambda text: text.split(","), "metavar": "NAME,..."}
    parser.add_argument("--tasks", default=list(tasks), **names)
    parser.add_argument("--policies", default=list(policies.POLICIES), **names)
    parser.add_argument("--turns", type=int, default=2000, help="of each setting, at least")
    parser.add_argument("--folder", type=Path, default=Path("outputs/credit"), help="policies and batches")
    parser.add_argument("--data", type=Path, default=DATA, help="the truth, a file for each setting")
    parser.add_argument("--score", metavar="module:Class", help="score this estimator, and nothing else")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    options = parser.parse_args()
    for key, chosen, known in (
        ("--tasks", options.tasks, tasks),
        ("--policies", options.policies, policies.POLICIES),
    ):
        if unknown := [name for name in chosen if name not in known]:
            parser.error(f"{key}: {unknown[0]!r} is not one of {', '.join(known)}")
    try:
        list(score.estimates(options.score))
    except ValueError as error:
        parser.error(f"--score: {error}")
    options.folder.mkdir(parents=True, exist_ok=True)
    options.data.mkdir(parents=True, exist_ok=True)
    settings = [policies.Setting(task, policy) for task in options.tasks for policy in options.policies]
    for setting in settings:
        path = options.data / f"{setting.name}.parquet"
        if not (options.report or options.score) and (not path.exists() or truth.turns_in(path) < options.turns):
            make(setting, options.folder, options.turns, path)
        if path.exists():
            show(setting, path, options.score)
        else:
            print(f"{setting.name}: no truth in {options.data}; the command without --score and --report makes it")
    if options.data == DATA and not options.score:
        page.write(DATA)
    return 0


def make(setting: policies.Setting, folder: Path, turns: int, path: Path) -> None:
    """Measure a setting."""
    if setting.task in games.GAMES:
        games.measure(setting, turns, path)
        return
    policies.policy(setting, folder)
    truth.measure(setting, folder, turns)
    truth.add_values(setting, folder)
    truth.joined(setting, folder, path)


def show(setting: policies.Setting, path: Path, extra: str | None) -> None:
    """Print a setting's tables, of the estimator ``extra`` or of all; write those of all beside the truth."""
    batches = truth.read(path)
    row: dict[str, Any] = {"task": setting.task, "policy": setting.policy, "facts": score.facts(batches)}
    row["estimators"] = {
        name: score.scores(score.turns_of(batches, estimate, forks)) for name, estimate, forks in score.estimates(extra)
    }
    print(f"\n{setting.name}")
    for name, value in row["facts"].items():
        print(f"  {name:<60} {value:,.3f}")
    print(f"\n  {'estimator':<28} {'wrong sign':>22} {'silent':>8} {'cosine':>22} {'rank':>8}")
    for name, measures in row["estimators"].items():
        wrong, cosine = (_interval(measures[key]) for key in ("wrong", "cosine"))
        print(f"  {name:<28} {wrong:>22} {measures['silent'][0]:8.3f} {cosine:>22} {measures['rank'][0]:8.3f}")
    if extra is None:
        row |= {"python": platform.python_version(), "torch": version("torch"), "machine": platform.machine()}
        path.with_suffix(".json").write_text(json.dumps(row, indent=1) + "\n")


def _interval(measure: tuple[float, float, float]) -> str:
    value, low, high = measure
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    raise SystemExit(main())
