"""Buckets of weights in memory that the processes of a machine share: POSIX shared memory, or a GPU's by CUDA IPC.

What travels is a pickle of references, made of PyTorch's own functions for sharing tensors between processes; SGLang's
endpoint for tensors takes the same. vLLM's worker imports this, so it needs nothing but PyTorch.

PyTorch's function for mapping shared memory connects to the sender's manager of memory, and the process may then use
that manager for memory of its own: it has none any more when the sender ends. So :func:`tensors_of` maps memory itself.
"""

from __future__ import annotations

import base64
import io
import mmap
import os
import pickle
import re
import tempfile
import threading
import uuid
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions

#: A bucket as text for JSON: base64 of a pickle of named tensors, which refer to a :class:`Buffer`.
References = str

_ALIGNMENT = 256  # of tensors in a buffer, in bytes: that of CUDA's own allocations
_GPU = 6  # position of the GPU among the arguments of `rebuild_cuda_tensor`
_DTYPES = [
    "bfloat16",
    "bool",
    "float16",
    "float32",
    "float64",
    "float8_e4m3fn",
    "float8_e5m2",
    "int16",
    "int32",
    "int64",
    "int8",
    "uint8",
]
#: The globals of such a pickle. A pickle with other ones is refused: it could run anything.
_ALLOWED = {("torch", name) for name in ("Tensor", "Size", "UntypedStorage", *_DTYPES)} | {
    ("torch.storage", "UntypedStorage"),
    ("torch.storage", "TypedStorage"),
    ("torch.multiprocessing.reductions", "rebuild_tensor"),
    ("torch.multiprocessing.reductions", "rebuild_typed_storage"),
    ("torch.multiprocessing.reductions", "rebuild_storage_filename"),
    ("torch.multiprocessing.reductions", "rebuild_cuda_tensor"),
}


def place_of(device: torch.device | str) -> str:
    """Return a name of a device's memory, equal in two processes exactly if these can share memory there."""
    device, folder = torch.device(device), os.stat(tempfile.gettempdir())  # where PyTorch's manager of memory is
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        machine = f"{boot}:{os.stat('/proc/self/ns/ipc').st_ino}:{folder.st_dev}:{folder.st_ino}"
    except OSError:  # not Linux
        machine = str(uuid.getnode())
    return f"{device.type}:{_uuid(device)}:{machine}" if device.type == "cuda" else f"{device.type}:{machine}"


def device_at(place: str) -> torch.device | None:
    """Return the device of a place, or ``None``: it is none of this process's."""
    if not place.startswith("cuda:"):
        return torch.device("cpu")
    gpus = (torch.device("cuda", number) for number in range(torch.cuda.device_count()))
    return next((gpu for gpu in gpus if place_of(gpu) == place), None)


