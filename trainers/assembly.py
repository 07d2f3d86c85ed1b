"""From a configuration to the parts of a run. Nothing here trains or plays; :mod:`trainers.ppo` reads top to bottom."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any

import gymnasium
import torch

import textenvs
from textenvs.env import TextEnv
from textenvs.tasks import Task, TaskError

from . import demonstrations
from .algorithms.advantages import NEEDS_CRITIC
from .checkpoints import Checkpoint, CheckpointError, Checkpoints, load
from .config.schema import (
    EnvSection,
    ModelSection,
    PPOConfig,
    RewardFunctionSection,
    RunSection,
    SupervisedSection,
    TrainerSection,
)
from .engines.base import Engine, EngineError, Sampling
from .engines.openai_compatible import refuse_training
from .engines.replicas import Replicas
from .engines.sglang import SGLangEngine, SGLangOptions
from .engines.torch_engine import TorchEngine
from .engines.vllm.client import VLLMEngine, start_server
from .learner import Learner, OptimizerSettings
from .policy import Policy, PolicyError, resolve_device
from .policy import load as load_policy
from .rollout.collector import Collector
from .rollout.environments import Backend, EnvSpec
from .rollout.renderer import Renderer
from .rollout.rewards import Score, SoFar
from .rollout.tasks import TaskOrder
from .rollout.trace import TraceFile
from .scoring import FunctionError, FunctionPool
from .tiny import save as save_policy

log = logging.getLogger("trainers")

# A tiny model's tokenizer learns its merges from so many conversations.
_TOKENIZER_TEXTS = 1000
# Below this many parameters a matrix product is over before a second thread has woken up.
_ONE_THREAD_BELOW = 5_000_000
# The event loop's lag is probed so often.
_LAG_INTERVAL_S = 0.02


class SetupError(ValueError):
    """A run cannot be put together; the message says why and what to do."""


# ------------------ environments


def env_kwargs(env: EnvSection, files: Sequence[str] | None, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The arguments of the environment: those configured, the tasks of ``files``, and ``more`` laid over them.

    Raises:
        SetupError: The environment does not take one of them.
    """
    kwargs = {**env.kwargs, **(more or {})}
    if files is not None:
        kwargs["tasks"] = files[0] if len(files) == 1 else list(files)
        kwargs.pop("level", None)
    return kwargs


def make_env(env_id: str, kwargs: Mapping[str, Any]) -> TextEnv[Any]:
    """One environment, or an error that a user of the configuration can act on.

    Raises:
        SetupError: The id is unknown, an argument does not fit, or the tasks cannot be read.
    """
    try:
        return textenvs.make(env_id, **kwargs)
    except TaskError as error:
        raise SetupError(str(error)) from error
    except (gymnasium.error.Error, TypeError, ValueError, ImportError) as error:
        raise SetupError(
            f"env.id={env_id} with {dict(kwargs)}: {error} (see env.kwargs, env.val_kwargs and data.*)"
        ) from error


def training_kwargs(config: PPOConfig) -> dict[str, Any]:
    """Of the environments to train in."""
    return env_kwargs(config.env, config.data.train_files)


def validation_kwargs(config: PPOConfig) -> dict[str, Any]:
    """Of the environments to validate in: held-out tasks, by ``data.val_files`` or by ``env.val_kwargs``."""
    return env_kwargs(config.env, config.data.val_files, config.env.val_kwargs)


def backend_of(config: PPOConfig, *, validation: bool) -> Backend:
    """Where episodes step."""
    kwargs = validation_kwargs(config) if validation else training_kwargs(config)
    limit = None if config.env.backend == "inline" else config.env.workers
    return Backend(
        EnvSpec(config.env.id, kwargs),
        config.env.backend,
        workers=limit,
        reset_timeout=config.rollout.step_timeout_s,
        step_timeout=config.rollout.step_timeout_s,
    )


def check_environments(config: PPOConfig) -> None:
    """Make both environments once, here, so that a mistake is found before anything is trained.

    Raises:
        SetupError: One cannot be made, or is not for this backend.
    """
    for kwargs in (training_kwargs(config), validation_kwargs(config)):
        env = make_env(config.env.id, kwargs)
        if env.blocking and config.env.backend == "inline":
            raise SetupError(f"{config.env.id} may block its thread: use env.backend=thread or env.backend=process")
        env.close()


