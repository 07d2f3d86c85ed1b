"""The engines of a run: their kind, number and placement, and their servers, started or running."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import torch

from textenvs.event_loop import settle

from ..cluster.group import LearnerGroup
from ..cluster.memory import Machine, PlanError
from ..cluster.plan import Plan, make_plan
from ..cluster.ray.engine import RayEngine
from ..cluster.ray.runtime import RayCluster
from ..cluster.shape import shape_of, this_machine
from ..config.engine import ServedEngineSection, TorchEngineSection, VLLMEngineSection
from ..config.model import ModelSection, multiplies_bfloat16, native_dtype, planned_bfloat16
from ..config.schema import PPOConfig
from ..config.sizes import sleep_level, slots
from ..engines.base import Engine, EngineError, default_kv_bytes
from ..engines.remote import RemoteEngine
from ..engines.replica import Limits
from ..engines.replicas import Replicas
from ..engines.server import server_python
from ..engines.sglang import SGLangEngine
from ..engines.step_memory import engine_bytes
from ..engines.torch_engine import TorchEngine
from ..engines.vllm.engine import VLLMEngine
from ..engines.weight_update import UPDATE_TIMEOUT_S
from ..learner import Learner
from ..models.policy import Policy, resolve_device
from ..models.tiny import save as save_policy
from ..rollout.renderer import Renderer
from ..rollout.workers import placed
from ..serving.chat_server import MOST_CONTEXT, SLOTS
from . import setup_errors
from .environments import served_folders
from .folder import run_folder
from .policy import renderer_of, threads_for

_SLOWEST = 50e6  #: bytes a second of new weights, below which a replica counts as lost


async def engine_of(
    config: PPOConfig,
    policy: Policy,
    renderer: Renderer,
    *,
    version: int = 0,
    cluster: RayCluster | None = None,
    learner: Learner | LearnerGroup | None = None,
) -> Engine:
    """Return the engine, ready to generate, with the policy's weights as ``version`` (the number of iterations).

    With ``cluster.backend=ray`` its actors are in ``cluster``, and share the GPUs of ``learner``.
    """
    sizes = {"max_slots": slots(config), "threads": threads_for(policy, config.engine.threads)}
    section = config.engine.model_copy(update=sizes)
    config = config.model_copy(update={"engine": section})
    starting = section.server.start_timeout_s if isinstance(section, ServedEngineSection) else 0.0
    if config.cluster.backend == "ray":
        starting += config.cluster.start_timeout_s  # of its actor
    update = Limits.update_timeout + _sending_s(policy)
    # A new server may take its time to start, and some more for its first weights.
    limits = Limits(stall_timeout=section.stall_timeout_s, update_timeout=update, restart_timeout=starting + update)
    with setup_errors(f"model.path={config.model.path} with the {section.name} engine: ", ValueError, EngineError):
        if config.cluster.backend == "ray" and not section.base_urls:
            assert cluster is not None
            return await _ray_engines(config, policy, version, cluster, learner, limits, starting)
        make = await _maker(config, policy, renderer, version)
        engines = await _all_or_none(make, section.engines)
        if len(engines) == 1 and section.name == "torch":
            return engines[0]
        # Without a single server that the run did not start, nothing can continue: the run ends instead of waiting.
        alone = len(section.base_urls) == 1
        return Replicas(engines, restart=None if alone else make, limits=limits)


def _sending_s(policy: Policy) -> float:
    """Return the seconds that new weights may take, by their size."""
    return sum(weight.numel() * weight.element_size() for weight in policy.skeleton.parameters()) / _SLOWEST


async def _maker(
    config: PPOConfig, policy: Policy, renderer: Renderer, version: int
) -> Callable[[int], Engine | Awaitable[Engine]]:
    """Return a factory from a replica's index to an engine with the policy's weights; it also makes replacements.

    A server that the run did not start is not restarted: its place waits for it.
    """
    if config.engine.name in ("vllm", "sglang"):
        # Started servers read its weights there; all servers its shapes.
        folder = run_folder(config.trainer) / "engine_model"
        shutil.rmtree(folder, ignore_errors=True)
        await asyncio.to_thread(save_policy, folder, policy.model, policy.tokenizer)
        return lambda index: served_engine(config, policy, renderer, version, index, folder)
    return lambda index: _torch_engine(config, policy, renderer, version, index)


async def _all_or_none(make: Callable[[int], Engine | Awaitable[Engine]], count: int) -> list[Engine]:
    """Start ``count`` engines concurrently; if one fails, or on cancellation, close all."""

    async def one(index: int) -> Engine:
        return await settle(make(index))

    starting = [asyncio.ensure_future(one(index)) for index in range(count)]
    try:
        return list(await asyncio.gather(*starting))
    except BaseException:
        for task in starting:
            task.cancel()
        ended = await asyncio.gather(*starting, return_exceptions=True)
        engines = [result for result in ended if not isinstance(result, BaseException)]
        await asyncio.gather(*(engine.close() for engine in engines), return_exceptions=True)
        raise


async def _ray_engines(
    config: PPOConfig,
    policy: Policy,
    version: int,
    cluster: RayCluster,
    learner: Learner | LearnerGroup | None,
    limits: Limits,
    timeout: float,
) -> Replicas:
    # The policy is sent once, and stays for engines that take a lost one's place.
    makers = [
        cluster.ray.put(partial(_actor_engine, config, policy, version, replica))
        for replica in range(config.engine.engines)
    ]

    async def make(replica: int) -> RayEngine:
        gpus = []
        if shared := cluster.plan.engine_gpus[replica]:
            assert isinstance(learner, LearnerGroup)
            gpus = [gpu for rank in shared for gpu in learner.ranks.info[rank][2]]
        bucket_bytes = config.cluster.bucket_mib * 2**20
        return await RayEngine.start(
            cluster, replica, makers[replica], gpus=gpus, bucket_bytes=bucket_bytes, timeout=timeout
        )

    engines = await _all_or_none(make, config.engine.engines)
    return Replicas(engines, restart=make, limits=limits)


async def _actor_engine(config: PPOConfig, policy: Policy, version: int, replica: int) -> Engine:
    renderer = renderer_of(policy, config.data.chat_template_kwargs)
    if config.engine.name == "torch":
        return _torch_engine(config, policy, renderer, version, replica)
    folder = tempfile.mkdtemp(prefix="textenvs-engine-")  # each machine's server reads its own copy
    overrides = {
        "engine": config.engine.model_copy(update={"replicas": 1}),
        "cluster": config.cluster.model_copy(update={"backend": "local"}),
        "trainer": config.trainer.model_copy(update={"default_local_dir": folder}),
    }
    engine = await settle((await _maker(config.model_copy(update=overrides), policy, renderer, version))(replica))
    for weights in Path(folder).rglob("*.safetensors"):  # they were read; a killed actor removes nothing
        weights.unlink()
    weakref.finalize(engine, shutil.rmtree, folder, ignore_errors=True)
    return engine


def sleeps(config: PPOConfig) -> bool:
    """Return whether the engine frees memory while the learner learns on the same GPUs, or on this machine's CPUs."""
    return sleep_level(config, resolve_device(config.model.device).type) > 0


