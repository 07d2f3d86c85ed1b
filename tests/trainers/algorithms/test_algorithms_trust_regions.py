"""GMPO, SAPO, DPPO, Clip-Cov and KL-Cov against their formulas, one scalar at a time, in value and in gradient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from algorithm_oracles import forall
from estimating import token_loss
from hypothesis import strategies as st
from torch import Tensor

from trainers.algorithms.losses import ClipCov, KLCov
from trainers.algorithms.losses.base import covariances

log_ratios = st.floats(-1.2, 1.2).map(lambda x: round(x, 3))
numbers = st.floats(-3, 3).map(lambda x: round(x, 3))
tokens = st.lists(st.tuples(st.floats(-4.0, -1.3), log_ratios, numbers), min_size=1, max_size=6)
sequences = st.lists(st.lists(st.tuples(log_ratios, numbers), min_size=1, max_size=4), min_size=1, max_size=4)


def tensor(xs: list[float]) -> Tensor:
    return torch.tensor(xs, dtype=torch.float64)


def columns(batch: list[tuple[float, float, float]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities with a gradient, those of before, advantages and an episode for each token."""
    old, advantages = tensor([before for before, _, _ in batch]), tensor([a for *_, a in batch])
    return (old + tensor([moved for _, moved, _ in batch])).requires_grad_(), old, advantages, torch.arange(len(batch))


def slopes(loss: Tensor, logprobs: Tensor) -> list[float]:
    return torch.autograd.grad(loss.sum(), logprobs)[0].tolist()


@forall(sequences, st.sampled_from([(0.4, 0.4), (0.1, 0.3), (0.0, 0.0)]))
def test_geo_mean(batch: list[list[tuple[float, float]]], clip: tuple[float, float]) -> None:
    """A clipped token keeps its place in the mean and loses its gradient; the others keep theirs."""
    flat = [x for row in batch for x in row]
    old = tensor([-1.0 - 0.1 * i for i in range(len(flat))])
    logprobs = (old + tensor([moved for moved, _ in flat])).requires_grad_()
    number = torch.tensor([5 * e for e, row in enumerate(batch) for _ in row])
    bounds = {"clip_ratio_low": clip[0], "clip_ratio_high": clip[1]}
    result = token_loss("geo_mean", logprobs, old, tensor([a for _, a in flat]), number, **bounds)
    losses, gradient, cut, edge = [], [], [], False
    for row in batch:
        counted = []
        for moved, a in row:
            if a < 0:
                counted.append(max(moved, -clip[0]))
            else:
                counted.append(min(moved, clip[1]))
            edge |= abs(abs(moved) - (clip[0] if a < 0 else clip[1])) < 1e-9
        s = math.exp(sum(counted) / len(row))
        losses += [-s * a for _, a in row]
        free = [float(c == moved) for c, (moved, _) in zip(counted, row, strict=True)]
        cut += [1.0 - f for f in free]
        gradient += [f * sum(-s * a for _, a in row) / len(row) for f in free]
    torch.testing.assert_close(result.loss.detach(), tensor(losses))
    if not edge:
        assert slopes(result.loss, logprobs) == pytest.approx(gradient)
        assert result.stats["clipped"].tolist() == cut


@forall(tokens, st.sampled_from([(1.0, 1.05), (0.5, 3.0)]))
def test_sapo(batch: list[tuple[float, float, float]], taus: tuple[float, float]) -> None:
    arrays = columns(batch)
    result = token_loss("sapo", *arrays, tau_pos=taus[0], tau_neg=taus[1])
    losses, gradient = [], []
    for _, moved, a in batch:
        tau, rho = taus[0] if a > 0 else taus[1], math.exp(moved)
        p = 1 / (1 + math.exp(-tau * (rho - 1)))
        losses.append(-4 / tau * p * a)
        gradient.append(-4 * p * (1 - p) * rho * a)
    assert result.loss.tolist() == pytest.approx(losses)
    assert slopes(result.loss, arrays[0]) == pytest.approx(gradient)


