"""Corrections for tokens that another policy sampled, against loops over single episodes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from algorithm_oracles import forall
from hypothesis import strategies as st

from trainers.algorithms.off_policy import (
    acceptance_mask,
    batch_normalized,
    importance_weights,
    mismatch,
    weight_metrics,
)

log_ratio = st.floats(-2, 2).map(lambda x: round(x, 3))
rows = st.lists(st.lists(log_ratio, max_size=5), max_size=4)
caps = st.sampled_from([None, 0.5, 1.5, 3.0])


def arrays(batch: list[list[float]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Proximal and behaviour log-probabilities with these ratios, and offsets."""
    behaviour = -1.0 - np.arange(sum(map(len, batch))) / 10
    proximal = behaviour + np.array([x for row in batch for x in row])
    return proximal, behaviour, np.concatenate([[0], np.cumsum([len(row) for row in batch])]).astype(np.int64)


@forall(rows, caps)
def test_weights(batch: list[list[float]], cap: float | None) -> None:
    limit = math.inf if cap is None else cap
    expected: dict[str, list[float]] = {
        "token_tis": [min(math.exp(x), limit) for row in batch for x in row],
        "sequence_tis": [min(math.exp(sum(row)), limit) for row in batch for _ in row],
        "decoupled": [math.exp(x) if math.exp(x) <= limit else 0.0 for row in batch for x in row],
    }
    policies = arrays(batch)
    assert importance_weights("none", *policies, cap) is None
    for mode, weights in expected.items():
        result = importance_weights(mode, *policies, cap)  # type: ignore[arg-type]
        assert result is not None
        np.testing.assert_allclose(result, weights, rtol=1e-9)


@forall(rows, st.sampled_from([(0.5, 5.0), (0.9, 1.1), (0.0, 1.0)]))
def test_rejection(batch: list[list[float]], band: tuple[float, float]) -> None:
    def inside(log_ratio: float) -> bool:
        return band[0] <= math.exp(log_ratio) <= band[1]

    rules = {
        "none": [True for row in batch for _ in row],
        "token": [inside(x) for row in batch for x in row],
        "sequence": [inside(sum(row)) for row in batch for _ in row],
        "geometric": [inside(sum(row) / len(row)) for row in batch for _ in row],
    }
    on_an_edge = [abs(math.exp(x) - edge) < 1e-9 for row in batch for edge in band for x in (*row, sum(row))]
    for mode, expected in rules.items():
        accepted = acceptance_mask(mode, *arrays(batch), *band)  # type: ignore[arg-type]
        if not any(on_an_edge):
            assert accepted.tolist() == expected


@forall(rows, st.sampled_from([0.01, 0.3, 2.0]))
def test_rejection_by_kl(batch: list[list[float]], most: float) -> None:
    def k2(x: float) -> float:
        return x * x / 2

    def k3(x: float) -> float:
        return math.exp(x) - 1 - x

    for kind, estimate in (("k2", k2), ("k3", k3)):
        estimates = {"token": [estimate(x) for row in batch for x in row]}
        for scope, whole in (("seq_sum", sum), ("seq_mean", lambda xs: sum(xs) / len(xs)), ("seq_max", max)):
            estimates[scope] = [whole([estimate(x) for x in row]) for row in batch for _ in row]
        for scope, values in estimates.items():
            if not any(abs(value - most) < 1e-9 for value in values):
                mode: Any = f"{scope}_{kind}"
                assert acceptance_mask(mode, *arrays(batch), most=most).tolist() == [value <= most for value in values]


