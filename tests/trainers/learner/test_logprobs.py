"""The chunked head against full logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from trainers.learner.logprobs import Support, token_logprobs
from trainers.models.memory import positions_at_once


def inputs(n=13, width=6, vocab=11, dtype=torch.float32, seed=0, bias=True):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, width, generator=generator, dtype=dtype, requires_grad=True)
    weight = torch.randn(vocab, width, generator=generator, dtype=dtype, requires_grad=True)
    offset = torch.randn(vocab, generator=generator, dtype=dtype, requires_grad=True) if bias else None
    return hidden, weight, offset, torch.randint(0, vocab, (n,), generator=generator)


def full(hidden, weight, bias, targets, temperature, sets=None):
    """Return log-probabilities and entropies, each over its set of tokens, or over all where that is empty."""
    logits = (hidden @ weight.T + (0 if bias is None else bias)) / temperature
    logprobs, entropies = [], []
    for row, target, some in zip(logits, targets.tolist(), sets or [[]] * len(targets), strict=True):
        tokens = some or list(range(len(row)))
        log_p = torch.log_softmax(row[tokens], -1)
        logprobs.append(log_p[tokens.index(target)])
        entropies.append(-(log_p.exp() * log_p).sum())
    return torch.stack(logprobs), torch.stack(entropies)


def some_kept(targets, vocab, seed=2):
    """Sets that hold their targets, of all sizes; every third distribution is over the full vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    sets = []
    for i, target in enumerate(targets.tolist()):
        rest = [t for t in torch.randperm(vocab, generator=generator).tolist() if t != target]
        sets.append([] if i % 3 == 2 else sorted([target, *rest[: i % vocab]]))
    ids = torch.tensor([t for one in sets for t in one], dtype=torch.int64)
    return sets, Support(ids, np.array([len(one) for one in sets]))


@pytest.mark.parametrize("chunk", [1, 4, 13, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.5])
@pytest.mark.parametrize(("bias", "masked"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_values_and_gradients_are_those_of_full_logits(chunk, temperature, bias, masked, dtype, tolerance):
    hidden, weight, offset, targets = inputs(bias=bias, dtype=dtype)
    leaves = [tensor for tensor in (hidden, weight, offset) if tensor is not None]
    sets, support = some_kept(targets, len(weight)) if masked else (None, None)
    options = {"temperature": temperature, "chunk_size": chunk, "support": support}
    chunked = token_logprobs(hidden, weight, targets, bias=offset, **options)
    exact = full(hidden, weight, offset, targets, temperature, sets)
    scales = torch.randn(2, len(targets), generator=torch.Generator().manual_seed(1))
    gradients = [
        torch.autograd.grad((scales[0] * logprobs + scales[1] * entropy).sum(), leaves)
        for logprobs, entropy in (chunked, exact)
    ]
    for a, b in zip([*chunked, *gradients[0]], [*exact, *gradients[1]], strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("frozen", ["hidden", "weight", "bias"])
def test_only_trained_inputs_get_gradients(frozen):
    hidden, weight, offset, targets = inputs(dtype=torch.float64)
    leaves = {"hidden": hidden, "weight": weight, "bias": offset}
    leaves.pop(frozen).requires_grad_(False)
    chunked = token_logprobs(hidden, weight, targets, bias=offset, chunk_size=4)
    gradients = [
        torch.autograd.grad((logprobs + entropy.square()).sum(), list(leaves.values()))
        for logprobs, entropy in (chunked, full(hidden, weight, offset, targets, 1.0))
    ]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("use", [lambda lp, h: lp, lambda lp, h: h, lambda lp, h: lp.exp() + h * lp])
def test_gradients_are_exact_in_float64(use):
    hidden, weight, offset, targets = inputs(n=5, dtype=torch.float64)

    def function(hidden, weight, offset):
        return use(*token_logprobs(hidden, weight, targets, bias=offset, temperature=0.7, chunk_size=2))

    assert gradcheck(function, (hidden, weight, offset))


@pytest.mark.parametrize("vocab", [11, 20_000])  # the larger one is converted in parts
def test_logits_are_float32_for_bfloat16_inputs(vocab):
    hidden, weight, _, targets = inputs(width=16, vocab=vocab, bias=False)
    low = [tensor.detach().bfloat16().requires_grad_() for tensor in (hidden, weight)]
    logprobs, entropy = token_logprobs(*low, targets, chunk_size=4)
    expected, spread = full(low[0].float(), low[1].float(), None, targets, 1.0)
    assert logprobs.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(logprobs, expected)
    torch.testing.assert_close(entropy, spread)
    low_gradients = torch.autograd.grad(logprobs.sum(), low)
    exact_gradients = torch.autograd.grad(expected.sum(), low)
    for a, b in zip(low_gradients, exact_gradients, strict=True):
        assert a.dtype == torch.bfloat16
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)


def test_huge_logits_stay_finite():
    hidden, weight, _, targets = inputs(bias=False)
    logprobs, entropy = token_logprobs(hidden * 1e4, weight * 1e2, targets)
    (logprobs.sum() + entropy.sum()).backward()
    assert bool(torch.isfinite(logprobs).all())
    assert bool(torch.isfinite(entropy).all())
    assert bool(torch.isfinite(hidden.grad).all())


def test_no_positions_are_fine():
    hidden, weight, _, _ = inputs(bias=False)
    logprobs, entropy = token_logprobs(hidden[:0], weight, torch.zeros(0, dtype=torch.int64))
    (logprobs.sum() + entropy.sum()).backward()
    assert logprobs.shape == entropy.shape == (0,)
    assert not weight.grad.any()


def test_chunk_logits_have_documented_size():
    for device, size in (("cpu", 32 * 2**20), ("cuda", 512 * 2**20)):
        chunk = positions_at_once(151_936, device)
        assert chunk * 151_936 * 4 <= size < (chunk + 1) * 151_936 * 4
        assert positions_at_once(2**40, device) == 1


def test_temperature_of_zero_is_refused():
    hidden, weight, _, targets = inputs(bias=False)
    with pytest.raises(ValueError, match="temperature must be above 0"):
        token_logprobs(hidden, weight, targets, temperature=0.0)


def test_only_mask_gives_gradient_of_sampled_distribution():
    """The expected reward of the cut policy, by enumeration. Over the full vocabulary there is a term too many."""
    logits = torch.tensor([1.0, 0.2, 0.1, -0.5], dtype=torch.float64, requires_grad=True)
    rewards, allowed = torch.tensor([1.0, 2.0, 3.0, -1.0], dtype=torch.float64), [0, 1]
    cut = logits[allowed].softmax(0)
    (truth,) = torch.autograd.grad((cut * rewards[allowed]).sum(), logits)
    hidden = torch.ones(2, 1, dtype=torch.float64)
    gradients = []
    for mask in (Support(torch.tensor(allowed * 2), np.array([2, 2])), None):
        logprobs, _ = token_logprobs(hidden, logits[:, None], torch.tensor(allowed), support=mask)
        (gradient,) = torch.autograd.grad((cut.detach() * rewards[allowed] * logprobs).sum(), logits)
        gradients.append(gradient)
    torch.testing.assert_close(gradients[0], truth)
    mean = (cut.detach() * rewards[allowed]).sum()
    (excess,) = torch.autograd.grad(mean * logits.softmax(0)[allowed].sum().log(), logits)
    torch.testing.assert_close(gradients[1], truth + excess)
    assert excess.abs().max() > 0.1
