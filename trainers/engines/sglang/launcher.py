"""SGLang's HTTP server as a child of this project: ``python launcher.py --model-path ... --device cpu``.

It runs in SGLang's own environment (``make venv-sglang``), so it imports nothing of this project. With
``SGLANG_USE_CPU_ENGINE=1`` it runs from the wheels on PyPI, which are built for CUDA: two libraries that SGLang imports
cannot be loaded without it, and on the CPU are not called. Stand-ins take their places before SGLang is imported, also
in its worker processes, which import the main script again; site-packages stay as they are.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _MissingKernels(ModuleType):
    """``sgl_kernel`` without kernels: any of its names can be imported, none can be called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import machinery asks for these, and must hear that they are absent
            raise AttributeError(name)

        def missing(*_: Any, **__: Any) -> None:
            raise NotImplementedError(f"sgl_kernel.{name} is a CUDA kernel, and this SGLang runs on the CPU")

        return missing


def _prepare_cpu() -> list[Any]:
    """Put the stand-ins in place; returns what must stay alive for as long as they are needed."""
    import torch

    kernels = _MissingKernels("sgl_kernel")
    kernels.__spec__ = ModuleSpec("sgl_kernel", None)
    kernels.__file__ = __file__
    kernels.__version__ = "0"  # type: ignore[attr-defined]
    sys.modules["sgl_kernel"] = kernels
    # torchvision's compiled operators want CUDA; its Python part only wants them declared.
    vision = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        vision.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    # Checksums of 0.5.19 wait for the GPU first, also where there is none.
    torch.cuda.synchronize = lambda device=None: None  # type: ignore[assignment]
    return [vision]


def _murmur_hash32(seed: Any, positions: Any, columns: Any) -> Any:
    """MurmurHash3 (x86, 32 bits, hash seed 0) of four words: the seed's low and high half, position, column.

    ``seed`` is uint64 ``[n]``, ``positions`` integers ``[n]``, ``columns`` integers ``[m]``; the result is uint32
    ``[n, m]``, computed in int64, because torch has little arithmetic on unsigned integers.
    """
    import torch

    mask = 0xFFFFFFFF

    def product(x: Any, factor: int) -> Any:  # modulo 2**32, by halves of the factor, so that int64 suffices
        return (x * (factor & 0xFFFF) + ((x * (factor >> 16) & 0xFFFF) << 16)) & mask

    def rotate(x: Any, bits: int) -> Any:
        return ((x << bits) | (x >> (32 - bits))) & mask

    words = seed.view(torch.int64)
    blocks = [words & mask, (words >> 32) & mask, positions.to(torch.int64) & mask]
    hashed = torch.zeros(1, 1, dtype=torch.int64)
    for block in (*(b[:, None] for b in blocks), (columns.to(torch.int64) & mask)[None]):
        hashed = hashed ^ product(rotate(product(block, 0xCC9E2D51), 15), 0x1B873593)
        hashed = (product(rotate(hashed, 13), 5) + 0xE6546B64) & mask
    hashed = hashed ^ 16
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashed = product(hashed ^ (hashed >> shift), factor)
    return (hashed ^ (hashed >> 16)).to(torch.uint32)


def _allow_seeds() -> None:
    """Let SGLang honour seeds on the CPU: its deterministic mode, for GPUs alone, replaces kernels of theirs."""
    # Sampling with a seed draws its noise from it: Triton's in 0.5.19, later one of sgl_kernel. The sampler imports it.
    from sglang.kernels.ops.sampling import murmur_hash  # type: ignore[import-not-found]

    murmur_hash.murmur_hash32 = _murmur_hash32
    from sglang.srt import batch_invariant_ops, server_args  # type: ignore[import-not-found]

    batch_invariant_ops.enable_batch_invariant_mode = lambda: None
    server_args.add_deterministic_attention_backend_choices(["torch_native"])
    server_args.add_radix_supported_deterministic_attention_backend_choices(["torch_native"])


_alive: list[Any] = []
if __name__ in ("__main__", "__mp_main__") and os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
    _alive = _prepare_cpu()
    if "--enable-deterministic-inference" in sys.argv:
        _allow_seeds()

if __name__ == "__main__":
    from sglang.launch_server import run_server  # type: ignore[import-not-found]
    from sglang.srt.server_args import prepare_server_args  # type: ignore[import-not-found]
    from sglang.srt.utils import kill_process_tree  # type: ignore[import-not-found]

    try:
        run_server(prepare_server_args(sys.argv[1:]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
