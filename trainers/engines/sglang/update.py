"""New weights for a running server: pause, bring, flush, verify, go on; whole or not at all.

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
from .server_info import ServerInfo
from .transport import Carrier, make_carrier
from .verify import Verifier
from .weights import Parameters
from .wire import succeeded

log = logging.getLogger("trainers")

_FLUSH_AGAIN_S = 0.2


class PartialUpdateError(EngineError):
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
        self._carrier: Carrier = make_carrier(self.control, options, folder)
        self._verifier = Verifier()
        # The server's names for weights. Ours begin with what no earlier run on that server has used.
        self._prefix = uuid.uuid4().hex[:8]
        self._versions: dict[str, int] = {}

    def meet(self, info: ServerInfo, version: int) -> None:
        """Take note of the server, whose present weights are ``version``."""
        self._info = info
        self._versions[info.weight_version] = version

    def version_of(self, name: str) -> int:
        """The version that the server calls by this name.

        Raises:
            EngineError: Nobody here gave it that.
        """
        if name not in self._versions:
            raise EngineError(f"the SGLang server computed with weights {name!r}, which somebody else gave it")
        return self._versions[name]

    async def apply(self, weights: Mapping[str, Tensor], version: int, *, abort: bool) -> None:
        """Give the server weights that :meth:`Parameters.check` accepted.

        Args:
            weights: In the model's own naming.
            version: What they are.
            abort: End what runs; else it goes on with the new weights.

        Raises:
            EngineError: It was refused, and the old weights are served on.
            PartialUpdateError: See there.
        """
        assert self._info is not None
        prepared = await asyncio.to_thread(self._parameters.prepare, weights, self._info.dtype)
        name = f"{self._prefix}:{version}"
        self._versions[name] = version
        # "retract" gives up the KV of what runs, which is then computed again with the new weights; "in_place" would
        # go on from KV that the old ones made.
        self._carrier.begun = False
        try:
            await self.control("/pause_generation", {"mode": "abort" if abort else "retract"})
            await self._bring_twice(prepared, name)
        except BaseException:
            if not self._carrier.begun:  # the old weights are whole
                await self._go_on()
            raise
        await self._go_on()

    async def close(self) -> None:
        """Give back what the carrier holds."""
        await self._carrier.close()

    async def control(self, path: str, body: Mapping[str, Any], *, missing_ok: bool = False) -> Any:
        """Ask the server to do something.

        Returns:
            The body of its answer; ``None`` where there is no such endpoint and ``missing_ok``.

        Raises:
            EngineError: It did not.
        """
        answer = await self._client.request("POST", path, body, timeout=self._options.update_timeout_s, alone=True)
        if answer.status == 404 and missing_ok:
            return None
        if answer.status != 200 or not succeeded(answer.body):
            raise EngineError(f"the SGLang server refuses {path} ({answer.status}): {error_text(answer.body)}")
        return answer.body

    async def _bring_twice(self, prepared: Mapping[str, Tensor], name: str) -> None:
        try:
            await self._bring(prepared, name)
        except EngineError as error:
            if not self._carrier.begun:
                raise
            log.warning("an update of the SGLang server failed halfway (%s); once more", error)
            try:
                await self._bring(prepared, name)
            except EngineError as again:
                raise PartialUpdateError(f"{again}; before that: {error}") from again

    async def _bring(self, prepared: Mapping[str, Tensor], name: str) -> None:
        assert self._info is not None
        if self._carrier.in_session:
            await self._begin()
        try:
            await self._carrier.bring(prepared, name, self._info)
        except BaseException:
            if self._carrier.in_session:
                with contextlib.suppress(EngineError):  # what failed first is what counts
                    await self.control("/end_weight_update", {}, missing_ok=True)
            raise
        if self._carrier.in_session:
            await self.control("/end_weight_update", {}, missing_ok=True)
        await self._flush()
        if self._options.verify:
            sums = await self._checksums()
            problem = await asyncio.to_thread(self._verifier.compare, prepared, sums, self._info)
            if problem is not None:
                raise EngineError(f"the SGLang server does not have the weights it was sent: {problem}")

    async def _begin(self) -> None:
        """Open a session; servers before 0.5.21 have none, and one that a crashed client left open is closed."""
        try:
            await self.control("/begin_weight_update", {}, missing_ok=True)
        except UnreachableError:
            raise
        except EngineError:
            await self.control("/end_weight_update", {}, missing_ok=True)
            await self.control("/begin_weight_update", {}, missing_ok=True)

    async def _flush(self) -> None:
        """Forget the KV of the old weights.

        Asking for it in the update itself would let servers before 0.5.22 die where it cannot be done at once.
        """
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

    async def _checksums(self) -> Any:
        """The server's checksums, or ``None`` where it has none to give (older versions)."""
        answer = await self._client.request(
            "POST",
            "/weights_checker",
            {"action": "checksum"},
            timeout=self._options.update_timeout_s,
            alone=True,
        )
        return answer.body if answer.status == 200 and succeeded(answer.body) else None

    async def _go_on(self) -> None:
        await self.control("/continue_generation", {})
