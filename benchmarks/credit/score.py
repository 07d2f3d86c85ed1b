"""The agreement of an estimator's advantages with the true ones."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trainers.algorithms.baselines import RoleBaselines
from trainers.algorithms.batch import ActionBatch, anchor_states, shared_anchors
from trainers.algorithms.estimators import ESTIMATORS, RAE, Estimator, Fork
from trainers.algorithms.estimators.base import totals
from trainers.rewards.credit_assignment import redistribution
from trainers.trajectory import solved

from .page import CEILING
from .truth import FOR_ESTIMATES, SIZE, Floats, Measured

#: A turn's advantage is clear where it is so many standard errors from 0. At 2, one turn in twenty without any effect
#: would be clear, with a random sign, and a perfect estimator wrong about half of them.
CLEAR = 3.0
#: An exact advantage is clear from this share of all turns' root mean square on: smaller ones hardly move the policy,
#: whatever sign an estimate gives them.
LARGE = 0.25
#: Resamplings of groups for an interval of 95 %.
DRAWS = 1000
#: What needs an episode that is not in the data: a greedy one of each task.
LEFT_OUT = ("remax",)
#: Estimators whose keys make a difference here, beside their defaults.
VARIANTS: dict[str, dict[str, Any]] = {
    "turn_grpo, group": {"adv_estimator": "turn_grpo", "baseline": "group"},
    "turn_grpo, last turn": {"adv_estimator": "turn_grpo", "reward_credit": "last"},
    "turn_gae, lam 0.5": {"adv_estimator": "turn_gae", "lam": 0.5},
    "gigpo, history": {"adv_estimator": "gigpo", "anchor": "history"},
    "gagpo, history": {"adv_estimator": "gagpo", "anchor": "history"},
    "graphgpo, history": {"adv_estimator": "graphgpo", "anchor": "history"},
}

Estimate: TypeAlias = Callable[[Measured], Floats]  #: to one number a turn, ``[K]``


def by_estimator(section: Estimator) -> Estimate:
    """Return the estimate of an estimator: the mean of its advantages over each turn's tokens, 0 where it has none."""
    roles = RoleBaselines()

    def estimate(measured: Measured) -> Floats:
        batch, episodes = measured.actions, measured.episodes
        if section.reward_credit != "as_earned":
            episodes = [*map(redistribution(section.reward_credit, section.reward_credit_decay), episodes)]
            batch = ActionBatch.from_trajectories(episodes, values=measured.values, bootstrap=measured.bootstrap)
        if isinstance(section, RAE):
            names = [""] * batch.num_episodes
            counted = np.ones(batch.num_episodes, np.bool_)
            batch = replace(batch, role_baseline=roles.observe(names, totals(batch), counted, section.decay))
        result = section.advantages(section.complete(batch, episodes))
        of_turn = batch.turn_of_token
        sums = np.bincount(of_turn, np.where(result.policy_mask, result.advantages, 0.0), len(batch.turn_rewards))
        return sums / np.bincount(of_turn, minlength=len(batch.turn_rewards))

    return estimate


def by_forks(forks: int) -> Estimate:
    """Return the estimate of ``fork`` with so many forks at every turn: of those that the truth does not use."""
    section = Fork()

    def estimate(measured: Measured) -> Floats:
        batch = _with_forks(measured, forks)
        result = section.advantages(batch)
        return result.advantages[batch.turn_starts][: len(measured.actions.turn_rewards)]

    return estimate


