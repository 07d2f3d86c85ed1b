"""The Python sandbox as a tool: the model writes a program, and reads what it printed."""

from __future__ import annotations

from typing import Any

from ..env import EnvironmentFailure
from .sandbox import Sandbox, SandboxFailure
from .schema import Tool


class RunPython:
    """The function behind the tool; a class, so that it can be pickled with its sandbox.

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
        try:
            result = await self.sandbox.run(code)
        except SandboxFailure as failure:
            raise EnvironmentFailure("tool_failed", str(failure)) from failure
        return result.describe(self.max_chars)


def python_tool(sandbox: Sandbox | None = None, *, name: str = "python", max_chars: int = 2000) -> Tool[[str], Any]:
    """A tool ``python(code)`` that runs programs in a sandbox.

    Args:
        sandbox: Where they run; one with the default limits by default.
        name: What the model calls it.
        max_chars: How many characters of the output, and of the errors, the model is told; at least 64.

    Raises:
        SandboxUnavailable: No sandbox is given, and this machine has none.
    """
    sandbox = sandbox if sandbox is not None else Sandbox()
    # Both streams, the reason, and the marks of what was left out.
    return Tool(RunPython(sandbox, max_chars), name=name, max_chars=2 * max_chars + 500)
