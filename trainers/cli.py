"""How a command runs: its log, its exit code, and expected errors in words instead of a traceback."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

from textenvs.text import printable


def run_command(
    work: Callable[[], int],
    *,
    stopped: str,
    expected: tuple[type[Exception], ...],
    folder: Path | None = None,
    advice: Callable[[bool], str] = lambda full: "make room",
) -> int:
    """Run the work of a command; its exit code.

    Args:
        work: Gives the exit code.
        stopped: What is said where it was interrupted.
        expected: Errors whose message is enough. Any other is a bug of ours, or of a library, and has its traceback.
        folder: Where it writes; an ``OSError`` about a file in it is expected, too, as a full disk is everywhere.
        advice: What to do then; told whether the disk is full.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        return work()
    except (KeyboardInterrupt, asyncio.CancelledError):
        print(stopped, file=sys.stderr)
        return 130
    except expected as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 1
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if not full and not (folder is not None and _within(folder, error.filename)):
            raise
        print(f"error: {error}: {advice(full)}", file=sys.stderr)
        return 1


def _within(folder: Path, name: object) -> bool:
    return isinstance(name, str | os.PathLike) and Path(name).absolute().is_relative_to(folder.absolute())
