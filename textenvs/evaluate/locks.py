"""A lock on an open file, by which one process at a time holds a folder."""

from __future__ import annotations


def lock(descriptor: int) -> None:
    """Take the lock of an open file until it is closed; do without on a system that has no such locks.

    Raises:
        BlockingIOError: Somebody else has it.
        OSError: The file system has no locks.
    """
    try:
        import fcntl
    except ImportError:  # Windows has other locks; there, one process at a time is up to the user
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