@forall(
    tokens, st.sampled_from(["tv", "kl"]), st.sampled_from([(0.05, 0.02), (0.0, 0.1)]), st.sampled_from([None, 1.5])
)
def test_dppo(
    batch: list[tuple[float, float, float]], divergence: Any, clip: tuple[float, float], cap: float | None
) -> None:
    arrays = columns(batch)
    bounds = {"clip_ratio_low": clip[0], "clip_ratio_high": clip[1], "clip_ratio_c": cap}
    result = token_loss(f"dppo_{divergence}", *arrays, **bounds)
    losses, gradient, cut, edge = [], [], [], False
    for before, moved, a in batch:
        q, p, rho = math.exp(before), math.exp(before + moved), math.exp(moved)
        kl = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
        far = kl if divergence == "kl" else abs(p - q)
        limit = clip[1] if p > q else clip[0]
        edge |= abs(far - limit) < 1e-9
        outside = far > limit and (a > 0 and p > q or a < 0 and p < q)
        weight = 0.0 if outside else min(rho, math.inf if cap is None else cap)
        losses.append(-weight * a * (before + moved))
        gradient.append(-weight * a)
        cut.append(float(outside))
    if not edge:
        assert result.loss.tolist() == pytest.approx(losses)
        assert slopes(result.loss, arrays[0]) == pytest.approx(gradient)
        assert result.stats["clipped"].tolist() == cut


def test_dppo_frees_unlikely_and_bounds_likely_tokens() -> None:
    """PPO does the opposite for both: the first ratio is 3, the second 1.19."""
    old = tensor([1e-4, 0.8]).log()
    logprobs = tensor([3e-4, 0.95]).log().requires_grad_()
    arrays = logprobs, old, tensor([1.0, 1.0]), torch.arange(2)
    for name in ("dppo_tv", "dppo_kl"):
        free, held = slopes(token_loss(name, *arrays, clip_ratio_high=0.05).loss, logprobs)
        assert free == pytest.approx(-3.0)
        assert held == 0.0
    assert slopes(token_loss("ppo", *arrays).loss, logprobs) == pytest.approx([0.0, -0.95 / 0.8])


def test_dppo_of_certain_tokens_is_finite() -> None:
    logprobs = torch.tensor([0.0, -1e-9, -30.0], requires_grad=True)
    for a in (-1.0, 1.0):
        arrays = logprobs, torch.tensor([-30.0, 0.0, 0.0]), torch.full((3,), a), torch.arange(3)
        result = token_loss("dppo_kl", *arrays)
        assert result.loss.isfinite().all()


@forall(tokens, st.data())
def test_clip_cov_and_kl_cov(batch: list[tuple[float, float, float]], data: st.DataObject) -> None:
    arrays = columns(batch)
    chosen = data.draw(st.lists(st.booleans(), min_size=len(batch), max_size=len(batch)))
    selected = torch.tensor(chosen).double()
    without = slopes(token_loss("clip_cov", *arrays, selected=selected).loss, arrays[0])
    plain = slopes(token_loss("ppo", *arrays).loss, arrays[0])
    assert without == [0.0 if c else slope for c, slope in zip(chosen, plain, strict=True)]
    held = slopes(token_loss("kl_cov", *arrays, selected=selected, ppo_kl_coef=0.3).loss, arrays[0])
    expected = [
        -math.exp(moved) * a + (0.3 * float(np.sign(round(moved, 9))) if c else 0.0)
        for (_, moved, a), c in zip(batch, chosen, strict=True)
    ]
    assert all(
        got == pytest.approx(want, abs=1e-9) or abs(moved) < 1e-9  # the slope of |x| at 0
        for got, want, (_, moved, _) in zip(held, expected, batch, strict=True)
    )


# --- which tokens

arrays = st.integers(1, 40).flatmap(
    lambda n: st.tuples(
        *(st.lists(st.floats(-3, 3).map(lambda x: round(x, 2)), min_size=n, max_size=n) for _ in range(2)),
        st.lists(st.booleans(), min_size=n, max_size=n),
    )
)


