"""Aggregation modes against their definitions; and the gradient does not depend on how the batch is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from algorithm_oracles import forall
from hypothesis import strategies as st

from trainers.algorithms.losses import token_weights

LENGTH = 7.0
MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
rows = st.lists(st.lists(st.tuples(st.floats(-2, 2), st.booleans()), max_size=6), max_size=5)


def weights(mode: Any, batch: list[list[tuple[float, bool]]]) -> np.ndarray:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in batch])]).astype(np.int64)
    mask = np.array([counted for row in batch for _, counted in row], np.bool_)
    return token_weights(mode, offsets, mask, LENGTH if mode.endswith("norm") else None)


def defined(mode: str, batch: list[list[tuple[float, bool]]]) -> float:
    """The loss, from the mode's name."""
    sequences = [[loss for loss, counted in row if counted] for row in batch]
    sequences = [row for row in sequences if row]
    if not sequences:
        return 0.0
    if mode == "token-mean":
        return float(np.mean([loss for row in sequences for loss in row]))
    per_sequence = {
        "seq-mean-token-sum": [sum(row) for row in sequences],
        "seq-mean-token-mean": [sum(row) / len(row) for row in sequences],
        "seq-mean-token-sum-norm": [sum(row) / LENGTH for row in sequences],
    }[mode]
    return float(np.mean(per_sequence))


@pytest.mark.parametrize("mode", MODES)
@forall(batch=rows)
def test_aggregation_modes_match_names(mode: str, batch: list[list[tuple[float, bool]]]) -> None:
    losses = np.array([loss for row in batch for loss, _ in row])
    assert float(np.sum(weights(mode, batch) * losses)) == pytest.approx(defined(mode, batch), abs=1e-9)


@pytest.mark.parametrize("mode", MODES)
@forall(batch=rows, data=st.data())
def test_any_split_into_micro_batches_gives_same_gradient(
    mode: str, batch: list[list[tuple[float, bool]]], data: st.DataObject
) -> None:
    """Tokens are dealt to micro-batches at random: packing, ranks and splits inside an episode are special cases."""
    inputs = torch.tensor([loss for row in batch for loss, _ in row], dtype=torch.float64)
    part = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=len(inputs), max_size=len(inputs))))
    weight = torch.from_numpy(weights(mode, batch))

    def gradient(parts: list[torch.Tensor]) -> torch.Tensor:
        parameter = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
        for chosen in parts:
            (weight[chosen] * (parameter * inputs[chosen]).sin()).sum().backward()
        assert parameter.grad is not None
        return parameter.grad

    whole = gradient([torch.ones(len(inputs), dtype=torch.bool)])
    torch.testing.assert_close(gradient([part == p for p in range(4)]), whole)


def test_mask_of_another_length_is_an_error() -> None:
    offsets = np.array([0, 2, 3])
    with pytest.raises(ValueError, match=r"the mask has the shape \(2,\) for 3 action tokens"):
        token_weights("token-mean", offsets, np.ones(2, np.bool_))
    with pytest.raises(ValueError, match="weights has the shape"):
        token_weights("token-mean", offsets, weights=np.ones(2))


@pytest.mark.parametrize("mode", MODES)
def test_tree_is_one_weighted_sequence(mode: Any) -> None:
    """Two episodes with a fork each: as two episodes whose tokens are those of both, each counted so much."""
    norm = 10.0 if mode.endswith("norm") else None
    offsets, tree = np.array([0, 2, 3, 5, 6]), np.array([0, 0, 2, 2])
    weights = np.array([0.5, 0.25, 0.5, 1.0, 0.5, 0.5])
    token_shares = token_weights(mode, offsets, None, norm, weights=weights, tree=tree)
    by_tree = np.array([1.25, 1.25, 1.25, 2.0, 2.0, 2.0])
    divisors = {"token-mean": 3.25, "seq-mean-token-sum": 2.0, "seq-mean-token-mean": 2 * by_tree}
    np.testing.assert_allclose(token_shares, weights / divisors.get(mode, 20.0))
    masked = token_weights(mode, offsets, np.arange(6) < 3, norm, weights=weights, tree=tree)
    assert not masked[3:].any(), "a tree without a counted token is none"
    alone = token_weights(mode, offsets[:3], None, norm, weights=weights[:3], tree=tree[:2])
    np.testing.assert_allclose(masked[:3], alone)
    plain = token_weights(mode, offsets, None, norm)
    assert token_weights(mode, offsets, None, norm, tree=np.arange(4)).tolist() == plain.tolist()