def _with_forks(measured: Measured, count: int) -> ActionBatch:
    """Return the batch with its first forks, each turn a token."""
    roots = measured.actions
    turns, origins, first, rewards = np.diff(roots.turn_offsets).tolist(), [], [], [roots.turn_rewards]
    episode = roots.episode_of_turn
    for at, forks in enumerate(measured.fork_rewards):
        for fork in forks[:count]:
            turns.append(len(fork))
            origins.append(int(episode[at]))
            first.append(at - int(roots.turn_offsets[episode[at]]))
            rewards.append(np.array(fork, np.float64))
    offsets = np.cumsum([0, *turns])
    number = len(turns)
    return ActionBatch(
        token_offsets=offsets,
        turn_offsets=offsets,
        turn_index=np.concatenate([np.arange(count) for count in turns]),
        turn_rewards=np.concatenate(rewards),
        terminated=np.ones(number, np.bool_),
        truncated=np.zeros(number, np.bool_),
        group=np.concatenate([roots.group, roots.group[origins]]).astype(np.int64),
        forked_from=np.array([-1] * roots.num_episodes + origins),
        forked_turn=np.array([0] * roots.num_episodes + first),
    )


def again(measured: Measured) -> Floats:
    """Return the advantages by half of the forks: what an estimator without bias reaches, with that noise."""
    return measured.advantages(slice(FOR_ESTIMATES, None, 2))[0]


def estimates(extra: str | None = None) -> Iterator[tuple[str, Estimate, str]]:
    """Yield estimators: a name, the estimate, and which forks are the truth (``all``, or ``half`` for :func:`again`).

    ``extra`` is another one, as ``module:Class``, alone. ``ValueError``: it is no :class:`.Estimator`.
    """
    if extra is not None:
        module, _, name = extra.partition(":")
        try:
            kind = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"{extra} cannot be imported, as module:Class: {error}") from error
        if not (isinstance(kind, type) and issubclass(kind, Estimator)):
            raise ValueError(f"{extra} is no estimator: a class that extends trainers.algorithms.estimators.Estimator")
        yield extra, by_estimator(kind.model_validate({})), "all"
        return
    for name, kind in ESTIMATORS.items():
        if name not in LEFT_OUT and "forks" not in kind.needs:
            yield name, by_estimator(kind(adv_estimator=name)), "all"
    for name, keys in VARIANTS.items():
        yield name, by_estimator(ESTIMATORS[keys["adv_estimator"]](**keys)), "all"
    for count in (1, 2, FOR_ESTIMATES):
        yield f"fork, {count}", by_forks(count), "all"
    yield CEILING, again, "half"


@dataclass(frozen=True, eq=False)
class Turns:
    """All turns of a setting, over its batches."""

    truth: Floats  #: float ``[K]``
    error: Floats  #: float ``[K]``; the variance of ``truth``
    estimate: Floats  #: float ``[K]``
    group: NDArray[np.int64]  #: int ``[K]``; what is resampled for intervals


def turns_of(batches: Sequence[Measured], estimate: Estimate, forks: str) -> Turns:
    """Return the truth and an estimate of every turn."""
    which = slice(FOR_ESTIMATES, None) if forks == "all" else slice(FOR_ESTIMATES + 1, None, 2)
    rows, groups = [], 0
    for measured in batches:
        truth, error = measured.truth(which)
        group = measured.actions.group[measured.actions.episode_of_turn]
        rows.append((truth, error, estimate(measured), group + groups))
        groups += int(group.max()) + 1
    return Turns(*map(np.concatenate, zip(*rows, strict=True)))


