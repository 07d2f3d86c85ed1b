"""Measure the doctor: the share of planted faults that it names, its delay, and its false alarms.

    python -m benchmarks.doctor [--only NAME] [--seeds 0,1,2] [--folder FOLDER] [--recorded NAME=METRICS ...] [--cost]

25 faults (:mod:`.plants`) are planted in real runs of a tiny policy, with 3 seeds, after 8 healthy iterations or with
the run. A fault is found if one of its verdicts begins within 5 iterations. Healthy runs are those of :data:`~.plants.
HEALTHY` of 40 iterations, and with `--recorded` runs whose metrics are given, for example of a language model.

All start from one warm start. A run leaves its metrics in ``--folder``, from which verdicts are read again each time,
so the command resumes where it was stopped and a changed check needs no run. The table goes to
``benchmarks/results/doctor.json``. ``--cost`` measures the share of live verdicts in an iteration instead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from transformers.utils.logging import disable_progress_bar

from trainers.command_line import load_config
from trainers.ppo import train
from trainers.report.checks import CHECKS
from trainers.report.diagnosis import Doctor, wilson
from trainers.report.loggers import METRICS_FILE, read_jsonl
from trainers.report.metrics import health_metrics, tied_tasks
from trainers.run import Run, assemble

from .environment import BROKEN
from .plants import COMMON, HEALTHY, PLANTS, Plant

RESULTS = Path(__file__).parents[1] / "results" / "doctor.json"
SOON = 5
_MODEL = ("model.hidden=64", "model.layers=2", "model.vocab_size=300")
_WARM = (
    *("warm_start.steps=400", "warm_start.demonstrations=4000", "warm_start.batch_size=32"),
    *(
        "warm_start.lr=2e-3",
        "warm_start.careless_steps=60",
        "trainer.total_iterations=1",
        "trainer.val_before_train=false",
    ),
)
_SMALL = (
    "trainer.logger=jsonl",
    "trainer.keep_rollouts=0",
    "trainer.threads=1",
    "engine.threads=1",
    "trainer.test_freq=10",
)


def play(folder: Path, options: Sequence[str], plant: Plant | None = None) -> None:
    """Play a run, and plant its fault when that begins."""
    BROKEN.clear()

    def watch(run: Run) -> None:
        if plant is None or (change := plant.change) is None:
            return
        when = plant.begins if plant.planted is None else plant.planted
        if when == 0:
            change(run)
            return
        report = run.reporter.iteration

        def reported(step: int, *rest: Any) -> None:
            report(step, *rest)
            if step == when:
                change(run)

        run.reporter.iteration = reported  # type: ignore[method-assign, assignment]

    async def go() -> None:
        async with assemble(load_config([*options, f"trainer.default_local_dir={folder}"])[0]) as run:
            watch(run)
            await train(run)

    try:
        asyncio.run(go())
    except Exception as error:  # noqa: BLE001 - a fault may end the run: its metrics until then are what counts
        if plant is None:
            raise
        print(f"  the run ended: {type(error).__name__}: {str(error)[:120]}", file=sys.stderr)
    finally:
        BROKEN.clear()


def once(folder: Path, options: Sequence[str], plant: Plant | None = None) -> Path:
    """Return the metrics of a run, played if they do not exist."""
    metrics = folder.with_suffix(".jsonl")
    if not metrics.exists():
        shutil.rmtree(folder, ignore_errors=True)
        play(folder, options, plant)
        os.replace(folder / METRICS_FILE, metrics)
        os.replace(folder / "config.yaml", folder.with_suffix(".yaml"))
        shutil.rmtree(folder)
    return metrics


def warm_start(folder: Path) -> Path:
    """Return the policy that all runs begin with."""
    model = folder / "start" / "checkpoints" / "iteration_000000" / "model"
    if not model.exists():
        shutil.rmtree(folder / "start", ignore_errors=True)
        play(folder / "start", [*COMMON, *_MODEL, *_WARM, "trainer.save_freq=1"])
    return model


def diagnosed(metrics: Path) -> Doctor:
    """Run the doctor on recorded metrics, with the configuration beside them."""
    beside = [path for path in (metrics.with_suffix(".yaml"), metrics.parent / "config.yaml") if path.exists()]
    doctor = Doctor(CHECKS, yaml.safe_load(beside[0].read_text()) if beside else {})
    for step, row in read_jsonl(metrics):
        doctor.observe(step, row)
    return doctor


def slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)


def planted(folder: Path, seeds: Sequence[int], only: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each fault and seed."""
    model = warm_start(folder)
    for plant in PLANTS:
        if only not in plant.name:
            continue
        for seed in seeds:
            total = f"trainer.total_iterations={plant.begins + SOON + 1}"
            options = (*COMMON, f"model.path={model}", f"trainer.seed={seed}", total, *plant.options)
            findings = diagnosed(once(folder / f"{slug(plant.name)}-{seed}", options, plant)).findings
            late = plant.change is not None and plant.planted is None  # before it begins the run is healthy
            right = [f for f in findings if f.check in plant.expected and plant.begins <= f.step <= plant.begins + SOON]
            yield {
                "fault": plant.name,
                "where": plant.where,
                "seed": seed,
                "begins": plant.begins,
                "named": right[0].check if right else None,
                "after": right[0].step - plant.begins if right else None,
                "evidence": right[0].evidence if right else None,
                "also": sorted({f.check for f in findings if f.step > plant.begins} - set(plant.expected)),
                "false": [f.check for f in findings if f.step <= plant.begins and late],
            }


