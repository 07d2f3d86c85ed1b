"""KL estimators in value and in gradient, by enumeration of small distributions; and the controllers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from trainers.algorithms.estimators.base import KLControlSection
from trainers.algorithms.kl import KLController, kl_estimate, mean_kl
from trainers.algorithms.names import KLEstimator

KINDS: list[KLEstimator] = ["k1", "k2", "k3", "abs"]


def distributions(seed: int) -> tuple[Tensor, Tensor]:
    """Logits of a policy, with gradient, and of a reference, over five tokens."""
    generator = torch.Generator().manual_seed(seed)
    policy, reference = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    return policy.requires_grad_(), reference


def kl(p: Tensor, q: Tensor) -> Tensor:
    return (p.exp() * (p - q)).sum()


def expected(kind: KLEstimator, logits: Tensor, reference: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The estimator's mean, its gradient as a loss, and the policy gradient with it as a penalty; all exact."""
    logp, ref = logits.log_softmax(-1), reference.log_softmax(-1)
    p, estimate = logp.exp(), kl_estimate(logp, ref, kind)
    (as_loss,) = torch.autograd.grad((p.detach() * estimate).sum(), logits, retain_graph=True)
    (as_penalty,) = torch.autograd.grad((p * estimate.detach()).sum(), logits)
    return (p * estimate).sum().detach(), as_loss, as_penalty


