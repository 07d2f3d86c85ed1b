"""Imported by the interpreter in the box as it starts: unseeded random numbers are the same every time.

``random`` and ``numpy.random`` are seeded when they are imported, so that programs without them do not wait for
them. The seed comes in an environment variable, so that interpreters which the code starts have it too.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # each import here would be paid for by every run
    from typing import Any


class _Seeding:
    """A finder that delegates to the default one, and seeds a module once it is loaded."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.pending = {"random", "numpy.random"}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.pending:
            return None
        from importlib.machinery import PathFinder

        self.pending.remove(name)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_seed(module: Any) -> None:
                load(module)
                module.seed(self.seed)

            spec.loader.exec_module = load_and_seed  # type: ignore[method-assign]
        return spec


_seed = os.environ.get("SANDBOX_SEED")
if _seed is not None:
    sys.meta_path.insert(0, _Seeding(int(_seed)))
