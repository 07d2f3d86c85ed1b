"""A reward model: what scores, where its workers are, and the score as a reward that comes later."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from textenvs.chat import ChatSpec

from ..cluster.group import LearnerGroup
from ..cluster.plan import Plan
from ..cluster.ray.ranks import RayLearnerGroup
from ..cluster.ray.rewards import RayReplica
from ..cluster.ray.runtime import RayCluster
from ..config.reward_model import JudgeSection, RewardModelSection
from ..config.schema import PPOConfig
from ..config.section import Section
from ..learner import Learner
from ..policy import resolve_device
from ..rewards import BackendError, ModelOptions, RewardBackend, RewardService, reward_of
from ..rewards.backends import (
    ClassifierOptions,
    JudgeBackend,
    PoolingBackend,
    PoolingOptions,
    ProcessReplica,
    Replica,
    ReplicaLostError,
    ReplicaPool,
    ThreadReplica,
)
from ..rollout.rewards import Score, SoFar
from .errors import SetupError
from .rewards import task_finder


@dataclass(frozen=True)
class RewardModel:
    """A reward model of a run.

    Args:
        service: In front of it.
        score: The reward that comes later.
        pool: Its workers, where this run has them.
    """

    service: RewardService
    score: Score
    pool: ReplicaPool | None = None

    def stats(self) -> dict[str, float]:
        """The service's numbers of the one model, without its name; and the workers lost so far."""
        found = {key.partition("/")[2]: value for key, value in self.service.stats().items()}
        return found if self.pool is None else {**found, "lost_workers": float(self.pool.losses)}


def check_reward_model(config: PPOConfig) -> None:
    """Find out before anything is trained whether the options fit, as far as the model itself need not be asked.

    Raises:
        SetupError: They do not.
    """
    if config.reward_model.enable:
        with _said_plainly(config.reward_model):
            _options(config)


@contextlib.asynccontextmanager
async def reward_model_of(
    config: PPOConfig,
    plan: Plan,
    cluster: RayCluster | None = None,
    learner: Learner | LearnerGroup | None = None,
) -> AsyncIterator[RewardModel | None]:
    """The reward model, ready to score; ``None`` where there is none.

    Args:
        config: Of the run.
        plan: Says where workers are.
        cluster: With ``cluster.backend=ray``.
        learner: Whose GPUs workers share there.

    Raises:
        SetupError: It cannot be loaded, or does not answer.
    """
    section = config.reward_model
    if not section.enable:
        yield None
        return
    with _said_plainly(section):
        backend, asked = await _backend(config, plan, cluster, learner)
    async with RewardService({section.name: backend}, {section.name: asked}) as service:
        yield RewardModel(service, _score(config, service), backend if isinstance(backend, ReplicaPool) else None)


async def _backend(
    config: PPOConfig, plan: Plan, cluster: RayCluster | None, learner: Learner | LearnerGroup | None
) -> tuple[RewardBackend, ModelOptions]:
    """What scores, and how it is asked."""
    section, options = config.reward_model, _options(config)
    if isinstance(options, ClassifierOptions):
        count = len(plan.rewards)
        pool = await ReplicaPool.start(_replicas(config, plan, options, cluster, learner), count)
        return pool, options.model_options(count, **_changes(section))
    backend = await PoolingBackend.connect(options) if isinstance(options, PoolingOptions) else options
    try:
        if not await backend.healthy():
            raise BackendError("it does not answer")
    except BaseException:
        await backend.close()
        raise
    return backend, options.model_options(**_changes(section))


def _options(config: PPOConfig) -> ClassifierOptions | PoolingOptions | JudgeBackend:
    """From the keys of the kind; nothing is loaded or asked."""
    section = config.reward_model
    match section.kind:
        case "classifier":
            its = _values(section.classifier, without=("head", "replicas", "threads"))
            return ClassifierOptions(kind=section.classifier.head, device=config.model.device, **its)
        case "service":
            return PoolingOptions(**_values(section.service))
        case "judge":
            return _judge(section.judge)


def _judge(section: JudgeSection) -> JudgeBackend:
    said = {"model": section.model, "base_url": section.base_url}
    spec = ChatSpec.of({**section.chat, **{name: value for name, value in said.items() if value is not None}})
    return JudgeBackend(spec, **_values(section, without=("model", "base_url", "chat")))


def _values(section: Section, without: Sequence[str] = ()) -> dict[str, Any]:
    """The keys of a section, which are named as what reads them names them."""
    return {name: getattr(section, name) for name in type(section).model_fields if name not in without}


def _changes(section: RewardModelSection) -> dict[str, Any]:
    """What the keys say of how a model is asked; what is null is the kind's own."""
    names = ("max_batch_size", "max_batch_tokens", "max_wait_s", "timeout_s", "retries", "patience_s", "cache_size")
    return {name: value for name in names if (value := getattr(section, name)) is not None}


def _replicas(
    config: PPOConfig,
    plan: Plan,
    options: ClassifierOptions,
    cluster: RayCluster | None,
    learner: Learner | LearnerGroup | None,
) -> Callable[[int], Replica]:
    """From a worker's number to the worker, where the plan has it."""
    threads = config.reward_model.classifier.threads

    def on_ray(number: int) -> Replica:
        assert cluster is not None
        gpus: list[int] = []
        if shared := plan.reward_gpus[number]:
            assert isinstance(learner, RayLearnerGroup)
            gpus = [gpu for rank in shared for gpu in learner.ranks.info[rank][2]]
        placement = cluster.options(plan.rewards[number])
        return RayReplica(options, threads=threads, placement=placement, gpus=gpus)

    def apart(number: int) -> Replica:
        if resolve_device(config.model.device).type != "cuda":
            return ProcessReplica(dataclasses.replace(options, device="cpu"), threads=threads)
        # A learner rank's, or one of its own: those have the numbers after the others'.
        gpu = plan.reward_gpus[number][0] if plan.reward_gpus[number] else plan.gpus_per_node + number
        visible = {"CUDA_VISIBLE_DEVICES": str(gpu)}
        return ProcessReplica(dataclasses.replace(options, device="cuda"), threads=threads, environment=visible)

    def here(number: int) -> Replica:
        device = resolve_device(config.model.device).type
        if device == "cuda":
            device = f"cuda:{plan.reward_gpus[number][0]}"
        return ThreadReplica(dataclasses.replace(options, device=device))

    return on_ray if plan.backend == "ray" else apart if plan.rewards_apart else here


def _score(config: PPOConfig, service: RewardService) -> Score:
    """The model's reward, times its weight, in place of what the environment pays or beside it."""
    section = config.reward_model
    find = task_finder(config) if section.kind == "judge" else None  # others know nothing of the task
    ask = reward_of(
        service,
        section.name,
        per="turn" if section.per_turn else "episode",
        weight=section.weight,
        row=None if find is None else lambda so_far: (find(so_far).ground_truth, {}),
    )

    async def terms(earned: dict[str, float], asked: Awaitable[float] | None) -> dict[str, float]:
        return earned if asked is None else {**earned, section.name: await asked}

    def score(so_far: SoFar, turn: int) -> Awaitable[Mapping[str, float]] | None:
        asked = ask(so_far, turn)
        instead = {"environment_not_counted": -so_far.reward} if section.replace and so_far.reward else {}
        return terms(instead, asked) if instead or asked is not None else None

    return score


@contextlib.contextmanager
def _said_plainly(section: RewardModelSection) -> Iterator[None]:
    try:
        yield
    except (ValueError, ImportError, BackendError, ReplicaLostError) as error:
        raise SetupError(f"reward_model ({section.kind}): {error}") from error
