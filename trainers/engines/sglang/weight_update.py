"""SGLang's endpoints for weights."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import pickle
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainers.engines.base import EngineError
from trainers.engines.http import UnreachableError
from trainers.engines.parameters import Bucket
from trainers.engines.transport import Kind
from trainers.engines.weight_update import WeightUpdater

from .protocol import Checksums, read

_FLUSH_AGAIN_S = 0.2


class SGLangUpdater(WeightUpdater):
    """See :class:`trainers.engines.weight_update.WeightUpdater`."""

    kind = "SGLang"

    @property
    def exact_checksums(self) -> bool:  # type: ignore[override]
        """On GPUs SGLang hashes in a way of its own."""
        return self.device == "cpu"

    def _without(self, path: str) -> str:
        return "it must be version 0.5.23 or newer"

    async def _pause(self, *, abort: bool) -> None:
        # "retract" gives up the KV of what runs, which is then computed again with the new weights; "in_place" would
        # go on from KV that the old ones made.
        await self.control("/pause_generation", {"mode": "abort" if abort else "retract"})

    async def _resume(self) -> None:
        await self.control("/continue_generation", {})

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncIterator[None]:
        if self._transport.whole:  # a disk's update is a session of its own
            yield
            return
        try:
            await self.control("/begin_weight_update", {})
        except UnreachableError:
            raise
        except EngineError:  # a crashed client may have left one open
            await self.control("/end_weight_update", {})
            await self.control("/begin_weight_update", {})
        try:
            yield
        except BaseException:
            with contextlib.suppress(EngineError):  # what failed first is what counts
                await self.control("/end_weight_update", {})
            raise
        await self.control("/end_weight_update", {})

    async def _flush(self) -> None:
        """The server refuses while it is busy."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._options.health_timeout_s
        while True:
            try:
                await self.control("/flush_cache", {})
                return
            except UnreachableError:
                raise
            except EngineError:
                if clock() > deadline:
                    raise
            await asyncio.sleep(_FLUSH_AGAIN_S)

    async def _checksums(self) -> Mapping[str, tuple[Any, ...]]:
        return read(Checksums, await self.control("/weights_checker", {"action": "checksum"})).by_name()

    def _checksum(self, parts: Iterator[Tensor]) -> str:
        """The first 64 bits of the SHA-256 of a parameter's bytes."""
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.digest()[:8].hex()

    async def join_group(self, group: Mapping[str, Any]) -> None:
        """See :class:`trainers.engines.transport.Receiver`, also for the following."""
        await self.control(
            "/init_weights_update_group",
            {
                "master_address": group["address"],
                "master_port": group["port"],
                "rank_offset": 1,
                "world_size": group["size"],
                "group_name": group["name"],
                "backend": group["backend"],
            },
        )

    async def leave_group(self, group: Mapping[str, Any]) -> None:  # noqa: D102
        await self.control("/destroy_weights_update_group", {"group_name": group["name"]})

    async def receive(self, described: Mapping[str, Any], group: Mapping[str, Any], kind: Kind) -> None:  # noqa: D102
        await self._update("distributed", {**described, "group_name": group["name"]})

    async def take(self, bucket: Bucket, kind: Kind) -> None:  # noqa: D102
        pickled = await asyncio.to_thread(payload, bucket)
        await self._update("tensor", {"serialized_named_tensors": [pickled] * self.ranks})

    async def load(self, folder: Path, kind: Kind) -> None:  # noqa: D102
        await self._update("disk", {"model_path": str(folder)})

    async def _update(self, way: str, body: Mapping[str, Any]) -> None:
        common = {"flush_cache": False, "weight_version": self._label}
        await self.control(f"/update_weights_from_{way}", {**body, **common})


def payload(bucket: Bucket) -> str:
    """A bucket as ``/update_weights_from_tensor`` takes it: base64 of a pickle of named CPU tensors."""
    # A pickled tensor takes its whole storage along; a slice must not take what it was cut from.
    alone = [
        (name, value if value.untyped_storage().nbytes() == value.nbytes else value.clone()) for name, value in bucket
    ]
    return base64.b64encode(pickle.dumps(alone)).decode("ascii")
