"""Batches for the estimators: the episodes' action tokens only, concatenated, with offsets.

Observation tokens are left out here, once, for every estimator. What remains is ragged in two levels (episodes of
turns, turns of tokens) and is kept as flat arrays with offsets, without padding. ``E`` episodes, ``K`` turns and ``N``
action tokens in the whole batch, in the order of the episodes, and in each in the order of time, whatever contexts its
turns were sampled in (:attr:`~trainers.trajectory.Trajectory.actions`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainers.trajectory import Status, Trajectory, action_offsets

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ActionBatch:
    """Episodes without their observations.

    Raises ``ValueError``: shapes do not fit, a turn has no token, an episode with tokens neither terminated nor was
    truncated, or a number is not finite; names the array and the episode.
    """

    #: Int ``[E + 1]``; episode ``e`` has the action tokens ``token_offsets[e]:token_offsets[e + 1]``
    token_offsets: Ints
    turn_offsets: Ints  #: int ``[E + 1]``; likewise its turns
    turn_index: Ints  #: int ``[N]``; the turn of each token within its episode, from 0
    turn_rewards: Floats  #: float ``[K]``
    terminated: Bools  #: bool ``[E]``; the task was over: nothing more could have been earned
    truncated: Bools  #: bool ``[E]``; a budget ran out. Ignored where ``terminated`` is true as well.
    group: Ints  #: int ``[E]``, at least 0; episodes of the same task drawn together share it
    #: Float ``[N]``; a critic's value of the state *before* each token: its output at the position that predicts the
    #: token
    values: Floats | None = None
    #: Float ``[E]``; the value of the state that each truncated episode ended in: the critic's output at the episode's
    #: last position. Read for truncated episodes only.
    bootstrap: Floats | None = None
    #: Float ``[N]``; subtracted from each token's reward (``beta * kl``, for a KL penalty in the reward)
    penalty: Floats | None = None
    #: Int ``[K]``, at least 0; the turns of a group with the same number began in the same state; see
    #: :func:`anchor_states`
    anchor: Ints | None = None
    #: Int ``[E]``; the state that each episode ended in, numbered as ``anchor``; -1 where it ended without another
    #: observation; see :func:`visited_states`
    ending: Ints | None = None
    solved: Bools | None = None  #: bool ``[E]``; the environment calls the episode a success
    greedy: Floats | None = None  #: float ``[E]``; the total reward that greedy decoding earned on each episode's task
    #: Float ``[E]``; what each episode's role earned on average before it; see :class:`.baselines.RoleBaselines`
    role_baseline: Floats | None = None
    #: Float ``[E, M]``; what each episode earned by each of ``M`` named rewards; see :func:`episode_terms`
    terms: Floats | None = None
    #: Int ``[E]``; the episode of the batch that each was forked from, -1 for one from the opening on
    forked_from: Ints | None = None
    #: Int ``[E]``; the turn, counted from the opening, before which it was forked, 0 where it was not. It has the turns
    #: from there on alone.
    forked_turn: Ints | None = None
    #: Bool ``[E]``; a budget of the environment's own ended it, which is part of the state
    budgeted: Bools | None = None
    #: Float ``[N]``, at least 0; the squared norm of each token's score, or what stands for it; see
    #: :func:`.baselines.score_norms`
    score_norms: Floats | None = None
    #: Int ``[E]``; which side of its conversation each episode is, where both sides are in the batch. The other side is
    #: no other episode: it earned what this one's actions led to. So baselines of the batch are of one side.
    side: Ints | None = None

    @classmethod
    def from_trajectories(cls, trajectories: Sequence[Trajectory], **arrays: ArrayLike | None) -> ActionBatch:
        """Leave out the observations. An empty ``group_id`` means that the episode is a group of its own.

        ``arrays`` are the optional arrays of the class, from ``values`` on (:func:`gather`). ``ValueError``: an episode
        failed, a fork is without the episode that it was forked from, or see the class.
        """
        for number, trajectory in enumerate(trajectories):
            if not trajectory.status.trainable:
                raise ValueError(
                    f"episode {number} ({trajectory.episode_id!r}) has the status {trajectory.status.value!r}: its "
                    "rewards cannot be trusted; filter on status.trainable first"
                )
        names = [t.group_id or f"\0{number}" for number, t in enumerate(trajectories)]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        return cls(
            token_offsets=action_offsets(trajectories),
            turn_offsets=np.cumsum([0, *(t.num_turns for t in trajectories)], dtype=np.int64),
            turn_index=gather(trajectories, [t.turn_id for t in trajectories]).astype(np.int64),
            turn_rewards=np.concatenate([np.zeros(0), *(t.turn_rewards for t in trajectories)]),
            terminated=np.array([t.terminated for t in trajectories], np.bool_),
            truncated=np.array([t.truncated for t in trajectories], np.bool_),
            group=np.array([numbers[name] for name in names], np.int64),
            **_origins(trajectories),
            budgeted=np.array([t.status is Status.TRUNCATED_TURNS for t in trajectories], np.bool_),
            **{name: _array(name, values) for name, values in arrays.items()},
        )

    def __post_init__(self) -> None:
        """Check everything once, so that no estimator has to."""
        episodes, turns, tokens = self.num_episodes, int(self.turn_offsets[-1]), int(self.token_offsets[-1])
        for name, length in (
            ("turn_offsets", episodes + 1),
            ("turn_index", tokens),
            ("turn_rewards", turns),
            ("terminated", episodes),
            ("truncated", episodes),
            ("group", episodes),
            ("values", tokens),
            ("bootstrap", episodes),
            ("penalty", tokens),
            ("anchor", turns),
            ("ending", episodes),
            ("solved", episodes),
            ("greedy", episodes),
            ("role_baseline", episodes),
            ("forked_from", episodes),
            ("forked_turn", episodes),
            ("budgeted", episodes),
            ("score_norms", tokens),
            ("side", episodes),
        ):
            array = getattr(self, name)
            if array is not None and array.shape != (length,):
                raise ValueError(
                    f"{name} has the shape {array.shape}, but {episodes} episodes with {turns} turns and "
                    f"{tokens} action tokens need ({length},)"
                )
        self._check_terms()
        self._refuse(self.group < 0, np.arange(episodes), "has a negative group")
        self._check_turns()
        open_ended = ~self.terminated & ~self.truncated & (np.diff(self.token_offsets) > 0)
        self._refuse(
            open_ended,
            np.arange(episodes),
            "neither terminated nor was truncated: it is incomplete; leave it out or say how it ended",
        )
        self._refuse(~np.isfinite(self.turn_rewards), self.episode_of_turn, "has a turn reward that is not finite")
        for array, episode, what in (
            (self.values, self.episode_of_token, "value"),
            (self.penalty, self.episode_of_token, "penalty"),
            (self.greedy, np.arange(episodes), "greedy return"),
            (self.role_baseline, np.arange(episodes), "role baseline"),
            (self.score_norms, self.episode_of_token, "score norm"),
        ):
            if array is not None:
                self._refuse(~np.isfinite(array), episode, f"has a {what} that is not finite")
        self._check_forks()
        if self.score_norms is not None:
            self._refuse(self.score_norms < 0, self.episode_of_token, "has a negative score norm")
        if self.anchor is not None:
            self._refuse(self.anchor < 0, self.episode_of_turn, "has a negative anchor")
        if self.bootstrap is not None:
            bad = ~np.isfinite(self.bootstrap) & self.truncated & ~self.terminated
            self._refuse(bad, np.arange(episodes), "was truncated and has a bootstrap value that is not finite")

    def _check_terms(self) -> None:
        if self.terms is None:
            return
        episodes = self.num_episodes
        if self.terms.ndim != 2 or len(self.terms) != episodes:
            raise ValueError(f"terms has the shape {self.terms.shape}, but {episodes} episodes need ({episodes}, M)")
        unfit = np.bincount(np.nonzero(~np.isfinite(self.terms))[0], minlength=episodes) > 0
        self._refuse(unfit, np.arange(episodes), "has a term that is not finite")

    def _check_turns(self) -> None:
        """Check that every turn has tokens, in order: so its first and last token exist, and its reward has a place."""
        of_token = self.turn_of_token
        outside = (self.turn_index < 0) | (self.turn_index >= np.diff(self.turn_offsets)[self.episode_of_token])
        self._refuse(
            outside | (np.diff(of_token, prepend=0) < 0),
            self.episode_of_token,
            "has turn indices that go back or have no turn reward: they must be non-decreasing and below its turns",
        )
        without = np.bincount(of_token, minlength=len(self.turn_rewards)) == 0
        self._refuse(
            without,
            self.episode_of_turn,
            "has a turn without action tokens: its reward would reach no gradient; drop that turn, or add its reward "
            "to the turn before",
        )

    def _check_forks(self) -> None:
        """Check that a fork begins in a state that a root (an episode of the same group that is no fork) has met."""
        if (self.forked_from is None) != (self.forked_turn is None):
            raise ValueError("forked_from and forked_turn come together")
        forks = np.flatnonzero(self.tree != np.arange(self.num_episodes))
        root, turn = self.tree[forks], self.first_turn[forks]
        for bad, why in (
            (self.tree[root] != root, "was forked from a fork; forks are made of episodes that are none"),
            (self.group[root] != self.group[forks], "was forked from an episode of another group"),
            ((turn < 0) | (turn >= np.diff(self.turn_offsets)[root]), "was forked before a turn that its root lacks"),
        ):
            self._refuse(bad, forks, why)

    @staticmethod
    def _refuse(bad: Bools, episode: Ints, why: str) -> None:
        if bad.any():
            raise ValueError(f"episode {int(episode[np.argmax(bad)])} {why}")

    @property
    def num_episodes(self) -> int:
        return len(self.token_offsets) - 1

    @property
    def num_tokens(self) -> int:
        return len(self.turn_index)

    @cached_property
    def tree(self) -> Ints:
        """The episode that each was forked from, int ``[E]``; itself where it was not."""
        itself = np.arange(self.num_episodes)
        return itself if self.forked_from is None else np.where(self.forked_from < 0, itself, self.forked_from)

    @cached_property
    def sides(self) -> Ints:
        """The side of each episode, int ``[E]``; 0 where all are of one."""
        return np.zeros(self.num_episodes, np.int64) if self.side is None else self.side

    @cached_property
    def first_turn(self) -> Ints:
        """The number of each episode's first turn, counted from the opening, int ``[E]``."""
        return np.zeros(self.num_episodes, np.int64) if self.forked_turn is None else self.forked_turn

    @cached_property
    def episode_of_token(self) -> Ints:
        return np.repeat(np.arange(self.num_episodes), np.diff(self.token_offsets))

    @cached_property
    def episode_of_turn(self) -> Ints:
        return np.repeat(np.arange(self.num_episodes), np.diff(self.turn_offsets))

    @cached_property
    def turn_of_token(self) -> Ints:
        """The turn of each token, counted through the whole batch, int ``[N]``."""
        return self.turn_offsets[self.episode_of_token] + self.turn_index

    @cached_property
    def turn_starts(self) -> Ints:
        """Each turn's first token, int ``[K]``."""
        return np.flatnonzero(np.diff(self.turn_of_token, prepend=-1))

    @cached_property
    def turn_ends(self) -> Ints:
        """Each turn's last token, where its reward stands, int ``[K]``."""
        return np.flatnonzero(np.diff(self.turn_of_token, append=len(self.turn_rewards)))

    @cached_property
    def token_rewards(self) -> Floats:
        """Each turn's reward at its last token, minus every token's penalty, float ``[N]``."""
        rewards = np.zeros(self.num_tokens)
        rewards[self.turn_ends] = self.turn_rewards
        return rewards if self.penalty is None else rewards - self.penalty

    @cached_property
    def net_turn_rewards(self) -> Floats:
        """Each turn's reward minus the penalties of its tokens, float ``[K]``."""
        if self.penalty is None:
            return self.turn_rewards
        return self.turn_rewards - np.bincount(self.turn_of_token, self.penalty, minlength=len(self.turn_rewards))


