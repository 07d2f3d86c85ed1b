"""The sampler: cuts and log-probs against oracles written from the definitions; randomness that is a function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainers.engines import sampling
from trainers.engines.base import Sampling
from trainers.engines.sampling import ROW, Draws, Kind, Report, cuts, device_uniforms, sample, uniforms


def rows(count: int, **values: Any) -> np.ndarray:
    made = np.zeros(count, ROW)
    for name, value in ({"temperature": 1.0, "top_p": 1.0} | values).items():
        made[name] = value
    return made


def drawn_at(logits: torch.Tensor, uniform: Any, **values: Any) -> tuple[torch.Tensor, ...]:
    """Sample with the parts that the rows need, and with all parts; returns also row and token of what is left."""
    table, count = rows(len(logits), **values), len(logits)
    draws = Draws(*(torch.from_numpy(np.ascontiguousarray(table[name])) for name in Draws._fields))
    at = torch.from_numpy(np.broadcast_to(uniform, count).astype(np.float64))
    cut = torch.from_numpy(np.flatnonzero(cuts(table)))
    *drawn, survivors = sample(logits.clone(), draws, at, Kind.of(table), cut)
    *again, static = sample(logits.clone(), draws, at, Kind())
    for one, two in zip(drawn, again, strict=True):
        assert torch.equal(one.nan_to_num(), two.nan_to_num()), "a part changes no row that does not need it"
    reports = [Report(survivors, table, cut_only=True), Report(static, table, cut_only=False)]
    ids, others = (list(report.read()) for report in reports)
    for left, right in zip(ids, others, strict=True):
        np.testing.assert_array_equal(left, right)
    rows_of = np.repeat(np.flatnonzero(table["return_kept"]), [len(part) for part in ids])
    return *drawn, torch.from_numpy(np.stack([rows_of, np.concatenate([*ids, np.zeros(0, np.int32)])], 1))


def oracle(logits: list[float], row: dict[str, float]) -> tuple[int, float, float]:
    """One row, token by token: temperature, top-k, top-p, min-p, renormalise, walk the cumulative sum."""
    if row["temperature"] == 0:
        token = int(np.argmax(logits))
        z = np.array(logits, np.float64)
        return token, float(z[token] - np.log(np.exp(z).sum())), 0.0
    z = np.array(logits, np.float64) / row["temperature"]
    p = np.exp(z - z.max())
    p /= p.sum()
    order = sorted(range(len(p)), key=lambda t: (-np.float32(p[t]), t))
    candidates = order[: int(row["top_k"])] if row["top_k"] else order
    mass, nucleus, reached = sum(p[t] for t in candidates), [], 0.0
    for t in candidates:
        nucleus.append(t)
        reached += p[t]
        if reached >= row["top_p"] * mass:
            break
    final = sorted(t for t in nucleus if p[t] >= row["min_p"] * p[nucleus[0]])
    total, walked = sum(p[t] for t in final), 0.0
    for t in final:
        walked += p[t]
        if walked > row["uniform"] * total:
            break
    return t, float(np.log(p[t])), float(np.log(p[t] / total))


row_strategy = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.0]),
        "top_k": st.sampled_from([0, 0, 1, 3, 50]),
        "top_p": st.sampled_from([1.0, 1.0, 0.123, 0.612, 0.987]),
        "min_p": st.sampled_from([0.0, 0.0, 0.0517, 0.313]),
        "uniform": st.floats(0, 0.999),
    }
)


@settings(max_examples=150, deadline=None)
@given(parameters=st.lists(row_strategy, min_size=1, max_size=6), seed=st.integers(0, 2**32 - 1))
def test_mixed_batch_rows_equal_the_oracle(parameters: list[dict[str, float]], seed: int) -> None:
    logits = np.random.default_rng(seed).normal(0, 2, (len(parameters), 12)).astype(np.float32)
    columns = {key: np.array([row[key] for row in parameters]) for key in parameters[0]}
    uniform = columns.pop("uniform")
    drawn = drawn_at(torch.from_numpy(logits), uniform, return_kept=True, **columns)
    mask_entries = drawn[3].tolist()
    for i, (row, at, token, logprob, sampled) in enumerate(
        zip(parameters, logits, *(x.tolist() for x in drawn[:3]), strict=True)
    ):
        candidates = [t for number, t in mask_entries if number == i]
        if row["temperature"] == 0 or (row["top_k"] == 0 and row["top_p"] == 1 and row["min_p"] == 0):
            assert candidates == [], "nothing is cut"
        else:
            p = np.exp(at / np.float32(row["temperature"]), dtype=np.float64)
            p /= p.sum()
            assert token in candidates
            assert sampled == pytest.approx(np.log(p[token] / p[candidates].sum()), abs=1e-4)
            lowest, excluded = min(p[candidates]), [p[t] for t in range(12) if t not in candidates]
            assert lowest >= max(excluded, default=0.0) - 1e-9, "the likeliest stay"
            assert row["top_k"] == 0 or len(candidates) <= row["top_k"]
            assert lowest >= row["min_p"] * max(p) - 1e-6
        row = {**row, "top_p": float(np.float32(row["top_p"])), "min_p": float(np.float32(row["min_p"]))}
        expected = oracle(at.tolist(), {**row, "temperature": float(np.float32(row["temperature"]))})
        if token != expected[0]:  # only a draw on a boundary may go to its neighbour
            nudged = {oracle(at.tolist(), {**row, "uniform": row["uniform"] + e})[0] for e in (-1e-5, 1e-5)}
            assert token in nudged
            continue
        assert logprob == pytest.approx(expected[1], abs=1e-4)
        assert sampled == pytest.approx(expected[2], abs=1e-4)


@settings(max_examples=60, deadline=None)
@given(
    parameters=st.lists(
        row_strategy | st.just({"temperature": 1.0, "top_k": 20, "top_p": 1.0, "min_p": 0.0}), min_size=1
    ),
    listed=st.integers(1, 30),
    seed=st.integers(0, 2**32 - 1),
)
def test_reports_equal_the_mask(parameters: list[dict[str, float]], listed: int, seed: int) -> None:
    """Rows whose tokens fit in the list, and rows whose mask is read; ties and rows that do not report included."""
    rng, count = np.random.default_rng(seed), len(parameters)
    table = rows(
        count,
        return_kept=rng.random(count) < 0.8,
        **{name: np.array([row[name] for row in parameters]) for name in ("temperature", "top_k", "top_p", "min_p")},
    )
    logits = torch.from_numpy(rng.normal(0, 2, (count, 24)).round(1).astype(np.float32))
    draws = Draws(*(torch.from_numpy(np.ascontiguousarray(table[name])) for name in Draws._fields))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "LISTED", listed)
        drawn = sample(logits.clone(), draws, torch.zeros(count, dtype=torch.float64), Kind())
        ids = list(Report(drawn.survivors, table, cut_only=False).read())
    assert drawn.survivors is not None
    expected = drawn.survivors.mask & torch.from_numpy(cuts(table))[:, None]
    assert [part.tolist() for part in ids] == [np.flatnonzero(row).tolist() for row in expected[table["return_kept"]]]
    assert all(part.dtype == np.int32 for part in ids)


@pytest.mark.parametrize(("cut", "width"), [({"top_k": 20}, 20), ({"top_p": 0.9}, sampling.LISTED)])
def test_reports_copy_no_mask(cut: dict[str, Any], width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the host go counts and at most so many ids a row, unless more tokens survive."""
    copied: list[torch.Size] = []

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        copied.append(tensor.shape)
        return tensor

    monkeypatch.setattr(sampling, "_to_host", copy)
    table = rows(3, return_kept=True, **cut)
    draws = Draws(*(torch.from_numpy(np.ascontiguousarray(table[name])) for name in Draws._fields))
    logits = torch.linspace(0, 50, 4000).repeat(3, 1)
    drawn = sample(logits, draws, torch.zeros(3, dtype=torch.float64), Kind())
    report = Report(drawn.survivors, table, cut_only=False)
    assert copied == [(3,), (3, width)]
    report._mask = None
    assert all(len(ids) for ids in report.read()), "no mask was needed"


