"""Measure the value of a sampled token to each estimator: bias and variance of the gradient against the true one.

The task is a Markov chain of turns: in one of a few states the policy draws one of a few replies (a token each), which
pays and leads to another state or ends the episode. It is small enough that the gradient of the expected return is
exact, by dynamic programming. Kinds of tasks:

* ``outcome``: the last turn alone pays, 0 or 1;
* ``turns``: every turn pays, and as much as others do;
* ``decisive``: one early turn decides the reward of the last one, and the turns between decide nothing;
* ``noisy``: as ``outcome``, and the environment adds a random number to the reward.

For each estimator, over many groups: the cosine of the mean update to the true gradient (1: no bias), and the variance
of a group's update times the tokens that it sampled, as a ratio to ``turn_grpo`` with groups of eight. A ratio of 0.5
is as good as twice the tokens.

    python -m benchmarks.fork_variance [--groups 4000] [--seed 0] [--turns 5]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainers.algorithms.batch import ActionBatch
from trainers.algorithms.estimators import ESTIMATORS
from trainers.algorithms.losses import token_weights

Floats = NDArray[np.float64]

STATES, REPLIES = 6, 3
KINDS = ("outcome", "turns", "decisive", "noisy")


@dataclass(frozen=True)
class Chain:
    """A task and a policy.

    Args:
        policy: ``[turns, states, replies]``; probabilities.
        moves: ``[turns, states, replies, states]``; of the next state.
        pays: ``[turns, states, replies]``.
        ends: ``[turns, states, replies]``; the probability that the episode is over.
        noise: Standard deviation of the environment's noise on the last reward.
    """

    policy: Floats
    moves: Floats
    pays: Floats
    ends: Floats
    noise: float = 0.0

    @property
    def turns(self) -> int:
        """Number of turns, at most."""
        return len(self.policy)


def chain(kind: str, turns: int, seed: int) -> Chain:
    """Return a random task of this kind."""
    rng = np.random.default_rng((seed, KINDS.index(kind)))
    shape = (turns, STATES, REPLIES)
    policy = np.exp(0.7 * rng.normal(size=shape))
    policy /= policy.sum(-1, keepdims=True)
    moves = rng.dirichlet(np.full(STATES, 0.4), size=shape)
    pays = rng.normal(size=shape)
    ends: Floats = 0.1 * np.broadcast_to(np.arange(REPLIES, dtype=np.float64), shape)
    if kind != "turns":
        pays[:-1] = 0.0
        pays[-1] = pays[-1] > 0.5
    if kind == "decisive":
        moves[1:] = np.eye(STATES)[:, None]  # the second turn's state stays
        pays[-1] = (np.arange(STATES) < STATES // 2)[:, None]
        ends = np.zeros(shape)
    return Chain(policy, moves, pays, ends, 1.0 if kind == "noisy" else 0.0)


def true_gradient(task: Chain) -> Floats:
    """Return the gradient of the expected return, for each logit: ``[turns, states, replies]``."""
    values, q = np.zeros(STATES), np.zeros_like(task.pays)
    for turn in reversed(range(task.turns)):
        q[turn] = task.pays[turn] + (1.0 - task.ends[turn]) * (task.moves[turn] @ values)
        values = (task.policy[turn] * q[turn]).sum(-1)
    gradient, visits = np.zeros_like(q), np.eye(STATES)[0]
    for turn in range(task.turns):
        baseline = (task.policy[turn] * q[turn]).sum(-1, keepdims=True)
        gradient[turn] = visits[:, None] * task.policy[turn] * (q[turn] - baseline)
        going = visits[:, None] * task.policy[turn] * (1.0 - task.ends[turn])
        visits = np.einsum("sr,srn->n", going, task.moves[turn])
    return gradient


Steps = list[tuple[int, int, float]]  # state, reply and reward of each turn


class Player:
    """Samples episodes of a task."""

    def __init__(self, task: Chain, rng: np.random.Generator) -> None:
        self._task, self._rng = task, rng
        self._policy, self._moves = task.policy.cumsum(-1), task.moves.cumsum(-1)

    def play(self, state: int = 0, turn: int = 0) -> Steps:
        """Play from this state to the end."""
        task, steps = self._task, []
        while True:
            drawn = self._rng.random(3)
            reply = min(int((drawn[0] > self._policy[turn, state]).sum()), REPLIES - 1)
            over = turn + 1 == task.turns or drawn[1] < task.ends[turn, state, reply]
            reward = float(task.pays[turn, state, reply])
            steps.append(
                (state, reply, reward + (task.noise * float(self._rng.normal()) if over and task.noise else 0.0))
            )
            if over:
                return steps
            state = min(int((drawn[2] > self._moves[turn, state, reply]).sum()), STATES - 1)
            turn += 1


@dataclass(frozen=True)
class Way:
    """An estimator, the roots of a group, and the turns and numbers of their forks."""

    name: str
    estimator: str
    size: int
    forks: int = 0
    at: Sequence[int] = ()


def updates(task: Chain, way: Way, groups: int, rng: np.random.Generator) -> tuple[Floats, float]:
    """Return the update of each group ``[groups, logits]``, as a mean over its roots, and tokens a group."""
    player = Player(task, rng)
    episodes: list[Steps] = []
    origin: list[tuple[int, int, int]] = []  # group, root (-1 for itself), turn
    for group in range(groups):
        for _ in range(way.size):
            root, place = player.play(), len(episodes)
            episodes.append(root)
            origin.append((group, -1, 0))
            for turn, (state, _, _) in enumerate(root):
                if turn in way.at:
                    for _ in range(way.forks):
                        episodes.append(player.play(state, turn))
                        origin.append((group, place, turn))
    of_group, of_root, first = np.array(origin).T
    lengths = np.array([len(steps) for steps in episodes])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    index = np.concatenate([np.arange(length) for length in lengths])
    batch = ActionBatch(
        token_offsets=offsets,
        turn_offsets=offsets,
        turn_index=index,
        turn_rewards=np.array([reward for steps in episodes for _, _, reward in steps]),
        terminated=np.ones(len(episodes), np.bool_),
        truncated=np.zeros(len(episodes), np.bool_),
        group=of_group,
        forked_from=of_root,
        forked_turn=first,
    )
    result = ESTIMATORS[way.estimator].model_validate({"baseline": "group"}).advantages(batch)
    weight = token_weights("seq-mean-token-sum", offsets, result.policy_mask, weights=result.weights, tree=batch.tree)
    weight *= groups * result.advantages  # a mean over the roots of a group
    turn = index + np.repeat(first, lengths)
    state, reply = np.array([(s, r) for steps in episodes for s, r, _ in steps]).T
    group = of_group[batch.episode_of_token]
    totals = np.zeros((groups, *task.policy.shape))
    np.add.at(totals, (group, turn, state), -weight[:, None] * task.policy[turn, state])
    np.add.at(totals, (group, turn, state, reply), weight)
    return totals.reshape(groups, -1), len(index) / groups


def ways(turns: int) -> list[Way]:
    every = range(turns)
    return [
        Way("turn_grpo, groups of 8", "turn_grpo", 8),
        Way("turn_grpo, groups of 16", "turn_grpo", 16),
        Way("rloo, groups of 8", "rloo", 8),
        Way("fork, 1 at every turn, groups of 4", "fork", 4, 1, every),
        Way("fork, 2 at every turn, groups of 4", "fork", 4, 2, every),
        Way("fork, 1 at every turn, groups of 1", "fork", 1, 1, every),
        Way("fork, 3 at the opening, groups of 4", "fork", 4, 3, (0,)),
        Way("fork, 2 at the second turn, groups of 4", "fork", 4, 2, (1,)),
        Way("fork, 2 at the last turn, groups of 4", "fork", 4, 2, (turns - 1,)),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=4000, help="groups of each estimator")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for kind in KINDS:
        task, unit = chain(kind, options.turns, options.seed), 0.0
        truth = true_gradient(task).ravel()
        for way in ways(options.turns):
            samples, tokens = updates(task, way, options.groups, np.random.default_rng(options.seed))
            mean, cost = samples.mean(0), float(samples.var(0).sum()) * tokens
            unit = unit or cost
            cosine = float(mean @ truth / (np.linalg.norm(mean) * np.linalg.norm(truth)))
            print(f"{kind:9} {way.name:42} cosine {cosine:.3f}  tokens {tokens:6.1f}  variance {cost / unit:5.2f}")


if __name__ == "__main__":
    main()
