"""Supervised training on a run's own good episodes: does it beat the policy that the run began with?

    python -m benchmarks.imitate_run FOLDER [key=value ...]

A short run of `python -m trainers.ppo` (its keys are key=value), `textenvs sft-data` on its episodes, `python -m
trainers.sft` on these from the checkpoint that the run began with, and `textenvs evaluate` of both on held-out tasks.
What FOLDER has already is not made again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.learning import START
from textenvs.evaluate.records import SUMMARY

#: 3 iterations are 384 episodes: enough to imitate, too few for PPO to change the policy much. The short warm start
#: leaves much to learn.
RUN = (
    *("env.kwargs.level=easy", "warm_start.demonstrations=1500", "warm_start.steps=150", "warm_start.batch_size=32"),
    *("trainer.total_iterations=3", "trainer.keep_last_n=9", "trainer.keep_rollouts=9", "data.val_size=1"),
)
SELECTION = ("--min-return", "0.99", "--best-per-task", "4")
SFT = ("sft.steps=60", "sft.batch_size=16", "sft.lr=0.0005", "sft.lr_warmup_steps=5", "sft.weight_decay=0.01")
EVALUATION = ("level=easy", "split=test", "--num-tasks", "200", "--seed", "1", "--max-response-length", "64", "--quiet")
ENV = "textenv/gsm8k-interact"


def python(*words: str | Path) -> None:
    subprocess.run([sys.executable, "-m", *map(str, words)], check=True)


def success(folder: Path) -> str:
    """Return the share of solved episodes of an evaluation, with its interval."""
    success = json.loads((folder / SUMMARY).read_text())["all"]["success"]
    return f"{success['value']:.1%} ({success['low']:.1%} to {success['high']:.1%})"


def main(words: list[str]) -> None:
    if not words or "=" in words[0]:
        raise SystemExit(__doc__)
    folder, *overrides = words
    run, rows, sft = Path(folder) / "run", Path(folder) / "good.parquet", Path(folder) / "sft"
    if not rows.exists():
        python("trainers.ppo", f"trainer.default_local_dir={run}", *RUN, *overrides)
        python("textenvs", "sft-data", run, "-o", rows, *SELECTION)
    models = {"start": run / START, "sft": sft / "model"}
    if not models["sft"].exists():
        python("trainers.sft", f"sft.files={rows}", f"model.path={models['start']}", *SFT,
               f"trainer.default_local_dir={sft}")  # fmt: skip
    for name, model in models.items():
        python("textenvs", "evaluate", ENV, "--local", model, *EVALUATION, "--out", Path(folder) / name)
    for name in models:
        print(f"{name}: solved {success(Path(folder) / name)}")


if __name__ == "__main__":
    main(sys.argv[1:])
