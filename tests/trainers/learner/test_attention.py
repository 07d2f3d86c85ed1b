"""Attention over the branches of trees and over packed sequences: the formula's values and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from trainers.learner import attention, trees
from trainers.learner.attention import Tree, _causal
from trainers.learner.trees import merge
from trainers.models import varlen

HEADS, KV_HEADS, DIM, PADDING = 6, 2, 16, 3


@pytest.fixture(scope="module")
def forest():
    """A long branch, which is cut, forks from it, and strangers."""
    rng = np.random.default_rng(0)
    base = rng.integers(0, 99, trees._QUERIES + 40).astype(np.int32)
    forks = [np.append(base[:at], rng.integers(0, 99, size)) for at, size in ((30, 5), (31, 60), (trees._QUERIES, 9))]
    strangers = [rng.integers(0, 99, length) for length in (1, 7, 33)]
    return merge([base, *(row.astype(np.int32) for row in [*forks, *strangers])])


def _inputs(size, dtype, seed=0):
    made = torch.Generator().manual_seed(seed)
    shapes = [(1, HEADS, size, DIM), (1, KV_HEADS, size, DIM), (1, KV_HEADS, size, DIM)]
    tensors = [torch.randn(shape, generator=made).to(torch.bfloat16).to(dtype).requires_grad_() for shape in shapes]
    return tensors, torch.randn(1, size, HEADS, DIM, generator=made).to(torch.bfloat16).to(dtype)


def _gradients(attend, tensors, grad, real):
    out = attend(*tensors)
    return [out[:, :real], *torch.autograd.grad(out, tensors, grad)]


def _formula(forest, size):
    at = np.arange(size)
    ends = np.append(forest.ends, at[len(forest.ends) :] + 1)
    seen = torch.from_numpy((at <= at[:, None]) & (at[:, None] < ends))

    def attend(q, k, v):
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
        return ((q @ k.mT * 0.3).masked_fill(~seen, float("-inf")).softmax(-1) @ v).transpose(1, 2)

    return attend


def _apart(result, exact):
    return ((result.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 6e-3)])
def test_values_and_gradients_are_those_of_formula(forest, dtype, tolerance):
    real = len(forest.tokens)
    size = real + PADDING
    tree = Tree(forest, size, torch.device("cpu"))
    assert len(tree._blocks) > 1
    results = []
    for kind, attend in ((dtype, lambda *t: tree.attend(*t, 0.3)), (torch.float64, _formula(forest, size))):
        tensors, grad = _inputs(size, kind)
        grad[:, real:] = 0
        results.append(_gradients(attend, tensors, grad, real))
    for result, exact in zip(*results, strict=True):
        assert result.dtype == dtype
        assert _apart(result, exact) < tolerance


def test_short_row_gradients_beat_16_bit_ones():
    forest = merge([np.arange(64, dtype=np.int32)])
    tree = Tree(forest, 64, torch.device("cpu"))

    def torchs(q, k, v):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)

    exact = _gradients(torchs, *_inputs(64, torch.float64), 64)
    result = _gradients(lambda *t: tree.attend(*t, None), *_inputs(64, torch.bfloat16), 64)
    rounded = _gradients(torchs, *_inputs(64, torch.bfloat16), 64)
    for at in (1, 2, 3):
        assert _apart(result[at], exact[at]) <= _apart(rounded[at], exact[at])


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_packed_sequences_do_not_see_each_other(kv_heads):
    torch.manual_seed(0)
    lengths = [3, 1, 1, 7, 4]
    query = torch.randn(1, 4, sum(lengths), 8)
    key, value = (torch.randn(1, kv_heads, sum(lengths), 8) for _ in range(2))
    forest = merge([np.zeros(length, np.int32) for length in lengths], shared=False)
    got = Tree(forest, sum(lengths), torch.device("cpu")).attend(query, key, value, 0.3)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    for start, end in zip(starts, starts[1:], strict=False):
        for head in range(4):
            q, k, v = query[0, head], key[0, head * kv_heads // 4], value[0, head * kv_heads // 4]
            for at in range(start, end):
                weights = torch.softmax(0.3 * k[start : at + 1] @ q[at], 0)
                torch.testing.assert_close(got[0, at, head], weights @ v[start : at + 1])


def test_row_attention_compiles_without_graph_break():
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 4, 7, 8), torch.randn(1, 2, 7, 8), torch.randn(1, 2, 7, 8)
    compiled = torch.compile(_causal, backend="eager", dynamic=True, fullgraph=True)
    torch.testing.assert_close(compiled(query, key, value, None, None), _causal(query, key, value, None, None))


@pytest.mark.parametrize("impl", [None, "FA3", "FA4"])
def test_flash_attention_3_alone_must_not_split(monkeypatch, impl):
    """FlashAttention 2 of torch 2.12 refuses the option, FlashAttention 4 splits only where it is told to."""

    def before(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1)):
        return query

    def since(*args, num_splits=None, **options):
        assert num_splits == (1 if impl == "FA3" else None)
        return before(*args, **options)

    monkeypatch.setattr(varlen, "current_flash_attention_impl", lambda: impl)
    query, starts = torch.randn(7, 4, 8), torch.tensor([0, 3, 7], dtype=torch.int32)
    for kernel in (before, since):
        monkeypatch.setattr(varlen, "varlen_attn", kernel)
        monkeypatch.setattr(varlen, "_ONE_SPLIT", varlen.option_of(kernel, "num_splits", 1))
        assert varlen.varlen_attention(query, query, query, (starts, starts), (4, 4)) is query


@pytest.mark.parametrize("kv_heads", [2, 4])
@pytest.mark.parametrize("has_flag", [False, True])
def test_packed_kernel_call_fits_every_torch_version(monkeypatch, kv_heads, has_flag):
    """torch 2.11 has no flag for fewer key heads; later ones want it."""
    called = {}

    def before(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1)):
        called.update(locals())
        return query

    def since(*args, enable_gqa=False, **options):
        assert enable_gqa == (kv_heads < 4)
        return before(*args, **options)

    kernel = since if has_flag else before
    monkeypatch.setattr(varlen, "varlen_attn", kernel)
    monkeypatch.setattr(varlen, "_GROUPED_HEADS", varlen.option_of(kernel, "enable_gqa", True))
    query, key = torch.randn(1, 4, 7, 8), torch.randn(1, kv_heads, 7, 8)
    starts = torch.tensor([0, 3, 7], dtype=torch.int32)
    out = attention._packed(query, key, key, 0.3, starts, 4)
    torch.testing.assert_close(out, query.transpose(1, 2))
    assert called["query"].shape == (7, 4, 8)
    assert called["key"].shape == (7, kv_heads, 8)
    assert called["cu_seq_q"] is called["cu_seq_k"] is starts
    assert (called["max_q"], called["max_k"], called["scale"], called["window_size"]) == (4, 4, 0.3, (-1, 0))
