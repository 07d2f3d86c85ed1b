"""The controls of a vLLM in this process; what is done with them, and in which order, stands in :mod:`..whole`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from trainers.engines.vllm.server.lifetime import remove_afterwards


class EngineControls:
    """See :class:`trainers.engines.vllm.whole.Controls`."""

    dead: type[Exception] = EngineDeadError

    def __init__(self, engine: AsyncLLM) -> None:
        self._engine = engine

    async def pause(self, mode: str) -> None:
        """Stop computing and forget all KV."""
        await self._engine.pause_generation(mode=mode, clear_cache=True)  # type: ignore[arg-type]

    async def load(self, payload: Mapping[str, Any], version: int | None) -> None:
        """Have the worker take these weights."""
        if path := payload.get("path"):
            remove_afterwards(str(Path(path).parent))
        await self._engine.start_weight_update()
        await self._engine.update_weights(WeightTransferUpdateRequest(update_info=dict(payload)))
        await self._engine.finish_weight_update(None if version is None else str(version))

    async def resume(self) -> None:
        """Go on."""
        await self._engine.resume_generation()
