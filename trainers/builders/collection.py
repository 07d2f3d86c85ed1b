"""What collects training episodes, how they are sampled, and the trace of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from textenvs.data import Task
from textenvs.env import EnvironmentFailure
from textenvs.lookahead import FAILURES, Lookahead
from textenvs.messages import text_of
from textenvs.options import Judge, resolve

from ..algorithms.advantages import NEEDS_FORKS, NEEDS_GREEDY, NEEDS_TERMS
from ..cluster.memory import episodes, futures, slots, surplus_groups
from ..config.learning import AlgorithmSection
from ..config.schema import PPOConfig
from ..engines.base import Engine, Sampling
from ..rewards import FunctionError, FunctionPool
from ..rewards.credit_assignment import Redistribution, RedistributionError, overlong_penalty, redistribution
from ..rollout.collector import Collector
from ..rollout.curriculum import Component as CurriculumComponent
from ..rollout.curriculum import Curriculum, CurriculumRules, TaskOrder
from ..rollout.environments import Backend
from ..rollout.forks import ForkRules
from ..rollout.group_scheduler import CollectionError, GroupRules
from ..rollout.play import EpisodeLimits
from ..rollout.renderer import Renderer
from ..rollout.rewards import MultiturnScore, Score, TurnContext
from ..rollout.stats import TraceFile
from ..trajectory import EpisodeError
from . import SetupError, setup_errors
from .environments import played, spec_of, task_count

# The event loop's lag is probed so often.
_LAG_INTERVAL_S = 0.02


def sampling_of(config: PPOConfig) -> Sampling:
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
        orders[each.name] = TaskOrder(task_count(each), seed=seed, shuffle=config.data.shuffle, without=left_out)
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


def own_scores(config: PPOConfig, stack: ExitStack | AsyncExitStack) -> dict[str, Score]:
    """Rewards that come later and ask no model: a function of the user's, whose processes ``stack`` ends, penalties."""
    section, scores = config.custom_reward_function, dict[str, Score]()
    if section.path is not None:
        with setup_errors("custom_reward_function: ", FunctionError):
            pool = FunctionPool(section.path, section.name, workers=section.workers, timeout_s=section.timeout_s)
        stack.callback(pool.close)
        scores["custom"] = custom_reward(config, pool)
    return scores | penalties(config)


def redistribution_of(section: AlgorithmSection) -> Redistribution | None:
    """Which turns are paid for what an episode earned; ``None`` where those that earned it are."""
    if section.reward_credit == "as_earned":
        return None
    with setup_errors("algorithm.reward_credit: ", RedistributionError):
        return redistribution(section.reward_credit, section.reward_credit_decay)


def task_finder(config: PPOConfig) -> Callable[[TurnContext], Task]:
    sets = []
    for each in played(config):
        for kwargs in (each.training, each.validation):
            with closing(each.make(kwargs)) as env:
                sets.append((spec_of(config, each, kwargs), env.tasks))

    def task_of(so_far: TurnContext) -> Task:
        assert so_far.spec is not None
        assert so_far.task_index is not None
        return next(tasks for spec, tasks in sets if spec == so_far.spec)[so_far.task_index]

    return task_of


def check_name(key: str, name: str, so_far: TurnContext) -> None:
    """Raise CollectionError where the environment pays a term of a reward's name: the two would be added up as one."""
    if name in so_far.terms:
        env_id = "the environment" if so_far.spec is None else so_far.spec.target
        raise CollectionError(
            f"{key} is paid as the term {name!r}, and {env_id} pays a term of that name itself: the two could "
            f"not be told apart. The environment's terms are {', '.join(sorted(so_far.terms))}; name the other one "
            "differently"
        )


