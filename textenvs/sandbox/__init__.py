"""A Python sandbox and a shell: code of a model runs without network, without files of the host, and within limits.

See docs/sandbox.md for what each backend guarantees, and what it does not.
"""

from .box import Sandbox
from .result import Limits, SandboxFailure, SandboxResult, SandboxUnavailable, ShellLimits
from .shell import Shell, ShellResult, ShellState
from .tree import Entry, Tree
from .worker import CORES, Pool, Worker, WorkerDied

__all__ = [
    "CORES",
    "Entry",
    "Limits",
    "Pool",
    "Sandbox",
    "SandboxFailure",
    "SandboxResult",
    "SandboxUnavailable",
    "Shell",
    "ShellLimits",
    "ShellResult",
    "ShellState",
    "Tree",
    "Worker",
    "WorkerDied",
]
