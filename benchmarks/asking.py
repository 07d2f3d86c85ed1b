"""Does PPO learn to ask? A user that volunteers nothing, and as the control one that tells everything anyway.

    python benchmarks/asking.py [--families collab-math,clarify] [--seeds 0] [--folder FOLDER] [key=value ...]

For each family and seed a tiny policy is warmed up on scripts that ask in half of their turns and else say "Go on.",
half of them with either user. From it PPO starts twice: with today's user (`asks`), and with one that tells what it
held back after any reply (`control`). On `collab-math` a digit is held back, which is the answer: asking decides, not
arithmetic. On `clarify` it is a part of an order. Printed, and drawn in one figure with a panel a family: the share of
held-out conversations, at temperature 1, whose first reply asks for what is missing, over the iterations.

The folder keeps starts, runs and `asking.json`, `asking.png`; a run that is there is not repeated, so the command
resumes where it was stopped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from learning import ppo, seconds_of_ppo, validations, warm_start

from textenvs.env import Turn
from textenvs.envs.clarify.env import Clarify
from textenvs.envs.clarify.tasks import Request
from textenvs.envs.collab.env import CollabState
from textenvs.envs.collab.user import CollabUser
from textenvs.envs.collab_math import CollabMath
from textenvs.messages import Message, user

START = ("warm_start.mistake_rate=0", "warm_start.careless_steps=0", "warm_start.lr=2e-3")
TRAIN = ("trainer.total_iterations=60", "trainer.test_freq=5", "data.val_size=128")

#: For each family: the environment of the warm start, of PPO, what is measured, and how the runs differ.
FAMILIES: dict[str, dict[str, Any]] = {
    "collab-math": {
        "start": (
            "env.id=asking:asking/collab-math-start-v0",
            "warm_start.steps=1200",
            "warm_start.demonstrations=40000",
        ),
        "both": ("env.kwargs.equality=value", "rollout.max_response_length=64", "engine.max_context=512"),
        "measure": "val/metrics/asked_first",
        "runs": {
            "asks": ("env.id=asking:asking/collab-math-v0",),
            "control": ("env.id=asking:asking/collab-math-v0", "env.kwargs.user_volunteers=true"),
        },
    },
    "clarify": {
        "start": ("env.id=asking:asking/clarify-start-v0", "warm_start.steps=800", "warm_start.demonstrations=20000"),
        "both": ("env.kwargs.kinds=[cap,taxi,haircut,tulips]", "env.kwargs.ambiguous=1.0"),
        "measure": "val/metrics/asked_when_needed",
        "runs": {"asks": ("env.id=textenv/clarify",), "control": ("env.id=asking:asking/clarify-volunteering-v0",)},
    },
}
COLOURS = {"asks": "tab:blue", "control": "tab:orange"}


@dataclass
class MeasuredState(CollabState):
    """With what the first reply was."""

    asked_first: bool = False


class MeasuredCollabMath(CollabMath):
    """`collab-math` with one metric more: whether the first reply asked for something."""

    state_type = MeasuredState

    def respond(self, reply: Message) -> Turn:
        """Reply as `collab-math` does with its scripted user, which needs no waiting."""
        turn, state = super().respond(reply), self.state
        assert isinstance(turn, Turn)
        assert isinstance(state, MeasuredState)
        if state.assistant_turns == 1:
            state.asked_first = bool(state.questions)
        return replace(turn, metrics={**turn.metrics, "asked_first": float(state.asked_first)})


class CollabMathStart(MeasuredCollabMath):
    """Problems whose scripted expert asks in half of its turns, with either user."""

    @property
    def user(self) -> CollabUser:
        """Return the task's user, who volunteers in every other task."""
        volunteers = sum(self.task.key.encode()) % 2 == 0
        return replace(super().user, volunteers=volunteers)

    def demonstration(self, rng: np.random.Generator) -> str:
        """Return a question, or "Go on."; when everything is disclosed, the answer."""
        idle = self.user.untold(self.state.memory) and rng.random() < 0.5
        return "Go on." if idle else super().demonstration(rng)


class VolunteeringClarify(Clarify):
    """Requests whose user tells what is missing after any reply that is not an answer."""

    def respond(self, reply: Message) -> Turn:
        """Answer as after the question that the expert would ask, but keep whether the reply asked as it is."""
        turn = super().respond(reply)
        assert isinstance(turn, Turn)
        request, state = Request.from_task(self.task), self.state
        untold = [
            slot for slot in request.kind.slots if slot.name in request.missing and slot.name not in state.disclosed
        ]
        if turn.terminated or not untold:
            return turn
        state.disclosed = (*state.disclosed, untold[0].name)
        return replace(turn, messages=(user(request.telling(untold[0])),))


