"""An engine's workers without an engine: a process that joins groups and receives, so that it can be killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from forked import forking, without_old_objects

from trainers.engines.base import EngineError
from trainers.engines.process_group import Group, broadcast, make_group
from trainers.engines.shared_memory import tensors_of
from trainers.engines.transport import Receiver, Wants, in_thread
from trainers.engines.weights import ChecksumRule, Checksums


class WorkerProcess:
    """A process that takes orders."""

    def __init__(self) -> None:
        context = forking()
        self._orders, orders = context.Pipe()
        self._process = context.Process(target=without_old_objects, args=(take_orders, orders), daemon=True)
        self._process.start()
        orders.close()  # so that its death ends the pipe
        self._in_turn = threading.Lock()  # an order that was given up in its thread still reads its own reply

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def order(self, what: str, argument: Any = None) -> Any:
        try:
            with self._in_turn:
                self._orders.send((what, argument))
                status, result = self._orders.recv()
        except (EOFError, OSError) as error:
            raise EngineError("the worker is gone") from error
        if status == "error":
            raise EngineError(result)
        return result

    def end(self) -> None:
        self._process.kill()
        self._process.join()


class Workers(Receiver):
    """One worker, in a process of its own.

    Args:
        refuse: The number of the bucket that it refuses.
        stop: The number of the bucket before which it hangs.
        die: The number of the bucket before which it is killed.
        process: One in which no update is in progress; by default a new one.
        wants: See :class:`Receiver`.
    """

    def __init__(
        self,
        *,
        refuse: int | None = None,
        stop: int | None = None,
        die: int | None = None,
        process: WorkerProcess | None = None,
        **wants: Any,
    ) -> None:
        super().__init__()
        self._wants = Wants(**{"rule": ChecksumRule(), "bucket_bytes": 20_000, "timeout_s": 60.0} | wants)
        self._faults = {refuse: "refuse", stop: "stop", die: "die"}
        self.buckets = 0
        self.process = process or WorkerProcess()

    @property
    def wants(self) -> Wants:
        return self._wants

    async def join_group(self, group: Group) -> None:
        await self._order("join", dict(group))

    async def leave_group(self, group: Group) -> None:
        await self._order("leave")

    async def receive(self, bucket: Mapping[str, Any], group: Group) -> None:
        await self._take("receive", dict(bucket))

    async def read(self, references: Sequence[str]) -> None:
        await self._take("read", references[0])

    async def _take(self, what: str, bucket: Any) -> None:
        fault, self.buckets = self._faults.get(self.buckets), self.buckets + 1
        if fault == "refuse":
            raise EngineError("out of memory")
        if fault is not None:
            os.kill(self.process.pid, signal.SIGSTOP if fault == "stop" else signal.SIGKILL)
        await self._order(what, bucket)

    async def checksums(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(sums) for name, sums in (await self._order("checksums")).items()}

    def close(self) -> None:
        self.process.end()

    async def _order(self, what: str, argument: Any = None) -> Any:
        return await in_thread(lambda: self.process.order(what, argument))


def take_orders(orders: Connection[Any, Any]) -> None:
    joined: Any = None
    sums = Checksums(ChecksumRule())
    while True:
        try:
            what, argument = orders.recv()
        except EOFError:  # the tests' process has ended
            return
        try:
            result: Any = None
            if what == "join":
                joined = make_group(argument, 1)
            elif what == "leave" and joined is not None:
                dist.destroy_process_group(joined)
                joined = None
            elif what == "receive":
                kinds = [getattr(torch, kind) for kind in argument["dtypes"]]
                values = [torch.empty(shape, dtype=kind) for shape, kind in zip(argument["shapes"], kinds, strict=True)]
                broadcast(joined, values)
                for name, value in zip(argument["names"], values, strict=True):
                    sums.add(name, value)
            elif what == "read":
                for name, value in tensors_of(argument):
                    sums.add(name, value)
                del value
            elif what == "checksums":
                result, sums = sums.result(), Checksums(ChecksumRule())
            answer = ("ok", result)
        except Exception as error:
            answer = ("error", repr(error))
        orders.send(answer)
