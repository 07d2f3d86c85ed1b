"""Does a policy that was trained with one kind of user serve another, and does one that was trained with all?

    python -m benchmarks.user_transfer [--seeds 0,1,2] [--minutes M] [--user JSON] [--report]

Users are the scripted ones of `collab-math` in five manners, and with `--user` (a mapping as the environment's option
`user` takes it) a language model. From one start, a tiny policy is trained by PPO on each family, and on the five, with
equal iterations; then it meets the users of each, two more manners among them, on held-out tasks (`runs.py`).

Printed are the matrix of shares solved and what is lost off its diagonal, and the matrix is drawn. Policies are kept in
`--policies`, cells in `--results` as soon as they are known: the same command resumes. `--minutes` begins nothing after
so many; `--report` runs nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .report import draw, outcomes, summary, table
from .runs import MODEL, POPULATION, SETTINGS, START, TRAINED, UNSEEN, model_of, score, train

ROOT = Path(__file__).parents[2]
Work = tuple[str, int, str | None]  # a policy, its seed, and the user that it meets, or None: to be trained


def work(seeds: Sequence[int], families: Sequence[str]) -> Iterator[Work]:
    """Yield all work, in order: a seed is complete before the next one begins."""
    users = (*families, *UNSEEN)
    for policy, seed in [(START, 0), *((policy, seed) for seed in seeds for policy in (POPULATION, *families))]:
        yield policy, seed, None
        yield from ((policy, seed, user) for user in users)


def main() -> None:
    """Do what is missing, then print and draw what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0, 1, 2], metavar="N,N,N"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--user", type=json.loads, metavar="JSON", help='{"model": ..., "base_url": ...}')
    parser.add_argument("--policies", type=Path, default=Path("outputs/user_transfer"), help="where policies are kept")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results" / "user_transfer.json")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "images" / "user-transfer.png")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": f"{platform.machine()}, CPU, one thread", "python": platform.python_version()}
    results |= {"settings": SETTINGS, "trained": [], "cells": []}
    if options.results.exists():
        results |= json.loads(options.results.read_text())
    if results["settings"] != SETTINGS:
        raise SystemExit(
            f"{options.results} is of other settings ({results['settings']}, now {SETTINGS}): remove it first"
        )
    families = (*TRAINED, MODEL) if options.user else TRAINED
    ends = time.monotonic() + 60 * options.minutes
    for policy, seed, user in () if options.report else work(options.seeds, families):
        model = model_of(policy, seed, options.policies)
        done = {(cell["policy"], cell["seed"], cell["user"]) for cell in results["cells"]}
        cells = {(policy, seed, partner) for partner in ((*families, *UNSEEN) if user is None else (user,))}
        if cells <= done or (user is None and model.exists()):
            continue
        if time.monotonic() > ends:
            break
        if user is None:
            met = TRAINED if policy == POPULATION else (policy,)
            took = train(policy, seed, met, options.user, options.policies)
            results["trained"].append({"policy": policy, "seed": seed, **took})
        else:
            results["cells"].append({"policy": policy, "seed": seed, "user": user, **score(model, user, options.user)})
        print(*[policy, seed, user or "trained"], flush=True)
        lists = {name: ",\n".join(json.dumps(entry) for entry in results[name]) for name in ("trained", "cells")}
        start = json.dumps({name: results[name] for name in ("machine", "python", "settings")})[:-1]
        partial = options.results.with_suffix(".new")  # a kill leaves the old file
        partial.write_text(f'{start}, "trained": [\n{lists["trained"]}\n], "cells": [\n{lists["cells"]}\n]}}\n')
        partial.replace(options.results)
    matrix = outcomes(results["cells"])
    print(f"{table(matrix)}\n\n{summary(matrix)}")
    if matrix:
        options.picture.parent.mkdir(parents=True, exist_ok=True)
        draw(matrix, options.picture)


if __name__ == "__main__":
    main()
