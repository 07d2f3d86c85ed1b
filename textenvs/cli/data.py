"""``textenvs data``: data sets that have a name, listed, downloaded, and taken from files."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..data.catalogue import catalogue, data_folder, import_file
from ..task import TaskError
from ..text import plural
from .common import CommandError, expected_errors


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "list":
        _list()
        return 0
    entry = catalogue().get(arguments.name)
    if entry is None:
        raise CommandError(_unknown(arguments.name), 2)
    if (arguments.file is None) != (arguments.action == "get"):
        usage = "import NAME FILE" if arguments.file is None else "get NAME; a file is taken by `import`"
        raise CommandError(f"textenvs data {usage}", 2)
    splits = tuple(entry.splits) if arguments.split is None else (arguments.split,)
    if arguments.action == "import" and len(splits) != 1:
        raise CommandError(f"a file is one split: give --split {' or --split '.join(splits)}", 2)
    with expected_errors(TaskError, ImportError, OSError, mistakes=(ValueError,)):
        for split in splits:
            if arguments.action == "get":
                origin = f"hub:{entry.hub} ({entry.of_split(split).hub})"
                installed = entry.install(split, entry.download(split), origin, partial=arguments.partial)
            else:
                installed = import_file(entry, split, Path(arguments.file).expanduser(), partial=arguments.partial)
            print(f"{entry.path(split)}: {plural(installed['rows'], 'row')}, sha256 {installed['sha256']}")
            print(f"Play them with tasks={entry.name} split={split}.")
    return 0


def _unknown(name: str | None) -> str:
    names = ", ".join(catalogue())
    if name is None:
        return f"name a data set: {names}"
    return f"there is no data set {name!r}; there are {names}. (Files of your own need no name: tasks=FILE)"


def _list() -> None:
    for name, entry in catalogue().items():
        print(f"{name}: {entry.about}. {entry.licence}; hub:{entry.hub}")
        for split, expected in entry.splits.items():
            installed = entry.facts(split)
            rows = "rows not known" if expected.rows is None else plural(expected.rows, "row")
            place = (
                "not here"
                if installed is None
                else f"here: {plural(installed['rows'], 'row')} from {installed['origin']}"
            )
            print(f"    {split}: {rows}; {place}")
    print(f"Files are in {data_folder()} (TEXTENVS_DATA).")
