"""Each estimator against a loop written from its formula, for any batch; and the edges."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import algorithm_oracles as oracle
import hypothesis
import numpy as np
import pytest
from algorithm_oracles import Episode, Turn, batches, flatten, forall, trajectory
from estimating import estimate
from hypothesis import strategies as st

from trainers.algorithms.baselines import RoleBaselines
from trainers.algorithms.batch import ActionBatch, Advantages, discounted_sums, visited_states
from trainers.algorithms.estimators import ESTIMATORS, normalize, restrict
from trainers.trajectory import solved

CRITIC_FREE = sorted(name for name, kind in ESTIMATORS.items() if "critic" not in kind.needs)
GREEDY = {"g0": 0.5, "g1": -1.0, "g2": 2.0}  # what greedy decoding earns, by group
ROLES = {"g0": -0.5, "g1": 0.25, "g2": 1.0}  # the mean return of the role, by group
factor = st.sampled_from([0.0, 0.3, 0.9, 0.99, 1.0])
truncated_modes = st.sampled_from(["count", "drop"])


def make(episodes: list[Episode], anchor: Any = "observation") -> ActionBatch:
    trajectories = [trajectory(e) for e in episodes]
    begun, ended = visited_states(trajectories, anchor)
    return ActionBatch.from_trajectories(
        trajectories,
        values=flatten([e.values for e in episodes]),
        bootstrap=[e.bootstrap for e in episodes],
        penalty=flatten([e.penalties for e in episodes]),
        anchor=begun,
        ending=ended,
        solved=[solved(t) for t in trajectories],
        greedy=[GREEDY.get(e.group, 0.3) for e in episodes],
        role_baseline=[ROLES.get(e.group, 0.1) for e in episodes],
        terms=np.array([oracle.terms(e) for e in episodes]).reshape(len(episodes), 2),
    )


def by_turn(episodes: list[Episode], rows: list[list[float]]) -> np.ndarray:
    """One number a turn, repeated for its tokens."""
    pairs = zip(episodes, rows, strict=True)
    return np.array([x for e, row in pairs for turn, x in zip(e.turns, row, strict=True) for _ in range(turn.reply)])


def close(actual: np.ndarray | None, expected: Any) -> None:
    assert actual is not None
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


def one(rewards: list[float], group: str = "g", terminated: bool = True) -> Episode:
    """Two tokens a turn, no penalties, zero values."""
    zeros = tuple((0.0, 0.0) for _ in rewards)
    return Episode(tuple(Turn(1, 2, r) for r in rewards), terminated, not terminated, group, zeros, zeros, 0.0)


# --- oracles


@forall(st.lists(st.lists(oracle.number, max_size=70), max_size=5), factor)
def test_discounted_sums(rows: list[list[float]], c: float) -> None:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    expected = []
    for row in rows:
        sums = [0.0]
        for x in reversed(row):
            sums.append(x + c * sums[-1])
        expected += sums[:0:-1]
    close(discounted_sums(np.array([x for row in rows for x in row]), offsets, c), expected)


def test_discounted_sums_of_long_episode_are_stable() -> None:
    sums = discounted_sums(np.ones(100_001), np.array([0, 100_001]), 0.999)
    assert sums[0] == pytest.approx(1000.0, rel=1e-12)


@pytest.mark.parametrize("name", ["gae", "bilevel_gae"])
@forall(batches(), factor, factor, factor, factor)
def test_gae_by_token(
    name: str, episodes: list[Episode], gamma: float, lam: float, turn_gamma: float, turn_lam: float
) -> None:
    turns = {"turn_gamma": turn_gamma, "turn_lam": turn_lam} if name == "bilevel_gae" else {}
    result = estimate(name, make(episodes), gamma=gamma, lam=lam, **turns)
    steps = oracle.bilevel_gae if turns else oracle.gae
    expected = np.array([a for e in episodes for a in steps(e, gamma, lam, *turns.values())])
    close(result.advantages, expected)
    close(result.returns, expected + flatten([e.values for e in episodes]))
    assert result.policy_mask.all()
    assert result.value_mask is not None
    assert result.value_mask.all()


@forall(batches(), factor, factor)
def test_turn_gae(episodes: list[Episode], gamma: float, lam: float) -> None:
    result = estimate("turn_gae", make(episodes), gamma=gamma, lam=lam)
    rows = [oracle.turn_gae(e, gamma, lam) for e in episodes]
    close(result.advantages, by_turn(episodes, rows))
    first = np.array([i == 0 for e in episodes for turn in e.turns for i in range(turn.reply)], np.bool_)
    assert result.value_mask is not None
    assert result.returns is not None
    np.testing.assert_array_equal(result.value_mask, first)
    starts = [a + v[0] for e, row in zip(episodes, rows, strict=True) for a, v in zip(row, e.values, strict=True)]
    close(result.returns[first], starts)


@forall(batches(), st.booleans(), truncated_modes)
def test_grpo(episodes: list[Episode], norm_by_std: bool, truncated: Any) -> None:
    result = estimate("grpo", make(episodes), norm_by_std=norm_by_std, truncated=truncated, eps=1e-3)
    check_critic_free(episodes, truncated, result, lambda e, _, counted: oracle.grpo(counted, e, norm_by_std, 1e-3))


@forall(batches(), st.sampled_from(["group", "mixed", "shrunk"]), truncated_modes)
def test_rloo(episodes: list[Episode], baseline: Any, truncated: Any) -> None:
    result = estimate("rloo", make(episodes), baseline=baseline, truncated=truncated)

    def expected(e: Episode, _: int, counted: list[Episode]) -> float:
        siblings = [s.total() for s in counted if s.group == e.group and s is not e]
        batch_rest = [s.total() for s in counted if s is not e]
        if baseline == "mixed":
            mixed = (oracle.mean(siblings) + oracle.mean(batch_rest)) / 2
            return e.total() - (mixed if siblings else oracle.mean(batch_rest))
        if baseline == "shrunk":
            names = dict.fromkeys(s.group for s in counted if s.group != e.group)
            return e.total() - oracle.shrunk(siblings, [[s.total() for s in counted if s.group == n] for n in names])
        return e.total() - oracle.mean(siblings)

    check_critic_free(episodes, truncated, result, expected)


@forall(batches(), factor, st.sampled_from(["group", "mixed", "shrunk"]), st.booleans(), factor, truncated_modes)
def test_turn_grpo(
    episodes: list[Episode], gamma: float, baseline: Any, zero_pad: bool, mix: float, truncated: Any
) -> None:
    options: dict[str, Any] = {"gamma": gamma, "baseline": baseline, "zero_pad": zero_pad}
    result = estimate("turn_grpo", make(episodes), **options, outcome_mix=mix, truncated=truncated)

    def expected(e: Episode, turn: int, counted: list[Episode]) -> float:
        a = [oracle.to_go(e, k, gamma) - oracle.turn_baseline(counted, e, k, **options) for k in (turn, 0)]
        return (1 - mix) * a[0] + mix * a[1]

    check_critic_free(episodes, truncated, result, expected)


@forall(batches(), batches(), st.sampled_from(["group", "mixed", "shrunk"]), st.booleans())
def test_other_side_of_conversations_is_in_no_baseline(
    assistant: list[Episode], user: list[Episode], baseline: Any, zero_pad: bool
) -> None:
    """It earned what this side's actions led to: not what other episodes say."""
    user = [dataclasses.replace(e, group=f"{e.group}-user") for e in user]
    both = dataclasses.replace(make([*assistant, *user]), side=np.repeat([0, 1], [len(assistant), len(user)]))
    ways: list[Callable[[ActionBatch], Advantages]] = [
        lambda batch: estimate("rloo", batch, baseline=baseline),
        lambda batch: estimate("turn_grpo", batch, baseline=baseline, zero_pad=zero_pad),
    ]
    for way in ways:
        apart = [way(make(side)).advantages for side in (assistant, user)]
        close(way(both).advantages, np.concatenate(apart))


