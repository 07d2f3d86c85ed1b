"""Does the user's reaction teach? Sampled tokens to a score, with reaction credit and with its controls.

    python -m benchmarks.reaction_credit [--families service-desk,clarify] [--arms off,true,shuffled,reversed]
                                         [--seeds 0,1,2] [--weight 0.5] [--iterations 60] [--every 5]
                                         [--starts FOLDER] [--folder FOLDER] [--results FILE] [--report] [key=value ...]

The environments are the small forms of `textenv/service-desk` and `textenv/clarify` of `benchmarks.fork_credit`, whose
scripted users name their moves. `off` is the estimator alone; `true` adds `algorithm.reaction_credit`; `shuffled` adds
it with the moves of a batch exchanged among its turns, and `reversed` with the other sign. If `shuffled` learns as
`true` does, the moves say nothing; if `reversed` does, the size of the advantages is what counts. All arms of a seed
start from the same policy, which is also `benchmarks.fork_credit`'s: it imitates the scripted expert, and then often
answers in haste. A score is the mean return of 96 held-out episodes at temperature 1; tokens are those that the policy
samples in training, until the mean of two validations reaches 90 % of the expert's score.

It resumes where it was stopped, also within a run: start the same command again. The results are a JSON line for each
run, with its curve and its sign test; other runs' lines are kept. `--report` prints what the file has, and trains
nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from benchmarks import curves
from benchmarks.fork_credit.report import tokens_to
from benchmarks.fork_credit.runs import FAMILIES

#: The arms, with their value of `algorithm.reaction_credit.control`; `off` has no credit.
ARMS = {"off": None, "true": "none", "shuffled": "shuffled", "reversed": "reversed"}
#: The learning rates are those that `benchmarks.fork_credit` found for these environments.
RATES = {"service-desk": "actor.lr=2e-4", "clarify": "actor.lr=2e-4"}
#: What a run reports of its users' moves, by the last part of the metric's name.
REPORTED = ("reaction_agreement", "reaction_agreement_low", "reaction_agreement_high", "reaction_size")


def arguments_of(family: str, arm: str, options: argparse.Namespace) -> list[str]:
    """Return the overrides of a run, but for its seed, its policy and its folder."""
    often = (f"trainer.test_freq={options.every}", f"trainer.save_freq={options.every}")
    env = (*FAMILIES[family].env, *FAMILIES[family].common, RATES[family])
    credit = []
    if (control := ARMS[arm]) is not None:
        credit = [f"algorithm.reaction_credit.weight={options.weight:g}"]
        credit += [f"algorithm.reaction_credit.control={control}"] * (control != "none")
    length = f"trainer.total_iterations={options.iterations}"
    return [*curves.SETTINGS, *env, *often, length, *credit, *options.overrides]


def run(family: str, arm: str, seed: int, options: argparse.Namespace) -> None:
    """Make a run, or the rest of it, and save its line of the results."""
    folder = options.folder / f"{family}-{arm}-{seed}"
    place = (f"trainer.seed={seed}", f"trainer.default_local_dir={folder}")
    start = f"model.path={curves.start_of(family, seed, options.starts)}"
    try:
        curves.call("trainers.ppo", *place, start, *arguments_of(family, arm, options))
    finally:  # what an interrupted run has measured is there, too
        if curves.measured(folder):
            curve, reported, _ = curves.curve_of(folder, *REPORTED)
            row = {"family": family, "arm": arm, "seed": seed, "curve": curve}
            row |= {"tokens": tokens_to(row) if curve else None, **reported}
            row |= {"weight": options.weight, "overrides": options.overrides}
            curves.save(row, options.results, ("family", "arm", "seed"))


def report(rows: Sequence[dict[str, Any]]) -> None:
    """Print a line for each run."""
    print("environment   arm       seed  tokens to 90 %  score           sign test (first and last iteration)")
    for row in sorted(rows, key=lambda row: (row["family"], list(ARMS).index(row["arm"]), row["seed"])):
        if not row["curve"]:
            continue
        tokens = "-" if row["tokens"] is None else f"{row['tokens']:,.0f}"
        share, low, high = (row[name] for name in REPORTED[:3])
        signs = (f"{share[at]:.2f} ({low[at]:.2f} to {high[at]:.2f})" for at in (0, -1) if share)
        print(
            f"{row['family']:<12}  {row['arm']:<8}  {row['seed']:>4}  {tokens:>14}  {row['curve'][0][1]:+.2f} -> "
            f"{row['curve'][-1][1]:+.2f}  {', '.join(signs)}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, write the results, print the table."""
    parser = curves.parser_of("reaction_credit", __doc__, iterations=60, every=5)
    curves.add_choice(parser, "--families", RATES)
    curves.add_choice(parser, "--arms", ARMS)
    parser.add_argument("--weight", type=float, default=0.5, help="algorithm.reaction_credit.weight")
    curves.add_starts(parser)
    options = parser.parse_args(arguments)
    if not options.report:
        for seed in options.seeds:
            for family in options.families:
                for arm in options.arms:
                    run(family, arm, seed, options)
    report(curves.saved(options.results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
