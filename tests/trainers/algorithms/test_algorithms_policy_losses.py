"""Losses of single tokens against the formulas, one scalar at a time, in value and in gradient."""

from __future__ import annotations

import math

import pytest
import torch
from algorithm_oracles import forall
from hypothesis import strategies as st
from torch import Tensor

from trainers.algorithms.policy_losses import entropy, importance_weights, ppo_clip, summarize, value_loss

log_ratios = st.floats(-3, 3).map(lambda x: round(x, 3))
numbers = st.floats(-3, 3).map(lambda x: round(x, 3))


def tensor(*xs: float, grad: bool = False) -> Tensor:
    return torch.tensor(xs, dtype=torch.float64, requires_grad=grad)


def ppo_by_cases(rho: float, a: float, low: float, high: float, dual: float | None) -> tuple[float, float]:
    """The loss, and its derivative in the log-probability; by cases, without min and max."""
    if a >= 0:
        cut = rho > 1 + high
        return (-(1 + high) * a, 0.0) if cut else (-rho * a, -rho * a)
    if dual is not None and rho > dual:
        return -dual * a, 0.0
    cut = rho < 1 - low
    return (-(1 - low) * a, 0.0) if cut else (-rho * a, -rho * a)


@forall(
    log_ratios, numbers, st.sampled_from([0.0, 0.2, 1.0]), st.sampled_from([0.0, 0.28]), st.sampled_from([None, 3.0])
)
def test_ppo_clip(log_ratio: float, a: float, low: float, high: float, dual: float | None) -> None:
    old = -1.5
    logprobs = tensor(old + log_ratio, grad=True)
    rho = math.exp(float((logprobs - old).detach()))
    result = ppo_clip(logprobs, tensor(old), tensor(a), clip_low=low, clip_high=high, dual_clip=dual)
    loss, slope = ppo_by_cases(rho, a, low, high, dual)
    assert float(result.loss.detach()) == pytest.approx(loss, abs=1e-9)
    result.loss.sum().backward()
    on_an_edge = any(abs(rho - edge) < 1e-6 for edge in (1 - low, 1 + high, 3.0))
    if not on_an_edge:
        assert logprobs.grad is not None
        assert float(logprobs.grad) == pytest.approx(slope, abs=1e-9)
        cut = result.stats["clipped"] + result.stats["dual_clipped"]
        assert float(cut) == float(slope == 0.0 and a != 0.0)
    assert float(result.stats["approx_kl_k1"]) == pytest.approx(-math.log(rho))
    assert float(result.stats["approx_kl_k3"]) == pytest.approx(rho - 1 - math.log(rho), abs=1e-9)
    assert not any(stat.requires_grad for stat in result.stats.values())


def test_the_first_step_is_the_policy_gradient() -> None:
    logprobs, advantages = tensor(-0.3, -2.0, -5.0, grad=True), tensor(1.0, -2.0, 0.0)
    ppo_clip(logprobs, logprobs.detach(), advantages).loss.sum().backward()
    torch.testing.assert_close(logprobs.grad, -advantages)


def test_ratios_far_off_leave_no_nan() -> None:
    logprobs = torch.tensor([0.0, -500.0, 0.0, -500.0], requires_grad=True)
    old = torch.tensor([-500.0, 0.0, -500.0, 0.0])
    result = ppo_clip(logprobs, old, torch.tensor([1.0, 1.0, -1.0, -1.0]))
    result.loss.sum().backward()
    assert result.loss.isfinite().all()
    assert logprobs.grad is not None
    assert logprobs.grad.isfinite().all()


def test_token_tis() -> None:
    old, rollout = tensor(-1.0, -1.0, -1.0, 0.0, grad=True), tensor(-1.0, -0.5, -3.0, -900.0)
    weights = importance_weights("token_tis", old, rollout, cap=2.0)
    assert weights is not None
    assert not weights.requires_grad
    torch.testing.assert_close(weights, tensor(1.0, math.exp(-0.5), 2.0, 2.0))
    assert importance_weights("none", old, rollout) is None