@forall(batches(), truncated_modes)
def test_dr_grpo(episodes: list[Episode], truncated: Any) -> None:
    result = estimate("dr_grpo", make(episodes), truncated=truncated)
    check_critic_free(episodes, truncated, result, lambda e, _, counted: oracle.grpo(counted, e, False, 0.0))


@forall(batches(), truncated_modes)
def test_opo(episodes: list[Episode], truncated: Any) -> None:
    def expected(e: Episode, _: int, counted: list[Episode]) -> float:
        group = [(sum(t.reply for t in s.turns), s.total()) for s in counted if s.group == e.group]
        return e.total() - sum(n * r for n, r in group) / sum(n for n, _ in group)

    check_critic_free(episodes, truncated, estimate("opo", make(episodes), truncated=truncated), expected)


@forall(batches(), truncated_modes, st.booleans(), st.sampled_from([None, (0.5, 2.0), (1.0, 0.0)]))
def test_gdpo(episodes: list[Episode], truncated: Any, norm_by_std: bool, weights: tuple[float, float] | None) -> None:
    counted = oracle.counted(episodes, truncated)
    plain = []
    for e in counted:
        a = 0.0
        for m, weight in enumerate(weights or (1.0, 1.0)):
            earned = [oracle.terms(s)[m] for s in counted if s.group == e.group]
            centred = oracle.terms(e)[m] - oracle.mean(earned)
            std = oracle.mean([(x - oracle.mean(earned)) ** 2 for x in earned]) ** 0.5
            a += weight * (centred / (std + 1e-3) if norm_by_std else centred)
        plain.append([a] * sum(t.reply for t in e.turns))
    hypothesis.assume(np.std([a for row in plain for a in row] or [1.0]) > 1e-3 or not plain)
    options: dict[str, Any] = {"gdpo_reward_weights": weights, "norm_by_std": norm_by_std, "eps": 1e-3}
    check_whitened(episodes, truncated, estimate("gdpo", make(episodes), truncated=truncated, **options), plain)


