"""The main job for several seeds, or engines: does PPO reach the promised numbers, and how long does it take?

    python benchmarks/learning.py [--seeds 0,1,2] [--engines torch,vllm,sglang] [--start FOLDER] [key=value ...]

Runs `python -m trainers.ppo trainer.seed=S` for each seed, one after the other, and prints one row each. With engines,
each seed is warmed up once, and every engine trains from that same policy; `--start` brings a policy along instead.
The limit of time is that of the embedded engine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trainers.checkpoints import Checkpoints
from trainers.report.loggers import METRICS_FILE, read_jsonl

#: What `make train` promises on held-out problems; docs/results.md has what it reached.
MOST_BEFORE, LEAST_AFTER, LEAST_GAIN, MOST_SECONDS = 0.60, 0.85, 0.30, 300.0

#: Of the engines that need one of their own; `make venv-vllm venv-sglang` makes them.
PYTHONS = {name: Path(f".venv-{name}/bin/python") for name in ("vllm", "sglang")}


#: The policy of a warm start, in its folder.
START = Path("checkpoints/iteration_000000/model")


def ppo(seed: int, folder: Path, overrides: list[str]) -> None:
    """Make a run in ``folder``, afresh."""
    command = [sys.executable, "-m", "trainers.ppo", f"trainer.seed={seed}", f"trainer.default_local_dir={folder}"]
    subprocess.run([*command, "trainer.resume_mode=disable", *overrides], check=True)


def warm_start(seed: int, folder: Path, overrides: Sequence[str]) -> Path:
    """Return the policy that this seed's run starts from, made unless it is there; one iteration is thrown away.

    Raises:
        SystemExit: The folder has one that was made with other options: runs that go on from it would be of neither.
    """
    model, record = folder / START, folder / "made_with.json"
    made_with = [f"trainer.seed={seed}", *overrides]
    if model.exists():
        if record.exists() and (other := json.loads(record.read_text())) != made_with:
            changed = sorted({*other} ^ {*made_with}) or ["the order of its options"]
            raise SystemExit(f"{folder} was made with other options ({', '.join(changed)}): remove it, or use another")
        return model
    folder.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(made_with))
    once = ("trainer.total_iterations=1", "trainer.val_before_train=false", "trainer.keep_last_n=2")
    ppo(seed, folder, [*overrides, *once, "data.val_size=1"])
    return model


def validations(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """Return the iterations at which a run was validated, with their metrics."""
    return [(step, metrics) for step, metrics in read_jsonl(folder / METRICS_FILE) if "val/solved" in metrics]


def seconds_of_ppo(folder: Path) -> float:
    last = Checkpoints(folder / "checkpoints", keep=1).newest()
    assert last is not None
    return float(last.state["trained_s"])


def before_and_after(folder: Path) -> dict[str, float]:
    """Return the first and the last validation of a run."""
    (_, first), *_, (_, last) = validations(folder)
    return {
        "solved_before": first["val/solved"],
        "solved_after": last["val/solved"],
        "first_before": first["val/first_reply"],
        "first_after": last["val/first_reply"],
    }


def learned(row: dict[str, float]) -> bool:
    """Return whether a run keeps the promise, however long it took."""
    return (
        row["solved_before"] <= MOST_BEFORE
        and row["solved_after"] >= LEAST_AFTER
        and row["first_after"] - row["first_before"] >= LEAST_GAIN
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0, 1, 2], metavar="0,1,2"
    )
    parser.add_argument("--engines", type=lambda text: text.split(","), metavar="torch,vllm,sglang")
    for engine in PYTHONS:
        parser.add_argument(f"--{engine}-python", type=Path, default=PYTHONS[engine], help=f"the one that has {engine}")
    parser.add_argument("--start", type=Path, help="train from this policy; no warm start")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_args()
    rows: dict[tuple[int, str], dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for seed in arguments.seeds:
            folder = Path(temporary) / str(seed)
            overrides, start = list(arguments.overrides), arguments.start
            if start is None and arguments.engines:
                start = warm_start(seed, folder / "start", overrides)
            if start is not None:
                overrides = [
                    override for override in overrides if not override.startswith("warm_start.")
                ]  # those were for it
                overrides += [f"model.path={start}", "actor.entropy_coeff=0.01"]  # as for the model from scratch
            for engine in arguments.engines or ["torch"]:
                chosen = [f"engine.name={engine}"]
                if engine in PYTHONS:
                    chosen.append(f"engine.{engine}.python={getattr(arguments, f'{engine}_python').absolute()}")
                ppo(seed, folder / engine, [*overrides, *chosen])
                rows[seed, engine] = before_and_after(folder / engine) | {"seconds": seconds_of_ppo(folder / engine)}
    print("\nseed  engine  solved          first reply     PPO")
    promise_kept = True
    for (seed, engine), row in rows.items():
        row_passed = learned(row) and (row["seconds"] <= MOST_SECONDS or engine != "torch")
        promise_kept = promise_kept and row_passed
        print(
            f"{seed:>4}  {engine:<6}  {row['solved_before']:5.1%} -> {row['solved_after']:5.1%}  "
            f"{row['first_before']:5.1%} -> {row['first_after']:5.1%}  {row['seconds']:3.0f} s  "
            f"{'ok' if row_passed else 'MISSED'}"
        )
    return 0 if promise_kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
