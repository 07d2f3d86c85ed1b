"""What siblings begin with is read once: the same numbers, fewer positions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_helpers import VOCAB, some_trajectories, trajectory
from transformers import AutoConfig, AutoModel

from trainers.learner import Learner
from trainers.learner.packing import action_rows, micro_batches, value_rows
from trainers.learner.prefixes import can_share
from trainers.tiny import build_model


def opened_alike(items, openings, choice):
    """The trajectories with their first tokens taken from one of the openings."""
    result = []
    for item, number in zip(items, choice, strict=True):
        size = int(np.argmax(item.action_mask)) if item.action_mask.any() else 0
        tokens = item.token_ids.copy()
        tokens[:size] = np.resize(openings[number], size)
        result.append(replace(item, token_ids=tokens))
    return result


@st.composite
def groups(draw):
    turn = st.tuples(st.integers(1, 6), st.integers(1, 5))
    opening = st.tuples(st.sampled_from([1, 3, 9]), st.integers(1, 5))
    episode = st.tuples(st.tuples(opening).map(list), st.lists(turn, max_size=2)).map(lambda pair: [pair[0] + pair[1]])
    shapes = draw(st.lists(st.one_of(episode, episode.map(lambda segments: [*segments, [(2, 2)]])), max_size=10))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    items = [trajectory(rng, shape, tail=draw(st.integers(0, 2))) for shape in shapes]
    choice = draw(st.lists(st.integers(0, 1), min_size=len(items), max_size=len(items)))
    return opened_alike(items, rng.integers(0, VOCAB, (2, 9)), choice)


def read(batches):
    """For each flat index, what the model has seen at its position, and the target; each index once."""
    result = {}
    for batch in batches:
        shared, width = batch.shared, batch.input_ids.shape[1]
        first = 0 if shared is None else shared.input_ids.size
        for position, target, index in zip(batch.positions, batch.targets, batch.index, strict=True):
            assert index not in result
            if position < first:
                row, column = divmod(position, shared.input_ids.shape[1])
                assert column < shared.lengths[row]
                seen = shared.input_ids[row, : column + 1].tolist()
            else:
                row, column = divmod(position - first, width)
                seen = batch.input_ids[row, : column + 1].tolist()
                if shared is not None:
                    beginning = shared.row[row]
                    seen = shared.input_ids[beginning, : shared.lengths[beginning]].tolist() + seen
            result[int(index)] = (seen, int(target))
    return result


@given(groups(), st.integers(1, 80), st.sampled_from([action_rows, value_rows]))
def test_sharing_reads_the_same_and_computes_less(items, budget, rows_of):
    units = rows_of(items)
    apart, shared = micro_batches(units, budget), micro_batches(units, budget, share=True)
    assert read(shared) == read(apart)
    for name in ("num_tokens", "squares"):
        assert sum(getattr(b, name) for b in shared) == sum(getattr(b, name) for b in apart)
    assert sum(b.size for b in shared) <= sum(b.size for b in apart)
    owner = {int(index): number for number, unit in enumerate(units) for row in unit for index in row.index}
    for batch in shared:
        assert batch.repeated >= 0
        assert batch.num_tokens - batch.repeated <= batch.size
        assert batch.size <= budget or len({owner[int(index)] for index in batch.index}) == 1


def test_a_group_with_equal_replies_reads_its_prompt_once():
    rng = np.random.default_rng(0)
    items = [trajectory(rng, [[(30, 10)]]) for _ in range(32)]
    items = opened_alike(items, rng.integers(0, VOCAB, (4, 30)), np.repeat(np.arange(4), 8))
    batches = micro_batches(action_rows(items), 1000, share=True)
    assert sum(batch.size for batch in batches) == 4 * 30 + 32 * 9  # the last token is predicted, not read
    assert sum(batch.num_tokens - batch.repeated for batch in batches) == 4 * 30 + 32 * 9
    exact = micro_batches(action_rows(items), 30 + 8 * 9, share=True)
    assert [batch.size for batch in exact] == [30 + 8 * 9] * 4, "a group that just fits is not cut"


def test_without_siblings_nothing_is_shared():
    units = action_rows(some_trajectories())
    assert all(batch.shared is None for batch in micro_batches(units, 64, share=True))


def siblings():
    """Openings of several lengths, replies of several lengths, two segments, a critic's last states."""
    rng = np.random.default_rng(3)
    shapes = [[[(9, 4), (3, 5)]], [[(9, 6)]], [[(9, 1)]], [[(9, 2), (1, 1)], [(4, 3)]]]
    shapes += [[[(5, 7)]], [[(5, 3), (2, 2)]], [[(6, 4)]]]
    items = [trajectory(rng, shape, tail=tail) for shape, tail in zip(shapes, (0, 2, 0, 0, 1, 0, 0), strict=True)]
    return opened_alike(items, rng.integers(0, VOCAB, (3, 9)), [0, 0, 0, 0, 1, 1, 2])


