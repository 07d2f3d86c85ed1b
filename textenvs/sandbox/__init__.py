"""A Python sandbox: code of a model runs without network, without files of the host, and within limits.

See docs/sandbox.md for what each backend guarantees, and what it does not.
"""

from .box import Sandbox
from .result import Limits, SandboxFailure, SandboxResult, SandboxUnavailable
from .worker import CORES, Pool, Worker, WorkerDied

__all__ = [
    "CORES",
    "Limits",
    "Pool",
    "Sandbox",
    "SandboxFailure",
    "SandboxResult",
    "SandboxUnavailable",
    "Worker",
    "WorkerDied",
]
