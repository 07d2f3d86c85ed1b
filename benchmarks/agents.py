"""Do programs of agent libraries learn, unchanged but for their base URL? Those of `examples/agents`.

    python -m benchmarks.agents --program openai-agents [--model tiny] [--rewards own,coin] [--seeds 0,1,2]
                                [--start FOLDER] [--folder FOLDER] [--results FILE] [key=value ...]

The program is `openai-agents` (needs `make venv-agents`, run as `.venv-agents/bin/python -m benchmarks.agents`) or
`vercel` (needs Node and `npm ci --prefix examples/agents`). It works out expressions with its tool. A policy imitates
some episodes of a script: the tiny model from scratch, in 1,000 steps and with some answers without the tool, or
SmolLM2 (`--model smollm2`), in 16 steps. `--start` brings a policy along instead. From it `python -m trainers.ppo`
trains, once for each seed, with the program's `own` reward, or with a `coin`, the control: 0 or 1 at random, whatever
was answered. Both are validated on the program's own reward, on held-out expressions, at temperature 1.

It resumes where it was stopped, also within a run: start the same command again. The results are a JSON line for each
run, written after it, with its curve; other runs' lines are kept.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks import learning
from benchmarks.hardware import processor
from trainers.report.loggers import METRICS_FILE, read_jsonl

ROOT = Path(__file__).resolve().parents[1]
NODE = ROOT / "examples/agents"
SCRIPT = "textenvs.envs.agent.example"

#: What is promised on held-out expressions: the share solved rises by this, and with the coin by less than half of it.
LEAST_GAIN = 0.3

PROGRAMS = {
    "openai-agents": ("env.kwargs.agent=examples.agents.openai_agents:agent",),
    "vercel": (f"env.kwargs.command=node {NODE / 'vercel_ai.mjs'}", "env.kwargs.serve=16"),
}
ENV = (
    *("env.id=textenv/agent", "env.backend=thread", "env.kwargs.max_assistant_turns=8"),
    *(f"env.kwargs.expert={SCRIPT}:expert", f"env.kwargs.careless={SCRIPT}:careless"),
)
#: How the policy of a model is made that a run starts from. A careless reply ends the episode, so the tiny model gets
#: a mild habit of them: a strong one leaves no reward to learn from.
STARTS = {
    "tiny": (
        *("warm_start.demonstrations=3000", "warm_start.steps=1000", "warm_start.batch_size=32"),
        *("warm_start.max_tokens_per_micro_batch=8192", "warm_start.mistake_rate=0"),
        *("warm_start.careless_steps=16", "warm_start.careless_rate=0.6"),
    ),
    "smollm2": (
        *("warm_start.enable=true", "warm_start.demonstrations=256", "warm_start.steps=16", "warm_start.batch_size=16"),
        *("warm_start.lr_warmup_steps=5", "warm_start.weight_decay=0", "warm_start.careless_steps=0"),
    ),
}
#: The iteration that a warm start needs.
THROWN_AWAY = ("rollout.groups_per_batch=1", "rollout.n=2")
#: How it is trained.
TRAIN = {
    "tiny": ("trainer.total_iterations=40", "trainer.save_freq=10", "actor.lr=1e-4", "actor.entropy_coeff=0.01"),
    "smollm2": (
        *("trainer.total_iterations=100", "trainer.time_limit_s=3600", "trainer.save_freq=5", "trainer.test_freq=10"),
        *("rollout.groups_per_batch=4", "data.val_size=64", "actor.lr=3e-5", "actor.max_tokens_per_micro_batch=2048"),
    ),
}
BOTH = {
    # The opening has 330 tokens of the tiny model's tokenizer, which spells JSON sign by sign.
    "tiny": ("engine.max_context=1024", "rollout.max_response_length=80"),
    "smollm2": ("model.path=smollm2", "engine.max_context=1024", "rollout.max_response_length=64"),
}
RUN = (
    *("rollout.groups_per_batch=8", "rollout.n=8", "actor.lr_schedule=constant", "data.val_size=256"),
    *("trainer.test_freq=10", "trainer.keep_last_n=1"),
)
REWARDS = {
    "own": (),
    # A program whose result a scorer judges is not told the answer, so that its own reward is 0.
    "coin": ("env.kwargs.scorer=benchmarks.agents:coin", "env.val_kwargs.scorer=null"),
}


def coin(task: Any, messages: Any, files: Any) -> float:
    """Return 0.0 or 1.0 at random."""
    return float(random.random() < 0.5)


def ppo(seed: int, folder: Path, options: list[str]) -> None:
    """Resume the run in ``folder``, or start it."""
    command = [sys.executable, "-m", "trainers.ppo", f"trainer.seed={seed}", f"trainer.default_local_dir={folder}"]
    subprocess.run([*command, *options], check=True, cwd=ROOT)


def curve_of(folder: Path) -> list[dict[str, float]]:
    """Return what a run's validations measured; the first one is before any training."""
    names = {"solved": "val/solved", "turns": "val/turns", "failed": "val/failed"}
    return [
        {"iteration": step, **{name: round(metrics[key], 4) for name, key in names.items() if key in metrics}}
        for step, metrics in learning.validations(folder)
    ]


