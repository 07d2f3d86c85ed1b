"""The main job for several seeds: does PPO reach the promised numbers, and how long does it take?

    python benchmarks/learning.py [--seeds 0,1,2] [key=value ...]

Runs `python -m trainers.ppo trainer.seed=S` for each seed, one after the other, and prints one row each.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from trainers.checkpoints import Checkpoints
from trainers.report.loggers import read_jsonl
from trainers.report.reporter import METRICS

#: What `make train` promises on held-out problems.
MOST_BEFORE, LEAST_AFTER, LEAST_GAIN, MOST_SECONDS = 0.60, 0.95, 0.30, 240.0


def run(seed: int, folder: Path, overrides: list[str]) -> dict[str, float]:
    """One run; its first and last validation, and its seconds of PPO."""
    command = [sys.executable, "-m", "trainers.ppo", f"trainer.seed={seed}", f"trainer.default_local_dir={folder}"]
    subprocess.run([*command, "trainer.resume_mode=disable", *overrides], check=True)
    validations = [metrics for _, metrics in read_jsonl(folder / METRICS) if "val/solved" in metrics]
    last = Checkpoints(folder / "checkpoints", keep=1).newest()
    assert last is not None
    first, final = validations[0], validations[-1]
    return {
        "solved_before": first["val/solved"],
        "solved_after": final["val/solved"],
        "first_before": first["val/first_reply"],
        "first_after": final["val/first_reply"],
        "seconds": float(last.state["trained_s"]),
    }


def good(row: dict[str, float]) -> bool:
    """Whether a seed keeps the promise."""
    return (
        row["solved_before"] <= MOST_BEFORE
        and row["solved_after"] >= LEAST_AFTER
        and row["first_after"] - row["first_before"] >= LEAST_GAIN
        and row["seconds"] <= MOST_SECONDS
    )


def main() -> int:
    """Run all seeds, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0, 1, 2], metavar="0,1,2"
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = {seed: run(seed, Path(folder) / str(seed), arguments.overrides) for seed in arguments.seeds}
    print("\nseed  solved          first reply     PPO")
    for seed, row in rows.items():
        print(
            f"{seed:>4}  {row['solved_before']:5.1%} -> {row['solved_after']:5.1%}  "
            f"{row['first_before']:5.1%} -> {row['first_after']:5.1%}  {row['seconds']:3.0f} s  "
            f"{'ok' if good(row) else 'MISSED'}"
        )
    return 0 if all(good(row) for row in rows.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
