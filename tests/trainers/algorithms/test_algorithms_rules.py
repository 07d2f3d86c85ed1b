"""The three rules of credit over turns, as worked examples; docs/algorithms.md has the numbers that are asserted here.

``pytest -s`` prints the tables.
"""

from __future__ import annotations

import numpy as np
import pytest
from algorithm_oracles import Episode, Turn, trajectory
from estimating import estimate

from trainers.algorithms.batch import ActionBatch

# --- A. observation tokens are not steps


def naive_gae_over_all_tokens(rewards: list[float], values: list[float], lam: float) -> list[float]:
    """Run the recursion over the whole response, observations included (gamma = 1), as some trainers do."""
    advantages, last = [0.0] * len(rewards), 0.0
    for i in reversed(range(len(rewards))):
        following = values[i + 1] if i + 1 < len(rewards) else 0.0
        last = rewards[i] + following - values[i] + lam * last
        advantages[i] = last
    return advantages


def test_a_observation_tokens_are_not_steps() -> None:
    """Two turns of three tokens, four observation tokens between them, V = .5, R = 1 at the end, lambda = .95."""
    turns = (Turn(5, 3, 0.0), Turn(4, 3, 1.0))
    rows = ((0.5,) * 3, (0.5,) * 3)
    episode = Episode(turns, True, False, "g", rows, ((0.0,) * 3,) * 2, 0.0)
    batch = ActionBatch.from_trajectories([trajectory(episode)], values=np.full(6, 0.5))
    right = estimate("gae", batch, lam=0.95).advantages[:3]

    rewards = [0.0] * 9 + [1.0]
    masked_values = naive_gae_over_all_tokens(rewards, [0.5] * 3 + [0.0] * 4 + [0.5] * 3, 0.95)[:3]
    untrained_values = naive_gae_over_all_tokens(rewards, [0.5] * 3 + [3.0] * 4 + [0.5] * 3, 0.95)[:3]
    print("\nA. first turn:", *(np.round(x, 3) for x in (right, masked_values, untrained_values)), sep="\n   ")
    np.testing.assert_allclose(right, [0.387, 0.407, 0.429], atol=5e-4)
    np.testing.assert_allclose(masked_values, [0.231, 0.244, 0.256], atol=5e-4)
    np.testing.assert_allclose(untrained_values, [0.734, 0.772, 0.813], atol=5e-4)
    # At gamma = lambda = 1 all agree, which is why it goes unnoticed.
    np.testing.assert_allclose(naive_gae_over_all_tokens(rewards, [0.5] * 3 + [3.0] * 4 + [0.5] * 3, 1.0)[:3], 0.5)
    np.testing.assert_allclose(estimate("gae", batch).advantages, 0.5)


# --- B. never sum per-turn-normalised rewards

GROUPS, SIZE, TURNS = 40_000, 8, 3


class TakeAnotherTurn:
    """Three turns; before the second and the third the policy decides, with probability 1/2, to take another.

    Each turn that is taken pays 1 on average, with unit variance. In the logit of the decision the expected return
    ``1 + p + p^2`` has the gradient ``(1 + 2 p) p (1 - p) = 1/2``: taking turns pays.
    """

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        another = rng.random((GROUPS * SIZE, TURNS - 1)) < 0.5
        self.reached = np.column_stack([np.ones(len(another), np.bool_), np.logical_and.accumulate(another, axis=1)])
        self.rewards = rng.normal(1.0, 1.0, self.reached.shape)
        # The score of the decision that turn t ends with: d log p / d logit.
        self.scores = np.where(self.reached, np.column_stack([another - 0.5, np.zeros(len(another))]), 0.0)
        offsets = np.concatenate([[0], np.cumsum(self.reached.sum(1))])
        # One token a turn, so that tokens and turns have the same offsets.
        self.batch = ActionBatch(
            token_offsets=offsets,
            turn_offsets=offsets,
            turn_index=np.nonzero(self.reached)[1],
            turn_rewards=self.rewards[self.reached],
            terminated=np.ones(len(another), np.bool_),
            truncated=np.zeros(len(another), np.bool_),
            group=np.repeat(np.arange(GROUPS), SIZE),
        )

    def gradient(self, name: str, advantages: np.ndarray) -> tuple[float, float]:
        """Return mean and deviation over groups of the episodes' mean of sum_t A_t score_t, of ``[N]`` advantages."""
        terms = np.zeros(self.reached.shape)
        terms[self.reached] = advantages * self.scores[self.reached]
        by_group = terms.sum(1).reshape(GROUPS, SIZE).mean(1)
        mean, sd = float(by_group.mean()), float(by_group.std())
        print(f"B. {name:40s} {mean:7.4f} (sd {sd:.3f})")
        return mean, sd

    def summed_turn_normalised(self, leave_one_out: bool) -> np.ndarray:
        """The wrong one: every reward minus its turn's mean, summed over the turns that were reached."""
        reached = self.reached.reshape(GROUPS, SIZE, TURNS)
        rewards = np.where(reached, self.rewards.reshape(reached.shape), 0.0)
        total, count = rewards.sum(1, keepdims=True), reached.sum(1, keepdims=True)
        if leave_one_out:
            total, count = total - rewards, count - 1
        centred = np.where(reached, rewards - total / np.maximum(count, 1), 0.0)
        by_episode = np.broadcast_to(centred.sum(2, keepdims=True), reached.shape)
        return by_episode.reshape(self.reached.shape)[self.reached]