def loss(logprobs, entropy, batch):
    return (batch["a"] * (0.1 * logprobs).exp() + batch["b"] * entropy).sum(), {}


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("lora", [False, True])
def test_the_learner_gives_the_same_numbers_and_gradients(family, lora):
    items = siblings()
    rng = np.random.default_rng(0)
    numbers = {name: [rng.normal(size=int(t.action_mask.sum())) for t in items] for name in "ab"}
    found = []
    for share in (False, True):
        model = build_model(VOCAB, family=family, hidden=16, layers=2)
        options = {}
        if lora:
            pytest.importorskip("peft")
            from trainers.learner.lora import LoRASettings

            options["lora"] = LoRASettings(rank=2)
        torch.manual_seed(0)
        learner = Learner(model, critic=True, reference=True, share_prefixes=share, temperature=0.7, **options)
        sizes = []
        cut = learner._cut
        learner._cut = lambda units, cut=cut, sizes=sizes: [sizes.append(b.size) or b for b in cut(units)]
        scores = learner.logprobs(items, entropy=True), learner.logprobs(items, model="reference")
        values = learner.values(items)
        gradients = {}
        for name, parameter in learner.actor.named_parameters():
            if parameter.requires_grad:
                keep = lambda p, name=name, to=gradients: to.update({name: p.grad.clone()})  # noqa: E731
                parameter.register_post_accumulate_grad_hook(keep)
        metrics = learner.update_actor(items, numbers, loss)
        found.append((scores, values, gradients, metrics, sum(sizes)))
    (apart, values_apart, want, metrics_apart, more), (shared, values_shared, got, metrics, fewer) = found
    assert fewer < 0.95 * more, "or nothing was tested"
    for one, two in zip(
        [*apart[0][0], *apart[0][1], *apart[1]], [*shared[0][0], *shared[0][1], *shared[1]], strict=True
    ):
        np.testing.assert_allclose(one, two, atol=1e-5)
    for one, two in zip([*values_apart[0], values_apart[1]], [*values_shared[0], values_shared[1]], strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)
    for name, gradient in want.items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-3, atol=float(1e-5 * gradient.abs().max()) + 1e-8)
    for name in ("loss", "entropy", "grad_norm", "tokens"):
        assert metrics[name] == pytest.approx(metrics_apart[name], rel=1e-4), name
    assert 0 <= metrics["padding"] < 1


@settings(max_examples=10)
@given(st.permutations(range(7)), st.integers(1, 120))
def test_the_order_and_the_budget_do_not_matter(order, budget):
    items = siblings()
    model = build_model(VOCAB, hidden=16, layers=1)
    expected = Learner(model, share_prefixes=False).logprobs(items)
    got = Learner(model, max_tokens_per_micro_batch=budget).logprobs([items[number] for number in order])
    for number, scores in zip(order, got, strict=True):
        np.testing.assert_allclose(scores, expected[number], atol=1e-5)


def test_models_with_windows_or_other_attention_do_not_share():
    assert can_share(build_model(VOCAB, hidden=16, layers=1).base_model)
    window = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}
    assert not can_share(build_model(VOCAB, hidden=16, layers=1, **window).base_model)
    flex = build_model(VOCAB, hidden=16, layers=1)
    flex.config._attn_implementation = "flash_attention_2"
    assert not can_share(flex.base_model)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("mpt", {"d_model": 16, "n_heads": 2, "n_layers": 1}),  # counts distances along the keys
        ("bloom", {"hidden_size": 16, "n_head": 2, "n_layer": 1}),
        ("gpt_neo", {"hidden_size": 16, "num_heads": 2, "num_layers": 1, "attention_types": [[["global"], 1]]}),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}),
    ],
)
def test_models_whose_positions_are_not_their_own_do_not_share(family, options):
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = AutoConfig.for_model(family, vocab_size=VOCAB, **({} if "n_heads" in options else sizes) | options)
    assert not can_share(AutoModel.from_config(config))


def test_rows_after_which_nothing_follows_keep_to_the_budget():
    """Answers of one token: what they are predicted from is all that there is to read."""
    rng = np.random.default_rng(0)
    items = [trajectory(rng, [[(100, 1)]]) for _ in range(64)] + [trajectory(rng, [[(100, 50)]]) for _ in range(16)]
    items = opened_alike(items, rng.integers(0, VOCAB, (10, 100)), np.repeat(np.arange(10), 8))
    batches = micro_batches(action_rows(items), 1000, share=True)
    assert any(batch.shared is not None for batch in batches)
    assert max(batch.size for batch in batches) <= 1000
