"""The learner: its options, checks of these, its placement, and publication of its weights."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from ..algorithms.losses import PolicyLoss
from ..cluster.group import LearnerGroup, RayRanks
from ..cluster.plan import parallel_of
from ..cluster.ray.runtime import RayCluster, nsight_of
from ..config.learning import CriticSection
from ..config.model import ModelSection
from ..config.running import RunSection
from ..config.schema import PPOConfig
from ..config.sizes import optimizer_steps
from ..learner import Learner, LoRASettings, OptimizerSettings
from ..learner.lora import merge_saved, saved_pairs, target_names
from ..learner.parallel import check_model, world_size
from ..models.policy import Policy, resolve_device
from . import SetupError, setup_errors
from .folder import START, run_folder
from .policy import threads_for


def learner_options(model: ModelSection, run: RunSection) -> dict[str, Any]:
    """Return the options that every learner of a run shares: precision, adapters, memory, parallelism."""
    lora, adapter = None, model.lora_adapter_path
    if model.lora_rank:
        lora = LoRASettings(
            model.lora_rank,
            model.lora_alpha,
            model.target_modules,
            model.exclude_modules,
            seed=run.seed,
            adapter=adapter and str(Path(adapter).expanduser().absolute()),
        )
    return {
        "dtype": model.dtype,
        "lora": lora,
        "parallel": parallel_of(run),
        "gradient_checkpointing": model.enable_gradient_checkpointing,
        "activation_offload": model.enable_activation_offload,
        "remove_padding": model.use_remove_padding,
        "attn_implementation": model.attn_implementation,
        "fsdp": run.fsdp,
        "offload": run.offload,
        "compile": run.use_torch_compile,
        "peak_tflops": run.peak_tflops,
    }


def check_learner(model: ModelSection, run: RunSection, policy: Policy, ranks: int = 1) -> None:
    """Raise ``SetupError`` before anything is trained if the learner is not available as configured."""
    options = learner_options(model, run)
    with setup_errors("the learner: ", ValueError, ImportError):
        options["parallel"].shape(ranks if ranks > 1 else world_size())
        check_model(policy.skeleton.config, options["parallel"])
        if options["lora"] is not None:
            target_names(policy.skeleton.base_model, options["lora"])
            saved_pairs(policy.skeleton.base_model, options["lora"])
        if model.attn_implementation is not None:  # tested here; the learner's own copy will have it
            before = policy.skeleton.config._attn_implementation
            policy.skeleton.set_attn_implementation(model.attn_implementation)
            policy.skeleton.set_attn_implementation(before)
    if options["lora"] is not None and importlib.util.find_spec("peft") is None:
        raise SetupError("model.lora_rank needs peft: pip install 'textenvs[lora]'")
    if resolve_device(model.device).type == "cpu" and (run.offload or model.enable_activation_offload):
        raise SetupError("trainer.offload and model.enable_activation_offload are for cuda, and there is no GPU")


def learner_of(config: PPOConfig, policy: Policy, cluster: RayCluster | None = None) -> Learner | LearnerGroup:
    """Return actor, critic if the estimator needs one, and the frozen reference if a KL is used; here, or on Ray."""
    settings = {**learner_settings(config), "unused_token_ids": policy.unused_token_ids}
    section = config.cluster
    if section.backend == "local":
        with setup_errors("the learner: ", ValueError, ImportError):
            return Learner(policy.source, **settings, device=resolve_device(config.model.device))
    settings |= {"device": config.model.device, "threads": threads_for(policy, config.trainer.threads)}
    assert cluster is not None
    folder = run_folder(config.trainer)
    policy.keep_in(folder / START)  # each rank reads its part
    ranks = RayRanks(cluster, nsight_of(section.nsight, config.trainer.profile_steps), section.silence_s)
    patience = {"silence": section.silence_s, "stall": section.stall_s, "start_timeout": section.start_timeout_s}
    group = LearnerGroup(ranks, policy.source, settings, **patience)
    try:
        group.check_folder(folder)
    except BaseException as error:
        group.close()
        if isinstance(error, ValueError):
            raise SetupError(str(error)) from error
        raise
    return group


def start_from_adapter(config: PPOConfig, policy: Policy) -> None:
    """Merge a saved adapter into the policy that engines are made of; the learner exists, and has it separately."""
    lora = learner_options(config.model, config.trainer)["lora"]
    if lora is not None and lora.adapter is not None:
        merge_saved(policy.own().base_model, lora)


def learner_settings(config: PPOConfig) -> dict[str, Any]:
    """Return the learner's arguments, except for the model, the device and the threads."""
    actor, critic = config.actor, config.critic
    with_critic = "critic" in config.algorithm.needs
    alone = critic.warmup if with_critic else 0  # iterations in which the actor takes no step
    steps = (config.trainer.total_iterations - alone) * optimizer_steps(config)
    total_steps = max(steps, actor.lr_warmup_steps + 1)
    return {
        "critic": with_critic,
        "reference": config.needs_reference,
        "optimizer": _optimizer(actor, schedule=actor.lr_schedule, total_steps=total_steps, min_lr_ratio=0.1),
        "critic_optimizer": _optimizer(critic),
        "max_tokens_per_micro_batch": actor.max_tokens_per_micro_batch,
        "temperature": config.rollout.temperature,
        **learner_options(config.model, config.trainer),
    }


def _optimizer(section: PolicyLoss | CriticSection, **schedule: Any) -> OptimizerSettings:
    return OptimizerSettings(
        lr=section.lr,
        betas=section.betas,
        weight_decay=section.weight_decay,
        warmup_steps=section.lr_warmup_steps,
        grad_clip=section.grad_clip,
        **schedule,
    )
