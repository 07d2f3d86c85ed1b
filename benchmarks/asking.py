"""Does PPO learn to ask? A user that volunteers nothing, and as the control one that tells everything anyway.

    python benchmarks/asking.py [--families collab-math,clarify] [--seeds 0] [--folder FOLDER] [key=value ...]

For each family and seed a tiny policy is warmed up on scripts that sometimes ask and sometimes do not. From it PPO
starts twice. On `collab-math` (problems whose answer is told in three digits: asking decides, not arithmetic) the start
asks in about half of its turns and else says "Go on."; one run has today's user (`asks`), the other
`user_volunteers=true` (`control`). On `clarify` the start mostly answers at once; in the control every question costs
more than an answer earns. Printed, and drawn in one figure with a panel a family: the share of turns that ask, on
held-out tasks at temperature 1, over the iterations.

The folder keeps starts, runs and `asking.json`, `asking.png`; a run that is there is not repeated, so the command
resumes where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from learning import ppo

from textenvs.envs.collab.user import CollabUser
from textenvs.envs.collab_math import CollabMath
from textenvs.messages import user
from trainers.checkpoints import Checkpoints
from trainers.report.loggers import METRICS_FILE, read_jsonl

#: For each family: the environment of the warm start, of PPO, what is measured, and how the runs differ.
FAMILIES: dict[str, dict[str, Any]] = {
    "collab-math": {
        "start": (
            *("env.id=asking:asking/half-asking-v0", "warm_start.steps=1500", "warm_start.batch_size=32"),
            *("warm_start.demonstrations=48000", "warm_start.mistake_rate=0", "warm_start.careless_steps=0"),
        ),
        "train": ("env.id=textenv/collab-math", "trainer.total_iterations=30", "trainer.test_freq=5"),
        "both": ("env.kwargs.equality=value", "rollout.max_response_length=64", "engine.max_context=512"),
        "measure": "val/metrics/asked",
        "runs": {"asks": (), "control": ("env.kwargs.user_volunteers=true",)},
    },
    "clarify": {
        "start": (
            *("env.id=textenv/clarify", "warm_start.steps=1600", "warm_start.demonstrations=40000"),
            *("warm_start.careless_steps=200", "warm_start.careless_rate=0.88"),
        ),
        "train": ("env.id=textenv/clarify", "trainer.total_iterations=40", "trainer.test_freq=5"),
        "both": (),
        "measure": "val/metrics/asked_when_needed",
        "runs": {"asks": (), "control": ("env.kwargs.question=-1", "env.kwargs.needless=-1")},
    },
}
COLOURS = {"asks": "tab:blue", "control": "tab:orange"}


class HalfAsking(CollabMath):
    """Problems whose scripted expert asks in half of its turns, with either user."""

    @property
    def user(self) -> CollabUser:
        """Volunteering in every other task."""
        volunteers = sum(self.task.key.encode()) % 2 == 0
        return replace(super().user, volunteers=volunteers)

    def demonstration(self, rng: np.random.Generator) -> str:
        """A question, or "Go on."; when everything is told, the answer."""
        idle = self.user.untold(self.state.memory) and rng.random() < 0.5
        return "Go on." if idle else super().demonstration(rng)


def locks(path: Path, numbers: Sequence[int]) -> Path:
    """A file of problems whose answer is three digits that the user holds back: asking decides, not arithmetic."""
    names = ("first", "second", "third")
    with path.open("w", encoding="utf-8") as file:
        for number in numbers:
            pieces = [
                {"topic": f"{name} digit", "keywords": [name], "question": f"What is the {name} digit?"}
                | {"sayings": [f"The {name} digit is {digit}.", f"The {name} one is {digit}."]}
                for name, digit in zip(names, str(number), strict=True)
            ]
            request = " ".join(["What is the code of my lock?", *(piece["sayings"][0] for piece in pieces)])
            row: dict[str, Any] = {"data_source": "asking/locks", "prompt": [user("What is the code of my lock?")]}
            row |= {"reward_model": {"style": "rule", "ground_truth": str(number)}}
            row |= {"extra_info": {"single_turn_prompt": request, "pieces": pieces, "index": number}}
            file.write(json.dumps(row) + "\n")
    return path


def tasks_of(family: str, folder: Path) -> list[str]:
    """The keys that name a family's tasks; no number of the held-out ones is trained on."""
    if family != "collab-math":
        return []
    numbers = [int(number) for number in np.random.default_rng(0).permutation(np.arange(100, 1000))]
    train, held_out = locks(folder / "train.jsonl", numbers[128:]), locks(folder / "val.jsonl", numbers[:128])
    return [f"data.train_files={train}", f"data.val_files={held_out}"]


