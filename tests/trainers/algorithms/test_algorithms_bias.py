"""Bias of the estimators: the expected gradient over all possible batches, against the true one.

A task is a small tree. The first turn is one token: 0 ends the episode, 1 leads to a second turn of two tokens. So
there are five episodes, with the probabilities that four logits give them. A batch is two episodes of each of two tasks
with rewards of their own: 625 batches in all, each of which is given to the estimator.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from estimating import estimate
from trajectories import action_batch

from trainers.algorithms.baselines import RoleBaselines
from trainers.algorithms.batch import ActionBatch, Advantages
from trainers.algorithms.estimators import ESTIMATORS, normalize
from trainers.algorithms.losses import token_weights
from trainers.algorithms.off_policy import importance_weights
from trainers.command_line import resolve
from trainers.config import PPOConfig

LOGITS = np.array([0.4, -0.3, 0.2, -0.6])  # at the start; in the second turn; after its 0; after its 1
SIZE = 2


@dataclass(frozen=True)
class Path:
    """One episode: the logit that each token is drawn with and what was drawn; tokens and reward by turn."""

    choices: tuple[tuple[int, int], ...]
    turns: tuple[int, ...]
    rewards: tuple[float, ...]

    def logprobs(self, logits: np.ndarray) -> np.ndarray:
        return np.array([-np.logaddexp(0.0, -logits[at] if drawn else logits[at]) for at, drawn in self.choices])

    def scores(self, logits: np.ndarray) -> np.ndarray:
        """d log p / d logits of each token: ``[tokens, 4]``."""
        scores = np.zeros((len(self.choices), len(logits)))
        for i, (at, drawn) in enumerate(self.choices):
            scores[i, at] = drawn - 1.0 / (1.0 + np.exp(-logits[at]))
        return scores

    def probability(self, logits: np.ndarray) -> float:
        return float(np.exp(self.logprobs(logits).sum()))


def task(end: float, go_on: float, *later: float) -> list[Path]:
    pairs = itertools.product((0, 1), (0, 1))
    return [
        Path(((0, 0),), (1,), (end,)),
        *(Path(((0, 1), (1, b), (2 + b, c)), (1, 2), (go_on, r)) for (b, c), r in zip(pairs, later, strict=True)),
    ]


def batch_of(chosen: Sequence[Path], group: Any = None, **fields: Any) -> ActionBatch:
    rewards = np.concatenate([path.rewards for path in chosen])
    return action_batch([path.turns for path in chosen], rewards, group, **fields)


def chance_of(chosen: Sequence[Path], logits: np.ndarray = LOGITS) -> float:
    return float(np.prod([path.probability(logits) for path in chosen]))


def scores_of(chosen: Sequence[Path], logits: np.ndarray = LOGITS) -> np.ndarray:
    return np.concatenate([path.scores(logits) for path in chosen])


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


TASKS = [task(0.3, 0.5, 1.0, -0.5, 0.2, 2.0), task(-1.0, 0.0, 0.7, 0.1, -0.4, 0.3)]


def true_gradient(logits: np.ndarray) -> np.ndarray:
    paths = [path for paths in TASKS for path in paths]
    terms = [path.probability(logits) * sum(path.rewards) * path.scores(logits).sum(0) for path in paths]
    return np.sum(terms, axis=0) / len(TASKS)


def exact_values(number: int) -> np.ndarray:
    """Return each state's value: the critic's output there, ``[4]``."""
    worth = []
    for at in range(4):
        through = [path for path in TASKS[number] if at in dict(path.choices)]
        weights, earned = [], []
        for path in through:
            place = [state for state, _ in path.choices].index(at)
            weights.append(np.exp(path.logprobs(LOGITS)[place:].sum()))
            # A state inside the second turn comes after the first turn's reward.
            earned.append(sum(path.rewards) if place == 0 else path.rewards[1])
        worth.append(np.dot(weights, earned) / np.sum(weights))
    return np.array(worth)


WRONG = np.array([0.3, -0.2, 0.7, 0.1])  # a critic that knows nothing


def role_baselines(chosen: Sequence[Path]) -> np.ndarray:
    """Return what ``rae`` compares these episodes with, which are all of one role and change its mean in turn."""
    baselines = RoleBaselines()
    baselines.load_state_dict({"player": 0.4})
    returns = np.array([sum(path.rewards) for path in chosen])
    return baselines.observe(["player"] * len(chosen), returns, np.ones(len(chosen), np.bool_), 0.5)


def all_batches(exact: bool) -> list[tuple[float, ActionBatch, np.ndarray]]:
    """Each batch with its probability and the scores of its tokens."""
    values = [exact_values(number) if exact else WRONG for number in range(len(TASKS))]
    greedy = [max(paths, key=lambda path: path.probability(LOGITS)) for paths in TASKS]
    outcomes = []
    for chosen in itertools.product(*(paths for paths in TASKS for _ in range(SIZE))):
        group = np.repeat(np.arange(len(TASKS)), SIZE)
        scores = scores_of(chosen)
        batch = batch_of(
            chosen,
            group,
            values=np.concatenate([values[g][[at for at, _ in p.choices]] for g, p in zip(group, chosen, strict=True)]),
            anchor=np.concatenate([np.arange(len(path.turns)) for path in chosen]),
            solved=np.array([path.rewards[-1] > 0.25 for path in chosen]),
            greedy=np.array([sum(greedy[g].rewards) for g in group]),
            terms=np.array([[path.rewards[0], sum(path.rewards[1:])] for path in chosen]),
            score_norms=np.square(scores).sum(1),
            role_baseline=role_baselines(chosen),
        )
        outcomes.append((chance_of(chosen), batch, scores))
    return outcomes


@pytest.fixture(scope="module")
def batches() -> dict[bool, list[tuple[float, ActionBatch, np.ndarray]]]:
    return {exact: all_batches(exact) for exact in (False, True)}


def expected_gradient(
    estimator: Callable[[ActionBatch], Advantages], batches: list[tuple[float, ActionBatch, np.ndarray]]
) -> np.ndarray:
    terms = [p * (estimator(batch).advantages[:, None] * scores).sum(0) for p, batch, scores in batches]
    return np.sum(terms, axis=0) / (len(TASKS) * SIZE)


def test_all_batches_are_enumerated(batches: Any) -> None:
    assert sum(probability for probability, *_ in batches[False]) == pytest.approx(1.0)
    assert np.linalg.norm(true_gradient(LOGITS)) > 0.1


UNBIASED: list[tuple[str, dict[str, Any]]] = [
    ("gae", {}),
    ("turn_gae", {}),
    ("bilevel_gae", {"turn_gamma": 1.0}),
    ("rloo", {}),
    ("rloo", {"baseline": "mixed"}),
    ("rloo", {"baseline": "optimal_token"}),
    ("rae", {}),
    ("remax", {}),
    ("turn_grpo", {}),
    ("turn_grpo", {"baseline": "mixed"}),
    ("turn_grpo", {"baseline": "optimal_token"}),
    ("turn_grpo", {"zero_pad": True}),
    ("turn_grpo", {"outcome_mix": 0.3}),
]


@pytest.mark.parametrize(("name", "options"), UNBIASED)
def test_unbiased_whatever_critic_says(batches: Any, name: str, options: dict[str, Any]) -> None:
    gradient = expected_gradient(lambda batch: estimate(name, batch, **options), batches[False])
    np.testing.assert_allclose(gradient, true_gradient(LOGITS), atol=1e-12)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gae", {"lam": 0.5}),
        ("turn_gae", {"lam": 0.5}),
        ("bilevel_gae", {"turn_gamma": 1.0, "lam": 0.3, "turn_lam": 0.5}),
    ],
)
def test_with_lambda_unbiased_only_if_critic_is_right(batches: Any, name: str, options: dict[str, Any]) -> None:
    right, wrong = (
        expected_gradient(lambda batch: estimate(name, batch, **options), batches[exact]) for exact in (True, False)
    )
    np.testing.assert_allclose(right, true_gradient(LOGITS), atol=1e-12)
    assert np.abs(wrong - true_gradient(LOGITS)).max() > 0.01


def test_dr_grpo_is_right_in_direction(batches: Any) -> None:
    gradient = expected_gradient(partial(estimate, "dr_grpo"), batches[False])
    np.testing.assert_allclose(gradient, (SIZE - 1) / SIZE * true_gradient(LOGITS), atol=1e-12)


BIASED: list[tuple[str, dict[str, Any]]] = [
    ("grpo", {}),
    ("opo", {}),
    ("gdpo", {}),
    ("reinforce_pp", {}),
    ("reinforce_pp_baseline", {}),
    ("gigpo", {}),
    ("gagpo", {}),
    ("gagpo", {"lam": 1.0, "norm_by_std": False}),
    ("graphgpo", {}),
    ("graphgpo", {"norm_by_std": False}),
    ("maxrl", {}),
    ("turn_grpo", {"norm_by_std": True}),
    ("turn_grpo", {"gamma": 0.5}),
    ("bilevel_gae", {"turn_gamma": 0.5}),
]


@pytest.mark.parametrize(("name", "options"), BIASED)
def test_documented_biases_exist(batches: Any, name: str, options: dict[str, Any]) -> None:
    """Not even proportional to the true gradient."""
    gradient = expected_gradient(lambda batch: estimate(name, batch, **options), batches[False])
    similarity = cosine(gradient, true_gradient(LOGITS))
    print(f"{name} {options}: cosine with the true gradient {similarity:.4f}")
    assert similarity < 0.9999


def test_optimal_token_baseline_as_published_is_biased(batches: Any) -> None:
    """Its sums hold the episode itself, here ``weight / (weight + others)`` of the advantage."""

    def published(batch: ActionBatch) -> Advantages:
        starts = batch.token_offsets[batch.episode_of_token]
        place = batch.group[batch.episode_of_token] * 10 + np.arange(batch.num_tokens) - starts
        assert batch.score_norms is not None
        total = np.cumsum(batch.score_norms)
        energy = total - (total - batch.score_norms)[starts]
        returns = np.bincount(batch.episode_of_turn, batch.turn_rewards)[batch.episode_of_token]
        mean = np.bincount(place, energy * returns)[place] / np.bincount(place, energy)[place]
        return Advantages(returns - mean, np.ones(batch.num_tokens, np.bool_))

    assert cosine(expected_gradient(published, batches[False]), true_gradient(LOGITS)) < 0.999


def test_every_estimator_is_judged_here() -> None:
    tested_elsewhere = {"dr_grpo", "grpo_passk", "passk", "fork"}  # with tests of their own
    assert {name for name, _ in UNBIASED + BIASED} | tested_elsewhere == set(ESTIMATORS)


def best_of(paths: list[Path], k: int, logits: np.ndarray) -> float:
    """The expected best return of ``k`` episodes of a task."""
    ordered = sorted(paths, key=lambda path: sum(path.rewards))
    below = np.cumsum([path.probability(logits) for path in ordered])
    chances = below**k - np.append(0.0, below[:-1]) ** k
    return float(chances @ [sum(path.rewards) for path in ordered])


@pytest.mark.parametrize(
    ("name", "options", "size", "k", "scale"),
    [
        ("grpo_passk", {"norm_by_std": False}, 3, 3, 1 / 3),
        ("passk", {"norm_by_std": False, "pass_k": 2}, 3, 2, (1 - 2 / 3) / 2),
        ("passk", {"norm_by_std": False, "pass_k": 2}, 4, 2, (1 - 2 / 4) / 2),
        ("passk", {"norm_by_std": False, "pass_k": 1}, 3, 1, 1 - 1 / 3),
    ],
)
def test_passk_climbs_expected_best_of_k(name: str, options: dict[str, Any], size: int, k: int, scale: float) -> None:
    """Without the division, the expected gradient is that of the best of ``k``, times a constant that docs say."""
    paths, gradient = TASKS[0], np.zeros(4)
    for chosen in itertools.product(paths, repeat=size):
        advantages = estimate(name, batch_of(chosen), **options).advantages
        gradient += chance_of(chosen) * (advantages @ scores_of(chosen)) / size
    steps = np.eye(4) * 1e-5
    slope = [(best_of(paths, k, LOGITS + step) - best_of(paths, k, LOGITS - step)) / 2e-5 for step in steps]
    np.testing.assert_allclose(gradient, scale * np.array(slope), atol=1e-9)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_maxrl_climbs_truncated_log_likelihood(size: int) -> None:
    """The expected gradient is that of ``-sum_{k < G} (1 - p)^k / k``, the first terms of the logarithm of ``p``."""
    paths, gradient = task(0.0, 0.0, 1.0, 0.0, 1.0, 0.0), np.zeros(4)
    for chosen in itertools.product(paths, repeat=size):
        advantages = estimate("maxrl", batch_of(chosen)).advantages
        gradient += chance_of(chosen) * (advantages @ scores_of(chosen)) / size

    def objective(logits: np.ndarray) -> float:
        failure = 1.0 - sum(path.probability(logits) for path in paths if sum(path.rewards) == 1.0)
        return -sum(failure**k / k for k in range(1, size))

    steps = np.eye(4) * 1e-5
    slope = [(objective(LOGITS + step) - objective(LOGITS - step)) / 2e-5 for step in steps]
    np.testing.assert_allclose(gradient, slope, atol=1e-9)


def test_batch_normalisation_is_biased(batches: Any) -> None:
    gradient = expected_gradient(lambda batch: normalize(estimate("rloo", batch)), batches[False])
    assert cosine(gradient, true_gradient(LOGITS)) < 0.9999


def expected_update(batches: Any, config: PPOConfig) -> np.ndarray:
    """Return a configuration's expected update over all batches and all cuts of each into two mini-batches."""
    total = np.zeros(len(LOGITS))
    for probability, batch, scores in batches:
        result = config.algorithm.advantages(batch)
        advantages = (normalize(result) if getattr(config.algorithm, "norm_adv", False) else result).advantages
        lengths, episode = np.diff(batch.token_offsets), batch.episode_of_token
        for other in (1, 2, 3):
            first = np.isin(np.arange(2 * SIZE), (0, other))
            for part in (first, ~first):
                offsets = np.concatenate([[0], np.cumsum(lengths[part])])
                tokens = part[episode]
                most = config.rollout.max_response_length
                weight = token_weights(config.actor.loss_agg_mode, offsets, norm_length=most)
                total += probability / 3 * (weight * advantages[tokens]) @ scores[tokens]
    return total


