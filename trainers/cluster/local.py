"""Ranks as processes of this machine: gloo on the CPU, NCCL where each has a GPU. Without Ray."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from trainers.cluster.group import Event, LearnerGroup
from trainers.cluster.parcel import pack, unpack
from trainers.cluster.pipe import Pipe, Shared

_PULSE_S = 0.5
_MESSAGE_S = 60.0  # a message, once begun, is over within so many seconds
_EXIT_S = 2.0  # after the end of its socket, a process that died can be asked how


class LocalRanks:
    """``count`` processes; see :class:`trainers.cluster.group.Transport`.

    They run this Python with this process's import path. Each ends with this process, however that ends.
    """

    def __init__(self, count: int) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[Pipe] = []
        self._selector = selectors.DefaultSelector()
        self._unreachable: list[int] = []
        try:
            for rank in range(count):
                self._start(rank, count)
        except BaseException:
            self.kill()
            self.close()
            raise

    def _start(self, rank: int, count: int) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(_MESSAGE_S)
        pipe = Pipe(ours)
        self._pipes.append(pipe)
        self._selector.register(pipe, selectors.EVENT_READ, rank)
        options = {"fd": theirs.fileno(), "rank": rank, "count": count, "local-rank": rank, "pulse": _PULSE_S}
        with theirs:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "trainers.cluster.worker"),
                    *(word for name, value in options.items() for word in (f"--{name}", str(value))),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else None,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                start_new_session=True,  # Ctrl-C is for the driver alone
            )
        self._processes.append(process)

    @property
    def count(self) -> int:
        """How many ranks there are."""
        return len(self._processes)

    def name(self, rank: int) -> str:
        """See :class:`trainers.cluster.group.Transport`."""
        return f"learner rank {rank} (process {self._processes[rank].pid})"

    def pid(self, rank: int) -> int:
        """Of a rank's process."""
        return self._processes[rank].pid

    def post(self, number: int, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """See :class:`trainers.cluster.group.Transport`."""
        shared = Shared(pack((method, args, dict(kwargs))))
        try:
            for rank, pipe in enumerate(self._pipes):
                try:
                    pipe.send(("call", number), shared)
                except OSError:
                    self._unreachable.append(rank)
        finally:
            shared.close()

    def poll(self, timeout: float) -> list[Event]:
        """See :class:`trainers.cluster.group.Transport`."""
        lost, self._unreachable = self._unreachable, []
        events = [Event(rank, "gone", 0, self._obituary(rank)) for rank in lost]
        for key, _ in self._selector.select(0.0 if events else timeout):
            rank = key.data
            message = self._pipes[rank].receive()
            if message is None:
                self._selector.unregister(key.fileobj)
                events.append(Event(rank, "gone", 0, self._obituary(rank)))
            else:
                (kind, number), parcel = message
                events.append(Event(rank, kind, number, unpack(parcel)))
        return events

    def kill(self) -> None:
        """See :class:`trainers.cluster.group.Transport`."""
        for process in self._processes:
            process.kill()  # between calls there is nothing to save, and what is stopped hears nothing else

    def close(self) -> None:
        """See :class:`trainers.cluster.group.Transport`."""
        self._selector.close()
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.wait()

    def _obituary(self, rank: int) -> str:
        until = time.monotonic() + _EXIT_S
        while (code := self._processes[rank].poll()) is None and time.monotonic() < until:
            time.sleep(0.01)
        if code is None:
            return "does not answer"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def local_group(ranks: int, model: Any, settings: Mapping[str, Any], **options: Any) -> LearnerGroup:
    """A learner on ``ranks`` processes of this machine; see :class:`~trainers.cluster.group.LearnerGroup`."""
    return LearnerGroup(LocalRanks(ranks), model, settings, **options)


def _has_descriptor(stream: Any) -> bool:
    try:
        stream.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True
