"""A curriculum on a level that is hardly ever solved at first: sampled tokens until half of its problems are.

    python -m benchmarks.curriculum [--seeds 0,1,2] [--kinds hard,fixed,curriculum] [--folder FOLDER] [--workers N]
                                    [--minutes M] [key=value ...]

The environment is a small form of `textenv/gsm8k-interact` that a tiny policy learns within minutes: chains of short
sentences that add and take away, one of them at the level easy, two at medium, four at hard. For each seed a policy
imitates the expert on all three, and then gets the habit of leaving sums out, with about the same chance at any level.
Of the hard level it solves a few percent then, mostly where what is left out cancels. From that same policy run, with
the same keys: `hard`, which trains on the hard level alone; `fixed`, an even mixture of the three levels; `curriculum`,
the mixture with `env.curriculum.kind=signal`; and, with `--kinds`, `reverse`, which is that with a quarter of the
groups begun in the middle of an episode. All are validated on held-out hard problems every `--chunk` iterations, and
end when `--target` of these are solved, or after `--iterations`. Tokens are all that were sampled in training, of any
level.

It resumes where it was stopped: start the same command again. Results are written after every chunk. `--workers` makes
so many chunks of different runs side by side; `--minutes` begins no chunk after so many.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import numpy as np

from benchmarks import learning
from benchmarks.parallel import finished
from textenvs.data.word_problems import GeneratedMath, Problem, short_sentences
from textenvs.envs.gsm8k import Gsm8kInteract
from textenvs.task import Split
from trainers.report.loggers import METRICS_FILE, read_jsonl

#: The target: the level starts below this, and the curriculum needs at most this share of the tokens.
MOST_AT_FIRST, MOST_TOKENS = 0.05, 0.6

#: Sentences of a problem, by level.
STEPS = {"easy": 1, "medium": 2, "hard": 4}
#: The habit that a policy starts with: the chance that it leaves out a sum.
LEFT_OUT = 0.7


@dataclass(frozen=True)
class Chains(GeneratedMath):
    """Problems of ``steps`` short sentences each."""

    steps: int = 1

    @property
    def name(self) -> str:
        return f"chains of {self.steps} ({self.split}, seed {self.seed})"

    def _writer(self, rng: random.Random) -> tuple[Callable[[random.Random], Problem], str]:
        return partial(short_sentences, self.steps), "chain"


class ChainsInteract(Gsm8kInteract):
    """`gsm8k-interact` about them, with one attempt: where answers are small numbers, three attempts guess many.

    A careless reply leaves out each sum with the probability ``LEFT_OUT``, and those that would fall below zero.
    """

    def __init__(self, *, steps: int = 1, split: Split = "train", **options: Any) -> None:
        super().__init__(Chains(split=split, steps=steps, seed=steps), max_assistant_turns=1, **options)

    def careless_reply(self, rng: np.random.Generator) -> str:
        sums = re.findall(r"^(\d+)([+-]\d+)=", self.demonstration(rng), re.MULTILINE)
        have, lines = int(sums[0][0]), []
        for _, change in sums:
            after = have + int(change)
            if after >= 0 and rng.random() >= LEFT_OUT:
                lines.append(f"{have}{change}={after}")
                have = after
        return "\n".join([*lines, f"#### {have}"])


gymnasium.register("curriculum/chains-v0", entry_point=ChainsInteract)

ENV = "benchmarks.curriculum:curriculum/chains-v0"
LEVELS = [
    key
    for level, steps in STEPS.items()
    for key in (f"env.mixture.{level}.id={ENV}", f"env.mixture.{level}.kwargs.steps={steps}")
]
ONE_THREAD = ("model.device=cpu", "trainer.threads=1", "engine.threads=1")
#: Overrides for the policies to start from.
START = [
    *LEVELS,
    *("warm_start.enable=true", "warm_start.steps=1000", "warm_start.demonstrations=64000", "warm_start.lr=2e-3"),
    *("warm_start.careless_rate=0.99", "warm_start.careless_steps=100"),
]
KINDS = {
    "hard": [f"env.id={ENV}", f"env.kwargs.steps={STEPS['hard']}"],
    "fixed": LEVELS,
    "curriculum": [*LEVELS, "env.curriculum.kind=signal"],
    "reverse": [*LEVELS, "env.curriculum.kind=signal", "env.curriculum.reverse_share=0.25"],
}
TRAIN = [
    *("actor.lr_schedule=constant", "trainer.test_freq=-1", "trainer.logger=jsonl"),
    *("data.val_size=400", "trainer.keep_last_n=1", "trainer.save_freq=-1"),
]


#: A chunk of a run, or (kind ``start``) the policy that all runs of a seed start from.
Work = tuple[int, str]


def ppo(seed: int, folder: Path, options: list[str]) -> None:
    """Resume the run in ``folder``, or start it."""
    command = [sys.executable, "-m", "trainers.ppo", f"trainer.seed={seed}", f"trainer.default_local_dir={folder}"]
    subprocess.run([*command, *ONE_THREAD, *options], check=True)


def start_of(seed: int, folder: Path) -> Path:
    """Return the folder of the policy that all runs of this seed start from."""
    return folder / f"start{seed}" / learning.START


def do(work: Work, arguments: argparse.Namespace) -> None:
    """Make a policy to start from, or a run's next chunk."""
    seed, kind = work
    if kind == "start":
        warm = [
            override for override in arguments.overrides if override.startswith(("warm_start.", "model.", "engine."))
        ]
        learning.warm_start(1000 + seed, arguments.folder / f"start{seed}", [*ONE_THREAD, *START, *warm])
        return
    overrides = [override for override in arguments.overrides if not override.startswith(("warm_start.", "model."))]
    model, folder = start_of(seed, arguments.folder), arguments.folder / f"{kind}{seed}"
    curve = curve_of(folder)
    ahead = min((int(curve[-1]["iteration"]) if curve else 0) + arguments.chunk, arguments.iterations)
    ppo(seed, folder, [f"model.path={model}", *TRAIN, *KINDS[kind], *overrides, f"trainer.total_iterations={ahead}"])


