"""Supervised training on a run's own good episodes: does it beat the policy that the run began with?

    python -m benchmarks.imitate_run [--seeds 0,1,2] [--iterations 4] [--starts FOLDER] [--folder FOLDER]
                                     [--results FILE] [--report] [key=value ...]

For each seed a short run of `python -m trainers.ppo` on the small form of `textenv/service-desk` of
`benchmarks.fork_credit`, from its careless policy; `textenvs sft-data` on the run's episodes; `python -m trainers.sft`
on these, from the policy that the run began with; then the scores of both, and of the run's last policy, which are mean
returns of 96 held-out episodes at temperature 1. It resumes where it was stopped: start the same command again. The
results are a JSON line for each seed. `--report` prints what the file has, and trains nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import curves
from benchmarks.fork_credit.runs import FAMILIES

FAMILY = "service-desk"
#: The run keeps all its episodes; its rate is that of `benchmarks.reaction_credit`.
RUN = (*curves.SETTINGS, "trainer.keep_rollouts=99", "actor.lr=2e-4", "warm_start.enable=false")
SELECTION = ("--min-return", "0.99", "--best-per-task", "2")
SFT = ("sft.steps=40", "sft.batch_size=16", "sft.lr=0.0005", "sft.lr_warmup_steps=5", "sft.max_context=640")


def run(seed: int, options: argparse.Namespace) -> None:
    """Make what is missing of a seed, and save its line of the results."""
    folder: Path = options.folder / str(seed)
    start = curves.start_of(FAMILY, seed, options.starts)
    env = (*FAMILIES[FAMILY].env, *FAMILIES[FAMILY].common, f"trainer.seed={seed}", *options.overrides)
    length = (f"trainer.total_iterations={options.iterations}", f"trainer.test_freq={options.iterations}")
    place = f"trainer.default_local_dir={folder / 'run'}"
    curves.call("trainers.ppo", *env, *RUN, *length, place, f"model.path={start}")
    rows, model = folder / "good.jsonl", folder / "sft" / "model"
    words = (str(folder / "run"), "-o", str(rows), *SELECTION)
    subprocess.run([sys.executable, "-m", "textenvs", "sft-data", *words], check=True)
    if not model.exists():
        words = (FAMILIES[FAMILY].env[0], "trainer.threads=1", "model.device=cpu", f"trainer.seed={seed}")
        data = (f"sft.files={rows}", f"model.path={start}", *SFT)
        curves.call("trainers.sft", *words, *data, f"trainer.default_local_dir={folder / 'sft'}")
    score = folder / "score"
    if not curves.measured(score):
        place = f"trainer.default_local_dir={score}"
        curves.call("trainers.ppo", *env, *RUN, place, f"model.path={model}", "trainer.val_only=true")
    before, *_, after = (value for _, value in curves.curve_of(folder / "run")[0])
    [[_, imitating]] = curves.curve_of(score)[0]
    episodes = len(rows.read_text().splitlines())
    row = {"family": FAMILY, "seed": seed, "episodes": episodes, "start": before, "sft": imitating, "run": after}
    curves.save(row | {"overrides": options.overrides}, options.results, ("family", "seed"))


def report(rows: Sequence[dict[str, Any]]) -> None:
    """Print a line for each seed."""
    print("environment   seed  good episodes  start  after sft  the run's end")
    for row in sorted(rows, key=lambda row: row["seed"]):
        scores = f"{row['start']:>5.3f}  {row['sft']:>9.3f}  {row['run']:>13.3f}"
        print(f"{row['family']:<12}  {row['seed']:>4}  {row['episodes']:>13}  {scores}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, write the results, print the table."""
    parser = curves.parser_of("imitate_run", __doc__, iterations=4)
    curves.add_starts(parser)
    options = parser.parse_args(arguments)
    if not options.report:
        for seed in options.seeds:
            run(seed, options)
    report(curves.saved(options.results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
