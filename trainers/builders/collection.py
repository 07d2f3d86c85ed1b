"""The collector of training episodes, its sampling, its rewards that arrive later, and its trace."""

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

from ..algorithms.estimators import Estimator
from ..config.rollout import ComponentSection
from ..config.schema import PPOConfig
from ..config.sizes import futures, slots
from ..engines.base import Engine
from ..rewards import FunctionError, FunctionPool
from ..rewards.credit_assignment import Redistribution, RedistributionError, overlong_penalty, redistribution
from ..rewards.relative_length import GroupCredit, relative_length
from ..rollout.collector import Collector
from ..rollout.curriculum import Component as CurriculumComponent
from ..rollout.curriculum import Curriculum, TaskOrder
from ..rollout.environments import Backend
from ..rollout.group_scheduler import CollectionError
from ..rollout.play import sampling_of
from ..rollout.renderer import Renderer
from ..rollout.rewards import MultiturnScore, Score, TurnContext
from ..rollout.trace import TraceFile
from ..trajectory import EpisodeError
from . import SetupError, setup_errors
from .environments import played, spec_of, task_count

# Interval of the event loop's lag probe.
_LAG_INTERVAL_S = 0.02


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
    """Return the collector of training episodes; SetupError if the curriculum has nothing to choose.

    ``credit`` assigns rewards to turns, as the estimator sees them; ``without`` has the tasks of each component that
    are not played.
    """
    return Collector(
        engine,
        renderer,
        backends,
        tasks=_tasks(config, without),
        rollout=config.rollout,
        algorithm=config.algorithm,
        fork=config.fork,
        rewards=rewards,
        reward_timeout=None,  # rewards built here have a timeout of their own, without the waiting for a place
        credit=credit,
        group_credit=group_credit_of(config),
        engine_slots=slots(config) * config.engine.engines,
        privileged=config.actor.distill.privilege,
        lag_interval=_LAG_INTERVAL_S,
        trace=trace,
        seed=config.trainer.seed,
    )


def _tasks(config: PPOConfig, without: Mapping[str, Collection[int]]) -> TaskOrder | Curriculum:
    curriculum, seed, orders = config.env.curriculum, config.trainer.seed, dict[str, TaskOrder]()
    components = played(config)
    for component in components:
        excluded = without.get(component.name, ())
        orders[component.name] = TaskOrder(
            task_count(component), seed=seed, shuffle=config.data.shuffle, without=excluded
        )
    if curriculum.kind == "signal" and len(components) == 1 and orders[components[0].name].size is None:
        raise SetupError(
            f"env.curriculum.kind=signal chooses components of env.mixture, and tasks that repeat; {components[0].id} "
            "is one, and its tasks never end: give env.mixture, or data.train_size"
        )
    if not config.env.mixture and curriculum.kind == "fixed" and not curriculum.reverse_share:
        return orders[""]
    mixture = config.env.mixture or {"": ComponentSection()}
    return Curriculum(
        [CurriculumComponent(name, orders[name], section) for name, section in mixture.items()], curriculum, seed
    )


def trace_of(config: PPOConfig) -> TraceFile | None:
    """Return the configured trace, if any; ``SetupError`` if it cannot be written."""
    if config.trainer.trace_file is None:
        return None
    try:
        return TraceFile(Path(config.trainer.trace_file).expanduser())
    except OSError as error:
        raise SetupError(f"trainer.trace_file={config.trainer.trace_file}: {error}") from error


def own_scores(config: PPOConfig, stack: ExitStack | AsyncExitStack) -> dict[str, Score]:
    """Return delayed rewards that need no model: the user's function, whose processes ``stack`` ends, and penalties."""
    section, scores = config.custom_reward_function, dict[str, Score]()
    if section.path is not None:
        with setup_errors("custom_reward_function: ", FunctionError):
            pool = FunctionPool(section)
        stack.callback(pool.close)
        scores["custom"] = custom_reward(config, pool)
    return scores | penalties(config)


def redistribution_of(section: Estimator) -> Redistribution | None:
    """Return the function that moves an episode's rewards between turns; ``None`` if they stay as earned."""
    if section.reward_credit == "as_earned":
        return None
    with setup_errors("algorithm.reward_credit: ", RedistributionError):
        return redistribution(section.reward_credit, section.reward_credit_decay)


def group_credit_of(config: PPOConfig) -> GroupCredit | None:
    """Return the function that compares lengths within groups; ``None`` where they do not count."""
    section = config.relative_length
    return relative_length(section.tokens, section.turns) if section.tokens or section.turns else None