def scores(turns: Turns) -> dict[str, tuple[float, float, float]]:
    """Return each measure with its interval of 95 %, by resampling groups.

    ``wrong``: of the turns whose truth is clear, the share whose estimate has the other sign; ``silent``: or is 0.
    ``cosine``: between estimates and truth over all turns, without the noise of the truth. ``rank``: Spearman's
    correlation over all turns, which the noise of the truth lowers.
    """
    clear = np.abs(turns.truth) > _limit(turns.truth, turns.error)
    agree = np.sign(turns.estimate) * np.sign(turns.truth)
    agree[np.abs(turns.estimate) < 1e-9] = 0.0
    ranks = [_ranks(values) for values in (turns.estimate, turns.truth)]
    ranks = [values - values.mean() for values in ranks]
    columns = np.stack(
        [
            *(clear, clear & (agree < 0), clear & (agree == 0)),
            *(turns.estimate * turns.truth, turns.estimate**2, turns.truth**2 - turns.error),
            *(ranks[0] * ranks[1], ranks[0] ** 2, ranks[1] ** 2),
        ],
        axis=1,
    ).astype(np.float64)
    by_group = np.zeros((int(turns.group.max()) + 1, columns.shape[1]))
    np.add.at(by_group, turns.group, columns)
    rng = np.random.default_rng(0)
    drawn = by_group[rng.integers(len(by_group), size=(DRAWS, len(by_group)))].sum(1)
    whole, many = _measures(by_group.sum(0)[None]), _measures(drawn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a measure that is undefined in all draws
        low, high = np.nanpercentile(many, [2.5, 97.5], axis=0)
    names = ("wrong", "silent", "cosine", "rank")
    return {name: (float(whole[0, k]), float(low[k]), float(high[k])) for k, name in enumerate(names)}


def _limit(truth: Floats, error: Floats) -> Floats:
    """Return the size from which each turn's advantage is clear, ``[K]``."""
    return np.asarray(
        CLEAR * np.sqrt(error) if error.any() else np.full_like(truth, LARGE * np.sqrt(np.mean(truth**2)))
    )


def _measures(sums: Floats) -> Floats:
    clear, wrong, silent, product, own, truth, ranks, first, second = sums.T
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine = product / np.sqrt(own * np.maximum(truth, 0.0))
        measures = [wrong / clear, silent / clear, cosine, ranks / np.sqrt(first * second)]
    return np.stack(measures, axis=1)


def _ranks(values: Floats) -> Floats:
    """Return the rank of each value, from 0; equal values share the mean of their ranks."""
    _, number, count = np.unique(np.round(values, 12), return_inverse=True, return_counts=True)
    ends = np.cumsum(count)
    return np.asarray((ends - count + ends - 1) / 2.0)[number.ravel()]


def facts(batches: Sequence[Measured]) -> dict[str, float]:
    """Return what the truth says of the turns, of solved and other episodes, and of states."""
    truth, error = map(np.concatenate, zip(*(measured.truth() for measured in batches), strict=True))
    right = np.concatenate(
        [np.array([solved(t) for t in one.episodes])[one.actions.episode_of_turn] for one in batches]
    )
    limit = _limit(truth, error)
    peers = {
        kind: np.concatenate(
            [shared_anchors(replace(one.actions, anchor=anchor_states(one.episodes, kind))) for one in batches]
        )
        for kind in ("observation", "history")
    }
    tokens = [np.diff(one.actions.token_offsets).sum() for one in batches]
    forks = [one.fork_tokens[:, 0].sum() for one in batches]
    return {
        "turns": len(truth),
        "episodes": sum(len(one.episodes) for one in batches),
        "episodes left out, with a fork that failed": 1
        - sum(len(one.episodes) for one in batches) / (len(batches) * SIZE),
        "solved": float(np.mean([solved(t) for one in batches for t in one.episodes])),
        "return": float(np.mean([t.total_reward for one in batches for t in one.episodes])),
        "turns an episode": len(truth) / sum(len(one.episodes) for one in batches),
        "clear": float((np.abs(truth) > limit).mean()),
        "deviation of the truth": float(np.sqrt(max(np.mean(truth**2 - error), 0.0))),
        "standard error of the truth": float(np.sqrt(error.mean())),
        "helpful, of turns of other episodes": _share(truth > limit, ~right),
        "harmful, of turns of other episodes": _share(truth < -limit, ~right),
        "helpful, of turns of solved episodes": _share(truth > limit, right),
        "harmful, of turns of solved episodes": _share(truth < -limit, right),
        "without a peer of the same observation": float(1 - peers["observation"].mean()),
        "without a peer of the same history": float(1 - peers["history"].mean()),
        "tokens of an episode": float(np.sum(tokens)) / sum(len(one.episodes) for one in batches),
        "tokens of one fork at every turn, of those of the episodes": float(np.sum(forks) / np.sum(tokens)),
    }


def _share(what: NDArray[np.bool_], of: NDArray[np.bool_]) -> float:
    return float(what[of].mean()) if of.any() else float("nan")
