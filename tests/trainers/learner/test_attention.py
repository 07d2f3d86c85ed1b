"""The CPU's way of attending in 16 bits: torch's own values, and a gradient nearer to the exact one."""

import pytest
import torch
from torch.nn import functional
from transformers import AttentionInterface

from trainers.learner.attention import _SHORT, CPU

HEADS, KV_HEADS, DIM = 6, 2, 16


def _inputs(keys, queries, dtype, seed=0):
    made = torch.Generator().manual_seed(seed)
    shapes = [(2, HEADS, queries, DIM), (2, KV_HEADS, keys, DIM), (2, KV_HEADS, keys, DIM)]
    tensors = [torch.randn(shape, generator=made).to(torch.bfloat16).to(dtype).requires_grad_() for shape in shapes]
    return tensors, torch.randn(2, queries, HEADS, DIM, generator=made).to(torch.bfloat16).to(dtype)


def _mask(keys, queries, kind):
    """Each query sees what stands up to its own place; the second row begins with padding that nothing sees."""
    if kind is None:
        return None
    seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)[None, None].repeat(2, 1, 1, 1)
    seen[1, :, :, 0] &= torch.arange(queries) == 0  # the first query keeps one, or it would see nothing
    return seen if kind == "bool" else torch.zeros(seen.shape).masked_fill(~seen, float("-inf")).to(kind)


def _gradients(attend, tensors, grad):
    out = attend(*tensors)
    return [out, *torch.autograd.grad(out, tensors, grad)]


def _apart(result, exact):
    return ((result.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("kind", [None, "bool", torch.bfloat16])
@pytest.mark.parametrize("keys", [33, _SHORT + 8])
def test_values_and_gradients_of_grouped_heads_are_those_of_the_formula(keys, kind):
    queries = keys if kind is None else keys - 9
    tensors, grad = _inputs(keys, queries, torch.bfloat16)
    mask = _mask(keys, queries, kind)
    attend = AttentionInterface()[CPU]
    ours = _gradients(lambda q, k, v: attend(None, q, k, v, mask, scaling=0.3)[0], tensors, grad)

    def formula(q, k, v):
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
        scores = q @ k.mT * 0.3
        seen = torch.ones(queries, keys, dtype=torch.bool).tril() if mask is None else _mask(keys, queries, "bool")
        return (scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v).transpose(1, 2)

    exact_tensors, exact_grad = _inputs(keys, queries, torch.float64)
    exact = _gradients(formula, exact_tensors, exact_grad)
    for ours_i, exact_i in zip(ours, exact, strict=True):
        assert ours_i.dtype == torch.bfloat16
        assert _apart(ours_i, exact_i) < 6e-3  # the rounding of 8 bits, once or twice


def test_short_rows_have_a_gradient_nearer_to_the_exact_one_than_that_of_16_bits():
    attend = AttentionInterface()[CPU]
    (exact_tensors, exact_grad), (tensors, grad) = (_inputs(64, 64, d) for d in (torch.float64, torch.bfloat16))

    def torchs(q, k, v):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)

    exact = _gradients(torchs, exact_tensors, exact_grad)
    ours = _gradients(lambda q, k, v: attend(None, q, k, v, None)[0], tensors, grad)
    rounded = _gradients(torchs, tensors, grad)
    for at in (1, 2, 3):
        assert _apart(ours[at], exact[at]) <= _apart(rounded[at], exact[at])


@pytest.mark.parametrize("keys", [33, _SHORT + 8])
def test_a_query_alone_sees_all_keys_although_it_comes_without_a_mask(keys):
    tensors, grad = _inputs(keys, 1, torch.bfloat16)
    attend = AttentionInterface()[CPU]
    ours = _gradients(lambda q, k, v: attend(None, q, k, v, None)[0], tensors, grad)
    everything = torch.ones(1, keys, dtype=torch.bool)
    masked = _gradients(lambda q, k, v: attend(None, q, k, v, everything)[0], tensors, grad)
    for one, other in zip(ours, masked, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
