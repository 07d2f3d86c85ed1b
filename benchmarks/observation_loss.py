"""Does predicting the environment help? Sampled tokens to a score, by the weight of ``actor.observation_loss``.

    python -m benchmarks.observation_loss [--weights 0,0.005,0.02,0.05] [--seeds 0,1,2] [--iterations 60]
                                          [--every 5] [--families service-desk,textworld,tau2] [--knowing no,yes]
                                          [--starts FOLDER] [--folder FOLDER] [--results FILE] [--report]
                                          [key=value ...]

The environments are the small form of `textenv/service-desk` of `benchmarks.fork_credit`, where the results of tools
and the customer's answers are what is predicted; TextWorld's coin game, where it is the rooms; and that of
`textenv/tau2` (it needs tau2's data), where it is the customer's answers and phone. All weights of a
seed start from the same policy, which is also `benchmarks.fork_credit`'s: it imitates the scripted expert, and then
learns a bad habit (to hand a case over too early; arbitrary commands). It has never learned a token that it did not
write itself. With `--knowing yes` it has: it is trained on episodes of its own, replies and observations alike, as a
language model has read much before. A score is the mean return of 96 held-out episodes at temperature 1; tokens are
those that the policy samples in training, until the mean of two validations reaches 90 % of the expert's score.

It resumes where it was stopped, also within a run: start the same command again. The results are a JSON line for each
run, with its curve; other runs' lines are kept. `--report` prints what the file has, and trains nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import curves
from benchmarks.credit.policies import started
from benchmarks.fork_credit.report import tokens_to
from benchmarks.fork_credit.runs import FAMILIES
from trainers.command_line import resolve
from trainers.config import SFTConfig
from trainers.models import tiny
from trainers.models.policy import load as load_policy
from trainers.ppo import publish
from trainers.rollout.demonstrations import Example
from trainers.sft import fit
from trainers.trajectory import Trajectory

#: By family: the learning rate.
CHOSEN = {"service-desk": "2e-4", "textworld": "3e-4", "tau2": "2e-4"}
#: What a run reports of its observations, by the last part of the metric's name.
REPORTED = ("observation_nll", "observation_gradient", "observation_share")
#: Batches of a policy's own episodes from which it learns what the environment says, and settings of that.
BATCHES = 6
LEARN = ("sft.steps=150", "sft.batch_size=16", "sft.lr=1e-3", "sft.lr_warmup_steps=10")
KNOWING = {"no": False, "yes": True}


def arguments_of(family: str, weight: float, options: argparse.Namespace) -> list[str]:
    """Return the overrides of a run, but for its seed, its policy and its folder."""
    often = (f"trainer.test_freq={options.every}", f"trainer.save_freq={options.every}")
    length = f"trainer.total_iterations={options.iterations}"
    own = (*FAMILIES[family].env, *FAMILIES[family].common, f"actor.lr={CHOSEN[family]}")
    return [*own, *curves.SETTINGS, *often, length, f"actor.observation_loss={weight:g}", *options.overrides]


async def own_episodes(words: Sequence[str]) -> list[Example]:
    """Play batches of episodes; return them as examples of which replies and observations are imitated."""
    episodes: list[Trajectory] = []
    with tempfile.TemporaryDirectory() as temporary:
        async with started([*words, "actor.observation_loss=1"], temporary) as run:
            for _ in range(BATCHES):
                batch = await run.collector.next_batch()
                episodes += [episode for episode in batch.trajectories if episode.actions.size]
                await publish(run, batch)  # the same weights: the next batch waits for an update
    return [curves.learned(one, (one.action_mask | one.observation_mask).astype(np.float32)) for one in episodes]


def start_of(family: str, seed: int, knowing: bool, options: argparse.Namespace) -> Path:
    """Return the policy that the runs of a seed start from, made unless it is there."""
    start = curves.start_of(family, seed, options.starts)
    folder: Path = options.starts / f"{family}-{seed}-knowing"
    if not knowing:
        return start
    if not folder.exists():
        env = (*FAMILIES[family].env, *FAMILIES[family].common)
        common = (*curves.SETTINGS, "warm_start.enable=false", f"trainer.seed={seed}", f"model.path={start}")
        examples = asyncio.run(own_episodes((*env, *common)))
        config = resolve([env[0], f"model.path={start}", "model.device=cpu", "trainer.threads=1", *LEARN], SFTConfig)[0]
        policy = load_policy(config.model, lambda: iter(()), max_context=curves.context_of(family), seed=seed)
        losses: list[float] = []
        section = (config.sft, config.model, config.trainer)
        fit(policy, examples, *section, seed=seed, on_step=lambda step, metrics: losses.append(metrics["loss"]))
        print(f"{folder}: loss {losses[0]:.2f} -> {np.mean(losses[-20:]):.2f} on {len(examples)} episodes", flush=True)
        unfinished = folder.with_suffix(".new")
        tiny.save(unfinished, policy.model, policy.tokenizer)
        unfinished.replace(folder)
    return folder


def run(family: str, knowing: bool, weight: float, seed: int, options: argparse.Namespace) -> None:
    """Make a run, or the rest of it, and save its line of the results."""
    folder = options.folder / f"{family}-{weight:g}-{seed}{'-knowing' if knowing else ''}"
    place = (f"trainer.seed={seed}", f"trainer.default_local_dir={folder}")
    start = f"model.path={start_of(family, seed, knowing, options)}"
    try:
        curves.call("trainers.ppo", *place, start, *arguments_of(family, weight, options))
    finally:  # what an interrupted run has measured is there, too
        if curves.measured(folder):
            curve, reported, _ = curves.curve_of(folder, *REPORTED)
            row = {"family": family, "knowing": knowing, "weight": weight, "seed": seed, "curve": curve}
            row |= {"tokens": tokens_to(row) if curve else None, **reported, "overrides": options.overrides}
            curves.save(row, options.results, ("family", "knowing", "weight", "seed"))


def report(rows: Sequence[dict[str, Any]]) -> None:
    """Print a line for each run."""
    print("family        knows  weight  seed  tokens to 90 %  score           cross-entropy    share of the gradient")
    for row in sorted(rows, key=lambda row: (row["family"], row["knowing"], row["weight"], row["seed"])):
        if not row["curve"]:
            continue
        nll, share = row["observation_nll"], row["observation_gradient"]
        tokens = "-" if row["tokens"] is None else f"{row['tokens']:,.0f}"
        knows = "yes" if row["knowing"] else "no"
        scores = f"{row['curve'][0][1]:+.2f} -> {row['curve'][-1][1]:+.2f}"
        print(
            f"{row['family']:<12}  {knows:<5}  {row['weight']:<6g}  {row['seed']:>4}  {tokens:>14}  {scores}  "
            + (f"{nll[0]:.3f} -> {nll[-1]:.3f}  {share[0]:.2f} -> {share[-1]:.2f}" if nll else "")
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, write the results, print the table."""
    parser = curves.parser_of("observation_loss", __doc__, iterations=60, every=5)
    weights: dict[str, Any] = {"type": lambda text: [*map(float, text.split(","))], "metavar": "0,0.005,..."}
    parser.add_argument("--weights", default=[0.0, 0.005, 0.02, 0.05], **weights)
    curves.add_choice(parser, "--families", CHOSEN)
    curves.add_choice(parser, "--knowing", KNOWING, help="whether the policy has learned to predict the environment")
    curves.add_starts(parser)
    options = parser.parse_args(arguments)
    if not options.report:
        choices = (options.knowing, options.seeds, options.weights)
        for family, (knows, seed, weight) in itertools.product(options.families, itertools.product(*choices)):
            run(family, KNOWING[knows], weight, seed, options)
    report(curves.saved(options.results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