def gradients(logits: Tensor, reference: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """KL(pi, ref), and the gradients of KL(pi, ref) and KL(ref, pi)."""
    logp, ref = logits.log_softmax(-1), reference.log_softmax(-1)
    (this,) = torch.autograd.grad(kl(logp, ref), logits, retain_graph=True)
    (other,) = torch.autograd.grad(kl(ref, logp), logits, retain_graph=True)
    return kl(logp, ref).detach(), this, other


@pytest.mark.parametrize("seed", range(5))
def test_estimators_in_value_and_in_gradient(seed: int) -> None:
    """The table in the module's docstring."""
    logits, reference = distributions(seed)
    true, this, other = gradients(logits, reference)
    value, loss, penalty = zip(*(expected(kind, logits, reference) for kind in KINDS), strict=True)
    k1, k2, k3, absolute = range(4)

    torch.testing.assert_close(value[k1], true)
    torch.testing.assert_close(value[k3], true)
    for biased in (k2, absolute):
        assert abs(value[biased] - true) > 1e-3

    torch.testing.assert_close(loss[k1], torch.zeros_like(this))
    torch.testing.assert_close(loss[k2], this)
    torch.testing.assert_close(loss[k3], other)
    assert not torch.allclose(loss[absolute], this, rtol=0.05)

    torch.testing.assert_close(penalty[k1], this)
    torch.testing.assert_close(penalty[k3], this - other)
    for wrong in (k2, absolute):
        assert not torch.allclose(penalty[wrong], this, rtol=0.05)


def test_k2_is_close_for_close_distributions() -> None:
    logits, reference = distributions(0)
    close = (reference + 0.01 * logits.detach()).requires_grad_()
    true, _, _ = gradients(close, reference)
    assert float(expected("k2", close, reference)[0]) == pytest.approx(float(true), rel=0.02)


def test_low_var_kl_is_k3_up_to_ten() -> None:
    logp = torch.linspace(-300, 0, 601).requires_grad_()
    ref = logp.detach().flip(0)
    k3, low_var = kl_estimate(logp, ref, "k3"), kl_estimate(logp, ref, "low_var_kl")
    assert k3.min() >= 0
    torch.testing.assert_close(low_var, k3.clamp(max=10.0))
    ratio = (ref - logp.detach()).clamp(-20, 20)
    torch.testing.assert_close(k3.detach(), ratio.expm1() - ratio)
    for estimate in (k3, low_var):
        (gradient,) = torch.autograd.grad(estimate.sum(), logp)
        assert gradient.isfinite().all()
    assert not gradient[k3 > 10.0].any()
    assert gradient[(k3 > 0) & (k3 < 10.0)].all()


def test_reference_gets_no_gradient() -> None:
    logp, ref = torch.zeros(3, requires_grad=True), torch.ones(3, requires_grad=True)
    for kind in KINDS:
        kl_estimate(logp, ref, kind).sum().backward()
    assert ref.grad is None


def adaptive_kl(beta: float, target: float, horizon: float) -> KLController:
    return KLController(KLControlSection(type="adaptive", kl_coef=beta, target_kl=target, horizon=float(horizon)))


def test_shapes_that_differ_are_named() -> None:
    with pytest.raises(ValueError, match=r"not \(2,\) and \(1,\)"):
        kl_estimate(torch.zeros(2), torch.zeros(1), "k1")


def test_adaptive_kl_steps() -> None:
    """By hand: errors of .1, and of +-.2 where it is clipped, with a tenth of the horizon a batch."""
    controller = adaptive_kl(0.5, 2.0, 640)
    for kl_seen, factor in ((2.2, 1.01), (9.0, 1.02), (0.0, 0.98), (-1.0, 0.98), (2.0, 1.0)):
        before = controller.beta
        controller.update(kl_seen, episodes=64)
        assert controller.beta == pytest.approx(before * factor)


def test_adaptive_kl_reaches_its_target() -> None:
    """A policy whose KL is 1 / beta settles where that is the target."""
    controller = adaptive_kl(10.0, 4.0, 1000)
    for _ in range(400):
        controller.update(1.0 / controller.beta, episodes=100)
    assert controller.beta == pytest.approx(0.25, rel=1e-3)


def test_adaptive_kl_resumes_exactly() -> None:
    first, resumed = adaptive_kl(0.1, 1.0, 100), adaptive_kl(0.7, 1.0, 100)
    first.update(3.0, 10)
    resumed.load_state_dict(first.state_dict())
    for controller in (first, resumed):
        controller.update(0.3, 10)
    assert resumed.beta == first.beta != 0.1


def test_adaptive_kl_refuses_unrecoverable_settings() -> None:
    controller = adaptive_kl(0.1, 1.0, 10)
    for bad in (float("nan"), float("inf"), float("-inf")):
        with pytest.raises(ValueError, match="the batch's KL is"):
            controller.update(bad, 1)
    with pytest.raises(ValueError, match="50 episodes a batch need a horizon above 10"):
        controller.update(0.0, 50)
    controller.update(3.0, 0)
    assert controller.beta == 0.1


def test_kl_controllers_refuse_each_others_state() -> None:
    fixed = KLController(KLControlSection(kl_coef=0.3))
    fixed.update(100.0, 10)
    fixed.load_state_dict(fixed.state_dict())
    assert fixed.beta == 0.3
    adaptive = adaptive_kl(0.1, 1.0, 10)
    with pytest.raises(ValueError, match="adaptive"):
        fixed.load_state_dict(adaptive.state_dict())
    with pytest.raises(ValueError, match="no state of an adaptive"):
        adaptive.load_state_dict(fixed.state_dict())


@given(st.lists(st.lists(st.floats(-10, 10), max_size=5), max_size=6))
def test_mean_kl_weighs_every_episode_same(episodes):
    """An episode that is repeated token by token changes nothing; one without tokens does not count."""
    offsets = np.cumsum([0, *map(len, episodes)])
    flat = np.array([value for episode in episodes for value in episode])
    means = [sum(episode) / len(episode) for episode in episodes if episode]
    assert mean_kl(flat, offsets) == pytest.approx(sum(means) / len(means) if means else 0.0, abs=1e-9)
    doubled = np.repeat(flat, np.repeat(np.arange(len(episodes)) % 2 + 1, np.diff(offsets)))
    longer = np.cumsum([0, *(len(episode) * (i % 2 + 1) for i, episode in enumerate(episodes))])
    assert mean_kl(doubled, longer) == pytest.approx(mean_kl(flat, offsets), abs=1e-9)