def test_draws_follow_probabilities() -> None:
    """A grid of uniforms must hit each token in proportion to its probability, to the grid's width."""
    logits = torch.tensor([0.3, -1.0, 2.0, 0.0, -3.0])
    count = 10_000
    tokens, *_ = drawn_at(logits.expand(count, -1), (np.arange(count) + 0.5) / count)
    np.testing.assert_allclose(np.bincount(tokens, minlength=5) / count, logits.softmax(0), atol=2 / count)


def test_zero_probability_token_is_never_drawn() -> None:
    inf = float("inf")
    logits = torch.tensor([[-inf, 1.0, -inf, 2.0, -inf]]).repeat(4, 1)
    extremes = np.array([0.0, 2.0**-52, 0.5, 1 - 2.0**-52])
    for options in ({}, {"top_p": 0.999}, {"min_p": 1e-6}):
        tokens, logprobs, *_ = drawn_at(logits, extremes, **options)
        assert set(tokens.tolist()) <= {1, 3}
        assert torch.isfinite(logprobs).all()


def test_smallest_cuts_leave_most_likely_token() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    for options in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}):
        tokens, logprobs, sampled, mask_entries = drawn_at(logits, 0.999, **options)
        assert tokens.tolist() == logits.argmax(-1).tolist()
        torch.testing.assert_close(logprobs, logits.log_softmax(-1).max(-1).values)
        torch.testing.assert_close(sampled, torch.zeros(3))
        assert mask_entries.shape == (0, 2), "it was not asked for"


