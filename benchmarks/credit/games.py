"""The games of :mod:`benchmarks.estimators` and one more as tasks: their values are sums over states, the truth exact.

``rooms`` has the longest episodes, in which states recur: nine rooms in a square, a key in one corner, a door in the
opposite one. Only the end pays: the door opens for those who have the key, and ends the episode for the others. The
policy sees the room and whether it has the key, not how many of the 12 turns are left.

The policies are those of the other tasks in the form that a table of logits has. ``imitated`` is the best policy, found
along the exact gradient, with half of its probability spread over all tokens: so a policy plays that has learned from
an expert who is careless half of the time. ``trained`` is that after updates by ``turn_grpo`` like those of
:mod:`benchmarks.estimators`. The critic is the mean return that followed each observation in other episodes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.estimators import games as small
from benchmarks.estimators.enumerated import improved
from benchmarks.estimators.games import Game, Rules, State, Step, log_softmax, play, softmax
from trainers.trajectory import SOLVED, Status, Trajectory

from . import truth
from .policies import CRITIC, POLICIES, Setting
from .truth import FORKS, GROUPS, SIBLINGS, SIZE, Floats, Measured

#: The share of its probability that ``imitated`` spreads over all tokens.
CARELESS = 0.5
#: The rooms of `rooms` with the key and the door, the turns of an episode, and the names of a reward's parts.
KEY, DOOR, TURNS = 2, 6, 12
TERMS = ("gain", "cost")


def _rooms(state: State, token: int) -> Step:
    """Apply a token to a state: task, turn, room, whether it has the key. Tokens: up, down, left, right."""
    task, turn, room, key = state
    row, column = divmod(room, 3)
    row = min(max(row + (-1, 1, 0, 0)[token], 0), 2)
    column = min(max(column + (0, 0, -1, 1)[token], 0), 2)
    room = 3 * row + column
    if room == DOOR or turn == TURNS - 1:
        return Step(None, (float(key and room == DOOR), 0.0))
    return Step((task, turn + 1, room, int(key or room == KEY)), (0.0, 0.0))


GAMES = small.GAMES | {
    "rooms": Rules(tuple((t, 0, room, 0) for t, room in enumerate((0, 1, 4, 5, 7, 8))), 4, _rooms, lambda s: s[2:])
}


def measure(setting: Setting, turns: int, path: Path) -> None:
    """Play batches until so many turns are there, and write them with their exact advantages: seconds."""
    game, rng = Game.of(GAMES[setting.task]), np.random.default_rng(POLICIES[setting.policy])
    logits = improved(game, imitated(game), POLICIES[setting.policy], rng)
    critic = _critic(game, logits, rng)
    tables, count = list[pa.Table](), 0
    while count < turns:
        measured = batch_of(game, logits, critic, rng)
        tables.append(truth.table_of(measured, len(tables)))
        count += len(measured.fork_rewards)
    truth.write(pa.concat_tables(tables), path, compression_level=19)


def imitated(game: Game) -> Floats:
    """Return logits ``[C, A]`` of the best policy, made careless."""
    logits = np.zeros(game.shape)
    for _ in range(300):  # natural gradient: each observation counts alike, however rare
        visits = np.bincount(game.context, game.visits(logits), len(logits))
        logits = logits + 5.0 * game.gradient(logits) / (visits[:, None] * softmax(logits) + 1e-9)
        logits = np.maximum(logits - logits.max(1, keepdims=True), -20.0)
    return np.log((1.0 - CARELESS) * softmax(logits) + CARELESS / logits.shape[1])


def _critic(game: Game, logits: Floats, rng: np.random.Generator) -> Floats:
    """Return the mean return after each observation, ``[C]``, over as many episodes as a critic of the others sees."""
    tasks = rng.integers(len(game.starts), size=CRITIC * SIZE)
    played = play(game, logits, tasks, np.arange(len(tasks)), rng)
    context = game.context[played.state]
    count = np.bincount(context, minlength=len(logits))
    return np.asarray(np.bincount(context, returns_to_go(played), len(logits)) / np.maximum(count, 1), np.float64)


def returns_to_go(played: small.Episodes) -> Floats:
    """Return what each token's turn and those after it earned, ``[N]``."""
    batch = played.batch
    earned = np.concatenate([[0.0], np.cumsum(batch.turn_rewards)])
    return np.asarray(earned[batch.turn_offsets[1:]][batch.episode_of_token] - earned[batch.turn_of_token], np.float64)