def test_update_of_default_configuration_points_along_policy_gradient(batches: Any) -> None:
    """Also in batches of four episodes, where the default of before does not."""
    before = ("algorithm.norm_adv=true", "actor.loss_agg_mode=token-mean")
    updates = [expected_update(batches[False], resolve(arguments)[0]) for arguments in ((), before)]
    default, bent = (cosine(update, true_gradient(LOGITS)) for update in updates)
    assert default == pytest.approx(1.0, abs=1e-12)
    assert bent < 0.99


# --- sampled by another policy


def corrected_gradient(mode: Any, cap: float | None) -> np.ndarray:
    """Return the gradient of episodes that another policy sampled, with the reward as the advantage."""
    behaviour, total = LOGITS + np.array([-0.5, 0.8, 0.4, -0.7]), np.zeros(len(LOGITS))
    for path in (path for paths in TASKS for path in paths):
        offsets = np.array([0, len(path.choices)])
        weights = importance_weights(mode, path.logprobs(LOGITS), path.logprobs(behaviour), offsets, cap)
        weighed = path.scores(LOGITS) * (1.0 if weights is None else weights[:, None])
        total += path.probability(behaviour) * sum(path.rewards) * weighed.sum(0)
    return total / len(TASKS)


def test_sequence_weight_is_unbiased_until_capped() -> None:
    truth = true_gradient(LOGITS)
    np.testing.assert_allclose(corrected_gradient("sequence_tis", None), truth, atol=1e-12)
    errors = {
        name: np.abs(corrected_gradient(mode, cap) - truth).max()
        for name, mode, cap in (
            ("none", "none", None),
            ("token", "token_tis", None),
            ("decoupled", "decoupled", None),
            ("cut", "sequence_tis", 1.1),
        )
    }
    assert min(errors.values()) > 0.01
    assert errors["token"] == errors["decoupled"] < errors["none"]


