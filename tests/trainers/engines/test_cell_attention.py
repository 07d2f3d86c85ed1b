"""Attention to cells in place: softmax(q k / sqrt(d)) v, request by request."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainers.engines.decoder import CellAttention, is_faster


def oracle(q, cache, cells, position):
    """Compute one request, head by head, by the formula."""
    kv_heads = cache.shape[1] // 2
    heads, dim = q.shape
    slot = cache[cells[: position + 1]]
    rows = []
    for head in range(heads):
        of = head // (heads // kv_heads)
        keys, values = slot[:, of], slot[:, kv_heads + of]
        weights = torch.softmax(keys @ q[head] / dim**0.5, 0)
        rows.append(weights @ values)
    return torch.cat(rows)


@given(st.data())
def test_attention_follows_the_formula(data):
    kv_heads, shared, dim = (data.draw(st.integers(1, n)) for n in (3, 3, 9))
    count, places = data.draw(st.integers(1, 5)), data.draw(st.integers(12, 40))
    positions = [data.draw(st.integers(0, 11)) for _ in range(count)]
    torch.manual_seed(data.draw(st.integers(0, 99)))
    heads = kv_heads * shared
    cells = torch.stack([torch.randperm(places)[: max(positions) + 1] for _ in positions])  # some are shared
    cells.masked_fill_(torch.arange(max(positions) + 1) > torch.tensor(positions)[:, None], 0)  # any, beyond their own
    cache = torch.randn(places, 2 * kv_heads, dim, dtype=torch.float64)
    q = torch.randn(count, heads + 2, dim, dtype=torch.float64)[:, 1:-1]  # a view, as the decoder's
    attention = CellAttention(heads, kv_heads, dim, places, torch.float64)
    attended = attention.attend(q, cache, attention.reads(cells, torch.tensor(positions)))
    expected = torch.stack([oracle(q[i], cache, cells[i], positions[i]) for i in range(count)])
    torch.testing.assert_close(attended, expected)


def test_cells_beyond_a_request_are_ignored():
    attention = CellAttention(2, 1, 4, 24, torch.float32)
    cache, q = torch.randn(24, 2, 4), torch.randn(2, 2, 4)
    reads = attention.reads(torch.stack([torch.arange(16, 23), torch.arange(7)]), torch.tensor([3, 6]))
    before = attention.attend(q, cache, reads)
    cache[2 * 8 + 4 :] = 1e30  # stale keys and values of an older request
    assert torch.equal(attention.attend(q, cache, reads), before)


@pytest.mark.parametrize(
    ("device", "dtype", "threads", "answer"),
    [
        ("cpu", torch.float32, 2, True),
        ("cpu", torch.float32, 1, False),
        ("cpu", torch.bfloat16, 2, False),  # which the kernels do not have
        ("cuda", torch.float32, 2, False),
    ],
)
def test_selection_by_device_dtype_and_threads(device, dtype, threads, answer):
    assert is_faster(torch.device(device), dtype, threads) is answer


def test_sparse_tensors_give_no_warning(recwarn):
    attention = CellAttention(2, 1, 4, 24, torch.float32)
    attention.reads(torch.tensor([[0]]), torch.tensor([0]))
    assert not recwarn
