"""Losses of single tokens against the formulas, one scalar at a time, in value and in gradient."""

from __future__ import annotations

import math
from typing import Any

import estimating
import pytest
import torch
from algorithm_oracles import forall
from estimating import token_loss
from hypothesis import strategies as st
from torch import Tensor

from trainers.algorithms.losses import LOSSES
from trainers.algorithms.policy_losses import (
    cispo,
    clip_cov,
    dppo,
    entropy,
    geo_mean,
    gspo,
    kl_cov,
    ppo_clip,
    sapo,
    summarize,
    value_loss,
)

log_ratios = st.floats(-3, 3).map(lambda x: round(x, 3))
numbers = st.floats(-3, 3).map(lambda x: round(x, 3))


def tensor(*xs: float, grad: bool = False) -> Tensor:
    return torch.tensor(xs, dtype=torch.float64, requires_grad=grad)


def options_of(name: str, clip: tuple[float, float]) -> dict[str, float]:
    """Values for the options that this loss needs; ``dual_clip`` and ``ratio_cap`` are left out."""
    values = {"clip_low": clip[0], "clip_high": clip[1], "tau_pos": 0.8, "tau_neg": 1.3, "kl_coef": 0.7}
    return {key: values[key] for key in estimating.options_of(name) if key in values}


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
    log_ratios,
    numbers,
    st.sampled_from([0.0, 0.2, 1.0]),
    st.sampled_from([0.0, 0.28]),
    st.sampled_from([None, 1.5, 3.0]),
)
def test_ppo_clip(log_ratio: float, a: float, low: float, high: float, dual: float | None) -> None:
    old = -1.5
    logprobs = tensor(old + log_ratio, grad=True)
    rho = math.exp(float((logprobs - old).detach()))
    result = ppo_clip(logprobs, tensor(old), tensor(a), clip_low=low, clip_high=high, dual_clip=dual)
    loss, slope = ppo_by_cases(rho, a, low, high, dual)
    assert float(result.loss.detach()) == pytest.approx(loss, abs=1e-9)
    result.loss.sum().backward()
    on_an_edge = any(abs(rho - edge) < 1e-6 for edge in (1 - low, 1 + high, 1.5, 3.0))
    if not on_an_edge:
        assert logprobs.grad is not None
        assert float(logprobs.grad) == pytest.approx(slope, abs=1e-9)
        cut = result.stats["clipped"] + result.stats["dual_clipped"]
        assert float(cut) == float(slope == 0.0 and a != 0.0)
    assert float(result.stats["approx_kl_k1"]) == pytest.approx(-math.log(rho))
    assert float(result.stats["approx_kl_k3"]) == pytest.approx(rho - 1 - math.log(rho), abs=1e-9)
    assert not any(stat.requires_grad for stat in result.stats.values())


# --- losses of whole episodes, and weights

sequences = st.lists(st.lists(st.tuples(log_ratios, numbers), min_size=1, max_size=4), min_size=1, max_size=4)


