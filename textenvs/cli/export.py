"""``textenvs export``: the records of an evaluation as another tool's log."""

from __future__ import annotations

import argparse

from ..evaluate.inspect_log import export
from ..evaluate.records import FolderError
from .common import CommandError


def run(arguments: argparse.Namespace) -> int:
    try:
        path = export(arguments.folder, arguments.out)
    except (FolderError, OSError) as error:
        raise CommandError(str(error)) from error
    print(f"{path}: a log of Inspect (`inspect view start --log-dir {path.parent}`)")
    return 0
