"""A rank in a process of this machine: ``python -m trainers.cluster.worker``, started by :mod:`.local`.

Three threads: this one computes, one reads orders (and ends the process when there is nobody left who gives any, even
in the middle of a collective operation), one says that the process lives.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import socket
import threading
from typing import Any

from trainers.cluster.parcel import pack, unpack
from trainers.cluster.pipe import Pipe
from trainers.cluster.rank import Failure, RankHost, send_pulses
from trainers.cluster.watch import Pulse


def main() -> None:
    """The whole life of a rank."""
    parser = argparse.ArgumentParser()
    for name in ("fd", "rank", "count", "local-rank"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--pulse", type=float, required=True)
    given = parser.parse_args()
    # An interrupt is for the driver, which saves a checkpoint with the help of the ranks.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    pipe = Pipe(socket.socket(fileno=given.fd))
    host = RankHost(given.rank, given.count, given.local_rank)
    orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(pipe, orders), name="orders", daemon=True).start()
    busy = _Busy()
    threading.Thread(
        target=send_pulses,
        args=(host, lambda pulse: _say(pipe, busy, pulse), given.pulse, threading.Event()),
        name="pulse",
        daemon=True,
    ).start()
    while True:
        number, order = orders.get()
        busy.number = number
        try:
            method, args, kwargs = unpack(order)
            result = host.run(method, args, kwargs)
        except Exception as error:  # what was sent cannot be read: its module is not importable here
            result = Failure.of(error)
        failed = isinstance(result, Failure)
        # Ranks compute the same, so one answer is enough.
        answer = result if failed or host.rank == 0 else None
        try:
            parcel = pack(answer)
        except ValueError as error:
            failed, parcel = True, pack(Failure.of(error))
        del result, answer, order
        busy.number = None
        pipe.send(("failed" if failed else "done", number), parcel)


class _Busy:
    number: int | None = None  # of the call at work


def _say(pipe: Pipe, busy: _Busy, pulse: Pulse) -> None:
    if busy.number is not None:  # while nobody asks, nobody reads
        pipe.send(("pulse", busy.number), pack(pulse))


def _read(pipe: Pipe, orders: queue.SimpleQueue[Any]) -> None:
    try:
        while (message := pipe.receive()) is not None:
            (_, number), parcel = message
            orders.put((number, parcel))
    finally:
        os._exit(0)  # the driver is gone, or does not want this rank any more


if __name__ == "__main__":
    main()