def healthy(folder: Path, only: str, recorded: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield a row for each healthy run."""
    model = warm_start(folder)
    runs: dict[str, tuple[str, ...]] = {
        name: (*COMMON, f"model.path={model}", "trainer.total_iterations=40", *options)
        for name, options in HEALTHY.items()
    }
    for name, options in runs.items():
        if only in name:
            yield _sound(name, once(folder / f"healthy-{slug(name)}", options))
    for recording in recorded:
        name, _, path = recording.partition("=")
        yield _sound(name, Path(path))


def _sound(name: str, metrics: Path) -> dict[str, Any]:
    doctor = diagnosed(metrics)
    rewards = [row["train/reward"] for _, row in read_jsonl(metrics) if "train/reward" in row]
    return {
        "run": name,
        "iterations": len(rewards),
        "reward": [round(rewards[0], 3), round(rewards[-1], 3)],
        "checked": len(CHECKS) - len(doctor.unmeasured()),
        "false": [[f.check, f.step, f.evidence] for f in doctor.findings],
    }


def cost(folder: Path) -> None:
    """Measure live verdicts in an iteration of the default run: measuring its episodes, and all checks."""
    took: list[float] = []

    def timed(run: Run) -> None:
        take = run.collector.next_batch

        async def next_batch() -> Any:
            batch = await take()
            began = time.perf_counter()
            health_metrics(batch.groups, run.config.rollout.max_response_length, run.stop_token_ids)
            tied_tasks(batch.groups)
            took.append(time.perf_counter() - began)
            return batch

        run.collector.next_batch = next_batch  # type: ignore[method-assign]

    async def go() -> None:
        options = ("warm_start.steps=50", "trainer.total_iterations=8", "trainer.test_freq=-1", "data.val_size=8")
        overrides = [*_SMALL, *options, f"trainer.default_local_dir={folder / 'cost'}", "trainer.resume_mode=disable"]
        async with assemble(load_config([*overrides, "trainer.keep_rollouts=5"])[0]) as run:
            timed(run)
            await train(run)

    asyncio.run(go())
    rows = list(read_jsonl(folder / "cost" / METRICS_FILE))
    seconds = sorted(row["time/iteration_s"] for _, row in rows if "time/iteration_s" in row)
    doctor = Doctor(CHECKS, {})
    row = next(row for _, row in rows if "train/reward" in row)
    for step in range(500):
        doctor.observe(step, row)
    began = time.perf_counter()
    for step in range(500, 600):
        doctor.observe(step, row)
    checks, measures, whole = (
        (time.perf_counter() - began) / 100,
        sorted(took)[len(took) // 2],
        seconds[len(seconds) // 2],
    )
    share = (checks + measures) / whole
    print(f"episodes {1000 * measures:.1f} ms, checks after 500 iterations {1000 * checks:.1f} ms, of {whole:.2f} s")
    print(f"share of an iteration: {share:.2%} (at most 3 %)")


def table(faults: Sequence[dict[str, Any]], runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table of docs/doctor.md."""
    yield "| fault | in | named | after | as | with it |"
    yield "|---|---|---|---|---|---|"
    for name in dict.fromkeys(row["fault"] for row in faults):
        rows = [row for row in faults if row["fault"] == name]
        good = [row for row in rows if row["named"]]
        after = sorted({row["after"] for row in good})
        span = f"{after[0]} to {after[-1]}" if len(after) > 1 else str(*after) if after else "-"
        named, also = (
            sorted(set(checks)) for checks in ([r["named"] for r in good], sum((r["also"] for r in rows), []))
        )
        cells = (name, rows[0]["where"], f"{len(good)} of {len(rows)}", span, ", ".join(named), ", ".join(also))
        yield "| " + " | ".join(cells) + " |"
    yield ""
    yield "| healthy run | iterations | reward | checks | false alarms |"
    yield "|---|---|---|---|---|"
    for row in runs:
        alarms = ", ".join(f"{check} ({step})" for check, step, _ in row["false"]) or "none"
        first, last = row["reward"]
        yield f"| {row['run']} | {row['iterations']} | {first:+.2f} -> {last:+.2f} | {row['checked']} | {alarms} |"


def main() -> int:
    """Play what is missing, read all, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults and runs with this in their name; writes no table")
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=Path("outputs/doctor"), help="where runs are kept")
    parser.add_argument(
        "--recorded", action="append", default=[], metavar="NAME=METRICS", help="a healthy run's metrics"
    )
    parser.add_argument("--cost", action="store_true", help="measure what live verdicts cost, and nothing else")
    options = parser.parse_args()
    disable_progress_bar()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.cost:
        cost(options.folder)
        return 0
    faults, runs = [], []
    for row in planted(options.folder, options.seeds, options.only):
        faults.append(row)
        print(
            f"{row['fault']:40} {row['seed']}  {row['named'] or 'NOT NAMED':22} {row['after']!s:5} also {row['also']} "
            f"before {row['false']}",
            flush=True,
        )
    for row in healthy(options.folder, options.only, options.recorded):
        runs.append(row)
        print(f"healthy: {row['run']:40} {row['iterations']:4} {row['reward']}  {row['false'] or ''}", flush=True)
    named = sum(row["named"] is not None for row in faults)
    false = sum(len(row["false"]) for row in runs)
    looks = sum(row["checked"] for row in runs)
    early = sum(len(row["false"]) for row in faults)
    print(f"named within {SOON} iterations: {named} of {len(faults)}")
    if looks:
        low, high = wilson(false, looks, 1.96)
        print(
            f"false alarms in healthy runs: {false} of {looks} verdicts ({false / looks:.1%}, 95 % interval "
            f"{low:.1%} to {high:.1%}); before a fault began: {early}"
        )
    print("\n".join(table(faults, runs)))
    if not options.only:
        RESULTS.write_text(json.dumps({"faults": faults, "healthy": runs, "checks": len(CHECKS)}, indent=1) + "\n")
    return 0 if faults and named >= 0.9 * len(faults) and false <= 0.02 * looks else 1


if __name__ == "__main__":
    sys.exit(main())
