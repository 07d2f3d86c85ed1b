"""How many requests a run can have with its engine at once, and so how many KV slots are of use. Pure."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from ..algorithms.advantages import NEEDS_GREEDY

if TYPE_CHECKING:
    from ..config import PPOConfig

#: Replicas are not loaded evenly: sessions stay where their KV is until one has so many times the mean load of the
#: others (:class:`trainers.engines.routing.Router`).
_UNEVEN = 1.5


def surplus_groups(config: PPOConfig) -> int:
    """Groups that ``rollout.oversampling_factor`` adds to a batch."""
    return ceil((config.rollout.oversampling_factor - 1.0) * config.rollout.groups_per_batch - 1e-9)


def training_episodes(config: PPOConfig) -> int:
    """Episodes of training that staleness allows in flight: the capacity of the ``GroupScheduler``."""
    rollout = config.rollout
    groups = (rollout.staleness + 1) * rollout.groups_per_batch - (rollout.window - 1) + surplus_groups(config)
    return groups * (rollout.n + (config.algorithm.adv_estimator in NEEDS_GREEDY))


def episodes(config: PPOConfig) -> int:
    """Episodes in flight at most, those of validation among them."""
    limit, training = config.rollout.max_running, training_episodes(config)
    if not isinstance(limit, int):  # `auto` looks for a number up to there
        return training
    return min(limit, training + config.data.val_size * config.validation.n)


def futures(config: PPOConfig) -> int:
    """Futures of the multiturn-aware reward that are played at once: a turn's for every episode of training."""
    section = config.multiturn_reward
    if not section.enable or section.window == 0:
        return 0
    most = section.samples * min(training_episodes(config), episodes(config))
    return most if section.concurrency is None else min(section.concurrency, most)


def slots(config: PPOConfig) -> int:
    """KV slots of each replica: ``engine.max_slots``, or one for each episode and future that may be in flight."""
    if config.engine.max_slots is not None:
        return config.engine.max_slots
    requests, engines = episodes(config) + futures(config), config.engine.engines
    return requests if engines == 1 else min(requests, ceil(_UNEVEN * requests / engines))
