"""vLLM's endpoints for weights (0.32), with the backend of :mod:`.server.transfer`."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from trainers.engines.adapters import Adapted, check_adapter
from trainers.engines.base import EngineError
from trainers.engines.http import UnreachableError
from trainers.engines.parameters import Bucket
from trainers.engines.transport import Kind
from trainers.engines.vllm.checksum import checksum
from trainers.engines.weight_update import WeightUpdater

_WRAPPED = re.compile(r"Call to \w+ method failed: Worker failed with error '(.*)', please check the stack[^:]*", re.S)


class VLLMUpdater(WeightUpdater):
    """See :class:`trainers.engines.weight_update.WeightUpdater`.

    Of a LoRA run the base is sent once, and then adapters alone, which the workers merge and verify.
    """

    kind = "vLLM"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._base: str | None = None  # what the workers have below adapters

    def check(self, weights: Any) -> None:
        """See :meth:`trainers.engines.weight_update.WeightUpdater.check`."""
        if not isinstance(weights, Adapted):
            return super().check(weights)
        if weights.name != self._base:  # adapters change with every publication; their base is verified once
            super().check(weights.base)
        return check_adapter(weights.adapter, {n: torch.Size(shape) for n, shape in self._parameters.shapes.items()})

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

    def _prepare(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return weights if isinstance(weights, Adapted) else super()._prepare(weights)

    async def _send(self, prepared: Mapping[str, Tensor]) -> None:
        if not isinstance(prepared, Adapted):
            self._base = None
            await super()._send(prepared)
            return
        if self._base != prepared.name:
            self._base = None
            await self._transport.send(self._parameters.prepare(prepared.base, None), "base")
            self._base = prepared.name
        await self._transport.send({name: value.contiguous() for name, value in prepared.adapter.items()}, "adapter")
        self.begun = True
        await self._update({"kind": "merge", "scale": prepared.scale})

    async def _verify(self, prepared: Mapping[str, Tensor]) -> None:
        if isinstance(prepared, Adapted):  # which the workers have verified
            return
        await super()._verify(prepared)
        # What vLLM fuses in a way of its own (experts) has other names there, and the same sum on a single worker.
        wanted, found = (
            sum(sums[0] for name, sums in these.items() if name not in others) % 2**64
            for these, others in ((self._wanted, self._found), (self._found, self._wanted))
        )
        if self.ranks == 1 and wanted != found:
            names = sorted(self._wanted.keys() - self._found.keys()) or sorted(self._found.keys() - self._wanted.keys())
            raise EngineError(f"the vLLM server does not have the weights it was sent: see {', '.join(names[:3])}")

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

    async def _checksums(self) -> Mapping[str, tuple[Any, ...]]:
        ranks = (await self.control("/collective_rpc", {"method": "weight_checksums"}))["results"]
        return {name: tuple(rank.get(name) for rank in ranks) for name in ranks[0]}

    def _checksum(self, parts: Iterator[Tensor]) -> int:
        return checksum(parts)

    async def join_group(self, group: Mapping[str, Any]) -> None:
        """See :class:`trainers.engines.transport.Receiver`, also for the following."""
        await self.control("/init_weight_transfer_engine", {"init_info": {"group": dict(group)}})

    async def leave_group(self, group: Mapping[str, Any]) -> None:  # noqa: D102
        await self.control("/init_weight_transfer_engine", {"init_info": {}})

    async def receive(self, described: Mapping[str, Any], group: Mapping[str, Any], kind: Kind) -> None:  # noqa: D102
        await self._update({"kind": kind, **described})

    async def take(self, bucket: Bucket, kind: Kind) -> None:  # noqa: D102
        data = await asyncio.to_thread(lambda: base64.b64encode(save(dict(bucket))).decode())
        await self._update({"kind": kind, "data": data})

    async def load(self, folder: Path, kind: Kind) -> None:  # noqa: D102
        await self._update({"kind": kind, "path": str(folder / "model.safetensors")})

    async def _update(self, info: Mapping[str, Any]) -> None:
        await self.control("/update_weights", {"update_info": dict(info)})
