"""Self-play of one tiny policy in games for two, measured against a random and a perfect player.

    python -m benchmarks.selfplay [--games tictactoe,nim] [--kinds rae,none,weak] [--seeds 0,1,2] [--iterations 200]
                                  [--folder FOLDER] [--results FILE] [--report] [key=value ...]

The games are TextArena's, with its rules and rewards, but a player is shown the position alone, as a few characters, in
a context of its own: a tiny policy on one core then plays thousands of games in minutes. A policy first imitates random
allowed moves; it knows the moves and nothing of the game, and all runs of a game start from it. Then both players are
the policy (`opponent=self`), and each trains on its own trajectory. `rae` has a baseline for each role
(`algorithm.adv_estimator=rae`) and a KL to the policy of the start, which keeps its moves varied. The controls: `none`
has the same estimator without a baseline (`decay=1`); `weak` has a tenth of the KL.

Every `--every` iterations it plays against a random player and against a perfect one (minimax in Tic Tac Toe, the
nim-sum in Nim), in each seat. Against the perfect player no policy wins Tic Tac Toe, or Nim as the second player; the
best mean rewards are 0 and 0 in Tic Tac Toe, 1 and -1 in Nim.

It resumes where it was stopped: start the same command again. The results file gets one line for each evaluation;
`--report` prints what it has, and trains nothing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium

from benchmarks import learning
from benchmarks.hardware import processor
from textenvs.envs.textarena import TextArena
from textenvs.messages import Message, user
from textenvs.task import Task
from textenvs.turn import Turn
from trainers.checkpoints import Checkpoints
from trainers.report.loggers import METRICS_FILE, read_jsonl

GAMES: dict[str, dict[str, Any]] = {
    "tictactoe": {"game": "TicTacToe-v0"},
    "nim": {"game": "Nim-v0"},
}
KINDS = {
    "rae": ("algorithm.adv_estimator=rae",),
    "none": ("algorithm.adv_estimator=rae", "algorithm.decay=1"),
    "weak": ("algorithm.adv_estimator=rae", "actor.kl_loss_coef=0.01"),
}
#: Opponents of an evaluation: its name, and the environment's ``opponent``.
OPPONENTS = {"random": "random", "perfect": "strong"}


class Position(TextArena):
    """A game of TextArena in which the position is all that a player is shown: each turn is a context of its own.

    Tic Tac Toe: the nine cells, as the number of a free one, ``#`` for an own mark, ``*`` for the opponent's. Nim: the
    sizes of the piles.
    """

    def opening(self, task: Task) -> Sequence[Message]:
        super().opening(task)
        return (user(self._position()),)

    def respond(self, reply: Message) -> Turn:
        turn = super().respond(reply)
        if not turn.terminated:
            turn.__dict__.update(messages=(), context=(user(self._position()),))
        return turn

    def _position(self) -> str:
        live = self._peek()
        state = live.game.state.game_state
        if "piles" in state:
            return ",".join(map(str, state["piles"]))
        own = "X" if self._player(live) == 1 else "O"
        cells = [cell for row in state["board"] for cell in row]
        return "".join(str(n) if not cell else "#" if cell == own else "*" for n, cell in enumerate(cells))


gymnasium.register("selfplay/position-v0", entry_point=Position)

ENV = "benchmarks.selfplay:selfplay/position-v0"
SETTINGS = (
    *("model.device=cpu", "trainer.threads=1", "engine.threads=1"),
    *("engine.max_context=384", "rollout.max_response_length=8", "trainer.logger=[jsonl,console]"),
)
START = (
    *("model.hidden=64", "model.layers=3"),
    *("warm_start.steps=800", "warm_start.batch_size=128", "warm_start.demonstrations=12000", "warm_start.lr=3e-3"),
    *("warm_start.mistake_rate=0.95", "warm_start.mistake_weight=1", "warm_start.careless_steps=0"),
)
TRAIN = (
    *("rollout.groups_per_batch=64", "rollout.n=1", "actor.mini_batches=1", "actor.lr=5e-4"),
    *("actor.lr_schedule=constant", "actor.entropy_coeff=0", "actor.use_kl_loss=true", "actor.kl_loss_coef=0.1"),
    *("data.val_size=256", "trainer.keep_last_n=1", "trainer.keep_rollouts=0"),
)


def components(game: str) -> Iterator[str]:
    """Yield the keys of the environments: of self-play, and of the evaluations, never played."""
    kwargs = GAMES[game]
    played = {"self": {"opponent": "self"}}
    for name, opponent in OPPONENTS.items():
        played |= {f"{name}{seat}": {"opponent": opponent, "seat": seat} for seat in (0, 1)}
    for name, own in played.items():
        key = f"env.mixture.{name}"
        yield f"{key}.id={ENV}"
        yield f"{key}.kwargs={json.dumps(kwargs | {'opponent': 'self'})}"
        yield f"{key}.val_kwargs={json.dumps(own)}"
        yield f"{key}.weight={1.0 if name == 'self' else 1e-9}"


def ppo(seed: int, folder: Path, overrides: Sequence[str]) -> None:
    """Start the run in ``folder``, or resume it."""
    command = [sys.executable, "-m", "trainers.ppo", f"trainer.seed={seed}", f"trainer.default_local_dir={folder}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, *SETTINGS, *overrides], check=True, env=environment)


def start_of(game: str, folder: Path) -> Path:
    """Return the policy that plays random allowed moves, made unless it is there."""
    model = folder / f"{game}-start" / learning.START
    if not model.exists():
        env = [f"env.id={ENV}", f"env.kwargs={json.dumps(GAMES[game] | {'opponent': 'self'})}"]
        once = ["trainer.total_iterations=1", "trainer.val_before_train=false", "trainer.keep_last_n=2"]
        once += ["trainer.resume_mode=disable", "data.val_size=1", "rollout.groups_per_batch=2"]
        ppo(1000, folder / f"{game}-start", [*env, *START, *once])
    return model


def rows_of(game: str, kind: str, seed: int, folder: Path) -> list[dict[str, Any]]:
    """Return the evaluations of a run so far: mean rewards in the first and in the second seat."""
    rows, metrics_of = list[dict[str, Any]](), list(read_jsonl(folder / METRICS_FILE))
    training = {step: metrics for step, metrics in metrics_of if "train/reward" in metrics}
    for step, metrics in metrics_of:
        if "val/reward" not in metrics:
            continue
        row: dict[str, Any] = {"game": game, "kind": kind, "seed": seed, "iteration": step}
        for name in OPPONENTS:
            row[name] = [round(metrics[f"val/mixture/{name}{seat}/reward"], 4) for seat in (0, 1)]
        now = training.get(step, {})
        for name, key in (
            ("entropy", "actor/entropy"),
            ("invalid", "train/metrics/invalid"),
            ("first", "train/reward"),
        ):
            if key in now:
                row[name] = round(now[key], 4)
        rows.append(row)
    return rows


def hardware() -> dict[str, str]:
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "textarena")}
    return {
        "machine": processor(),
        "python": platform.python_version(),
    } | versions


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, write the results, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=lambda text: text.split(","), default=list(GAMES), metavar="NAME,...")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS), metavar="NAME,...")
    parser.add_argument("--seeds", type=lambda text: [*map(int, text.split(","))], default=[0, 1, 2], metavar="0,1,2")
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--every", type=int, default=25, help="iterations between evaluations")
    parser.add_argument("--folder", type=Path, default=Path("outputs/selfplay"))
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/selfplay.jsonl"))
    parser.add_argument("--report", action="store_true", help="print the results that are there")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_args(arguments)
    if not options.report:
        for seed in options.seeds:
            for game in options.games:
                for kind in options.kinds:
                    run(game, kind, seed, options)
    report(saved(options.results))
    return 0


def run(game: str, kind: str, seed: int, options: argparse.Namespace) -> None:
    """Play a run to its end, from where it is, and save its evaluations."""
    folder = options.folder / f"{game}-{kind}-{seed}"
    often = (f"trainer.test_freq={options.every}", f"trainer.save_freq={options.every}")
    length = f"trainer.total_iterations={options.iterations}"
    model = start_of(game, options.folder)
    overrides = [*components(game), f"model.path={model}", *TRAIN, *KINDS[kind], *often, length, *options.overrides]
    try:
        ppo(seed, folder, overrides)
    finally:  # what an interrupted run has measured is there, too
        save(game, kind, seed, options, folder)


def save(game: str, kind: str, seed: int, options: argparse.Namespace, folder: Path) -> None:
    """Replace a run's lines of the results file."""
    words = ("--games", game, "--kinds", kind, "--seeds", str(seed), "--iterations", str(options.iterations))
    where: dict[str, Any] = {"command": " ".join(["python -m benchmarks.selfplay", *words, *options.overrides])}
    if (last := Checkpoints(folder / "checkpoints", keep=1).newest()) is not None:
        where["seconds"] = round(float(last.state["trained_s"]))
    rows = [row | where | hardware() for row in rows_of(game, kind, seed, folder)]
    others = [row for row in saved(options.results) if (row["game"], row["kind"], row["seed"]) != (game, kind, seed)]
    options.results.parent.mkdir(parents=True, exist_ok=True)
    temporary = options.results.with_suffix(".tmp")
    temporary.write_text("".join(f"{json.dumps(row)}\n" for row in [*others, *rows]))
    temporary.replace(options.results)


def saved(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def report(rows: Sequence[dict[str, Any]]) -> None:
    """Print a line for each run: mean rewards at the beginning, the best one, and at the end."""
    print("game       kind  seed  iterations  against random (best)       against perfect (best)")
    runs: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in rows:
        runs.setdefault((row["game"], row["kind"], row["seed"]), []).append(row)
    for (game, kind, seed), curve in sorted(runs.items()):
        columns = []
        for name in OPPONENTS:
            means = [sum(row[name]) / 2 for row in curve]
            columns.append(f"{means[0]:+.2f} -> {means[-1]:+.2f} ({max(means):+.2f})")
        print(f"{game:<9}  {kind:<4}  {seed:>4}  {curve[-1]['iteration']:>10}  {'       '.join(columns)}")


if __name__ == "__main__":
    raise SystemExit(main())
