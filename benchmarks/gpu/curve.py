"""A real language model learns here: SmolLM2 with the embedded engine, the run of ``make train-lm``.

``models/smollm2-135m-instruct`` must be there (``make model``, or copied). Each validation of the run is a result when
it comes. At toy sizes it is the tiny model from scratch.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.gpu.job import Job
from benchmarks.gpu.results import ROOT
from trainers.ppo import main as train
from trainers.report.loggers import METRICS_FILE, read_jsonl

_GUESS_S, _END_S = 75.0, 15.0
_POLL_S = 0.5
_FULL = (
    "--config",
    str(ROOT / "examples/smollm2/gsm8k_interact.yaml"),
    "data.val_size=256",
    "trainer.save_freq=-1",
    "trainer.logger=jsonl",
)
_TOY = (
    *("warm_start.enable=false", "rollout.n=2", "rollout.groups_per_batch=1", "rollout.max_response_length=8"),
    *("data.val_size=2", "trainer.test_freq=1", "trainer.save_freq=-1", "trainer.threads=1", "trainer.logger=jsonl"),
)


def run(job: Job) -> None:
    """Run it with the embedded engine."""
    learn(job, "torch", ())


def learn(job: Job, engine: str, keys: Sequence[str]) -> None:
    """Run it with an engine, if the model is here."""
    what = {"what": "run", "engine": engine}
    folder = ROOT / "models" / "smollm2-135m-instruct"
    if not job.toy and not (folder / "config.json").exists():
        job.cannot(f"there is no {folder.relative_to(ROOT)}: `make model` makes it, or copy it", **what)
        return
    job.try_to(0 if job.toy else _GUESS_S, partial(_learn, job, engine, keys, folder), **what)


def _learn(job: Job, engine: str, keys: Sequence[str], model: Path) -> None:
    began, rows = time.monotonic(), list[Mapping[str, float]]()

    def report(file: Path) -> None:
        """Write the validations that came since the last call."""
        for number, (step, row) in enumerate(read_jsonl(file) if file.exists() else ()):
            if number < len(rows):
                continue
            rows.append(row)
            if "val/solved" in row:
                figures = {name: row[f"val/{name}"] for name in ("solved", "first_reply", "reward", "turns")}
                minutes = round((time.monotonic() - began) / 60, 2)
                job.emit(what="validation", engine=engine, iteration=step, minutes=minutes, **figures)

    with tempfile.TemporaryDirectory(prefix="benchmarks-gpu-") as folder:
        chosen = [f"trainer.default_local_dir={folder}", f"trainer.total_iterations={job.sizes.iterations}"]
        chosen += [f"trainer.time_limit_s={max(1.0, job.until - began - _END_S):.0f}", *keys]
        chosen += [f"model.device={job.device.type}", *(_TOY if job.toy else (*_FULL, f"model.path={model}"))]
        over, file = threading.Event(), Path(folder) / METRICS_FILE

        def follow() -> None:
            while not over.wait(_POLL_S):
                report(file)

        follower = threading.Thread(target=follow, name="validations", daemon=True)
        follower.start()
        try:
            code = train(chosen)
        finally:
            over.set()
            follower.join()
        report(file)
    iterations = [row["time/iteration_s"] for row in rows if "time/iteration_s" in row]
    job.emit(
        what="run",
        engine=engine,
        iterations=len(iterations),
        iteration_s=round(statistics.median(iterations), 3) if iterations else None,
        mfu=next((row["actor/mfu"] for row in reversed(rows) if "actor/mfu" in row), None),
        exit_code=code,
        good=code == 0,
    )
