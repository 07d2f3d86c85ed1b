"""``fork`` in the games: noise for each sampled token by baseline, size of groups, and where forks are made.

    python -m benchmarks.estimators.forked [--batches 1000] [--seed 0]

Games, policies and measures are those of ``python -m benchmarks.estimators``; batches have episodes of as many
tasks as a row says, and their forks. It prints a table, noise in tokens, with the cosine of single updates.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from trainers.algorithms.batch import ActionBatch, Floats, Ints
from trainers.algorithms.estimators import ESTIMATORS
from trainers.algorithms.losses import token_weights

from .enumerated import policies
from .games import GAMES, Game, play, softmax
from .measure import Moments

#: How many forks are made before the reply at a turn.
Rule = Callable[[int], int]
RULES: dict[str, Rule] = {
    "no forks": lambda turn: 0,
    "1 at every turn": lambda turn: 1,
    "1 at later turns": lambda turn: int(turn > 0),
    "2 at later turns": lambda turn: 2 * (turn > 0),
}
#: Estimator, baseline, rule, tasks and episodes of each.
WAYS = [
    *(("turn_grpo", "mixed", "no forks", groups, 128 // groups) for groups in (16, 32, 64, 128)),
    *(("fork", base, "1 at every turn", groups, 64 // groups) for base in ("group", "mixed") for groups in (16, 32)),
    ("fork", "mixed", "1 at every turn", 64, 1),
    *(("fork", base, "1 at later turns", 32, 2) for base in ("group", "mixed")),
    ("fork", "mixed", "1 at later turns", 64, 1),
    ("fork", "mixed", "2 at later turns", 32, 2),
]


def batch_of(
    game: Game, logits: Floats, groups: int, size: int, rule: Rule, rng: np.random.Generator
) -> tuple[ActionBatch, Ints, Ints]:
    """Return a batch with its forks, and the state and the token of each of its tokens."""
    tasks = np.repeat(rng.integers(len(game.starts), size=groups), size)
    roots = play(game, logits, tasks, np.repeat(np.arange(groups), size), rng)
    batch, root = roots.batch, roots.batch.episode_of_turn
    turn = np.arange(len(root)) - batch.turn_offsets[root]
    points = np.repeat(np.arange(len(root)), [rule(int(number)) for number in turn])
    none = np.full(len(tasks), -1)
    if not len(points):
        return batch, roots.state, roots.token
    of, begin = root[points], roots.state[batch.turn_starts[points]]
    forks = play(game, logits, tasks[of], batch.group[of], rng, begin)
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(batch, name), getattr(forks.batch, name)])
        for name in ("turn_index", "turn_rewards", "terminated", "truncated", "group")
    }
    for name in ("token_offsets", "turn_offsets"):
        before = getattr(batch, name)
        columns[name] = np.concatenate([before, before[-1] + getattr(forks.batch, name)[1:]])
    columns |= {"forked_from": np.concatenate([none, of]), "forked_turn": np.concatenate([0 * none, turn[points]])}
    return (
        ActionBatch(**columns),
        np.concatenate([roots.state, forks.state]),
        np.concatenate([roots.token, forks.token]),
    )


def measure(name: str, way: tuple[str, str, str, int, int], batches: int, seed: int) -> dict[str, float]:
    """Measure one of :data:`WAYS`; return its :meth:`.Moments.results`."""
    estimator, baseline, rule, groups, size = way
    game = Game.of(GAMES[name])
    logits, rng = policies(game, seed)[-1], np.random.default_rng((seed, 4))
    chances, moments = softmax(logits), Moments(game.gradient(logits).ravel(), 1, batches)
    for _ in range(batches):
        batch, state, token = batch_of(game, logits, groups, size, RULES[rule], rng)
        result = ESTIMATORS[estimator].model_validate({"baseline": baseline}).advantages(batch)
        weight = token_weights(
            "seq-mean-token-sum", batch.token_offsets, result.policy_mask, weights=result.weights, tree=batch.tree
        )
        counts, context, update = weight * result.advantages, game.context[state], np.zeros(game.shape)
        np.add.at(update, (context, token), counts)
        update -= chances * np.bincount(context, counts, minlength=len(update))[:, None]
        moments.add(update.reshape(1, -1), np.array([len(token)], float))
    return moments.results()[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"| | {' | '.join(GAMES)} |\n" + "|---" * (len(GAMES) + 1) + "|")
    for way in WAYS:
        rows = [measure(name, way, options.batches, options.seed) for name in GAMES]
        estimator, baseline, rule, groups, size = way
        cells = " | ".join(f"{row['noise']:.0f}, {row['cosine']:.2f}" for row in rows)
        print(f"| `{estimator}`, {baseline}, {rule}, {groups} tasks of {size} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
