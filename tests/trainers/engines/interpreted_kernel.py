"""The paged attention kernel, run by Triton's interpreter: tests of a process with ``TRITON_INTERPRET=1``.

``test_interpreted_kernels.py`` starts it.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton_tools import interpreter

from trainers.engines import paged_kernel
from trainers.engines.decoder import SIZE, Decoder
from trainers.engines.paged_attention import Tuning, launch, paged_attention, paged_attention_reference, plan

BLOCKS = 8  #: of the cache; the last is no row's
TILE = 16  #: keys; with 2 tiles a split, a row of 64 keys has 2 splits


@pytest.fixture(autouse=True, scope="module")
def _interpreter():
    with interpreter(paged_kernel):
        yield


class Case:
    """Rows of random lengths over shuffled blocks, some in common; cells that no row sees are NaN."""

    def __init__(self, draw, dtype):
        self.kv_heads, group, self.dim = draw(st.sampled_from(((1, 1, 8), (2, 1, 16), (1, 3, 24), (2, 2, 12))))
        rows, width = draw(st.integers(1, 4)), draw(st.integers(1, 5))
        self.places = draw(st.lists(st.integers(-1, width * SIZE - 1), min_size=rows, max_size=rows))
        self.window, self.scale = draw(st.none() | st.integers(1, 40)), draw(st.sampled_from((0.3, self.dim**-0.5)))
        torch.manual_seed(draw(st.integers(0, 99)))
        self.heads = self.kv_heads * group
        self.q = torch.randn(rows, self.heads + 2, self.dim).to(dtype)[:, 1:-1]  # a view, as the decoder's
        self.cache = torch.randn(BLOCKS * SIZE, 2 * self.kv_heads, self.dim).to(dtype)
        self.table = torch.randint(
            0, BLOCKS - 1, (rows, width), dtype=draw(st.sampled_from((torch.int32, torch.int64)))
        )
        self.positions = torch.tensor(self.places)
        seen = torch.zeros(BLOCKS * SIZE, dtype=torch.bool)
        for row, place in enumerate(self.places):
            self.table[row, place // SIZE + 1 :] = BLOCKS - 1
            keys = torch.arange(0 if self.window is None else max(0, place + 1 - self.window), place + 1)
            seen[self.table[row, keys // SIZE].long() * SIZE + keys % SIZE] = True
        self.cache[~seen] = float("nan")

    def planned(self, programs):
        whole = plan(1, self.kv_heads, self.dim, self.table.shape[1] * SIZE, self.window, torch.float32, 1)
        keys = self.table.shape[1] * SIZE
        reach = keys if self.window is None else min(keys, self.window + TILE)
        splits = -(-reach // (2 * TILE))
        return replace(whole, tuning=Tuning(TILE, 4, 2), split=2 * TILE, splits=splits, programs=min(programs, splits))

    def run(self, programs, rows=slice(None)):
        chosen = self.q[rows], self.cache, self.table[rows], self.positions[rows]
        return launch(*chosen, self.scale, self.window, self.planned(programs))

    def reference(self):
        finite = self.cache.nan_to_num(0.0).float()
        arguments = self.q.float(), finite, self.table, self.positions
        return paged_attention_reference(*arguments, scale=self.scale, window=self.window)

    def present(self):
        """Attend as the decoder does outside of static steps: over gathered blocks, without rows of padding."""
        rows = [row for row, position in enumerate(self.places) if position >= 0]
        out = torch.zeros(len(self.places), self.heads * self.dim, dtype=self.q.dtype)
        if rows:
            decoder = object.__new__(Decoder)
            decoder._heads, decoder._kv_heads, decoder._head_dim = self.heads, self.kv_heads, self.dim
            decoder._cells, decoder._keys_step, decoder.blocks = None, 1, BLOCKS
            decoder.device, decoder.dtype = torch.device("cpu"), self.q.dtype
            decoder.max_context = self.table.shape[1] * SIZE
            positions, table = np.array(self.places)[rows], self.table.long().numpy()[rows]
            group = decoder._group(0, table, np.ones(len(rows), np.int64), positions)
            out[rows] = decoder._attend(self.q[rows], self.cache.nan_to_num(0.0), group, self.scale, self.window)
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)])
@settings(max_examples=3)
@given(data=st.data())
def test_kernel_computes_the_present_attention(dtype, data):
    case = Case(data.draw, dtype)
    out = case.run(data.draw(st.integers(1, 3)))
    # Weights and results are rounded to the type once, and values are below 5.
    options = {"rtol": 0.0, "atol": 2e-6 if dtype == torch.float32 else 5 * torch.finfo(dtype).eps}
    torch.testing.assert_close(out.float(), case.reference(), **options)
    torch.testing.assert_close(out, case.present(), **options)


@settings(max_examples=3)
@given(data=st.data())
def test_rows_do_not_depend_on_the_batch(data):
    case = Case(data.draw, torch.float32)
    whole = case.run(1)
    row = data.draw(st.integers(0, len(case.places) - 1))
    for programs in (1, 3):
        assert torch.equal(case.run(programs, slice(row, row + 1)), whole[row : row + 1])


def test_long_rows_split_by_the_plan():
    torch.manual_seed(0)
    q, cache = torch.randn(1, 2, 8), torch.randn(32 * SIZE, 2, 8)
    table, positions = torch.randperm(32)[None], torch.tensor([32 * SIZE - 3])
    arguments = {"scale": 0.4, "window": None}
    assert plan(1, 1, 8, 32 * SIZE, None, q.dtype, 1).programs == 2
    expected = paged_attention_reference(q, cache, table, positions, **arguments)
    torch.testing.assert_close(paged_attention(q, cache, table, positions, **arguments), expected)
