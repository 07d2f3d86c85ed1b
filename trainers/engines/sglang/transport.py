"""Three ways to bring weights to a server: by value over HTTP, through a folder, through a process group."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from safetensors.torch import save_file
from torch import Tensor

from .options import SGLangOptions
from .server_info import ServerInfo
from .weights import buckets, payload


class Control(Protocol):
    """Asks the server to do something; see :meth:`.update.Updater.control`."""

    async def __call__(self, path: str, body: Mapping[str, Any], *, missing_ok: bool = False) -> Any:
        """Returns the body of the answer."""
        ...


class Carrier(Protocol):
    """Brings weights.

    Attributes:
        in_session: Whether this goes between ``begin_weight_update`` and ``end_weight_update``.
        begun: Whether the server may have taken something since this was last set to false.
    """

    in_session: bool
    begun: bool

    async def bring(self, weights: Mapping[str, Tensor], name: str, info: ServerInfo) -> None:
        """Bring all of ``weights``, and call them ``name`` with the last of them.

        Raises:
            EngineError: The server did not take them.
        """
        ...

    async def close(self) -> None:
        """Give back what is held. Safe to call twice."""
        ...


class TensorCarrier:
    """By value: pickled CPU tensors in the body of a request. Works from any machine, for any number of ranks."""

    in_session = True

    def __init__(self, control: Control, bucket_bytes: int) -> None:
        self.begun = False
        self._control, self._bucket_bytes = control, bucket_bytes

    async def bring(self, weights: Mapping[str, Tensor], name: str, info: ServerInfo) -> None:
        """See :class:`Carrier`."""
        cut = list(buckets(weights, self._bucket_bytes))
        for bucket in cut:
            pickled = await asyncio.to_thread(payload, bucket)
            body: dict[str, Any] = {"serialized_named_tensors": [pickled] * info.ranks, "flush_cache": False}
            if bucket is cut[-1]:
                body["weight_version"] = name
            self.begun = True
            await self._control("/update_weights_from_tensor", body)

    async def close(self) -> None:
        """See :class:`Carrier`."""


class DiskCarrier:
    """Through a folder that the server can read: it stays until the next update, because the server now names it."""

    in_session = False

    def __init__(self, control: Control, model: Path, folder: Path | None) -> None:
        self.begun = False
        self._control, self._model, self._folder = control, model, folder
        self._last: Path | None = None

    async def bring(self, weights: Mapping[str, Tensor], name: str, info: ServerInfo) -> None:
        """See :class:`Carrier`."""
        folder = await asyncio.to_thread(self._write, weights)
        try:
            self.begun = True
            await self._control(
                "/update_weights_from_disk", {"model_path": str(folder), "weight_version": name, "flush_cache": False}
            )
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        old, self._last = self._last, folder
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)

    async def close(self) -> None:
        """See :class:`Carrier`."""
        if self._last is not None:
            shutil.rmtree(self._last, ignore_errors=True)
            self._last = None

    def _write(self, weights: Mapping[str, Tensor]) -> Path:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="sglang-weights-", dir=self._folder))
        for file in self._model.iterdir():
            if file.is_file() and file.suffix in (".json", ".jinja", ".model", ".txt") and "index" not in file.name:
                shutil.copy(file, folder)
        save_file(dict(weights), folder / "model.safetensors", metadata={"format": "pt"})
        return folder


def make_carrier(control: Control, options: SGLangOptions, model: Path) -> Carrier:
    """The carrier of ``options.transport``."""
    if options.transport == "disk":
        return DiskCarrier(control, model, options.update_folder)
    if options.transport == "distributed":
        from .distributed import DistributedCarrier

        return DistributedCarrier(control, options)
    return TensorCarrier(control, options.bucket_bytes)
