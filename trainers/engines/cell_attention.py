"""Attention of single queries to keys that are read where they lie: how the torch engine decodes on a CPU.

The kernels for matrix products (those inside ``scaled_dot_product_attention``, too) spend more on packing the keys of a
single query than on multiplying them. Two kernels for sparse tables work straight from the cells: a product sampled at
given places (``torch.sparse.sampled_addmm``) for the scores, and a weighted sum of rows (``embedding_bag``) for the
values. On one thread gathering is faster (``python -m benchmarks.decode_attention`` shows both).
"""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor


def is_faster(device: torch.device, dtype: torch.dtype, threads: int) -> bool:
    """Whether both kernels exist for these, and are the faster way."""
    return device.type == "cpu" and dtype in (torch.float32, torch.float64) and threads > 1


class CellAttention:
    """Attention of one query a head and request to one layer's ``cells``, each of ``kv_heads`` keys and as many values.

    Each head of keys serves ``heads / kv_heads`` consecutive ones of queries.
    """

    def __init__(self, heads: int, kv_heads: int, head_dim: int, cells: int, dtype: torch.dtype) -> None:
        self._heads, self._kv_heads, self._head_dim, self._dtype = heads, kv_heads, head_dim, dtype
        # A table of the cache has a row for each position and head: keys first, then as many values.
        self._table = cells * 2 * kv_heads
        self._index = torch.int32 if self._table < 2**31 else torch.int64  # half as much to read
        self._of_head = torch.arange(kv_heads, dtype=self._index).repeat_interleave(heads // kv_heads)[:, None]
        with warnings.catch_warnings():  # "in beta state", said once a process, by whoever makes the first
            warnings.simplefilter("ignore")
            self.reads(torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))

    def reads(self, cells: Tensor, positions: Tensor) -> Tensor:
        """What the requests read; the same for all layers.

        ``cells`` (int64 ``[R, keys]``) says where the cache has each position of a request, ``positions`` (int64
        ``[R]``) those of their queries. The answer is sparse, ``[R * heads, rows of the table]`` with ``keys`` entries
        a row: 0 up to the query's position, ``-inf`` beyond (where the cell must be finite).
        """
        keys, count = cells.shape[1], len(cells) * self._heads
        first = cells.to(self._index) * (2 * self._kv_heads)
        hidden = torch.arange(keys) > positions[:, None]
        bias = torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, float("-inf"))
        return torch.sparse_csr_tensor(
            torch.arange(0, count * keys + 1, keys, dtype=self._index),
            (first[:, None] + self._of_head).view(-1),
            bias.repeat_interleave(self._heads, 0).view(-1),
            size=(count, self._table),
            check_invariants=False,
        )

    def attend(self, q: Tensor, cache: Tensor, reads: Tensor) -> Tensor:
        """Queries ``[R, heads, head_dim]`` to what they find, ``[R, heads * head_dim]``; ``reads`` as given before.

        The cache is contiguous, ``[cells, 2 * kv_heads, head_dim]``; the queries need not be.
        """
        table = cache.view(-1, self._head_dim)
        queries = q.reshape(-1, self._head_dim)
        scale = self._head_dim**-0.5
        scores = torch.sparse.sampled_addmm(reads, queries, table.t(), alpha=scale).values().view(len(queries), -1)
        cells = reads.col_indices().view(scores.shape)
        values = table[self._kv_heads :]  # the value of a key's head stands so many rows further
        found = F.embedding_bag(cells, values, mode="sum", per_sample_weights=scores.softmax(-1))
        return found.view(len(q), -1)
