"""``fork`` by enumeration: its expected gradient over every tree that there can be, against the true policy gradient.

A task has up to three turns. The first reply ends the episode or leads to one of two states, the second ends it or
leads to a third turn of two tokens. An episode is a path through these choices; a tree is a root with its forks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from estimating import estimate
from hypothesis import given
from hypothesis import strategies as st
from trajectories import action_batch

from trainers.algorithms.batch import ActionBatch
from trainers.algorithms.estimators import fork as module
from trainers.algorithms.losses import token_weights

# At the opening (three replies); then, in each of two states, the second turn; the third turn's first and second token.
LOGITS = np.array([0.2, -0.4, 0.5, 0.3, -0.6, 0.7, -0.2, 0.4, 0.1])
FIRST, SECOND, THIRD, LAST = slice(0, 3), (3, 4), (5, 6), (7, 8)


@dataclass(frozen=True)
class Path:
    """One episode: its choices by turn, each a tuple of tokens, and the reward of each turn."""

    choices: tuple[tuple[int, ...], ...]
    rewards: tuple[float, ...]

    def scores(self) -> np.ndarray:
        """The gradient of each token's log-probability, ``[tokens, logits]``."""
        rows = []
        for turn, tokens in enumerate(self.choices):
            for place, token in enumerate(tokens):
                row = np.zeros(len(LOGITS))
                if turn == 0:
                    row[FIRST] = -np.exp(LOGITS[FIRST]) / np.exp(LOGITS[FIRST]).sum()
                    row[token] += 1.0
                else:
                    at = self._logit(turn, place)
                    row[at] = token - 1.0 / (1.0 + np.exp(-LOGITS[at]))
                rows.append(row)
        return np.array(rows)

    def probability(self, turn: int = 0) -> float:
        """Return the probability of the choices from this turn on."""
        chance = 1.0
        for number, tokens in enumerate(self.choices):
            for place, token in enumerate(tokens):
                if number == 0 and turn == 0:
                    chance *= np.exp(LOGITS[token]) / np.exp(LOGITS[FIRST]).sum()
                elif number >= max(turn, 1):
                    up = 1.0 / (1.0 + np.exp(-LOGITS[self._logit(number, place)]))
                    chance *= up if token else 1.0 - up
        return float(chance)

    def _logit(self, turn: int, place: int) -> int:
        state = self.choices[0][0] - 1
        return SECOND[state] if turn == 1 else (THIRD[state] if place == 0 else LAST[self.choices[2][0]])


def paths_of(rng: np.random.Generator) -> list[Path]:
    paths = [Path(((0,),), (float(rng.normal()),))]
    for state in (1, 2):
        first, over, on = rng.normal(size=3).tolist()
        paths.append(Path(((state,), (0,)), (first, over)))
        for tokens in itertools.product((0, 1), (0, 1)):
            paths.append(Path(((state,), (1,), tokens), (first, on, float(rng.normal()))))
    return paths


PATHS = paths_of(np.random.default_rng(5))
TRUTH = np.sum([p.probability() * sum(p.rewards) * p.scores().sum(0) for p in PATHS], axis=0)

#: How many forks are made before the reply at a turn of a path; a right rule looks at what came before that turn alone.
Rule = Callable[[Path, int], int]
Tree = tuple[Path, tuple[tuple[int, Path], ...]]  # the root; turn and path of each fork


def trees(rule: Rule) -> Iterator[tuple[float, Tree]]:
    """Every tree with its probability."""
    for root in PATHS:
        slots = [turn for turn in range(len(root.choices)) for _ in range(rule(root, turn))]
        options = [
            [p for p in PATHS if p.choices[:turn] == root.choices[:turn] and len(p.choices) > turn] for turn in slots
        ]
        for chosen in itertools.product(*options):
            chance = root.probability() * np.prod([p.probability(t) for t, p in zip(slots, chosen, strict=True)])
            yield float(chance), (root, tuple(zip(slots, chosen, strict=True)))


