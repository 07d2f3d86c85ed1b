"""Ctrl-C while a command still imports, which takes seconds: the process ends, without a traceback."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

#: The exit status of a command that was interrupted.
INTERRUPTED = 130


def is_command() -> bool:
    """Return whether this process was started for a command of ours, whose modules are being imported now.

    Python sets ``sys.argv[0]`` to ``-m`` while it looks for the module to run. A process of :mod:`multiprocessing` has
    the words of the one that started it.
    """
    first = sys.argv[0] if sys.argv else ""
    script = os.path.splitext(os.path.basename(first))[0] == "textenvs"
    return first == "-m" or (script and "multiprocessing.spawn" not in sys.modules)


def end_on_interrupt() -> None:
    """From here on Ctrl-C ends the process with :data:`INTERRUPTED`, until :func:`raise_on_interrupt`.

    Where it is ignored (``nohup``) or handled already, and elsewhere than in the main thread, nothing changes.
    """
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_on_interrupt() -> None:
    """Ctrl-C raises ``KeyboardInterrupt`` again: everything is imported, and the command handles it."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    # Not by an exception: code that is being imported may catch it, and torch's does not survive it.
    os.write(2, b"stopped before anything was started\n")
    os._exit(INTERRUPTED)
