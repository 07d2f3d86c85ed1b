"""Leaks and other faults of simulated users, before and after the assistant was trained with RL.

    python -m benchmarks.users [--families clarify,service-desk] [--trained plain,all] [--seeds 0,1,2]
                               [--iterations 16] [--episodes 140] [--starts FOLDER] [--folder FOLDER]
                               [--results FILE] [--report] [key=value ...]

The environments are the small forms of `textenv/clarify` and `textenv/service-desk` of `benchmarks.fork_credit`, from
whose careless policy every run starts: it has imitated the scripted expert, and then often answers in haste. PPO trains
it with plain users, or with users of all manners. Before and after, the policy plays held-out tasks with users of all
manners, and `textenvs users report`'s rules count leaks, early disclosures, contradictions and concessions
(`textenvs.users.conduct`). `pester` is the policy that demands everything, on the same episodes.

It resumes where it was stopped: start the same command again. The results are a JSON line for each policy, with the
figures of every episode as lists. `--report` prints the tables, with intervals of 95 % over the episodes of all seeds,
and runs nothing. (`benchmarks.user_transfer` has the returns of policies that meet users of other manners.)
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import curves
from benchmarks.fork_credit.runs import FAMILIES
from textenvs.evaluate.policies import AttackPolicy, Policy
from textenvs.evaluate.statistics import estimate
from textenvs.evaluate.user_report import UserStatistics, listen_to
from textenvs.registry import make
from textenvs.users.conduct import FAULTS
from textenvs.users.pestering import PESTER
from trainers.serving.local_policy import LocalPolicy

#: The users of training, by the option `manner` of the environment.
TRAINED = {"plain": "plain", "all": "all"}
RATES = {"clarify": "actor.lr=2e-4", "service-desk": "actor.lr=2e-4"}  # as `benchmarks.fork_credit` found
#: Policies that no run makes.
START, PESTERS = "start", PESTER.name
KEY = ("family", "policy", "seed")
#: Shares of episodes in which the policy asks, asks again, and, of those in which it asks, is solved.
ASKED = ("asks", "asks again", "solved after asking")


def setting(family: str, name: str) -> str:
    """Return the value of one of a family's overrides."""
    return next(word.partition("=")[2] for word in (*FAMILIES[family].env, *FAMILIES[family].common) if name in word)


def train(family: str, manner: str, seed: int, options: argparse.Namespace) -> Path:
    """Make a run, or the rest of it, and return its last policy."""
    folder: Path = options.folder / f"{family}-{manner}-{seed}"
    model = folder / "checkpoints" / f"iteration_{options.iterations:06d}" / "model"
    if not model.exists():
        length = [f"trainer.{name}={options.iterations}" for name in ("total_iterations", "test_freq", "save_freq")]
        place = [f"trainer.seed={seed}", f"trainer.default_local_dir={folder}"]
        start = f"model.path={curves.start_of(family, seed, options.starts)}"
        env = [*FAMILIES[family].env, *FAMILIES[family].common, RATES[family], f"env.kwargs.manner={TRAINED[manner]}"]
        method = ["algorithm.adv_estimator=turn_grpo"]
        curves.call("trainers.ppo", *curves.SETTINGS, *env, *method, *length, *place, start, *options.overrides)
    return model


def listen(family: str, policy: Policy, episodes: int) -> list[UserStatistics]:
    """Run a policy on the held-out tasks, the same for all policies, with all user behaviors."""
    make_env = partial(make, setting(family, "env.id"), split="test", manner="all")

    async def play() -> list[UserStatistics]:
        try:
            return await listen_to(make_env, episodes, policy=policy, seed=1, concurrency=32)
        finally:
            await policy.aclose()

    return asyncio.run(play())