def test_equal_logits_are_cut_to_exactly_k() -> None:
    drawn = {int(drawn_at(torch.zeros(1, 10), u, top_k=3)[0]) for u in np.linspace(0, 0.99, 50)}
    assert drawn == {0, 1, 2}


def test_uniforms_are_uniform_and_unrelated() -> None:
    """Seeds 0, 1, 2, ... and positions 0, 1, 2, ... are the worst case of a hash, and the usual case here."""
    n = 300
    grid = np.array([uniforms(np.full(n, seed, np.uint64), np.arange(n)) for seed in range(n)])
    assert grid.min() >= 0
    assert grid.max() < 1
    assert len(np.unique(grid)) == n * n
    counts = np.histogram(grid, 100, (0, 1))[0]
    assert ((counts - n * n / 100) ** 2 / (n * n / 100)).sum() < 149  # chi-square, 99 degrees of freedom: p > 0.001
    for a, b in ((grid[1:], grid[:-1]), (grid[:, 1:], grid[:, :-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 4 / n  # four standard errors
    assert grid[7, 11] == uniforms(np.array([7], np.uint64), np.array([11]))[0]


@given(
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**24)), min_size=1, max_size=20),
)
def test_device_uniforms_equal_numpy_ones(pairs: list[tuple[int, int]]) -> None:
    seeds, positions = np.array([seed for seed, _ in pairs], np.uint64), np.array([at for _, at in pairs], np.int64)
    drawn = device_uniforms(torch.from_numpy(seeds.view(np.int64)), torch.from_numpy(positions))
    assert drawn.tolist() == uniforms(seeds, positions).tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("top_p", [1.0, 0.5])
def test_logits_that_are_not_finite_show(temperature: float, top_p: float) -> None:
    """Tokens stay within the vocabulary: an index beyond it would end a GPU's context."""
    logits = torch.zeros(2, 5)
    logits[1, 3] = float("nan")
    tokens, logprobs, *_ = drawn_at(logits, 0.5, temperature=temperature, top_p=top_p)
    assert torch.isfinite(logprobs).tolist() == [True, False]
    assert 0 <= tokens.min() <= tokens.max() < 5


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"min_p": 2.0},
        {"max_new_tokens": 0},
    ],
)
def test_parameters_out_of_range_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Sampling(**bad)  # type: ignore[arg-type]