@forall(rows, caps)
def test_batch_normalized_weights(batch: list[list[float]], cap: float | None) -> None:
    limit = math.inf if cap is None else cap
    policies = arrays(batch)
    weights = [math.exp(x) if math.exp(x) <= limit else 0.0 for row in batch for x in row]
    for mode, plain in (("token_tis", [min(math.exp(x), limit) for row in batch for x in row]), ("decoupled", weights)):
        mean = sum(plain) / max(len(plain), 1)
        raw = importance_weights(mode, *policies, cap)  # type: ignore[arg-type]
        assert raw is not None
        expected = [w / mean for w in plain] if mean else plain
        np.testing.assert_allclose(batch_normalized(raw, policies[2], mode), expected, rtol=1e-9)  # type: ignore[arg-type]
    whole = [min(math.exp(sum(row)), limit) for row in batch if row]
    raw = importance_weights("sequence_tis", *policies, cap)
    assert raw is not None
    expected = [w / (sum(whole) / len(whole)) for w, row in zip(whole, filter(None, batch), strict=True) for _ in row]
    np.testing.assert_allclose(batch_normalized(raw, policies[2], "sequence_tis"), expected, rtol=1e-9)


def test_mismatch_is_kl_in_expectation() -> None:
    """Check that over the behaviour policy's tokens ``E[e^l - 1 - l]`` is KL(behaviour, proximal)."""
    behaviour, proximal = np.log([0.7, 0.2, 0.1]), np.log([0.5, 0.3, 0.2])
    estimates = [mismatch(proximal[i : i + 1], behaviour[i : i + 1])["mismatch_kl"] for i in range(3)]
    assert np.exp(behaviour) @ estimates == pytest.approx(np.exp(behaviour) @ (behaviour - proximal))
    assert mismatch(proximal, behaviour)["engine_logprob_gap"] == pytest.approx(np.log(2.0))
    assert mismatch(np.zeros(0), np.zeros(0)) == {"engine_logprob_gap": 0.0, "mismatch_kl": 0.0}


def test_metrics_of_weights() -> None:
    weights = np.array([2.0, 0.5, 2.0, 1.0])
    metrics = weight_metrics(weights, "token_tis", 2.0)
    assert metrics["importance_mean"] == 1.375
    assert metrics["importance_max"] == 2.0
    assert metrics["importance_clipped"] == 0.5
    assert metrics["importance_ess"] == pytest.approx(5.5**2 / (4 * 9.25))
    dropped = np.array([0.0, 1.0, 0.5, 1.0])
    assert weight_metrics(dropped, "decoupled", 2.0)["importance_clipped"] == 0.25
    assert weight_metrics(weights, "token_tis", None)["importance_clipped"] == 0.0
    assert weight_metrics(np.ones(3), "sequence_tis", 2.0)["importance_ess"] == pytest.approx(1.0)
    assert weight_metrics(np.zeros(0), "token_tis", 2.0) == {}
    assert weight_metrics(np.zeros(2), "decoupled", 2.0)["importance_ess"] == 0.0  # all dropped: not 0 / 0


def test_ratios_far_off_stay_finite() -> None:
    policies = np.array([-900.0, 0.0, 0.0]), np.array([0.0, -900.0, -900.0]), np.array([0, 1, 3])
    for mode in ("token_tis", "sequence_tis", "decoupled"):
        weights = importance_weights(mode, *policies, None)  # type: ignore[arg-type]
        assert weights == pytest.approx([math.exp(-20), math.exp(20), math.exp(20)])
    assert math.isfinite(mismatch(*policies[:2])["mismatch_kl"])
    assert acceptance_mask("sequence", *policies).tolist() == [False, False, False]
    assert acceptance_mask("seq_sum_k3", *policies, most=1e8).tolist() == [True, False, False]


def test_wrong_arguments_are_named() -> None:
    x, offsets = np.zeros(2), np.array([0, 2])
    bad: list[tuple[Any, str]] = [
        (lambda: importance_weights("token_tis", x, x[:1], offsets), r"not \(2,\) and \(1,\) for 2 action tokens"),
        (lambda: acceptance_mask("token", x, x, np.array([0, 3])), "for 3 action tokens"),
    ]
    for call, message in bad:
        with pytest.raises(ValueError, match=message):
            call()
