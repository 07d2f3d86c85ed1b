"""A shell as a tool: the model runs commands, and files, variables and the working directory last over the turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import Field

from ..env import EnvironmentFailure, EpisodeState
from ..options import checked
from ..sandbox import SandboxFailure
from ..sandbox.shell import Shell, ShellResult, ShellState
from .schema import MaxChars, Tool


@dataclass
class HasShell(EpisodeState):
    """The state of an episode with a shell; an environment's state class is a subclass of it and of ``ToolState``.

    The shell's state is immutable: snapshots and forks of the episode share it, and a fork's commands leave it alone.
    """

    shared: ClassVar[tuple[str, ...]] = (*EpisodeState.shared, "shell")

    shell: ShellState = field(default_factory=ShellState.of)


class RunsCommands(Protocol):
    """Runs commands: a :class:`~textenvs.sandbox.Shell`, or another with a state of its own."""

    async def run(self, state: Any, command: str, *, timeout_s: float | None = None) -> tuple[Any, ShellResult]:
        """Return the state after a command, and its result; ``SandboxFailure`` where nothing could be run."""


@dataclass(frozen=True)
class RunCommand:
    """The function behind the tool; a class, so that it can be pickled with its shell."""

    shell: RunsCommands
    max_chars: int

    async def __call__(
        self, command: str, state: HasShell, timeout_s: Annotated[float, Field(ge=0.1)] | None = None
    ) -> str:
        """Run commands in bash. Files, variables, functions and the working directory last; background jobs do not.

        Args:
            command: One command, or a script of several lines.
            state: The episode.
            timeout_s: Seconds after which it is stopped; at most and by default what the environment allows.
        """
        try:
            state.shell, result = await self.shell.run(state.shell, command, timeout_s=timeout_s)
        except SandboxFailure as failure:
            raise EnvironmentFailure("tool_failed", str(failure)) from failure
        return result.describe(self.max_chars)


@checked
def shell_tool(
    shell: RunsCommands | None = None, *, name: str = "run", max_chars: MaxChars = 4000
) -> Tool[[str, HasShell], object]:
    """Make a tool ``run(command, timeout_s)`` for an environment whose state is a :class:`HasShell`.

    Args:
        shell: What runs the commands; one with the default limits by default.
        name: What the model calls it.
        max_chars: Most bytes of a command's output that the model sees; at least 64.

    Raises:
        SandboxUnavailable: This machine cannot isolate a shell.
    """
    # The notes, the exit code, and the mark of omitted output.
    return Tool(RunCommand(shell or Shell(), max_chars), name=name, max_chars=max_chars + 2000)  # type: ignore[arg-type]
