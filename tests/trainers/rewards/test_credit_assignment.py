"""Rewards may be moved between the turns of an episode: sums stay, terms add up, and the effect is the stated one."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from estimating import estimate
from hypothesis import given
from hypothesis import strategies as st
from trajectories import trajectory_of, turns_of

from trainers.algorithms.batch import ActionBatch
from trainers.rewards.credit_assignment import (
    MOVED,
    RedistributionError,
    discounted,
    last,
    moved_to,
    redistribution,
    spread,
)
from trainers.trajectory import Trajectory

DOC = Path(__file__).parents[3] / "docs" / "credit.md"
SUM_KEEPING = ("as_earned", "last", "spread", "discounted")
rewards_ = st.lists(st.floats(-100, 100), max_size=8)


def episode(rewards: list[float], group: str = "g", **fields: object) -> Trajectory:
    """Return an episode of one token per turn, and one observation before each."""
    terms = fields.pop("turn_terms", tuple({"earned": reward} for reward in rewards))
    turns = turns_of(*[(1, 1)] * len(rewards))
    return trajectory_of(turns, rewards, turn_terms=terms, group_id=group, episode_id="e7", **fields)


@given(rewards_, st.sampled_from(SUM_KEEPING), st.floats(0, 1))
def test_sum_is_kept_and_terms_add_up(rewards, name, decay):
    before = episode(rewards)
    after = redistribution(name, decay)(before)
    assert after.turn_rewards.shape == before.turn_rewards.shape
    assert after.total_reward == pytest.approx(before.total_reward, abs=1e-9)
    sums = [sum(terms.values()) for terms in after.turn_terms]
    assert sums == pytest.approx(after.turn_rewards.tolist(), abs=1e-9)
    assert before.turn_rewards.tolist() == rewards, "the episode that is reported is as it was"
    assert [terms["earned"] for terms in after.turn_terms] == rewards


@given(rewards_, st.floats(0, 1))
def test_discounted_follows_its_formula(rewards, decay):
    expected = [0.0] * len(rewards)
    for turn, reward in enumerate(rewards):
        shares = [decay ** (turn - before) for before in range(turn + 1)]
        for before, share in enumerate(shares):
            expected[before] += reward * share / sum(shares)
    assert discounted(np.array(rewards), decay).tolist() == pytest.approx(expected, abs=1e-9)


def test_the_ends_of_the_decay():
    rewards = np.array([1.0, -2.0, 6.0])
    assert discounted(rewards, 0.0).tolist() == rewards.tolist()
    assert discounted(rewards, 1.0).tolist() == pytest.approx([1.0 - 1.0 + 2.0, -1.0 + 2.0, 2.0])
    assert last(rewards).tolist() == [0.0, 0.0, 5.0]
    assert spread(rewards).tolist() == pytest.approx([5 / 3] * 3)
    with pytest.raises(ValueError, match="decay should be less than or equal to 1, not 1.5"):
        discounted(rewards, 1.5)


def test_moved_twice_is_one_term():
    once = moved_to(episode([1.0, 2.0]), [2.0, 1.0])
    twice = moved_to(once, [0.0, 3.0])
    assert [terms[MOVED] for terms in once.turn_terms] == [1.0, -1.0]
    assert [terms[MOVED] for terms in twice.turn_terms] == [-1.0, 1.0]


# ------------------ the gradient


def gradients(name: str, decay: float, matters: list[list[float]]) -> np.ndarray:
    """Compute the exact expected gradient in three coins' logits, by reward-to-go.

    The policy tosses a fair coin each turn, and turn ``t`` earns ``sum_s matters[s][t] * coin_s``.
    """
    total = np.zeros(3)
    move = redistribution(name, decay)
    for coins in itertools.product([0, 1], repeat=3):
        earned = [sum(matters[s][t] * coins[s] for s in range(3)) for t in range(3)]
        to_go = np.cumsum(move(episode(earned)).turn_rewards[::-1])[::-1]
        total += (np.array(coins) - 0.5) * to_go / 8
    return total


def share_seen(name: str, decay: float, turn: int, reward_turn: int) -> float:
    """Return the share of a reward at ``reward_turn`` in the reward-to-go of ``turn``, of three turns (docs table)."""
    if name == "spread":
        return (3 - turn) / 3
    if name == "discounted":
        return sum(decay ** (reward_turn - u) for u in range(turn, reward_turn + 1)) / sum(
            decay**k for k in range(reward_turn + 1)
        )
    return 1.0


@pytest.mark.parametrize("name", SUM_KEEPING)
@pytest.mark.parametrize(("turn", "reward_turn"), [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)])
def test_share_of_effect_in_the_gradient(name, turn, reward_turn):
    """A coin's effect on a reward counts in full as earned and at the last turn, and by the share it sees elsewhere."""
    matters = [[0.0] * 3 for _ in range(3)]
    matters[turn][reward_turn] = 1.0
    expected = np.zeros(3)
    expected[turn] = 0.25 * share_seen(name, 0.6, turn, reward_turn)
    assert gradients(name, 0.6, matters) == pytest.approx(expected, abs=1e-12)


# ------------------ the learned policy

#: The rewards of each choice at turn 1; turn 0 is forced. The best choice earns 1.
STOP_OR_GO_ON = ([0.0, 1.0], [0.0] * 8 + [0.8])
NOW_OR_LATER = ([0.0, 1.0, 0.0], [0.0, 0.0, 0.8])


