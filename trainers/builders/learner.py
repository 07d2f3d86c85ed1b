"""The learner: checks of its sections, and its placement."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from ..cluster.group import LearnerGroup, RayRanks
from ..cluster.ray.runtime import RayCluster, nsight_of
from ..config.model import ModelSection
from ..config.running import RunSection
from ..config.schema import PPOConfig
from ..config.sizes import optimizer_steps
from ..engines.base import EngineError
from ..engines.teacher import ServedTeacher
from ..learner import Learner
from ..learner.lora import merge_saved, saved_pairs, target_names
from ..learner.parallel import check_model, shape_of, world_size
from ..learner.setup import check_offload
from ..models.policy import Policy, PolicyError, load, resolve_device
from . import SetupError, setup_errors
from .folder import START, run_folder
from .policy import threads_for


def check_learner(model: ModelSection, run: RunSection, policy: Policy, ranks: int = 1) -> None:
    """Raise ``SetupError`` before anything is trained if the learner is not available as configured."""
    with setup_errors("the learner: ", ValueError, ImportError):
        shape_of(run, ranks if ranks > 1 else world_size())
        check_model(policy.skeleton.config, run)
        if model.lora_rank:
            target_names(policy.skeleton.base_model, model)
            saved_pairs(policy.skeleton.base_model, model)
        if model.attn_implementation is not None:  # tested here; the learner's own copy will have it
            before = policy.skeleton.config._attn_implementation
            policy.skeleton.set_attn_implementation(model.attn_implementation)
            policy.skeleton.set_attn_implementation(before)
    if model.lora_rank and importlib.util.find_spec("peft") is None:
        raise SetupError("model.lora_rank needs peft: pip install 'textenvs[lora]'")
    with setup_errors("", ValueError):
        check_offload(model, run, resolve_device(model.device))


def learner_of(config: PPOConfig, policy: Policy, cluster: RayCluster | None = None) -> Learner | LearnerGroup:
    """Return actor, critic if the estimator needs one, and the frozen reference if a KL is used; here, or on Ray."""
    settings: dict[str, Any] = {
        "model": config.model,
        "run": config.trainer,
        "actor": config.actor,
        "critic": config.critic if "critic" in config.algorithm.needs else None,
        "reference": config.needs_reference,
        "teacher": teacher_of(config, policy),
        "total_steps": actor_steps(config),
        "temperature": config.rollout.temperature,
        "unused_token_ids": policy.unused_token_ids,
    }
    section = config.cluster
    if section.backend == "local":
        with setup_errors("the learner: ", ValueError, ImportError):
            return Learner(policy.source, **settings)
    if (adapter := config.model.lora_adapter_path) is not None:
        absolute = str(Path(adapter).expanduser().absolute())
        settings["model"] = config.model.model_copy(update={"lora_adapter_path": absolute})
    threads = threads_for(policy, config.trainer.threads)
    settings["run"] = config.trainer.model_copy(update={"threads": threads})
    assert cluster is not None
    folder = run_folder(config.trainer)
    policy.keep_in(folder / START)  # each rank reads its part
    ranks = RayRanks(cluster, nsight_of(section.nsight, config.trainer.profile_steps), section.silence_s)
    group = LearnerGroup(ranks, section, policy.source, **settings)
    try:
        group.check_folder(folder)
    except BaseException as error:
        group.close()
        if isinstance(error, ValueError):
            raise SetupError(str(error)) from error
        raise
    return group


def teacher_of(config: PPOConfig, policy: Policy) -> Path | None:
    """Return the folder of the teacher's model, where it is not the policy or its reference.

    ``SetupError``: there is no such folder, or its tokenizer has other tokens than the policy's; or a server at an
    address does not answer as a teacher does, has another tokenizer, or takes shorter contexts than the policy.
    """
    if (address := config.actor.distill.address) is not None:
        with setup_errors("actor.distill.teacher: ", EngineError, ImportError):
            ServedTeacher(address, config.actor.distill.top_k).meet(config.engine.max_context, policy.tokenizer)
    if (folder := config.actor.distill.folder) is None:
        return None
    model = config.model.model_copy(update={"path": folder})
    with setup_errors("actor.distill.teacher: ", PolicyError, ValueError):
        teacher = load(model, tuple, max_context=config.engine.max_context, seed=0)
        if teacher.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
            raise SetupError(
                f"actor.distill.teacher: {folder} has another tokenizer than the policy; a teacher scores the policy's "
                "own tokens, so it needs the same"
            )
    assert isinstance(teacher.source, str | Path)
    return Path(teacher.source).absolute()


def actor_steps(config: PPOConfig) -> int:
    """Return the optimizer steps of the actor in a run: none while the critic warms up alone."""
    alone = config.critic.warmup if "critic" in config.algorithm.needs else 0
    return (config.trainer.total_iterations - alone) * optimizer_steps(config)


def start_from_adapter(config: PPOConfig, policy: Policy) -> None:
    """Merge a saved adapter into the policy that engines are made of; the learner exists, and has it separately."""
    if config.model.lora_adapter_path is not None:
        merge_saved(policy.own().base_model, config.model)
