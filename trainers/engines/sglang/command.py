"""The command line of an SGLang server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from trainers.config.engine import SGLangEngineSection
from trainers.engines.base import DEFAULT_SLOTS
from trainers.engines.server import command_words, server_python

_SPARE_CONTEXT = 8  # positions that SGLang keeps for itself beyond prompt and reply


def server_command(
    section: SGLangEngineSection,
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
    SGLang.
    """
    cpu, ranks, added = device == "cpu", section.tensor_parallel_size, section.sglang.server_args
    context, slots = section.max_context + _SPARE_CONTEXT, section.max_slots or DEFAULT_SLOTS
    arguments: dict[str, Any] = {
        "model_path": str(model),
        "host": "127.0.0.1",
        "port": port,
        "device": device,
        "dtype": dtype,
        "context_length": context,
        "max_running_requests": slots,
        "random_seed": seed % 2**31,
        "log_level": "warning",
        "skip_tokenizer_init": True,
        "skip_server_warmup": True,
        # Else the scheduler polls for requests and keeps a core busy while a policy is trained.
        "sleep_on_idle": True,
        "enable_deterministic_inference": section.sglang.seeds or None,
        "tp_size": ranks if ranks > 1 else None,
    }
    environment = {
        "PYTHONPATH": "",  # this process's packages are not the server's
        "PYTHONSAFEPATH": "1",  # nor are the files beside the launcher
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # for the positions that SGLang keeps to itself
    }
    if not cpu and gpu is not None:
        arguments["base_gpu_id"] = gpu % torch.cuda.device_count()
    if cpu:
        environment |= {
            "SGLANG_USE_CPU_ENGINE": "1",
            "TORCHDYNAMO_DISABLE": "1",  # compiling takes a C++ compiler, and longer than small models save by it
        }
        if ranks > 1:  # SGLang wants to be told which cores each rank computes on
            cores = sorted(os.sched_getaffinity(0))
            shares = [cores[rank::ranks] or cores[:1] for rank in range(ranks)]
            environment["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(",".join(map(str, share)) for share in shares)
        if section.threads is not None:
            environment["OMP_NUM_THREADS"] = str(section.threads)
        arguments |= {"attention_backend": "torch_native", "mem_fraction_static": 0.8}
    shared = any(word.partition("=")[0] == "--mem-fraction-static" for word in added)
    if cpu or not shared:  # else SGLang takes all that share of memory, or all that is free
        arguments["max_total_tokens"] = slots * context
    launcher = str(Path(__file__).with_name("launcher.py"))
    return [server_python(section), launcher, *command_words(arguments), *added], environment
