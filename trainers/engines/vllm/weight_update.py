"""vLLM's endpoints for weights (0.32), with the backend of :mod:`.server.transfer`."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save

from trainers.engines.base import EngineError
from trainers.engines.http import UnreachableError
from trainers.engines.parameters import Sums, differing
from trainers.engines.process_group import Group
from trainers.engines.transport import AdapterSource, Bucket, Weights
from trainers.engines.weight_update import WeightUpdater

_WRAPPED = re.compile(r"Call to \w+ method failed: Worker failed with error '(.*)', please check the stack[^:]*", re.S)


class VLLMUpdater(WeightUpdater):
    """See :class:`trainers.engines.weight_update.WeightUpdater`; the base of a LoRA run is sent once."""

    server = "vLLM"
    checksum_kind = "bits"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._base: str | None = None  # what the workers have below adapters

    def check(self, weights: Weights) -> None:
        if not isinstance(weights, AdapterSource):
            super().check(weights)
        elif weights.name != self._base:  # adapters change with every publication; their base is verified once
            super().check(weights.base)

    async def control(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """See :meth:`trainers.engines.weight_update.WeightUpdater.control`; without what vLLM says around an error."""
        try:
            return await super().control(path, body)
        except UnreachableError:
            raise
        except EngineError as error:
            raise EngineError(_WRAPPED.sub(r"\1", str(error))) from None

    def _without(self, path: str) -> str:
        return "start it with VLLM_SERVER_DEV_MODE=1"

    async def _send_all(self, source: Any) -> Sums:
        if not isinstance(source, AdapterSource):
            self._base = None
            return await super()._send_all(source)
        if self._base != source.name:
            self._base = None
            await self._send(source.base, "base")
            self._base = source.name
        await self._send(source.adapter, "adapter")
        self.begun = True
        await self._update({"kind": "merge", "scale": source.scale})
        return {}  # the workers have verified it

    def _wrong(self, wanted: Sums, found: Sums) -> list[str]:
        return differing(wanted, found)

    async def _pause(self, *, abort: bool) -> None:
        # Which forgets all KV, also of what runs: that is computed again.
        await self.control(f"/pause?mode={'abort' if abort else 'keep'}&clear_cache=true")

    async def _resume(self) -> None:
        await self.control("/resume")

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncIterator[None]:
        try:
            await self.control("/start_weight_update")
        except UnreachableError:
            raise
        except EngineError as error:
            if "already active" not in str(error):
                raise
            await self.control("/finish_weight_update", {})  # of a client that ended in the middle
            await self.control("/start_weight_update")
        yield
        await self.control("/finish_weight_update", {"weight_version": self._label})

    async def _flush(self) -> None:
        """Pausing did."""

    async def _checksums(self) -> Sums:
        ranks = (await self.control("/collective_rpc", {"method": "weight_checksums"}))["results"]
        return {name: tuple(rank.get(name) for rank in ranks) for name in ranks[0]}

    async def join_group(self, group: Group) -> None:
        await self.control("/init_weight_transfer_engine", {"init_info": {"group": dict(group)}})

    async def leave_group(self, group: Group) -> None:
        await self.control("/init_weight_transfer_engine", {"init_info": {}})

    async def receive(self, bucket: Mapping[str, Any], group: Group) -> None:
        self._may_begin()
        await self._update({"kind": self._kind, **bucket})

    async def _take(self, bucket: Bucket) -> None:
        data = await asyncio.to_thread(lambda: base64.b64encode(save(dict(bucket))).decode())
        await self._update({"kind": self._kind, "data": data})

    async def _load(self, folder: Path) -> None:
        await self._update({"kind": self._kind, "path": str(folder / "model.safetensors")})

    async def _update(self, info: Mapping[str, Any]) -> None:
        await self.control("/update_weights", {"update_info": dict(info)})
