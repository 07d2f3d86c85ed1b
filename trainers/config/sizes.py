"""Sizes of a run: what it has in flight at most, by its configuration."""

from __future__ import annotations

from collections.abc import Collection
from math import ceil
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from trainers.algorithms.estimators.base import Need
    from trainers.config import PPOConfig
    from trainers.config.rollout import RolloutSection


#: Replicas are not loaded evenly: sessions stay where their KV is until one has so many times the mean load of the
#: others (:class:`trainers.engines.routing.Router`).
_UNEVEN = 1.5


def surplus_groups(rollout: RolloutSection) -> int:
    """Return the groups that ``rollout.oversampling_factor`` adds to a batch."""
    return ceil((rollout.oversampling_factor - 1.0) * rollout.groups_per_batch - 1e-9)


def groups_in_flight(rollout: RolloutSection) -> int:
    """Return the groups that staleness allows in flight; :mod:`trainers.rollout.group_scheduler` shows why so many."""
    return (rollout.staleness + 1) * rollout.groups_per_batch - (rollout.window - 1) + surplus_groups(rollout)


def episodes_per_batch(rollout: RolloutSection) -> int:
    """Return the episodes of a batch that start from an opening and are sampled."""
    return rollout.groups_per_batch * rollout.n


def episodes_per_group(rollout: RolloutSection, needs: Collection[Need]) -> int:
    """Return the episodes of a group: ``rollout.n``, and one more for an estimator that needs a greedy one."""
    return rollout.n + ("greedy" in needs)


def training_episodes(config: PPOConfig) -> int:
    """Return the episodes of training that staleness allows in flight: the capacity of the ``GroupScheduler``."""
    return groups_in_flight(config.rollout) * episodes_per_group(config.rollout, config.algorithm.needs)


def optimizer_steps(config: PPOConfig) -> int:
    """Return the optimizer steps of an iteration."""
    return config.actor.ppo_epochs * config.actor.mini_batches


def episodes(config: PPOConfig) -> int:
    """Return the maximum of episodes in flight, with those of validation."""
    limit, training = config.rollout.max_running, training_episodes(config)
    if not isinstance(limit, int):  # `auto` looks for a number up to there
        return training
    return min(limit, training + config.data.val_size * config.validation.n)


def futures(config: PPOConfig) -> int:
    """Return the maximum of concurrent futures of the multiturn-aware reward: a turn's for each training episode."""
    section = config.multiturn_reward
    if not section.enable or section.window == 0:
        return 0
    most = section.samples * min(training_episodes(config), episodes(config))
    return most if section.concurrency is None else min(section.concurrency, most)


def slots(config: PPOConfig) -> int:
    """Return the KV slots of a replica: ``engine.max_slots``, or one for each episode and future in flight."""
    if config.engine.max_slots is not None:
        return config.engine.max_slots
    requests, engines = episodes(config) + futures(config), config.engine.engines
    return requests if engines == 1 else min(requests, ceil(_UNEVEN * requests / engines))


def sleep_level(config: PPOConfig, device: str) -> Literal[0, 2]:
    """Return how deeply engines sleep while the learner learns on the same ``device``.

    2: weights, keys and values are freed; 0: nothing is, and they may generate.
    """
    if config.engine.name == "torch":  # with staleness, episodes continue while it learns
        spanned = config.cluster.colocate or any(model.spans for model in config.reward_models.values())
        return 2 if (spanned or device == "cpu") and not config.rollout.staleness else 0
    return 2 if config.cluster.colocate and config.engine.sleeps else 0
