"""The gradient through a notebook's writing: over all episodes of a small life, estimators against the true one.

The life has three sessions and a notebook of one line. A policy with a table of logits chooses which line to write, and
whether to answer with it. Every episode is played in the environment.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from estimating import estimate
from trajectories import in_contexts, trajectory_of

import textenvs
from textenvs.envs.sessions.expert import answer, read, updated
from trainers.algorithms.batch import ActionBatch
from trainers.trajectory import Trajectory

TURNS, CHOICES = 4, 8
LOGITS = np.random.default_rng(3).normal(0.0, 0.4, (TURNS, CHOICES))
NOTEBOOKS = [0, 2]  # turns


@dataclass(frozen=True)
class Episode:
    """The choice of each turn, with the number of choices; the rewards, and the session of each turn."""

    choices: tuple[tuple[int, int], ...] = ()
    rewards: tuple[float, ...] = ()
    sessions: tuple[int, ...] = ()

    def probability(self, logits: np.ndarray) -> float:
        rows = [logits[turn, :count] for turn, (_, count) in enumerate(self.choices)]
        return float(np.prod([np.exp(row[c]) / np.exp(row).sum() for row, (c, _) in zip(rows, self.choices)]))  # noqa: B905

    def scores(self) -> np.ndarray:
        """Return d log p / d logits of each turn: ``[turns, turns, choices]``."""
        scores = np.zeros((TURNS, TURNS, CHOICES))
        for turn, (choice, count) in enumerate(self.choices):
            row = np.exp(LOGITS[turn, :count])
            scores[turn, turn, :count] = (np.arange(count) == choice) - row / row.sum()
        return scores

    def trajectory(self, group: str) -> Trajectory:
        """Lay the episode out as tokens: an observed and a sampled one a turn, a context a session."""
        turns, starts = in_contexts([(session, 1, 1) for session in self.sessions])
        return trajectory_of(turns, self.rewards, group_id=group, segment_starts=np.array(starts, np.int32))


def replies(env: Any) -> list[str]:
    state = env.state
    if not state.writes:
        return [answer(env.life, state.notebook, env.session), "unknown"]
    lines = updated(read(env.life, state.notebook), env.session.statements, env.session.day)
    return [line.text for line in lines][:CHOICES]


def episodes_after(env: Any, played: Episode) -> list[Episode]:
    if env.state.done:
        return [played]
    episodes, options = [], replies(env)
    for choice, reply in enumerate(options):
        fork = env.fork()
        _, reward, *_ = fork.step(reply)
        longer = Episode(
            (*played.choices, (choice, len(options))),
            (*played.rewards, reward),
            (*played.sessions, env.state.place),
        )
        episodes += episodes_after(fork, longer)
    return episodes


@pytest.fixture(scope="module")
def episodes() -> list[Episode]:
    env = textenvs.make("textenv/sessions", sessions=3, people=2, things=2, capacity=12)
    env.reset(options={"task_index": 0})
    return episodes_after(env, Episode())


def expected_return(episodes: list[Episode], logits: np.ndarray) -> float:
    return sum(episode.probability(logits) * sum(episode.rewards) for episode in episodes)


def true_gradient(episodes: list[Episode]) -> np.ndarray:
    """Return the derivative of the expected return by central differences: ``[turns, choices]``."""
    gradient, step = np.zeros_like(LOGITS), 1e-5
    for place in np.ndindex(LOGITS.shape):
        moved = [LOGITS.copy(), LOGITS.copy()]
        moved[0][place] += step
        moved[1][place] -= step
        up, down = (expected_return(episodes, logits) for logits in moved)
        gradient[place] = (up - down) / (2.0 * step)
    return gradient


def expected_update(episodes: list[Episode], name: str, **options: Any) -> np.ndarray:
    """Return the mean update over all groups of two, each with its probability."""
    pairs = list(itertools.product(episodes, repeat=2))
    chosen = [episode for pair in pairs for episode in pair]
    trajectories = [episode.trajectory(str(number // 2)) for number, episode in enumerate(chosen)]
    advantages = estimate(name, ActionBatch.from_trajectories(trajectories), **options).advantages
    weights = np.repeat([one.probability(LOGITS) * other.probability(LOGITS) / 2.0 for one, other in pairs], 2)
    scores = {episode: episode.scores() for episode in episodes}
    parts = zip(weights, advantages.reshape(-1, TURNS), chosen, strict=True)
    return np.sum([weight * np.tensordot(own, scores[episode], 1) for weight, own, episode in parts], axis=0)


def test_all_episodes_are_enumerated(episodes: list[Episode]) -> None:
    assert sum(episode.probability(LOGITS) for episode in episodes) == pytest.approx(1.0)
    assert {episode.sessions for episode in episodes} == {(0, 1, 1, 2)}
    assert all(episode.rewards[turn] == 0.0 for episode in episodes for turn in NOTEBOOKS)
    assert np.abs(true_gradient(episodes)[NOTEBOOKS]).max(1).min() > 0.01  # what is written matters


@pytest.mark.parametrize("name", ["turn_grpo", "rloo"])
def test_notebook_tokens_get_the_true_gradient(episodes: list[Episode], name: str) -> None:
    assert expected_update(episodes, name) == pytest.approx(true_gradient(episodes), abs=1e-9)


def test_without_later_sessions_notebooks_learn_nothing(episodes: list[Episode]) -> None:
    update = expected_update(episodes, "turn_grpo", gamma=0.0)
    assert np.abs(update[NOTEBOOKS]).max() == pytest.approx(0.0, abs=1e-12)
    assert np.abs(update).max() > 0.01
