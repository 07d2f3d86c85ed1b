"""``textenvs new``: an environment to start from, with a test that passes."""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from importlib import resources
from pathlib import Path
from string import Template

from ..evaluate.records import write_text
from .arguments import COMMANDS
from .common import CommandError

_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_TAKEN = {*sys.stdlib_module_names, "gymnasium", "numpy", "pytest", "textenvs", "trainers"}


def run(arguments: argparse.Namespace) -> int:
    name, folder = arguments.name, Path(arguments.out).expanduser()
    if not _NAME.fullmatch(name):
        raise CommandError(f"{name!r} is no name: lower-case letters and digits, with hyphens, as in word-chain", 2)
    module = name.replace("-", "_")
    if module in _TAKEN or keyword.iskeyword(module):
        raise CommandError(f"{name!r}: a file {module}.py would hide the Python module of that name; take another", 2)
    words = re.split("[-_]", name)
    cls = "".join(word.capitalize() for word in words)
    names = {
        "title": " ".join(words).capitalize(),
        "id": "-".join(words),
        "module": module,
        "cls": cls,
        "state": f"{cls}State",
        "environment": str(folder / f"{module}.py"),
        "test": str(folder / f"test_{module}.py"),
    }
    for path in (names["environment"], names["test"]):
        if Path(path).exists():
            raise CommandError(f"{path} is there already; take another name or another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for what in ("environment", "test"):
            template = resources.files(__package__).joinpath(f"new_{what}.txt").read_text(encoding="utf-8")
            write_text(Path(names[what]), Template(template).substitute(names))
    except OSError as error:
        raise CommandError(f"{folder}: {error}") from error
    print(Template(COMMANDS["new"]["next"]).substitute(names))
    return 0
