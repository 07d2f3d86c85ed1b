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

#: Size of a process's cache: results of so many programs.
CACHE_SIZE = 512

# By digest: a program may be a megabyte. Every single operation on it is safe in threads.
_cache: OrderedDict[bytes, str] = OrderedDict()


@dataclass(frozen=True)
class RunPython:
    """The function behind the tool; a class, so that it can be pickled with its sandbox.

    A program that ran to its end is not run again: an episode that is replayed, forked or restored gets the cached
    output. (Not where the sandbox has no seed: its random numbers are to differ.)
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
        if (cached := _cache.get(key)) is not None:
            return cached
        try:
            result = await box.run(code)
        except SandboxFailure as failure:
            raise EnvironmentFailure("tool_failed", str(failure)) from failure
        output = result.describe(self.max_chars)
        if (
            result.status in ("ok", "error") and box.seed is not None
        ):  # how far a timed-out program came depends on the machine
            _cache[key] = output
            if len(_cache) > CACHE_SIZE:
                _cache.popitem(last=False)
        return output


@checked
def python_tool(
    sandbox: Sandbox | None = None, *, name: str = "python", max_chars: MaxChars = 2000
) -> Tool[[str], Any]:
    """Make a tool ``python(code)`` that runs programs in a sandbox.

    Args:
        sandbox: Where they run; one with the default limits by default.
        name: What the model calls it.
        max_chars: Most characters of the output, and of the errors, that the model sees; at least 64.
    """
    sandbox = sandbox if sandbox is not None else Sandbox()
    # Both streams, the reason, and the marks of omitted text.
    return Tool(RunPython(sandbox, max_chars), name=name, max_chars=2 * max_chars + 500)
