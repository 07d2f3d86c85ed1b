"""Among the successes of a group, longer ones are paid less than shorter ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from trainers.trajectory import Trajectory, solved

#: A function from the episodes of any groups to copies with other turn rewards.
GroupCredit: TypeAlias = Callable[[Sequence[Trajectory]], list[Trajectory]]
Floats: TypeAlias = NDArray[np.float64]

#: The term of the last turn with the gain or cost of the episode's length.
TERM = "relative_length"


def relative_length(tokens: float, turns: float) -> GroupCredit:
    """Return the function that adds :func:`length_gains` to the last turn of each episode, group by group.

    ``tokens`` weighs the tokens that the policy sampled, in all contexts; ``turns`` its turns. Both are at least 0. An
    episode whose gain is 0 is returned as it is.
    """

    def credit(episodes: Sequence[Trajectory]) -> list[Trajectory]:
        credited = list(episodes)
        names = [episode.group_id for episode in episodes]
        for name in dict.fromkeys(names):
            places = [place for place, other in enumerate(names) if other == name]
            gains = length_gains(
                np.array([episodes[place].total_reward for place in places]),
                np.array([solved(episodes[place]) for place in places], np.bool_),
                np.array([[episodes[p].action_mask.sum(), episodes[p].num_turns] for p in places], np.float64),
                np.array([tokens, turns]),
            )
            for place, gain in zip(places, gains.tolist(), strict=True):
                credited[place] = _with_gain(episodes[place], gain)
        return credited

    return credit


def length_gains(returns: Floats, success: NDArray[np.bool_], lengths: Floats, weights: Floats) -> Floats:
    """Return what each episode of a group gains by its lengths, float ``[E]``.

    The cost of a length is that of Arora and Zanette (arXiv 2502.04463): ``f = sigmoid((l - mean(l)) / std(l))``, with
    mean and population deviation over the group's successes; 1/2 where they do not differ. A success gains
    ``s sum_j w_j (mean(f_j) - f_j)``, a failure nothing. So the gains of a group sum to 0, and each is below
    ``s sum_j w_j`` in size. ``s`` is 1, or less where a failure earned almost as much as a success, so that no failure
    ever has the greater return: ``s sum_j w_j`` is at most the difference of the smallest return of a success and the
    greatest of a failure. (The paper multiplies rewards of 0 and 1 by ``1 - w f``.)

    ``returns`` and ``success`` are ``[E]``; ``lengths`` ``[E, J]``; ``weights`` ``[J]``, at least 0.
    """
    gains = np.zeros(len(returns))
    total = float(weights.sum())
    if success.sum() < 2 or total == 0.0:
        return gains
    won = lengths[success]
    deviation = won.std(axis=0)
    scores = (won - won.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    costs = 1.0 / (1.0 + np.exp(-scores))
    room = np.inf if success.all() else returns[success].min() - returns[~success].max()
    scale = float(np.clip(room / total, 0.0, 1.0))
    gains[success] = scale * (costs.mean(axis=0) - costs) @ weights
    return gains


def _with_gain(episode: Trajectory, gain: float) -> Trajectory:
    if gain == 0.0:
        return episode
    rewards, terms = episode.turn_rewards.copy(), list(episode.turn_terms)
    rewards[-1] += gain
    terms[-1] = {**terms[-1], TERM: terms[-1].get(TERM, 0.0) + gain}
    return replace(episode, turn_rewards=rewards, turn_terms=tuple(terms))
