"""Sampled tokens until 90 % of the best score: ``algorithm.adv_estimator=fork`` against four other estimators.

    python -m benchmarks.fork_credit [--families clarify,...] [--seeds 0,1,2,3,4] [--tuning 100,101,...] [--minutes M]

The environments are those of ``envs.py``. A run is PPO with one estimator from a policy that imitates the scripted
expert and was made careless, and ends when its score stays high or its tokens are spent (``runs.py``). A score is the
mean return of 96 held-out episodes at temperature 1; the best is the scripted expert's. Tokens are those that the
policy samples in training, forks among them. Every estimator has as many tries (learning rates) on the seeds for
tuning; the best one is then run on each of the seeds. Whatever is in ``--results`` is not run again, and a run is
written as soon as it ends: the same command resumes. ``--minutes`` begins no run after so many. ``--report`` runs
nothing. In the end it prints the table of what is there, and draws ``fork_credit.png``.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .report import draw, table, tokens_to
from .runs import FAMILIES, play, start_model

#: Of each estimator: what its runs are told besides the learning rate. 64 episodes a batch; of `fork` 24 with a fork at
#: every turn, about as many tokens. Those that compare within the batch are quieter with fewer episodes a task
#: (`python -m benchmarks.estimators.forked`).
ESTIMATORS = {
    "fork": ("rollout.groups_per_batch=24", "rollout.n=1"),
    "turn_grpo": ("rollout.groups_per_batch=32", "rollout.n=2"),
    "gigpo": ("rollout.groups_per_batch=16", "rollout.n=4"),
    "turn_gae": ("rollout.groups_per_batch=64", "rollout.n=1"),
    "grpo": ("rollout.groups_per_batch=16", "rollout.n=4"),
}
TRIES = ("actor.lr=3e-4", "actor.lr=5e-4", "actor.lr=1e-3")  # at 3e-3 none of five got there on collab-math

Key = tuple[str, str, str, int]  # family, estimator, try, seed


def keys(families: Sequence[str], tuning: Sequence[int], seeds: Sequence[int], runs: list[Any]) -> Iterator[Key]:
    """What there is to run, in order; the tries of a family come before its seeds."""
    for family in families:
        yield from ((family, name, this, seed) for seed in tuning for name in ESTIMATORS for this in TRIES)
        best = {name: best_try(family, name, tuning, runs) for name in ESTIMATORS}
        yield from ((family, name, best[name], seed) for seed in seeds for name in ESTIMATORS)


def best_try(family: str, estimator: str, tuning: Sequence[int], runs: Sequence[dict[str, Any]]) -> str:
    """The one with the fewest tokens on the seeds for tuning; where none gets there, the one with the highest score."""

    def cost(this: str) -> tuple[float, float]:
        mine = [
            run
            for run in runs
            if (run["family"], run["estimator"], run["try"]) == (family, estimator, this) and run["seed"] in tuning
        ]
        spent = [tokens_to(run) or 2 * FAMILIES[family].budget for run in mine]
        return sum(spent), -sum(max(score for _, score in run["curve"]) for run in mine)

    return min(TRIES, key=cost)


def main() -> None:
    """Run what is missing, then print and draw what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", type=lambda text: text.split(","), default=list(FAMILIES))
    numbers: dict[str, Any] = {"type": lambda text: [int(seed) for seed in text.split(",")], "metavar": "N,N"}
    parser.add_argument("--seeds", default=[0, 1, 2, 3, 4], **numbers)
    parser.add_argument("--tuning", default=[100, 101, 102, 103, 104], **numbers)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--starts", type=Path, default=Path("outputs/fork_credit"), help="policies to start from")
    parser.add_argument("--results", type=Path, default=Path(__file__).parents[1] / "results" / "fork_credit.json")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    machine = {"machine": f"{platform.machine()}, CPU, one thread", "python": platform.python_version()}
    runs: list[Any] = json.loads(options.results.read_text())["runs"] if options.results.exists() else []
    ends = time.monotonic() + 60 * options.minutes
    for key in () if options.report else keys(options.families, options.tuning, options.seeds, runs):
        if key in {(run["family"], run["estimator"], run["try"], run["seed"]) for run in runs}:
            continue
        if time.monotonic() > ends:
            break
        family, estimator, this, seed = key
        model = start_model(family, seed, options.starts)
        told = [f"algorithm.adv_estimator={estimator}", this, *ESTIMATORS[estimator]]
        run = {"family": family, "estimator": estimator, "try": this, "seed": seed} | play(family, told, seed, model)
        runs.append(run)
        lines = ",\n".join(json.dumps(each) for each in runs)
        partial = options.results.with_suffix(".new")  # a kill leaves the old file
        partial.write_text(f'{json.dumps(machine)[:-1]}, "runs": [\n{lines}\n]}}\n')
        partial.replace(options.results)
        print(*key, f"{tokens_to(run) or '-'} tokens to 90 %, {run['cpu_s']} s", flush=True)
    final = [
        run
        for run in runs
        if run["seed"] in options.seeds
        and run["try"] == best_try(run["family"], run["estimator"], options.tuning, runs)
    ]
    print(table(final))
    if final:
        draw(final, options.results.with_suffix(".png"))


if __name__ == "__main__":
    main()