def test_gdpo_separates_rewards_that_grpo_merges() -> None:
    """The paper's example: two rewards of 0 or 1, and sums that differ in kind have one advantage in GRPO."""
    terms = np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 0.0], [0.0, 0.0]])
    one_of_two = dataclasses.replace(make([one([r]) for r in (1.0, 2.0, 0.0, 0.0)]), terms=terms)
    both = dataclasses.replace(one_of_two, terms=np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]))
    assert estimate("grpo", one_of_two).advantages.tolist() == estimate("grpo", both).advantages.tolist()
    apart = [estimate("gdpo", batch).advantages[::2] for batch in (one_of_two, both)]
    assert apart[1][1] / apart[1][0] > apart[0][1] / apart[0][0] > 0


@forall(batches(), st.booleans(), truncated_modes)
def test_grpo_passk(episodes: list[Episode], norm_by_std: bool, truncated: Any) -> None:
    """The best of all minus the best of the others, for whoever is the best; the first of equals."""

    def expected(e: Episode, _: int, counted: list[Episode]) -> float:
        siblings = [s.total() for s in counted if s.group == e.group and s is not e]
        lead = max(e.total() - max(siblings), 0.0) if siblings else 0.0
        earned = [*siblings, e.total()]
        std = oracle.mean([(r - oracle.mean(earned)) ** 2 for r in earned]) ** 0.5
        return lead / (std + 1e-3) if norm_by_std else lead

    result = estimate("grpo_passk", make(episodes), norm_by_std=norm_by_std, truncated=truncated, eps=1e-3)
    check_critic_free(episodes, truncated, result, expected)


@forall(batches(), st.integers(1, 4), st.booleans(), truncated_modes)
def test_passk(episodes: list[Episode], k: int, norm_by_std: bool, truncated: Any) -> None:
    result = estimate("passk", make(episodes), pass_k=k, norm_by_std=norm_by_std, truncated=truncated, eps=1e-3)
    check_critic_free(
        episodes, truncated, result, lambda e, _, counted: oracle.best_of_k(counted, e, k, norm_by_std, 1e-3)
    )


