"""Losses of single tokens against the formulas, one scalar at a time, in value and in gradient."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from algorithm_oracles import forall
from estimating import keys_of, token_loss
from hypothesis import strategies as st
from torch import Tensor

from trainers.algorithms.losses import LOSSES
from trainers.algorithms.losses.value import value_loss

log_ratios = st.floats(-3, 3).map(lambda x: round(x, 3))
numbers = st.floats(-3, 3).map(lambda x: round(x, 3))


def tensor(*xs: float, grad: bool = False) -> Tensor:
    return torch.tensor(xs, dtype=torch.float64, requires_grad=grad)


def options_of(name: str, clip: tuple[float, float]) -> dict[str, float]:
    """Values for the keys that this loss needs; ``clip_ratio_c`` is left out."""
    values = {"clip_ratio_low": clip[0], "clip_ratio_high": clip[1], "tau_pos": 0.8, "tau_neg": 1.3, "ppo_kl_coef": 0.7}
    return keys_of(name, **values)


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
    arrays = logprobs, tensor(old), tensor(a), torch.zeros(1)
    result = token_loss("ppo", *arrays, clip_ratio_low=low, clip_ratio_high=high, clip_ratio_c=dual)
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
    name = "gspo_token" if by_token else "gspo"
    result = token_loss(name, *arrays, **options_of(name, clip))
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


@forall(sequences, st.sampled_from([(0.2, 0.3), (1.0, 1.0)]))
def test_cispo(batch: list[list[tuple[float, float]]], clip: tuple[float, float]) -> None:
    """Every token keeps a gradient, of bounded weight."""
    logprobs, old, advantages, number = flat(batch)
    result = token_loss("cispo", logprobs, old, advantages, number, **options_of("cispo", clip))
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


def test_clipped_value_gets_gradient_only_backwards() -> None:
    """Moved towards the target by more than the clip: nothing to gain. Moved away: the gradient leads back."""
    values = tensor(0.9, -0.9, grad=True)
    value_loss(values, tensor(0.0, 0.0), tensor(1.0, 1.0), clip=0.2).loss.sum().backward()
    torch.testing.assert_close(values.grad, tensor(0.0, -1.9))


@pytest.mark.parametrize("name", LOSSES)
def test_unlike_shapes_are_named(name: str) -> None:
    x, longer = tensor(0.0), tensor(0.0, 0.0)
    with pytest.raises(ValueError, match=r"'advantages': \(2,\)"):
        token_loss(name, x, x, longer, x, selected=x)
    with pytest.raises(ValueError, match=r"'selected': \(2,\)"):
        token_loss(name, x, x, x, x, selected=longer)
    if name.startswith(("gspo", "geo")):
        with pytest.raises(ValueError, match=r"'sequence': \(2,\)"):
            token_loss(name, x, x, x, longer)
