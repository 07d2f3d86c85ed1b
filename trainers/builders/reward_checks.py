"""The options of reward models, and what is wrong with these and functions, as far as that is known before any starts.

The checks of a configuration (:mod:`trainers.config.schema`) look at keys alone. These look at what the keys mean: the
small files of a model, its template, a key in the environment, a judge's options. No weights are read, no process is
started, and no service is asked; :func:`try_multiturn` and
:func:`trainers.builders.reward_model.reward_models_of` do that, before the first step of training.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from textenvs.env import EnvironmentFailure

from ..cluster.plan import reward_models
from ..config.reward_model import RewardModelSection
from ..config.schema import PPOConfig
from ..config.section import Problems
from ..rewards.backends import JudgeBackend, classifier_problems, pooling_problems
from .environments import make_env, training_kwargs
from .errors import SetupError
from .rewards import lookahead_of


def reward_problems(config: PPOConfig) -> Problems:
    """Pairs of a key and what is wrong with it."""
    for key, section in reward_models(config).items():
        yield from _model_problems(f"{key}.{section.kind}", section)
    if config.multiturn_reward.enable:
        try:
            lookahead_of(config, lambda messages: "", len)
        except (ValueError, ImportError) as error:
            yield "multiturn_reward", str(error)


def check_rewards(config: PPOConfig) -> None:
    """Raise ``SetupError`` with all :func:`reward_problems`, if there are any."""
    if problems := list(reward_problems(config)):
        raise SetupError("\n".join(f"{key}: {text}" for key, text in problems))


async def try_multiturn(config: PPOConfig) -> None:
    """Score an opening where looking ahead has weights: only a score tells which names there are.

    Raises:
        SetupError: A weight is of no score, or the opening cannot be scored.
    """
    section = config.multiturn_reward
    if not section.enable or not section.weights:
        return
    with closing(make_env(config.env.id, training_kwargs(config))) as env:
        try:
            await env.areset(seed=config.trainer.seed, options={"task_index": 0})
            await lookahead_of(config, lambda messages: "", len).check_weights(env)
        except (ValueError, EnvironmentFailure) as error:
            raise SetupError(f"multiturn_reward.weights: {error}") from error


def _model_problems(key: str, section: RewardModelSection) -> Iterator[tuple[str, str]]:
    try:
        match section.kind:
            case "classifier":
                found = classifier_problems(section.classifier)
            case "service":
                found = pooling_problems(section.service)
            case "judge":
                JudgeBackend(section.judge)
                return
        for name, text in found:
            yield f"{key}.{name}", text
    except (ValueError, ImportError) as error:
        yield key, str(error)


def changes(section: RewardModelSection) -> dict[str, Any]:
    """How the service is to ask, where that is configured."""
    names = ("max_batch_size", "max_batch_tokens", "max_wait_s", "timeout_s", "retries", "patience_s", "cache_size")
    return {name: value for name in names if (value := getattr(section, name)) is not None}
