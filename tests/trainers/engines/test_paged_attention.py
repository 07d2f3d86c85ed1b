"""Attention to blocks in place: softmax(q k * scale) v over the visible positions of each row."""

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from triton_tools import compiled_kernels

from trainers.engines import paged_attention
from trainers.engines.decoder import SIZE
from trainers.engines.paged_attention import launch, load_kernel, paged_attention_reference, plan


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


@pytest.fixture
def compiled(tmp_path):
    with compiled_kernels(paged_attention, ("attend", "combine"), tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    ("dtype", "heads", "kv_heads", "dim", "rows", "window"),
    [
        (torch.bfloat16, 14, 2, 64, 256, None),  # Qwen2.5-0.5B
        # The same kernels with other constants; the interpreter runs windows and rows of this width.
        pytest.param(torch.bfloat16, 12, 2, 128, 1, None, marks=pytest.mark.slow),  # Qwen2.5-1.5B
        pytest.param(torch.bfloat16, 32, 8, 128, 256, 1024, marks=pytest.mark.slow),  # Llama-3.1-8B, with a window
        (torch.float32, 14, 2, 64, 1, None),
    ],
)
def test_kernels_compile_for_a_gpu(compiled, dtype, heads, kv_heads, dim, rows, window):
    q = torch.zeros(rows, heads + 2 * kv_heads, dim, dtype=dtype)[:, :heads]
    cache, table = torch.zeros(SIZE, 2 * kv_heads, dim, dtype=dtype), torch.zeros(rows, 128, dtype=torch.int32)
    planned = plan(rows, kv_heads, dim, 128 * SIZE, window, dtype, 132)
    launch(q, cache, table, torch.zeros(rows, dtype=torch.int64), 0.1, window, planned)
    assert set(compiled) == ({"attend", "combine"} if rows == 1 else {"attend"})
    ptx = compiled["attend"].asm["ptx"]
    assert ("mma.sync" in ptx) == (dtype != torch.float32)  # float32 is multiplied exactly
    assert "cp.async" in ptx  # tiles are read ahead
    assert compiled["attend"].metadata.shared <= 99 * 1024  # what an RTX GPU has; a data centre's has more


@given(st.integers(1, 512), st.integers(1, 8), st.integers(1, 4096), st.none() | st.integers(1, 5000))
def test_plan_covers_each_row_alike(rows, kv_heads, blocks, window):
    width = blocks * SIZE
    window = window if window is not None and window < width else None
    planned, alone = (plan(n, kv_heads, 64, width, window, torch.bfloat16, 132) for n in (rows, 1))
    assert (planned.tuning, planned.split, planned.splits) == (alone.tuning, alone.split, alone.splits)
    longest = width if window is None else min(width, window + planned.tuning.keys - 1)
    assert (planned.splits - 1) * planned.split < planned.splits * planned.split >= longest
    assert 1 <= planned.programs <= planned.splits <= 64
    assert planned.split % planned.tuning.keys == 0


def test_many_rows_need_no_partial_results():
    assert plan(256, 2, 64, 32768, None, torch.bfloat16, 132).programs == 1
    assert plan(1, 2, 64, 32768, None, torch.bfloat16, 132).programs == 64


def test_missing_triton_is_an_error_that_helps(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "trainers.engines.paged_kernel", raising=False)
    monkeypatch.delattr("trainers.engines.paged_kernel", raising=False)
    load_kernel.cache_clear()
    with pytest.raises(ModuleNotFoundError, match=r"pip install triton, or set engine\.cuda_graphs=false"):
        load_kernel()


def test_other_types_layouts_and_heads_are_refused():
    q, cache = torch.zeros(1, 1, 8, dtype=torch.float64), torch.zeros(SIZE, 2, 8, dtype=torch.float64)
    with pytest.raises(ValueError, match="takes float32, bfloat16 or float16, not torch.float64"):
        paged_attention.paged_attention(q, cache, torch.zeros(1, 1), torch.zeros(1), scale=1.0)
    with pytest.raises(ValueError, match="takes a contiguous cache"):
        paged_attention.paged_attention(q.half(), cache.half()[:, :, ::2], torch.zeros(1, 1), torch.zeros(1), scale=1.0)
    with pytest.raises(ValueError, match="at most 256 numbers, not 300"):
        plan(1, 1, 300, SIZE, None, torch.float16, 1)
