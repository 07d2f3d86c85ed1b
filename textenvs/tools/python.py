"""The Python sandbox as a tool: the model writes a program, and reads what it printed."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from ..env import EnvironmentFailure
from ..options import checked
from ..sandbox import Sandbox, SandboxFailure
from ..text import digest
from .schema import MaxChars, Tool

#: How many programs' results are kept in a process.
KEPT = 512

# By digest: a program may be a megabyte. Every single operation on it is safe in threads.
_kept: OrderedDict[bytes, str] = OrderedDict()


@dataclass(frozen=True)
class RunPython:
    """The function behind the tool; a class, so that it can be pickled with its sandbox.

    A program that ran to its end is not run again: an episode that is replayed, forked or restored is told the same
    again, at no cost. (Not where the sandbox has no seed: its random numbers are to differ.)
    """

    sandbox: Sandbox
    max_chars: int

    async def __call__(self, code: str) -> str:
        """Run a Python program and return what it prints. Every call starts afresh.

        Args:
            code: The whole program; print() what you want to see.
        """
        box = self.sandbox
        key = digest(code, self.max_chars, box.limits, box.seed, box.backend, str(box.packages))
        if (known := _kept.get(key)) is not None:
            return known
        try:
            result = await box.run(code)
        except SandboxFailure as failure:
            raise EnvironmentFailure("tool_failed", str(failure)) from failure
        told = result.describe(self.max_chars)
        if result.status in ("ok", "error") and box.seed is not None:  # how far others came depends on the machine
            _kept[key] = told
            if len(_kept) > KEPT:
                _kept.popitem(last=False)
        return told


@checked
def python_tool(
    sandbox: Sandbox | None = None, *, name: str = "python", max_chars: MaxChars = 2000
) -> Tool[[str], Any]:
    """A tool ``python(code)`` that runs programs in a sandbox.

    Args:
        sandbox: Where they run; one with the default limits by default.
        name: What the model calls it.
        max_chars: How many characters of the output, and of the errors, the model is told; at least 64.
    """
    sandbox = sandbox if sandbox is not None else Sandbox()
    # Both streams, the reason, and the marks of what was left out.
    return Tool(RunPython(sandbox, max_chars), name=name, max_chars=2 * max_chars + 500)
