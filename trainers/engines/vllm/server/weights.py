"""Taking new weights whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from trainers.engines.vllm.server.lifetime import remove_afterwards


class RefusedError(ValueError):
    """The new weights were not taken; the engine has the old ones."""


class MixedError(RuntimeError):
    """It is not certain what the engine computes with; it must not go on."""


class Weights:
    """What the engine computes with.

    Args:
        engine: Started with the backend of :mod:`.transfer`, and with any weights.
    """

    def __init__(self, engine: AsyncLLM) -> None:
        self._engine = engine
        self._held: Mapping[str, Any] | None = None  # how to get what the engine has now, once more

    async def update(self, payload: Mapping[str, Any], version: int, mode: str) -> None:
        """Pause, load, resume. Requests that were running start over with their tokens so far: no KV survives.

        Args:
            payload: Of :class:`.transfer.UpdateInfo`. The file that it names must stay until the next update.
            version: Tokens that are sampled afterwards carry it.
            mode: Of vLLM's ``pause_generation``: what becomes of the requests in flight.

        Raises:
            RefusedError: The old weights are still there.
            MixedError: They are not.
        """
        if path := payload.get("path"):
            remove_afterwards(str(Path(path).parent))
        # clear_cache forgets all KV, that of running requests too: those are preempted and computed again.
        try:
            await self._engine.pause_generation(mode=mode, clear_cache=True)  # type: ignore[arg-type]
        except EngineDeadError:
            raise
        except Exception as error:
            raise MixedError(f"vLLM did not pause, and may have kept KV: {error}") from error
        try:
            await self._load(payload, version)
        except EngineDeadError:
            raise
        except Exception as error:
            await self._back(error)
            raise RefusedError(str(error)) from error
        self._held = payload if payload.get("path") else None
        await self._engine.resume_generation()

    async def _load(self, payload: Mapping[str, Any], version: int | None) -> None:
        await self._engine.start_weight_update()
        await self._engine.update_weights(WeightTransferUpdateRequest(update_info=dict(payload)))
        await self._engine.finish_weight_update(None if version is None else str(version))

    async def _back(self, error: Exception) -> None:
        if self._held is None:
            raise MixedError(f"{error}; and there is no copy of the weights from before") from error
        try:
            await self._load(self._held, None)
        except EngineDeadError:
            raise
        except Exception as second:
            raise MixedError(f"{error}; and loading the weights from before failed too: {second}") from second
        await self._engine.resume_generation()
