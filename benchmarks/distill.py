"""Does a policy learn faster from itself, told more? Sampled tokens to 80 % of the expert, by teacher and rewards.

    python -m benchmarks.distill [--families clarify,collab-math,service-desk] [--methods rl,distill,both,sft]
                                 [--seeds 0,1,2] [--iterations 40] [--every 4] [--folder FOLDER] [--results FILE]
                                 [--report] [key=value ...]

The environments are the small forms of `benchmarks.fork_credit`. The privileged context (`actor.distill.context`) is
the user's goal on `clarify` and `collab-math`, and the scripted expert's next move on `service-desk`. All methods of a
seed start from the same policy: it imitates the expert where it sees the privileged text, and mostly careless replies
where it does not. So it can teach itself, which a model of this size could not without having seen such texts.

`rl` has rewards alone (`turn_grpo`), `distill` the teacher alone, `both` the sum of their advantages. The teacher is
the policy that the run began with. `sft` trains on the expert's episodes for as many seconds as `distill` took, from
the same policy, and samples nothing: its score is that of the end. A score is the mean return of 96 held-out episodes
at temperature 1, and counts as reached where the mean of two validations is 80 % of the expert's.

It resumes where it was stopped, also within a run: start the same command again. The results are a JSON line for each
run, with its curve; other runs' lines are kept. `--report` prints what the file has, and trains nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from benchmarks import curves
from benchmarks.fork_credit.report import tokens_to
from benchmarks.fork_credit.runs import FAMILIES
from textenvs.messages import Messages
from textenvs.privileged import Privilege, with_privileged

SHARE = 0.8  #: of the expert's score
KEY = ("family", "method", "seed")  #: of a run, in its line of the results
CONTEXTS: dict[str, Privilege] = {"clarify": "goal", "collab-math": "goal", "service-desk": "expert"}
METHODS = {
    "rl": (),
    "distill": ("actor.distill.teacher=reference", "actor.distill.rewards=false"),
    "both": ("actor.distill.teacher=reference",),
    "sft": (),
}
#: Of the policy to start from: episodes and the share of careless replies where it sees no privileged text.
EPISODES, CARELESS = 3000, 0.85
START = ("sft.batch_size=32", "sft.lr=2e-3", "sft.steps=1500")
TRAIN = (*curves.SETTINGS, "actor.lr=2e-4", "warm_start.enable=false")


def states(family: str, seed: int, episodes: int) -> Iterator[tuple[Messages, Messages, str, str]]:
    """Yield states of episodes with careless and good replies: as policy and teacher see them, and both replies."""
    env: Any = gymnasium.make(FAMILIES[family].env[0].removeprefix("env.id=")).unwrapped
    for number in range(episodes):
        rng = np.random.default_rng((seed, number))
        observation, _ = env.reset(seed=int(rng.integers(2**31)))
        done = False
        while not done:
            text = env.privileged(CONTEXTS[family], np.random.default_rng(number))
            good, careless = (str(hook(rng)) for hook in (env.demonstration, env.careless_reply))
            yield observation, with_privileged(observation, CONTEXTS[family], text), good, careless
            observation, _, terminated, truncated, _ = env.step(careless if rng.random() < CARELESS / 2 else good)
            done = terminated or truncated


def row_of_file(messages: Messages, reply: str) -> str:
    """Return a line of demonstrations in which the last reply alone is imitated."""
    whole = [*messages, {"role": "assistant", "content": reply}]
    replies = sum(message["role"] == "assistant" for message in whole)
    return json.dumps({"messages": whole, "weights": [*[0] * (replies - 1), 1]})


def start_of(family: str, seed: int, options: argparse.Namespace) -> Path:
    """Return the policy that the runs of a seed start from, made unless it is there."""
    folder = options.folder / f"start-{family}-{seed}"
    if not (folder / "model").exists():
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(seed)
        rows = []
        for policy_view, teacher_view, good, careless in states(family, seed, options.episodes):
            reply = careless if rng.random() < CARELESS else good
            rows += [row_of_file(teacher_view, good), row_of_file(policy_view, reply)]
        (folder / "states.jsonl").write_text("\n".join(rows), encoding="utf-8")
        sft(family, seed, folder, folder / "states.jsonl", *START, *options.start)
    return folder / "model"


def sft(family: str, seed: int, folder: Path, file: Path, *words: str) -> float:
    """Train on demonstrations; return the seconds of the command."""
    common = ("trainer.threads=1", "model.device=cpu", "trainer.logger=[jsonl,console]", *FAMILIES[family].env)
    common += (f"trainer.seed={seed}", f"sft.files={file}")
    length = f"sft.max_context={4 * curves.context_of(family)}"
    began = time.perf_counter()
    curves.call("trainers.sft", *common, length, f"trainer.default_local_dir={folder}", *words)
    return time.perf_counter() - began


def run(family: str, method: str, seed: int, options: argparse.Namespace) -> None:
    """Make a run, or the rest of it, and save its line of the results."""
    folder, start = options.folder / f"{family}-{method}-{seed}", start_of(family, seed, options)
    words = (*FAMILIES[family].env, *FAMILIES[family].common, *TRAIN, *options.overrides)
    place = (f"trainer.seed={seed}", f"trainer.default_local_dir={folder}")
    row: dict[str, Any] = {"family": family, "method": method, "seed": seed, "overrides": options.overrides}
    row["start"] = options.start
    if method == "sft":
        if not curves.measured(folder):
            model = sft_of_same_seconds(family, seed, start, options)
            curves.call("trainers.ppo", *words, *place, f"model.path={model}", "trainer.val_only=true")
        curves.save(row | {"curve": curves.curve_of(folder)[0]}, options.results, KEY)
        return
    more = METHODS[method]
    more += (f"actor.distill.context={CONTEXTS[family]}",) if more else ()
    often = (f"trainer.test_freq={options.every}", f"trainer.save_freq={options.every}")
    length = f"trainer.total_iterations={options.iterations}"
    try:
        curves.call("trainers.ppo", *words, *place, f"model.path={start}", *often, length, *more)
    finally:  # what an interrupted run has measured is there, too
        if curves.measured(folder):
            curve, reported, seconds = curves.curve_of(folder, "teacher_kl")
            curves.save(row | {"curve": curve, **reported, "seconds": round(seconds, 1)}, options.results, KEY)


def sft_of_same_seconds(family: str, seed: int, start: Path, options: argparse.Namespace) -> Path:
    """Train the start on the expert's replies for the seconds of ``distill``; return the model.

    The time of a step is measured by two short trainings. RuntimeError: there is no such run yet.
    """
    done = [row for row in curves.saved(options.results) if (row["family"], row["method"]) == (family, "distill")]
    seconds = next((row["seconds"] for row in done if row["seed"] == seed), None)
    if seconds is None:
        raise RuntimeError(f"sft needs the seconds of distill on {family} with seed {seed}: run that method first")
    folder = options.folder / f"sft-{family}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [row_of_file(view, good) for view, _, good, _ in states(family, seed, options.episodes)]
    (folder / "states.jsonl").write_text("\n".join(rows), encoding="utf-8")
    words = ("sft.batch_size=32", "sft.lr=2e-4", f"model.path={start}")
    few, many = (
        sft(family, seed, folder / name, folder / "states.jsonl", *words, f"sft.steps={steps}")
        for name, steps in (("few", 10), ("many", 60))
    )
    steps = max(1, round(seconds / max((many - few) / 50, 1e-3)))
    sft(family, seed, folder, folder / "states.jsonl", *words, f"sft.steps={steps}")
    return folder / "model"


def report(rows: Sequence[dict[str, Any]]) -> None:
    """Print a line for each run."""
    print(f"family        method   seed  tokens to {SHARE:.0%}  score           KL to the teacher  seconds")
    for row in sorted(rows, key=lambda row: [row[name] for name in KEY]):
        if not row["curve"]:
            continue
        reached = tokens_to(row, SHARE)
        tokens = "-" if row["method"] == "sft" or reached is None else f"{reached:,.0f}"
        kl, curve = row.get("teacher_kl") or [], row["curve"]
        moved = f"{kl[0]:.3f} -> {kl[-1]:.3f}" if kl else ""
        print(
            f"{row['family']:<12}  {row['method']:<7}  {row['seed']:>4}  {tokens:>13}  {curve[0][1]:+.2f} -> "
            f"{curve[-1][1]:+.2f}  {moved:<17}  {row.get('seconds', '')}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, write the results, print the table."""
    parser = curves.parser_of("distill", __doc__, iterations=40, every=4)
    curves.add_choice(parser, "--families", CONTEXTS)
    curves.add_choice(parser, "--methods", METHODS)
    parser.add_argument("--episodes", type=int, default=EPISODES, help="demonstrations of the policy to start from")
    parser.add_argument("--start", nargs="*", default=[], metavar="key=value", help="of that policy's training")
    options = parser.parse_args(arguments)
    if not options.report:
        for family in options.families:
            for seed in options.seeds:
                for method in options.methods:
                    run(family, method, seed, options)
    report(curves.saved(options.results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
