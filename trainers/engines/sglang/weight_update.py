"""SGLang's endpoints for weights."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import pickle
from collections.abc import AsyncIterator, Mapping
from operator import ne
from pathlib import Path
from typing import Any

from trainers.engines.base import EngineError
from trainers.engines.http import UnreachableError
from trainers.engines.parameters import Sums
from trainers.engines.process_group import Group
from trainers.engines.transport import Bucket
from trainers.engines.weight_update import WeightUpdater

from .protocol import Checksums, read

_FLUSH_AGAIN_S = 0.2


class SGLangUpdater(WeightUpdater):
    """See :class:`trainers.engines.weight_update.WeightUpdater`."""

    server = "SGLang"
    checksum_kind = "sha256"

    def _wrong(self, wanted: Sums, found: Sums) -> list[str]:
        """On GPUs SGLang hashes in a way of its own: a checksum must have changed exactly where what was sent has."""
        if self.device == "cpu" and self._dtype is not None:
            return super()._wrong(wanted, found)
        known = wanted.keys() & found.keys() & self._wanted.keys() & self._found.keys()
        return sorted(
            name
            for name in known
            if list(map(ne, wanted[name], self._wanted[name])) != list(map(ne, found[name], self._found[name]))
        )

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
        if self.transport == "disk":  # whose update is a session of its own
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

    async def _checksums(self) -> Sums:
        return read(Checksums, await self.control("/weights_checker", {"action": "checksum"})).by_name()

    async def join_group(self, group: Group) -> None:
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

    async def leave_group(self, group: Group) -> None:
        await self.control("/destroy_weights_update_group", {"group_name": group["name"]})

    async def receive(self, bucket: Mapping[str, Any], group: Group) -> None:
        self._may_begin()
        await self._update("distributed", {**bucket, "group_name": group["name"]})

    async def _take(self, bucket: Bucket) -> None:
        pickled = await asyncio.to_thread(payload, bucket)
        await self._update("tensor", {"serialized_named_tensors": [pickled] * self.ranks})

    async def _load(self, folder: Path) -> None:
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
