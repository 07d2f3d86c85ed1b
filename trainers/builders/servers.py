"""Inference servers: vLLM's and SGLang's, that the run starts or that are there."""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..cluster.in_flight import slots
from ..config.schema import PPOConfig
from ..engines.remote import RemoteEngine
from ..engines.server import ServerOptions
from ..engines.sglang import SGLangEngine, SGLangOptions
from ..engines.vllm.engine import VLLMEngine
from ..engines.vllm.options import VLLMOptions
from ..policy import Policy, resolve_device
from ..rollout.renderer import Renderer
from ..tiny import save as save_policy
from .cluster import gpu_of
from .folder import run_folder
from .policy import threads_for


def server_options(config: PPOConfig, replica: int) -> ServerOptions:
    """What a replica's engine is made with.

    Raises:
        ValueError: It cannot be so.
    """
    engine = config.engine
    section = engine.vllm if engine.name == "vllm" else engine.sglang
    common: dict[str, Any] = {
        "base_url": None if section.base_url is None else section.base_url[replica],
        "api_key": os.environ.get(f"{engine.name.upper()}_API_KEY") if section.base_url is not None else None,
        "python": section.python,
        "tensor_parallel": engine.tensor_parallel_size,
        "transport": engine.weight_transport,
        "bucket_bytes": section.bucket_mib * 2**20,
        "master_address": section.master_address,
        "update_folder": None if section.update_folder is None else Path(section.update_folder).expanduser(),
        "verify": section.verify,
        "start_timeout_s": section.start_timeout_s,
        "health_timeout_s": section.health_timeout_s,
    }
    if engine.name == "sglang":
        return SGLangOptions(**common, server_args=engine.sglang.server_args, seeds=engine.sglang.seeds)
    return VLLMOptions(
        **common,
        gpu_memory_utilization=engine.vllm.gpu_memory_utilization,
        block_size=engine.vllm.block_size,
        enforce_eager=engine.vllm.enforce_eager,
        sleep_mode=engine.vllm.sleep_mode,
        args=engine.vllm.args,
    )


async def server_folder(config: PPOConfig, policy: Policy) -> Path:
    """Where servers read the policy: its weights where they are started, its shapes in any case."""
    folder = run_folder(config.trainer) / "engine_model"
    shutil.rmtree(folder, ignore_errors=True)
    await asyncio.to_thread(save_policy, folder, policy.model, policy.tokenizer)
    return folder


async def served_engine(
    config: PPOConfig, policy: Policy, renderer: Renderer, version: int, replica: int, folder: Path
) -> RemoteEngine:
    """One server, started or found, with the policy's weights as ``version``; it reads the policy in ``folder``."""
    kind = VLLMEngine if config.engine.name == "vllm" else SGLangEngine
    options = replace(
        server_options(config, replica),
        max_slots=slots(config),
        dtype=config.model.precision,
        device=resolve_device(config.model.device).type,
        gpu=gpu_of(config, replica),
        threads=threads_for(policy, config.engine.threads),
        kv_cache_gib=config.engine.kv_cache_gib,
        seed=config.trainer.seed + replica,
    )
    engine = kind(
        folder,
        options,
        max_context=config.engine.max_context,
        stop_token_ids=renderer.stop_token_ids,
        version=version,
        weights=policy.model.state_dict(),
    )
    try:
        await engine.ready()
    except BaseException:
        await engine.close()
        raise
    return engine
