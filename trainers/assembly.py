"""From a configuration to the parts of a run. Nothing here trains or plays; :mod:`trainers.ppo` reads top to bottom."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import logging
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
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
from .algorithms.advantages import NEEDS_CRITIC, NEEDS_GREEDY
from .checkpoints import Checkpoint, CheckpointError, Checkpoints, load
from .cluster.group import LearnerGroup
from .cluster.local import local_group
from .cluster.parcel import pack
from .cluster.plan import Plan, make_plan
from .cluster.ray.engine import RayEngine
from .cluster.ray.ranks import RayLearnerGroup
from .cluster.ray.runtime import RayCluster
from .cluster.shape import shape_of, this_machine
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
from .engines.vllm.served import ServedOptions, ServedVLLM
from .learner import Learner, LoRASettings, OptimizerSettings, Parallel
from .learner.lora import target_names
from .learner.parallel import check_model, world_size
from .policy import Policy, PolicyError, resolve_device
from .policy import load as load_policy
from .rewards import FunctionError, FunctionPool
from .rollout.collector import Collector
from .rollout.environments import Backend, EnvSpec
from .rollout.ray_worker import placed
from .rollout.renderer import Renderer
from .rollout.rewards import Score, SoFar
from .rollout.tasks import TaskOrder
from .rollout.trace import TraceFile
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


# ------------------ the cluster


def plan_of(config: PPOConfig) -> Plan:
    """Where the run's parts will be; nothing is started.

    Raises:
        PlanError: They do not fit.
    """
    return make_plan(config, this_machine(), shape_of(config.model))


@contextmanager
def cluster_of(config: PPOConfig, plan: Plan) -> Iterator[RayCluster | None]:
    """Ray for the time of the run, where the run uses it.

    Raises:
        SetupError: Ray is not installed.
        PlanError: It has not what the plan needs.
    """
    if config.cluster.backend != "ray" and config.env.backend != "ray":
        yield None
        return
    with ExitStack() as stack:
        options = config.ray_init
        try:
            cluster = RayCluster(
                plan,
                address=options.address,
                num_cpus=options.num_cpus,
                timeline=options.timeline_json_file,
                timeout=config.cluster.start_timeout_s,
            )
        except ImportError as error:
            raise SetupError(str(error)) from error
        stack.enter_context(cluster)
        if (environments := cluster.environment_options()) is not None:
            stack.enter_context(placed(environments))
        yield cluster


def driver_device(config: PPOConfig) -> torch.device:
    """Where this process computes: with Ray, GPUs may be on other machines alone."""
    if config.cluster.backend == "ray" and not torch.cuda.is_available():
        return torch.device("cpu")
    return resolve_device(config.model.device)


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


async def engine_of(
    config: PPOConfig,
    policy: Policy,
    renderer: Renderer,
    *,
    version: int = 0,
    cluster: RayCluster | None = None,
    learner: Learner | LearnerGroup | None = None,
) -> Engine:
    """The engine, with the policy's weights as ``version`` (the iterations that made them), ready to generate.

    Args:
        config: Of the run.
        policy: What it serves.
        renderer: Whose stop tokens it heeds.
        version: Of the policy's weights.
        cluster: With ``cluster.backend=ray``: where its actors go.
        learner: Then, whose GPUs they share.

    Raises:
        SetupError: It does not serve this model, not with so long a context, or it does not start.
    """
    try:
        if config.cluster.backend == "ray":
            assert cluster is not None
            return await _ray_engines(config, policy, version, cluster, learner)
        make = await _maker(config, policy, renderer, version)
        engines = await _all_or_none([make(index) for index in range(config.engine.engines)])
        if len(engines) == 1:
            return engines[0]
        # What the learner publishes are copies already.
        return Replicas(engines, restart=make, copy_weights=False, restart_timeout=_restart_timeout(config))
    except (ValueError, EngineError) as error:
        raise SetupError(f"model.path={config.model.path} with the {config.engine.name} engine: {error}") from error


async def _maker(
    config: PPOConfig, policy: Policy, renderer: Renderer, version: int
) -> Callable[[int], Engine | Awaitable[Engine]]:
    """From a replica's index to an engine with the policy's weights.

    The policy's model stays as it is, because the learner trains a copy: these are the weights of ``version`` also when
    a replica is replaced later. A server that somebody else started is not started again: its place waits for it.
    """
    if config.engine.name == "vllm":
        return lambda index: _vllm_engine(config, policy, renderer, version, index)
    if config.engine.name == "sglang":
        folder = await _sglang_folder(config, policy)
        return lambda index: _sglang_engine(config, policy, renderer, version, index, folder)
    return lambda index: _torch_engine(config, policy, renderer, version, index)


async def _all_or_none(made: Sequence[Engine | Awaitable[Engine]]) -> list[Engine]:
    async def finished(one: Engine | Awaitable[Engine]) -> Engine:
        return await one if inspect.isawaitable(one) else one

    ended = await asyncio.gather(*(finished(one) for one in made), return_exceptions=True)
    engines = [each for each in ended if not isinstance(each, BaseException)]
    if errors := [each for each in ended if isinstance(each, BaseException)]:
        await asyncio.gather(*(engine.close() for engine in engines), return_exceptions=True)
        raise errors[0]
    return engines


def _restart_timeout(config: PPOConfig) -> float:
    """A new server may take its time to start, and some more for its first weights."""
    starting = {"vllm": config.engine.vllm.start_timeout_s, "sglang": config.engine.sglang.start_timeout_s}
    return starting.get(config.engine.name, 0.0) + 300.0


def _gpu(config: PPOConfig, replica: int) -> int | None:
    """Replicas take the machine's GPUs in turn; one engine alone takes what it finds."""
    return replica if config.engine.engines > 1 else None


