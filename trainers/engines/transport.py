"""How weights travel to an inference server: through a process group, through a folder, or by value over HTTP.

A transport cuts and sends; how a server is told to receive, its :class:`Receiver` knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import tempfile
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar
from urllib.parse import urlsplit

import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from trainers.engines.base import EngineError
from trainers.engines.parameters import Bucket, buckets
from trainers.engines.process_group import broadcast, make_group
from trainers.engines.server import ServerOptions, free_port

_Result = TypeVar("_Result")
Kind = Literal["weights", "base", "adapter"]

_LEAVE_S = 10.0  # to leave a process group


class Receiver(Protocol):
    """A server's endpoints for weights. Each raises EngineError where the server refuses.

    Attributes:
        begun: Whether the server's model may have taken something; see :class:`.weight_update.WeightUpdater`.
    """

    begun: bool

    @property
    def ranks(self) -> int:
        """Workers of the server that share the model."""
        ...

    @property
    def backend(self) -> str:
        """Of a process group with them: ``gloo``, or ``nccl`` where they have GPUs of their own."""
        ...

    async def join_group(self, group: Mapping[str, Any]) -> None:
        """Have the workers join (:func:`.process_group.make_group`), as ranks from 1 on; returns when they have."""
        ...

    async def leave_group(self, group: Mapping[str, Any]) -> None:
        """Have them leave it."""
        ...

    async def receive(self, described: Mapping[str, Any], group: Mapping[str, Any], kind: Kind) -> None:
        """Have them take part in a broadcast of tensors with these ``names``, ``dtypes`` and ``shapes``."""
        ...

    async def take(self, bucket: Bucket, kind: Kind) -> None:
        """Give them tensors by value."""
        ...

    async def load(self, folder: Path, kind: Kind) -> None:
        """Have them read ``model.safetensors`` of this folder, which stays until the next one was read."""
        ...


class WeightTransport(ABC):
    """Brings weights.

    Args:
        receiver: Of the server.
        options: How weights travel, and how patient to be.
    """

    whole: ClassVar[bool] = False  #: whether all comes at once, and not in buckets

    def __init__(self, receiver: Receiver, options: ServerOptions) -> None:
        self._receiver, self._options = receiver, options

    @abstractmethod
    async def send(self, weights: Mapping[str, Tensor], kind: Kind = "weights") -> None:
        """Send all of ``weights``, which lie on the CPU and are contiguous.

        Raises:
            EngineError: The server did not take them.
        """

    async def close(self) -> None:  # noqa: B027  # nothing to give back is common
        """Give back what is held. Safe to call twice."""


class BucketTransport(WeightTransport):
    """Sends tensors in buckets of about ``bucket_bytes``, one after another."""

    async def send(self, weights: Mapping[str, Tensor], kind: Kind = "weights") -> None:
        """See :meth:`WeightTransport.send`."""
        for bucket in buckets(weights, self._options.bucket_bytes):
            await self._send(bucket, kind)

    @abstractmethod
    async def _send(self, bucket: Bucket, kind: Kind) -> None: ...


class HTTPTransport(BucketTransport):
    """By value in the body of requests: from any machine, at the price of a copy as text."""

    async def _send(self, bucket: Bucket, kind: Kind) -> None:
        self._receiver.begun |= kind == "weights"
        await self._receiver.take(bucket, kind)


class DiskTransport(WeightTransport):
    """Through a folder that the server can read. The last one stays until the next was read, for SGLang names it."""

    whole = True

    def __init__(self, receiver: Receiver, options: ServerOptions, model: Path) -> None:
        super().__init__(receiver, options)
        self._model = model
        self._last: Path | None = None

    async def send(self, weights: Mapping[str, Tensor], kind: Kind = "weights") -> None:
        """See :meth:`WeightTransport.send`."""
        folder = await asyncio.to_thread(self._write, weights)
        try:
            self._receiver.begun |= kind == "weights"
            await self._receiver.load(folder, kind)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        await self.close()
        self._last = folder

    async def close(self) -> None:
        """See :meth:`WeightTransport.close`."""
        if self._last is not None:
            shutil.rmtree(self._last, ignore_errors=True)
            self._last = None

    def _write(self, weights: Mapping[str, Tensor]) -> Path:
        parent = self._options.update_folder
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="weights-", dir=parent))
        for file in self._model.iterdir():
            if file.is_file() and file.suffix in (".json", ".jinja", ".model", ".txt") and "index" not in file.name:
                shutil.copy(file, folder)
        save_file(dict(weights), folder / "model.safetensors", metadata={"format": "pt"})
        return folder


class ProcessGroupTransport(BucketTransport):
    """This process is rank 0 and broadcasts, the server's workers receive.

    NCCL where the server has GPUs of its own, which was never run; else gloo. The group is made
    at the first update and kept.
    """

    def __init__(self, receiver: Receiver, options: ServerOptions, base_url: str) -> None:
        super().__init__(receiver, options)
        self._base_url = base_url
        self._joined: tuple[dist.ProcessGroup, Mapping[str, Any]] | None = None

    async def _send(self, bucket: Bucket, kind: Kind) -> None:
        if self._joined is None:
            self._joined = await self._join()
        group, described = self._joined
        values = [value for _, value in bucket]
        tensors = {
            "names": [name for name, _ in bucket],
            "dtypes": [str(value.dtype).removeprefix("torch.") for value in values],
            "shapes": [list(value.shape) for value in values],
        }
        self._receiver.begun |= kind == "weights"
        try:
            await _both(
                self._receiver.receive(tensors, described, kind),
                _in_thread(lambda: _broadcast(group, values, described["backend"])),
            )
        except BaseException:
            await self.close()  # the two sides no longer agree on what comes next
            raise

    async def close(self) -> None:
        """See :meth:`WeightTransport.close`."""
        joined, self._joined = self._joined, None
        if joined is not None:
            with contextlib.suppress(EngineError, TimeoutError):
                await asyncio.wait_for(self._receiver.leave_group(joined[1]), _LEAVE_S)
            with contextlib.suppress(TimeoutError):  # where something is still under way in it
                await asyncio.wait_for(_in_thread(lambda: dist.destroy_process_group(joined[0])), _LEAVE_S)

    async def _join(self) -> tuple[dist.ProcessGroup, Mapping[str, Any]]:
        group: dict[str, Any] = {
            "address": self._options.master_address or _own_address(self._base_url),
            "port": free_port(),
            "name": f"textenvs-{uuid.uuid4().hex[:8]}",
            "size": 1 + self._receiver.ranks,
            "backend": self._receiver.backend,
            "timeout_s": self._options.update_timeout_s,
        }
        made, _ = await _both(
            _in_thread(lambda: make_group(rank=0, **group)),
            self._receiver.join_group(group),
        )
        return made, group


def make_transport(receiver: Receiver, options: ServerOptions, model: Path, base_url: str) -> WeightTransport:
    """The transport that the options name.

    Args:
        receiver: Of the server.
        options: Of the engine.
        model: Folder of the model that is served.
        base_url: Of the server.
    """
    way = options.transport
    if way == "auto":
        way = "process_group" if options.base_url is None else "http"
    if way == "disk":
        return DiskTransport(receiver, options, model)
    if way == "http":
        return HTTPTransport(receiver, options)
    return ProcessGroupTransport(receiver, options, base_url)


def _own_address(url: str) -> str:
    """This machine's address on the way to that server."""
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # which sends nothing
        probe.connect((parts.hostname or "127.0.0.1", parts.port or 80))
        return str(probe.getsockname()[0])


async def _both(work: Any, request: Any) -> tuple[Any, Any]:
    """Await two things that wait for each other; where one fails, the other is not waited for."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(request)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in reversed(tasks):  # what the server says comes first
            if task.done() and (error := task.exception()) is not None:
                if isinstance(error, EngineError):
                    raise error
                raise EngineError(f"the process group to the server failed: {error!r}") from error
        return tasks[0].result(), tasks[1].result()
    finally:
        for task in tasks:
            task.cancel()
            task.add_done_callback(lambda done: done.cancelled() or done.exception())


def _in_thread(work: Callable[[], _Result]) -> asyncio.Future[_Result]:
    """Do something in a thread that this process does not wait for when it ends: the server may be gone."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Result] = loop.create_future()

    def settle(result: _Result | None, error: BaseException | None) -> None:
        if not future.done():
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: whoever waited is gone
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="weights", daemon=True).start()
    return future


def _broadcast(group: dist.ProcessGroup, values: list[Tensor], backend: str) -> None:
    broadcast(group, values if backend == "gloo" else [value.cuda() for value in values])
