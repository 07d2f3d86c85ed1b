"""What collects training episodes, how they are sampled, and the trace of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType

from ..algorithms.advantages import NEEDS_FORKS, NEEDS_GREEDY, NEEDS_TERMS
from ..cluster.in_flight import episodes, slots, surplus_groups
from ..config.schema import PPOConfig
from ..engines.base import Engine, Sampling
from ..rewards.credit_assignment import Redistribution
from ..rollout.collector import Collector
from ..rollout.curriculum import Component as CurriculumComponent
from ..rollout.curriculum import Curriculum, CurriculumRules
from ..rollout.environments import Backend
from ..rollout.forks import ForkRules
from ..rollout.group_scheduler import GroupRules
from ..rollout.play import EpisodeLimits
from ..rollout.renderer import Renderer
from ..rollout.rewards import Score
from ..rollout.stats import TraceFile
from ..rollout.tasks import TaskOrder
from .environments import played, task_count
from .errors import SetupError

# The event loop's lag is probed so often.
_LAG_INTERVAL_S = 0.02


def sampling_of(config: PPOConfig) -> Sampling:
    """How episodes are sampled in training."""
    rollout = config.rollout
    return Sampling(
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        min_p=rollout.min_p,
        max_new_tokens=rollout.max_response_length,
        return_kept=rollout.keep_sampling_mask,
    )


def fork_rules(config: PPOConfig) -> ForkRules | None:
    """Where episodes are forked; ``None`` where the estimator needs no forks."""
    if config.algorithm.adv_estimator not in NEEDS_FORKS:
        return None
    given, gamma = config.fork, config.algorithm.gamma
    return ForkRules(samples=given.samples, where=given.where, budget=given.budget, gamma=gamma)


def limits_of(config: PPOConfig) -> EpisodeLimits:
    """What an episode may take."""
    rollout = config.rollout
    return EpisodeLimits(
        max_context=config.engine.max_context,
        max_response_tokens=rollout.max_response_tokens,
        generation_timeout=rollout.generation_timeout_s,
        episode_timeout=rollout.episode_timeout_s,
        reward_timeout=None,  # those that are made here have a limit of their own, which waiting for a place is not in
        partial=rollout.partial,
        partial_max_age=rollout.partial_max_age,
    )


def collector_of(
    config: PPOConfig,
    engine: Engine,
    renderer: Renderer,
    backends: Mapping[str, Backend],
    trace: TraceFile | None = None,
    rewards: Mapping[str, Score] | None = None,
    credit: Redistribution | None = None,
    without: Mapping[str, Collection[int]] = MappingProxyType({}),
) -> Collector:
    """What collects training episodes; SetupError where the curriculum has nothing to choose.

    ``credit`` says which turns are paid, as the estimator sees it; ``without`` which tasks of a component are not
    played.
    """
    rollout = config.rollout
    groups = GroupRules(
        group_size=rollout.n,
        groups_per_batch=rollout.groups_per_batch,
        staleness=rollout.staleness,
        window=rollout.window,
        surplus=surplus_groups(config),
        retries=rollout.retries,
        max_running="auto" if rollout.max_running == "auto" else episodes(config),
        greedy=config.algorithm.adv_estimator in NEEDS_GREEDY,
        filter_zero_variance=rollout.filter_zero_variance,
        filter_by_term=config.algorithm.adv_estimator in NEEDS_TERMS,
        max_consecutive_filtered=rollout.max_consecutive_filtered,
        max_consecutive_errors=rollout.max_consecutive_errors,
    )
    return Collector(
        engine,
        renderer,
        backends,
        tasks=_tasks(config, without),
        groups=groups,
        limits=limits_of(config),
        sampling=sampling_of(config),
        rewards=rewards,
        credit=credit,
        forks=fork_rules(config),
        engine_slots=slots(config) * config.engine.engines,
        lag_interval=_LAG_INTERVAL_S,
        trace=trace,
        seed=config.trainer.seed,
    )


def _tasks(config: PPOConfig, without: Mapping[str, Collection[int]]) -> TaskOrder | Curriculum:
    given, seed, orders = config.env.curriculum, config.trainer.seed, dict[str, TaskOrder]()
    components = played(config)
    for each in components:
        left_out = without.get(each.name, ())
        orders[each.name] = TaskOrder(
            task_count(config, each), seed=seed, shuffle=config.data.shuffle, without=left_out
        )
    if given.kind == "signal" and len(components) == 1 and orders[components[0].name].size is None:
        raise SetupError(
            f"env.curriculum.kind=signal chooses components of env.mixture, and tasks that repeat; {components[0].id} "
            "is one, and its tasks never end: give env.mixture, or data.train_size"
        )
    if not config.env.mixture and given.kind == "fixed" and not given.reverse_share:
        return orders[""]
    return Curriculum(
        [CurriculumComponent(each.name, orders[each.name], each.weight, each.success_reward) for each in components],
        CurriculumRules(kind=given.kind, floor=given.floor, memory=given.memory, reverse_share=given.reverse_share),
        seed,
    )


def trace_of(config: PPOConfig) -> TraceFile | None:
    """The trace that is asked for. Raises ``SetupError``: it cannot be written."""
    if config.trainer.trace_file is None:
        return None
    try:
        return TraceFile(Path(config.trainer.trace_file).expanduser())
    except OSError as error:
        raise SetupError(f"trainer.trace_file={config.trainer.trace_file}: {error}") from error
