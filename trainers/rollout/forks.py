"""Forks of episodes: where they are made, the state that they begin in, and estimates of turns from earlier batches.

**Dependence.** Whether a root is forked before turn ``t`` is a function of the run's seed, of the numbers
of group, root and turn, and of the batches delivered before; never of what this root or another episode of its batch
samples, which would bias the estimate of :mod:`trainers.algorithms.estimators.fork` (a test shows by how much).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from textenvs.turn import EpisodeMessages

from ..config.learning import ForkSection
from ..trajectory import Trajectory
from .episode_tokens import EpisodeTokens
from .rewards import PendingRewards
from .seeds import derive_seed

_REMEMBERED = 8  # batches; what a turn's variance was before is forgotten


@dataclass(frozen=True)
class ForkPoint:
    """An episode before a reply of the policy's: all that is needed to play on from there, in any equal environment."""

    episode_id: str  #: of the root
    turn: int  #: the number of the reply
    samples: int  #: how many forks are to be made
    state: Any  #: the environment's snapshot
    tokens: EpisodeTokens  #: at the generation point
    messages: EpisodeMessages  #: its messages so far
    opening: int  #: tokens of the opening
    limit: int  #: tokens that the context may have
    names: Mapping[str, Any]  #: ``group_id``, ``task_key``, ``data_source`` and ``has_success``
    rewards: PendingRewards  #: the root's rewards that come later


#: Of one turn in one batch: number of roots that reached it, the tokens that they sampled from there on, and squared
#: deviations with their degrees of freedom of the reward-to-go, among samples of one state and among roots of a group.
_TurnSums: TypeAlias = tuple[float, float, float, float, float, float]


class ForkPlan:
    """Decides how often each root is forked before each of its turns.

    Without a budget ``every`` forks each root at every turn, and ``variance`` at those turns whose standard deviation
    is at least the mean over turns. With one, forks of the chosen turns are made with the probability at which the
    expected number of sampled tokens is the budget: the same for all turns with ``every``; with ``variance`` turns
    are filled in the order of standard deviation per token, and the last one in part.

    The standard deviation of a turn is that of the reward-to-go among samples of one state, where forks of the last
    batches show it; elsewhere that among the roots of a group, which is at least as large by the law of total variance.
    Groups of one count as one group. The first batch has all forks, or none with a budget. ``roots`` is the number of
    episodes in a batch, ``gamma`` the estimator's discount a turn.
    """

    def __init__(self, fork: ForkSection, roots: int, seed: int, gamma: float = 1.0) -> None:
        self.section, self._roots, self._seed, self._gamma = fork, roots, seed, gamma
        self._batches: deque[list[_TurnSums]] = deque(maxlen=_REMEMBERED)
        self._chances: list[float] | None = None  # by turn

    def samples(self, group: int, root: int, turn: int) -> int:
        """Return how many forks of this root begin before its reply at this turn."""
        chance = self.chance(turn)
        if chance >= 1.0:
            return self.section.samples
        drawn = derive_seed(self._seed, "fork", group, root, turn, bits=53) / 2.0**53
        return self.section.samples if drawn < chance else 0

    def chance(self, turn: int) -> float:
        """Return the probability that a root which reaches this turn is forked there."""
        if self._chances is None:
            return 1.0 if self.section.budget is None else 0.0
        if turn < len(self._chances):
            return self._chances[turn]
        # No earlier root came so far.
        return 1.0 if self.section.budget is None else (self._chances[-1] if self._chances else 0.0)

    def observe(self, groups: Sequence[Sequence[Trajectory]], forks: Iterable[Trajectory]) -> None:
        self._batches.append(_turn_sums(groups, forks, self._gamma))
        self._decide()

    def state(self) -> list[list[list[float]]]:
        return [[list(turn) for turn in batch] for batch in self._batches]

    def restore(self, state: Sequence[Sequence[Sequence[float]]]) -> None:
        self._batches = deque(([tuple(turn) for turn in batch] for batch in state), maxlen=_REMEMBERED)  # type: ignore[misc]
        if self._batches:
            self._decide()

    def _decide(self) -> None:
        turns = max(map(len, self._batches))
        padded = [batch + [(0.0,) * 6] * (turns - len(batch)) for batch in self._batches]
        sums = np.array(padded).reshape(len(padded), turns, 6).sum(0)
        reached, tokens, within, within_freedom, among, among_freedom = sums.T
        # Fewer degrees of freedom say too little; a group's variance is an upper bound.
        enough = within_freedom >= 2
        variance = np.where(enough, within, among) / np.maximum(np.where(enough, within_freedom, among_freedom), 1.0)
        deviation = np.sqrt(variance)
        cost = self.section.samples * tokens / np.maximum(reached, 1.0)  # a state
        share = reached / len(padded) / self._roots  # of the roots
        chances = np.ones(turns)
        if self.section.budget is None:
            if self.section.where == "variance":
                chances = (deviation >= float(np.dot(share, deviation)) / max(share.sum(), 1e-12) - 1e-12).astype(float)
        else:
            expected = self._roots * share * cost  # of all forks at a turn
            remaining = float(self.section.budget)
            if self.section.where == "every":
                chances *= min(1.0, remaining / max(float(expected.sum()), 1e-12))
            else:
                chances[:] = 0.0
                for turn in np.argsort(-deviation / np.maximum(cost, 1e-12), kind="stable").tolist():
                    chances[turn] = min(1.0, remaining / max(float(expected[turn]), 1e-12))
                    remaining = max(0.0, remaining - float(expected[turn]))
        self._chances = chances.tolist()


def _turn_sums(groups: Sequence[Sequence[Trajectory]], forks: Iterable[Trajectory], gamma: float) -> list[_TurnSums]:
    at_state: dict[tuple[str, int], list[float]] = {}
    for fork in forks:
        at_state.setdefault((fork.forked_from, fork.forked_turn), []).append(_to_go(fork, gamma)[0])
    if all(len(group) == 1 for group in groups):  # alone, a root says nothing of the variance
        groups = [[root for group in groups for root in group]]
    turns = max((root.num_turns for group in groups for root in group), default=0)
    sums = np.zeros((turns, 6))
    for group in groups:
        in_group: list[list[float]] = [[] for _ in range(turns)]
        for root in group:
            to_go = _to_go(root, gamma)
            sampled = np.bincount(root.turn_id[root.action_mask], minlength=root.num_turns)
            tokens = np.cumsum(sampled[::-1])[::-1]
            for turn in range(root.num_turns):
                sums[turn, :2] += 1.0, tokens[turn]
                fork_returns = at_state.get((root.episode_id, turn), [])
                sums[turn, 2:4] += _deviations([to_go[turn], *fork_returns])
                in_group[turn].append(to_go[turn])
        for turn, returns in enumerate(in_group):
            sums[turn, 4:] += _deviations(returns)
    return [tuple(map(float, row)) for row in sums]  # type: ignore[misc]


def _to_go(episode: Trajectory, gamma: float) -> list[float]:
    sums = itertools.accumulate(episode.turn_rewards[::-1].tolist(), lambda later, reward: reward + gamma * later)
    return [*sums][::-1]


def _deviations(values: Sequence[float]) -> tuple[float, float]:
    """Return the sum of squared deviations from the mean, and its degrees of freedom."""
    if len(values) < 2:
        return 0.0, 0.0
    return float(np.var(values) * len(values)), len(values) - 1.0
