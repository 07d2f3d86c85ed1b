"""Can a tiny policy learn to repair projects in a real shell? Its learning curve on five kinds of faults.

    python -m benchmarks.terminal_learning [--seeds 0,1,2] [--imitated 150000,...] [--sampled TOKENS]
                                           [--phases imitation,ppo] [--credit episode,turns,forks]
                                           [--model tiny|smollm2] [--tasks 60] [--minutes M]
                                           [--folder FOLDER] [--results FILE] [--report]

A model of 1.3 million parameters, with a vocabulary of its own, imitates the scripted expert of a small form of
`textenv/terminal` (`env.py`): for each number of tokens, from random weights (`--model smollm2`: SmolLM2-135M). Each
policy is then played, greedily, on 60 projects that none was trained on: other seeds, with other names, files, rules
and limits, with the same five kinds of faults. The shares of the expert's replies that it would give to the letter, of
its repairs among them, and of its calls whose tool it would name, show what it knows where it repairs nothing.

The policy that imitates most is then made careless: it imitates conversations that end too early, or correct another
kind of faults. From there PPO trains it on the two kinds that imitation learns, for equal numbers of sampled tokens,
and pays a reply for the whole episode's return, for what follows its turn, or for what follows it against other replies
in the same state. These policies are also played on 60 held-out projects of the two kinds at temperature 1, as they are
trained.

It resumes where it was stopped; a training begins again. The results are a JSON line for each policy; a picture is
drawn beside them. `--minutes` begins nothing after so many; `--report` runs nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence

from transformers.utils.logging import disable_progress_bar

from benchmarks import curves, imitation
from benchmarks.hardware import processor
from benchmarks.imitation import IMITATION, REINFORCEMENT

from .report import draw, table
from .runs import MODELS, Policy, Runs, Settings

KEY = ("settings", "phase", "imitated", "sampled", "credit", "seed", "tasks")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, write the results, print the table, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    imitation.add_arguments(parser, "terminal_learning", tasks=60)
    parser.add_argument(
        "--imitated",
        type=imitation.numbers,
        default=[150_000, 600_000, 1_500_000],
        metavar="TOKENS,...",
        help="tokens to imitate",
    )
    parser.add_argument("--sampled", type=int, default=100_000, metavar="TOKENS", help="tokens that PPO samples")
    parser.add_argument("--model", choices=[*MODELS], default="tiny", help="a new one (default), or SmolLM2")
    curves.add_choice(parser, "--credit", dict(MODELS["tiny"].credit), help="what PPO pays a reply for")
    options = parser.parse_args(arguments)
    settings = MODELS[options.model]
    if not options.report:
        disable_progress_bar()  # transformers shows one for each file that it loads
        run(settings, options)
    rows = imitation.rows_of(options.results, settings=settings.digest, tasks=options.tasks)
    print(table(rows))
    if rows:
        draw(rows, options.results.with_name(f"{options.results.stem}-{options.model}.png"))
    return 0


def policies(options: argparse.Namespace) -> Iterator[Policy]:
    """Yield the policies, those of a seed together; PPO starts from the one that imitates most, made careless."""
    for seed in options.seeds:
        if IMITATION in options.phases:
            yield from (Policy(IMITATION, seed, imitated) for imitated in options.imitated)
        if REINFORCEMENT in options.phases:
            yield Policy(REINFORCEMENT, seed, max(options.imitated))
            yield from (
                Policy(REINFORCEMENT, seed, max(options.imitated), options.sampled, credit) for credit in options.credit
            )


def run(settings: Settings, options: argparse.Namespace) -> None:
    """Train and play the policies that the results lack."""
    ends = time.monotonic() + 60 * options.minutes
    runs = Runs(settings, options.folder, options.tasks)
    for policy in policies(options):
        row = {"settings": settings.digest, **vars(policy), "tasks": options.tasks}
        if any(all(old[part] == row[part] for part in KEY) for old in curves.saved(options.results)):
            continue
        if time.monotonic() > ends:
            return
        curves.save(row | {"machine": processor(), **runs.score(policy)}, options.results, KEY)
        print(policy.name, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