def batch_of(
    group: tuple[Tree, ...],
    ending: Callable[[Path], str] = lambda path: "terminated",
    groups: tuple[int, ...] | None = None,
) -> tuple[ActionBatch, np.ndarray]:
    """A batch of these trees, of one group or of those given, and the scores of its tokens."""
    episodes, tree, turns, number = [], [], [], []
    for (root, forks), its_group in zip(group, groups or (0,) * len(group), strict=True):
        place = len(episodes)
        number += [its_group] * (1 + len(forks))
        episodes += [root, *(path for _, path in forks)]
        tree += [-1, *(place for _ in forks)]
        turns += [0, *(turn for turn, _ in forks)]
    own = [path.choices[turn:] for path, turn in zip(episodes, turns, strict=True)]
    ends = [ending(path) for path in episodes]
    batch = action_batch(
        [[len(tokens) for tokens in choices] for choices in own],
        np.concatenate([p.rewards[turn:] for p, turn in zip(episodes, turns, strict=True)]),
        number,
        terminated=np.array([end == "terminated" for end in ends]),
        truncated=np.array([end != "terminated" for end in ends]),
        forked_from=np.array(tree),
        forked_turn=np.array(turns),
        budgeted=np.array([end == "budget" for end in ends]),
    )
    skipped = [sum(len(tokens) for tokens in p.choices[:turn]) for p, turn in zip(episodes, turns, strict=True)]
    return batch, np.concatenate([p.scores()[skip:] for p, skip in zip(episodes, skipped, strict=True)])


def gradient(
    batch: ActionBatch, scores: np.ndarray, weights: Callable[..., np.ndarray] | None = None, **options
) -> np.ndarray:
    """The update of a batch, in the default aggregation: a sum over tokens, a mean over roots."""
    result = estimate("fork", batch, **options)
    loss_weights = result.weights if weights is None else weights(batch, result.weights)
    weight = token_weights(
        "seq-mean-token-sum", batch.token_offsets, result.policy_mask, weights=loss_weights, tree=batch.tree
    )
    return (weight * result.advantages) @ scores


def expected(
    rule: Rule, groups: tuple[int, ...] = (0,), ending: Callable[[Path], str] = lambda path: "terminated", **options
) -> np.ndarray:
    """The mean update over all batches of a tree in each of these groups."""
    total = np.zeros(len(LOGITS))
    for batch in itertools.product(list(trees(rule)), repeat=len(groups)):
        total += np.prod([chance for chance, _ in batch]) * gradient(
            *batch_of(tuple(t for _, t in batch), ending, groups), **options
        )
    return total


RULES: dict[str, Rule] = {
    "nowhere": lambda path, turn: 0,
    "every turn once": lambda path, turn: 1,
    "the opening twice": lambda path, turn: 2 * (turn == 0),
    "the second turn": lambda path, turn: turn == 1,
    "the last turn twice": lambda path, turn: 2 * (turn == 2),
    "one state, not the other": lambda path, turn: int(turn == 1 and path.choices[0] == (2,)),
    "by what came before": lambda path, turn: (path.rewards[0] > 0) + 1 if turn == 2 else 0,
}


@pytest.mark.parametrize("rule", RULES)
def test_one_tree_is_unbiased_wherever_it_forks(rule: str) -> None:
    assert sum(chance for chance, _ in trees(RULES[rule])) == pytest.approx(1.0)
    np.testing.assert_allclose(expected(RULES[rule]), TRUTH, atol=1e-12)


@pytest.mark.parametrize(
    "rule", ["nowhere", pytest.param("the second turn", marks=pytest.mark.slow), "one state, not the other"]
)
def test_trees_of_group_are_unbiased_together(rule: str) -> None:
    np.testing.assert_allclose(expected(RULES[rule], (0, 0)), TRUTH, atol=1e-12)


