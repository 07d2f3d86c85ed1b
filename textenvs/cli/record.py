"""``textenvs record``: a better model plays a program, and its solved runs become demonstrations."""

from __future__ import annotations

import argparse
import shlex
from contextlib import closing
from pathlib import Path
from string import Template

from ..evaluate.records import read_folder
from . import evaluate
from .arguments import COMMANDS
from .common import CommandError, open_environment, parse_options

_ID = "textenv/agent"
#: Options of the command line that are options of the environment.
_OWN = {"agent": "agent", "program": "command", "tasks": "tasks"}


def run(arguments: argparse.Namespace) -> int:
    own = {name: value for flag, name in _OWN.items() if (value := getattr(arguments, flag)) is not None}
    named = [word.partition("=")[0] for word in arguments.options]
    if twice := sorted(set(own) & set(named)):
        raise CommandError(f"--{twice[0]} and {twice[0]}=... are the same option; give one of them", 2)
    if "call_format" in named:
        raise CommandError("call_format is native in a record: each run that imitates it has a format of its own", 2)
    words = [*(f"{name}={value}" for name, value in own.items()), *arguments.options]
    arguments.id, arguments.options = _ID, [*words, "call_format=native"]
    with closing(open_environment(_ID, parse_options(arguments.options))) as env:
        if env.tasks.size is None:
            raise CommandError(
                f"{env.tasks.name} have no end, so training would not meet the recorded ones again: give a file of "
                "tasks (--tasks), or a named data set",
                2,
            )
    status = evaluate.run(arguments)
    _, records = read_folder(arguments.out)
    names = {
        "solved": len({record.task_key for record in records if record.success}),
        "played": len({record.task_key for record in records}),
        "kwargs": " ".join(shlex.quote(f"env.kwargs.{word}") for word in words),
        "folder": shlex.quote(str(Path(arguments.out))),
    }
    print(Template(COMMANDS["record"]["next"]).substitute(names))
    return status