def row_of(seed: int, kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return a run so far: its curve, and ``tokens`` to the target."""
    curve = curve_of(arguments.folder / f"{kind}{seed}")
    return {"seed": seed, "kind": kind, "curve": curve, "tokens": tokens_to(curve, arguments.target)}


def ready(rows: list[dict[str, Any]], arguments: argparse.Namespace) -> list[Work]:
    """Return the next work of each run that has not ended; those that are furthest behind first."""
    unfinished = [row for row in rows if row["tokens"] is None]
    unfinished = [row for row in unfinished if not row["curve"] or row["curve"][-1]["iteration"] < arguments.iterations]
    unfinished.sort(key=lambda row: len(row["curve"]))
    has_start = {row["seed"]: start_of(row["seed"], arguments.folder).exists() for row in unfinished}
    return list(dict.fromkeys((row["seed"], row["kind"] if has_start[row["seed"]] else "start") for row in unfinished))


def curve_of(folder: Path) -> list[dict[str, float]]:
    """Return for each validation: iterations, tokens sampled in training so far, share of hard problems solved."""
    curve, tokens = [], 0.0
    if not (folder / METRICS_FILE).exists():
        return curve
    for step, metrics in read_jsonl(folder / METRICS_FILE):
        if "train/response_tokens" in metrics:
            tokens += metrics["train/response_tokens"] * metrics["train/episodes"]
        if "val/solved" in metrics:
            solved = metrics.get("val/mixture/hard/solved", metrics["val/solved"])
            curve.append({"iteration": step, "tokens": tokens, "solved": solved})
    return curve


def tokens_to(curve: list[dict[str, float]], target: float) -> float | None:
    """Return the tokens at which the line between validations first reaches the target; ``None`` if it does not."""
    for before, after in zip([None, *curve], curve, strict=False):
        if after["solved"] >= target:
            if before is None:
                return after["tokens"]
            part = (target - before["solved"]) / (after["solved"] - before["solved"])
            return before["tokens"] + part * (after["tokens"] - before["tokens"])
    return None


def verdict(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians over seeds, and each kind's share of the tokens that the hard level alone takes.

    Where the hard level alone does not arrive, its tokens so far count, so that the share is at most this.
    """
    summary: dict[str, Any] = {}
    most = {row["seed"]: row["curve"][-1]["tokens"] for row in rows if row["kind"] == "hard" and row["curve"]}
    plain = {
        row["seed"]: row["tokens"] or most[row["seed"]] for row in rows if row["seed"] in most and row["kind"] == "hard"
    }
    for kind in dict.fromkeys(row["kind"] for row in rows):
        of_kind = [row for row in rows if row["kind"] == kind and row["curve"]]
        ratios = [row["tokens"] / plain[row["seed"]] for row in of_kind if row["tokens"] and row["seed"] in plain]
        summary[kind] = {
            "reached": sum(row["tokens"] is not None for row in of_kind),
            "seeds": len(of_kind),
            "solved_at_first": median(row["curve"][0]["solved"] for row in of_kind) if of_kind else None,
            "tokens": median(reached) if (reached := [row["tokens"] for row in of_kind if row["tokens"]]) else None,
            "share_of_hard_alone": median(ratios) if len(ratios) == len(of_kind) and ratios else None,
        }
    return summary


def main() -> int:
    """Run all, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[0, 1, 2])
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=["hard", "fixed", "curriculum"])
    parser.add_argument("--folder", type=Path, default=Path("outputs/curriculum"), help="where the runs are")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/curriculum.json"))
    parser.add_argument("--iterations", type=int, default=300, help="at most, of each run")
    parser.add_argument("--chunk", type=int, default=10, help="iterations between two validations")
    parser.add_argument("--target", type=float, default=0.5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_args()
    rows = [row_of(seed, kind, arguments) for seed in arguments.seeds for kind in arguments.kinds]
    work, next_work = partial(do, arguments=arguments), partial(ready, rows, arguments)
    for (seed, kind), _ in finished(work, next_work, arguments.workers, arguments.minutes):
        rows[:] = [
            row_of(*key, arguments) if (key := (row["seed"], row["kind"])) == (seed, kind) else row for row in rows
        ]
        save(arguments, rows)
    for row in rows:
        if row["curve"]:
            first, last = row["curve"][0], row["curve"][-1]
            print(
                f"seed {row['seed']}  {row['kind']:<10}  {first['solved']:5.1%} -> {last['solved']:5.1%}"
                f"  after {last['iteration']} iterations"
            )
    summary = verdict(rows)
    for kind, figures in summary.items():
        tokens, share = figures["tokens"], figures["share_of_hard_alone"]
        print(
            f"{kind:<10}  reached {figures['reached']} of {figures['seeds']}  tokens {tokens and round(tokens)}  "
            f"share of hard alone {share and round(share, 2)}"
        )
    curriculum = summary.get("curriculum", {})
    share, first = curriculum.get("share_of_hard_alone"), curriculum.get("solved_at_first")
    return 0 if share is not None and share <= MOST_TOKENS and first < MOST_AT_FIRST else 1


def save(arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Write the results so far."""
    where = {
        "command": "python -m benchmarks.curriculum",
        "arguments": {name: getattr(arguments, name) for name in ("seeds", "kinds", "iterations", "chunk", "target")},
        "overrides": arguments.overrides,
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, one thread",
        "python": platform.python_version(),
    }
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    partial = arguments.results.with_suffix(".partial")
    partial.write_text(json.dumps(where | {"summary": verdict(rows), "runs": rows}, indent=1) + "\n")
    partial.replace(arguments.results)


if __name__ == "__main__":
    raise SystemExit(main())