@forall(arrays, st.sampled_from([1e-4, 0.1, 0.5, 1.0]))
def test_tokens_are_those_of_high_covariance(inputs: tuple[list[float], list[float], list[bool]], ratio: float) -> None:
    logprobs, advantages, mask = map(np.array, inputs)
    trained = [i for i, m in enumerate(inputs[2]) if m]
    shares = covariances(logprobs, advantages, mask)
    mean_l = sum(inputs[0][i] for i in trained) / max(len(trained), 1)
    mean_a = sum(inputs[1][i] for i in trained) / max(len(trained), 1)
    for i, m in enumerate(inputs[2]):
        assert shares[i] == pytest.approx((inputs[0][i] - mean_l) * (inputs[1][i] - mean_a) if m else 0.0, abs=1e-9)
    if trained:
        assert shares.sum() / len(trained) == pytest.approx(
            np.cov(logprobs[mask], advantages[mask], bias=True)[0, 1], abs=1e-9
        )
    count = min(max(int(ratio * len(trained)), 1), len(trained))
    rng = np.random.default_rng(len(trained))
    top = KLCov(kl_cov_ratio=ratio).select(logprobs, advantages, mask, rng)
    assert top is not None
    assert top.sum() == count
    assert not (top & ~mask).any()
    assert min(shares[top], default=0.0) >= max(shares[mask & ~top], default=-np.inf)
    within = ClipCov(clip_cov_ratio=ratio, clip_cov_lb=0.2, clip_cov_ub=2.0)
    drawn = within.select(logprobs, advantages, mask, rng)
    assert drawn is not None
    inside = mask & (shares > 0.2) & (shares < 2.0)
    assert drawn.sum() == min(count, inside.sum())
    assert not (drawn & ~inside).any()


def test_clip_cov_draws_each_candidate_alike() -> None:
    logprobs = np.array([-1.0, -1.0, 1.0, 1.0, 9.0, -9.0])
    advantages, mask = logprobs / 3, np.ones(6, np.bool_)
    section = ClipCov(clip_cov_ratio=0.17, clip_cov_lb=0.0, clip_cov_ub=1.0)
    drawn = [section.select(logprobs, advantages, mask, np.random.default_rng(seed)) for seed in range(400)]
    counts = np.sum(np.array(drawn), axis=0)
    assert counts[4:].tolist() == [0, 0]  # outliers stay in
    assert counts.sum() == 400
    assert all(60 < count < 140 for count in counts[:4])


@pytest.mark.parametrize(
    ("name", "bound", "outside"),
    [
        ("ppo", 0.31, [False, True, False]),
        ("cispo", 0.31, [False, True, False]),
        ("clip_cov", 0.31, [False, True, False]),
        ("gspo", 0.305, [False, False, False]),  # sqrt(1.25 * 1.35) = 1.299
        ("gspo", 0.295, [True, True, True]),
        ("gspo_token", 0.295, [True, True, True]),
        ("geo_mean", 0.31, [False, False, True]),  # log 1.35 = .300, log .7 = -.357
        ("dppo_tv", 0.18, [False, False, True]),  # .168, .017, .201
        ("dppo_kl", 0.084, [True, False, False]),  # .085, .002, .082
        ("sapo", None, None),
        ("kl_cov", None, None),
    ],
)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_outside_clip_uses_own_range(name: str, bound: float | None, outside: list[bool] | None, sign: float) -> None:
    """Token ratios of 1.25 and 1.35 in one episode and .7 in another."""
    old = torch.tensor([-0.4, -3.0, -0.4])
    logprobs = old + torch.tensor([1.25, 1.35, 0.7]).log()
    bounds = {} if bound is None else {"clip_ratio_low": bound, "clip_ratio_high": bound}
    advantages = sign * torch.tensor([1.0, -1.0, 1.0])  # they do not matter
    sequence = torch.tensor([0, 0, 1])
    stats = token_loss(name, logprobs, old, advantages, sequence, selected=torch.zeros(3), **bounds).stats
    assert ("outside_clip" in stats) == (outside is not None)
    assert outside is None or stats["outside_clip"].bool().tolist() == outside
