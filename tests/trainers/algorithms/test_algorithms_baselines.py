"""The optimal token baseline against a loop written from its formula; what it needs, and what it does not read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import algorithm_oracles as oracle
import numpy as np
import pytest
from algorithm_oracles import Episode, batches, forall, trajectory
from estimating import estimate
from hypothesis import strategies as st

from trainers.algorithms.baselines import ENERGY_FLOOR, score_norms
from trainers.algorithms.batch import ActionBatch


def make(episodes: list[Episode], seed: int) -> ActionBatch:
    batch = ActionBatch.from_trajectories([trajectory(e) for e in episodes])
    norms = np.random.default_rng(seed).choice([0.0, 0.3, 1.0, 2.0], batch.num_tokens)
    return replace(batch, score_norms=norms)


def places(batch: ActionBatch, episode: int, by_turn: bool) -> dict[tuple[int, int], tuple[float, int]]:
    """Return for each place of an episode the energy there, and the turn."""
    assert batch.score_norms is not None
    energies: dict[tuple[int, int], tuple[float, int]] = {}
    energy, count = ENERGY_FLOOR, {}
    for token in range(*batch.token_offsets[episode : episode + 2]):
        energy += batch.score_norms[token]
        turn = int(batch.turn_index[token])
        unit = turn if by_turn else 0
        count[unit] = count.get(unit, -1) + 1
        energies[unit, count[unit]] = float(energy), turn
    return energies


@forall(batches(), st.integers(0, 3), st.booleans(), st.sampled_from([0.5, 1.0]), st.sampled_from(["count", "drop"]))
def test_token_baseline_weighs_siblings_by_energy(
    episodes: list[Episode], seed: int, by_turn: bool, gamma: float, truncated: Any
) -> None:
    batch = make(episodes, seed)
    options: dict[str, Any] = {"baseline": "optimal_token", "truncated": truncated}
    result = estimate("turn_grpo", batch, gamma=gamma, **options) if by_turn else estimate("rloo", batch, **options)

    def credited(e: int, turn: int) -> float:
        rewards = batch.turn_rewards[slice(*batch.turn_offsets[e : e + 2])]
        return float(rewards.sum()) if not by_turn else sum(r * gamma**k for k, r in enumerate(rewards[turn:]))

    counted = [e for e in range(len(episodes)) if places(batch, e, by_turn)]
    if truncated == "drop":
        counted = [e for e in counted if batch.terminated[e]]
    expected = np.zeros(batch.num_tokens)
    for e in counted:
        owners = [s for s in counted if s != e and batch.group[s] == batch.group[e]]
        siblings = [(owner, places(batch, owner, by_turn)) for owner in owners]
        for token, ((unit, number), (_, turn)) in enumerate(places(batch, e, by_turn).items(), batch.token_offsets[e]):
            at = [(o, s, number) for o, s in siblings if (unit, number) in s]
            if not at:  # their last tokens of the turn, then
                at = [(o, s, max(n for u, n in s if u == unit)) for o, s in siblings if (unit, 0) in s]
            pairs = [(s[unit, n][0], credited(o, turn)) for o, s, n in at]
            weight = sum(w for w, _ in pairs)
            baseline = sum(w * x for w, x in pairs) / weight if pairs else 0.0
            expected[token] = credited(e, turn) - baseline
    np.testing.assert_allclose(result.advantages, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(result.policy_mask, np.isin(batch.episode_of_token, counted))


def test_siblings_that_are_equally_uncertain_have_plain_mean() -> None:
    episodes = [
        Episode((oracle.Turn(1, 3, r),), True, False, "g", ((0.0,) * 3,), ((0.0,) * 3,), 0.0) for r in (1, 2, 6)
    ]
    batch = replace(make(episodes, 0), score_norms=np.ones(9))
    np.testing.assert_allclose(
        estimate("rloo", batch, baseline="optimal_token").advantages,
        estimate("rloo", batch, baseline="group").advantages,
        atol=1e-9,
    )


@forall(st.lists(st.floats(-8, 8), min_size=2, max_size=12))
def test_score_norm_is_within_factor_two(logits: list[float]) -> None:
    logprobs = np.array(logits) - np.logaddexp.reduce(logits)
    exact = np.square(np.eye(len(logits)) - np.exp(logprobs)).sum(1)
    estimate = score_norms(logprobs)
    assert np.all(estimate <= exact * (1 + 1e-9) + 1e-15)
    assert np.all(exact <= 2 * estimate * (1 + 1e-9) + 1e-12)


def test_without_norms_error_says_what_is_missing() -> None:
    batch = make([], 0)
    with pytest.raises(ValueError, match="score_norms"):
        estimate("rloo", replace(batch, score_norms=None), baseline="optimal_token")