def _torch_engine(config: PPOConfig, policy: Policy, renderer: Renderer, version: int, replica: int) -> TorchEngine:
    device, cluster = resolve_device(config.model.device), config.cluster
    if device.type == "cuda" and cluster.backend == "local":  # the learner's, or its own; an actor sees only its own
        device = torch.device("cuda", 0 if cluster.colocate else 1 + replica)
    assert isinstance(config.engine, TorchEngineSection)
    return TorchEngine(
        policy.model,
        config.engine,
        device=device,
        dtype=getattr(torch, config.model.precision),
        stop_token_ids=renderer.stop_token_ids,
        unused_token_ids=policy.unused_token_ids,
        seed=config.trainer.seed + replica,
        version=version,
        sleep_level=2,  # the learner makes new weights meanwhile
    )


async def served_engine(
    config: PPOConfig, policy: Policy, renderer: Renderer, version: int, replica: int, folder: Path
) -> RemoteEngine:
    """Return one server, started or running, with the policy's weights as ``version``; it reads those in ``folder``."""
    section = config.engine
    assert isinstance(section, ServedEngineSection)
    engine = (VLLMEngine if isinstance(section, VLLMEngineSection) else SGLangEngine)(
        folder,
        section,
        replica=replica,
        dtype=config.model.precision,
        device=resolve_device(config.model.device).type,
        seed=config.trainer.seed + replica,
        update_timeout_s=UPDATE_TIMEOUT_S + _sending_s(policy),
        stop_token_ids=renderer.stop_token_ids,
        unused_token_ids=policy.unused_token_ids,
        version=version,
        weights=policy.model.state_dict(),
    )
    try:
        await engine.ready()
    except BaseException:
        await engine.close()
        raise
    return engine