def test_token_tis_makes_the_gradient_unbiased_until_it_truncates() -> None:
    """Tokens sampled by another policy: the weighted expectation is that under the learner's own."""
    generator = torch.Generator().manual_seed(0)
    logits, other = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    advantages = torch.randn(6, generator=generator, dtype=torch.float64)

    def gradient(sampler: Tensor, importance: Tensor | None) -> Tensor:
        parameters = logits.clone().requires_grad_()
        logprobs = parameters.log_softmax(-1)
        loss = ppo_clip(logprobs, logprobs.detach(), advantages, importance=importance).loss
        (sampler.softmax(-1) * loss).sum().backward()
        assert parameters.grad is not None
        return parameters.grad

    weights = importance_weights("token_tis", logits.log_softmax(-1), other.log_softmax(-1), cap=1e6)
    torch.testing.assert_close(gradient(other, weights), gradient(logits, None))
    assert not torch.allclose(gradient(other, None), gradient(logits, None), rtol=0.05)


@forall(numbers, numbers, numbers, st.sampled_from([None, 0.2, 1.0]))
def test_value_loss(v: float, old: float, target: float, clip: float | None) -> None:
    values = tensor(v, grad=True)
    result = value_loss(values, tensor(old), tensor(target), clip=clip)
    losses = [(v - target) ** 2 / 2]
    if clip is not None:
        losses.append((min(max(v, old - clip), old + clip) - target) ** 2 / 2)
    assert float(result.loss.detach()) == pytest.approx(max(losses), abs=1e-9)
    if not 0 < max(losses) - losses[0] < 1e-12:
        assert float(result.stats["value_clipped"]) == float(max(losses) > losses[0])
    assert float(result.stats["value_error"]) == pytest.approx(v - target)


def test_a_clipped_value_gets_no_gradient_but_may_always_come_back() -> None:
    """Moved towards the target by more than the clip: nothing to gain. Moved away: the gradient leads back."""
    values = tensor(0.9, -0.9, grad=True)
    value_loss(values, tensor(0.0, 0.0), tensor(1.0, 1.0), clip=0.2).loss.sum().backward()
    torch.testing.assert_close(values.grad, tensor(0.0, -1.9))


def test_entropy() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, -1e4, -1e4, -1e4]], dtype=torch.float64, requires_grad=True)
    found = entropy(logits)
    torch.testing.assert_close(found, tensor(math.log(4.0), 0.0))
    p = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    assert float(entropy(p.log() + 3.0)) == pytest.approx(-sum(x * math.log(x) for x in p.tolist()))
    found.sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert torch.autograd.gradcheck(entropy, torch.randn(3, 5, dtype=torch.float64, requires_grad=True))
    assert entropy(torch.zeros(2, 3, dtype=torch.bfloat16)).dtype == torch.float32


def test_summaries_do_not_depend_on_micro_batches() -> None:
    generator = torch.Generator().manual_seed(0)
    logprobs, old, advantages = torch.randn(3, 12, generator=generator, dtype=torch.float64)
    whole = summarize([ppo_clip(logprobs, old, advantages).stats])
    parts = [slice(0, 1), slice(1, 9), slice(9, 9), slice(9, 12)]
    split = summarize([ppo_clip(logprobs[s], old[s], advantages[s]).stats for s in parts])
    assert split == pytest.approx(whole)
    ratios = (logprobs - old).exp()
    assert whole["ratio"] == pytest.approx(float(ratios.mean()))
    assert (whole["ratio_min"], whole["ratio_max"]) == (float(ratios.min()), float(ratios.max()))
    assert summarize([]) == {}
    assert summarize([ppo_clip(logprobs[:0], old[:0], advantages[:0]).stats]) == {}


def test_wrong_arguments_are_named() -> None:
    x = tensor(0.0)
    with pytest.raises(ValueError, match=r"'advantages': \(2,\)"):
        ppo_clip(x, x, tensor(0.0, 0.0))
    with pytest.raises(ValueError, match="clip_low"):
        ppo_clip(x, x, x, clip_low=1.5)
    with pytest.raises(ValueError, match="dual_clip must be greater than 1"):
        ppo_clip(x, x, x, dual_clip=1.0)
    with pytest.raises(ValueError, match="the value clip must be positive"):
        value_loss(x, x, x, clip=0.0)
    with pytest.raises(ValueError, match="not 'tis'"):
        importance_weights("tis", x, x)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cap must be positive"):
        importance_weights("token_tis", x, x, cap=0.0)
