"""Reward models: scorers, the places of their workers, and scores as delayed rewards.

The checks of a configuration (:mod:`trainers.config.schema`) read keys only. :func:`reward_problems` checks what they
name (a model's small files, its template, a judge's options), without weights, processes or services.
:func:`reward_models_of` and :func:`try_served` use these, before the first step of training.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from textenvs.users.moves import move_numbered

from ..cluster.group import LearnerGroup
from ..cluster.plan import Plan, Workers
from ..cluster.ray.engine import RayWorker
from ..cluster.ray.runtime import RayCluster
from ..config.reward_model import (
    ClassifierModelSection,
    JudgeModelSection,
    MoveModelSection,
    RewardModelSection,
    ServiceModelSection,
    sections_of,
)
from ..config.schema import PPOConfig
from ..learner import Learner
from ..models.policy import resolve_device
from ..rewards import BackendError, RewardBackend, RewardService, ScoringRequest, UnscoredError, reward_of
from ..rewards.backends.classifier import ClassifierPool, LocalWorker, Worker, WorkerLostError, classifier_problems
from ..rewards.backends.conversation import PROBE
from ..rewards.backends.judge import JudgeBackend
from ..rewards.backends.moves import MoveBackend
from ..rewards.backends.pooling import PoolingBackend, pooling_problems
from ..rollout.rewards import Earned, NamedMove, Score, TurnContext
from ..section import Problems
from . import SetupError, setup_errors
from .collection import check_name, lookahead_of, task_finder
from .environments import played

_ADVICE = {
    "classifier": "look at {key}.classifier",
    "service": "look whether it runs and serves a reward model, and at {key}.service.url, .model, .endpoint and .label",
    "judge": "look whether it runs, and at {key}.judge.base_url, .model and .chat",
    "moves": "look whether it runs, and at {key}.moves.base_url, .model and .chat",
}


def reward_problems(config: PPOConfig) -> Problems:
    """Yield pairs of a key and what is wrong with it, as far as that is known before anything starts."""
    for name, section in sections_of(config).items():
        key = f"{name}.{section.kind}"
        try:
            match section:
                case ClassifierModelSection():
                    problems = classifier_problems(section.classifier)
                case ServiceModelSection():
                    problems = pooling_problems(section.service)
                case JudgeModelSection():
                    JudgeBackend(section.judge)
                    continue
                case MoveModelSection():
                    MoveBackend(section.moves)
                    continue
            yield from ((f"{key}.{option}", text) for option, text in problems)
        except (ValueError, ImportError) as error:
            yield key, str(error)
    if config.multiturn_reward.enable:
        try:
            lookahead_of(config)
        except (ValueError, ImportError) as error:
            yield "multiturn_reward", str(error)


def check_rewards(config: PPOConfig) -> None:
    """Raise ``SetupError`` with all :func:`reward_problems`, if there are any."""
    if problems := [f"{key}: {text}" for key, text in reward_problems(config)]:
        raise SetupError("\n".join(problems))


@dataclass(frozen=True)
class RewardModels:
    """The reward models of a run; scores and workers are by name."""

    service: RewardService
    scores: Mapping[str, Score]
    pools: Mapping[str, ClassifierPool]
    sleeper: ClassifierPool | None = None  # workers that sleep while the learner learns

    def stats(self, name: str) -> dict[str, float]:
        """Return the service's metrics of one model, without its name; and the workers lost so far."""
        stats, start = self.service.stats(), f"{name}/"
        metrics = {key.removeprefix(start): value for key, value in stats.items() if key.startswith(start)}
        return metrics if name not in self.pools else {**metrics, "lost_workers": float(self.pools[name].losses)}


def start_early(config: PPOConfig) -> bool:
    """Return whether all reward models can start before the learner: a classifier in Ray shares its ranks' places."""
    on_ray = config.cluster.backend == "ray"
    return not (on_ray and any(section.kind == "classifier" for section in config.reward_models.values()))


@contextlib.asynccontextmanager
async def reward_models_of(
    config: PPOConfig, plan: Plan, cluster: RayCluster | None = None, learner: Learner | LearnerGroup | None = None
) -> AsyncIterator[RewardModels | None]:
    """Yield the reward models, each of which has scored a conversation; ``None`` if there are none.

    With ``cluster.backend=ray`` workers are in ``cluster``, and may share the GPUs of ``learner``.
    """
    sections = sections_of(config)
    if not sections:
        yield None
        return
    backends: dict[str, RewardBackend] = {}
    async with contextlib.AsyncExitStack() as stack:
        for key, section in sections.items():
            make = None
            if isinstance(section, ClassifierModelSection):
                workers = next(candidate for candidate in plan.rewards if candidate.model == section.name)
                make = partial(_worker, config, section, plan, workers, cluster, learner)
            backends[section.name] = await _tried(config, key, section, make)
            stack.push_async_callback(backends[section.name].close)
        stack.pop_all()  # the service closes them
    async with RewardService(backends, config.reward_models) as service:
        pools = {name: backend for name, backend in backends.items() if isinstance(backend, ClassifierPool)}
        sleeping = [pools[section.name] for section in sections.values() if section.spans]
        # Only judges see the task.
        find = task_finder(config) if any(section.kind == "judge" for section in sections.values()) else None
        scores: dict[str, Score] = {}
        for key, section in sections.items():
            truth = (lambda so_far: find(so_far).ground_truth) if find and section.kind == "judge" else None
            if section.kind == "moves":
                scores[section.name] = _namer(section.name, service)
                continue
            # All have the same `replace`, and the environment's reward is removed once.
            first = not any(getattr(score, "replaces", False) for score in scores.values())
            scores[section.name] = _score(key, section, service, truth, section.replace and first)
        yield RewardModels(service, scores, pools, sleeping[0] if sleeping else None)


