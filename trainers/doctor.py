"""Why does this run not learn? Reads a run's folder and says what went wrong, from when on, and what to do.

    python -m trainers.doctor RUN               verdicts, each with cause, evidence and advice
    python -m trainers.doctor RUN --checks      also what every check watches, and what could not be checked

The same verdicts appear on the console of a run, at the iteration where they begin. The exit code is 1 if there are
any. docs/doctor.md says how to read them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from textenvs.records import RecordsError, open_run
from textenvs.text import plural

from .command_line import ConfigError, resolve
from .command_line.notices import notices
from .report.checks import CHECKS
from .report.diagnosis import Doctor
from .report.loggers import METRICS_FILE, MetricsError, read_jsonl


def examine(folder: Path) -> Doctor:
    """Read a run from its first iteration; RecordsError: there is none, MetricsError: its metrics cannot be read."""
    if not folder.is_dir():
        raise RecordsError(f"there is no folder {folder}")
    if not (folder / METRICS_FILE).is_file():
        raise RecordsError(f"{folder} has no {METRICS_FILE}: give the folder of a run with jsonl in trainer.logger")
    run = open_run(folder)
    tied = dict(_tied(run))
    doctor = Doctor(CHECKS, run.config)
    for step, metrics in read_jsonl(folder / METRICS_FILE):
        doctor.observe(step, metrics, tied.get(step, ()))
    return doctor


def _tied(run: Any) -> Iterator[tuple[int, list[str]]]:
    """Yield the tasks without a signal of iterations whose episodes were kept and can be read."""
    for iteration in run.iterations:
        if iteration.kind == "train":
            try:
                summaries = iteration.summaries()
            except RecordsError as error:  # tasks are only examples; the verdicts depend on metrics
                print(f"warning: {error}", file=sys.stderr)
                continue
            rows = (row for row in summaries if row.signal == "tied" and not row.forked_from)
            named = {row.group_id: f"{row.task_key or row.group_id} ({row.total_reward:+g})" for row in rows}
            yield iteration.number, list(named.values())[:5]


def report(doctor: Doctor, checks: bool = False) -> Iterator[str]:
    """Yield the lines to print."""
    history = doctor.history
    count = len(history.steps)
    yield f"{plural(count, 'iteration')}, {plural(len(history.val), 'validation')}"
    if count:
        values: Mapping[str, Any] = history.train
        yield f"reward {values['train/reward'][0]:+.3f} -> {values['train/reward'][-1]:+.3f}"
    for finding in doctor.findings:
        yield ""
        yield f"iteration {finding.step}: {finding.check}"
        yield f"  cause     {finding.cause}"
        yield f"  evidence  {finding.evidence}"
        yield f"  advice    {finding.advice}"
    if not doctor.findings:
        yield "nothing is wrong, as far as was measured"
    unmeasured = doctor.unmeasured()
    if unmeasured:
        yield ""
    for name, lacking in unmeasured.items():
        yield f"not checked: {name} (no {', '.join(lacking)})"
    if checks:
        yield ""
        yield from (f"{check.name:20} {check.says}" for check in doctor.checks)


def settings(folder: Path) -> list[str]:
    """Return warnings about a run's settings, as at its start; none if its configuration is of another version."""
    path = folder / "config.yaml"
    try:
        config, _ = resolve(["--config", str(path)]) if path.is_file() else (None, None)
    except ConfigError:
        return []
    return [] if config is None else list(notices(config))


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``python -m trainers.doctor``."""
    parser = argparse.ArgumentParser(
        prog="python -m trainers.doctor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="folder of a run, for example outputs/textenvs/run")
    parser.add_argument("--checks", action="store_true", help="list what every check watches")
    arguments = parser.parse_args(argv)
    try:
        doctor = examine(arguments.run)
    except (RecordsError, MetricsError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join([*report(doctor, arguments.checks), *settings(arguments.run)]))
    return 1 if doctor.findings else 0


if __name__ == "__main__":
    sys.exit(main())
