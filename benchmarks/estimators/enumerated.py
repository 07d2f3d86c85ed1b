"""The games: batches of a policy, some updates old, against the exact gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trainers.algorithms.baselines import score_norms
from trainers.algorithms.batch import Floats, Ints

from .games import GAMES, Episodes, Game, log_softmax, play, softmax
from .measure import Moments
from .stack import Coefficients, Stack
from .ways import BASELINES, DEFAULT, SHAPES, WAYS, Way, compared

STALENESS = (0, 1, 2, 4, 8)
#: By how much an update moves the policy, nats a token.
UPDATE_KL = 0.002
#: Updates before the policy that is measured.
UPDATES = 16
#: Error of the rough critic, in deviations of the return.
CRITIC_ERROR = 0.5
#: Batches played at once.
CHUNK = 50


@dataclass(frozen=True)
class Piece:
    """A unit of measurement.

    Args:
        game: Of :data:`~.games.GAMES`.
        staleness: How many updates the sampling policy is behind.
        groups: Tasks a batch.
        size: Episodes a task.
        batches: How many.
        seed: Of policy and batches.
    """

    game: str
    staleness: int
    groups: int
    size: int
    batches: int
    seed: int = 0


def pieces(batches: int, seed: int) -> list[Piece]:
    """Return the pieces of the games."""
    pieces = [Piece(game, stale, 16, 8, batches, seed) for stale in STALENESS for game in GAMES]
    pieces += [Piece(game, 0, 128 // size, size, batches, seed) for game in GAMES for size in (2, 4, 16)]
    return pieces + [Piece(game, 0, groups, 8, batches, seed) for game in GAMES for groups in (2, 4, 8)]


def run(piece: Piece) -> list[dict[str, Any]]:
    if piece.size != 8:
        ways = BASELINES
    elif piece.groups != 16:
        ways = [DEFAULT, *SHAPES]
    else:
        ways = WAYS
    return measure(piece, ways)


def policies(game: Game, seed: int) -> list[Floats]:
    """Return logits of the first policy and after each of :data:`UPDATES` updates."""
    rng = np.random.default_rng((seed, 1))
    path = [rng.normal(0.0, 0.5, game.shape)]
    for _ in range(UPDATES):
        path.append(improved(game, path[-1], 1, rng))
    return path


def improved(game: Game, logits: Floats, number: int, rng: np.random.Generator) -> Floats:
    """Return the logits after so many updates.

    An update goes along the default estimator's for a batch of 128 episodes, as far as :data:`UPDATE_KL`.
    """
    for _ in range(number):
        (played,) = _stacks(game, logits, {"rough": np.zeros(len(game.context))}, Piece("", 0, 16, 8, 1), rng)
        coefficient = played.stack.advantages(DEFAULT).advantages
        logits = logits + step_of(game, logits, updates(game, logits, played, coefficient).reshape(game.shape))
    return logits


def step_of(game: Game, logits: Floats, direction: Floats) -> Floats:
    """Return the step along a direction ``[C, A]`` that moves the policy by :data:`UPDATE_KL`; 0 along 0."""
    if not direction.any():  # all episodes of each task earned the same
        return direction
    step = direction * (1e-3 / np.linalg.norm(direction))
    for _ in range(8):  # the KL is nearly a square of the step's length
        step *= np.sqrt(UPDATE_KL / game.kl(logits, logits + step))
    return np.asarray(step, np.float64)


def updates(game: Game, logits: Floats, played: Played, coefficients: Floats) -> Floats:
    """Return ``sum_i c_i grad log pi(a_i)`` in the logits, for each batch of a stack, ``[batches, C * A]``."""
    contexts, tokens = game.shape
    context, batch = game.context[played.episodes.state], played.stack.batch_of_token
    count = len(played.stack.starts) - 1
    cell = (batch * contexts + context) * tokens + played.episodes.token
    by_cell = np.bincount(cell, coefficients, minlength=count * contexts * tokens).reshape(count, contexts, tokens)
    total = np.bincount(batch * contexts + context, coefficients, minlength=count * contexts)
    return np.asarray((by_cell - softmax(logits) * total.reshape(count, contexts, 1)).reshape(count, -1), np.float64)


def measure(piece: Piece, ways: list[Way]) -> list[dict[str, Any]]:
    """Measure the pairs of :func:`.compared`.

    Returns:
        A row each: the piece, ``way``, ``correction``, ``kl`` (behaviour to target, nats a token), ``return`` (of the
        target), and :meth:`.Moments.results`.
    """
    game = Game.of(GAMES[piece.game])
    path = policies(game, piece.seed)
    target, behaviour = path[-1], path[-1 - piece.staleness]
    chosen = compared(ways, piece.staleness)
    critics = _critics(game, target, piece.seed)
    greedy_tokens = game.greedy_returns(behaviour)[1]
    moments = Moments(game.gradient(target).ravel(), len(chosen), piece.batches)
    rng = np.random.default_rng((piece.seed, 2, piece.staleness, piece.groups, piece.size))
    log_target, log_behaviour = log_softmax(target), log_softmax(behaviour)
    plays_greedily = np.array([way.estimator == "remax" for way, _ in chosen])
    for played in _stacks(game, behaviour, critics, piece, rng):
        context, token = game.context[played.episodes.state], played.episodes.token
        made = Coefficients(played.stack, log_target[context, token], log_behaviour[context, token])
        estimates = np.stack([updates(game, target, played, made.of(*pair)) for pair in chosen])
        greedy = greedy_tokens[played.episodes.task[:: piece.size]].reshape(-1, piece.groups).sum(1)
        for number, tokens in enumerate(np.diff(played.stack.starts)):
            moments.add(estimates[:, number], tokens + plays_greedily * greedy[number])
    about = vars(piece) | {"kl": game.kl(behaviour, target), "return": game.expected_return(target)}
    return [
        about | {"way": way.name, "correction": correction.name} | result
        for (way, correction), result in zip(chosen, moments.results(), strict=True)
    ]


def _critics(game: Game, logits: Floats, seed: int) -> dict[str, Floats]:
    """Return values of all states: exact, and with a constant error, as of a critic."""
    exact = game.values(logits, budget=False)
    rng = np.random.default_rng((seed, 3))
    tasks = np.arange(4000) % len(game.starts)
    batch = play(game, logits, tasks, np.arange(4000), rng).batch
    returns = np.bincount(batch.episode_of_turn, batch.turn_rewards)
    return {"rough": exact + CRITIC_ERROR * returns.std() * rng.normal(size=exact.shape), "exact": exact}


def _exact_norms(logits: Floats, context: Ints, token: Ints) -> Floats:
    chances = softmax(logits)
    squares = np.square(chances).sum(1)
    return np.asarray(1.0 - 2.0 * chances[context, token] + squares[context], np.float64)


@dataclass(frozen=True, eq=False)
class Played:
    """Batches, and their episodes."""

    episodes: Episodes
    stack: Stack


def _stacks(
    game: Game, logits: Floats, critics: dict[str, Floats], piece: Piece, rng: np.random.Generator
) -> Iterator[Played]:
    """Yield batches of tasks drawn at random, many at once."""
    greedy = game.greedy_returns(logits)[0]
    for start in range(0, piece.batches, CHUNK):
        groups = min(CHUNK, piece.batches - start) * piece.groups
        tasks = np.repeat(rng.integers(len(game.starts), size=groups), piece.size)
        episodes = play(game, logits, tasks, np.repeat(np.arange(groups), piece.size), rng)
        context = game.context[episodes.state]
        norms = {
            "exact": _exact_norms(logits, context, episodes.token),
            "rough": score_norms(log_softmax(logits)[context, episodes.token]),
        }
        versions = {
            version: replace(
                episodes.batch,
                values=values[episodes.state],
                bootstrap=np.where(episodes.cut_at >= 0, values[episodes.cut_at], 0.0),
                greedy=greedy[tasks],
                score_norms=norms[version],
            )
            for version, values in critics.items()
        }
        yield Played(episodes, Stack(versions, piece.groups * piece.size))