@pytest.mark.parametrize(("rule", "groups"), [("nowhere", (0, 0, 1)), ("the second turn", (0, 1))])
def test_trees_of_batch_are_unbiased_together(rule: str, groups: tuple[int, ...]) -> None:
    np.testing.assert_allclose(expected(RULES[rule], groups, baseline="mixed"), TRUTH, atol=1e-12)


def test_any_continuing_share_is_unbiased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "continuing_share", lambda forks, following: 0.05 if forks else 1.0)
    np.testing.assert_allclose(expected(RULES["every turn once"]), TRUTH, atol=1e-12)


def test_whether_to_fork_may_be_drawn() -> None:
    """Forks left out at random, as under a budget or where some fail for a reason of their own."""
    estimate = 0.5 * expected(RULES["one state, not the other"]) + 0.5 * expected(RULES["the second turn"])
    np.testing.assert_allclose(estimate, TRUTH, atol=1e-12)


@pytest.mark.parametrize("truncated", [pytest.param("count", marks=pytest.mark.slow), "drop"])  # the default
def test_budget_of_environment_is_part_of_state(truncated: str) -> None:
    """The third turn is the last that the environment allows: nothing comes after it, and nothing is left out."""

    def ending(path: Path) -> str:
        return "budget" if len(path.choices) == 3 else "terminated"

    estimate = expected(RULES["every turn once"], ending=ending, truncated=truncated)
    np.testing.assert_allclose(estimate, TRUTH, atol=1e-12)


def test_exhausted_context_counts_or_is_dropped() -> None:
    def ending(path: Path) -> str:
        return "context" if path.choices[-1] == (1, 1) else "terminated"

    np.testing.assert_allclose(expected(RULES["the second turn"], ending=ending), TRUTH, atol=1e-12)
    dropped = expected(RULES["the second turn"], ending=ending, truncated="drop")
    assert np.abs(dropped - TRUTH).max() > 0.01, "what is learned is what works in time"
    for _, (root, forks) in itertools.islice(trees(RULES["every turn once"]), 50, 120):
        batch, _ = batch_of(((root, forks),), ending)
        result = estimate("fork", batch, truncated="drop")
        cut_off = [ending(path) == "context" or ending(root) == "context" for path in (root, *(p for _, p in forks))]
        assert result.policy_mask.tolist() == (~np.array(cut_off))[batch.episode_of_token].tolist()
        counted = tuple((turn, path) for turn, path in forks if ending(path) != "context")
        if ending(root) != "context":
            alone = estimate("fork", batch_of(((root, counted),))[0])
            assert result.advantages[result.policy_mask].tolist() == alone.advantages.tolist()
            assert result.weights is not None
            assert result.weights[result.policy_mask].tolist() == alone.weights.tolist()  # type: ignore[union-attr]


def _without_weights(batch: ActionBatch, right: np.ndarray) -> np.ndarray:
    return np.ones_like(right)


def _roots_count_whole(batch: ActionBatch, right: np.ndarray) -> np.ndarray:
    """Weigh roots as if they shared nothing with their forks."""
    return np.where(batch.forked_from[batch.episode_of_token] < 0, 1.0, right)  # type: ignore[index]


def _forks_count_once(batch: ActionBatch, right: np.ndarray) -> np.ndarray:
    """A fork's later turns are thrown away, yet the root's mass was shared with them."""
    return np.where((batch.forked_from[batch.episode_of_token] >= 0) & (batch.turn_index > 0), 0.0, right)  # type: ignore[index]


def _the_same_in_all(batch: ActionBatch, right: np.ndarray) -> np.ndarray:
    """Every episode of a tree counts the same at every turn."""
    return np.full_like(right, 1.0 / batch.num_episodes)


@pytest.mark.parametrize("wrong", [_without_weights, _roots_count_whole, _forks_count_once, _the_same_in_all])
def test_wrong_weights_are_found(wrong: Callable[..., np.ndarray]) -> None:
    estimate = expected(RULES["the second turn"], weights=wrong)
    assert np.abs(estimate - TRUTH).max() > 0.02