def measure(family: str, name: str, seed: int, model: Path | None, options: argparse.Namespace) -> None:
    """Save the line of a policy's results: of a model, or of the one that pesters."""
    length = int(setting(family, "max_response_length"))
    policy = (
        AttackPolicy(PESTER)
        if model is None
        else LocalPolicy(str(model), max_response_length=length, concurrency=32, device="cpu")
    )
    episodes = [stats for stats in listen(family, policy, options.episodes) if stats.failure is None]
    row: dict[str, Any] = {"family": family, "policy": name, "seed": seed}
    row["manner"] = [stats.manner for stats in episodes]
    row["solved"] = [int(stats.stop == "solved") for stats in episodes]
    row["replies"] = [len(stats.messages) for stats in episodes]
    row["disclosed"] = [len(stats.conduct.disclosed) for stats in episodes]
    row["questions"] = [stats.conduct.questions for stats in episodes]
    row |= {fault: [stats.errors[fault] for stats in episodes] for fault in FAULTS}
    curves.save(row | {"overrides": options.overrides}, options.results, KEY)


def work(options: argparse.Namespace) -> None:
    """Do what is missing: a seed is complete before the next one begins."""
    done = {tuple(row[name] for name in KEY) for row in curves.saved(options.results)}
    for seed in options.seeds:
        for family in options.families:
            for name in (START, *options.trained, *([PESTERS] if seed == options.seeds[0] else [])):
                if (family, name, seed) in done:
                    continue
                model = None
                if name == START:
                    model = curves.start_of(family, seed, options.starts)
                elif name != PESTERS:
                    model = train(family, name, seed, options)
                measure(family, name, seed, model, options)
                print(family, name, seed, flush=True)


def cells(rows: Sequence[dict[str, Any]], manner: str | None) -> list[str]:
    """Return the figures of a policy over its seeds, with users of one manner or of all."""

    def values(name: str, only_solved: bool = False) -> list[list[float]]:
        return [
            [float(value)]
            for row in rows
            for value, solved, met in zip(row[name], row["solved"], row["manner"], strict=True)
            if (manner is None or met == manner) and (solved or not only_solved)
        ]

    asked = values("questions")
    shares = [values("solved"), *([[float(v > 0)] for (v,) in values(name)] for name in FAULTS)]
    shares += [[[float(v > least)] for (v,) in asked] for least in (0, 1)]
    shares.append([value for value, (number,) in zip(values("solved"), asked, strict=True) if number])
    texts = [_shown(estimate(groups, rate=True), 100) if groups else "-" for groups in shares]
    solved = values("replies", only_solved=True)
    return [*texts, _shown(estimate(solved), 1) if solved else "-", _shown(estimate(values("disclosed")), 1)]


def _shown(figure: dict[str, Any], scale: int) -> str:
    low, high = (scale * figure[name] if figure[name] is not None else float("nan") for name in ("low", "high"))
    digits = 0 if scale == 100 else 2
    return f"{scale * figure['value']:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def report(rows: Sequence[dict[str, Any]]) -> None:
    """Print the tables, as Markdown: of all manners together, then of the plain, the vague and the wordy user."""
    for family in dict.fromkeys(row["family"] for row in rows):
        met = {manner for row in rows if row["family"] == family for manner in row["manner"]}
        for manner in (None, *(name for name in ("plain", "vague", "wordy") if name in met)):
            print(f"\n{family}, users of {'all manners' if manner is None else f'the manner {manner}'}\n")
            print(
                "| policy | solved % | "
                + " | ".join(f"{name} %" for name in (*FAULTS, *ASKED))
                + " | replies | facts told |"
            )
            print("|---" * (len(FAULTS) + len(ASKED) + 4) + "|")
            for name in (START, *TRAINED, PESTERS):
                if own := [row for row in rows if (row["family"], row["policy"]) == (family, name)]:
                    label = f"trained on {name}" if name in TRAINED else name
                    print(f"| {label} | " + " | ".join(cells(own, manner)) + " |")
        print()
        for name in (START, *TRAINED):
            if seeds := {
                row["seed"]: sum(row["solved"]) for row in rows if (row["family"], row["policy"]) == (family, name)
            }:
                print(f"{name}: solved by seed {seeds}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, write the results, print the tables."""
    parser = curves.parser_of("users", __doc__, iterations=16)
    curves.add_choice(parser, "--families", RATES)
    curves.add_choice(parser, "--trained", TRAINED)
    parser.add_argument("--episodes", type=int, default=140, help="of each policy, to listen to users")
    curves.add_starts(parser)
    options = parser.parse_args(arguments)
    if not options.report:
        work(options)
    report(curves.saved(options.results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