class ClarifyStart(VolunteeringClarify):
    """Requests whose scripted expert asks in half of its turns, with either user."""

    def respond(self, reply: Message) -> Turn:
        """Answer as a user that volunteers in every other task."""
        volunteers = sum(self.task.key.encode()) % 2 == 0
        return super().respond(reply) if volunteers else Clarify.respond(self, reply)

    def demonstration(self, rng: np.random.Generator) -> str:
        """Return a question, or "Go on."; when everything is disclosed, the answer."""
        idle = set(self.task.extra["missing"]) - set(self.state.disclosed) and rng.random() < 0.5
        return "Go on." if idle else super().demonstration(rng)


def locks(path: Path, rooms: Sequence[int]) -> Path:
    """Write problems whose answer is a digit that the user holds back: asking decides, not arithmetic."""
    with path.open("w", encoding="utf-8") as file:
        for room, digit in itertools.product(rooms, range(10)):
            request, statement = f"Please open the lock of room {room}.", f"The code is {digit}."
            piece = {"topic": "code", "keywords": ["code"], "question": "What is the code?", "sayings": [statement]}
            row: dict[str, Any] = {"data_source": "asking/locks", "prompt": [user(request)]}
            row |= {"reward_model": {"style": "rule", "ground_truth": str(digit)}}
            extra = {"single_turn_prompt": f"{request} {statement}", "pieces": [piece], "index": 10 * room + digit}
            file.write(json.dumps(row | {"extra_info": extra}) + "\n")
    return path


def tasks_of(family: str, folder: Path) -> list[str]:
    """Return the keys that name a family's tasks; no room of the held-out ones is trained on."""
    if family != "collab-math":
        return []
    train, held_out = locks(folder / "train.jsonl", range(20, 60)), locks(folder / "val.jsonl", range(60, 73))
    return [f"data.train_files={train}", f"data.val_files={held_out}"]


gymnasium.register("asking/collab-math-v0", entry_point=MeasuredCollabMath)
gymnasium.register("asking/collab-math-start-v0", entry_point=CollabMathStart)
gymnasium.register("asking/clarify-start-v0", entry_point=ClarifyStart)
gymnasium.register("asking/clarify-volunteering-v0", entry_point=VolunteeringClarify)


def run(family: str, kind: str, seed: int, folder: Path, overrides: list[str]) -> dict[str, Any]:
    """One run, unless the folder has it: its validations and its seconds of PPO."""
    settings = FAMILIES[family]
    both = [*settings["both"], *tasks_of(family, folder)]
    model = warm_start(seed, folder / f"{family}-start{seed}", [*START, *settings["start"], *both])
    place = folder / f"{family}-{kind}{seed}"
    done = place / "done.json"
    if not done.exists():
        ppo(seed, place, [*TRAIN, *both, f"model.path={model}", *settings["runs"][kind], *overrides])
        curve = [
            {"iteration": step, "asked": metrics[settings["measure"]], "solved": metrics["val/solved"]}
            | {"turns": metrics["val/turns"]}
            for step, metrics in validations(place)
        ]
        row = {"family": family, "run": kind, "seed": seed, "overrides": overrides, "curve": curve}
        done.write_text(json.dumps(row | {"seconds": round(seconds_of_ppo(place), 1)}) + "\n")
    read: dict[str, Any] = json.loads(done.read_text())
    return read


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the share of first replies that ask over the iterations: a panel a family, a line a run."""
    from matplotlib.figure import Figure

    families = list(dict.fromkeys(row["family"] for row in rows))
    figure = Figure(figsize=(5 * len(families), 4), layout="constrained")
    axes = figure.subplots(1, len(families), sharey=True, squeeze=False)
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
    axes[0][0].set_ylabel("share of first replies that ask")
    figure.savefig(path, dpi=120)


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
    scripts_folder = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [scripts_folder, os.environ.get("PYTHONPATH")]))
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for family in arguments.families:
        for seed in arguments.seeds:
            for kind in FAMILIES[family]["runs"]:
                rows.append(run(family, kind, seed, arguments.folder, arguments.overrides))
                machine = {"machine": f"{platform.machine()}, CPU", "python": platform.python_version()}
                (arguments.folder / "asking.json").write_text(json.dumps(machine | {"runs": rows}, indent=1) + "\n")
                draw(rows, arguments.folder / "asking.png")
    print("\nfamily       seed  run      first asks          solved              PPO")
    rise: dict[tuple[str, int, str], float] = {}
    for row in rows:
        first, last = row["curve"][0], row["curve"][-1]
        rise[row["family"], row["seed"], row["run"]] = last["asked"] - first["asked"]
        changes = "   ".join(f"{first[name]:6.1%} -> {last[name]:6.1%}" for name in ("asked", "solved"))
        print(f"{row['family']:<11}  {row['seed']:>4}  {row['run']:<7}  {changes}  {row['seconds']:4.0f} s")
    fulfilled = all(
        up > max(0.0, rise[family, seed, "control"]) for (family, seed, kind), up in rise.items() if kind == "asks"
    )
    return 0 if fulfilled else 1


if __name__ == "__main__":
    raise SystemExit(main())
