"""Reaction credit: what the user did about a turn's reply, as a part of that turn's advantage.

After the idea of arXiv:2608.17499, in which the user's private move after a turn is that turn's advantage; its text was
not available, and the formula here is ours. Of ``K`` turns, turn ``k`` with the move ``m_k`` and the value ``v(m_k)``
from -1 to 1 gets::

    c_k = size * (v(m_k) - b_k),    A'_k = A_k + c_k    for every token of the turn

``b_k`` is the mean value of the turns of *other* episodes (of the batch, or of the group); a turn without a move has
``c_k = 0``. ``size`` is ``weight`` with ``scale=fixed``, and with ``scale=relative`` ``weight`` times the ratio of the
root mean squares of ``A`` and ``v - b`` over the trained tokens.

The bias: ``b_k`` does not depend on the episode's own actions, so with ``fixed`` the expected gradient gains exactly
``weight * sum_k E[v(m_k) grad log pi(a_k | s_k)]``, the gradient of the values of the moves with a discount of 0. That
is another objective than the return: a reply is paid for the user's next move, whatever it leads to. ``relative``
multiplies that by a number of the whole batch, which depends on its actions a little, as ``norm_adv`` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field

from trainers.algorithms.baselines import any_of
from trainers.algorithms.batch import ActionBatch, Advantages, Bools, Floats, Ints
from trainers.section import Section
from trainers.trajectory import MOVES, Trajectory

#: The value of each move.
VALUES: Mapping[str, float] = {
    "reveals": 1.0,
    "confirms": 1.0,
    "answers": 0.0,
    "repeats": -0.5,
    "corrects": -0.5,
    "complains": -1.0,
    "gives_up": -1.0,
    "ends": 1.0,
}
#: Values this near to their baseline are equal to it: what rounding leaves must not be scaled up.
_EQUAL = 1e-9


class MovesError(ValueError):
    """No turn says what the user did, so there is no reaction to learn from."""


def _values_of_moves(table: dict[str, float]) -> dict[str, float]:
    """Return the table; ``ValueError``: a name that is no move, or a value outside of -1 to 1."""
    if unknown := sorted(set(table) - set(MOVES)):
        raise ValueError(f"{', '.join(unknown)} is no move; moves are {', '.join(MOVES)}")
    if wide := [f"{move}: {value:g}" for move, value in table.items() if not -1 <= value <= 1]:
        raise ValueError(f"{', '.join(wide)} is not from -1 to 1; a larger effect is a larger weight")
    return table


class ReactionCreditSection(Section):
    """A credit for the user's reaction to a reply, added to the turn's advantage. See docs/algorithms.md."""

    weight: float = Field(0.0, ge=0)
    """Size of the credit, as `scale` says; 0 is off. It needs an environment whose user names its moves, or a reward
    model with `kind=moves`."""
    table: Annotated[dict[str, float], AfterValidator(_values_of_moves)] = Field(default_factory=dict)
    """Values of moves, from -1 to 1, in place of the defaults: `reveals`, `confirms` and `ends` 1, `answers` 0,
    `repeats` and `corrects` -0.5, `complains` and `gives_up` -1."""
    baseline: Literal["batch", "group", "none"] = "batch"
    """Subtract the mean value of the turns of other episodes: of the batch, of the group (of the batch where it has no
    other with a move), or nothing."""
    scale: Literal["relative", "fixed"] = "relative"
    """`relative`: the credit's root mean square is `weight` times that of the estimator's advantages, so it is 0 where
    these are. `fixed`: a value of 1 counts `weight`, also where all episodes earned the same."""
    control: Literal["none", "shuffled", "reversed"] = "none"
    """Control for experiments: `shuffled` exchanges the moves among the turns of the batch at random, `reversed` takes
    the values with the other sign."""

    def values(self, moves: Ints) -> Floats:
        """Return the value of each of ``K`` moves by its place in ``MOVES``, float ``[K]``; 0 where there is none."""
        table = np.array([{**VALUES, **self.table}[move] for move in MOVES])
        return np.where(moves >= 0, table[np.maximum(moves, 0)], 0.0)

    def credit(self, batch: ActionBatch, moves: Ints, result: Advantages, rng: np.random.Generator) -> Floats:
        """Return what each turn's advantage gains, float ``[K]``.

        Args:
            batch: The episodes.
            moves: Int ``[K]``; see :func:`moves_of`.
            result: The estimator's advantages of the batch.
            rng: It draws the permutation of ``control=shuffled``, and nothing else is random.
        """
        counted = named_turns(batch, moves, result)
        values = self.values(moves)
        where = np.flatnonzero(counted)
        if self.control == "shuffled":
            values[where] = values[rng.permutation(where)]
        elif self.control == "reversed":
            values = -values
        centred = np.zeros(len(moves))
        centred[where] = self._centred(batch, where, values[where])
        if self.scale == "fixed":
            return self.weight * centred
        own = rms(centred[batch.turn_of_token], result)
        return self.weight * (rms(result.advantages, result) / own if own > _EQUAL else 0.0) * centred

    def _centred(self, batch: ActionBatch, turns: Ints, values: Floats) -> Floats:
        if self.baseline == "none":
            return values
        episode = batch.episode_of_turn[turns]
        expected = mean_of_others(values, batch.sides[episode], batch.tree[episode])[0]
        if self.baseline == "group":  # of the batch where a group has no other episode with a move
            means, there = mean_of_others(values, batch.group[episode], batch.tree[episode])
            expected = np.where(there, means, expected)
        return values - expected


def moves_of(episodes: Sequence[Trajectory]) -> Ints:
    """Return the move that answered each of the episodes' ``K`` turns by its place in ``MOVES``, int ``[K]``, or -1."""
    number = {"": -1} | {move: place for place, move in enumerate(MOVES)}
    names = (name for episode in episodes for name in episode.turn_moves or ("",) * episode.num_turns)
    return np.array([number[name] for name in names], np.int64)


def named_turns(batch: ActionBatch, moves: Ints, result: Advantages) -> Bools:
    """Return which of ``K`` turns have a move and a token that the policy is trained on, bool ``[K]``."""
    trained = np.bincount(batch.turn_of_token, result.policy_mask, minlength=len(moves)) > 0
    return (moves >= 0) & trained


def mean_of_others(x: Floats, key: Ints, tree: Ints) -> tuple[Floats, Bools]:
    """Return the mean of the entries with an entry's key and of another tree, 0 where there are none; and if there are.

    A tree is an episode with its forks, which depend on its actions. Equal entries have that mean to the last bit.
    """
    pair = np.unique(np.stack([key, tree]), axis=1, return_inverse=True)[1].reshape(-1)
    base = any_of(x, key)
    moved = x - base
    count = np.bincount(key)[key] - np.bincount(pair)[pair]
    total = np.bincount(key, moved)[key] - np.bincount(pair, moved)[pair]
    return np.where(count > 0, base + total / np.maximum(count, 1), 0.0), count > 0


def rms(x: Floats, result: Advantages) -> float:
    """Return the root mean square of ``x`` ``[N]`` over the trained tokens, each with its weight in the loss."""
    mask = result.policy_mask
    weights = None if result.weights is None else result.weights[mask]
    if not mask.any() or (weights is not None and not weights.any()):
        return 0.0
    return float(np.sqrt(np.average(x[mask] ** 2, weights=weights)))