@pytest.mark.parametrize(("n", "right", "k"), [(8, 1, 4), (8, 3, 4), (8, 5, 4), (6, 2, 2), (5, 5, 3), (5, 0, 3)])
def test_binary_passk_matches_closed_form(n: int, right: int, k: int) -> None:
    advantages = estimate("passk", make([one([float(i < right)]) for i in range(n)]), pass_k=k).advantages[::2]
    p = 1 - math.comb(n - right, k) / math.comb(n, k)
    std = math.sqrt(p * (1 - p))
    if std == 0:
        assert advantages == pytest.approx([0.0] * n, abs=1e-8)
        return
    wrong = 1 - p - math.comb(n - right - 1, k - 1) / math.comb(n - 1, k - 1)
    np.testing.assert_allclose(advantages, [(1 - p) / std] * right + [wrong / std] * (n - right), rtol=1e-5)
    assert advantages.sum() == pytest.approx(0.0, abs=1e-9)


@forall(batches(), truncated_modes)
def test_remax(episodes: list[Episode], truncated: Any) -> None:
    result = estimate("remax", make(episodes), truncated=truncated)
    check_critic_free(episodes, truncated, result, lambda e, _, counted: e.total() - GREEDY[e.group])


@forall(batches(), truncated_modes)
def test_rae(episodes: list[Episode], truncated: Any) -> None:
    result = estimate("rae", make(episodes), truncated=truncated)
    check_critic_free(episodes, truncated, result, lambda e, _, counted: e.total() - ROLES[e.group])


@forall(
    st.lists(st.tuples(st.sampled_from("abc"), oracle.number, st.booleans()), max_size=30), factor, st.integers(0, 30)
)
def test_role_baselines(rows: list[tuple[str, float, bool]], decay: float, cut: int) -> None:
    """``b <- decay b + (1 - decay) R``, each role apart, across batches and a resumed run."""
    expected, baselines = [], RoleBaselines()
    for number, (role, *_) in enumerate(rows):
        before = [value for other, value, counted in rows[:number] if other == role and counted]
        ages = range(len(before) - 1, -1, -1)
        expected.append(sum((1 - decay) * decay**age * value for age, value in zip(ages, before, strict=True)))
    actual: list[float] = []
    for part in (rows[:cut], rows[cut:]):
        roles, values, counted = ([row[column] for row in part] for column in range(3))
        resumed = RoleBaselines()
        resumed.load_state_dict(json.loads(json.dumps(baselines.state_dict())))
        baselines = resumed
        actual += baselines.observe(roles, np.array(values), np.array(counted, np.bool_), decay).tolist()
    close(np.array(actual), expected)


def whitened(rows: list[list[float]]) -> list[list[float]]:
    """Over all tokens of those that count."""
    flat = [a for row in rows for a in row]
    mean = oracle.mean(flat)
    std = oracle.mean([(a - mean) ** 2 for a in flat]) ** 0.5
    return [[(a - mean) / (std + 1e-8) for a in row] for row in rows]


def check_whitened(episodes: list[Episode], truncated: str, result: Advantages, plain: list[list[float]]) -> None:
    """``plain`` is by token, of the episodes that count."""
    counted = oracle.counted(episodes, truncated)
    expected = dict(zip(map(id, counted), whitened(plain), strict=True))
    rows = [expected.get(id(e), [0.0] * sum(t.reply for t in e.turns)) for e in episodes]
    np.testing.assert_allclose(result.advantages, [a for row in rows for a in row], rtol=1e-5, atol=1e-5)
    mask = [id(e) in expected for e in episodes for turn in e.turns for _ in range(turn.reply)]
    np.testing.assert_array_equal(result.policy_mask, np.array(mask, np.bool_))


@forall(batches(), factor, truncated_modes)
def test_reinforce_pp(episodes: list[Episode], gamma: float, truncated: Any) -> None:
    plain = [oracle.reinforce(e, gamma) for e in oracle.counted(episodes, truncated)]
    hypothesis.assume(np.std([a for row in plain for a in row] or [1.0]) > 1e-3 or not plain)
    check_whitened(
        episodes, truncated, estimate("reinforce_pp", make(episodes), gamma=gamma, truncated=truncated), plain
    )


@forall(batches(), truncated_modes)
def test_reinforce_pp_baseline(episodes: list[Episode], truncated: Any) -> None:
    counted = oracle.counted(episodes, truncated)
    plain = [[oracle.grpo(counted, e, False, 0.0)] * sum(t.reply for t in e.turns) for e in counted]
    hypothesis.assume(np.std([a for row in plain for a in row] or [1.0]) > 1e-3 or not plain)
    check_whitened(episodes, truncated, estimate("reinforce_pp_baseline", make(episodes), truncated=truncated), plain)