async def _ray_engines(
    config: PPOConfig, policy: Policy, version: int, cluster: RayCluster, learner: Learner | LearnerGroup | None
) -> Replicas:
    # The policy is sent once, and stays for engines that take a lost one's place.
    makers = [
        cluster.ray.put(pack(partial(_engine_there, config, policy, version, replica)))
        for replica in range(config.engine.replicas)
    ]

    async def make(replica: int) -> RayEngine:
        gpus = []
        if shared := cluster.plan.engine_gpus[replica]:
            assert isinstance(learner, RayLearnerGroup)
            ranks = [learner.ranks.info[rank] for rank in shared]
            if len({address for address, _, _ in ranks}) > 1:
                raise EngineError(
                    f"the GPUs of replica {replica} are those of ranks {shared}, and Ray has put these on several "
                    "machines; use cluster.colocate=false"
                )
            gpus = [gpu for _, _, its in ranks for gpu in its]
        return await RayEngine.start(
            cluster, replica, makers[replica], gpus=gpus, bucket_bytes=config.cluster.bucket_mib * 2**20
        )

    engines: list[RayEngine] = []
    try:
        for replica in range(config.engine.replicas):
            engines.append(await make(replica))
    except BaseException:
        for engine in engines:
            await engine.close()
        raise
    return Replicas(engines, restart=make, copy_weights=False)


async def _engine_there(config: PPOConfig, policy: Policy, version: int, replica: int) -> Engine:
    """One engine, in the actor that it is for."""
    renderer = Renderer(policy.tokenizer)
    if config.engine.name == "torch":
        return _torch_engine(config, policy, renderer, version, replica)
    here = {
        "engine": config.engine.model_copy(update={"replicas": 1}),
        "cluster": config.cluster.model_copy(update={"backend": "local"}),
        # What a server reads is for its machine alone.
        "trainer": config.trainer.model_copy(update={"default_local_dir": tempfile.mkdtemp(prefix="textenvs-engine-")}),
    }
    made = (await _maker(config.model_copy(update=here), policy, renderer, version))(replica)
    return await made if inspect.isawaitable(made) else made


def sleeps(config: PPOConfig) -> bool:
    """Whether the engine gives its memory back while the learner learns on the same GPUs."""
    return config.cluster.colocate and config.engine.name == "vllm" and config.engine.vllm.sleep_mode


def _engine_device(config: PPOConfig, replica: int) -> torch.device:
    """Of a torch engine: an actor sees its own GPU alone, and in this process each has one, or a rank's."""
    device, cluster = resolve_device(config.model.device), config.cluster
    if device.type != "cuda" or cluster.backend == "ray":
        return device
    number = replica % cluster.learner_ranks if cluster.colocate else cluster.learner_ranks + replica
    return torch.device("cuda", number)


