"""The command ``textenvs``: a module a command, whose ``run`` does the work; ``commands.yaml`` has their arguments.

Exit statuses: 0 done, 1 it could not be done, 2 the command makes no sense, 130 interrupted.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import io
import sys
from collections.abc import Sequence

from ..startup import INTERRUPTED, raise_on_interrupt
from ..text import printable, reader_may_leave
from .arguments import COMMANDS, Parser, add_command
from .common import CommandError, full_id


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (by default this process's), and return the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 is no reason to fail
    with reader_may_leave():
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    parsed = build_parser().parse(arguments)
    if getattr(parsed, "id", None):
        parsed.id = full_id(parsed.id)
    module = {"list": "list_ids"}.get(parsed.command, parsed.command.replace("-", "_"))
    try:
        try:
            command = importlib.import_module(f".{module}", __package__)
        except ImportError as error:  # an extra is missing
            raise CommandError(str(error)) from error
        raise_on_interrupt()
        return int(command.run(parsed))
    except CommandError as error:
        if parsed.traceback:
            raise
        print(f"textenvs {parsed.command}: {printable(str(error))}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED


def build_parser() -> Parser:
    parser = Parser(
        prog="textenvs",
        description="Multi-turn text tasks as Gymnasium environments.",
        epilog="`textenvs COMMAND --help` says more about one of them.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"textenvs {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for name in COMMANDS:
        add_command(commands, name)
    return parser


def _version() -> str:
    try:
        return importlib.metadata.version("textenvs")
    except importlib.metadata.PackageNotFoundError:  # a checkout that is only on the path
        return "(not installed)"