def validation_tasks(config: PPOConfig) -> range:
    """The first ``data.val_size`` tasks, or all where there are fewer."""
    size = make_env(config.env.id, validation_kwargs(config)).tasks.size
    return range(config.data.val_size if size is None else min(size, config.data.val_size))


# ------------------ the policy


def demonstrations_of(
    env_id: str, kwargs: Mapping[str, Any], section: SupervisedSection, seed: int
) -> Iterator[demonstrations.Demonstration]:
    """The conversations to imitate: of files, or played by the environment's scripted expert."""
    if section.files is not None:
        return demonstrations.read(section.files)
    env = make_env(env_id, kwargs)
    return demonstrations.play(
        env,
        section.demonstrations,
        seed=seed,
        mistake_rate=section.mistake_rate,
        mistake_weight=section.mistake_weight,
    )


def tokenizer_texts(env_id: str, kwargs: Mapping[str, Any], section: SupervisedSection, seed: int) -> Iterator[str]:
    """What a tiny model's tokenizer is made for: the conversations it will see first."""
    for each in islice(demonstrations_of(env_id, kwargs, section, seed), _TOKENIZER_TEXTS):
        for message in each.messages:
            yield f"{message['role']}\n{message['content']}"


def policy_of(
    model: ModelSection,
    env_id: str,
    kwargs: Mapping[str, Any],
    section: SupervisedSection,
    *,
    max_context: int,
    seed: int,
    checkpoint: Checkpoint | None = None,
) -> Policy:
    """The policy a run starts from, or the one that a checkpoint holds.

    Raises:
        SetupError: It cannot be loaded.
    """
    if checkpoint is not None:
        model = ModelSection(path=str(checkpoint.path / "model"), dtype=model.dtype, device=model.device)
    try:
        return load_policy(
            model, lambda: tokenizer_texts(env_id, kwargs, section, seed), max_context=max_context, seed=seed
        )
    except PolicyError as error:
        raise SetupError(str(error)) from error


def threads_for(policy: Policy, wanted: int | None) -> int | None:
    """CPU threads for this model: what is ``wanted``, else one where it is so small that more would slow it down.

    ``None`` leaves torch's own choice.
    """
    if wanted is not None:
        return wanted
    return 1 if sum(weight.numel() for weight in policy.model.parameters()) < _ONE_THREAD_BELOW else None


def set_threads(policy: Policy, wanted: int | None) -> None:
    """Let torch use :func:`threads_for` this model, in the whole process."""
    if (threads := threads_for(policy, wanted)) is not None:
        torch.set_num_threads(threads)


# ------------------ engine, collector


def sampling_of(config: PPOConfig) -> Sampling:
    """How episodes are sampled in training."""
    rollout = config.rollout
    return Sampling(
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        min_p=rollout.min_p,
        max_new_tokens=rollout.max_response_length,
    )


async def engine_of(config: PPOConfig, policy: Policy, renderer: Renderer, *, version: int = 0) -> Engine:
    """The engine, with the policy's weights as ``version`` (the iterations that made them), ready to generate.

    Raises:
        SetupError: It does not serve this model, not with so long a context, or it does not start.
    """
    try:
        if config.engine.name == "vllm":
            return await _vllm_engine(config, policy, renderer, version)
        if config.engine.name == "sglang":
            return await _sglang_engine(config, policy, renderer, version)
        if config.engine.replicas > 1:
            return _torch_replicas(config, policy, renderer, version)
        return _torch_engine(config, policy, renderer, version)
    except (ValueError, EngineError) as error:
        raise SetupError(f"model.path={config.model.path} with the {config.engine.name} engine: {error}") from error


def _torch_engine(config: PPOConfig, policy: Policy, renderer: Renderer, version: int, replica: int = 0) -> TorchEngine:
    return TorchEngine(
        policy.model,
        max_slots=config.engine.max_slots,
        max_context=config.engine.max_context,
        device=resolve_device(config.model.device),
        dtype=getattr(torch, config.model.dtype),
        stop_token_ids=renderer.stop_token_ids,
        seed=config.trainer.seed + replica,
        threads=threads_for(policy, config.engine.threads),
        version=version,
    )


def _torch_replicas(config: PPOConfig, policy: Policy, renderer: Renderer, version: int) -> Replicas:
    def make(replica: int) -> TorchEngine:
        # The policy's model stays as it is, because the learner trains a copy: these are the weights of `version`.
        return _torch_engine(config, policy, renderer, version, replica)

    # What the learner publishes are copies already.
    return Replicas([make(i) for i in range(config.engine.replicas)], restart=make, copy_weights=False)