def test_one_token_is_its_own_sequence() -> None:
    """Check a bandit, where the token's weight is the whole correction."""
    one_token = [
        replace(paths[0], choices=((0, a),), turns=(1,), rewards=(r,))
        for paths in TASKS[:1]
        for a, r in ((0, 1.0), (1, 3.0))
    ]
    behaviour, gradient = LOGITS + 0.7, np.zeros(4)
    for path in one_token:
        weights = importance_weights(
            "token_tis", path.logprobs(LOGITS), path.logprobs(behaviour), np.array([0, 1]), None
        )
        assert weights is not None
        gradient += path.probability(behaviour) * path.rewards[0] * weights[0] * path.scores(LOGITS)[0]
    truth = np.sum([p.probability(LOGITS) * p.rewards[0] * p.scores(LOGITS)[0] for p in one_token], axis=0)
    np.testing.assert_allclose(gradient, truth, atol=1e-12)


def test_shrunk_baseline_is_unbiased_over_many_groups() -> None:
    """Two episodes of each of three tasks, one token each: 729 batches; most have something to be drawn by."""
    logits = np.array([0.3, -0.5, 0.1])
    chances = np.exp(logits) / np.exp(logits).sum()
    rewards = np.array([[0.0, 1.0, 0.4], [1.0, -1.0, 0.0], [2.0, 0.5, 3.0]])
    group = np.repeat(np.arange(3), 2)
    expected, moved = np.zeros((2, 3)), 0
    for chosen in itertools.product(range(3), repeat=6):
        batch = action_batch([[1]] * 6, rewards[group, chosen], group)
        scores = np.eye(3)[list(chosen)] - chances
        plain, *shrunk = (
            estimate(name, batch, baseline=baseline).advantages
            for name, baseline in (("rloo", "group"), ("rloo", "shrunk"), ("turn_grpo", "shrunk"))
        )
        expected += np.prod(chances[list(chosen)]) * np.array([advantages @ scores for advantages in shrunk]) / 6
        moved += not np.allclose(plain, shrunk[0])
    truth = (rewards.mean(0) * chances) @ (np.eye(3) - chances)
    assert moved > 400
    np.testing.assert_allclose(expected, np.tile(truth, (2, 1)), atol=1e-12)


