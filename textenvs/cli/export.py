"""``textenvs export``: the records of an evaluation as another tool's log."""

from __future__ import annotations

import argparse

from ..evaluate.inspect_log import export
from ..evaluate.records import FolderError
from .common import expected_errors


def run(arguments: argparse.Namespace) -> int:
    with expected_errors(FolderError, OSError):
        path = export(arguments.folder, arguments.out)
    print(f"{path}: a log of Inspect (`inspect view start --log-dir {path.parent}`)")
    return 0
