"""The command ``textenvs``: what can be asked for, and how mistakes are answered.

Each command is a module in :mod:`textenvs.cli` with ``add(commands)``, which declares its arguments, and ``run``,
which does the work; one with an ``id`` takes ``key=value`` options. Exit statuses: 0 done, 1 it could not be done, 2
the command makes no sense, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import sys
from collections.abc import Sequence
from typing import NoReturn

from ..text import nearest, printable, reader_may_leave
from . import audit, describe, evaluate, list_ids, new, play, prepare, rows, serve
from .common import CommandError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (by default this process's), and return the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 is no reason to fail
    with reader_may_leave():
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    parsed, rest = build_parser().parse_known_args(arguments)
    try:
        parsed.options = _options(parsed.parser, rest)
        return int(parsed.run(parsed))
    except CommandError as error:
        if parsed.traceback:
            raise
        print(f"textenvs {parsed.command}: {printable(str(error))}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="textenvs",
        description="Multi-turn text tasks as Gymnasium environments.",
        epilog="`textenvs COMMAND --help` says more about one of them.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"textenvs {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    for module in (list_ids, describe, audit, play, prepare, rows, evaluate, serve, new):
        command = module.add(commands)
        command.allow_abbrev = False
        command.formatter_class = argparse.RawDescriptionHelpFormatter
        command.add_argument("--traceback", action="store_true", help="show where an error comes from")
        takes_options = any(action.dest == "id" for action in command._actions)
        command.set_defaults(parser=command, run=module.run, takes_options=takes_options)
    return parser


def _version() -> str:
    try:
        return importlib.metadata.version("textenvs")
    except importlib.metadata.PackageNotFoundError:  # a checkout that is only on the path
        return "(not installed)"


class _Parser(argparse.ArgumentParser):
    """Names the nearest choice where argparse only lists all of them."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\nTry: {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            hint = nearest(str(value), choices, f"choose from {', '.join(choices)}")
            raise argparse.ArgumentError(action, f"there is no {value!r}; {hint}")


def _options(parser: argparse.ArgumentParser, rest: Sequence[str]) -> list[str]:
    """What argparse did not know: ``key=value`` for the environment, anywhere on the line, and mistakes."""
    takes_options = parser.get_default("takes_options")
    for word in rest:
        if word.startswith("-"):
            known = [name for action in parser._actions for name in action.option_strings]
            parser.error(f"there is no option {word}; {nearest(word.split('=')[0], known, 'see --help')}")
        if not takes_options or "=" not in word:
            parser.error(f"what is {word!r} for?" + (" Options are key=value." if takes_options else ""))
    return list(rest)
