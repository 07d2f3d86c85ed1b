"""Token trees: against a naive trie, and the learner's numbers and gradients against those of rows read one by one."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_helpers import VOCAB, masked, sections, trajectory
from ranks import assert_same, make_learner, measure
from transformers import AutoConfig

from trainers.learner import Learner, trees
from trainers.learner.packing import action_rows, micro_batches, value_rows
from trainers.learner.setup import can_read_trees
from trainers.learner.trees import blocks, merge, tiles
from trainers.models.tiny import build_model

# ------------------ forests

rows = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=9).map(lambda row: np.array(row, np.int32)), max_size=9
)


def ancestors(forest):
    """bool ``[T, T]``: who is above whom, or it itself; by the paths alone."""
    matrix = np.zeros((len(forest.tokens),) * 2, np.bool_)
    for path in forest.paths:
        for depth, node in enumerate(path):
            matrix[node, path[: depth + 1]] = True
    return matrix


@given(rows)
def test_forest_has_node_for_every_distinct_prefix(some):
    forest = merge(some)
    prefixes = {tuple(row[: at + 1].tolist()) for row in some for at in range(len(row))}
    assert len(forest.tokens) == len(prefixes)
    nodes = {}
    for row, path in zip(some, forest.paths, strict=True):
        assert forest.tokens[path].tolist() == row.tolist()
        assert forest.depths[path].tolist() == list(range(len(row)))
        for at, node in enumerate(path.tolist()):
            assert nodes.setdefault(tuple(row[: at + 1].tolist()), node) == node
    assert sorted(nodes.values()) == list(range(len(prefixes)))
    new = [node for path, count in forest.branches for node in path[len(path) - count :]]
    assert new == sorted(nodes.values()), "branches are all nodes, in order"


@given(rows)
def test_ancestors_are_those_whose_descendants_have_not_ended(some):
    forest = merge(some)
    at = np.arange(len(forest.tokens))
    np.testing.assert_array_equal((at <= at[:, None]) & (at[:, None] < forest.ends), ancestors(forest))


@given(rows)
def test_without_merging_sequences_stand_one_after_another(some):
    forest = merge(some, shared=False)
    assert forest.tokens.tolist() == [token for row in some for token in row]
    assert forest.flat


@given(rows)
def test_forest_of_separate_sequences_is_flat(some):
    forest = merge(some)
    apart = merge([forest.tokens[path].astype(np.int32) for path, _ in forest.branches], shared=False)
    same = len(apart.tokens) == len(forest.tokens) and np.array_equal(ancestors(apart), ancestors(forest))
    assert forest.flat == same


@given(rows, st.integers(1, 4))
def test_blocks_attend_to_exactly_ancestors(some, queries):
    forest = merge(some)
    matrix, nodes = np.zeros((len(forest.tokens),) * 2, np.bool_), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trees, "_QUERIES", queries)
        patch.setattr(trees, "_SMALL", 4)
        made = blocks(forest)
    for block in made:
        for branch, query in np.argwhere(block.real):
            node = block.queries[branch, query]
            nodes.append(node)
            matrix[node, block.keys[branch, : block.starts[branch] + query + 1]] = True
    assert sorted(nodes) == list(range(len(forest.tokens)))
    np.testing.assert_array_equal(matrix, ancestors(forest))


@given(rows, st.integers(1, 4), st.integers(1, 4), st.integers(0, 5))
def test_tiles_have_some_ancestor_or_nothing_else(some, queries, keys, padding):
    forest = merge(some)
    total = len(forest.tokens)
    some_above, all_above = tiles(np.append(forest.ends, np.zeros(padding, np.int64)), queries, keys)
    above = np.pad(ancestors(forest), (0, padding))
    assert some_above.shape == all_above.shape == (-(-len(above) // queries), -(-len(above) // keys))
    for query, key in np.ndindex(some_above.shape):
        tile = above[query * queries : (query + 1) * queries, key * keys : (key + 1) * keys]
        assert some_above[query, key] == tile.any()
        whole = tile.shape == (queries, keys) and tile.all() and query * queries >= (key + 1) * keys
        assert all_above[query, key] == whole
    assert not some_above[-(-total // queries) :].any()


# ------------------ micro-batches


@st.composite
def forks(draw):
    """Episodes of one to three segments that begin with parts of each other."""
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    turns = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 5)), min_size=1, max_size=3)
    made = []
    for segments in draw(st.lists(st.lists(turns, min_size=1, max_size=2), max_size=8)):
        item = trajectory(rng, segments, tail=draw(st.integers(0, 2)))
        if made:
            other = draw(st.sampled_from(made)).token_ids
            common = draw(st.integers(0, min(len(other), len(item.token_ids))))
            item = replace(item, token_ids=np.concatenate([other[:common], item.token_ids[common:]]))
        made.append(item)
    return made


def read(batches):
    """Return for each flat index the tokens seen at its position, and the target; each index once."""
    result = {}
    for batch in batches:
        above = ancestors(batch.forest)
        for position, target, index in zip(batch.positions, batch.targets, batch.index, strict=True):
            assert index not in result
            result[int(index)] = (batch.input_ids[0, above[position]].tolist(), int(target))
    return result


@given(forks(), st.integers(1, 80), st.integers(1, 3), st.sampled_from([action_rows, value_rows]))
def test_trees_read_rows_and_keep_trajectories_whole(items, budget, ranks, rows_of):
    units = rows_of(items)
    apart = [batch for share in micro_batches(units, budget, layout="packed") for batch in share]
    shares = micro_batches(units, budget, ranks, "trees")
    batches = [batch for share in shares for batch in share]
    assert len(shares) == ranks
    assert read(batches) == read(apart)
    for name in ("num_tokens", "squares"):
        assert sum(getattr(b, name) for b in batches) == sum(getattr(b, name) for b in apart)
    owner = {int(index): number for number, unit in enumerate(units) for row in unit for index in row.index}
    owners = [{owner[int(index)] for index in batch.index} for batch in batches]
    assert sum(map(len, owners)) == len(set().union(*owners))
    for batch, inside in zip(batches, owners, strict=True):
        some = [row.tokens for number in inside for row in units[number]]
        assert batch.real == batch.input_ids.size == len({tuple(row[: i + 1]) for row in some for i in range(len(row))})
        assert batch.real <= budget or len(inside) == 1


def group(rng, prompt, replies):
    """Siblings; no two of their tokens are equal by chance."""
    first = trajectory(rng, [[(prompt, 1)]], vocab=10**9)
    made = [trajectory(rng, [[(prompt, reply)]], vocab=10**9) for reply in replies]
    return [replace(t, token_ids=np.concatenate([first.token_ids[:prompt], t.token_ids[prompt:]])) for t in made]


def test_cuts_are_between_groups():
    rng = np.random.default_rng(0)
    items = [item for _ in range(6) for item in group(rng, 100, [10] * 8)]
    (batches,) = micro_batches(action_rows(items), 400, layout="trees")
    assert [batch.real for batch in batches] == [2 * (100 + 8 * 9)] * 3  # no prompt is read twice


def test_single_tree_is_shared_equally_among_ranks():
    rng = np.random.default_rng(0)
    items = group(rng, 10, [30] * 16)
    shares = micro_batches(action_rows(items), 1000, 4, "trees")
    assert [[batch.real for batch in share] for share in shares] == [[10 + 4 * 29]] * 4


# ------------------ the learner


def conversations(depth=3, seed=3):
    """Forks of forks at odd places, exact copies, a fork inside another's reply, two segments, and strangers."""
    rng = np.random.default_rng(seed)
    made = [trajectory(rng, [[(9, 4)] + [(3, 5)] * (depth - 1)]), trajectory(rng, [[(5, 3)], [(6, 4)]], tail=2)]
    for base in list(made):
        size = len(base.token_ids)
        for common in sorted({0, 2, size // 3, size // 2, size - 3, size}):
            rest = rng.integers(0, VOCAB, size - common).astype(np.int32)
            made.append(replace(base, token_ids=np.append(base.token_ids[:common], rest)))
    return made


@pytest.mark.parametrize(
    ("family", "options"),
    [
        pytest.param("qwen2", {}, marks=pytest.mark.slow),  # as the others, one by one
        ("qwen3", {"enable_gradient_checkpointing": True}),
        ("llama", {"lora_rank": 4}),
        ("qwen2", {"max_tokens_per_micro_batch": 1000, "chunk_size": 3}),
        pytest.param(  # test_fsdp.py compares with and without
            "qwen2", {"fsdp": "always", "enable_gradient_checkpointing": True}, marks=pytest.mark.slow
        ),
    ],
)
def test_trees_match_single_rows(family, options):
    rng = np.random.default_rng(0)
    items = conversations()
    items = [masked(item, rng) if number % 3 == 0 else item for number, item in enumerate(items)]
    learner = make_learner(family, **options)
    sizes, cut = [], learner._cut
    learner._cut = lambda units: [sizes.append((batch.real, batch.num_tokens)) or batch for batch in cut(units)]
    flat = {name: value for name, value in options.items() if name == "lora_rank"}
    assert_same(measure(learner, items), measure(make_learner(family, share_prefixes=False, **flat), items))
    assert sum(real for real, _ in sizes) < 0.8 * sum(tokens for _, tokens in sizes), "or nothing was tested"


@settings(max_examples=10)
@given(forks(), st.integers(1, 120))
def test_cut_does_not_matter(items, budget):
    model = build_model(VOCAB, hidden=16, layers=1)
    expected = Learner(model, **sections(share_prefixes=False)).logprobs(items)
    got = Learner(model, **sections(max_tokens_per_micro_batch=budget)).logprobs(items)
    for actual, reference in zip(got, expected, strict=True):
        np.testing.assert_allclose(actual, reference, atol=1e-5)


def test_16_bit_trees_are_as_exact_as_rows():
    items = conversations()
    exact = measure(make_learner(critic=False, reference=False), items)["actor"]
    gaps = []
    for share in (False, True):
        rounded = measure(make_learner(dtype="bfloat16", share_prefixes=share, critic=False, reference=False), items)
        gaps.append(sum(float((rounded["actor"][name] - value).square().sum()) for name, value in exact.items()) ** 0.5)
    assert 0 < gaps[1] < 1.5 * gaps[0]


def test_token_of_several_trajectories_is_scored_once():
    item = trajectory(np.random.default_rng(0), [[(9, 4)]])
    learner = make_learner(critic=False, reference=False)
    counts, forward = [], learner.actor.forward
    learner.actor.forward = lambda ids, positions, *rest, **keywords: (
        counts.append(len(positions)) or forward(ids, positions, *rest, **keywords)
    )
    scores = learner.logprobs([item] * 5)
    assert counts == [4]
    for other in scores[1:]:
        np.testing.assert_array_equal(other, scores[0])


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}),
        ("mistral", {"sliding_window": 4}),
        ("mpt", {"d_model": 16, "n_heads": 2, "n_layers": 1}),  # ALiBi counts distances along the keys
        ("bloom", {"hidden_size": 16, "n_head": 2, "n_layer": 1}),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}),
    ],
)
def test_unsupported_models_read_rows(family, options):
    config = AutoConfig.for_model(family, vocab_size=VOCAB, num_hidden_layers=1, **options)
    assert not can_read_trees(config)


def test_reason_against_trees_is_logged_once(caplog):
    model = build_model(VOCAB, hidden=16, layers=1)
    with caplog.at_level(logging.WARNING):
        learner = Learner(model, **sections(attn_implementation="eager"))
        learner.logprobs(conversations())
    assert len([record for record in caplog.records if "token trees" in record.message]) == 1
    caplog.clear()
    for quiet in ({}, {"share_prefixes": False}):
        Learner(model, **quiet)
    assert not caplog.records


def test_on_cuda_trees_that_share_little_are_rows():
    learner = make_learner(critic=False, reference=False)
    learner.device = SimpleNamespace(type="cuda")
    rng = np.random.default_rng(0)
    strangers = [trajectory(rng, [[(9, 9)]], vocab=10**9) for _ in range(8)]
    assert all(batch.forest is None for batch in learner._cut(action_rows(strangers)))
    assert all(batch.forest is not None for batch in learner._cut(action_rows(group(rng, 9, [9] * 8))))
    assert learner._cut([]) == []
