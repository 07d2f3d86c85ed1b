"""Does a policy learn what is worth keeping, by the rewards of later sessions alone? Its curve in `textenv/sessions`.

    python -m benchmarks.sessions_learning [--seeds 0,1,2] [--control 0] [--phases imitation,ppo] [--tasks 200]
                                           [--minutes M] [--folder FOLDER] [--results FILE] [--report]

A model of 0.3 million parameters, with a vocabulary of its own, plays a small form of `textenv/sessions` (`env.py`).
First it imitates a careless script: it answers from its notebook as the expert does, and writes there any lines that
fit, whatever will be asked. Then it is trained by PPO. Scripts and policies play the same 200 lives that no policy was
trained on, policies greedily. `--control` names seeds that are also trained with discount 0, by which a reply earns
the reward of its own turn alone: a notebook earns nothing, and costs the forgotten codes in it.

It resumes where it was stopped; a training begins again. The results are a JSON line for each script and policy; a
picture is drawn beside them. `--minutes` begins nothing after so many; `--report` runs nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence

from transformers.utils.logging import disable_progress_bar

from benchmarks import curves, imitation
from benchmarks.hardware import processor
from benchmarks.imitation import REINFORCEMENT

from .env import WRITERS
from .report import draw, table
from .runs import SCRIPT, Policy, Runs, Settings

KEY = ("settings", "phase", "seed", "writer", "discount", "tasks")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, write the results, print the table, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    imitation.add_arguments(parser, "sessions_learning", tasks=200)
    parser.add_argument("--control", type=imitation.numbers, default=[0], metavar="0", help="seeds with discount 0")
    options = parser.parse_args(arguments)
    settings = Settings()
    if not options.report:
        disable_progress_bar()  # transformers shows one for each file that it loads
        run(settings, options)
    rows = imitation.rows_of(options.results, settings=settings.digest, tasks=options.tasks)
    print(table(rows))
    if rows:
        draw(rows, options.results.with_suffix(".png"))
    return 0


def policies(settings: Settings, options: argparse.Namespace) -> Iterator[Policy]:
    """Yield scripts, then the policies, those of a seed together, then those with discount 0."""
    yield from (Policy(SCRIPT, 0, writer) for writer in WRITERS)
    for seed in options.seeds:
        yield from (Policy(phase, seed, settings.writer) for phase in options.phases)
    if REINFORCEMENT in options.phases:
        yield from (Policy(REINFORCEMENT, seed, settings.writer, 0.0) for seed in options.control)


def run(settings: Settings, options: argparse.Namespace) -> None:
    """Train and play the policies that the results lack."""
    ends = time.monotonic() + 60 * options.minutes
    runs = Runs(settings, options.folder, options.tasks)
    for policy in policies(settings, options):
        row = {"settings": settings.digest, **vars(policy), "tasks": options.tasks}
        if any(all(old[part] == row[part] for part in KEY) for old in curves.saved(options.results)):
            continue
        if time.monotonic() > ends:
            return
        curves.save(row | {"machine": processor(), **runs.score(policy)}, options.results, KEY)
        print(policy.name, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
