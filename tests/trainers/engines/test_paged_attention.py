"""Attention to blocks in place: softmax(q k * scale) v over the visible positions of each row."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from trainers.engines.decoder import SIZE
from trainers.engines.paged_attention import paged_attention_reference


def formula(q, cache, blocks, position, scale, window):
    """Compute one row ``[heads, head_dim]``, head by head, in float64."""
    kv_heads = cache.shape[1] // 2
    positions = range(max(0, position + 1 - window) if window else 0, position + 1)
    cells = cache[[int(blocks[p // SIZE]) * SIZE + p % SIZE for p in positions]].double()
    rows = []
    for head, query in enumerate(q.double()):
        at = head // (len(q) // kv_heads)
        weights = torch.softmax(cells[:, at] @ query * scale, 0)
        rows.append(weights @ cells[:, kv_heads + at])
    return torch.cat(rows)


@given(st.data())
def test_reference_follows_the_formula(data):
    draw = data.draw
    kv_heads, group, dim, rows, width = (draw(st.integers(1, n)) for n in (3, 3, 9, 4, 4))
    positions = draw(st.lists(st.integers(-1, width * SIZE - 1), min_size=rows, max_size=rows))
    window, scale = draw(st.none() | st.integers(1, 40)), draw(st.sampled_from((0.3, dim**-0.5)))
    torch.manual_seed(draw(st.integers(0, 99)))
    q = torch.randn(rows, kv_heads * group + 2, dim, dtype=torch.float64)[:, 1:-1]  # a view, as the decoder's
    cache = torch.randn(6 * SIZE, 2 * kv_heads, dim, dtype=torch.float64)
    table = torch.randint(0, 6, (rows, width), dtype=draw(st.sampled_from((torch.int32, torch.int64))))
    out = paged_attention_reference(q, cache, table, torch.tensor(positions), scale=scale, window=window)
    for row, position in enumerate(positions):
        expected = formula(q[row], cache, table[row], position, scale, window) if position >= 0 else 0 * out[row]
        torch.testing.assert_close(out[row], expected)