def custom_reward(config: PPOConfig, pool: FunctionPool) -> Score:
    """The function as a reward that comes later: of whole episodes, in place of what the environment pays or beside it.

    It scores (``solution_str``) the policy's replies alone, an empty line between two. ``extra_info`` is the row's,
    with the conversation as ``messages``.
    """
    instead, task_of = config.custom_reward_function.replace, task_finder(config)

    async def terms(so_far: TurnContext) -> dict[str, float]:
        earned = {"environment_not_counted": -so_far.reward} if instead and so_far.reward else {}
        if so_far.over:
            task = task_of(so_far)
            replies = [text_of(message) for message in so_far.messages if message["role"] == "assistant"]
            earned["custom"] = await pool.score(
                data_source=task.data_source,
                solution_str="\n\n".join(replies),
                ground_truth=task.ground_truth,
                extra_info={**task.extra, "messages": [dict(message) for message in so_far.messages]},
            )
        return earned

    def score(so_far: TurnContext, turn: int) -> Awaitable[Mapping[str, float]] | None:
        check_name("custom_reward_function", "custom", so_far)
        return terms(so_far) if so_far.over or (instead and so_far.reward) else None

    return score


def penalties(config: PPOConfig) -> dict[str, Score]:
    """What turns lose in training, by term: ``overlong`` is DAPO's, of a last turn; ``cut_reply`` of a cut reply."""
    section, price = config.overlong_buffer, config.rollout.cut_reply_penalty
    limit = config.rollout.max_response_tokens or 0  # the configuration was checked: it is there with the first

    def overlong(so_far: TurnContext) -> float | None:
        tokens = so_far.response_tokens
        return overlong_penalty(tokens, limit, section.len, section.penalty_factor) if so_far.over else None

    found = {"overlong": _penalty("overlong_buffer", "overlong", overlong)} if section.enable else {}
    if price:
        key = "cut_reply_penalty"
        found["cut_reply"] = _penalty(key, "cut_reply", lambda so_far: -price if so_far.cut else None)
    return found


def _penalty(key: str, name: str, amount: Callable[[TurnContext], float | None]) -> Score:
    async def terms(value: float) -> dict[str, float]:
        return {name: value}

    def score(so_far: TurnContext, turn: int) -> Awaitable[Mapping[str, float]] | None:
        check_name(key, name, so_far)
        value = amount(so_far) if so_far.training else None
        return None if value is None else terms(value)

    return score


def multiturn_reward(config: PPOConfig, tokenizer: Any) -> MultiturnScore:
    """The multiturn-aware reward, whose futures are forks of the episodes."""
    section = config.multiturn_reward
    own: dict[str, Any] = {"max_new_tokens": section.max_response_length, "temperature": section.temperature}
    sampling = replace(sampling_of(config), **{name: value for name, value in own.items() if value is not None})
    with setup_errors("multiturn_reward: ", ValueError):
        lookahead = lookahead_of(config, lambda text: len(tokenizer.encode(text, add_special_tokens=False)))
    return MultiturnScore(lookahead, credit=section.credit, replace=section.replace, sampling=sampling)


def lookahead_of(config: PPOConfig, count_tokens: Callable[[str], int] = len) -> Lookahead:
    """How the multiturn-aware reward looks ahead; ``ValueError``: options clash, or the judge cannot be had."""
    section = config.multiturn_reward
    judge: Judge | str | None = section.judge
    if section.judge_kwargs:
        maker = resolve("judge", section.judge)
        try:
            judge = maker(**section.judge_kwargs)
        except (TypeError, ValueError) as error:
            raise ValueError(f"judge={section.judge} with judge_kwargs: {error}") from error
    return Lookahead(
        None,
        samples=section.samples,
        window=section.window,
        formula=section.formula,
        weights=section.weights,
        cost=section.cost,
        judge=judge,
        count_tokens=count_tokens,
        seed=config.trainer.seed,
        concurrency=futures(config) or section.concurrency,
        timeout_s=section.timeout_s,
        failures=(*FAILURES, EpisodeError),
    )


async def try_multiturn(config: PPOConfig) -> None:
    """Score an opening where looking ahead has weights: only a score tells which names there are."""
    section = config.multiturn_reward
    if not section.enable or not section.weights:
        return
    for each in played(config):
        env, names = each.make(), each.said("multiturn_reward.weights")
        with closing(env), setup_errors(f"{names}: ", ValueError, EnvironmentFailure):
            await env.areset(seed=config.trainer.seed, options={"task_index": 0})
            await lookahead_of(config).check_weights(env)