@forall(batches(), factor, st.sampled_from(["observation", "history"]), st.booleans(), truncated_modes)
def test_gigpo(episodes: list[Episode], gamma: float, anchor: Any, norm_by_std: bool, truncated: Any) -> None:
    options: dict[str, Any] = {"gamma": gamma, "norm_by_std": norm_by_std, "eps": 1e-3}
    result = estimate("gigpo", make(episodes, anchor=anchor), step_weight=0.7, truncated=truncated, **options)

    def expected(e: Episode, turn: int, counted: list[Episode]) -> float:
        return oracle.grpo(counted, e, norm_by_std, 1e-3) + 0.7 * oracle.gigpo_turn(counted, e, turn, anchor, **options)

    check_critic_free(episodes, truncated, result, expected)


@forall(batches(), factor, factor, st.sampled_from(["observation", "history"]), st.booleans(), truncated_modes)
def test_gagpo(
    episodes: list[Episode], gamma: float, lam: float, anchor: Any, norm_by_std: bool, truncated: Any
) -> None:
    options: dict[str, Any] = {"gamma": gamma, "lam": lam, "norm_by_std": norm_by_std, "eps": 1e-3}
    result = estimate("gagpo", make(episodes, anchor=anchor), truncated=truncated, **options)
    counted = oracle.counted(episodes, truncated)
    rows = dict(zip(map(id, counted), oracle.gagpo(counted, anchor, **options), strict=True))
    check_critic_free(episodes, truncated, result, lambda e, turn, _: rows[id(e)][turn])


@forall(
    batches(), st.sampled_from([0.1, 0.7]), st.sampled_from(["observation", "history"]), st.booleans(), truncated_modes
)
def test_graphgpo(episodes: list[Episode], omega: float, anchor: Any, norm_by_std: bool, truncated: Any) -> None:
    options: dict[str, Any] = {"norm_by_std": norm_by_std, "eps": 1e-3}
    batch = make(episodes, anchor=anchor)
    result = estimate("graphgpo", batch, step_weight=0.7, distance_discount=omega, truncated=truncated, **options)

    def expected(e: Episode, turn: int, counted: list[Episode]) -> float:
        of_turn = oracle.graphgpo_turn(counted, e, turn, anchor, omega, **options)
        return oracle.grpo(counted, e, norm_by_std, 1e-3) + 0.7 * of_turn

    check_critic_free(episodes, truncated, result, expected)


@forall(batches(), truncated_modes)
def test_maxrl(episodes: list[Episode], truncated: Any) -> None:
    result = estimate("maxrl", make(episodes), truncated=truncated)
    check_critic_free(episodes, truncated, result, lambda e, _, counted: oracle.maxrl(counted, e))


def check_critic_free(
    episodes: list[Episode],
    truncated: str,
    result: Advantages,
    expected: Callable[[Episode, int, list[Episode]], float],
) -> None:
    counted = oracle.counted(episodes, truncated)
    is_kept = [any(e is k for k in counted) for e in episodes]
    rows = [
        [expected(e, turn, counted) if keep else 0.0 for turn in range(len(e.turns))]
        for e, keep in zip(episodes, is_kept, strict=True)
    ]
    close(result.advantages, by_turn(episodes, rows))
    mask = [keep for e, keep in zip(episodes, is_kept, strict=True) for turn in e.turns for _ in range(turn.reply)]
    np.testing.assert_array_equal(result.policy_mask, np.array(mask, np.bool_))
    assert result.returns is None
    assert result.value_mask is None


@forall(batches(min_turns=1))
def test_normalised_turn_grpo_divides_by_group_rms(episodes: list[Episode]) -> None:
    batch = make(episodes)
    plain, scaled = estimate("turn_grpo", batch), estimate("turn_grpo", batch, norm_by_std=True, eps=1e-3)
    for group in np.unique(batch.group):
        turns = np.flatnonzero(batch.group[batch.episode_of_turn] == group)
        a, b = plain.advantages[batch.turn_starts[turns]], scaled.advantages[batch.turn_starts[turns]]
        close(b, a / (np.sqrt(np.mean(a**2)) + 1e-3))