def _torch_engine(config: PPOConfig, policy: Policy, renderer: Renderer, version: int, replica: int) -> TorchEngine:
    return TorchEngine(
        policy.model,
        max_slots=config.engine.max_slots,
        max_context=config.engine.max_context,
        device=_engine_device(config, replica),
        dtype=getattr(torch, config.model.dtype),
        stop_token_ids=renderer.stop_token_ids,
        seed=config.trainer.seed + replica,
        threads=threads_for(policy, config.engine.threads),
        version=version,
    )


async def _vllm_engine(config: PPOConfig, policy: Policy, renderer: Renderer, version: int, replica: int) -> Engine:
    options = config.engine.vllm
    if options.base_url is not None:
        return await ServedVLLM.connect(
            _served_options(config, replica),
            policy.model,
            max_context=config.engine.max_context,
            stop_token_ids=renderer.stop_token_ids,
            version=version,
        )
    server = start_server(
        policy.model,
        python=options.python,
        max_slots=config.engine.max_slots,
        max_context=config.engine.max_context,
        dtype=getattr(torch, config.model.dtype),
        seed=config.trainer.seed + replica,
        threads=threads_for(policy, config.engine.threads),
        gpu=_gpu(config, replica),
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


def _served_options(config: PPOConfig, replica: int) -> ServedOptions:
    section = config.engine.vllm
    assert section.base_url is not None
    return ServedOptions(
        section.base_url[replica],
        api_key=os.environ.get("VLLM_API_KEY"),
        transport=section.transport,
        update_folder=None if section.update_folder is None else Path(section.update_folder).expanduser(),
        start_timeout_s=section.start_timeout_s,
        health_timeout_s=section.health_timeout_s,
        stall_timeout_s=section.stall_timeout_s,
    )


def check_engine(config: PPOConfig) -> None:
    """Find out before anything is trained whether the engine can be had at all.

    Raises:
        SetupError: It cannot train, or what it needs is not there.
    """
    try:
        if config.engine.name == "openai":
            refuse_training()
        for replica in range(config.engine.engines):
            if config.engine.name == "sglang":
                _sglang_options(config, replica)
            if config.engine.name == "vllm" and config.engine.base_urls:
                _served_options(config, replica)
    except (ValueError, EngineError) as error:
        raise SetupError(f"engine.name={config.engine.name}: {error}") from error


def _sglang_options(config: PPOConfig, replica: int) -> SGLangOptions:
    section = config.engine.sglang
    return SGLangOptions(
        base_url=None if section.base_url is None else section.base_url[replica],
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


async def _sglang_folder(config: PPOConfig, policy: Policy) -> Path:
    """Where servers read the policy: its weights where they are started, its shapes in any case."""
    folder = run_folder(config.trainer) / "engine_model"
    shutil.rmtree(folder, ignore_errors=True)
    await asyncio.to_thread(save_policy, folder, policy.model, policy.tokenizer)
    return folder


async def _sglang_engine(
    config: PPOConfig, policy: Policy, renderer: Renderer, version: int, replica: int, folder: Path
) -> SGLangEngine:
    engine = SGLangEngine(
        folder,
        _sglang_options(config, replica),
        max_context=config.engine.max_context,
        max_slots=config.engine.max_slots,
        stop_token_ids=renderer.stop_token_ids,
        dtype=config.model.dtype,
        device=resolve_device(config.model.device).type,
        gpu=_gpu(config, replica),
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
        greedy=config.algorithm.adv_estimator in NEEDS_GREEDY,
        filter_zero_variance=rollout.filter_zero_variance,
        max_consecutive_filtered=rollout.max_consecutive_filtered,
        max_consecutive_errors=rollout.max_consecutive_errors,
        partial=rollout.partial,
        partial_max_age=rollout.partial_max_age,
        engine_slots=config.engine.max_slots * config.engine.engines,
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


def learner_options(model: ModelSection, run: RunSection) -> dict[str, Any]:
    """What every learner of a run is made with: adapters, memory, how ranks share the work."""
    lora = None
    if model.lora_rank:
        lora = LoRASettings(model.lora_rank, model.lora_alpha, model.target_modules, seed=run.seed)
    return {
        "lora": lora,
        "parallel": Parallel(run.fsdp_size, run.tensor_parallel_size, run.ulysses_sequence_parallel_size),
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
    """Find out before anything is trained whether the learner can be had as asked.

    Raises:
        SetupError: The ranks or the model cannot be cut so, a layer or an attention is not there, or peft is missing.
    """
    options = learner_options(model, run)
    try:
        options["parallel"].shape(ranks if ranks > 1 else world_size())
        check_model(policy.model.config, options["parallel"])
        if options["lora"] is not None:
            target_names(policy.model.base_model, options["lora"])
        if model.attn_implementation is not None:  # the learner's own copy will have it; here it is tried
            before = policy.model.config._attn_implementation
            policy.model.set_attn_implementation(model.attn_implementation)
            policy.model.set_attn_implementation(before)
    except (ValueError, ImportError) as error:
        raise SetupError(f"the learner: {error}") from error
    if options["lora"] is not None and importlib.util.find_spec("peft") is None:
        raise SetupError("model.lora_rank needs peft: pip install 'textenvs[lora]'")
    if resolve_device(model.device).type == "cpu" and (run.offload or model.enable_activation_offload):
        raise SetupError("trainer.offload and model.enable_activation_offload are for cuda, and there is no GPU")


def learner_of(config: PPOConfig, policy: Policy, cluster: RayCluster | None = None) -> Learner | LearnerGroup:
    """Actor, critic if the estimator needs one, and the frozen reference if a KL is asked for.

    In this process; or with several ranks, or on Ray, where each is.

    Raises:
        SetupError: The learner cannot be made as asked, or the ranks do not all see the run's folder.
    """
    settings, section = learner_settings(config), config.cluster
    if section.backend == "local" and section.learner_ranks == 1:
        try:
            return Learner(policy.model, **settings, device=resolve_device(config.model.device))
        except (ValueError, ImportError) as error:
            raise SetupError(f"the learner: {error}") from error
    threads = threads_for(policy, config.trainer.threads)
    if threads is None and section.backend == "local":  # or each rank would take all CPUs
        threads = max(1, (os.cpu_count() or 1) // section.learner_ranks)
    settings |= {"device": config.model.device, "threads": threads}
    patience = {"silence": section.silence_s, "stall": section.stall_s, "start_timeout": section.start_timeout_s}
    group: LearnerGroup
    if section.backend == "local":
        group = local_group(section.learner_ranks, policy.model, settings, **patience)
    else:
        assert cluster is not None
        group = RayLearnerGroup(cluster, policy.model, settings, bucket_bytes=section.bucket_mib * 2**20, **patience)
    try:
        group.check_folder(run_folder(config.trainer))
    except ValueError as error:
        group.close()
        raise SetupError(str(error)) from error
    except BaseException:
        group.close()
        raise
    return group


def learner_settings(config: PPOConfig) -> dict[str, Any]:
    """Learner's arguments, but for the model, the device and the threads."""
    actor, critic = config.actor, config.critic
    steps = config.trainer.total_iterations * actor.ppo_epochs * actor.mini_batches
    return {
        "critic": config.algorithm.adv_estimator in NEEDS_CRITIC,
        "reference": actor.use_kl_loss or config.algorithm.use_kl_in_reward,
        "optimizer": OptimizerSettings(
            lr=actor.lr,
            betas=actor.betas,
            weight_decay=actor.weight_decay,
            warmup_steps=actor.lr_warmup_steps,
            schedule=actor.lr_schedule,
            total_steps=max(steps, actor.lr_warmup_steps + 1),
            min_lr_ratio=0.1,
            grad_clip=actor.grad_clip,
        ),
        "critic_optimizer": OptimizerSettings(
            lr=critic.lr,
            weight_decay=critic.weight_decay,
            warmup_steps=critic.lr_warmup_steps,
            grad_clip=critic.grad_clip,
        ),
        "max_tokens_per_micro_batch": actor.max_tokens_per_micro_batch,
        "temperature": config.rollout.temperature,
        "dtype": config.model.dtype,
        **learner_options(config.model, config.trainer),
    }


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
