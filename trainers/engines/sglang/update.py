"""New weights for a running server: pause, send, flush, verify, go on; whole or not at all.

What is sampled while weights are half old and half new would belong to no policy. So a server that took a part and
failed is given all of it once more; if that fails too, it stays paused, and the engine ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from trainers.engines.base import EngineError
from trainers.engines.http import Client, UnreachableError, error_text

from .options import SGLangOptions
from .protocol import Checksums, ServerInfo, read, succeeded
from .transport import make_transport
from .weights import Parameters

log = logging.getLogger("trainers")

_FLUSH_AGAIN_S = 0.2


class MixedWeightsError(EngineError):
    """The server has some of the new weights and cannot be given the rest."""


class Updater:
    """Gives one server its weights.

    Args:
        client: Of the server.
        options: How weights travel, and how long a step may take.
        parameters: Of the model.
        folder: The model's, for what goes with weights on a disk.
    """

    def __init__(self, client: Client, options: SGLangOptions, parameters: Parameters, folder: Path) -> None:
        self._client, self._options, self._parameters = client, options, parameters
        self._info: ServerInfo | None = None
        self._transport = make_transport(self.control, options, folder)
        # Checksums of the last update: what they must be, and the server's.
        self._wanted: dict[str, tuple[str, ...]] = {}
        self._found: dict[str, tuple[str, ...]] = {}
        # The server's names for weights. Ours begin with what no earlier run on that server has used.
        self._prefix = uuid.uuid4().hex[:8]
        self._versions: dict[str, int] = {}

    def connect(self, info: ServerInfo, weight_version: str, version: int) -> None:
        """Take note of the server, whose present weights it calls ``weight_version``, and we ``version``."""
        self._info = info
        self._versions[weight_version] = version

    def version_of(self, name: str) -> int:
        """The version that the server calls by this name.

        Raises:
            EngineError: No update of this engine gave it that.
        """
        if name not in self._versions:
            raise EngineError(f"the SGLang server computed with weights {name!r}, which another client gave it")
        return self._versions[name]

    async def apply(self, weights: Mapping[str, Tensor], version: int, *, abort: bool) -> None:
        """Give the server weights that :meth:`Parameters.check` accepted.

        Args:
            weights: In the model's own naming.
            version: What they are.
            abort: End what runs; else it goes on with the new weights.

        Raises:
            EngineError: It was refused, and the old weights are served on.
            MixedWeightsError: See there.
        """
        assert self._info is not None
        prepared = await asyncio.to_thread(self._parameters.prepare, weights, self._info.torch_dtype)
        name = f"{self._prefix}:{version}"
        self._versions[name] = version
        # "retract" gives up the KV of what runs, which is then computed again with the new weights; "in_place" would
        # go on from KV that the old ones made.
        self._transport.begun = False
        try:
            await self.control("/pause_generation", {"mode": "abort" if abort else "retract"})
            await self._send_twice(prepared, name)
        except BaseException:
            if not self._transport.begun:  # the old weights are whole
                await self.control("/continue_generation", {})
            raise
        await self.control("/continue_generation", {})

    async def close(self) -> None:
        """Give back what the transport holds."""
        await self._transport.close()

    async def control(self, path: str, body: Mapping[str, Any]) -> Any:
        """Ask the server to do something; returns the body of its answer.

        Raises:
            EngineError: It did not.
        """
        answer = await self._client.request("POST", path, body, timeout=self._options.update_timeout_s, alone=True)
        if answer.status == 404:
            raise EngineError(f"the SGLang server has no {path}: it must be version 0.5.23 or newer")
        if answer.status != 200 or not succeeded(answer.body):
            raise EngineError(f"the SGLang server refuses {path} ({answer.status}): {error_text(answer.body)}")
        return answer.body

    async def _send_twice(self, prepared: Mapping[str, Tensor], name: str) -> None:
        try:
            await self._send(prepared, name)
        except EngineError as error:
            if not self._transport.begun:
                raise
            log.warning("an update of the SGLang server failed halfway (%s); once more", error)
            try:
                await self._send(prepared, name)
            except EngineError as again:
                raise MixedWeightsError(f"{again}; before that: {error}") from again

    async def _send(self, prepared: Mapping[str, Tensor], name: str) -> None:
        assert self._info is not None
        async with self._session() if self._transport.in_session else contextlib.nullcontext():
            await self._transport.send(prepared, name, self._info)
        await self._flush()
        if self._options.verify:
            await self._verify(prepared, self._info)

    @contextlib.asynccontextmanager
    async def _session(self) -> Any:
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
        """Drop the KV of the old weights, which the server refuses while it is busy."""
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

    async def _verify(self, prepared: Mapping[str, Tensor], info: ServerInfo) -> None:
        """Compare the server's checksums, of each parameter and rank, with those of what was sent.

        On GPUs, or where the server does not say its type, checksums cannot be computed here: there each one must have
        changed since the last update exactly where what was sent has.
        """
        answer = await self.control("/weights_checker", {"action": "checksum"})
        found = read(Checksums, answer).by_name()
        wanted = await asyncio.to_thread(self._parameters.checksums, prepared, info.tp_size)
        common = wanted.keys() & found.keys()
        if not common:
            raise EngineError("the SGLang server names no parameter as its model does; engine.sglang.verify=false")
        if info.device == "cpu" and info.torch_dtype is not None:
            wrong = [name for name in common if found[name] != wanted[name]]
        else:
            wrong = [
                name
                for name in common & self._wanted.keys() & self._found.keys()
                if _changes(wanted[name], self._wanted[name]) != _changes(found[name], self._found[name])
            ]
        if wrong:
            more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            raise EngineError(
                "the SGLang server does not have the weights it was sent: "
                f"the checksums of {', '.join(sorted(wrong)[:3])}{more} differ"
            )
        self._wanted, self._found = wanted, found


def _changes(now: tuple[str, ...], before: tuple[str, ...]) -> list[bool]:
    return [one != other for one, other in zip(now, before, strict=True)]
