"""Do better signs teach faster? Learning curves in the games, from ``imitated``, by estimator.

    python -m benchmarks.credit.learning [--games rooms,outcome] [--seeds 8] [--updates 12]

All updates move a policy equally far (:data:`benchmarks.estimators.enumerated.UPDATE_KL`), in the direction that an
estimator chooses from a batch like those of CreditBench. The expected return is exact. The critic is the mean return
after each observation in the batches before, the last ones weighing most; it has seen one batch at the start, which no
update uses. A line for each estimator: the return before, and after a third, two thirds and all of the updates, with
the standard error over seeds.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from benchmarks.estimators.enumerated import step_of
from benchmarks.estimators.games import Game, play, softmax
from trainers.algorithms.batch import Ints
from trainers.algorithms.estimators import ESTIMATORS

from .games import GAMES, imitated, returns_to_go, trajectories
from .score import by_estimator
from .truth import GROUPS, SIBLINGS, Floats, Measured

ESTIMATOR_OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("graphgpo", "turn_grpo", "turn_gae", "rloo", "gagpo", "gigpo", "grpo")},
    "turn_gae, lam 0.5": {"lam": 0.5},
}
#: The weight of the critic's older batches, with each new one.
DECAY = 0.7


def curve(game: Game, start: Floats, name: str, updates: int, seed: int) -> list[float]:
    """Return the expected return before the first update and after each."""
    estimate = by_estimator(ESTIMATORS[name.partition(",")[0]].model_validate(ESTIMATOR_OPTIONS[name]))
    rng, logits, returns = np.random.default_rng(seed), start, [game.expected_return(start)]
    table = np.zeros((2, len(start)))  # the sum of returns after each observation, and their number
    for update in range(updates + 1):
        tasks = np.repeat(rng.integers(len(game.starts), size=GROUPS), SIBLINGS)
        played = play(game, logits, tasks, np.repeat(np.arange(GROUPS), SIBLINGS), rng)
        context = game.context[played.state]
        critic = table[0] / np.maximum(table[1], 1e-9)
        counts = [np.bincount(context, weights, len(start)) for weights in (returns_to_go(played), None)]
        table = DECAY * table + np.stack(counts)
        if not update:
            continue
        bootstrap = np.where(played.cut_at >= 0, critic[game.context[played.cut_at]], 0.0)
        no_forks: Ints = np.zeros((0, 0), np.int64)
        batch = Measured(trajectories(game, logits, played), [], no_forks, critic[context], bootstrap)
        advantages = estimate(batch)[batch.actions.turn_of_token]
        direction = np.zeros(game.shape)
        np.add.at(direction, (context, played.token), advantages)
        direction -= softmax(logits) * np.bincount(context, advantages, len(start))[:, None]
        logits = logits + step_of(game, logits, direction)
        returns.append(game.expected_return(logits))
    return returns


def _games(text: str) -> list[str]:
    """Return the names in a list with commas."""
    if unknown := set(text.split(",")) - set(GAMES):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}; there are {', '.join(GAMES)}")
    return text.split(",")


def main() -> None:
    """Print a table for each game."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=_games, default=["rooms", "outcome"], metavar="NAME,...")
    parser.add_argument("--seeds", type=int, default=8, choices=range(2, 1001), metavar="N", help="2 or more")
    parser.add_argument("--updates", type=int, default=12)
    options = parser.parse_args()
    columns = [options.updates * part // 3 for part in range(4)]
    for name in options.games:
        game = Game.of(GAMES[name])
        start = imitated(game)
        print(f"| {name} | {' | '.join(f'{number} updates' for number in columns)} |\n|---|---|---|---|---|")
        for estimator in ESTIMATOR_OPTIONS:
            curves = np.array([curve(game, start, estimator, options.updates, seed) for seed in range(options.seeds)])
            mean, error = curves.mean(0), curves.std(0, ddof=1) / np.sqrt(options.seeds)
            print(f"| {estimator} | {' | '.join(f'{mean[k]:.3f} ± {error[k]:.3f}' for k in columns)} |", flush=True)


if __name__ == "__main__":
    main()
