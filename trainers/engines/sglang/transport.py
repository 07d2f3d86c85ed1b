"""Three ways to bring weights to a server: by value over HTTP, through a folder, through a process group."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from trainers.engines.base import EngineError
from trainers.engines.server import free_port

from .options import SGLangOptions
from .protocol import ServerInfo
from .weights import Bucket, buckets, payload


class Control(Protocol):
    """Asks the server to do something; see :meth:`.update.Updater.control`."""

    async def __call__(self, path: str, body: Mapping[str, Any]) -> Any:
        """Returns the body of the answer."""
        ...


class Transport:
    """Brings weights.

    Attributes:
        in_session: Whether this goes between ``begin_weight_update`` and ``end_weight_update``.
        begun: Whether the server may have taken something since this was last set to false.
    """

    in_session = True

    def __init__(self, control: Control, options: SGLangOptions) -> None:
        self.begun = False
        self._control, self._options = control, options

    async def send(self, weights: Mapping[str, Tensor], name: str, info: ServerInfo) -> None:
        """Send all of ``weights`` in buckets, and call them ``name`` with the last of them.

        Raises:
            EngineError: The server did not take them.
        """
        cut = list(buckets(weights, self._options.bucket_bytes))
        for bucket in cut:
            version = {"weight_version": name} if bucket is cut[-1] else {}
            await self._send_bucket(bucket, {"flush_cache": False, **version}, info)

    async def _send_bucket(self, bucket: Bucket, body: Mapping[str, Any], info: ServerInfo) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        """Give back what is held. Safe to call twice."""


class TensorTransport(Transport):
    """By value: pickled CPU tensors in the body of a request. Works from any machine, for any number of ranks."""

    async def _send_bucket(self, bucket: Bucket, body: Mapping[str, Any], info: ServerInfo) -> None:
        pickled = await asyncio.to_thread(payload, bucket)
        self.begun = True
        await self._control(
            "/update_weights_from_tensor", {"serialized_named_tensors": [pickled] * info.tp_size, **body}
        )


class DiskTransport(Transport):
    """Through a folder that the server can read: it stays until the next update, because the server now names it."""

    in_session = False

    def __init__(self, control: Control, options: SGLangOptions, model: Path) -> None:
        super().__init__(control, options)
        self._model = model
        self._last: Path | None = None

    async def send(self, weights: Mapping[str, Tensor], name: str, info: ServerInfo) -> None:
        """See :meth:`Transport.send`."""
        folder = await asyncio.to_thread(self._write, weights)
        try:
            self.begun = True
            await self._control(
                "/update_weights_from_disk", {"model_path": str(folder), "weight_version": name, "flush_cache": False}
            )
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        await self.close()
        self._last = folder

    async def close(self) -> None:
        """See :meth:`Transport.close`."""
        if self._last is not None:
            shutil.rmtree(self._last, ignore_errors=True)
            self._last = None

    def _write(self, weights: Mapping[str, Tensor]) -> Path:
        parent = self._options.update_folder
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="sglang-weights-", dir=parent))
        for file in self._model.iterdir():
            if file.is_file() and file.suffix in (".json", ".jinja", ".model", ".txt") and "index" not in file.name:
                shutil.copy(file, folder)
        save_file(dict(weights), folder / "model.safetensors", metadata={"format": "pt"})
        return folder


class DistributedTransport(Transport):
    """Through a process group: this process is rank 0 and broadcasts, the server's ranks receive.

    gloo where the server computes on the CPU, NCCL where it does on GPUs (that has not been run). The group is made at
    the first update and kept.
    """

    def __init__(self, control: Control, options: SGLangOptions) -> None:
        super().__init__(control, options)
        self._group: dist.ProcessGroup | None = None
        self._name = ""

    async def _send_bucket(self, bucket: Bucket, body: Mapping[str, Any], info: ServerInfo) -> None:
        if self._group is None:
            self._group = await self._join(info)
        described = {
            "names": [name for name, _ in bucket],
            "dtypes": [str(value.dtype).removeprefix("torch.") for _, value in bucket],
            "shapes": [list(value.shape) for _, value in bucket],
            "group_name": self._name,
        }
        self.begun = True
        try:
            await _both(
                self._control("/update_weights_from_distributed", {**described, **body}),
                asyncio.to_thread(_broadcast, self._group, [value for _, value in bucket], info.device),
            )
        except BaseException:
            await self.close()  # the two sides no longer agree on what comes next
            raise

    async def close(self) -> None:
        """See :meth:`Transport.close`."""
        group, self._group = self._group, None
        if group is None:
            return
        with contextlib.suppress(EngineError):
            await self._control("/destroy_weights_update_group", {"group_name": self._name})
        await asyncio.to_thread(dist.destroy_process_group, group)

    async def _join(self, info: ServerInfo) -> dist.ProcessGroup:
        backend = "gloo" if info.device == "cpu" else "nccl"
        self._name = f"textenvs-{uuid.uuid4().hex[:8]}"
        host, port, size = self._options.master_address, free_port(), 1 + info.tp_size
        timeout = timedelta(seconds=self._options.update_timeout_s)
        body = {
            "master_address": host,
            "master_port": port,
            "rank_offset": 1,
            "world_size": size,
            "group_name": self._name,
            "backend": backend,
        }
        _, group = await _both(
            self._control("/init_weights_update_group", body),
            asyncio.to_thread(_make_group, host, port, size, self._name, backend, timeout),
        )
        return group


def make_transport(control: Control, options: SGLangOptions, model: Path) -> Transport:
    """The transport that ``options.transport`` names; ``model`` is the folder of the model that is served."""
    if options.transport == "disk":
        return DiskTransport(control, options, model)
    return {"distributed": DistributedTransport, "tensor": TensorTransport}[options.transport](control, options)


async def _both(request: Any, work: Any) -> tuple[Any, Any]:
    """Await two things that wait for each other; where one fails, the other is not waited for."""
    tasks = [asyncio.ensure_future(request), asyncio.ensure_future(work)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done() and (error := task.exception()) is not None:
                if isinstance(error, EngineError):
                    raise error
                raise EngineError(f"the process group to the SGLang server failed: {error!r}") from error
        return tasks[0].result(), tasks[1].result()
    finally:
        for task in tasks:
            task.cancel()
            task.add_done_callback(lambda done: done.cancelled() or done.exception())


def _make_group(host: str, port: int, size: int, name: str, backend: str, timeout: timedelta) -> dist.ProcessGroup:
    # SGLang makes its side with this internal function, because torch has no public way to a group across independent
    # programs; the other side must be made the same way to meet it.
    from torch.distributed.distributed_c10d import (
        Backend,
        PrefixStore,
        _new_process_group_helper,
        _world,
        rendezvous,
    )

    store, _, _ = next(rendezvous(f"tcp://{host}:{port}", 0, size, timeout=timeout))
    store.set_timeout(timeout)
    group, _ = _new_process_group_helper(
        size,
        0,
        [],
        Backend(backend),
        PrefixStore(name, store),
        group_name=name,  # type: ignore[arg-type]  # a type of its own in newer versions
        timeout=timeout,
    )
    _world.pg_group_ranks[group] = {rank: rank for rank in range(size)}
    return group


def _broadcast(group: dist.ProcessGroup, values: Sequence[Tensor], device: str) -> None:
    # All at once, as the server receives them: in order, without waiting for each.
    sent = [value if device == "cpu" else value.to(torch.device(device)) for value in values]
    for work in [dist.broadcast(value, src=0, group=group, async_op=True) for value in sent]:
        work.wait()
