"""Sampled tokens until 90 % of the best score: ``algorithm.adv_estimator=fork`` against four other estimators.

    python -m benchmarks.fork_credit [--families clarify,...] [--seeds 0,1,2,3,4]
                                     [--workers N] [--minutes M]

The environments are those of ``envs.py``, and TextWorld's coin game. A run is PPO with one estimator from a policy
that imitates the scripted expert and was made careless, and ends when its score stays high or its tokens are spent
(``runs.py``). A score is the mean return of 96 held-out episodes at temperature 1; the best is the scripted expert's.
Tokens are those that the policy samples in training, forks among them. Every estimator has as many tries (learning
rates) on the seeds for tuning; the best one is then run on each of the seeds. Whatever is in ``--results`` is not run
again, and a run is written as soon as it ends: the same command resumes. ``--workers`` runs so many side by side, a
process each. ``--minutes`` begins no run after so many. ``--prepare`` makes the policies to start from, and nothing
else. ``--report`` runs nothing. In the end it prints the table of what is there, and draws ``fork_credit.png``.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..parallel import finished
from .report import draw, table, tokens_to
from .runs import ESTIMATORS, FAMILIES, Key, Start, do, missing_start


def keys(families: Sequence[str], seeds: Sequence[int], runs: list[Any]) -> Iterator[Key]:
    """Yield runs that are missing and can begin, in order: an estimator's seeds wait for all of its tries there."""
    done = {key_of(run) for run in runs}
    for family in families:
        tries = [
            (family, name, this, seed)
            for seed in FAMILIES[family].tuning
            for name in ESTIMATORS
            for this in FAMILIES[family].tries
        ]
        missing = [key for key in tries if key not in done]
        yield from missing
        best = {name: best_try(family, name, runs) for name in {*ESTIMATORS} - {key[1] for key in missing}}
        final = [(family, name, best[name], seed) for seed in seeds for name in ESTIMATORS if name in best]
        yield from (key for key in final if key not in done)


def key_of(run: dict[str, Any]) -> Key:
    return run["family"], run["estimator"], run["try"], run["seed"]


def started(runs: Iterable[Key], starts: Path) -> Iterator[Key | Start]:
    """Yield the runs, or the policy that a run starts from in its place while that does not exist."""
    requested: set[Start] = set()
    for key in runs:
        start = missing_start(key[0], key[3], starts)
        if start is None:
            yield key
        elif start not in requested:
            requested.add(start)
            yield start


def best_try(family: str, estimator: str, runs: Sequence[dict[str, Any]]) -> str:
    """Return the try with the fewest tokens on the tuning seeds; where none arrives, the one with the highest score."""
    tuning = FAMILIES[family].tuning

    def cost(this: str) -> tuple[float, float]:
        own_runs = [
            run
            for run in runs
            if (run["family"], run["estimator"], run["try"]) == (family, estimator, this) and run["seed"] in tuning
        ]
        spent = [tokens_to(run) or 2 * FAMILIES[family].budget for run in own_runs]
        return sum(spent), -sum(max(score for _, score in run["curve"]) for run in own_runs)

    return min(FAMILIES[family].tries, key=cost)


def main() -> None:
    """Run what is missing, then print and draw what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", type=lambda text: text.split(","), default=list(FAMILIES))
    numbers: dict[str, Any] = {"type": lambda text: [int(seed) for seed in text.split(",")], "metavar": "N,N"}
    parser.add_argument("--seeds", default=[0, 1, 2, 3, 4], **numbers)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--starts", type=Path, default=Path("outputs/fork_credit"), help="policies to start from")
    parser.add_argument("--results", type=Path, default=Path(__file__).parents[1] / "results" / "fork_credit.json")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": f"{platform.machine()}, CPU, one thread"}
    results |= json.loads(options.results.read_text()) if options.results.exists() else {"runs": []}
    runs = results.pop("runs")

    def ready() -> Iterator[Key | Start]:
        if options.prepare:
            every = (
                (family, "", "", seed)
                for family in options.families
                for seed in (*FAMILIES[family].tuning, *options.seeds)
            )
            return (key for key in started(every, options.starts) if isinstance(key, Start))
        return started(keys(options.families, options.seeds, runs), options.starts)

    minutes = 0.0 if options.report else options.minutes
    for key, result in finished(partial(do, starts=options.starts), ready, options.workers, minutes):
        if isinstance(key, Start):
            print(key, f"score {result['score']}, {result['cpu_s']} s", flush=True)
            continue
        run = dict(zip(("family", "estimator", "try", "seed"), key, strict=True)) | result
        runs.append(run | {"python": platform.python_version(), "torch": version("torch")})
        lines = ",\n".join(json.dumps(entry) for entry in runs)
        new = options.results.with_suffix(".new")  # a kill leaves the old file
        new.write_text(f'{json.dumps(results)[:-1]}, "runs": [\n{lines}\n]}}\n')
        new.replace(options.results)
        print(*key, f"{tokens_to(run) or '-'} tokens to 90 %, {run['cpu_s']} s", flush=True)
    final = [
        run
        for run in runs
        if run["seed"] in options.seeds and run["try"] == best_try(run["family"], run["estimator"], runs)
    ]
    print(table(final))
    if final:
        draw(final, options.results.with_suffix(".png"))


if __name__ == "__main__":
    main()
