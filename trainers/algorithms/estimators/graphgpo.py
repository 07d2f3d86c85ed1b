"""Episodes of a group, and turns by the distance to the goal of the states that they led to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from trainers.algorithms.batch import (
    ActionBatch,
    Advantages,
    Floats,
    Ints,
    group_states,
    kept_episodes,
    visited_states,
)
from trainers.algorithms.estimators.anchored import AnchoredEstimator
from trainers.algorithms.estimators.base import Need, relative, totals
from trainers.algorithms.estimators.grpo import GRPO
from trainers.trajectory import Trajectory, solved


class GraphGPO(AnchoredEstimator):
    """Graph-based group policy optimisation (GraphGPO, arXiv 2605.26684): the turn by the progress that it made.

    The states that a group met are the nodes of a graph, and its turns the edges, from the state that a turn began in
    to the state that it led to. The last turn of a *solved* episode leads to the goal. ``d(s)`` is the smallest number
    of turns from ``s`` to the goal, along turns of any episodes; without a path, 1 more than the group's greatest.
    A turn to ``s'`` earned ``R^G = omega^(d(s') + 1)``, whatever became of its episode, and is compared with the turns
    that began in the same state: ``A^G = (R^G - mean(R^G)) / (std(R^G) + eps)``. The sum is
    ``A = A^E + step_weight A^G``, with ``A^E`` of :class:`.GRPO`.

    A turn alone in its state has ``A^G = 0``, and so have all turns of a group without a solved episode; there, this is
    GRPO. Of two turns in the same state, the one that led nearer to the goal has the greater ``A^G``. A deviation
    cancels any factor, so ``R^G`` is relative to that of the state's best turn there: ``eps`` stays small beside it,
    however far the goal is, and the paper's factor ``r_succ`` is not needed. A truncated episode's last turn leads to
    the observation that the episode ended in; that of a failure, to a state without a path. The environment says which
    episodes are solved (:func:`~trainers.trajectory.solved`), not the reward.

    Biased: by the deviations, and because a distance is that of the group's best continuation, not of the mean one. The
    paper assumes transitions without chance.

    ``batch`` has ``anchor``, ``ending`` and ``solved``; ``distance_discount`` is ``omega``, and ``step_weight`` the
    paper's ``beta^G``, relative to its ``beta^E``.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"anchor", "solved"})

    adv_estimator: Literal["graphgpo"] = "graphgpo"
    distance_discount: float = Field(0.1, gt=0, lt=1)
    """Discount of a turn's progress for each turn that is left to the goal (ω)."""
    step_weight: float = Field(1.0, ge=0, description="Weight of the comparison of turns.")

    def advantages(self, batch: ActionBatch) -> Advantages:
        of_episode = GRPO(norm_by_std=self.norm_by_std, truncated=self.truncated).advantages(batch)
        turns, begun, distance_after = self._progress(batch)
        of_turn = np.zeros(len(batch.turn_rewards))
        if self.norm_by_std:  # of a multiple of the rewards: far from the goal, EPS would outweigh their deviation
            nearest = np.full(int(begun.max(initial=-1)) + 1, np.inf)
            np.minimum.at(nearest, begun, distance_after)
            distance_after = distance_after - nearest[begun] - 1
        of_turn[turns] = relative(self.distance_discount ** (distance_after + 1), begun, self.norm_by_std)
        advantages = of_episode.advantages + self.step_weight * of_turn[batch.turn_of_token]
        return replace(of_episode, advantages=advantages)

    def _progress(self, batch: ActionBatch) -> tuple[Ints, Ints, Floats]:
        """Return the turns of episodes that count, int ``[k]``, the state each began in, and ``d`` of where it led."""
        if batch.solved is None:
            raise ValueError("graphgpo needs solved [E], whether the environment calls each episode a success")
        begun, ending = group_states(batch)
        turns = np.flatnonzero(kept_episodes(batch, self.truncated)[batch.episode_of_turn])
        goal = 1 + max(begun.max(initial=-1), ending.max(initial=-1))
        nowhere = goal + 1  # the state of each failure that shows none: no turn begins there
        led_to = np.append(begun[1:], nowhere)[: len(begun)]
        acted = np.diff(batch.turn_offsets) > 0
        ends = np.where(batch.solved, goal, np.where(ending < 0, nowhere, ending))
        led_to[batch.turn_offsets[1:][acted] - 1] = ends[acted]
        begun, led_to = begun[turns], led_to[turns]
        distance = np.full(nowhere + 1, np.inf)
        distance[goal] = 0.0
        while True:  # as many passes as the longest path has turns
            nearer = distance.copy()
            np.minimum.at(nearer, begun, distance[led_to] + 1)
            if np.array_equal(nearer, distance):
                break
            distance = nearer
        group = batch.group[batch.episode_of_turn[turns]]
        farthest = np.zeros(int(group.max(initial=-1)) + 1)
        np.maximum.at(farthest, group, np.where(np.isfinite(distance[begun]), distance[begun], 0.0))
        after = distance[led_to]
        return turns, begun, np.where(np.isfinite(after), after, farthest[group] + 1)

    def complete(self, batch: ActionBatch, episodes: Sequence[Trajectory]) -> ActionBatch:
        """Add the states that turns began in and episodes ended in, and which episodes are solved."""
        anchor, ending = visited_states(episodes, self.anchor)
        success = np.array([solved(episode) for episode in episodes], np.bool_)
        return replace(batch, anchor=anchor, ending=ending, solved=success)

    def metrics(self, batch: ActionBatch, episodes: Sequence[Trajectory]) -> dict[str, float]:
        """Return the share of turns that another turn of the group in the same state was nearer or farther than."""
        turns, begun, after = self._progress(batch)
        ranked = relative(after, begun, norm_by_std=False) != 0
        return {"ranked": float(np.mean(ranked)) if len(turns) else 0.0}

    def returns(self, batch: ActionBatch) -> Floats:
        return totals(batch)[batch.episode_of_token]
