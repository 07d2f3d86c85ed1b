"""A command of the command line, run in this process."""

from __future__ import annotations

from typing import Any

from textenvs.cli import main


def command(capsys: Any, *words: str) -> tuple[Any, str, str]:
    """Return a command's status and what it printed, as output and as errors: no colours, and no traceback."""
    try:
        status: Any = main(words)
    except SystemExit as end:  # argparse's way
        status = end.code
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert "Traceback" not in out + err
    return status, out, err