async def try_served(config: PPOConfig) -> None:
    """Try the reward models that run elsewhere, and close them again; see :func:`start_early`."""
    for key, section in sections_of(config).items():
        if section.kind != "classifier":
            await (await _tried(config, key, section)).close()


async def _tried(
    config: PPOConfig, key: str, section: RewardModelSection, make: Callable[[int], Worker] | None = None
) -> RewardBackend:
    """Return a scorer, after it has scored a conversation."""
    with setup_errors(f"{key} ({section.kind}): ", ValueError, ImportError, BackendError, WorkerLostError):
        backend: RewardBackend
        match section:
            case ClassifierModelSection():
                backend = await ClassifierPool.start(section.classifier, section.workers, make)
            case ServiceModelSection():
                backend = await PoolingBackend.connect(section.service)
            case JudgeModelSection():
                backend = judge = JudgeBackend(section.judge)
                _check_reference(config, section, judge)
            case MoveModelSection():
                backend = MoveBackend(section.moves)
        try:
            await _try(backend, section, _ADVICE[section.kind].format(key=key))
        except BaseException:
            await backend.close()
            raise
    return backend


async def _try(backend: RewardBackend, section: RewardModelSection, advice: str) -> None:
    """Score a conversation before anything is trained; BackendError if the score cannot be used."""
    traits = backend.traits
    timeout_s = traits.resolved(section).timeout_s
    assert timeout_s is not None
    try:
        async with asyncio.timeout(timeout_s):
            (result,) = await backend.score([ScoringRequest(PROBE, data_source="probe", ground_truth="7")])
        if isinstance(result, BackendError):
            raise result
    except TimeoutError as error:
        raise BackendError(f"a short conversation took longer than {timeout_s:g} s to score; {advice}") from error
    except Exception as error:  # also of a running worker that could not compute: too little memory, for example
        message = f"{error}" if isinstance(error, BackendError) else f"{type(error).__name__}: {error}"
        raise BackendError(f"{message}; {advice}") from error
    if not (math.isfinite(result) and traits.low <= result <= traits.high):
        raise BackendError(
            f"it scored a short conversation with {result!r}, which is no number from {traits.low:g} to "
            f"{traits.high:g}; {advice}"
        )


def _check_reference(config: PPOConfig, section: JudgeModelSection, judge: JudgeBackend) -> None:
    """Raise ``ValueError`` if a judge compares with the ground truth, and tasks have none."""
    if not judge.needs_reference:
        return
    for component in played(config):
        with contextlib.closing(component.make()) as env:
            if env.tasks[0].ground_truth is None:
                raise ValueError(
                    f"the rubric {section.judge.rubric!r} compares with the task's answer, and the tasks of "
                    f"{component.id} have none; use another rubric"
                )


def _worker(
    config: PPOConfig,
    section: ClassifierModelSection,
    plan: Plan,
    workers: Workers,
    cluster: RayCluster | None,
    learner: Learner | LearnerGroup | None,
    number: int,
) -> Worker:
    shared = workers.gpus[number]
    if plan.backend == "local":
        device = resolve_device(config.model.device).type
        if device == "cuda":  # a learner rank's, or one of the pool's own, which are numbered after those
            device = f"cuda:{shared[0] if shared else plan.gpus_per_node + number}"
        return LocalWorker(section.classifier, device)
    assert cluster is not None
    gpus: list[int] = []
    if shared:
        assert isinstance(learner, LearnerGroup)
        gpus = [gpu for rank in shared for gpu in learner.ranks.info[rank][2]]
    placement = cluster.options(workers.seats[number])
    return RayWorker(section.classifier, config.model.device, placement=placement, gpus=gpus)


def _score(
    key: str,
    section: RewardModelSection,
    service: RewardService,
    truth: Callable[[TurnContext], Any] | None,
    replace: bool,
) -> Score:
    """Return a model's reward, times its weight, in place of the environment's or added to it."""
    name = section.name
    ask = reward_of(service, name, truth=truth)

    async def terms(rewards: dict[str, float], pending: Awaitable[float] | None) -> dict[str, float]:
        return rewards if pending is None else {**rewards, name: await pending}

    def score(so_far: TurnContext, turn: int) -> Awaitable[Mapping[str, float]] | None:
        check_name(key, name, so_far)
        pending = ask(so_far, turn)
        instead = {"environment_not_counted": -so_far.reward} if replace and so_far.reward else {}
        return terms(instead, pending) if instead or pending is not None else None

    score.replaces = replace  # type: ignore[attr-defined]
    return score


def _namer(name: str, service: RewardService) -> Score:
    """Return the moves that a model names, of the turns of training that a message of the user's answers.

    A message whose move cannot be named is a turn without a move, counted as ``unscored``; an outage is an error.
    """

    async def named(number: Awaitable[float]) -> Earned:
        try:
            return NamedMove(move_numbered(await number))
        except UnscoredError as error:
            if error.cause != "ungradable":
                raise
            return {}  # neither a move nor a reward

    def score(so_far: TurnContext, turn: int) -> Awaitable[Earned] | None:
        if not so_far.training or so_far.messages[-1]["role"] != "user":
            return None
        return named(service.score(name, ScoringRequest(so_far.messages, data_source=so_far.data_source)))

    return score
