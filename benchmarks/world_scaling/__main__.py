"""Does diversity help? A policy that was trained on 1, 10, 100 or 1,000 generated worlds, played in others.

    python -m benchmarks.world_scaling [--worlds 1,10,100,1000] [--seeds 0,1,2] [--scale cpu|cuda|smollm2]
                                       [--imitated TOKENS] [--sampled TOKENS]
                                       [--phases imitation,ppo] [--tasks 200] [--transfer ID[=JSON]] [--minutes M]
                                       [--folder FOLDER] [--results FILE] [--report]

All policies of a seed start from the same weights and vocabulary. Each imitates the scripted expert of `textenv/worlds`
in its training worlds, then is trained by PPO there. The imitated and the sampled tokens are the same for all policies;
where there are fewer worlds, there are more tasks in each. Then it is played on 200 tasks, greedily: other tasks in its
own worlds, and held-out worlds, one for each task: with the words, goals and applications of training (`worlds`), with
held-out wordings, with held-out patterns of goals, and with held-out applications. The shares of the expert's calls
whose tool it would name, and of its replies that it would give to the letter, show what it knows where it solves
nothing. `--transfer` plays it in another environment as well, where it was not trained (once for each:
`textenv/service-desk`, or with options `'textenv/tau2={"data": "FOLDER"}'`), and there the policy that it started from,
too (0 worlds).

It resumes where it was stopped; a training begins again. The results are a JSON line for each policy; a picture is
drawn beside them. `--minutes` begins nothing after so many; `--report` runs nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from transformers.utils.logging import disable_progress_bar

from benchmarks import curves, imitation
from benchmarks.hardware import processor

from .report import draw, table
from .runs import START, Runs
from .scales import SCALES, Scale

KEY = ("settings", "phase", "worlds", "seed", "tasks")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, write the results, print the table, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    imitation.add_arguments(parser, "world_scaling", tasks=200)
    parser.add_argument("--worlds", type=imitation.numbers, default=[1, 10, 100, 1000], metavar="1,10,...")
    parser.add_argument("--scale", choices=[*SCALES], default="cpu", help="what is trained, and for how long")
    parser.add_argument("--imitated", type=int, metavar="TOKENS", help="tokens to imitate, in place of the scale's")
    parser.add_argument(
        "--sampled", type=int, metavar="TOKENS", help="tokens that PPO samples, in place of the scale's"
    )
    parser.add_argument("--transfer", type=_environment, action="append", default=[], metavar="ID[=JSON]")
    options = parser.parse_args(arguments)
    if not options.report:
        disable_progress_bar()  # transformers shows one for each file that it loads
        run(options)
    scale = scale_of(options)
    rows = imitation.rows_of(options.results, settings=scale.digest, tasks=options.tasks)
    print(table(rows))
    if rows:
        draw(rows, options.results.with_name(f"{options.results.stem}-{options.scale}.png"))
    return 0


def _environment(text: str) -> tuple[str, dict[str, Any]]:
    """Read an environment's id, perhaps with its options."""
    name, _, options = text.partition("=")
    return name, json.loads(options or "{}")


def scale_of(options: argparse.Namespace) -> Scale:
    """Return the scale, with other numbers of tokens where they are given."""
    tokens = {name: getattr(options, name) for name in ("imitated", "sampled") if getattr(options, name) is not None}
    return replace(SCALES[options.scale], **tokens)


def policies(options: argparse.Namespace) -> Iterator[tuple[str, int, int]]:
    """Yield phase, worlds and seed of every policy, those of one seed together."""
    for seed in options.seeds:
        yield from ((START, 0, seed),) if options.transfer else ()
        yield from ((phase, worlds, seed) for worlds, phase in itertools.product(options.worlds, options.phases))


def run(options: argparse.Namespace) -> None:
    """Train and play the policies, on the axes that the results lack."""
    scale, ends = scale_of(options), time.monotonic() + 60 * options.minutes
    runs = Runs(scale, options.folder, options.tasks, dict(options.transfer))
    for phase, worlds, seed in policies(options):
        name = {"settings": scale.digest, "phase": phase, "worlds": worlds, "seed": seed, "tasks": options.tasks}
        rows = (row for row in curves.saved(options.results) if all(row[part] == name[part] for part in KEY))
        row = next(rows, {**name, "scale": options.scale, "machine": processor(), "axes": {}})
        for axis, environment in runs.axes(phase, worlds, seed).items():
            if axis in row["axes"]:
                continue
            if time.monotonic() > ends:
                return
            model = runs.policy(phase, worlds, seed)
            row |= runs.costs(phase, worlds, seed)
            row["axes"][axis] = runs.score(model, environment)
            curves.save(row, options.results, KEY)
            print(phase, worlds, seed, axis, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
