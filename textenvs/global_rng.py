"""Call into packages that draw from global generators, set the precision of decimals, print or warn.

Inside :func:`contained` the global generators of ``random`` and NumPy are in a state of the caller's choosing, and
afterwards as they were before; decimals have Python's default context; what this thread prints goes nowhere; warnings
are ignored. One call at a time in the whole process; another thread that draws meanwhile sees the borrowed state.
"""

from __future__ import annotations

import decimal
import random
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np

_LOCK = threading.RLock()


@dataclass
class RandomState:
    """The state of the global generators of ``random`` and NumPy; :func:`contained` sets it to how they ended."""

    python: tuple[Any, ...]
    numpy: tuple[Any, ...] | dict[str, Any]

    @classmethod
    def current(cls) -> RandomState:
        return cls(random.getstate(), np.random.get_state())  # noqa: NPY002

    @classmethod
    def seeded(cls, seed: int) -> RandomState:
        """Return the states after ``random.seed(seed)`` and ``numpy.random.seed(seed)``; a large seed in parts."""
        words = seed if seed < 2**32 else [seed >> shift & 0xFFFFFFFF for shift in range(0, seed.bit_length(), 32)]
        return cls(random.Random(seed).getstate(), np.random.RandomState(words).get_state())  # noqa: NPY002

    def install(self) -> None:
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002


@contextmanager
def contained(start: RandomState) -> Iterator[None]:
    """Run a block whose draws begin at ``start``, which afterwards holds where they ended for a later block."""
    with (
        _LOCK,
        warnings.catch_warnings(action="ignore"),
        decimal.localcontext(decimal.DefaultContext),
        redirect_stdout(_Muted(sys.stdout)),  # type: ignore[type-var]
        redirect_stderr(_Muted(sys.stderr)),  # type: ignore[type-var]
    ):
        outside = RandomState.current()
        start.install()
        try:
            yield
        finally:
            ended = RandomState.current()
            start.python, start.numpy = ended.python, ended.numpy
            outside.install()


class _Muted:
    """A stream (``None`` under a daemon) that drops what one thread writes, and passes on the rest."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        dropped = self._stream is None or threading.get_ident() == self._thread
        return len(text) if dropped else self._stream.write(text)  # type: ignore[union-attr]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
