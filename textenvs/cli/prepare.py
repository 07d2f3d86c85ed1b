"""``textenvs prepare``: rows from files or the Hub, checked and written as Parquet, to be named by their path."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..data.files import write_parquet
from ..data.gsm8k import READER, check_problem, with_instruction
from ..data.sources import read_source
from ..scoring.gsm8k import score
from ..task import SPLITS, Rows, Task, TaskError
from ..text import plural
from .common import CommandError, expected_errors

#: How many rejected rows are listed, of each file.
_LISTED = 50


def run(arguments: argparse.Namespace) -> int:
    folder = Path(arguments.out).expanduser()
    if arguments.source.startswith("hub:"):
        splits: tuple[str, ...] = SPLITS if arguments.split is None else (arguments.split,)
    elif arguments.split is not None:
        raise CommandError(f"--split is of a data set of the Hub; {arguments.source} is one file", 2)
    else:
        splits = (Path(arguments.source).stem,)
        if (folder / f"{splits[0]}.parquet").resolve() == Path(arguments.source).expanduser().resolve():
            raise CommandError(f"{arguments.source} would be replaced by what is written; name another folder", 2)
    bad: dict[str, list[str]] = {split: [] for split in splits}
    with expected_errors(TaskError, ImportError, OSError, mistakes=(ValueError,)):
        read = {split: read_source(arguments.source, _CHECKED, split, bad[split]) for split in splits}
        for split, rejected in bad.items():
            if rejected:
                print(f"{split}: {plural(len(rejected), 'row')} cannot be used ({_columns(rejected)}):")
                print("".join(f"  {line}\n" for line in rejected[:_LISTED]), end="")
                if len(rejected) > _LISTED:
                    print(f"  and {len(rejected) - _LISTED} more")
        if any(bad.values()) and not arguments.skip_bad:
            raise CommandError(
                f"nothing was written: {plural(sum(map(len, bad.values())), 'row')} of {arguments.source} cannot be "
                "used (above). Correct or remove them, or leave them out with --skip-bad."
            )
        for split, tasks in read.items():
            read_in = (tasks[index] for index in range(tasks.size))
            instructed = [
                replace(task, prompt=with_instruction(task.prompt, arguments.instruction)) for task in read_in
            ]
            path = write_parquet(instructed, folder / f"{split}.parquet")
            left_out = f"; {len(bad[split])} left out" if bad[split] else ""
            print(f"{path}: {plural(tasks.size, 'row')} ({_data_sources(tasks)}){left_out}")
            print(f"Play them with tasks={path}.")
    return 0


def _check(task: Task) -> None:
    check_problem(task)
    if "answer" in task.extra and score(task.extra["answer"], task.ground_truth) != 1.0:
        raise ValueError("column 'extra_info': the worked answer does not end in '#### N' with the ground truth")


_CHECKED = replace(READER, check=_check)


def _data_sources(tasks: Rows) -> str:
    counts = Counter(tasks[index].data_source for index in range(tasks.size))
    return ", ".join(f"{source}: {count}" for source, count in counts.items())


def _columns(rejected: Sequence[str]) -> str:
    """Count the rejected rows by column."""
    named = (re.search(r"column '(\w+)'", line) for line in rejected)
    counts = Counter(f"column {match[1]}" if match else "not a row" for match in named)
    return ", ".join(f"{name}: {count}" for name, count in counts.most_common())
