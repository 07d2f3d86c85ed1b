"""Reaction credit: the formula, its bias, the controls, and what is reported of it."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trajectories import action_batch, trajectory_of, turns_of

from trainers.advantages import estimate
from trainers.algorithms.batch import ActionBatch, Advantages
from trainers.algorithms.estimators import RLOO
from trainers.algorithms.reaction import VALUES, MovesError, ReactionCreditSection, moves_of
from trainers.command_line import resolve
from trainers.report.reactions import agreement, reaction_metrics
from trainers.rollout.batch import roots_and_forks
from trainers.trajectory import MOVES, Trajectory
from trainers.update import Update

RNG = np.random.default_rng(0)


@st.composite
def batches(draw: Any) -> tuple[ActionBatch, Any, Advantages]:
    """Return episodes in groups, some of them forks, with moves, advantages and tokens that are not trained on."""
    count = draw(st.integers(1, 6))
    lengths = [draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)) for _ in range(count)]
    group = [draw(st.integers(0, 1)) for _ in range(count)]
    roots = [draw(st.integers(-1, place - 1)) for place in range(count)]
    is_fork = [root >= 0 and roots[root] < 0 and group[root] == group[place] for place, root in enumerate(roots)]
    origin = np.array([root if fork else -1 for root, fork in zip(roots, is_fork, strict=True)])
    for place in range(count):  # no fork of a fork
        if origin[place] >= 0 and origin[origin[place]] >= 0:
            origin[place] = -1
    turns = sum(map(len, lengths))
    batch = action_batch(
        lengths, np.zeros(turns), group=group, forked_from=origin, forked_turn=np.zeros(count, np.int64)
    )
    moves = np.array(draw(st.lists(st.integers(-1, len(MOVES) - 1), min_size=turns, max_size=turns)))
    mask = np.repeat(draw(st.lists(st.booleans(), min_size=count, max_size=count)), np.diff(batch.token_offsets))
    advantages = np.where(mask, RNG.normal(size=batch.num_tokens), 0.0)
    return batch, moves, Advantages(advantages, mask)


def by_formula(section: ReactionCreditSection, batch: ActionBatch, moves: Any, result: Advantages) -> np.ndarray:
    """Compute the credit of each turn with loops."""
    table, sign = {**VALUES, **section.table}, -1.0 if section.control == "reversed" else 1.0
    owner = batch.episode_of_turn
    trained = [result.policy_mask[batch.turn_of_token == turn].any() for turn in range(len(moves))]
    named = [turn for turn in range(len(moves)) if moves[turn] >= 0 and trained[turn]]
    value = {turn: sign * table[MOVES[moves[turn]]] for turn in named}
    centred = np.zeros(len(moves))
    for turn in named:
        others = [other for other in named if batch.tree[owner[other]] != batch.tree[owner[turn]]]
        siblings = [other for other in others if batch.group[owner[other]] == batch.group[owner[turn]]]
        if section.baseline == "group" and siblings:
            others = siblings
        others = [value[other] for other in others]
        centred[turn] = value[turn] - (np.mean(others) if others and section.baseline != "none" else 0.0)
    if section.scale == "fixed":
        return section.weight * centred
    of_tokens = [centred[batch.turn_of_token[token]] for token in np.flatnonzero(result.policy_mask)]
    own = np.sqrt(np.mean(np.square(of_tokens))) if of_tokens else 0.0
    theirs = np.sqrt(np.mean(result.advantages[result.policy_mask] ** 2)) if of_tokens else 0.0
    return section.weight * centred * (theirs / own if own > 1e-9 else 0.0)


@settings(max_examples=40)
@given(
    batches(),
    st.sampled_from(["batch", "group", "none"]),
    st.sampled_from(["relative", "fixed"]),
    st.sampled_from(["none", "reversed"]),
    st.dictionaries(st.sampled_from(MOVES), st.sampled_from([-1.0, -0.3, 0.0, 0.7, 1.0])),
)
def test_credit_is_the_formula(made: Any, baseline: Any, scale: Any, control: Any, table: Any) -> None:
    section = ReactionCreditSection(weight=0.5, baseline=baseline, scale=scale, control=control, table=table)
    credit = section.credit(*made, rng=np.random.default_rng(0))
    np.testing.assert_allclose(credit, by_formula(section, *made), atol=1e-9)


@settings(max_examples=20)
@given(batches(), st.integers(0, 3))
def test_shuffled_control_exchanges_values_reproducibly(made: Any, seed: int) -> None:
    batch, moves, result = made
    section = ReactionCreditSection(weight=1.0, baseline="none", scale="fixed", control="shuffled")
    credit, again = (section.credit(*made, rng=np.random.default_rng(seed)) for _ in range(2))
    plain = section.model_copy(update={"control": "none"}).credit(*made, rng=np.random.default_rng(seed))
    assert credit.tolist() == again.tolist()
    assert sorted(credit.tolist()) == sorted(plain.tolist())
    trained = np.bincount(batch.turn_of_token, result.policy_mask, minlength=len(moves)) > 0
    assert not credit[(moves < 0) | ~trained].any()


def test_equal_moves_are_no_signal() -> None:
    batch = action_batch([[1], [2], [1]], np.zeros(3))
    result = Advantages(np.array([0.1, -0.2, 0.3, 0.7]), np.ones(4, np.bool_))
    section = ReactionCreditSection(weight=1.0, table={"repeats": -0.3})
    assert not section.credit(batch, np.full(3, MOVES.index("repeats")), result, RNG).any()


def test_expected_gradient_has_discount_zero() -> None:
    """All batches of two episodes of a user in two states: unbiased for the next move, and blind to what follows.

    The first reply asks or guesses: a guess ends the talk; after a question the second reply is good or bad.
    """
    chances = {0: np.array([0.3, 0.7]), 1: np.array([0.6, 0.4])}  # of the replies of each turn
    paths = {(0, 0): ("reveals", "confirms"), (0, 1): ("reveals", "complains"), (1,): ("answers",)}
    section = ReactionCreditSection(weight=0.5, scale="fixed")

    def chance(path: tuple[int, ...]) -> float:
        return float(np.prod([chances[turn][reply] for turn, reply in enumerate(path)]))

    def score(turn: int, reply: int) -> np.ndarray:
        gradient = np.zeros(4)
        gradient[2 * turn : 2 * turn + 2] = np.eye(2)[reply] - chances[turn]
        return gradient

    expected, myopic, whole = np.zeros(4), np.zeros(4), np.zeros(4)
    for pair in itertools.product(paths, repeat=2):
        moves = np.array([MOVES.index(move) for path in pair for move in paths[path]])
        batch = action_batch([[1] * len(path) for path in pair], np.zeros(len(moves)))
        result = Advantages(np.zeros(len(moves)), np.ones(len(moves), np.bool_))
        credit = section.credit(batch, moves, result, RNG)
        scores = [score(turn, reply) for path in pair for turn, reply in enumerate(path)]
        expected += chance(pair[0]) * chance(pair[1]) * credit @ np.array(scores) / 2
    for path, moves_of_path in paths.items():
        values = [VALUES[move] for move in moves_of_path]
        for turn, reply in enumerate(path):
            myopic += chance(path) * values[turn] * score(turn, reply)
            whole += chance(path) * sum(values[turn:]) * score(turn, reply)
    np.testing.assert_allclose(expected, 0.5 * myopic, atol=1e-12)
    assert np.abs(myopic - whole).max() > 0.01


# ------------------------------------------------------------------ in an update


def episode(moves: tuple[str, ...], reward: float, group: str = "", **fields: Any) -> Trajectory:
    """Return an episode that earns its reward with the last of its turns."""
    rewards = np.append(np.zeros(len(moves) - 1), reward)
    return trajectory_of(turns_of(*[(1, 2)] * len(moves)), rewards, turn_moves=moves, group_id=group, **fields)


EPISODES = [
    episode(("reveals", "confirms"), 1.0, "a", episode_id="0"),
    episode(("complains", ""), 0.0, "a", episode_id="1"),
    episode(("repeats", "ends"), 1.0, "b", episode_id="2"),
    episode(("complains",), 0.25, "b", episode_id="3"),
]


def estimated(**options: Any) -> Any:
    algorithm = RLOO(baseline="group", reaction_credit=ReactionCreditSection(**options))
    return estimate(algorithm, roots_and_forks(EPISODES), explain=True)


@pytest.mark.parametrize("scale", ["relative", "fixed"])
def test_advantages_gain_the_credit_of_their_turn(scale: Any) -> None:
    plain, with_credit = estimated(), estimated(weight=0.5, scale=scale)
    batch = ActionBatch.from_trajectories(EPISODES)
    section = ReactionCreditSection(weight=0.5, scale=scale)
    credit = section.credit(batch, moves_of(EPISODES), plain.advantages, RNG)
    gained = with_credit.advantages.advantages - plain.advantages.advantages
    np.testing.assert_allclose(gained, credit[batch.turn_of_token])
    by_reaction = with_credit.advantages.made_of.by_reaction
    assert np.isnan(by_reaction).tolist() == [False, False, False, True, False, False, False]
    ratio = np.sqrt(np.mean(gained**2) / np.mean(plain.advantages.advantages**2))
    assert with_credit.metrics["actor/reaction_size"] == pytest.approx(ratio)
    assert scale == "fixed" or ratio == pytest.approx(0.5)
    assert not any("reaction" in name for name in plain.metrics)


def test_shuffled_control_depends_on_the_episodes_alone() -> None:
    first, second = (estimated(weight=1.0, control="shuffled").advantages.advantages for _ in range(2))
    assert first.tolist() == second.tolist()
    assert first.tolist() != estimated(weight=1.0).advantages.advantages.tolist()


def test_metrics_say_which_moves_and_how_returns_agree() -> None:
    metrics = estimated(weight=1.0).metrics
    assert metrics["actor/reaction_named"] == pytest.approx(6 / 7)
    shares = {name: value for name, value in metrics.items() if "reaction_share/" in name}
    assert shares["actor/reaction_share/complains"] == pytest.approx(1 / 3)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert metrics["actor/reaction_advantage/reveals"] == pytest.approx(1.0)
    # reveals +1, confirms +1, complains -1; repeats: +0.75 and a value below 0; ends: the batch's second turns are 0.5
    # on average, it has 1; complains -0.75.
    assert metrics["actor/reaction_agreement_turns"] == 6.0
    assert metrics["actor/reaction_agreement"] == pytest.approx(5 / 6)
    assert 0 < metrics["actor/reaction_agreement_low"] < 5 / 6 < metrics["actor/reaction_agreement_high"] <= 1


def test_agreement_of_tied_returns_counts_nothing() -> None:
    tied = [episode(("reveals",), 1.0, "a"), episode(("complains",), 1.0, "a")]
    batch, result = ActionBatch.from_trajectories(tied), Advantages(np.zeros(4), np.ones(4, np.bool_))
    section = ReactionCreditSection(weight=1.0)
    assert agreement(section, batch, moves_of(tied), result) == {"reaction_agreement_turns": 0.0}
    credit = section.credit(batch, moves_of(tied), result, RNG)
    assert not credit.any(), "relative to advantages of 0"
    assert "reaction_size" not in reaction_metrics(section, batch, moves_of(tied), result, credit)
    fixed = section.model_copy(update={"scale": "fixed"})
    assert fixed.credit(batch, moves_of(tied), result, RNG).tolist() == [2.0, -2.0]


@pytest.mark.parametrize("iteration", [0, 7])
def test_first_batch_without_moves_is_refused(iteration: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a run that resumed with ``reaction_credit``; where a batch has had moves, one without is trained on."""
    config, _ = resolve(["model.device=cpu", "algorithm.reaction_credit.weight=0.5"])
    silent = roots_and_forks([trajectory_of([-1, 0, 0], [1.0]), trajectory_of([-1, 0], [0.0])])
    learner: Any = SimpleNamespace(reference=None, critic=None)
    with pytest.raises(MovesError, match="no scripted user that names its moves.*reward_models.NAME.kind=moves"):
        Update(config).step(silent, learner, iteration=iteration)
    monkeypatch.setattr(Update, "optimize", lambda *_, **__: "optimized")
    spoken = roots_and_forks([episode(("reveals",), 1.0, "a"), episode(("repeats",), 0.0, "a")])
    before = Update(config)
    before.step(spoken, learner, iteration=iteration)
    resumed = Update(config)
    resumed.load_state_dict(before.state_dict())
    assert resumed.step(silent, learner, iteration=iteration + 1) == "optimized"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algorithm.reaction_credit.control=reversed"], "has no effect without algorithm.reaction_credit.weight"),
        (["algorithm.reaction_credit.weight=1", "algorithm.reaction_credit.table.shrugs=1"], "shrugs is no move"),
        (
            ["algorithm.reaction_credit.weight=1", "algorithm.reaction_credit.table.ends=2"],
            "ends: 2 is not from -1 to 1",
        ),
        (
            ["algorithm.reaction_credit.weight=1", "algorithm.reaction_credit.baseline=group", "rollout.n=1"],
            "there are no other episodes in it",
        ),
        (["reward_models.m.kind=moves", "reward_models.m.moves.model=x"], "has no effect without algorithm.reaction"),
        (
            [
                *("algorithm.reaction_credit.weight=1", "reward_models.m.kind=moves", "reward_models.m.moves.model=x"),
                "reward_models.m.weight=2",
            ],
            "which rewards nothing",
        ),
        (["algorithm.reaction_credit.weight=1", "env.train_side=both"], "names no move"),
    ],
)
def test_settings_that_contradict_are_refused(overrides: list[str], words: str) -> None:
    with pytest.raises(Exception, match=words):
        resolve(["algorithm.adv_estimator=rloo", *overrides])
