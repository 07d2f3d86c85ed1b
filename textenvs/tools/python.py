"""The Python sandbox as a tool: the model writes a program, and reads what it printed."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Any

from ..env import EnvironmentFailure
from ..options import checked
from ..sandbox import Sandbox, SandboxFailure
from ..text import digest
from .schema import MaxChars, Tool

#: How many programs' results are kept in a process.
KEPT = 512

_kept: OrderedDict[bytes, str] = OrderedDict()  # by digest: a program may be a megabyte
_lock = threading.Lock()


class RunPython:
    """The function behind the tool; a class, so that it can be pickled with its sandbox.

    A program that ran to its end is not run again: an episode that is replayed, forked or restored is told the same
    again, at no cost. (Not where the sandbox has no seed: its random numbers are to differ.)

    Args:
        sandbox: Where the programs run.
        max_chars: How many characters of the output, and of the errors, are told.
    """

    def __init__(self, sandbox: Sandbox, max_chars: int) -> None:
        self.sandbox = sandbox
        self.max_chars = max_chars

    async def __call__(self, code: str) -> str:
        """Run a Python program and return what it prints. Every call starts afresh.

        Args:
            code: The whole program; print() what you want to see.
        """
        box = self.sandbox
        key = digest(code, self.max_chars, box.limits, box.seed, box.backend, str(box.packages))
        with _lock:
            if key in _kept:
                _kept.move_to_end(key)
                return _kept[key]
        try:
            result = await box.run(code)
        except SandboxFailure as failure:
            raise EnvironmentFailure("tool_failed", str(failure)) from failure
        told = result.describe(self.max_chars)
        if result.status in ("ok", "error") and box.seed is not None:  # how far others came depends on the machine
            with _lock:
                _kept[key] = told
                while len(_kept) > KEPT:
                    _kept.popitem(last=False)
        return told


def _forget_after_fork() -> None:
    """A forked child may have a lock that no thread will release."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


@checked
def python_tool(
    sandbox: Sandbox | None = None, *, name: str = "python", max_chars: MaxChars = 2000
) -> Tool[[str], Any]:
    """A tool ``python(code)`` that runs programs in a sandbox.

    Args:
        sandbox: Where they run; one with the default limits by default.
        name: What the model calls it.
        max_chars: How many characters of the output, and of the errors, the model is told; at least 64.

    Raises:
        SandboxUnavailable: No sandbox is given, and this machine has none.
        ValueError: ``max_chars`` is below 64.
    """
    sandbox = sandbox if sandbox is not None else Sandbox()
    # Both streams, the reason, and the marks of what was left out.
    return Tool(RunPython(sandbox, max_chars), name=name, max_chars=2 * max_chars + 500)