@pytest.mark.parametrize(
    "rule",
    [
        lambda path, turn: int(turn == 1 and path.choices[1] == (1,)),  # looks at the reply that is to be judged
        lambda path, turn: int(sum(path.rewards) > 0 and turn == 1),  # at what the root will have earned
    ],
)
def test_decision_that_knows_reply_is_biased(rule: Rule) -> None:
    """Why ``fork.where`` and ``fork.budget`` use earlier batches alone."""
    assert sum(chance for chance, _ in trees(rule)) == pytest.approx(1.0)
    assert np.abs(expected(rule) - TRUTH).max() > 0.01


# ---------------------------------------------------------------- against plain loops


def oracle(
    group: tuple[Tree, ...], gamma: float, groups: tuple[int, ...], kind: str
) -> tuple[list[float], list[float]]:
    """Advantage and weight of each turn, episode after episode, from the formulas of the module."""
    rows: list[dict[str, Any]] = []  # "left": the turn at which it left its root; its own where it has not
    for number, (root, forks) in enumerate(group):
        length = len(root.choices)

        def to_go(rewards: tuple[float, ...]) -> float:
            return sum(gamma**k * reward for k, reward in enumerate(rewards))

        at_turn = [[path for turn, path in forks if turn == t] for t in range(length)]
        q, value = [0.0] * length, 0.0
        for t in reversed(range(length)):
            q[t] = root.rewards[t] + gamma * value
            value = (q[t] + sum(to_go(path.rewards[t:]) for path in at_turn[t])) / (1 + len(at_turn[t]))
        mass, masses = 1.0, []
        for t in range(length):
            k = len(at_turn[t])
            following = [
                sum(turn == t + 1 for turn, _ in branches)
                for other, (path, branches) in enumerate(group)
                if other != number and len(path.choices) > t + 1
            ]
            expected_forks = float(np.mean(following)) if following else k
            share = (1 + expected_forks) / (1 + expected_forks + k)
            masses.append((mass / (1 + k), mass * (1 - share) / max(k, 1)))
            mass *= share
        rows += [{"tree": number, "turn": t, "left": t, "q": q[t], "w": masses[t][0]} for t in range(length)]
        for turn, path in forks:
            for t in range(turn, len(path.choices)):
                weight = masses[turn][t > turn]
                rows.append({"tree": number, "turn": t, "left": turn, "q": to_go(path.rewards[t:]), "w": weight})
    advantages = []
    for row in rows:
        peers = [other for other in rows if other["turn"] == row["turn"] and other is not row]
        baseline = None
        for parted in range(row["left"] + 1):  # where the two histories part
            nearest = [o for o in peers if (min(o["left"], row["left"]) if o["tree"] == row["tree"] else 0) == parted]
            values, weights = [o["q"] for o in nearest], [1.0 for o in nearest]
            if parted == 0:
                weights = [o["w"] for o in nearest]
            elif parted == row["left"] < row["turn"]:  # of the samples at the root's state, their mean is one value
                values = [o["q"] for o in nearest if o["left"] < o["turn"]]
                if state := [o["q"] for o in nearest if o["left"] == o["turn"]]:
                    values.append(float(np.mean(state)))
                weights = [1.0] * len(values)
            if parted == 0:
                siblings = [groups[o["tree"]] == groups[row["tree"]] for o in nearest]
                near = np.array([w * s for w, s in zip(weights, siblings, strict=True)])
                means = [np.average(values, weights=near)] if any(siblings) else []
                if kind == "mixed" and nearest:
                    means.append(np.average(values, weights=weights))
                baseline = float(np.mean(means)) if means else None
                continue
            if baseline is not None:
                values, weights = [*values, baseline], [*weights, 1.0]
            baseline = float(np.average(values, weights=weights)) if values else None
        advantages.append(row["q"] - (baseline or 0.0))
    return advantages, [row["w"] for row in rows]