async def _vllm_engine(config: PPOConfig, policy: Policy, renderer: Renderer, version: int) -> VLLMEngine:
    options = config.engine.vllm
    server = start_server(
        policy.model,
        python=options.python,
        max_slots=config.engine.max_slots,
        max_context=config.engine.max_context,
        dtype=getattr(torch, config.model.dtype),
        seed=config.trainer.seed,
        threads=threads_for(policy, config.engine.threads),
        gpu_memory_utilization=options.gpu_memory_utilization,
        kv_cache_gib=options.kv_cache_gib,
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


def check_engine(config: PPOConfig) -> None:
    """Find out before anything is trained whether the engine can be had at all.

    Raises:
        SetupError: It cannot train, or what it needs is not there.
    """
    try:
        if config.engine.name == "openai":
            refuse_training()
        if config.engine.name == "sglang":
            _sglang_options(config)
    except (ValueError, EngineError) as error:
        raise SetupError(f"engine.name={config.engine.name}: {error}") from error


def _sglang_options(config: PPOConfig) -> SGLangOptions:
    section = config.engine.sglang
    return SGLangOptions(
        base_url=section.base_url,
        api_key=os.environ.get("SGLANG_API_KEY") if section.base_url is not None else None,
        python=section.python,
        server_args=section.server_args,
        seeds=section.seeds,
        transport=section.transport,
        bucket_bytes=section.bucket_mib * 2**20,
        master_address=section.master_address,
        update_folder=None if section.update_folder is None else Path(section.update_folder).expanduser(),
        verify=section.verify,
        start_timeout_s=section.start_timeout_s,
        health_timeout_s=section.health_timeout_s,
        stall_timeout_s=section.stall_timeout_s,
    )


async def _sglang_engine(config: PPOConfig, policy: Policy, renderer: Renderer, version: int) -> SGLangEngine:
    # The server reads the policy from a folder: its weights where it is started, its shapes in any case.
    folder = run_folder(config.trainer) / "engine_model"
    shutil.rmtree(folder, ignore_errors=True)
    await asyncio.to_thread(save_policy, folder, policy.model, policy.tokenizer)
    engine = SGLangEngine(
        folder,
        _sglang_options(config),
        max_context=config.engine.max_context,
        max_slots=config.engine.max_slots,
        stop_token_ids=renderer.stop_token_ids,
        dtype=config.model.dtype,
        device=resolve_device(config.model.device).type,
        threads=threads_for(policy, config.engine.threads),
        seed=config.trainer.seed,
        version=version,
        weights=policy.model.state_dict(),
    )
    try:
        await engine.ready()
    except BaseException:
        await engine.close()
        raise
    return engine


def reward_function_of(section: RewardFunctionSection) -> FunctionPool | None:
    """The processes of a reward function of the user's own, if there is one.

    Raises:
        SetupError: It cannot be had.
    """
    if section.path is None:
        return None
    try:
        return FunctionPool(section.path, section.name, workers=section.workers, timeout_s=section.timeout_s)
    except FunctionError as error:
        raise SetupError(f"custom_reward_function: {error}") from error


def custom_reward(config: PPOConfig, pool: FunctionPool) -> Score:
    """The function as a reward that comes later: of whole episodes, in place of what the environment pays or beside it.

    What it scores (``solution_str``) are the policy's replies alone, an empty line between two; nothing that the
    environment said counts as the policy's. ``extra_info`` is the row's, with the conversation as ``messages``.
    """
    replace = config.custom_reward_function.replace
    sets = [
        (kwargs, make_env(config.env.id, kwargs).tasks)
        for kwargs in (training_kwargs(config), validation_kwargs(config))
    ]

    def task_of(so_far: SoFar) -> Task:
        assert so_far.spec is not None
        assert so_far.task_index is not None
        return next(tasks for kwargs, tasks in sets if kwargs == so_far.spec.kwargs)[so_far.task_index]

    async def terms(so_far: SoFar) -> dict[str, float]:
        earned = {"environment_not_counted": -so_far.reward} if replace and so_far.reward else {}
        if so_far.over:
            task = task_of(so_far)
            replies = [message["content"] for message in so_far.messages if message["role"] == "assistant"]
            scored = await pool.score(
                data_source=task.data_source,
                solution_str="\n\n".join(replies),
                ground_truth=task.ground_truth,
                extra_info={**task.extra, "messages": [dict(message) for message in so_far.messages]},
            )
            earned["custom"] = scored.score
        return earned

    def score(so_far: SoFar, turn: int) -> Awaitable[Mapping[str, float]] | None:
        return terms(so_far) if so_far.over or (replace and so_far.reward) else None

    return score


def collector_of(
    config: PPOConfig,
    engine: Engine,
    renderer: Renderer,
    backend: Backend,
    trace: TraceFile | None = None,
    rewards: Mapping[str, Score] | None = None,
) -> Collector:
    """What collects training episodes, and draws them in ``trace``; ``rewards`` come later."""
    rollout = config.rollout
    size = make_env(config.env.id, training_kwargs(config)).tasks.size
    return Collector(
        engine,
        renderer,
        backend,
        tasks=TaskOrder(size, seed=config.trainer.seed, shuffle=config.data.shuffle),
        group_size=rollout.n,
        groups_per_batch=rollout.groups_per_batch,
        staleness=rollout.staleness,
        window=rollout.window,
        surplus=ceil((rollout.oversampling_factor - 1.0) * rollout.groups_per_batch - 1e-9),
        sampling=sampling_of(config),
        max_context=config.engine.max_context,
        max_response_tokens=rollout.max_response_tokens,
        generation_timeout=rollout.generation_timeout_s,
        episode_timeout=rollout.episode_timeout_s,
        retries=rollout.retries,
        max_running=rollout.max_running,
        filter_zero_variance=rollout.filter_zero_variance,
        max_consecutive_filtered=rollout.max_consecutive_filtered,
        max_consecutive_errors=rollout.max_consecutive_errors,
        partial=rollout.partial,
        partial_max_age=rollout.partial_max_age,
        engine_slots=config.engine.max_slots * config.engine.replicas,
        rewards=rewards,
        reward_timeout=None,  # those that are made here have a limit of their own, which waiting for a place is not in
        lag_interval=_LAG_INTERVAL_S,
        trace=trace,
        seed=config.trainer.seed,
    )


def trace_of(config: PPOConfig) -> TraceFile | None:
    """The trace that is asked for.

    Raises:
        SetupError: It cannot be written.
    """
    if config.trainer.trace_file is None:
        return None
    try:
        return TraceFile(Path(config.trainer.trace_file).expanduser())
    except OSError as error:
        raise SetupError(f"trainer.trace_file={config.trainer.trace_file}: {error}") from error


# ------------------ learner


def learner_of(config: PPOConfig, policy: Policy) -> Learner:
    """Actor, critic if the estimator needs one, and the frozen reference if a KL is asked for."""
    actor, critic = config.actor, config.critic
    steps = config.trainer.total_iterations * actor.ppo_epochs * actor.mini_batches
    return Learner(
        policy.model,
        critic=config.algorithm.adv_estimator in NEEDS_CRITIC,
        reference=actor.use_kl_loss or config.algorithm.use_kl_in_reward,
        optimizer=OptimizerSettings(
            lr=actor.lr,
            betas=actor.betas,
            weight_decay=actor.weight_decay,
            warmup_steps=actor.lr_warmup_steps,
            schedule=actor.lr_schedule,
            total_steps=max(steps, actor.lr_warmup_steps + 1),
            min_lr_ratio=0.1,
            grad_clip=actor.grad_clip,
        ),
        critic_optimizer=OptimizerSettings(
            lr=critic.lr,
            weight_decay=critic.weight_decay,
            warmup_steps=critic.lr_warmup_steps,
            grad_clip=critic.grad_clip,
        ),
        max_tokens_per_micro_batch=actor.max_tokens_per_micro_batch,
        temperature=config.rollout.temperature,
        dtype=config.model.dtype,
        fsdp=config.trainer.fsdp,
        device=resolve_device(config.model.device),
    )


# ------------------ the run's folder


def run_folder(section: RunSection) -> Path:
    """Where the run writes."""
    if section.default_local_dir is not None:
        return Path(section.default_local_dir).expanduser()
    return Path("outputs") / section.project_name / section.experiment_name


def checkpoint_to_resume(section: TrainerSection, saved: Checkpoints) -> Checkpoint | None:
    """The checkpoint that the run goes on from, if any.

    Raises:
        CheckpointError: The one that was asked for cannot be used.
    """
    if section.resume_mode == "disable":
        return None
    if section.resume_mode == "resume_path":
        if section.resume_from_path is None:
            raise CheckpointError("trainer.resume_mode=resume_path needs trainer.resume_from_path")
        return load(Path(section.resume_from_path).expanduser())
    return saved.newest()