# --- edges


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_no_episodes_and_no_actions(name: str) -> None:
    assert estimate(name, make([])).advantages.shape == (0,)
    silent = one([])
    assert estimate(name, make([silent, silent])).advantages.shape == (0,)


@pytest.mark.parametrize("name", CRITIC_FREE)
def test_episode_without_actions_is_in_no_baseline(name: str) -> None:
    acting = [one([1.0]), one([3.0])]
    alone = estimate(name, make(acting)).advantages
    close(estimate(name, make([one([]), *acting, one([])])).advantages, alone)


def test_normalising_never_explodes() -> None:
    """Equal outcomes but a lone second turn: dividing by the returns' standard deviation (0) would give 10^6."""
    advantages = estimate("turn_grpo", make([one([0.0, 1.0]), one([1.0]), one([1.0])]), norm_by_std=True).advantages
    assert np.abs(advantages).max() <= 2.0
    assert np.abs(advantages).max() > 0.1


@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - set(CRITIC_FREE)))
def test_missing_critic_is_error(name: str) -> None:
    done, cut = trajectory(one([1.0])), trajectory(one([1.0], terminated=False))
    with pytest.raises(ValueError, match="needs a critic"):
        estimate(name, ActionBatch.from_trajectories([done]))
    with pytest.raises(ValueError, match="episode 1 was truncated: give the batch bootstrap"):
        estimate(name, ActionBatch.from_trajectories([done, cut], values=np.zeros(4)))


def test_missing_estimator_inputs_are_errors() -> None:
    bare = ActionBatch.from_trajectories([trajectory(one([1.0]))])
    with pytest.raises(ValueError, match=r"needs greedy \[E\]"):
        estimate("remax", bare)
    with pytest.raises(ValueError, match=r"needs role_baseline \[E\]"):
        estimate("rae", bare)
    with pytest.raises(ValueError, match=r"needs anchor \[K\]"):
        estimate("gigpo", bare)
    with pytest.raises(ValueError, match=r"needs anchor \[K\]"):
        estimate("gagpo", bare)
    with pytest.raises(ValueError, match=r"needs solved \[E\]"):
        estimate("graphgpo", bare)
    with pytest.raises(ValueError, match=r"needs terms \[E, M\]"):
        estimate("gdpo", bare)


def test_restrict() -> None:
    plain = estimate("rloo", make([one([9.0]), one([0.0]), one([5.0], terminated=False)]), truncated="drop")
    some = restrict(plain, np.array([True, False, True, True, True, True]))
    assert some.policy_mask.tolist() == [True, False, True, True, False, False]
    assert some.advantages.tolist() == [9.0, 0.0, -9.0, -9.0, 0.0, 0.0]


# --- normalisation


@forall(batches(), truncated_modes)
def test_normalize(episodes: list[Episode], truncated: Any) -> None:
    plain = estimate("rloo", make(episodes), truncated=truncated)
    result, mask = normalize(plain), plain.policy_mask
    np.testing.assert_array_equal(result.policy_mask, mask)
    assert not result.advantages[~mask].any()
    if mask.any() and plain.advantages[mask].std() > 1e-3:
        assert result.advantages[mask].mean() == pytest.approx(0.0, abs=1e-9)
        assert result.advantages[mask].std() == pytest.approx(1.0, rel=1e-4)
        order = np.argsort(plain.advantages[mask], kind="stable")
        assert (np.diff(result.advantages[mask][order]) >= -1e-12).all()


def test_normalize_counts_tokens_as_loss_does() -> None:
    """A token of weight 2 is two tokens: advantages [3, 3, 0, 6] of weights [1, 1, 1, 1]."""
    mask, weights = np.array([1, 1, 1, 0], bool), np.array([2.0, 1.0, 1.0, 0.0])
    weighted = Advantages(np.array([3.0, 0.0, 6.0, 9.0]), mask, weights=weights)
    np.testing.assert_allclose(normalize(weighted).advantages, [0.0, -(2**0.5), 2**0.5, 0.0])


def test_normalize_equal_advantages() -> None:
    assert normalize(estimate("rloo", make([one([1.0], "a"), one([1.0], "b")]))).advantages.tolist() == [0.0] * 4
