"""Shells for tests, or the proof that a machine without user namespaces refuses them in words that help."""

import functools

import pytest

from textenvs.sandbox import SandboxUnavailable
from textenvs.sandbox.result import ShellLimits
from textenvs.sandbox.shell import Shell, ShellResult, ShellState
from textenvs.sandbox.tree import Tree

#: Small enough that an attack is over soon.
SMALL = ShellLimits(cpu_s=1, wall_s=20, memory_mb=128, processes=12, disk_mb=2, output_bytes=4096)


@functools.cache
def _shell_or_refusal(limits: ShellLimits) -> Shell | str:
    try:
        return Shell(limits)
    except SandboxUnavailable as refusal:
        return str(refusal)


def shell_of(limits: ShellLimits = SMALL) -> Shell:
    shell = _shell_or_refusal(limits)
    if isinstance(shell, str):
        for word in ("- namespaces: ", "user namespaces", "in a container", "no shell without isolation"):
            assert word in shell
        pytest.skip("refused on this machine: " + shell.splitlines()[1])
    return shell


class Session:
    """A shell and its state, for tests that run one command after the other."""

    def __init__(self, files: dict[str, str] | None = None, limits: ShellLimits = SMALL) -> None:
        self.shell = shell_of(limits)
        self.state = ShellState.of(Tree.of(files or {}))

    def __call__(self, command: str, **options: float) -> ShellResult:
        self.state, result = self.shell.run_now(self.state, command, **options)
        return result