def tree_of(trajectories: Sequence[Trajectory]) -> Ints:
    """Return the episode that each of ``E`` was forked from, or itself, int ``[E]``; ``ValueError``: it is missing."""
    places = {t.episode_id: place for place, t in enumerate(trajectories) if not t.forked_from}
    tree = np.arange(len(trajectories))
    for place, trajectory in enumerate(trajectories):
        if not trajectory.forked_from:
            continue
        if (root := places.get(trajectory.forked_from)) is None:
            raise ValueError(
                f"episode {place} ({trajectory.episode_id!r}) was forked from {trajectory.forked_from!r}, which is not "
                "in the batch: its advantage needs the whole tree"
            )
        tree[place] = root
    return tree


def _origins(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    if not any(t.forked_from for t in trajectories):
        return {}
    tree = tree_of(trajectories)
    return {
        "forked_from": np.where(tree == np.arange(len(tree)), -1, tree),
        "forked_turn": np.array([t.forked_turn for t in trajectories], np.int64),
    }


Anchor = Literal["observation", "history"]


def anchor_states(trajectories: Sequence[Trajectory], kind: Anchor = "observation") -> Ints:
    """Return a number for the state each turn begins in, by the tokens the policy saw; equal states have equal numbers.

    Identity is that of token ids. ``observation``: the tokens since the turn before in the same context (for the first
    turn of a context, all of its beginning). ``history``: everything that the policy sees at that point, which is
    rarely the same twice. Returns int ``[K]``, from 0.
    """
    return visited_states(trajectories, kind)[0]


def visited_states(trajectories: Sequence[Trajectory], kind: Anchor = "observation") -> tuple[Ints, Ints]:
    """Return :func:`anchor_states`, ``[K]``, and the number of the state that each episode ended in, int ``[E]``.

    An episode that was truncated ended in the observation after its last turn; -1 where it shows none.
    """
    numbers: dict[bytes, int] = {}
    states = []
    for trajectory in trajectories:
        where, ends = trajectory.actions, trajectory.turn_ends()
        starts = where[np.diff(trajectory.turn_id[where], prepend=-1) > 0]
        begins = trajectory.segment_starts[np.searchsorted(trajectory.segment_starts, starts, side="right") - 1]
        if kind == "observation" and len(ends):
            order = np.argsort(ends)  # the place of each turn in the arrays
            begins[order[1:]] = np.maximum(begins[order[1:]], ends[order[:-1]] + 1)
        for begin, start in zip(begins, starts, strict=True):
            state = trajectory.token_ids[begin:start].tobytes()
            states.append(numbers.setdefault(state, len(numbers)))
    endings = [numbers.setdefault(state, len(numbers)) if state else -1 for state in _endings(trajectories, kind)]
    return np.array(states, np.int64), np.array(endings, np.int64)


def _endings(trajectories: Sequence[Trajectory], kind: Anchor) -> Iterator[bytes]:
    """Yield the tokens of the state that each episode ended in; none where no observation follows its last turn."""
    for trajectory in trajectories:
        context = int(trajectory.segment_starts[-1]) if len(trajectory.segment_starts) else 0
        after = int(trajectory.actions.max(initial=-1)) + 1
        tail = trajectory.token_ids[max(context, after) :]
        yield (trajectory.token_ids[context:] if kind == "history" and len(tail) else tail).tobytes()


class TermsError(ValueError):
    """The reward has none of the terms that an estimator compares."""


def episode_terms(
    trajectories: Sequence[Trajectory], names: Sequence[str] | None = None
) -> tuple[tuple[str, ...], Floats]:
    """Sum each episode's rewards by term over its turns: return the ``M`` names, and float ``[E, M]``.

    ``names`` of ``None`` takes all that any episode has, sorted; TermsError: no episode has any of them.
    """
    present = sorted({name for t in trajectories for turn in t.turn_terms for name in turn})
    chosen = tuple(present if names is None else names)
    if trajectories and not set(chosen) & set(present):
        raise TermsError(
            f"no episode of the batch was paid {' or '.join(map(repr, chosen))}; its terms are {', '.join(present)}"
        )
    sums = [[sum(turn.get(name, 0.0) for turn in t.turn_terms) for name in chosen] for t in trajectories]
    return chosen, np.array(sums, np.float64).reshape(len(trajectories), len(chosen))


def shared_anchors(batch: ActionBatch) -> Bools:
    """Return whether another turn of the same group began in the same state, bool ``[K]``; the batch has ``anchor``."""
    _, number, count = np.unique(group_states(batch)[0], return_inverse=True, return_counts=True)
    return np.asarray(count[number.ravel()] > 1, np.bool_)


def group_states(batch: ActionBatch) -> tuple[Ints, Ints]:
    """Return a number for each turn's group and ``anchor``, int ``[K]``, and for each group and ``ending``, ``[E]``.

    Numbers are from 0 without gaps; -1 where an episode has no ``ending``. ``ValueError``: the batch has no ``anchor``.
    """
    if batch.anchor is None:
        raise ValueError("the batch needs anchor [K], the state that each turn began in (see batch.anchor_states)")
    ending = np.full(batch.num_episodes, -1) if batch.ending is None else batch.ending
    ended = np.flatnonzero(ending >= 0)
    states = np.append(batch.anchor, ending[ended])
    groups = np.append(batch.group[batch.episode_of_turn], batch.group[ended])
    _, number = np.unique(groups * (1 + states.max(initial=0)) + states, return_inverse=True)
    last = np.full(batch.num_episodes, -1, np.int64)
    last[ended] = number[len(batch.anchor) :]
    return number[: len(batch.anchor)], last


def gather(trajectories: Sequence[Trajectory], arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Concatenate the action tokens' entries, ``[N]``, of one array ``[T]`` for each episode, in the order of time."""
    for number, (trajectory, array) in enumerate(zip(trajectories, arrays, strict=True)):
        if len(array) != len(trajectory.action_mask):
            raise ValueError(f"array {number} has {len(array)} entries for {len(trajectory.action_mask)} tokens")
    parts = [array[t.actions] for t, array in zip(trajectories, arrays, strict=True)]
    return np.concatenate(parts) if parts else np.zeros(0)


_DTYPES: dict[str, type] = {"anchor": np.int64, "ending": np.int64, "solved": np.bool_, "side": np.int64}


def _array(name: str, values: ArrayLike | None) -> NDArray[Any] | None:
    return None if values is None else np.asarray(values, _DTYPES.get(name, np.float64))


Truncated = Literal["count", "drop"]


@dataclass(frozen=True, eq=False)
class MadeOf:
    """Returns and baselines that advantages consist of, before normalisation; see :meth:`.Estimator.made_of`."""

    returns: Floats  #: float ``[N]``; what is compared
    #: Float ``[N]``; with what, NaN where the policy is not trained; ``None`` where there is no one number
    baseline: Floats | None
    unscaled: Floats  #: float ``[N]``; their difference
    #: Float ``[K]``; the value of the state that each turn began in, by its forks; NaN where there are none
    by_fork: Floats | None = None
    #: Float ``[K]``; what the user's reaction added to each turn's advantage, NaN without a move; see
    #: :mod:`~trainers.algorithms.reaction`
    by_reaction: Floats | None = None
    by_teacher: Floats | None = None  #: float ``[N]``; what a teacher added, 0 where the policy is not trained


@dataclass(frozen=True, eq=False)
class Advantages:
    """Advantages of a batch of ``N`` action tokens, as an estimator returns them."""

    advantages: Floats  #: float ``[N]``; 0 where ``policy_mask`` is false
    policy_mask: Bools  #: bool ``[N]``; the tokens that the policy is trained on (false in an episode that is left out)
    returns: Floats | None = None  #: float ``[N]``; the critic's target; ``None`` without a critic
    #: Bool ``[N]``; the tokens that the critic is trained on; ``None`` without a critic
    value_mask: Bools | None = None
    #: Float ``[N]``, at least 0; what each token counts in the loss, where episodes share a state; ``None`` counts
    #: every token as 1. See :mod:`~trainers.algorithms.estimators.fork`.
    weights: Floats | None = None
    made_of: MadeOf | None = None  #: for reports, where requested


def discounted_sums(x: Floats, offsets: Ints, factor: float) -> Floats:
    """Return ``y_i = x_i + factor * y_{i+1}`` within each episode, without a loop over steps.

    By doubling: once ``y_i`` covers ``s`` steps from ``i`` on, adding ``factor**s * y_{i+s}`` makes them ``2 s``, so an
    episode of ``T`` steps takes ``log2 T`` passes. All powers are at most 1: nothing can overflow.

    ``x`` is float ``[N]``, ``offsets`` int ``[E + 1]``, ``factor`` in [0, 1].
    """
    lengths = np.diff(offsets)
    remaining = np.repeat(offsets[1:], lengths) - np.arange(len(x))  # steps from i to the end of its episode
    y, span, longest = x.astype(np.float64), 1, int(lengths.max(initial=0))
    while span < longest:
        y[:-span] += np.where(remaining[:-span] > span, factor**span * y[span:], 0.0)
        span *= 2
    return y


def kept_episodes(batch: ActionBatch, truncated: Truncated) -> Bools:
    """Return the episodes that count. One without an action says nothing about the policy and never does."""
    acted = np.diff(batch.token_offsets) > 0
    return acted if truncated == "count" else acted & batch.terminated
