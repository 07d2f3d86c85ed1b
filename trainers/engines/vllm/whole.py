"""Taking new weights whole or not at all: the order of things, whoever vLLM's controls are reached through.

Our own server has vLLM's engine in its process (:mod:`.server.weights`); a served vLLM is asked over HTTP
(:mod:`.control`).

Both sides import this, so it needs nothing but Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class RefusedError(ValueError):
    """The new weights were not taken; the engine has the old ones."""


class MixedError(RuntimeError):
    """It is not certain what the engine computes with; it must not go on."""


class Controls(Protocol):
    """What can be done to a running vLLM."""

    dead: type[Exception]  #: what any of these raises when there is no engine any more

    async def pause(self, mode: str) -> None:
        """Stop computing and forget all KV; ``mode`` says what becomes of requests in flight."""
        ...

    async def load(self, payload: Mapping[str, Any], version: int | None) -> None:
        """Have the worker take the weights of a payload (:class:`.publish.Payload`).

        Args:
            payload: Its message.
            version: What tokens are labelled with from now on; ``None`` leaves that.
        """
        ...

    async def resume(self) -> None:
        """Go on."""
        ...


class Weights:
    """What a running vLLM computes with.

    Args:
        controls: Of a vLLM with the backend of :mod:`.server.transfer`, and with any weights.
    """

    def __init__(self, controls: Controls) -> None:
        self._controls = controls
        self._held: Mapping[str, Any] | None = None  # how to get what the engine has now, once more

    async def update(self, payload: Mapping[str, Any], version: int, mode: str) -> None:
        """Pause, load, resume. Requests that were running start over with their tokens so far: no KV survives.

        Args:
            payload: Of :class:`.server.transfer.UpdateInfo`. A file that it names must stay until the next update.
            version: Tokens that are sampled afterwards carry it.
            mode: Of vLLM's ``pause_generation``: what becomes of the requests in flight.

        Raises:
            RefusedError: The old weights are still there.
            MixedError: They are not.
        """
        controls = self._controls
        # Running requests lose their KV too: those are preempted and computed again.
        try:
            await controls.pause(mode)
        except controls.dead:
            raise
        except Exception as error:
            raise MixedError(f"vLLM did not pause, and may have kept KV: {error}") from error
        try:
            await controls.load(payload, version)
        except controls.dead:
            raise
        except Exception as error:
            await self._back(error)
            raise RefusedError(str(error)) from error
        self._held = None if payload.get("handles") else payload  # memory of the trainer's changes
        await controls.resume()

    async def _back(self, error: Exception) -> None:
        if self._held is None:
            raise MixedError(f"{error}; and there is no copy of the weights from before") from error
        try:
            await self._controls.load(self._held, None)
        except self._controls.dead:
            raise
        except Exception as second:
            raise MixedError(f"{error}; and loading the weights from before failed too: {second}") from second
        await self._controls.resume()
