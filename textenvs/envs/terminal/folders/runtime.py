"""The interface of what plays a folder's tasks: a sandbox, or containers."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any, Protocol

from ....sandbox import ShellResult
from ....sandbox.shell import COMMAND_BYTES
from .formats import FolderTask
from .verdict import Verdict


class Runtime(Protocol):
    """Plays tasks. What fails by no command's doing is a :class:`~textenvs.sandbox.SandboxFailure`.

    The state of an episode is a picklable value, which only the runtime reads, but for its ``cwd``.
    """

    def check(self, tasks: Sequence[FolderTask]) -> None:
        """Raise ``TaskError`` for tasks that this runtime cannot play; for all of them at once."""

    async def begin(self, task: FolderTask) -> Any:
        """Return the state in which the task's environment is untouched."""

    async def run(self, state: Any, command: str, *, timeout_s: float | None = None) -> tuple[Any, ShellResult]:
        """Run a command of the policy; whatever it does ends in the result."""

    async def judge(self, task: FolderTask, state: Any) -> Verdict:
        """Run the tests in a clean copy of the files of ``state``."""

    def end(self, state: Any) -> None:
        """Release what is held for a state whose episode is over."""

    def close(self) -> None:
        """Release everything."""


def solution_command(task: FolderTask) -> str | None:
    """Return one command that writes the solution's files and runs its script; ``None`` where there is none.

    None is returned, too, for a solution that is longer than a command may be.
    """
    files = task.solution()
    if files is None:
        return None
    lines = [f"mkdir -p {quote(folder)}" for folder in sorted({f"/{path}".rpartition("/")[0] for path in files})]
    for path, (content, mode) in files.items():
        lines.append(_written(f"/{path}", content))
        if mode & 0o100:
            lines.append(f"chmod +x {quote(f'/{path}')}")
    variables = "".join(f"{name}={quote(value)} " for name, value in task.solution_variables.items())
    command = "\n".join([*lines, f"{variables}bash {task.solution_script}"])
    return command if len(command.encode()) <= COMMAND_BYTES else None


def exported(variables: Mapping[str, str]) -> str:
    """Return the command that exports variables; empty for none."""
    return "".join(f"export {name}={quote(value)}\n" for name, value in variables.items())


def _written(path: str, content: bytes) -> str:
    """Return the command that writes a file: as text where that is exact, else in base 64."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    lines = text.splitlines()
    if "\0" in text or "\r" in text or not text.endswith("\n"):
        return f"base64 -d > {quote(path)} <<< {base64.b64encode(content).decode()}"
    mark = "END"
    while mark in lines:
        mark += "_"
    return f"cat > {quote(path)} <<'{mark}'\n{text}{mark}"