def learned(name: str, choices: tuple[list[float], list[float]]) -> float:
    """Return the expected reward of the policy that gradient ascent by the estimator converges to.

    Every batch of two episodes is enumerated with its probability, and the choice is one logit.
    """
    logit = 0.0
    for _ in range(200):
        second = 1.0 / (1.0 + np.exp(-logit))
        gradient = 0.0
        for chosen in itertools.product((0, 1), repeat=2):
            moved = [redistribution(name)(episode(choices[c])) for c in chosen]
            batch = ActionBatch.from_trajectories(moved)
            advantages = estimate("turn_grpo", batch, baseline="group").advantages
            at = batch.turn_offsets[:-1] + 1  # one token a turn
            probability = np.prod([second if c else 1.0 - second for c in chosen])
            gradient += probability * float((np.array(chosen) - second) @ advantages[at])
        logit += 20.0 * gradient
    second = 1.0 / (1.0 + np.exp(-logit))
    return float((1.0 - second) * sum(choices[0]) + second * sum(choices[1]))


@pytest.mark.parametrize(
    ("choices", "misled"),
    [
        (STOP_OR_GO_ON, ("spread", "discounted")),  # each of them is misled here
        pytest.param(NOW_OR_LATER, ("discounted",), marks=pytest.mark.slow),
    ],
)
def test_some_redistributions_change_the_learned_policy(choices, misled):
    for name in SUM_KEEPING:
        assert learned(name, choices) == pytest.approx(0.8 if name in misled else 1.0, abs=0.01), name


def test_the_table_of_what_is_learned():
    rows = re.findall(
        r"^\| (`\w+`(?:, `\w+`)?) \| ([\d.]+) \| ([\d.]+) \| (stop|continue) \| ([\d.]+) \|$", DOC.read_text(), re.M
    )
    assert {name for names, *_ in rows for name in re.findall(r"\w+", names)} == set(SUM_KEEPING)
    for names, *to_go, does, pays in rows:
        for name in re.findall(r"\w+", names):
            sums = [redistribution(name)(episode(rewards)).turn_rewards[1:].sum() for rewards in STOP_OR_GO_ON]
            assert [float(word) for word in to_go] == pytest.approx(sums, abs=0.0051)
            assert (does == "continue") == (sums[1] > sums[0]) == (float(pays) == 0.8)


@pytest.mark.parametrize("estimator", ["grpo", "dr_grpo", "rloo", "opo", "passk", "reinforce_pp_baseline"])
@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=4), min_size=2, max_size=4))
def test_episode_estimators_are_unaffected(estimator, groups):
    """The configuration therefore refuses redistribution with these estimators."""
    episodes = [episode(rewards) for rewards in groups]
    if float(np.ptp([t.total_reward for t in episodes])) < 1e-6:
        return  # rounding decides
    plain = estimate(estimator, ActionBatch.from_trajectories(episodes)).advantages
    for name in SUM_KEEPING:
        moved = [redistribution(name)(t) for t in episodes]
        assert estimate(estimator, ActionBatch.from_trajectories(moved)).advantages == pytest.approx(plain, abs=1e-6)


def test_the_example_of_the_docs():
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", DOC.read_text(), re.MULTILINE)
    assert [row[0] for row in rows[:4]] == list(SUM_KEEPING)
    for name, *cells in rows[:4]:
        moved = [redistribution(name, 0.5)(episode(rewards)) for rewards in ([0.0, 0.25, 1.0], [0.5, 0.0, 0.0])]
        result = estimate("turn_grpo", ActionBatch.from_trajectories(moved), baseline="group").advantages
        documented = [[float(word) for word in cell.replace("−", "-").split()] for cell in cells]
        computed = [moved[0].turn_rewards, moved[1].turn_rewards, result[:3], result[3:]]
        for says, is_ in zip(documented, computed, strict=True):
            assert says == pytest.approx(is_.tolist(), abs=0.0051)


# ------------------ user functions


def test_user_function_redistributes(tmp_path):
    (tmp_path / "beside.py").write_text("FACTOR = 2\n")
    file = tmp_path / "mine.py"
    file.write_text(
        "from beside import FACTOR\n"
        "def first(trajectory):\n"
        "    return [FACTOR * trajectory.total_reward] + [0] * (trajectory.num_turns - 1)\n"
    )
    after = redistribution(f"{file}:first")(episode([1.0, 2.0]))
    assert after.turn_rewards.tolist() == [6.0, 0.0]
    assert [sum(terms.values()) for terms in after.turn_terms] == [6.0, 0.0]
    assert redistribution(f"{file}:first")(episode([])) == episode([])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return [1.0]", "2 turns needs as many"),
        ("return 1.0", "2 turns needs as many"),
        ("return ['a', 'b']", "no numbers"),
        ("return None", "2 turns needs as many|no numbers"),
        ("return [float('nan'), 1]", "reward of turn 0 is nan"),
        ("return [10**400, 1]", "which are no numbers"),
        ("return [1, 1 / 0]", "ZeroDivisionError"),
    ],
)
def test_invalid_rewards_name_the_episode(tmp_path, body, message):
    (tmp_path / "mine.py").write_text(f"def f(trajectory):\n    {body}\n")
    move = redistribution(f"{tmp_path}/mine.py:f")
    with pytest.raises(RedistributionError, match=f"(?s)'e7'.*({message})"):
        move(episode([1.0, 2.0]))


def test_missing_functions_are_errors(tmp_path):
    (tmp_path / "broken.py").write_text("import nowhere_to_be_found\n")
    (tmp_path / "other.py").write_text("def g(trajectory): ...\n")
    for name, message in (
        ("sideways", "none of as_earned, last, spread, discounted"),
        (f"{tmp_path}/none.py:f", "no file"),
        (f"{tmp_path}/broken.py:f", "nowhere_to_be_found"),
        (f"{tmp_path}/other.py:f", "no function f; it has g"),
    ):
        with pytest.raises(RedistributionError, match=message):
            redistribution(name)
