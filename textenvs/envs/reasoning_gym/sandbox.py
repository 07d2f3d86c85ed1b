"""Call reasoning-gym's scorers in processes of their own, each score with a time limit.

A scorer that passes a part of an answer, or of a row, to ``eval`` or to sympy runs whatever code it holds. The guard of
:mod:`.scoring` looks at that text first, and these scorers are called in the sandbox besides, each score in a fresh
process. The others only compare; they share a process outside of the sandbox, which is killed when a score takes too
long: no reply can hold up the process that plays it.
"""

from __future__ import annotations

import ast
import functools
import inspect
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...python_text import parse_python
from ...sandbox import CORES, Limits, Pool, Sandbox, Worker, WorkerDied
from ...sandbox.answering import program

#: Seconds that one score may take.
TIMEOUT_S = 10.0
# The process that stays, and the one that scores. cpu_s is of the former; the latter has its own limit.
_LIMITS = Limits(cpu_s=1 << 20, wall_s=1 << 20, memory_mb=1536, processes=2)
_WORKER = Path(__file__).with_name("worker.py")

# Calling these, or importing one of these modules, is evaluating text, or a short way from it.
_CALLS = frozenset({"eval", "exec", "compile", "__import__"})
_MODULES = frozenset({"sympy", "importlib", "pickle", "subprocess", "runpy", "code", "ctypes"})


class ScoringFailed(Exception):
    """The scorer raised, did not end in time, or broke its process; the message says which."""


def evaluates(dataset: Any) -> bool:
    """Return whether a dataset's scorer, or that of a composite's part, may evaluate text.

    The source code is read, so that a scorer that evaluates in a later version only is detected.
    """
    parts = getattr(dataset, "datasets", None)
    if isinstance(parts, Mapping) and any(evaluates(part) for part in parts.values()):
        return True
    modules = {kind.__module__ for kind in type(dataset).__mro__ if kind.__module__.startswith("reasoning_gym.")}
    return any(_evaluates(module) for module in modules)


@functools.cache
def _evaluates(module: str) -> bool:
    nodes = list(ast.walk(parse_python(inspect.getsource(sys.modules[module]))))
    imported = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    imported += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    called = {node.id for node in nodes if isinstance(node, ast.Name)}
    return bool(called & _CALLS or {name.partition(".")[0] for name in imported} & _MODULES)


@dataclass(frozen=True)
class ProcessScorer:
    """A dataset's scorer, called in another process; any thread may call it.

    Args:
        opening: What the dataset is opened with: its name, its options as JSON text, its seed.
        sandboxed: Whether the process is one of the sandbox.
    """

    opening: tuple[str, str, int]
    sandboxed: bool

    @property
    def pool(self) -> Pool:
        return SANDBOXED if self.sandboxed else COMPARING

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """Score as the dataset does; raises ScoringFailed, and a SandboxFailure where no process can be started."""
        question = {"opening": self.opening, "answer": answer, "entry": entry, "timeout_s": TIMEOUT_S}
        try:  # a process of the sandbox watches the time itself, and stays
            result = self.pool.ask({**question, "fork": self.sandboxed}, TIMEOUT_S + 5.0 * self.sandboxed)
        except TimeoutError:
            result = {"error": f"the scorer was stopped: it took longer than {TIMEOUT_S:g} s"}
        except WorkerDied:
            result = {"error": "the scorer ended its process"}
        if "score" in result:
            return float(result["score"])
        raise ScoringFailed(result["error"])


def sandbox() -> Sandbox:
    return Sandbox(packages="installed", limits=_LIMITS)


def _start() -> Worker:
    command = [sys.executable, "-P", "-c", program(_WORKER)]  # -P: this folder is not a place to import from
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True)
    return Worker(process, max_bytes=1 << 20)


SANDBOXED = Pool(lambda: sandbox().start(program(_WORKER)), min(4, CORES), "textenvs-scorer")
COMPARING = Pool(_start, min(4, CORES), "textenvs-comparing")
