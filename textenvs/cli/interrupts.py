"""Ctrl-C and SIGTERM in a command that plays environments, whose code may hang or swallow an interrupt."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from ..startup import INTERRUPTED

#: How long a command has to end in order after the first signal, in seconds. Then the process ends at once.
GRACE_S = 3.0


@contextmanager
def interruptible(last_words: Callable[[], str]) -> Iterator[None]:
    """Within the block SIGINT and SIGTERM raise ``KeyboardInterrupt``; in the main thread alone.

    A process that has not ended :data:`GRACE_S` later, or gets a second signal, is ended here, with ``last_words``:
    some environment, policy or library is in a call that does not return.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signalled = False

    def leave() -> None:
        with suppress(OSError):
            os.write(2, f"\n{last_words()}\n".encode(errors="backslashreplace"))
        os._exit(INTERRUPTED)

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal signalled
        if signalled:
            leave()
        signalled = True
        timer = threading.Timer(GRACE_S, leave)
        timer.daemon = True  # an orderly end does not wait for it
        timer.start()
        raise KeyboardInterrupt

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if not signalled:
            for number, handler in before.items():
                signal.signal(number, handler)
