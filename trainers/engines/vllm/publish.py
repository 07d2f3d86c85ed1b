"""Weights on their way to vLLM: checked, in its type, with checksums, where its worker finds them.

CPU tensors go through a safetensors file in shared memory (``/dev/shm``, where that has room; else the temporary
folder): the worker maps it, so the bytes are written once. The file stays until the next update has succeeded: it is
what vLLM goes back to when that fails. Of a base with adapters (:mod:`trainers.engines.adapters`), the base's file is
written once and stays, and each update writes the adapters.

Tensors on a GPU go as CUDA IPC handles to a vLLM on the same GPU; that path never ran, and a failed update then ends
the engine, for there is no copy of what was before.
"""

from __future__ import annotations

import base64
import pickle
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from trainers.engines.adapters import Adapted, check_adapter
from trainers.engines.vllm.checksum import checksums
from trainers.engines.weights import check_weights, tied_names

SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Payload:
    """One set of weights, ready to be taken.

    Args:
        message: What the worker is told; see :class:`trainers.engines.vllm.server.transfer.UpdateInfo`.
        held: What must not go away until it has been.
    """

    message: Mapping[str, Any]
    held: tuple[Tensor, ...] = ()


class Publisher:
    """Prepares weights of one model.

    Args:
        state: The ``state_dict`` of that model: its names, shapes and ties are those that are accepted.
        dtype: Of the engine.
        gpu: The engine's, by its uuid, where tensors on the same one may go as CUDA IPC handles.
        folder: Where files are written, in a folder of their own; by default in shared memory where that has room.
    """

    def __init__(
        self, state: Mapping[str, Tensor], dtype: torch.dtype, *, gpu: str | None = None, folder: Path | None = None
    ) -> None:
        self._shapes = {name: value.shape for name, value in state.items()}
        self._tied = tied_names(state)
        self._dtype, self._gpu = dtype, gpu
        needed = 2 * sum(value.numel() for name, value in state.items() if name not in self._tied) * dtype.itemsize
        if folder is None and SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > 2 * needed:
            folder = SHARED_MEMORY
        self._folder = Path(tempfile.mkdtemp(prefix="textenvs-weights-", dir=folder))
        self._now: set[Path] = set()  # files of what the engine has
        self._base: tuple[str, dict[str, Any]] | None = None  # of adapters: its name, and what the worker is told
        self._close = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    @torch.no_grad()
    def prepare(self, weights: Mapping[str, Tensor], version: int) -> Payload:
        """Everything that takes time; :meth:`keep` or :meth:`drop` must follow.

        Raises:
            ValueError: The weights do not fit the model.
        """
        if isinstance(weights, Adapted):
            return self._prepare_adapter(weights, version)
        check_weights(weights, self._shapes, self._tied)
        sent = {
            name: value.detach().to(self._dtype).contiguous()
            for name, value in weights.items()
            if name not in self._tied
        }
        if self._gpu is not None and all(value.is_cuda and _gpu(value) == self._gpu for value in sent.values()):
            torch.cuda.synchronize()
            handles = [(name, {_gpu(value): reduce_tensor(value)[1]}) for name, value in sent.items()]
            encoded = base64.b64encode(pickle.dumps(handles)).decode()
            return Payload({"checksums": checksums(sent.items()), "handles": encoded}, tuple(sent.values()))
        sent = {name: value.cpu() for name, value in sent.items()}
        path = self._folder / f"{version}.safetensors"
        save_file(sent, path)
        return Payload({"checksums": checksums(sent.items()), "path": str(path)})

    def _prepare_adapter(self, weights: Adapted, version: int) -> Payload:
        """The adapter's file; and the base's, which is written once. The worker merges what both have."""
        if self._base is None or self._base[0] != weights.name:
            base = {name: value.contiguous() for name, value in weights.base.items() if name not in self._tied}
            # Adapters change with every publication: that what they stand on is right is seen once.
            check_weights(weights.base, self._shapes, self._tied)
            path = self._folder / f"base-{weights.name}.safetensors"
            save_file(base, path)
            self._base = weights.name, {"checksums": checksums(base.items()), "path": str(path)}
        check_adapter(weights.adapter, self._shapes)
        path = self._folder / f"{version}.safetensors"
        save_file(dict(weights.adapter), path)
        base_message = {**self._base[1], "scale": weights.scale}
        return Payload({"checksums": checksums(weights.adapter.items()), "path": str(path), "base": base_message})

    def keep(self, payload: Payload) -> None:
        """The engine has these weights now; those from before are not needed any more."""
        path, base = payload.message.get("path"), payload.message.get("base")
        now = {Path(each) for each in (path, base and base["path"]) if each}
        for old in self._now - now:
            old.unlink(missing_ok=True)
        self._now = now
        if base is None:
            self._base = None

    def drop(self, payload: Payload) -> None:
        """The engine did not take these."""
        if (path := payload.message.get("path")) and Path(path) not in self._now:
            Path(path).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove all files."""
        self._close()


def _gpu(tensor: Tensor) -> str:
    return str(torch.cuda.get_device_properties(tensor.device).uuid)
