"""New weights for vLLM's workers: a backend of its weight-transfer interface.

Weights come as a safetensors file that the publisher wrote on the same machine (into shared memory where there is
room); or such a file comes in pieces, from any machine; or, where weights lie on the GPU that the worker uses, they
come as CUDA IPC handles. Of a LoRA run it may be that adapters come alone, and once what they stand on, which stays a
file: they are merged here, a matrix at a time.

Nothing of the model is touched before what came has the checksums that the publisher sent; and the update counts only
if the model's own parameters have them afterwards (or those of what was merged). What fails in between is undone by
loading the previous weights, which is the caller's business (:mod:`..whole`).

The CUDA IPC path is written after vLLM's own ``ipc`` backend and never ran: there was no GPU.
"""

from __future__ import annotations

import base64
import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor
from vllm import envs
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from trainers.engines.adapters import merged
from trainers.engines.vllm.checksum import checksums, differing, summed

_Source = Callable[[], Iterator[tuple[str, Tensor]]]  # from the start at each call


@dataclass
class InitInfo(WeightTransferInitInfo):
    """There is nothing to agree on beforehand."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """All weights, once; or a piece of their file, which is kept until all are asked for.

    Args:
        checksums: Of what is sent; see :mod:`trainers.engines.vllm.checksum`.
        path: The safetensors file.
        handles: Or else base64 of a pickled list of ``(name, {GPU's uuid: arguments of rebuild_cuda_tensor})``.
        upload: Or else the name of a file that came in pieces. The last two uploads are kept: the one that was loaded,
            and the one that may replace it.
        piece: Base64 of the next bytes of that file; nothing is loaded then.
        base: What is sent are adapters, and this is what they stand on: its ``checksums``, its ``path`` or ``upload``,
            and the adapters' ``scale``. With a piece, it is merely not empty: the file is a base, which stays.
    """

    checksums: dict[str, int] = field(default_factory=dict)
    path: str | None = None
    handles: str | None = None
    upload: str | None = None
    piece: str | None = None
    base: dict[str, Any] | None = None


class Transfer(WeightTransferEngine[InitInfo, UpdateInfo]):
    """See the module; the order of calls is vLLM's: start, update, finish."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._uploads: dict[str, IO[bytes]] = {}
        self._loaded: set[str | None] = set()  # the uploads that the model has
        self._newest_base: str | None = None  # the upload that adapters will stand on
        self._known_base: str | None = None  # the file whose checksums were right

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Nothing to do."""

    def start_weight_update(self) -> None:
        """Nothing yet: the model stays as it is until the weights were seen."""

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Check what came, load it, check what is there.

        Raises:
            ValueError: What came is not what was sent, and the model was not touched; or the model's parameters are not
                what was sent.
        """
        name, base = update_info.upload, update_info.base
        if name is not None and update_info.piece is not None:
            if base:
                self._newest_base = name
            self._uploaded(name, begin=True).write(base64.b64decode(update_info.piece))
            return
        if update_info.handles is not None:
            shared = self._open(update_info.handles)
            self._load(lambda: iter(shared), update_info.checksums)
        else:
            path = update_info.path or self._path_of(str(name))
            if base:
                self._load_adapted(base, path, update_info.checksums)
            else:
                self._load_file(path, update_info.checksums)
        self._loaded = {name, None if base is None else base.get("upload")}

    def finish_weight_update(self) -> None:
        """All is done: weights come in one piece, and an error here would leave vLLM's worker in the update."""

    def shutdown(self) -> None:
        """Give back what was uploaded."""
        for file in self._uploads.values():
            file.close()
        self._uploads.clear()

    def _uploaded(self, name: str, *, begin: bool = False) -> IO[bytes]:
        if name not in self._uploads:
            if not begin:
                raise ValueError(f"no weights were uploaded as {name}")
            for old in self._uploads.keys() - self._loaded - {self._newest_base}:
                self._uploads.pop(old).close()
            # Memory without a name (Linux has it) is gone with this process, however that ends.
            self._uploads[name] = os.fdopen(os.memfd_create(name), "w+b")
        return self._uploads[name]

    def _path_of(self, upload: str) -> str:
        file = self._uploaded(upload)
        file.flush()
        return f"/proc/self/fd/{file.fileno()}"

    def _load_file(self, path: str, wanted: dict[str, int]) -> None:
        with safe_open(path, "pt") as file:
            names = list(file.keys())
            self._load(lambda: ((name, file.get_tensor(name)) for name in names), wanted)

    def _load_adapted(self, base: dict[str, Any], path: str, wanted: dict[str, int]) -> None:
        """Merge adapters into what they stand on, as the learner would have, and load that."""
        which = base.get("path") or base["upload"]
        with safe_open(base.get("path") or self._path_of(which), "pt") as below, safe_open(path, "pt") as file:
            adapter = {name: file.get_tensor(name) for name in list(file.keys())}
            _check("the adapters", adapter.items(), wanted)
            names = list(below.keys())

            def tensors() -> Iterator[tuple[str, Tensor]]:
                return ((name, below.get_tensor(name)) for name in names)

            if self._known_base != which:
                _check("the weights below the adapters", tensors(), base["checksums"])
                self._known_base = which
            sums: dict[str, int] = {}
            dtype = self.model_config.dtype
            weights = ((n, value.to(dtype)) for n, value in merged(tensors(), adapter, base["scale"], self.device))
            self._put(summed(weights, sums), sums)

    def _load(self, weights: _Source, wanted: dict[str, int]) -> None:
        _check("the weights", weights(), wanted)
        self._put(weights(), wanted)

    def _put(self, weights: Iterable[tuple[str, Tensor]], wanted: dict[str, int]) -> None:
        """Give the model weights, and see that it has those with these checksums (which may be made on the way)."""
        initialize_layerwise_reload(self.model)
        try:
            self.model.load_weights(weights)
        finally:  # after an error too: the next update must find the model in one piece
            finalize_layerwise_reload(self.model, self.model_config)
        if places := differing(wanted, checksums(self.model.named_parameters())):
            raise ValueError(f"vLLM's parameters are not the weights that it was given, in {_some(places)}")

    def _open(self, handles: str) -> list[tuple[str, Tensor]]:
        if not envs.VLLM_ALLOW_INSECURE_SERIALIZATION:
            raise ValueError(
                "CUDA IPC handles are pickled, and whoever sends such can run code here; where nobody else reaches it, "
                "start the server with VLLM_ALLOW_INSECURE_SERIALIZATION=1"
            )
        index = self.device.index
        uuid = str(torch.cuda.get_device_properties(index).uuid)
        weights = []
        for name, by_gpu in pickle.loads(base64.b64decode(handles)):
            if uuid not in by_gpu:
                raise ValueError(f"{name} lies on GPU {', '.join(by_gpu)}, and this worker uses {uuid}")
            arguments = list(by_gpu[uuid])
            arguments[6] = index  # the device's number in this process
            weights.append((name, rebuild_cuda_tensor(*arguments)))
        return weights


def _check(what: str, sent: Iterable[tuple[str, Tensor]], wanted: dict[str, int]) -> None:
    if places := differing(wanted, checksums(sent)):
        raise ValueError(f"{what} were damaged on the way, in {_some(places)}")


def _some(places: list[str]) -> str:
    return ", ".join(places[:3]) + (f" and {len(places) - 3} more places" if len(places) > 3 else "")
