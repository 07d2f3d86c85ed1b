"""Rows, micro-batches and shares, against what they are defined to be."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learner_helpers import trajectory

from trainers.learner.packing import action_rows, balance, micro_batches, value_rows
from trainers.trajectory import action_offsets


@st.composite
def trajectories(draw):
    turn = st.tuples(st.integers(1, 6), st.integers(0, 5))
    shapes = draw(st.lists(st.lists(st.lists(turn, min_size=1, max_size=3), min_size=1, max_size=3), max_size=8))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    return [trajectory(rng, shape, tail=draw(st.integers(0, 3))) for shape in shapes]


def prefixes(item):
    """Return for each action token the tokens of its segment before it, and itself."""
    for at in item.actions:
        start = max(s for s in item.segment_starts if s <= at)
        yield item.token_ids[start:at].tolist(), int(item.token_ids[at])


def read(batches):
    """Return for each flat index the tokens read at its position, and the target; each index once."""
    result = {}
    for batch in batches:
        flat, (height, width) = batch.input_ids.ravel(), batch.input_ids.shape
        lengths = np.full(height, width) if batch.forest is None else np.array([len(p) for p in batch.forest.paths])
        starts = np.cumsum(lengths) - lengths
        for position, target, index in zip(batch.positions, batch.targets, batch.index, strict=True):
            row = max(start for start in starts if start <= position)
            assert index not in result
            result[int(index)] = (flat[row : position + 1].tolist(), int(target))
    return result


@given(trajectories(), st.integers(1, 60), st.sampled_from(["padded", "packed"]))
def test_each_action_is_predicted_once_from_prefix(items, budget, layout):
    (batches,) = micro_batches(action_rows(items), budget, layout=layout)
    expected = [pair for item in items for pair in prefixes(item)]
    assert read(batches) == dict(enumerate(expected))
    assert action_offsets(items)[-1] == len(expected)


@given(trajectories(), st.integers(1, 60))
def test_values_are_read_before_actions_and_at_end(items, budget):
    got = read(*micro_batches(value_rows(items), budget))
    states = [before for item in items for before, _ in prefixes(item)]
    states += [item.token_ids[item.segment_starts[-1] :].tolist() for item in items]
    assert {index: tokens for index, (tokens, _) in got.items()} == dict(enumerate(states))


@given(trajectories(), st.integers(1, 60), st.sampled_from(["padded", "packed"]))
def test_batches_keep_budget_and_trajectories_whole(items, budget, layout):
    units = action_rows(items)
    (batches,) = micro_batches(units, budget, layout=layout)
    owner = np.repeat(np.arange(len(items)), np.diff(action_offsets(items)))
    owners = [set(owner[batch.index]) for batch in batches]
    assert sum(map(len, owners)) == len(set().union(*owners))
    for batch, inside in zip(batches, owners, strict=True):
        assert batch.input_ids.size <= budget or len(inside) == 1
    lengths = [len(row.tokens) for unit in units for row in unit]
    assert sum(batch.num_tokens for batch in batches) == sum(lengths)
    assert sum(batch.squares for batch in batches) == sum(length**2 for length in lengths)
    for batch, after in itertools.pairwise(batches):
        first = next(unit for unit in units if unit and any(after.index[0] in row.index for row in unit))
        (rows, width), extra = batch.input_ids.shape, sum(len(row.tokens) for row in first)
        needed = width + extra if layout == "packed" else (rows + len(first)) * width
        assert needed > budget, "what begins the next one had no room here"


def test_nothing_is_read_after_last_wanted_position():
    rng = np.random.default_rng(0)
    item = trajectory(rng, [[(3, 2), (4, 1)]], tail=30)
    ((batch,),) = micro_batches(action_rows([item]), 1000)
    assert batch.input_ids.shape == (1, 9)  # 10 tokens up to the last action, which is predicted, not read
    ((batch,),) = micro_batches(value_rows([item]), 1000)
    assert batch.input_ids.shape == (1, 40)


def test_sorting_leaves_little_padding():
    rng = np.random.default_rng(0)
    items = [trajectory(rng, [[(int(n), 5)]]) for n in rng.integers(20, 200, 256)]
    (batches,) = micro_batches(action_rows(items), 4096)
    real, padded = sum(b.num_tokens for b in batches), sum(b.input_ids.size for b in batches)
    assert real / padded > 0.9


def test_no_tokens_no_value():
    empty = trajectory(np.random.default_rng(0), [[]])
    assert micro_batches(action_rows([empty]), 10) == [[]]
    with pytest.raises(ValueError, match="trajectory 0 .* has no token"):
        value_rows([empty])


@given(st.lists(st.integers(0, 100), max_size=7), st.integers(1, 3))
def test_shares_are_partition_within_four_thirds_of_best(costs, ranks):
    shares = balance(costs, ranks)
    assert len(shares) == ranks
    assert sorted(itertools.chain(*shares)) == list(range(len(costs)))
    largest = max(sum(costs[i] for i in share) for share in shares)
    best = min(
        max(sum(c for c, r in zip(costs, assignment, strict=True) if r == rank) for rank in range(ranks))
        for assignment in itertools.product(range(ranks), repeat=len(costs))
    )
    assert largest <= (4 / 3 - 1 / (3 * ranks)) * best + 1e-9
