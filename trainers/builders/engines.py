"""The engine of a run: which kind, how many, and where."""

from __future__ import annotations

import asyncio
import inspect
import shutil
import tempfile
import weakref
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import torch

from ..cluster.group import LearnerGroup
from ..cluster.in_flight import slots
from ..cluster.ray.engine import RayEngine
from ..cluster.ray.ranks import RayLearnerGroup
from ..cluster.ray.runtime import RayCluster
from ..cluster.serialization import pack
from ..config.schema import PPOConfig
from ..engines.base import Engine, EngineError
from ..engines.replica import Limits
from ..engines.replicas import Replicas
from ..engines.torch_engine import TorchEngine
from ..learner import Learner
from ..policy import Policy
from ..rollout.renderer import Renderer
from .cluster import engine_device
from .errors import SetupError
from .policy import threads_for
from .servers import served_engine, server_folder, server_options


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
        if config.cluster.backend == "ray" and not config.engine.base_urls:
            assert cluster is not None
            return await _ray_engines(config, policy, version, cluster, learner)
        make, limits = await _maker(config, policy, renderer, version), _limits(config)
        engines = await _all_or_none([make(index) for index in range(config.engine.engines)])
        if len(engines) == 1 and config.engine.name == "torch":
            return engines[0]
        # One server that somebody else started: with nothing to do meanwhile, the run ends instead of waiting for it.
        alone = len(config.engine.base_urls) == 1
        # What the learner publishes are copies, which stay unchanged.
        return Replicas(engines, restart=None if alone else make, limits=limits)
    except (ValueError, EngineError) as error:
        raise SetupError(f"model.path={config.model.path} with the {config.engine.name} engine: {error}") from error


async def _maker(
    config: PPOConfig, policy: Policy, renderer: Renderer, version: int
) -> Callable[[int], Engine | Awaitable[Engine]]:
    """From a replica's index to an engine with the policy's weights.

    The policy's model stays as it is, because the learner trains a copy: these are the weights of ``version`` also when
    a replica is replaced later. A server that somebody else started is not started again: its place waits for it.
    """
    if config.engine.name in ("vllm", "sglang"):
        folder = await server_folder(config, policy)
        return lambda index: served_engine(config, policy, renderer, version, index, folder)
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


def _limits(config: PPOConfig) -> Limits:
    """A new server may take its time to start, and some more for its first weights."""
    starting = {"vllm": config.engine.vllm.start_timeout_s, "sglang": config.engine.sglang.start_timeout_s}
    return Limits(
        stall_timeout=config.engine.stall_timeout_s, restart_timeout=starting.get(config.engine.name, 0.0) + 300.0
    )


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
    return Replicas(engines, restart=make, limits=_limits(config))


async def _engine_there(config: PPOConfig, policy: Policy, version: int, replica: int) -> Engine:
    """One engine, in the actor that it is for."""
    renderer = Renderer(policy.tokenizer, template_kwargs=config.data.chat_template_kwargs)
    if config.engine.name == "torch":
        return _torch_engine(config, policy, renderer, version, replica)
    folder = tempfile.mkdtemp(prefix="textenvs-engine-")  # what a server reads is for its machine alone
    here = {
        "engine": config.engine.model_copy(update={"replicas": 1}),
        "cluster": config.cluster.model_copy(update={"backend": "local"}),
        "trainer": config.trainer.model_copy(update={"default_local_dir": folder}),
    }
    made = (await _maker(config.model_copy(update=here), policy, renderer, version))(replica)
    engine = await made if inspect.isawaitable(made) else made
    weakref.finalize(engine, shutil.rmtree, folder, ignore_errors=True)
    return engine


def sleeps(config: PPOConfig) -> bool:
    """Whether the engine gives its memory back while the learner learns on the same GPUs."""
    return config.cluster.colocate and config.engine.name == "vllm" and config.engine.vllm.sleep_mode


def _torch_engine(config: PPOConfig, policy: Policy, renderer: Renderer, version: int, replica: int) -> TorchEngine:
    return TorchEngine(
        policy.model,
        max_slots=slots(config),
        max_context=config.engine.max_context,
        kv_cache_gib=config.engine.kv_cache_gib,
        device=engine_device(config, replica),
        dtype=getattr(torch, config.model.precision),
        stop_token_ids=renderer.stop_token_ids,
        seed=config.trainer.seed + replica,
        threads=threads_for(policy, config.engine.threads),
        version=version,
    )


def check_engine(config: PPOConfig) -> None:
    """Find out before anything is trained whether the engine can be had at all.

    Raises:
        SetupError: It cannot train, or what it needs is not there.
    """
    try:
        if config.engine.name == "openai":
            raise ValueError(
                "an OpenAI-compatible service gives text, without token ids and without a way to new weights, so "
                "nothing can be trained on it; train with engine.name=torch, vllm or sglang, and evaluate such a "
                "service with `textenvs evaluate`"
            )
        if config.engine.name in ("vllm", "sglang"):
            for replica in range(config.engine.engines):
                server_options(config, replica)
    except (ValueError, EngineError) as error:
        raise SetupError(f"engine.name={config.engine.name}: {error}") from error
