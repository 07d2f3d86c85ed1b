"""Weights to another process, by the transports that engines get them by: checksums, and seconds for a gigabyte.

``ipc``: the other process maps the sender's buckets on the same GPU (CUDA IPC; on a CPU, shared memory), by the
library's own sender, references and reader, and copies them into a model of its own, as a server does. Beside it, a
process group: NCCL to a second GPU where there is one, else gloo. The weights change between updates, and after the
last one the sums of the bits of all tensors must be the sender's.

*killed*: a receiver that is killed in an update by ``ipc`` must be an error within the time limit, and the
next receiver must get everything, without further memory on the sender's side.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.job import Job
from benchmarks.gpu.results import ROOT
from benchmarks.gpu.shapes import make_model
from trainers.engines.base import EngineError
from trainers.engines.links import SHARED
from trainers.engines.process_group import Group
from trainers.engines.transport import LocalSource, Receiver, Wants
from trainers.engines.weights import bits

_TIMES = 4
_TIMEOUT_S = 30.0


def run(job: Job) -> None:
    """Measure each shape and transport, in the type that engines compute in."""
    several = job.device.type == "cuda" and torch.cuda.device_count() > 1
    for shape in job.shapes:
        for backend in (SHARED, "nccl" if several else "gloo"):
            what = {"what": "weights", "shape": shape, "backend": backend}
            job.try_to(0 if job.toy else 10, partial(transfer, job, **what), **what)

    what = {"what": "killed", "shape": job.shapes[0]}
    job.try_to(0 if job.toy else 10, partial(killed, job, **what), **what)


def killed(job: Job, what: str, shape: str) -> None:
    """Kill a receiver in an update; good if the next one has its weights."""
    weights = {name: value.detach() for name, value in make_model(shape, job.device).named_parameters()}
    error, sums, memory = asyncio.run(_killed(job, weights))
    right = sums == {name: bits(value) for name, value in weights.items()}
    no_growth = memory[1] == memory[0]
    job.emit(what=what, shape=shape, error=error, allocated=memory, good=right and bool(error) and no_growth)


async def _killed(job: Job, weights: Mapping[str, Tensor]) -> tuple[str, dict[str, int], list[int]]:
    error, allocated = "", list[int]()
    for dies in (True, False):
        peer = Peer(str(job.device), SHARED, _bucket(job) // 4, dies=dies)
        await peer.start()
        try:
            await LocalSource.of(weights).broadcast(peer)
        except EngineError as failure:
            error = str(failure)
        if not dies:
            sums = await peer.ask({"sums": True})
        await peer.abandon()
        await peer.stop()
        allocated.append(torch.cuda.memory_allocated() if job.device.type == "cuda" else 0)
    return error, sums, allocated


def _bucket(job: Job) -> int:
    return 2**16 if job.toy else 256 * 2**20


def transfer(job: Job, what: str, shape: str, backend: str) -> None:
    """Send all weights of a shape a few times; good if the last ones arrived."""
    model = make_model(shape, job.device).to(torch.bfloat16)  # type: ignore[arg-type]
    weights = {name: value.detach() for name, value in model.named_parameters()}
    seconds, sums = asyncio.run(_updates(job, weights, backend))
    size = sum(value.nbytes for value in weights.values())
    good = sums == {name: bits(value) for name, value in weights.items()}
    job.emit(
        what=what,
        shape=shape,
        backend=backend,
        bytes=size,
        seconds=seconds,
        s_per_gb=round(min(seconds) * 1e9 / size, 4),
        good=good,
    )


async def _updates(job: Job, weights: Mapping[str, Tensor], backend: str) -> tuple[list[float], dict[str, int]]:
    device = "cuda:1" if backend == "nccl" else str(job.device)
    peer = Peer(device, backend, _bucket(job))
    await peer.start()
    seconds = []
    try:
        for _ in range(_TIMES):
            for value in weights.values():
                value.mul_(1.01)
            began = job.now()
            await LocalSource.of(weights).broadcast(peer)
            seconds.append(job.now() - began)
        return seconds[1:], await peer.ask({"sums": True})  # the first one reserves memory, and joins
    finally:
        await peer.abandon()
        await peer.stop()


class Peer(Receiver):
    """The other process, as an engine with one worker; see :mod:`benchmarks.gpu.peer`.

    Args:
        device: Its.
        backend: The transport.
        bucket_bytes: Of weights that travel at once.
        dies: Whether it is killed at the second bucket.
    """

    def __init__(self, device: str, backend: str, bucket_bytes: int, *, dies: bool = False) -> None:
        super().__init__()
        self._dies, self._buckets = dies, 0
        self._device, self._backend, self._bucket_bytes = device, backend, bucket_bytes
        self._place = ""
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it; returns when it is ready."""
        words, pipe = ["-m", "benchmarks.gpu.peer", self._device], asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdin=pipe, stdout=pipe, limit=2**24, cwd=ROOT
        )
        self._place = await self.ask({})

    async def stop(self) -> None:
        """Kill it."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.communicate()

    async def ask(self, order: Mapping[str, Any]) -> Any:
        """Return its answer to an order; EngineError: it has ended."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            await self._process.stdin.drain()
            answer = await self._process.stdout.readline()
        except ConnectionError:
            answer = b""
        if not answer:
            raise EngineError("the other process has ended; what it printed says why")
        return json.loads(answer)

    @property
    def wants(self) -> Wants:
        places = (self._place,) if self._backend == SHARED else ()
        return Wants(backend=self._backend, places=places, bucket_bytes=self._bucket_bytes, timeout_s=_TIMEOUT_S)

    async def join_group(self, group: Group) -> None:
        await self.ask({"join": group})

    async def leave_group(self, group: Group) -> None:
        await self.ask({"leave": True})

    async def receive(self, bucket: Mapping[str, Any], group: Group) -> None:
        await self.ask({"receive": bucket})

    async def read(self, references: Sequence[str]) -> None:
        self._buckets += 1
        if self._dies and self._buckets == 2:
            await self.stop()
        await self.ask({"read": references[0]})
