"""``textenvs prepare``: rows from files or the Hub, checked and written as Parquet where environments find them."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..data.gsm8k import INSTRUCTION
from ..data.load import data_directory
from ..data.prepare import check_rows, write_rows_of
from ..task import SPLITS, TaskError
from .common import CommandError

#: How many rejected rows are listed, of each split.
_LISTED = 50


def add(commands: Any) -> argparse.ArgumentParser:
    """Declare the command."""
    parser = commands.add_parser(
        "prepare",
        help="rows from files or the Hub, checked, as Parquet",
        description=(
            "Check rows in GSM8K's shape (question, worked answer ending in '#### N') or verl's columns, and write\n"
            "them to DIR/gsm8k/SPLIT.parquet, where environments find them by default (see TEXTENVS_DATA)."
        ),
    )
    parser.add_argument("source", help="a .jsonl or .parquet file, or hub:REPOSITORY, for example hub:openai/gsm8k")
    parser.add_argument(
        "-o", "--out", metavar="DIR", help="the data folder (default $TEXTENVS_DATA or ~/.cache/textenvs)"
    )
    parser.add_argument(
        "--split", choices=SPLITS, help="which split it is; a file needs this, the Hub gives both without it"
    )
    parser.add_argument(
        "--instruction",
        default=INSTRUCTION,
        metavar="TEXT",
        help=f"put after the question of JSONL and Hub rows; '' for nothing (default: {INSTRUCTION})",
    )
    parser.add_argument("--skip-bad", action="store_true", help="write the good rows, and say which are left out")
    parser.set_defaults(run=run)
    return parser  # type: ignore[no-any-return]


def run(arguments: argparse.Namespace) -> int:
    """Check and write."""
    hub = arguments.source.startswith("hub:")
    if arguments.split is None and not hub:
        raise CommandError(f"which split is {arguments.source}? Add --split train or --split test", 2)
    splits = SPLITS if arguments.split is None else (arguments.split,)
    folder = data_directory() if arguments.out is None else Path(arguments.out).expanduser()
    try:
        checked = check_rows(
            dict.fromkeys(splits, arguments.source), instruction=arguments.instruction or None, skip_bad=True
        )
        bad = sum(len(each.rejected) for each in checked.values())
        for split, each in checked.items():
            if each.rejected:
                print(f"{split}: {len(each.rejected)} rows cannot be used ({_columns(each.rejected)}):")
                print("".join(f"  {line}\n" for line in each.rejected[:_LISTED]), end="")
                if len(each.rejected) > _LISTED:
                    print(f"  and {len(each.rejected) - _LISTED} more")
        if bad and not arguments.skip_bad:
            raise CommandError(
                f"nothing was written: {bad} rows of {arguments.source} cannot be used (above). "
                "Correct or remove them, or leave them out with --skip-bad."
            )
        written = write_rows_of(checked, folder)
    except (TaskError, ImportError, OSError) as error:
        raise CommandError(str(error)) from error
    except ValueError as error:
        raise CommandError(str(error), 2) from error
    for split, each in checked.items():
        counts = ", ".join(f"{source}: {count}" for source, count in each.data_sources.items())
        left_out = f"; {len(each.rejected)} left out" if each.rejected else ""
        print(f"{written[split]}: {each.tasks.size} rows ({counts}){left_out}")
    if folder != data_directory():
        print(f"Environments look there with TEXTENVS_DATA={folder}.")
    return 0


def _columns(rejected: Sequence[str]) -> str:
    """How many rows are rejected for which column."""
    named = (re.search(r"column '(\w+)'", line) for line in rejected)
    counts = Counter(f"column {match[1]}" if match else "not a row" for match in named)
    return ", ".join(f"{name}: {count}" for name, count in counts.most_common())