def check_engine(config: PPOConfig) -> None:
    """Raise ``SetupError`` before anything is trained if the engine is not available."""
    if isinstance(config.engine, ServedEngineSection) and not config.engine.base_urls:
        with setup_errors(f"engine.name={config.engine.name}: ", ValueError):
            server_python(config.engine)


def plan_of(config: PPOConfig, machine: Machine | None = None, *, serving: bool = False) -> Plan:
    """Return the placement of the run's parts (``serving``: only its engines), here or on ``machine``; or PlanError."""
    machine = machine or this_machine()
    if serving:
        return make_plan(config, machine, serving=True)
    served = [_served_bytes(folder, machine) for folder in served_folders(config)]
    try:
        teacher = None if (folder := config.actor.distill.folder) is None else shape_of(ModelSection(path=folder))
    except PlanError as error:
        raise PlanError(f"actor.distill.teacher: {error}") from error
    sizes = [size for size in served if size is not None]
    return make_plan(config, machine, shape_of(config.model), served=sizes, teacher=teacher)


def _served_bytes(folder: str, machine: Machine) -> tuple[int, int, int] | None:
    """Return the bytes of a :class:`~trainers.serving.chat_server.ChatServer`: weights, keys and values, and steps."""
    if (shape := shape_of(ModelSection(path=folder))) is None:
        return None
    bfloat16 = multiplies_bfloat16 if machine.nodes is None else planned_bfloat16
    size = 2 if native_dtype(folder, "auto", bfloat16) == "bfloat16" else 4
    tokens = SLOTS * min(shape.positions, MOST_CONTEXT)
    # Users and judges sample without cuts, unless their options say otherwise.
    steps = engine_bytes(SLOTS, shape.vocab, "plain", graphs=True) if machine.gpus else 0
    room = default_kv_bytes(machine.gpu_bytes if machine.gpus else None, steps)
    return size * shape.parameters, min(room, tokens * shape.layers * 2 * shape.kv_width * size), steps


@contextmanager
def cluster_of(config: PPOConfig, plan: Plan) -> Iterator[RayCluster | None]:
    """Yield Ray for the time of the run, if it uses Ray; SetupError without Ray, PlanError if it has too little."""
    if config.cluster.backend != "ray" and config.env.backend != "ray":
        yield None
        return
    with setup_errors("", ImportError):
        cluster = RayCluster(plan, config.ray_init, timeout=config.cluster.start_timeout_s)
    with cluster:
        environments = cluster.environment_options()
        with nullcontext() if environments is None else placed(environments):
            yield cluster


def driver_device(config: PPOConfig) -> torch.device:
    """Return the device of this process; with Ray, only other machines may have GPUs."""
    if config.cluster.backend == "ray" and not torch.cuda.is_available():
        return torch.device("cpu")
    return resolve_device(config.model.device)