def rewards_of(folder: Path) -> list[float]:
    """Return the mean reward of the episodes of each iteration."""
    metrics = [metrics for _, metrics in read_jsonl(folder / METRICS_FILE)]
    return [round(row["train/reward"], 4) for row in metrics if "train/reward" in row]


def versions(program: str) -> dict[str, str]:
    """Return the versions of what a run used."""
    versions = {"python": platform.python_version()}
    for name in ("torch", "transformers", "openai", "openai-agents"):
        if program == "vercel" and name.startswith("openai"):
            continue
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    if program == "vercel":
        versions["node"] = subprocess.run(
            ["node", "--version"], check=True, capture_output=True, text=True
        ).stdout.strip()
        for name in ("ai", "@ai-sdk/openai"):
            versions[name] = json.loads((NODE / "node_modules" / name / "package.json").read_text())["version"]
    return versions


def run(seed: int, reward: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Make a run, or the rest of it, and return its line of the results."""
    program, model = arguments.program, arguments.model
    both = [*ENV, *PROGRAMS[program], *BOTH[model]]
    folder = arguments.folder.absolute() / f"{program}-{model}"
    start = arguments.start or learning.warm_start(0, folder / "start", [*both, *STARTS[model], *THROWN_AWAY])
    place = folder / f"{reward}{seed}"
    options = [*both, f"model.path={start}", *RUN, *TRAIN[model], *REWARDS[reward], *arguments.overrides]
    ppo(seed, place, options)
    line = {"program": program, "model": model, "reward": reward, "seed": seed}
    return {
        **line,
        "curve": curve_of(place),
        "train_reward": rewards_of(place),
        "seconds": round(learning.seconds_of_ppo(place)),
        "start": "its own" if arguments.start is None else str(arguments.start),
        "overrides": arguments.overrides,
        "machine": processor(),
        "versions": versions(program),
    }


def save(line: dict[str, Any], path: Path) -> None:
    """Put a run's line into the results, in the place of its last one."""
    key = ("program", "model", "reward", "seed")
    lines = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    lines = [row for row in lines if [row[name] for name in key] != [line[name] for name in key]]
    lines = sorted([*lines, line], key=lambda row: [str(row[name]) for name in key])
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text("".join(json.dumps(row) + "\n" for row in lines))
    partial.replace(path)


def main() -> int:
    """Make all runs, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", choices=list(PROGRAMS), required=True)
    parser.add_argument("--model", choices=list(STARTS), default="tiny")
    parser.add_argument("--rewards", type=lambda text: text.split(","), default=["own"], metavar="own,coin")
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[0, 1, 2])
    parser.add_argument("--start", type=Path, help="train from this policy; no warm start")
    parser.add_argument("--folder", type=Path, default=Path("outputs/agents"), help="where the runs are")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/agents.jsonl"))
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_args()
    if unknown := [reward for reward in arguments.rewards if reward not in REWARDS]:
        parser.error(f"--rewards: {unknown[0]!r} is not one of {', '.join(REWARDS)}")
    promise_kept = True
    for seed in arguments.seeds:
        for reward in arguments.rewards:
            line = run(seed, reward, arguments)
            save(line, arguments.results)
            first, last = line["curve"][0], line["curve"][-1]
            gain = last["solved"] - first["solved"]
            row_passed = gain >= LEAST_GAIN if reward == "own" else gain < LEAST_GAIN / 2
            promise_kept = promise_kept and row_passed
            print(
                f"seed {seed}  {reward:<4}  solved {first['solved']:5.1%} -> {last['solved']:5.1%}  after "
                f"{last['iteration']} iterations, {line['seconds']} s  {'ok' if row_passed else 'MISSED'}"
            )
    return 0 if promise_kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