# ------------------ replies whose length is the policy's choice

FREE_LOGITS = np.array([0.3, -0.4, 0.5, 0.6, -0.2])  # the first turn; of each of the two second turns: go on; what


def free_paths() -> list[Path]:
    """A first turn of one token, then a turn that ends at once or has a second token."""
    rewards = iter((1.5, -1.0, 0.5, -0.5, 2.0, 0.0))
    paths = []
    for first in (0, 1):
        go, what = 1 + 2 * first, 2 + 2 * first
        for later in (((go, 0),), ((go, 1), (what, 0)), ((go, 1), (what, 1))):
            paths.append(Path(((0, first), *later), (1, len(later)), (0.2 * first, next(rewards))))
    return paths


def free_gradients(lam: float, turn_lam: float) -> tuple[np.ndarray, np.ndarray]:
    """The expected gradient of ``bilevel_gae`` with a right critic and without discount, and the policy gradient."""
    paths = free_paths()
    chances = np.array([path.probability(FREE_LOGITS) for path in paths])
    assert chances.sum() == pytest.approx(1.0)

    def worth(state: int) -> float:
        through = [(chance, path) for chance, path in zip(chances, paths, strict=True) if state in dict(path.choices)]
        earned = [sum(path.rewards) if state == 0 else path.rewards[1] for _, path in through]
        return float(np.average(earned, weights=[chance for chance, _ in through]))

    gradient, truth = np.zeros(5), np.zeros(5)
    for chance, path in zip(chances, paths, strict=True):
        batch = batch_of([path], values=np.array([worth(state) for state, _ in path.choices]))
        made = estimate("bilevel_gae", batch, lam=lam, turn_gamma=1.0, turn_lam=turn_lam)
        scores = path.scores(FREE_LOGITS)
        gradient += chance * (made.advantages[:, None] * scores).sum(0)
        truth += chance * sum(path.rewards) * scores.sum(0)
    return gradient, truth