def flat(batch: list[list[tuple[float, float]]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities with a gradient, those of before, advantages, and the number of each token's episode."""
    old = tensor(*(-1.0 - 0.1 * i for i, _ in enumerate(x for row in batch for x in row)))
    logprobs = (old + tensor(*(log_ratio for row in batch for log_ratio, _ in row))).requires_grad_()
    number = torch.tensor([7 * e for e, row in enumerate(batch) for _ in row])
    return logprobs, old, tensor(*(a for row in batch for _, a in row)), number


@forall(sequences, st.booleans(), st.sampled_from([(0.1, 0.2), (1.0, 0.0)]))
def test_gspo(batch: list[list[tuple[float, float]]], by_token: bool, clip: tuple[float, float]) -> None:
    """By cases, with weights 1, 2, 3, ... of the tokens."""
    arrays = flat(batch)
    result = gspo(*arrays, clip_low=clip[0], clip_high=clip[1], by_token=by_token)
    weights = torch.arange(1.0, len(arrays[0]) + 1, dtype=torch.float64)
    (weights * result.loss).sum().backward()
    losses, slopes, ratios, on_an_edge, place = [], [], [], False, 0
    for row in batch:
        s = math.exp(sum(x for x, _ in row) / len(row))
        ratios += [s] * len(row)
        on_an_edge |= any(abs(s - edge) < 1e-6 for edge in (1 - clip[0], 1 + clip[1]))
        terms = [ppo_by_cases(s, a, *clip, None) for _, a in row]
        pulls = [float(weights[place + i]) * slope for i, (_, slope) in enumerate(terms)]
        losses += [loss for loss, _ in terms]
        slopes += pulls if by_token else [sum(pulls) / len(row)] * len(row)
        place += len(row)
    torch.testing.assert_close(result.loss.detach(), tensor(*losses), atol=1e-9, rtol=1e-9)
    if not on_an_edge:
        torch.testing.assert_close(arrays[0].grad, tensor(*slopes), atol=1e-9, rtol=1e-9)
        cut = [a > 0 and s > 1 + clip[1] or a < 0 and s < 1 - clip[0] for s, a in zip(ratios, arrays[2], strict=True)]
        assert result.stats["clipped"].tolist() == [float(c) for c in cut]
    torch.testing.assert_close(result.stats["ratio"], tensor(*ratios))
    moved = tensor(*(x for row in batch for x, _ in row))
    torch.testing.assert_close(result.stats["approx_kl_k1"], -moved, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(result.stats["approx_kl_k3"], moved.exp() - 1 - moved, atol=1e-9, rtol=1e-9)
    assert not any(stat.requires_grad for stat in result.stats.values())


def test_gspo_variants_agree_for_equal_advantages() -> None:
    batch = [[(0.3, 2.0), (-0.1, 2.0), (0.2, 2.0)], [(0.4, -1.0)], [(-0.5, -1.0), (0.1, -1.0)]]
    gradients = []
    for by_token in (False, True):
        arrays = flat(batch)
        weights = tensor(0.2, 0.2, 0.2, 0.5, 0.1, 0.1)  # of a mean over episodes, say: alike inside each
        (weights * gspo(*arrays, clip_low=0.3, clip_high=0.3, by_token=by_token).loss).sum().backward()
        gradients.append(arrays[0].grad)
    torch.testing.assert_close(*gradients)
    assert gradients[0] is not None
    assert gradients[0].any()


@forall(sequences, st.sampled_from([(0.2, 0.3), (1.0, 1.0)]))
def test_cispo(batch: list[list[tuple[float, float]]], clip: tuple[float, float]) -> None:
    """Every token keeps a gradient, of bounded weight."""
    logprobs, old, advantages, _ = flat(batch)
    result = cispo(logprobs, old, advantages, clip_low=clip[0], clip_high=clip[1])
    result.loss.sum().backward()
    weights = [min(max(math.exp(x), 1 - clip[0]), 1 + clip[1]) for row in batch for x, _ in row]
    torch.testing.assert_close(logprobs.grad, -tensor(*weights) * advantages, atol=1e-9, rtol=1e-9)
    cut = [abs(w - math.exp(x)) > 1e-12 for w, (x, _) in zip(weights, (x for row in batch for x in row), strict=True)]
    near = any(abs(math.exp(x) - edge) < 1e-9 for row in batch for x, _ in row for edge in (1 - clip[0], 1 + clip[1]))
    assert near or result.stats["clipped"].tolist() == [float(c) for c in cut]


@pytest.mark.parametrize("name", LOSSES)
@forall(batch=sequences, data=st.data())
def test_no_loss_depends_on_micro_batches(
    name: Any, batch: list[list[tuple[float, float]]], data: st.DataObject
) -> None:
    """Episodes are dealt to micro-batches, or ranks, whole; their tokens carry weights of the whole mini-batch."""
    weights = torch.linspace(0.5, 2.0, sum(map(len, batch)), dtype=torch.float64)
    importance = torch.linspace(1.5, 0.5, len(weights), dtype=torch.float64)
    selected = (torch.arange(len(weights)) % 3 == 1).double()
    part = data.draw(st.lists(st.integers(0, 2), min_size=len(batch), max_size=len(batch)))

    def gradient(parts: list[list[int]]) -> Tensor:
        logprobs, *columns, number = flat(batch)
        for chosen in parts:
            where = torch.isin(number, torch.tensor([7 * e for e in chosen]))
            tensors = (x[where] for x in (logprobs, *columns, number))
            keywords = {"importance": importance[where], "selected": selected[where]}
            loss = token_loss(name, *tensors, **keywords, **options_of(name, (0.1, 0.2))).loss
            (weights[where] * loss).sum().backward()
        assert logprobs.grad is not None
        return logprobs.grad

    whole = gradient([list(range(len(batch)))])
    split = gradient([[e for e, p in enumerate(part) if p == number] for number in range(3)])
    torch.testing.assert_close(split, whole)


@forall(sequences, st.sampled_from([(0.1, 0.4), (0.6, 0.05)]), st.sampled_from([None, 1.5]))
def test_loss_by_name_is_function_of_that_name(
    batch: list[list[tuple[float, float]]], clip: tuple[float, float], dual: float | None
) -> None:
    arrays, bounds = flat(batch), {"clip_low": clip[0], "clip_high": clip[1]}
    selected = (torch.arange(len(arrays[0])) % 2).double()
    expected = {
        "ppo": ppo_clip(*arrays[:3], **bounds, dual_clip=dual),
        "gspo": gspo(*arrays, **bounds),
        "gspo_token": gspo(*arrays, **bounds, by_token=True),
        "cispo": cispo(*arrays[:3], **bounds),
        "geo_mean": geo_mean(*arrays, **bounds),
        "sapo": sapo(*arrays[:3], tau_pos=0.8, tau_neg=1.3),
        "dppo_tv": dppo(*arrays[:3], **bounds, divergence="tv", ratio_cap=dual),
        "dppo_kl": dppo(*arrays[:3], **bounds, divergence="kl", ratio_cap=dual),
        "clip_cov": clip_cov(*arrays[:3], selected, **bounds),
        "kl_cov": kl_cov(*arrays[:3], selected, kl_coef=0.7),
    }
    for name in LOSSES:
        keywords = {key: dual for key in ("dual_clip", "ratio_cap") if key in estimating.options_of(name)}
        loss = token_loss(name, *arrays, selected=selected, **options_of(name, clip), **keywords).loss
        (by_name,) = torch.autograd.grad(loss.sum(), arrays[0], retain_graph=True)
        (direct,) = torch.autograd.grad(expected[name].loss.sum(), arrays[0], retain_graph=True)
        torch.testing.assert_close((loss, by_name), (expected[name].loss, direct), atol=0, rtol=0)


@pytest.mark.parametrize("name", LOSSES)
def test_importance_weighs_every_loss_and_gets_no_gradient(name: Any) -> None:
    arrays, options = flat([[(0.1, 2.0), (-0.1, 0.5)], [(0.05, -1.0)]]), options_of(name, (0.3, 0.3))
    importance, selected = tensor(0.5, 2.0, 3.0, grad=True), tensor(0.0, 1.0, 0.0)
    weighed = token_loss(name, *arrays, selected=selected, **options, importance=importance).loss
    plain = token_loss(name, *arrays, selected=selected, **options).loss
    torch.testing.assert_close(weighed, importance.detach() * plain)
    weighed.sum().backward()
    assert importance.grad is None


@pytest.mark.parametrize("name", LOSSES)
def test_first_step_of_every_loss_is_policy_gradient(name: Any) -> None:
    """Compare with the gradient of the advantage; the losses of whole episodes spread it over the episode."""
    logprobs, advantages, number = tensor(-0.3, -2.0, -5.0, grad=True), tensor(1.0, -2.0, 4.0), torch.tensor([0, 0, 1])
    arrays = logprobs, logprobs.detach(), advantages, number
    token_loss(name, *arrays, selected=torch.zeros(3), **options_of(name, (0.2, 0.2))).loss.sum().backward()
    expected = tensor(0.5, 0.5, -4.0) if name in ("gspo", "geo_mean") else -advantages
    torch.testing.assert_close(logprobs.grad, expected)


@pytest.mark.parametrize("name", LOSSES)
def test_extreme_ratios_give_finite_losses(name: Any) -> None:
    logprobs = torch.tensor([0.0, -500.0, 0.0, -500.0], requires_grad=True)
    old, number = torch.tensor([-500.0, 0.0, -500.0, 0.0]), torch.arange(4)
    options = options_of(name, (0.2, 0.2))
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0])
    result = token_loss(name, logprobs, old, advantages, number, selected=torch.ones(4), **options)
    result.loss.sum().backward()
    assert result.loss.isfinite().all()
    assert logprobs.grad is not None
    assert logprobs.grad.isfinite().all()
    if name == "ppo":
        assert result.stats["ratio"].tolist() == pytest.approx([math.exp(x) for x in (20, -20, 20, -20)])
    empty = token_loss(name, *(logprobs[:0],) * 3, number[:0], selected=number[:0], **options)
    assert empty.loss.shape == (0,)


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


def test_clipped_value_gets_gradient_only_backwards() -> None:
    """Moved towards the target by more than the clip: nothing to gain. Moved away: the gradient leads back."""
    values = tensor(0.9, -0.9, grad=True)
    value_loss(values, tensor(0.0, 0.0), tensor(1.0, 1.0), clip=0.2).loss.sum().backward()
    torch.testing.assert_close(values.grad, tensor(0.0, -1.9))


def test_entropy() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, -1e4, -1e4, -1e4]], dtype=torch.float64, requires_grad=True)
    result = entropy(logits)
    torch.testing.assert_close(result, tensor(math.log(4.0), 0.0))
    p = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    assert float(entropy(p.log() + 3.0)) == pytest.approx(-sum(x * math.log(x) for x in p.tolist()))
    result.sum().backward()
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
    for of_episodes in (gspo, geo_mean):
        with pytest.raises(ValueError, match=r"'sequence': \(2,\)"):
            of_episodes(x, x, x, torch.zeros(2))
    for of_selected in (clip_cov, kl_cov):
        with pytest.raises(ValueError, match=r"'selected': \(2,\)"):
            of_selected(x, x, x, torch.zeros(2))
    with pytest.raises(ValueError, match="tau_pos and tau_neg must be positive, not 1.0 and 0.0"):
        sapo(x, x, x, tau_neg=0.0)
    with pytest.raises(ValueError, match="kl_coef must be at least 0"):
        kl_cov(x, x, x, x, kl_coef=-1.0)
    with pytest.raises(ValueError, match="ratio_cap must be at least 1"):
        dppo(x, x, x, ratio_cap=0.5)
    with pytest.raises(ValueError, match="divergence must be tv or kl, not 'js'"):
        dppo(x, x, x, divergence="js")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="clip_high at least 0"):
        cispo(x, x, x, clip_high=-1.0)
