"""Compaction: a walk that does not fit the context, with summaries, without, and with blank ones.

    python -m benchmarks.compaction [--seeds 0,1,2] [--control-seeds 0] [--folder FOLDER] [--results FILE]
                                    [key=value ...]

A walk leads through twenty rooms, a turn each. A note in one of the first four says which key opens the chest in the
last. Every other room holds a thing that says nothing. Each reply but the last must be `on`, to the letter, or the walk
is over: no reply can carry the key. The whole conversation takes twice the context's tokens.

A tiny policy imitates walks whose summaries name the key in half of the cases where the walker can know it. From that
same policy PPO starts with ``Compact`` (`compact`), without (`without`: the context is full before the last room), and
with ``Compact`` whose summaries are thrown away (`blank`). A summary earns nothing by itself. Scripts say what the task
gives away: a reader with the whole conversation, with summaries and with blank ones, and guesses.

It resumes where it was stopped. The results have a line for each script, and for each evaluation of each run, on
held-out walks at temperature 1; a figure is drawn beside them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from benchmarks import learning
from textenvs.compaction import Compact
from textenvs.env import TextEnv, Turn
from textenvs.messages import Message, Messages, assistant, text_of, user
from textenvs.registry import make
from textenvs.task import Split, Task
from trainers.report.loggers import METRICS_FILE

#: The note is in one of so many first rooms, after the opening, which stays.
NOTE_ROOMS = 4
KEYS = ("iron", "brass", "copper", "silver", "gold", "bronze", "steel", "tin")
THINGS = ("lamp", "chair", "table", "clock", "bowl", "coat", "book", "bell")

#: The context of the model, and the estimated tokens from which a conversation is compacted.
CONTEXT, TOKENS = 144, 60

#: What a run with ``Compact`` must solve at the end, and the most that a control may, where guesses solve 0.125.
LEAST_WITH, MOST_WITHOUT = 0.9, 0.25


class Walks:
    """Walks by number; even ones to train on, odd ones to test on."""

    size = None

    def __init__(self, rooms: int, split: Split) -> None:
        self.name, self.rooms, self._odd = f"walks of {rooms} rooms ({split})", rooms, int(split == "test")

    def __getitem__(self, index: int) -> Task:
        rng = np.random.default_rng(2 * index + self._odd)
        key, note = str(rng.choice(KEYS)), int(rng.integers(min(NOTE_ROOMS, self.rooms - 1)))
        rooms = [f"a {rng.choice(THINGS)}." for _ in range(self.rooms)]
        rooms[note], rooms[-1] = f"the key is {key}.", "a chest."
        prompt = (user("Walk on to the chest. Which key?"),)
        return Task(f"{self.name} {index}", "compaction/walk", prompt, key, extra={"rooms": rooms})


class Walk(TextEnv[Any]):
    """A walk through rooms; the first reply leads into the first of them, and the last room has the chest."""

    def __init__(self, *, rooms: int = 20, split: Split = "train", **options: Any) -> None:
        super().__init__(Walks(rooms, split), **options)

    def respond(self, reply: Message) -> Turn:
        """Lead on; before the chest the reply names the key, and nothing else."""
        turn, rooms = self.state.assistant_turns, self.task.extra["rooms"]
        right, over = text_of(reply) == self._right_reply(turn - 1), turn > len(rooms)
        if over or not right:
            stop = "solved" if right else "locked" if over else "lost"
            return Turn(terms={"opened": float(right)}, terminated=True, stop=stop)
        return Turn([user(rooms[turn - 1])], terms={"opened": 0.0})

    def demonstration(self, rng: np.random.Generator) -> str:
        """Return the next reply of one who knows the key."""
        return self._right_reply(self.state.assistant_turns)

    def _right_reply(self, turn: int) -> str:
        return "on" if turn < len(self.task.extra["rooms"]) else f"key {self.task.ground_truth}"


class WalkEnd(Walk):
    """A walk that begins before the chest: nothing but the key is left to say, and to imitate."""

    def opening(self, task: Task) -> Sequence[Message]:
        """Return the walk so far."""
        rooms = task.extra["rooms"]
        return (*task.prompt, *(message for room in rooms for message in (assistant("on"), user(room))))

    def respond(self, reply: Message) -> Turn:
        """Open the chest, or not."""
        right = text_of(reply) == self.demonstration(self.np_random)
        return Turn(terms={"opened": float(right)}, terminated=True, stop="solved" if right else "locked")

    def demonstration(self, rng: np.random.Generator) -> str:
        """Return what opens the chest."""
        return self._right_reply(len(self.task.extra["rooms"]))


class BlankWalk(Compact):
    """A walk with compaction whose summaries are thrown away."""

    def __init__(self, *, tokens: int = TOKENS, split: Split = "train", **options: Any) -> None:
        super().__init__(Walk(split=split), tokens, **options)

    def shortened(self, text: str) -> str:
        """Leave nothing of a summary."""
        return ""


gymnasium.register("compaction/walk-v0", entry_point=Walk)
gymnasium.register("compaction/end-v0", entry_point=WalkEnd)
gymnasium.register("compaction/blank-v0", entry_point=BlankWalk)


def known_key(messages: Messages) -> str | None:
    """Return the key that a conversation names, if it does."""
    words = " ".join(text_of(message) for message in messages if message["role"] == "user")
    _, note, rest = words.partition("he key is ")
    return rest.partition(".")[0] if note else None


def summary(messages: Messages) -> str:
    """Return what one who reads with care writes of a conversation."""
    key = known_key(messages)
    return "Walking." if key is None else f"The key is {key}."


def forgetful_summary(messages: Messages) -> str:
    """Return that summary for half of all conversations, and of the others one without the key."""
    digest = hashlib.sha256(repr([text_of(message) for message in messages]).encode()).digest()
    return summary(messages) if digest[0] % 2 else "Walking."


ENV, MODULE = "benchmarks.compaction:compaction", "benchmarks.compaction"
MODEL = (
    *("model.device=cpu", "trainer.threads=1", "engine.threads=1"),
    *(f"engine.max_context={CONTEXT}", "rollout.max_response_length=12"),
)
COMPACT: dict[str, Any] = {"tokens": TOKENS, "request": "Sum up."}
LONG = (f"env.id={ENV}/walk-v0", f"env.kwargs.compact={json.dumps(COMPACT)}")


def imitation(*parts: dict[str, Any], steps: int, lr: float) -> tuple[str, ...]:
    """Return the keys of a warm start that imitates a mixture."""
    mixture = (f"env.mixture.part{number}={json.dumps(part)}" for number, part in enumerate(parts))
    steps_keys = (f"warm_start.steps={steps}", f"warm_start.lr={lr}", "warm_start.batch_size=32")
    rest = ("warm_start.mistake_rate=0", "warm_start.careless_steps=0", "warm_start.demonstrations=4000")
    once = ("rollout.groups_per_batch=1", "rollout.n=2", "actor.mini_batches=1")  # of the iteration that is thrown away
    return (*MODEL, *mixture, "warm_start.enable=true", *steps_keys, *rest, *once)


_FORGETFUL = COMPACT | {"script": f"{MODULE}:forgetful_summary"}
WALKS = {"id": f"{ENV}/walk-v0", "kwargs": {"compact": _FORGETFUL}}
#: First the ends of short walks are imitated, which teach to read the key; then walks, with forgetful summaries.
READ = imitation(
    WALKS,
    *({"id": f"{ENV}/end-v0", "weight": 40, "kwargs": {"rooms": rooms}} for rooms in (2, 2, 4)),
    steps=2000,
    lr=1e-3,
)
WALK = imitation(WALKS, {"id": f"{ENV}/end-v0", "weight": 1, "kwargs": {"rooms": 6}}, steps=900, lr=5e-4)
TRAIN = (
    *MODEL,
    *("trainer.total_iterations=40", "trainer.test_freq=5", "data.val_size=100", "trainer.keep_last_n=1"),
    *("rollout.groups_per_batch=8", "rollout.n=8", "actor.lr=2e-4", "actor.lr_schedule=cosine"),
    *("trainer.save_freq=10", "trainer.logger=[console,jsonl]"),
)
KINDS: dict[str, tuple[str, ...]] = {
    "compact": LONG,
    "without": (f"env.id={ENV}/walk-v0",),
    "blank": (f"env.id={ENV}/blank-v0", f"env.kwargs={json.dumps(COMPACT)}"),
}


def scripted(env: TextEnv[Any], name: str, episodes: int) -> dict[str, Any]:
    """Play a script: what it solves is what the task gives away without a summary, or with a good one.

    ``reader`` remembers nothing: it answers with the key that it sees, else as ``guess``, with any key. Both write
    :func:`summary`.
    """
    rng, solved = np.random.default_rng(0), 0
    for index in range(episodes):
        observation, _ = env.reset(seed=index, options={"task_index": index})
        while not env.state.done:
            reply = str(env.demonstration(rng))
            if text_of(observation[-1]).endswith("a chest."):
                key = known_key(observation) if name == "reader" else None
                reply = f"key {key or rng.choice(KEYS)}"
            observation, *_ = env.step(reply)
        solved += env.state.stop == "solved"
    return {"run": f"script {name}", "solved": solved / episodes}


def scripts(episodes: int = 400) -> list[dict[str, Any]]:
    """Play the scripts on held-out walks: with the whole conversation, with summaries, and with blank ones."""
    envs: dict[str, TextEnv[Any]] = {
        "whole": make("compaction/walk-v0", split="test"),
        "compact": make("compaction/walk-v0", split="test", compact=COMPACT | {"script": summary}),
        "blank": make("compaction/blank-v0", split="test", script=summary, **COMPACT),
    }
    played = [scripted(env, "reader", episodes) | {"conversation": name} for name, env in envs.items()]
    return [*played, scripted(envs["whole"], "guess", episodes) | {"conversation": "whole"}]


def evaluations(kind: str, seed: int, folder: Path) -> list[dict[str, Any]]:
    """Return the evaluations of a run so far."""
    if not (folder / METRICS_FILE).exists():
        return []
    rows = []
    for iteration, metrics in learning.validations(folder):
        row: dict[str, Any] = {"run": kind, "seed": seed, "iteration": iteration, "solved": metrics["val/solved"]}
        row |= {"turns": metrics["val/turns"], "context_full": metrics.get("val/status/truncated_context", 0.0)}
        rows.append(row | {"summaries": metrics.get("val/metrics/summaries", 0.0)})
    return rows


def run(kind: str, seed: int, folder: Path, overrides: Sequence[str]) -> list[dict[str, Any]]:
    """Make a run, resume it, or find it finished; return its evaluations."""
    warm = [override for override in overrides if override.startswith(("warm_start.", "engine."))]
    later = [override for override in overrides if not override.startswith("warm_start.")]
    reader = learning.warm_start(0, folder / "reader", [*READ, "model.hidden=64", "model.layers=2", *warm])
    model = learning.warm_start(0, folder / "start", [*WALK, *warm, f"model.path={reader}"])
    place = folder / f"{kind}{seed}"
    command = [sys.executable, "-m", "trainers.ppo", f"trainer.seed={seed}", f"trainer.default_local_dir={place}"]
    subprocess.run([*command, *TRAIN, *KINDS[kind], f"model.path={model}", *later], check=True)
    return evaluations(kind, seed, place)


def draw(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Draw what is solved over the iterations, a line a run, and what guesses solve."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axis = figure.subplots()
    names = {"compact": "with Compact", "without": "without", "blank": "with blank summaries"}
    colours = {"compact": "tab:blue", "without": "tab:red", "blank": "tab:orange"}
    curves: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for row in rows:
        curves.setdefault((row["run"], row["seed"]), []).append((row["iteration"], row["solved"]))
    for (kind, _), points in curves.items():
        axis.plot(*zip(*points, strict=True), color=colours[kind], label=names.pop(kind, None))
    axis.axhline(1 / len(KEYS), color="grey", linestyle=":", label="a guess")
    axis.set(xlabel="iteration", ylabel="chests opened", ylim=(-0.02, 1.02))
    axis.legend()
    figure.savefig(path, dpi=120)


def main() -> int:
    """Make all runs, print the table; 1 unless those with ``Compact`` learn, and no control does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers: dict[str, Any] = {"type": lambda text: [int(number) for number in text.split(",")], "metavar": "0,1,2"}
    parser.add_argument("--seeds", default=[0, 1, 2], **numbers)
    parser.add_argument("--control-seeds", default=[0], **numbers)
    parser.add_argument("--folder", type=Path, default=Path("outputs/compaction"), help="where the runs are")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/compaction.jsonl"))
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_args()
    lines, rows = scripts(), []
    for seed in sorted({*arguments.seeds, *arguments.control_seeds}):
        for kind in KINDS:
            if seed not in (arguments.seeds if kind == "compact" else arguments.control_seeds):
                continue
            rows += run(kind, seed, arguments.folder, arguments.overrides)
            arguments.results.parent.mkdir(parents=True, exist_ok=True)
            arguments.results.write_text("".join(json.dumps(line) + "\n" for line in (*lines, *rows)))
            draw(rows, arguments.results.with_suffix(".png"))
    for line in lines:
        print(f"{line['run']:<14}  {line['conversation']:<8}  {line['solved']:6.1%}")
    print("\nrun      seed  solved            context full  summaries")
    last: dict[tuple[str, int], dict[str, Any]] = {}
    first: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        first.setdefault((row["run"], row["seed"]), row)
        last[row["run"], row["seed"]] = row
    for (kind, seed), row in last.items():
        solved = f"{first[kind, seed]['solved']:6.1%} -> {row['solved']:6.1%}"
        print(f"{kind:<7}  {seed:>4}  {solved}  {row['context_full']:12.1%}  {row['summaries']:9.1f}")
    learned = (row["solved"] >= LEAST_WITH for (kind, _), row in last.items() if kind == "compact")
    hopeless = (row["solved"] <= MOST_WITHOUT for (kind, _), row in last.items() if kind != "compact")
    return 0 if all(learned) and all(hopeless) else 1


if __name__ == "__main__":
    raise SystemExit(main())
