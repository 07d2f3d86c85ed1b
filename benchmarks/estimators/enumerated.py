"""The games: batches of a policy, some updates old, against the exact gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trainers.algorithms.baselines import score_norms
from trainers.algorithms.batch import ActionBatch, Floats

from .games import GAMES, Episodes, Game, log_softmax, play, softmax
from .measure import CORRECTIONS, DEFAULT, NO_CORRECTION, Correction, Moments, Way, coefficients

#: What an update moves the policy by, nats a token.
UPDATE_KL = 0.002
#: Updates before the policy that is measured.
UPDATES = 16
#: Error of the rough critic, in deviations of the return.
CRITIC_ERROR = 0.5
#: Batches played at once.
CHUNK = 50


@dataclass(frozen=True)
class Piece:
    """What is measured at once.

    Args:
        game: Of :data:`~.games.GAMES`.
        staleness: Updates that the policy that samples is behind.
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


def policies(game: Game, seed: int) -> list[Floats]:
    """Logits of the first policy and after each of :data:`UPDATES` updates.

    An update goes along the default estimator's for a batch of 128 episodes, as far as :data:`UPDATE_KL`.
    """
    rng = np.random.default_rng((seed, 1))
    found = [rng.normal(0.0, 0.5, game.shape)]
    for _ in range(UPDATES):
        logits = found[-1]
        (episodes,) = _batches(game, logits, 16, 8, 1, rng)
        coefficient = DEFAULT.advantages({"rough": episodes.batch}).advantages
        step = (coefficient @ scores(game, logits, episodes)).reshape(game.shape)
        step *= 1e-3 / np.linalg.norm(step)
        for _ in range(8):  # the KL is nearly a square of the step's length
            step *= np.sqrt(UPDATE_KL / game.kl(logits, logits + step))
        found.append(logits + step)
    return found


def scores(game: Game, logits: Floats, episodes: Episodes) -> Floats:
    """``grad log pi`` of each token in the logits, ``[N, C * A]``."""
    context = game.context[episodes.state]
    found = np.zeros((len(context), *game.shape))
    each = np.arange(len(context))
    found[each, context] = -softmax(logits)[context]
    found[each, context, episodes.token] += 1.0
    return found.reshape(len(context), -1)


def measure(piece: Piece, ways: Sequence[Way], corrections: Sequence[Correction] = CORRECTIONS) -> list[dict[str, Any]]:
    """Every way without a correction and with token_tis, and every correction of the default way.

    Returns:
        A row each: the piece, ``way``, ``correction``, ``kl`` (behaviour to target, nats a token), and what
        :meth:`.Moments.results` says.
    """
    game = Game.of(GAMES[piece.game])
    path = policies(game, piece.seed)
    target, behaviour = path[-1], path[-1 - piece.staleness]
    chosen = [(way, NO_CORRECTION) for way in ways]
    if piece.staleness:
        chosen += [(way, Correction("token_tis", "token_tis")) for way in ways if way != DEFAULT]
        chosen += [(DEFAULT, correction) for correction in corrections if correction != NO_CORRECTION]
    critics = _critics(game, target, piece.seed)
    greedy, greedy_tokens = game.greedy_returns(behaviour)
    moments = Moments(game.gradient(target).ravel(), len(chosen), piece.batches)
    rng = np.random.default_rng((piece.seed, 2, piece.staleness, piece.groups, piece.size))
    log_target, log_behaviour = log_softmax(target), log_softmax(behaviour)
    by_name = {way.name: way for way, _ in chosen}
    for episodes in _batches(game, behaviour, piece.groups, piece.size, piece.batches, rng):
        context = game.context[episodes.state]
        proximal, sampled = log_target[context, episodes.token], log_behaviour[context, episodes.token]
        norms = {"rough": score_norms(sampled), "exact": _exact_norms(behaviour, context, episodes.token)}
        batches = {
            kind: replace(
                episodes.batch,
                values=values[episodes.state],
                bootstrap=np.where(episodes.cut_at >= 0, values[episodes.cut_at], 0.0),
                greedy=greedy[episodes.task],
                score_norms=norms[kind],
            )
            for kind, values in critics.items()
        }
        advantages = {name: way.advantages(batches) for name, way in by_name.items()}
        each = [
            coefficients(way, correction, advantages[way.name], episodes.batch, proximal, sampled)
            for way, correction in chosen
        ]
        plain = episodes.batch.num_tokens
        compared = plain + int(greedy_tokens[episodes.task[:: piece.size]].sum())
        moments.add(
            np.array(each) @ scores(game, target, episodes),
            [compared if way.estimator == "remax" else plain for way, _ in chosen],
        )
    about = vars(piece) | {"kl": game.kl(behaviour, target), "return": game.expected_return(target)}
    return [
        about | {"way": way.name, "correction": correction.name} | result
        for (way, correction), result in zip(chosen, moments.results(), strict=True)
    ]


def _critics(game: Game, logits: Floats, seed: int) -> dict[str, Floats]:
    """Values of all states: exact, and with an error that stays the same, as a critic's does."""
    exact = game.values(logits, budget=False)
    rng = np.random.default_rng((seed, 3))
    tasks = np.arange(4000) % len(game.starts)
    batch = play(game, logits, tasks, np.arange(4000), rng).batch
    returns = np.bincount(batch.episode_of_turn, batch.turn_rewards)
    return {"rough": exact + CRITIC_ERROR * returns.std() * rng.normal(size=exact.shape), "exact": exact}


def _exact_norms(logits: Floats, context: Any, token: Any) -> Floats:
    chances = softmax(logits)
    squares = np.square(chances).sum(1)
    return np.asarray(1.0 - 2.0 * chances[context, token] + squares[context], np.float64)


def _batches(
    game: Game, logits: Floats, groups: int, size: int, batches: int, rng: np.random.Generator
) -> Iterator[Episodes]:
    """Batches of tasks drawn at random; many are played at once, and then cut apart."""
    for start in range(0, batches, CHUNK):
        count = min(CHUNK, batches - start)
        tasks = np.repeat(rng.integers(len(game.starts), size=count * groups), size)
        all_of_them = play(game, logits, tasks, np.tile(np.repeat(np.arange(groups), size), count), rng)
        for number in range(count):
            yield _part(all_of_them, number * groups * size, (number + 1) * groups * size)


def _part(episodes: Episodes, start: int, stop: int) -> Episodes:
    whole = episodes.batch
    tokens = slice(whole.token_offsets[start], whole.token_offsets[stop])
    turns = slice(whole.turn_offsets[start], whole.turn_offsets[stop])
    assert whole.anchor is not None
    assert whole.terms is not None
    batch = ActionBatch(
        token_offsets=whole.token_offsets[start : stop + 1] - tokens.start,
        turn_offsets=whole.turn_offsets[start : stop + 1] - turns.start,
        turn_index=whole.turn_index[tokens],
        turn_rewards=whole.turn_rewards[turns],
        terminated=whole.terminated[start:stop],
        truncated=whole.truncated[start:stop],
        group=whole.group[start:stop],
        anchor=whole.anchor[turns],
        terms=whole.terms[start:stop],
    )
    return Episodes(
        episodes.task[start:stop], episodes.state[tokens], episodes.token[tokens], batch, episodes.cut_at[start:stop]
    )