@given(st.data())
def test_advantages_and_weights_are_those_of_formulas(data: st.DataObject) -> None:
    group: list[Tree] = []
    for _ in range(data.draw(st.integers(1, 4))):
        root = data.draw(st.sampled_from(PATHS))
        turns = sorted(data.draw(st.lists(st.integers(0, len(root.choices) - 1), max_size=5)))
        forks = tuple(
            (
                turn,
                data.draw(
                    st.sampled_from(
                        [p for p in PATHS if p.choices[:turn] == root.choices[:turn] and len(p.choices) > turn]
                    )
                ),
            )
            for turn in turns
        )
        group.append((root, forks))
    gamma = data.draw(st.sampled_from([1.0, 0.7, 0.0]))
    kind = data.draw(st.sampled_from(["group", "mixed"]))
    groups = tuple(data.draw(st.lists(st.integers(0, 1), min_size=len(group), max_size=len(group))))
    batch, _ = batch_of(tuple(group), groups=groups)
    result = estimate("fork", batch, gamma=gamma, baseline=kind)
    advantages, weights = oracle(tuple(group), gamma, groups, kind)
    np.testing.assert_allclose(result.advantages, np.array(advantages)[batch.turn_of_token], atol=1e-12)
    np.testing.assert_allclose(result.weights, np.array(weights)[batch.turn_of_token], atol=1e-12)


def test_tree_weights_at_common_depth_sum_to_one() -> None:
    root, other = PATHS[3], PATHS[4]  # three turns each, alike in the first two
    batch, _ = batch_of(((root, ((0, other), (1, other), (1, root), (2, other))),))
    weights = estimate("fork", batch).weights
    assert weights is not None
    turn = batch.turn_index + batch.first_turn[batch.episode_of_token]
    by_turn = weights[batch.turn_starts]
    np.testing.assert_allclose(np.bincount(turn[batch.turn_starts], by_turn), [1.0, 1.0, 1.0], atol=1e-12)


def test_without_forks_it_is_turn_grpo() -> None:
    group = tuple((path, ()) for path in (PATHS[0], PATHS[2], PATHS[5], PATHS[1]))
    batch, _ = batch_of(group, groups=(0, 0, 1, 2))
    for kind in ("group", "mixed"):
        result, plain = (
            estimate("fork", batch, gamma=0.9, baseline=kind),
            estimate("turn_grpo", batch, gamma=0.9, baseline=kind),
        )
        np.testing.assert_allclose(result.advantages, plain.advantages, atol=1e-12)
    assert result.weights.tolist() == [1.0] * batch.num_tokens  # type: ignore[union-attr]


def test_equal_returns_have_advantage_of_exactly_zero() -> None:
    paths = [Path(path.choices, (0.0,) * (len(path.choices) - 1) + (0.1 + 0.2,)) for path in PATHS[3:7]]
    batch, _ = batch_of(
        ((paths[0], ((0, paths[1]), (0, paths[2]), (0, paths[3]), (2, paths[1]))), (paths[2], ()), (paths[3], ())),
        groups=(0, 0, 1),
    )
    for kind in ("group", "mixed"):
        assert not estimate("fork", batch, baseline=kind).advantages[batch.group[batch.episode_of_token] == 0].any()


def test_forks_are_of_roots_in_their_own_group() -> None:
    root, other = PATHS[3], PATHS[4]
    batch, _ = batch_of(((root, ((1, other),)), (other, ())))
    parts = {name: getattr(batch, name) for name in batch.__dataclass_fields__}
    for change, message in (
        ({"forked_from": np.array([-1, 0, 1])}, "forked from a fork"),
        ({"group": np.array([0, 1, 0])}, "of another group"),
        ({"forked_turn": np.array([0, 3, 0])}, "a turn that its root lacks"),
        ({"forked_turn": None}, "come together"),
    ):
        with pytest.raises(ValueError, match=message):
            ActionBatch(**parts | change)
