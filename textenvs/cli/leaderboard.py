"""``textenvs leaderboard``: evaluations as rows of a page of scores."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..evaluate.leaderboard import merge, read_rows, row_of, write
from ..evaluate.records import FolderError
from ..text import plural
from .common import CommandError, expected_errors


def run(arguments: argparse.Namespace) -> int:
    rows = Path(arguments.rows).expanduser()
    if rows.suffix == ".md":
        raise CommandError(f"--rows {arguments.rows} names the page; name the file of rows, as in rows.jsonl", 2)
    if not arguments.folders and not rows.exists():
        raise CommandError(f"there is no {rows}; name folders of `textenvs evaluate --out`, or --rows FILE", 2)
    with expected_errors(FolderError, ValueError, OSError):
        # All folders are read before anything is written.
        new = [row_of(folder, name=arguments.name, note=arguments.note) for folder in arguments.folders]
        every = merge(read_rows(rows), new)
        page = write(every, rows)
    print(f"{page}: {plural(len(every), 'row')}, {len(new)} from here")
    return 0
