"""vLLM: a server of our own, or one that somebody else started."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from ..cluster.in_flight import slots
from ..config.schema import PPOConfig
from ..engines.base import Engine
from ..engines.vllm.client import VLLMEngine, start_server
from ..engines.vllm.served import ServedOptions, ServedVLLM
from ..policy import Policy
from ..rollout.renderer import Renderer
from .cluster import gpu_of
from .policy import threads_for


async def vllm_engine(config: PPOConfig, policy: Policy, renderer: Renderer, version: int, replica: int) -> Engine:
    """One server, started or found, with the policy's weights as ``version``."""
    options = config.engine.vllm
    if options.base_url is not None:
        return await ServedVLLM.connect(
            served_options(config, replica),
            policy.model,
            max_context=config.engine.max_context,
            stop_token_ids=renderer.stop_token_ids,
            version=version,
        )
    server = start_server(
        policy.model,
        python=options.python,
        max_slots=slots(config),
        max_context=config.engine.max_context,
        dtype=getattr(torch, config.model.dtype),
        seed=config.trainer.seed + replica,
        threads=threads_for(policy, config.engine.threads),
        gpu=gpu_of(config, replica),
        gpu_memory_utilization=options.gpu_memory_utilization,
        kv_cache_gib=config.engine.kv_cache_gib,
        block_size=options.block_size,
        enforce_eager=options.enforce_eager,
        sleep_mode=options.sleep_mode,
        args=options.args,
    )
    return await VLLMEngine.connect(
        server,
        policy.model,
        stop_token_ids=renderer.stop_token_ids,
        version=version,
        timeout=options.start_timeout_s,
    )


def served_options(config: PPOConfig, replica: int) -> ServedOptions:
    """What the client of a server that runs already is made with.

    Raises:
        ValueError: It cannot be so.
    """
    section = config.engine.vllm
    assert section.base_url is not None
    return ServedOptions(
        section.base_url[replica],
        api_key=os.environ.get("VLLM_API_KEY"),
        transport=section.transport,
        update_folder=None if section.update_folder is None else Path(section.update_folder).expanduser(),
        start_timeout_s=section.start_timeout_s,
        health_timeout_s=section.health_timeout_s,
        stall_timeout_s=config.engine.stall_timeout_s,
    )
