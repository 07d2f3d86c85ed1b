"""SGLang's server: one that is started, or one that is there."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

from ..cluster.in_flight import slots
from ..config.schema import PPOConfig
from ..engines.sglang import SGLangEngine, SGLangOptions
from ..policy import Policy, resolve_device
from ..rollout.renderer import Renderer
from ..tiny import save as save_policy
from .cluster import gpu_of
from .folder import run_folder
from .policy import threads_for


def sglang_options(config: PPOConfig, replica: int) -> SGLangOptions:
    """What a replica's client is made with.

    Raises:
        ValueError: It cannot be so.
    """
    section = config.engine.sglang
    return SGLangOptions(
        base_url=None if section.base_url is None else section.base_url[replica],
        api_key=os.environ.get("SGLANG_API_KEY") if section.base_url is not None else None,
        python=section.python,
        server_args=section.server_args,
        tensor_parallel=config.engine.tensor_parallel_size,
        seeds=section.seeds,
        transport=section.transport,
        bucket_bytes=section.bucket_mib * 2**20,
        master_address=section.master_address,
        update_folder=None if section.update_folder is None else Path(section.update_folder).expanduser(),
        verify=section.verify,
        start_timeout_s=section.start_timeout_s,
        health_timeout_s=section.health_timeout_s,
    )


async def sglang_folder(config: PPOConfig, policy: Policy) -> Path:
    """Where servers read the policy: its weights where they are started, its shapes in any case."""
    folder = run_folder(config.trainer) / "engine_model"
    shutil.rmtree(folder, ignore_errors=True)
    await asyncio.to_thread(save_policy, folder, policy.model, policy.tokenizer)
    return folder


async def sglang_engine(
    config: PPOConfig, policy: Policy, renderer: Renderer, version: int, replica: int, folder: Path
) -> SGLangEngine:
    """One server, started or found, with the policy's weights as ``version``; it reads the policy in ``folder``."""
    engine = SGLangEngine(
        folder,
        sglang_options(config, replica),
        max_context=config.engine.max_context,
        max_slots=slots(config),
        stop_token_ids=renderer.stop_token_ids,
        dtype=config.model.dtype,
        device=resolve_device(config.model.device).type,
        gpu=gpu_of(config, replica),
        threads=threads_for(policy, config.engine.threads),
        seed=config.trainer.seed + replica,
        version=version,
        weights=policy.model.state_dict(),
    )
    try:
        await engine.ready()
    except BaseException:
        await engine.close()
        raise
    return engine