def test_turn_lam_is_biased_where_lengths_are_chosen() -> None:
    for lam in (1.0, 0.5):
        gradient, truth = free_gradients(lam, turn_lam=1.0)
        np.testing.assert_allclose(gradient, truth, atol=1e-12)
    gradient, truth = free_gradients(1.0, turn_lam=0.5)
    error = np.linalg.norm(gradient - truth) / np.linalg.norm(truth)
    print(f"turn_lam=0.5, right critic: off by {error:.3f} of the gradient's norm")
    assert error > 0.02, "docs say that it is biased"
    # The bias is in the first turn alone, whose advantage reaches over the turn that follows.
    np.testing.assert_allclose(gradient[1:], truth[1:], atol=1e-12)


# ------------------ dynamic sampling


def filtered(name: str, options: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, float]:
    """The expected gradient of batches of two groups, without and with replacing tied groups; and P(not tied)."""
    groups = [
        (number, pair, chance_of(pair) / len(TASKS))
        for number, paths in enumerate(TASKS)
        for pair in itertools.product(paths, repeat=SIZE)
    ]
    untied = [(n, pair, chance) for n, pair, chance in groups if len({round(sum(p.rewards), 9) for p in pair}) > 1]
    through = sum(chance for *_, chance in untied)

    def expected(some: list[tuple[int, tuple[Path, ...], float]], total: float) -> np.ndarray:
        gradient = np.zeros(len(LOGITS))
        for one, other in itertools.product(some, repeat=2):
            chosen = [*one[1], *other[1]]
            made = estimate(name, batch_of(chosen, np.repeat([0, 1], SIZE)), **options).advantages
            gradient += one[2] * other[2] / total**2 * (made @ scores_of(chosen)) / len(chosen)
        return gradient

    return expected(groups, 1.0), expected(untied, through), through


@pytest.mark.parametrize(("name", "options"), [("rloo", {}), pytest.param("grpo", {}, marks=pytest.mark.slow)])
def test_replacing_tied_groups_scales_gradient(name: str, options: dict[str, Any]) -> None:
    plain, replaced, through = filtered(name, options)
    assert 0.1 < through < 0.9
    np.testing.assert_allclose(replaced * through, plain, atol=1e-12)


def test_replacing_tied_groups_bends_mixed_baselines_gradient() -> None:
    plain, replaced, _ = filtered("rloo", {"baseline": "mixed"})
    scale = replaced @ plain / (plain @ plain)
    error = np.linalg.norm(replaced - scale * plain) / np.linalg.norm(replaced)
    print(f"rloo, mixed: {error:.3f} of the filtered gradient is not along the unfiltered one")
    assert error > 0.02