def task_finder(config: PPOConfig) -> Callable[[TurnContext], Task]:
    sets = []
    for component in played(config):
        for kwargs in (component.training, component.validation):
            with closing(component.make(kwargs)) as env:
                sets.append((spec_of(config, component, kwargs), env.tasks))

    def task_of(so_far: TurnContext) -> Task:
        assert so_far.spec is not None
        assert so_far.task_index is not None
        return next(tasks for spec, tasks in sets if spec == so_far.spec)[so_far.task_index]

    return task_of


def check_name(key: str, name: str, so_far: TurnContext) -> None:
    """Raise CollectionError if the environment has a term of a reward's name: the two would be added up as one."""
    if name in so_far.terms:
        env_id = "the environment" if so_far.spec is None else so_far.spec.target
        raise CollectionError(
            f"{key} is paid as the term {name!r}, and {env_id} pays a term of that name itself: the two could "
            f"not be told apart. The environment's terms are {', '.join(sorted(so_far.terms))}; name the other one "
            "differently"
        )


def custom_reward(config: PPOConfig, pool: FunctionPool) -> Score:
    """Return the function as a delayed reward of whole episodes, in place of the environment's or added to it.

    It scores (``solution_str``) the policy's replies only, separated by empty lines. ``extra_info`` is the row's, with
    the messages of all contexts as ``messages``.
    """
    instead, task_of = config.custom_reward_function.replace, task_finder(config)

    async def terms(so_far: TurnContext) -> dict[str, float]:
        rewards = {"environment_not_counted": -so_far.reward} if instead and so_far.reward else {}
        if so_far.over:
            task = task_of(so_far)
            rewards["custom"] = await pool.score(
                data_source=task.data_source,
                solution_str="\n\n".join(map(text_of, so_far.replies)),
                ground_truth=task.ground_truth,
                extra_info={**task.extra, "messages": [dict(message) for message in so_far.episode]},
            )
        return rewards

    def score(so_far: TurnContext, turn: int) -> Awaitable[Mapping[str, float]] | None:
        check_name("custom_reward_function", "custom", so_far)
        return terms(so_far) if so_far.over or (instead and so_far.reward) else None

    score.replaces = instead  # type: ignore[attr-defined]
    return score


def penalties(config: PPOConfig) -> dict[str, Score]:
    """Return penalties in training, by term: ``overlong`` is DAPO's, of a last turn; ``cut_reply`` of a cut reply."""
    section, price = config.overlong_buffer, config.rollout.cut_reply_penalty
    limit = config.rollout.max_response_tokens or 0  # the configuration was checked: it is set with overlong_buffer

    def overlong(so_far: TurnContext) -> float | None:
        tokens = so_far.response_tokens
        return overlong_penalty(tokens, limit, section.len, section.penalty_factor) if so_far.over else None

    scores = {"overlong": _penalty("overlong_buffer", "overlong", overlong)} if section.enable else {}
    if price:
        key = "cut_reply_penalty"
        scores["cut_reply"] = _penalty(key, "cut_reply", lambda so_far: -price if so_far.cut else None)
    return scores


def _penalty(key: str, name: str, amount: Callable[[TurnContext], float | None]) -> Score:
    async def terms(value: float) -> dict[str, float]:
        return {name: value}

    def score(so_far: TurnContext, turn: int) -> Awaitable[Mapping[str, float]] | None:
        check_name(key, name, so_far)
        value = amount(so_far) if so_far.training else None
        return None if value is None else terms(value)

    return score


def multiturn_reward(config: PPOConfig, tokenizer: Any) -> MultiturnScore:
    """Return the multiturn-aware reward, whose futures are forks of the episodes."""
    section = config.multiturn_reward
    own: dict[str, Any] = {"max_new_tokens": section.max_response_length, "temperature": section.temperature}
    sampling = replace(sampling_of(config.rollout), **{name: value for name, value in own.items() if value is not None})
    with setup_errors("multiturn_reward: ", ValueError):
        lookahead = lookahead_of(config, lambda text: len(tokenizer.encode(text, add_special_tokens=False)))
    return MultiturnScore(lookahead, section, sampling)


def lookahead_of(config: PPOConfig, count_tokens: Callable[[str], int] = len) -> Lookahead:
    """Return the look-ahead of the multiturn-aware reward; ``ValueError``: options clash, or there is no such judge."""
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
    """Score an opening if the look-ahead has weights: only a score shows the names."""
    section = config.multiturn_reward
    if not section.enable or not section.weights:
        return
    for component in played(config):
        env, keys = component.make(), component.qualified("multiturn_reward.weights")
        with closing(env), setup_errors(f"{keys}: ", ValueError, EnvironmentFailure):
            await env.areset(seed=config.trainer.seed, options={"task_index": 0})
            await lookahead_of(config).check_weights(env)
