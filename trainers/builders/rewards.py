"""Rewards that come later: a function of the user's own, and looking ahead; and which turns are paid."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from textenvs.data import Task
from textenvs.lookahead import FAILURES, Lookahead
from textenvs.messages import text_of
from textenvs.options import Judge, Policy, resolve

from ..cluster.in_flight import futures
from ..config.learning import AlgorithmSection
from ..config.rewards import MultiturnRewardSection, RewardFunctionSection
from ..config.schema import PPOConfig
from ..rewards import FunctionError, FunctionPool
from ..rewards.credit_assignment import Redistribution, RedistributionError, overlong_penalty, redistribution
from ..rollout.group_scheduler import CollectionError
from ..rollout.rewards import MultiturnScore, Score, TurnContext
from ..trajectory import EpisodeError
from .collection import sampling_of
from .environments import make_env, training_kwargs, validation_kwargs
from .errors import SetupError


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


def redistribution_of(section: AlgorithmSection) -> Redistribution | None:
    """Which turns are paid for what an episode earned; ``None`` where those that earned it are.

    Raises:
        SetupError: A function of the user's cannot be had.
    """
    if section.reward_credit == "as_earned":
        return None
    try:
        return redistribution(section.reward_credit, section.reward_credit_decay)
    except RedistributionError as error:
        raise SetupError(f"algorithm.reward_credit: {error}") from error


def task_finder(config: PPOConfig) -> Callable[[TurnContext], Task]:
    """From an episode to the task that it plays."""
    sets = []
    for kwargs in (training_kwargs(config), validation_kwargs(config)):
        with closing(make_env(config.env.id, kwargs)) as env:
            sets.append((kwargs, env.tasks))

    def task_of(so_far: TurnContext) -> Task:
        assert so_far.spec is not None
        assert so_far.task_index is not None
        return next(tasks for kwargs, tasks in sets if kwargs == so_far.spec.kwargs)[so_far.task_index]

    return task_of


def check_name(config: PPOConfig, key: str, name: str, so_far: TurnContext) -> None:
    """Whether the environment has left a reward's name free.

    Raises:
        CollectionError: It pays a term of that name, and the two would be added up as one.
    """
    if name in so_far.terms:
        raise CollectionError(
            f"{key} is paid as the term {name!r}, and {config.env.id} pays a term of that name itself: the two could "
            f"not be told apart. The environment's terms are {', '.join(sorted(so_far.terms))}; name the other one "
            "differently"
        )


def custom_reward(config: PPOConfig, pool: FunctionPool) -> Score:
    """The function as a reward that comes later: of whole episodes, in place of what the environment pays or beside it.

    What it scores (``solution_str``) are the policy's replies alone, an empty line between two; nothing that the
    environment said counts as the policy's. ``extra_info`` is the row's, with the conversation as ``messages``.
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
        check_name(config, "custom_reward_function", "custom", so_far)
        return terms(so_far) if so_far.over or (instead and so_far.reward) else None

    return score


def overlong_reward(config: PPOConfig) -> Score:
    """DAPO's penalty of long episodes: the term ``overlong`` of the last turn, in training."""
    section, limit = config.overlong_buffer, config.rollout.max_response_tokens
    assert limit is not None  # the configuration was checked

    async def terms(tokens: int) -> dict[str, float]:
        return {"overlong": overlong_penalty(tokens, limit, section.len, section.penalty_factor)}

    def score(so_far: TurnContext, turn: int) -> Awaitable[Mapping[str, float]] | None:
        check_name(config, "overlong_buffer", "overlong", so_far)
        return terms(so_far.response_tokens) if so_far.over and so_far.training else None

    return score


def cut_reply_reward(config: PPOConfig) -> Score:
    """The price of a reply without an end: the term ``cut_reply`` of its turn, in training."""
    penalty = config.rollout.cut_reply_penalty

    async def terms() -> dict[str, float]:
        return {"cut_reply": -penalty}

    def score(so_far: TurnContext, turn: int) -> Awaitable[Mapping[str, float]] | None:
        check_name(config, "cut_reply_penalty", "cut_reply", so_far)
        return terms() if so_far.cut and so_far.training else None

    return score


def multiturn_reward(config: PPOConfig, tokenizer: Any) -> MultiturnScore:
    """The multiturn-aware reward, whose futures are forks of the episodes.

    Raises:
        SetupError: The judge cannot be had.
    """
    section = config.multiturn_reward
    sampling = sampling_of(config)
    if section.max_response_length is not None:
        sampling = replace(sampling, max_new_tokens=section.max_response_length)
    if section.temperature is not None:
        sampling = replace(sampling, temperature=section.temperature)
    try:
        lookahead = lookahead_of(config, None, lambda text: len(tokenizer.encode(text, add_special_tokens=False)))
    except ValueError as error:
        raise SetupError(f"multiturn_reward: {error}") from error
    return MultiturnScore(lookahead, credit=section.credit, replace=section.replace, sampling=sampling)


def lookahead_of(config: PPOConfig, policy: Policy | None, count_tokens: Callable[[str], int]) -> Lookahead:
    """How the multiturn-aware reward looks ahead.

    Raises:
        ValueError: The options do not go together, or the judge cannot be had.
    """
    section = config.multiturn_reward
    return Lookahead(
        policy,
        samples=section.samples,
        window=section.window,
        formula=section.formula,
        weights=section.weights,
        cost=section.cost,
        judge=_judge_of(section),
        count_tokens=count_tokens,
        seed=config.trainer.seed,
        concurrency=futures(config) or section.concurrency,
        timeout_s=section.timeout_s,
        failures=(*FAILURES, EpisodeError),
    )


def _judge_of(section: MultiturnRewardSection) -> Judge | str | None:
    """The judge of the multiturn-aware reward as configured, or what its maker makes of ``judge_kwargs``.

    Raises:
        ValueError: There is no such maker, or it does not take these.
    """
    if not section.judge_kwargs:
        return section.judge
    maker = resolve("judge", section.judge)
    try:
        judge: Judge = maker(**section.judge_kwargs)
    except (TypeError, ValueError) as error:
        raise ValueError(f"judge={section.judge} with judge_kwargs: {error}") from error
    return judge