@pytest.fixture(scope="module")
def toy() -> TakeAnotherTurn:
    return TakeAnotherTurn()


def test_b_summed_turn_normalised_rewards_lose_gradient(toy: TakeAnotherTurn) -> None:
    mean, _ = toy.gradient("sum of r_k - mean_k", toy.summed_turn_normalised(leave_one_out=False))
    loo_mean, _ = toy.gradient("the same, leave-one-out", toy.summed_turn_normalised(leave_one_out=True))
    # The mean over groups has the standard error sd / sqrt(GROUPS), at most .003.
    assert mean == pytest.approx(0.0, abs=0.006)
    # What is left comes from those who are alone at a turn: (3/4)^7 / 4 at the third, (1/2)^7 / 4 at the second.
    assert loo_mean == pytest.approx(0.75**7 / 4 + 0.5**7 / 4, abs=0.006)


def test_b_leave_one_out_baseline_keeps_gradient(toy: TakeAnotherTurn) -> None:
    to_go = np.where(toy.reached, toy.rewards, 0.0)[:, ::-1].cumsum(1)[:, ::-1][toy.reached]
    rows = {
        "turn_grpo": estimate("turn_grpo", toy.batch).advantages,
        "turn_grpo, zero_pad": estimate("turn_grpo", toy.batch, zero_pad=True).advantages,
        "turn_grpo, mixed": estimate("turn_grpo", toy.batch, baseline="mixed").advantages,
        "turn_grpo, outcome_mix=.5": estimate("turn_grpo", toy.batch, outcome_mix=0.5).advantages,
        "rloo": estimate("rloo", toy.batch).advantages,
        "rloo, mixed": estimate("rloo", toy.batch, baseline="mixed").advantages,
        "reward-to-go, no baseline": to_go,
    }
    sds = {}
    for name, advantages in rows.items():
        mean, sds[name] = toy.gradient(name, advantages)
        assert mean == pytest.approx(0.5, abs=0.01), name
    assert sds["turn_grpo, mixed"] < sds["turn_grpo"] < sds["turn_grpo, zero_pad"] < sds["reward-to-go, no baseline"]
    assert sds["turn_grpo"] < sds["rloo"]


# --- C. terminated is not truncated


def episodes(*ends: tuple[bool, bool]) -> ActionBatch:
    """Two turns of one token each, the second rewarded with 1, V = .5 throughout, .8 after the end."""
    turns, rows = (Turn(1, 1, 0.0), Turn(1, 1, 1.0)), ((0.5,), (0.5,))
    variants = [Episode(turns, terminated, truncated, "g", rows, rows, 0.8) for terminated, truncated in ends]
    return ActionBatch.from_trajectories(
        [trajectory(e) for e in variants], values=np.full(2 * len(ends), 0.5), bootstrap=np.full(len(ends), 0.8)
    )


@pytest.mark.parametrize("name", ["gae", "turn_gae"])
def test_c_only_truncated_episode_goes_on(name: str) -> None:
    ended, cut, both = 1.0 - 0.5, 1.0 + 0.8 - 0.5, 1.0 - 0.5
    result = estimate(name, episodes((True, False), (False, True), (True, True)))
    print(f"\nC. {name}: terminated {result.advantages[0]}, truncated {result.advantages[2]}")
    np.testing.assert_allclose(result.advantages, np.repeat([ended, cut, both], 2))
    assert result.returns is not None
    np.testing.assert_allclose(result.returns, np.repeat([1.0, 1.8, 1.0], 2))


@pytest.mark.parametrize("name", ["grpo", "rloo", "turn_grpo"])
def test_c_truncated_episodes_count_or_drop_without_critic(name: str) -> None:
    """Returns 1 (terminated), 0 (terminated) and 5 (truncated)."""
    zeros = ((0.0,),)
    ends = ((1.0, True), (0.0, True), (5.0, False))
    variants = [Episode((Turn(1, 1, r),), done, not done, "g", zeros, zeros, 0.0) for r, done in ends]
    batch = ActionBatch.from_trajectories([trajectory(e) for e in variants])
    counted = estimate(name, batch, truncated="count")
    dropped = estimate(name, batch, truncated="drop")
    without = estimate(name, ActionBatch.from_trajectories([trajectory(e) for e in variants[:2]]))
    assert counted.policy_mask.tolist() == [True, True, True]
    assert dropped.policy_mask.tolist() == [True, True, False]
    assert counted.advantages[0] < 0 < dropped.advantages[0]
    np.testing.assert_array_equal(dropped.advantages, [*without.advantages, 0.0])
