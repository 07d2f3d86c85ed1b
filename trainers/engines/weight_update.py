"""New weights for a running server: pause, send, verify, resume; whole or not at all.

What is sampled while weights are half old and half new would belong to no policy. So a server that took a part and
failed is given all of it once more; if that fails too, it stays paused, and the engine ends.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainers.engines.base import EngineError
from trainers.engines.http import Client, error_text
from trainers.engines.parameters import Bucket, Parameters
from trainers.engines.server import ServerOptions
from trainers.engines.transport import Kind, make_transport

log = logging.getLogger("trainers")


class MixedWeightsError(EngineError):
    """The server has some of the new weights and cannot be given the rest."""


class WeightUpdater(ABC):
    """Gives one server its weights; a :class:`.transport.Receiver`.

    Args:
        client: Of the server.
        options: How weights travel, and how long a step may take.
        parameters: Of the model.
        folder: The model's, for what goes with weights on a disk.
        apart: Whether the server does not compute on this process's GPU, which NCCL cannot share between two ranks.
    """

    kind = "server"  #: in messages
    exact_checksums = True  #: whether the server's checksums can be computed here

    def __init__(
        self, client: Client, options: ServerOptions, parameters: Parameters, folder: Path, *, apart: bool
    ) -> None:
        self.begun = False  #: whether the server may have taken something since the update began
        self.ranks = 1
        self.device = "cpu"
        self._client, self._options, self._parameters = client, options, parameters
        self._apart = apart
        self._dtype: torch.dtype | None = None
        self._transport = make_transport(self, options, folder, client.base_url)
        # Checksums of the last update: what they must be, and the server's.
        self._wanted: dict[str, tuple[Any, ...]] = {}
        self._found: dict[str, tuple[Any, ...]] = {}
        # The server's names for weights. Ours begin with what no earlier run on that server has used.
        self._prefix = uuid.uuid4().hex[:8]
        self._versions: dict[str, int] = {}
        self._label = ""  # of the weights that are being sent

    def connect(self, *, device: str, ranks: int, dtype: torch.dtype | None, label: str, version: int) -> None:
        """Take note of the server.

        Args:
            device: What it computes on.
            ranks: Its tensor-parallel ranks.
            dtype: Of its weights; ``None`` where it does not say.
            label: Its name for its present weights.
            version: Ours for these.
        """
        self.device, self.ranks, self._dtype = device, ranks, dtype
        self._versions[label] = version

    @property
    def backend(self) -> str:
        """See :class:`.transport.Receiver`."""
        return "nccl" if self._apart and self.device == "cuda" and torch.cuda.is_available() else "gloo"

    def version_of(self, label: str) -> int:
        """The version that the server calls by this name.

        Raises:
            EngineError: No update of this engine gave it that.
        """
        if label not in self._versions:
            raise EngineError(f"the {self.kind} server computed with weights {label!r}, which another client gave it")
        return self._versions[label]

    def check(self, weights: Any) -> None:
        """Refuse weights that are not exactly this model's.

        Raises:
            ValueError: See :func:`trainers.engines.weights.check_weights`.
        """
        self._parameters.check(weights)

    async def apply(self, weights: Mapping[str, Tensor], version: int, *, abort: bool) -> None:
        """Give the server weights that :meth:`check` accepted.

        Args:
            weights: In the model's own naming.
            version: What they are.
            abort: End what runs; else it continues with the new weights.

        Raises:
            EngineError: It was refused, and the old weights are served on.
            MixedWeightsError: See there.
        """
        prepared = await asyncio.to_thread(self._prepare, weights)
        self._label = f"{self._prefix}:{version}"
        self._versions[self._label] = version
        self.begun = False
        try:
            await self._pause(abort=abort)
            await self._send_twice(prepared)
        except BaseException:
            if not self.begun:  # the old weights are whole
                await self._resume()
            raise
        await self._resume()

    async def close(self) -> None:
        """Give back what the transport holds."""
        await self._transport.close()

    async def control(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Ask the server to do something; returns the body of its answer.

        Raises:
            EngineError: It did not.
        """
        answer = await self._client.request("POST", path, body, timeout=self._options.update_timeout_s, alone=True)
        if answer.status == 404:
            raise EngineError(f"the {self.kind} server has no {path}: {self._without(path)}")
        body = answer.body if isinstance(answer.body, Mapping) else {}
        if answer.status != 200 or body.get("success", True) is not True:
            raise EngineError(f"the {self.kind} server refuses {path} ({answer.status}): {error_text(answer.body)}")
        return answer.body

    # What is different from server to server

    @abstractmethod
    def _without(self, path: str) -> str:
        """What to do about a server that lacks an endpoint."""

    @abstractmethod
    async def _pause(self, *, abort: bool) -> None:
        """Stop computing; what runs is ended with ``abort``, else its KV is computed again later."""

    @abstractmethod
    async def _resume(self) -> None:
        """Undo :meth:`_pause`."""

    @abstractmethod
    def _session(self) -> AbstractAsyncContextManager[None]:
        """Around all buckets of one update."""

    @abstractmethod
    async def _flush(self) -> None:
        """Drop the KV of the old weights."""

    @abstractmethod
    async def _checksums(self) -> Mapping[str, tuple[Any, ...]]:
        """By the server's names: a parameter's checksum on each rank."""

    @abstractmethod
    def _checksum(self, parts: Iterator[Tensor]) -> Any:
        """What that is of the tensors that a rank's parameter is fused of."""

    @abstractmethod
    async def join_group(self, group: Mapping[str, Any]) -> None:
        """See :class:`.transport.Receiver`, also for the following."""

    @abstractmethod
    async def leave_group(self, group: Mapping[str, Any]) -> None: ...

    @abstractmethod
    async def receive(self, described: Mapping[str, Any], group: Mapping[str, Any], kind: Kind) -> None: ...

    @abstractmethod
    async def take(self, bucket: Bucket, kind: Kind) -> None: ...

    @abstractmethod
    async def load(self, folder: Path, kind: Kind) -> None: ...

    # What is the same

    def _prepare(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return self._parameters.prepare(weights, self._dtype)

    async def _send_twice(self, prepared: Mapping[str, Tensor]) -> None:
        try:
            await self._send_and_verify(prepared)
        except EngineError as error:
            if not self.begun:
                raise
            log.warning("an update of the %s server failed halfway (%s); once more", self.kind, error)
            try:
                await self._send_and_verify(prepared)
            except EngineError as again:
                raise MixedWeightsError(f"{again}; before that: {error}") from again

    async def _send_and_verify(self, prepared: Mapping[str, Tensor]) -> None:
        async with self._session():
            await self._send(prepared)
        await self._flush()
        if self._options.verify:
            await self._verify(prepared)

    async def _send(self, prepared: Mapping[str, Tensor]) -> None:
        await self._transport.send(prepared)

    async def _verify(self, prepared: Mapping[str, Tensor]) -> None:
        """Compare the server's checksums, of each parameter and rank, with those of what was sent.

        Where they cannot be computed here, each one must have changed since the last update exactly where what was
        sent has.
        """
        found = dict(await self._checksums())
        wanted = await asyncio.to_thread(self._parameters.checksums, prepared, self.ranks, self._checksum)
        common = wanted.keys() & found.keys()
        if not common:
            raise EngineError(f"the {self.kind} server names no parameter as its model does; see the option `verify`")
        if self.exact_checksums and self._dtype is not None:
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
                f"the {self.kind} server does not have the weights it was sent: "
                f"the checksums of {', '.join(sorted(wrong)[:3])}{more} differ"
            )
        self._wanted, self._found = wanted, found


def _changes(now: tuple[Any, ...], before: tuple[Any, ...]) -> list[bool]:
    return [one != other for one, other in zip(now, before, strict=True)]
