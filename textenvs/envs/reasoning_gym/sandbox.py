"""Which of reasoning-gym's scorers evaluate text, and how these are called: in the sandbox.

A scorer that passes a part of an answer, or of a row, to ``eval`` or to sympy runs whatever code it holds. The guard of
:mod:`.scoring` looks at that text first, and these scorers are called in the sandbox besides, in a process that stays.
The others only compare, and are called in this process.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...sandbox import CORES, Limits, Pool, Sandbox, WorkerDied

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
    """Whether a dataset's scorer may evaluate text: its module, or one of a composite's parts, is able to.

    Read from the source code, so that a scorer which begins to do so in a later version is found.
    """
    parts = getattr(dataset, "datasets", None)
    if isinstance(parts, Mapping) and any(evaluates(part) for part in parts.values()):
        return True
    modules = {kind.__module__ for kind in type(dataset).__mro__ if kind.__module__.startswith("reasoning_gym.")}
    return any(_evaluates(module) for module in modules)


@functools.cache
def _evaluates(module: str) -> bool:
    nodes = list(ast.walk(ast.parse(inspect.getsource(sys.modules[module]))))
    imported = [each.name for node in nodes if isinstance(node, ast.Import) for each in node.names]
    imported += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    called = {node.id for node in nodes if isinstance(node, ast.Name)}
    return bool(called & _CALLS or {name.partition(".")[0] for name in imported} & _MODULES)


@dataclass(frozen=True)
class SandboxedScorer:
    """A dataset's scorer, called in the sandbox; any thread may call it."""

    #: What the dataset is opened with: :meth:`~.tasks.ReasoningGymTasks.opening`.
    opening: tuple[str, str, int, int]

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """As of the dataset; raises ScoringFailed, and a SandboxFailure where the sandbox itself failed."""
        question = {"opening": self.opening, "answer": answer, "entry": entry, "timeout_s": TIMEOUT_S}
        try:
            said = POOL.ask(question, TIMEOUT_S + 5.0)
        except TimeoutError:
            said = {"error": "it took too long"}
        except WorkerDied:
            said = {"error": "the scorer ended its process"}
        if "score" in said:
            return float(said["score"])
        raise ScoringFailed(said["error"])


def sandbox() -> Sandbox:
    return Sandbox(packages="installed", limits=_LIMITS)


POOL = Pool(lambda: sandbox().start(_WORKER.read_text("utf-8")), min(4, CORES), "textenvs-scorer")