class Buffer:
    """Memory for one bucket at a time, which other processes map. Use :func:`borrowed` and :func:`give_back`.

    It is kept until this process ends, and freed even if that is killed. PyTorch counts the readers of shared memory,
    and one that was killed stays counted, so that memory given up earlier would not be free.
    """

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.nbytes, self.device, self._start = nbytes, device, 0
        self._cuda: tuple[Any, ...] | None = None  # arguments of `rebuild_cuda_tensor` for all of it
        if device.type == "cuda":
            self._memory = torch.empty(nbytes, dtype=torch.uint8, device=device)
            # Once: every sharing wraps the memory anew.
            self._cuda = (*reductions.reduce_tensor(self._memory)[1][:-1], False)  # waits for no event: see finish
        else:
            storage = torch.UntypedStorage._new_using_filename_cpu(nbytes)
            self._memory = torch.empty(0, dtype=torch.uint8).set_(storage)  # type: ignore[call-overload]

    def empty(self) -> None:
        """Begin a new bucket, at the beginning of the memory."""
        self._start = 0

    def place(self, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
        """Copy a tensor behind those of this bucket, as ``dtype`` if given, and return it there."""
        kind = dtype or tensor.dtype
        nbytes = tensor.numel() * kind.itemsize
        piece = self._memory[self._start : self._start + nbytes].view(kind).view(tensor.shape)
        self._start += room_of(nbytes)
        return piece.copy_(tensor)

    def finish(self) -> None:
        """Wait until the bucket is there for other processes."""
        if self._cuda is not None:
            torch.cuda.current_stream(self._memory.device).synchronize()

    def references(self, named: Sequence[tuple[str, Tensor]]) -> References:
        """Return references to tensors that :meth:`place` returned, for one reader."""
        pickled = io.BytesIO()
        _Pickler(pickled, self._cuda).dump(list(named))
        return base64.b64encode(pickled.getvalue()).decode("ascii")


_SPARE: list[Buffer] = []
_BORROWING = threading.Lock()


def borrowed(nbytes: int, device: torch.device) -> Buffer:
    """Return a buffer of at least ``nbytes`` that nobody uses: a spare one, or a new one."""
    with _BORROWING:
        fits = [buffer for buffer in _SPARE if buffer.device == device and buffer.nbytes >= nbytes]
        if not fits:
            return Buffer(nbytes, device)
        smallest = min(fits, key=lambda buffer: buffer.nbytes)
        _SPARE.remove(smallest)
        return smallest


def give_back(buffers: list[Buffer]) -> None:
    with _BORROWING:
        _SPARE.extend(buffers)
        buffers.clear()


def room_of(nbytes: int) -> int:
    """Return how many bytes of a buffer a tensor of ``nbytes`` takes."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def tensors_of(references: References) -> list[tuple[str, Tensor]]:
    """Map named tensors of another process; they are read only, and change when that process fills its buffer anew.

    Raises ``ValueError``: the pickle refers to something other than shared tensors.
    """
    return _Unpickler(io.BytesIO(base64.b64decode(references))).load()  # type: ignore[no-any-return]


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, cuda: tuple[Any, ...] | None) -> None:
        super().__init__(file, protocol=4)
        self._cuda = cuda

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor) and self._cuda is not None:
            # The whole buffer's arguments, with this tensor's own shape; the GPU by a name that is the same in all
            # processes, which PyTorch's number is not.
            kind, _, _, _, storage, _, _, *rest = self._cuda
            shape = value.shape, value.stride(), value.storage_offset()
            return reductions.rebuild_cuda_tensor, (kind, *shape, storage, value.dtype, _uuid(value.device), *rest)
        if isinstance(value, Tensor):
            return reductions.reduce_tensor(value)
        if isinstance(value, torch.storage.TypedStorage):
            return reductions.reduce_typed_storage(value)
        if isinstance(value, torch.UntypedStorage):
            value._shared_incref()  # a reference in flight: a reader that uses PyTorch's function gives it back
            return reductions.rebuild_storage_filename, (torch.UntypedStorage, *value._share_filename_cpu_())
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise ValueError(f"references to shared tensors have no {module}.{name}")
        own = {"rebuild_cuda_tensor": _rebuild_on_gpu, "rebuild_storage_filename": _map}
        return own.get(name) or super().find_class(module, name)


_SEGMENTS = Path("/dev/shm")
_mapped: weakref.WeakValueDictionary[str, torch.UntypedStorage] = weakref.WeakValueDictionary()


def _map(kind: type, manager: bytes, name: bytes, nbytes: int) -> torch.UntypedStorage:
    """Map a segment of another process, as long as its storage is used; see the module's docstring."""
    if not _SEGMENTS.is_dir():  # not Linux: a segment is no file there
        return reductions.rebuild_storage_filename(kind, manager, name, nbytes)  # type: ignore[no-any-return,no-untyped-call]
    if not re.fullmatch(rb"/torch_\w+", name):
        raise ValueError(f"references to shared tensors name no segment of shared memory: {name!r}")
    file = _SEGMENTS / name.decode("ascii").removeprefix("/")
    storage = _mapped.get(file.name)
    if storage is None or storage.nbytes() != nbytes:
        with file.open("r+b") as segment:
            memory = mmap.mmap(segment.fileno(), 0)
        head = len(memory) - nbytes  # PyTorch's count of readers is in front
        storage = torch.frombuffer(memory, dtype=torch.uint8, offset=head, count=nbytes).untyped_storage()
        _mapped[file.name] = storage
    return storage


def _rebuild_on_gpu(*arguments: Any) -> Tensor:
    gpus = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    number = next((gpu.index for gpu in gpus if _uuid(gpu) == arguments[_GPU]), None)
    if number is None:
        raise ValueError(f"this process does not see the GPU {arguments[_GPU]}, where the weights are")
    rebuild: Any = reductions.rebuild_cuda_tensor
    return rebuild(*arguments[:_GPU], number, *arguments[_GPU + 1 :])  # type: ignore[no-any-return]


def _uuid(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)
