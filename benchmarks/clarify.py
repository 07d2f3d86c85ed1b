"""Learning to ask first: PPO with the multiturn-aware reward on `textenv/clarify`, and with the final reward alone.

    python benchmarks/clarify.py [--seeds 0,1,2] [--starts FOLDER] [--results FOLDER] [key=value ...]

For each seed a tiny policy is warmed up and gets the habit of answering at once. From that same policy two runs of
`python -m trainers.ppo` start: `multiturn`, whose turns earn what the conversation becomes (`multiturn_reward`), and
`final`, the control, in which only the answer at the end pays. Printed are the share of ambiguous requests that are met
with the right question first, the share of clear ones that are answered at once (both on held-out requests, at
temperature 1), and the seconds of PPO. `--results` gets the curves as numbers and as a picture; `--starts` keeps the
warmed-up policies, and takes them from there the next time.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from pathlib import Path
from typing import Any

from learning import ppo, seconds_of_ppo, validations, warm_start

#: What the multiturn-aware reward promises on held-out requests.
MOST_BEFORE, LEAST_AFTER, LEAST_CLEAR, MOST_SECONDS = 0.20, 0.80, 0.90, 480.0

ASKED, CLEAR = "val/metrics/asked_when_needed", "val/metrics/answered_when_clear"

START = (
    *("warm_start.steps=1600", "warm_start.demonstrations=40000", "warm_start.lr=2e-3"),
    *("warm_start.careless_steps=200", "warm_start.careless_rate=0.88"),
)
TRAIN = (
    *("trainer.total_iterations=60", "trainer.test_freq=5"),
    # Of the recorded results; the defaults have changed since.
    *("algorithm.norm_adv=true", "actor.loss_agg_mode=token-mean", "actor.entropy_coeff=0.01"),
)
KINDS = {
    "multiturn": ("multiturn_reward.enable=true", "algorithm.gamma=0"),
    "final": ("env.kwargs.question=0", "env.kwargs.needless=0"),
}


def run(seed: int, kind: str, model: Path, folder: Path, overrides: list[str]) -> dict[str, Any]:
    """One run from ``model``: its validations, and its seconds of PPO."""
    ppo(seed, folder, ["env.id=textenv/clarify", f"model.path={model}", *TRAIN, *KINDS[kind], *overrides])
    curve = [
        {"iteration": step, "asked_when_needed": metrics[ASKED], "answered_when_clear": metrics[CLEAR]}
        | {"solved": metrics["val/solved"], "turns": metrics["val/turns"]}
        for step, metrics in validations(folder)
    ]
    return {"seed": seed, "reward": kind, "seconds": seconds_of_ppo(folder), "curve": curve}


def good(row: dict[str, Any]) -> bool:
    """Return whether a run with the multiturn-aware reward keeps the promise."""
    first, last = row["curve"][0], row["curve"][-1]
    return bool(
        first["asked_when_needed"] < MOST_BEFORE
        and last["asked_when_needed"] > LEAST_AFTER
        and last["answered_when_clear"] >= LEAST_CLEAR
        and row["seconds"] <= MOST_SECONDS
    )


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Both shares over the iterations, a line a run."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    titles = {"asked_when_needed": "ambiguous: asked first", "answered_when_clear": "clear: answered at once"}
    colours = {"multiturn": "tab:blue", "final": "tab:orange"}
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        for row in rows:
            steps = [point["iteration"] for point in row["curve"]]
            shares = [point[name] for point in row["curve"]]
            label = row["reward"] if row["seed"] == rows[0]["seed"] else None
            axis.plot(steps, shares, color=colours[row["reward"]], label=label)
        axis.set(title=title, xlabel="iteration", ylim=(0, 1.02))
    axes[0].set_ylabel("share of held-out requests")
    axes[0].axhline(LEAST_AFTER, color="grey", linewidth=0.8, linestyle="dotted")
    axes[0].legend(title="reward")
    figure.savefig(path, dpi=120)


def main() -> int:
    """Run all seeds with both rewards, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0, 1, 2], metavar="0,1,2"
    )
    parser.add_argument("--starts", type=Path, help="where warmed-up policies are, or are put")
    parser.add_argument("--results", type=Path, help="where to put clarify.json and clarify.png")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for seed in arguments.seeds:
            starts = arguments.starts or Path(temporary)
            model = warm_start(seed, starts / f"start{seed}", ["env.id=textenv/clarify", *START])
            for kind in KINDS:
                rows.append(run(seed, kind, model, Path(temporary) / f"{kind}{seed}", arguments.overrides))
                if arguments.results is not None:
                    save(rows, arguments.results, arguments.overrides)
    print("\nseed  reward     asked when needed   answered when clear   solved            PPO")
    promise_kept = True
    for row in rows:
        first, last = row["curve"][0], row["curve"][-1]
        row_passed = row["reward"] == "final" or good(row)
        promise_kept = promise_kept and row_passed
        changes = "   ".join(
            f"{first[name]:6.1%} -> {last[name]:6.1%}"
            for name in ("asked_when_needed", "answered_when_clear", "solved")
        )
        verdict = "control" if row["reward"] == "final" else "ok" if row_passed else "MISSED"
        print(f"{row['seed']:>4}  {row['reward']:<9}  {changes}  {row['seconds']:4.0f} s  {verdict}")
    return 0 if promise_kept else 1


def save(rows: list[dict[str, Any]], folder: Path, overrides: list[str]) -> None:
    """Save the curves so far, as numbers and as a picture."""
    folder.mkdir(parents=True, exist_ok=True)
    where = {
        "command": "python benchmarks/clarify.py",
        "overrides": overrides,
        "machine": f"{platform.machine()}, CPU",
        "python": platform.python_version(),
    }
    text = json.dumps(where | {"runs": rows}, indent=1)
    (folder / "clarify.json").write_text(text + "\n")
    draw(rows, folder / "clarify.png")


if __name__ == "__main__":
    raise SystemExit(main())
