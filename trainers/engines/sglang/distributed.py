"""Weights through a process group: this process is rank 0 and broadcasts, the server's ranks receive.

gloo where the server computes on the CPU, NCCL where it does on GPUs (that has not been run). The group is made at the
first update and kept. SGLang makes its side with torch's internal ``_new_process_group_helper``, because torch has no
public way to a group across independent programs; the other side must be made the same way to meet it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.engines.base import EngineError

from .options import SGLangOptions
from .server_info import ServerInfo
from .weights import Bucket, buckets

if TYPE_CHECKING:
    from .transport import Control


class DistributedCarrier:
    """See :class:`.transport.Carrier`."""

    in_session = True

    def __init__(self, control: Control, options: SGLangOptions) -> None:
        self.begun = False
        self._control, self._options = control, options
        self._group: dist.ProcessGroup | None = None
        self._name = ""

    async def bring(self, weights: Mapping[str, Tensor], name: str, info: ServerInfo) -> None:
        """See :meth:`.transport.Carrier.bring`."""
        if self._group is None:
            self._group = await self._join(info)
        cut = list(buckets(weights, self._options.bucket_bytes))
        for bucket in cut:
            body: dict[str, Any] = {
                "names": [name for name, _ in bucket],
                "dtypes": [str(value.dtype).removeprefix("torch.") for _, value in bucket],
                "shapes": [list(value.shape) for _, value in bucket],
                "group_name": self._name,
                "flush_cache": False,
            }
            if bucket is cut[-1]:
                body["weight_version"] = name
            self.begun = True
            try:
                await _both(
                    self._control("/update_weights_from_distributed", body),
                    asyncio.to_thread(_broadcast, self._group, bucket, info.device),
                )
            except BaseException:
                await self.close()  # the two sides no longer agree on what comes next
                raise

    async def close(self) -> None:
        """See :meth:`.transport.Carrier.close`."""
        group, self._group = self._group, None
        if group is None:
            return
        with contextlib.suppress(EngineError):
            await self._control("/destroy_weights_update_group", {"group_name": self._name}, missing_ok=True)
        await asyncio.to_thread(dist.destroy_process_group, group)

    async def _join(self, info: ServerInfo) -> dist.ProcessGroup:
        backend = "gloo" if info.device == "cpu" else "nccl"
        self._name = f"textenvs-{uuid.uuid4().hex[:8]}"
        host = self._options.master_address
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = int(probe.getsockname()[1])
        timeout = timedelta(seconds=self._options.update_timeout_s)
        body = {
            "master_address": host,
            "master_port": port,
            "rank_offset": 1,
            "world_size": 1 + info.ranks,
            "group_name": self._name,
            "backend": backend,
        }
        _, group = await _both(
            self._control("/init_weights_update_group", body),
            asyncio.to_thread(_make_group, host, port, 1 + info.ranks, self._name, backend, timeout),
        )
        return group


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
    from torch.distributed.distributed_c10d import (
        Backend,
        PrefixStore,
        _new_process_group_helper,
        _world,
        rendezvous,
    )

    store, _, _ = next(rendezvous(f"tcp://{host}:{port}", 0, size, timeout=timeout))
    store.set_timeout(timeout)
    prefixed = PrefixStore(name, store)
    group, _ = _new_process_group_helper(
        size,
        0,
        [],
        Backend(backend),
        prefixed,
        group_name=name,  # type: ignore[arg-type]  # a type of its own in newer versions
        timeout=timeout,
    )
    _world.pg_group_ranks[group] = {rank: rank for rank in range(size)}
    return group


def _broadcast(group: dist.ProcessGroup, bucket: Bucket, device: str) -> None:
    # All at once, as the server receives them: in order, without waiting for each.
    sent = [value if device == "cpu" else value.to(torch.device(device)) for _, value in bucket]
    for work in [dist.broadcast(value, src=0, group=group, async_op=True) for value in sent]:
        work.wait()
