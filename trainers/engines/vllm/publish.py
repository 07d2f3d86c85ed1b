"""Weights on their way to vLLM: checked, in its type, with checksums, where its worker finds them.

CPU tensors go through a safetensors file in shared memory (``/dev/shm``, where that has room; else the temporary
folder): the worker maps it, so the bytes are written once. The file stays until the next update has succeeded: it is
what vLLM goes back to when that fails. Tensors on a GPU go as CUDA IPC handles to a vLLM on the same GPU; that path
never ran, and a failed update then ends the engine, for there is no copy of what was before.
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
        self._now: Path | None = None
        self._close = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    @torch.no_grad()
    def prepare(self, weights: Mapping[str, Tensor], version: int) -> Payload:
        """Everything that takes time; :meth:`keep` or :meth:`drop` must follow.

        Raises:
            ValueError: The weights do not fit the model.
        """
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

    def keep(self, payload: Payload) -> None:
        """The engine has these weights now; those from before are not needed any more."""
        before, path = self._now, payload.message.get("path")
        self._now = Path(path) if path else None
        if before is not None and before != self._now:
            before.unlink(missing_ok=True)

    def drop(self, payload: Payload) -> None:
        """The engine did not take these."""
        if (path := payload.message.get("path")) and Path(path) != self._now:
            Path(path).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove all files."""
        self._close()


def _gpu(tensor: Tensor) -> str:
    return str(torch.cuda.get_device_properties(tensor.device).uuid)