gymnasium.register("asking/half-asking-v0", entry_point=HalfAsking)


def run(family: str, kind: str, seed: int, folder: Path, overrides: list[str]) -> dict[str, Any]:
    """One run, unless the folder has it: its validations and its seconds of PPO."""
    settings = FAMILIES[family]
    both = [*settings["both"], *tasks_of(family, folder)]
    start = folder / f"{family}-start{seed}"
    model = start / "checkpoints" / "iteration_000000" / "model"
    if not model.exists():
        once = ["trainer.total_iterations=1", "trainer.val_before_train=false", "trainer.keep_last_n=2"]
        ppo(seed, start, [*settings["start"], *both, *once, "data.val_size=1"])
    place = folder / f"{family}-{kind}{seed}"
    done = place / "done.json"
    if not done.exists():
        ppo(seed, place, [*settings["train"], *both, f"model.path={model}", *settings["runs"][kind], *overrides])
        last = Checkpoints(place / "checkpoints", keep=1).newest()
        assert last is not None
        curve = [
            {"iteration": step, "asked": metrics[settings["measure"]], "solved": metrics["val/solved"]}
            | {"turns": metrics["val/turns"]}
            for step, metrics in read_jsonl(place / METRICS_FILE)
            if settings["measure"] in metrics
        ]
        row = {"family": family, "run": kind, "seed": seed, "overrides": overrides, "curve": curve}
        done.write_text(json.dumps(row | {"seconds": round(float(last.state["trained_s"]), 1)}) + "\n")
    read: dict[str, Any] = json.loads(done.read_text())
    return read


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """The share of turns that ask over the iterations: a panel a family, a line a run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    families = list(dict.fromkeys(row["family"] for row in rows))
    figure, axes = pyplot.subplots(
        1, len(families), figsize=(5 * len(families), 4), sharey=True, layout="constrained", squeeze=False
    )
    for axis, family in zip(axes[0], families, strict=True):
        drawn: set[str] = set()
        for row in rows:
            if row["family"] == family:
                label = None if row["run"] in drawn else row["run"]
                drawn.add(row["run"])
                points = [(point["iteration"], point["asked"]) for point in row["curve"]]
                axis.plot(*zip(*points, strict=True), color=COLOURS[row["run"]], label=label)
        axis.set(title=family, xlabel="iteration", ylim=(0, 1.02))
        axis.legend()
    axes[0][0].set_ylabel("share of turns that ask")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> int:
    """Run all families and seeds, print the table; 1 unless asking went up, and further than in the control."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--families", type=lambda text: text.split(","), default=list(FAMILIES), metavar="collab-math,clarify"
    )
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0])
    parser.add_argument("--folder", type=Path, default=Path("outputs/asking"))
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of PPO, for both runs")
    arguments = parser.parse_args()
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for family in arguments.families:
        for seed in arguments.seeds:
            for kind in FAMILIES[family]["runs"]:
                rows.append(run(family, kind, seed, arguments.folder, arguments.overrides))
                machine = {"machine": f"{platform.machine()}, CPU", "python": platform.python_version()}
                (arguments.folder / "asking.json").write_text(json.dumps(machine | {"runs": rows}, indent=1) + "\n")
                draw(rows, arguments.folder / "asking.png")
    print("\nfamily       seed  run      turns that ask      solved              PPO")
    rise: dict[tuple[str, int, str], float] = {}
    for row in rows:
        first, last = row["curve"][0], row["curve"][-1]
        rise[row["family"], row["seed"], row["run"]] = last["asked"] - first["asked"]
        shown = "   ".join(f"{first[name]:6.1%} -> {last[name]:6.1%}" for name in ("asked", "solved"))
        print(f"{row['family']:<11}  {row['seed']:>4}  {row['run']:<7}  {shown}  {row['seconds']:4.0f} s")
    kept = all(
        up > max(0.0, rise[family, seed, "control"]) for (family, seed, kind), up in rise.items() if kind == "asks"
    )
    return 0 if kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
