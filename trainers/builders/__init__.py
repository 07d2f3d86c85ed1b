"""Builders of a run's parts from a configuration; none trains or plays. :mod:`trainers.ppo` uses them in order.

If a part is not available, they raise :class:`.SetupError`, which names the key to change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class SetupError(ValueError):
    """A run cannot be put together; the message says why and what to do."""

    exit_code = 1


class RefusedError(SetupError):
    """A SetupError before anything was started; ``--dry-run`` finds it, too."""

    exit_code = 2


@contextmanager
def setup_errors(prefix: str, *expected: type[Exception]) -> Iterator[None]:
    """Raise the ``expected`` errors of the block as :class:`SetupError`, with ``prefix`` before their message."""
    try:
        yield
    except expected as error:
        raise SetupError(f"{prefix}{error}") from error


@contextmanager
def nothing_started() -> Iterator[None]:
    """Raise :class:`SetupError` of the block as :class:`RefusedError`."""
    try:
        yield
    except SetupError as error:
        raise RefusedError(str(error)) from error
