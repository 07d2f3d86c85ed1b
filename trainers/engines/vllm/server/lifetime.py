"""Nobody outlives whom it works for: the server its client, vLLM's processes the server."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import signal
import sys
import threading
from typing import NoReturn

_leftovers: set[str] = set()


def remove_afterwards(folder: str) -> None:
    """If the client ends without a word, nobody else removes its folders (weights take memory in ``/dev/shm``)."""
    _leftovers.add(folder)


def follow_the_parent() -> None:
    """End this process, and what it started, when the process that started it is gone."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1 << 12):
            pass
        for folder in _leftovers:
            shutil.rmtree(folder, ignore_errors=True)
        if os.getpgrp() == os.getpid():  # a group of its own, as it is started by the client
            os.killpg(0, signal.SIGKILL)
        end(1)

    threading.Thread(target=watch, daemon=True).start()


def end(code: int) -> NoReturn:
    """End at once. vLLM's process may not notice that this one is gone, or not soon."""
    for child in multiprocessing.active_children():
        child.kill()
    sys.stderr.flush()
    os._exit(code)


def die_with_the_parent() -> None:
    """Have Linux kill this process when the thread that started it ends; for children of a main thread.

    vLLM's own processes do not notice when the server is killed.
    """
    if sys.platform == "linux" and (parent := os.getppid()) > 1:
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # it was gone before
            os.kill(os.getpid(), signal.SIGKILL)