def batch_of(game: Game, logits: Floats, critic: Floats, rng: np.random.Generator) -> Measured:
    """Play a batch, and forks at each of its turns."""
    tasks = np.repeat(rng.integers(len(game.starts), size=GROUPS), SIBLINGS)
    roots = play(game, logits, tasks, np.repeat(np.arange(GROUPS), SIBLINGS), rng)
    starts, episode = roots.state[roots.batch.turn_starts], np.repeat(roots.batch.episode_of_turn, FORKS)
    forks = play(game, logits, tasks[episode], roots.batch.group[episode], rng, np.repeat(starts, FORKS)).batch
    rewards = [rewards.tolist() for rewards in np.split(forks.turn_rewards, forks.turn_offsets[1:-1])]
    return Measured(
        episodes=trajectories(game, logits, roots),
        fork_rewards=[rewards[first : first + FORKS] for first in range(0, len(rewards), FORKS)],
        fork_tokens=np.diff(forks.token_offsets).reshape(-1, FORKS),
        values=critic[game.context[roots.state]],
        bootstrap=np.where(roots.cut_at >= 0, critic[game.context[roots.cut_at]], 0.0),
        exact=truth.differences(roots.batch, game.values(logits)[starts]),
    )


def trajectories(game: Game, logits: Floats, played: small.Episodes) -> list[Trajectory]:
    """Return the episodes as a trainer has them: a token for the observation before each turn, and its tokens.

    An episode is solved where it came to an end of its own and gained something.
    """
    batch, trajectories = played.batch, list[Trajectory]()
    observation = game.shape[1] + game.context  # the token of each state's observation
    logprobs = log_softmax(logits)[game.context[played.state], played.token]
    terms = game.terms[played.state, played.token][game.ends_turn[played.state, played.token]]
    for episode in range(batch.num_episodes):
        tokens, turns = (slice(*ends[episode : episode + 2]) for ends in (batch.token_offsets, batch.turn_offsets))
        length, first = tokens.stop - tokens.start, batch.turn_starts[turns] - tokens.start
        last = [observation[played.cut_at[episode]]] * int(batch.truncated[episode])
        insert_at = [*first, *[length] * len(last)]
        observations = [*observation[played.state[tokens][first]], *last]
        mask = np.insert(np.ones(length, np.bool_), insert_at, False)
        solved = batch.terminated[episode] and terms[turns, 0].sum() > 0
        trajectories.append(
            Trajectory(
                token_ids=np.insert(played.token[tokens], insert_at, observations).astype(np.int32),
                action_mask=mask,
                logprobs=np.insert(logprobs[tokens], insert_at, 0.0).astype(np.float32),
                weight_version=np.where(mask, 0, -1).astype(np.int32),
                turn_id=np.insert(batch.turn_index[tokens], insert_at, -1).astype(np.int32),
                turn_rewards=batch.turn_rewards[turns],
                turn_terms=tuple(dict(zip(TERMS, row, strict=True)) for row in terms[turns].tolist()),
                terminated=bool(batch.terminated[episode]),
                truncated=bool(batch.truncated[episode]),
                status=Status.TRUNCATED_TURNS if last else Status.COMPLETED,
                stop=SOLVED if solved else None,
                episode_id=str(episode),
                group_id=str(batch.group[episode]),
            )
        )
    return trajectories
