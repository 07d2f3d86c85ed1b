"""The command line of an SGLang server."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from trainers.config.engine import SGLangEngineSection
from trainers.engines.base import DEFAULT_SLOTS
from trainers.engines.server import server_python

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
    arguments = {
        "--model-path": model,
        "--host": "127.0.0.1",
        "--port": port,
        "--device": device,
        "--dtype": dtype,
        "--context-length": context,
        "--max-running-requests": slots,
        "--random-seed": seed % 2**31,
        "--log-level": "warning",
    }
    # Without sleeping, the scheduler polls for requests and keeps a core busy while a policy is trained.
    flags = ["--skip-tokenizer-init", "--skip-server-warmup", "--sleep-on-idle"]
    environment = {
        "PYTHONPATH": "",  # this process's packages are not the server's
        "PYTHONSAFEPATH": "1",  # nor are the files beside the launcher
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # for the positions that SGLang keeps to itself
    }
    if not cpu and gpu is not None:
        arguments["--base-gpu-id"] = gpu % torch.cuda.device_count()
    if ranks > 1:
        arguments["--tp-size"] = ranks
    if section.sglang.seeds:
        flags.append("--enable-deterministic-inference")
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
        arguments |= {"--attention-backend": "torch_native", "--mem-fraction-static": 0.8}
    shared = any(word.partition("=")[0] == "--mem-fraction-static" for word in added)
    if cpu or not shared:  # else SGLang takes all that share of memory, or all that is free
        arguments["--max-total-tokens"] = slots * context
    words = [str(word) for pair in arguments.items() for word in pair]
    launcher = str(Path(__file__).with_name("launcher.py"))
    return [server_python(section), launcher, *words, *flags, *added], environment
