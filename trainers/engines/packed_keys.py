"""Attention of chunks of prompts on CUDA in 16 bits: the keys of each are gathered from their blocks and packed.

PyTorch's kernel could read blocks in place from 2.12 on, but FlashAttention 2 behind it wants blocks of a multiple of
256 positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trainers.models.varlen import varlen_attention

#: That are gathered at a time: 32 MiB a layer for 2 heads of keys of 64 numbers, 256 MiB for 8 of 128.
MOST_KEYS = 65536


@dataclass(frozen=True)
class PackedKeys:
    """The places of the keys of several chunks, one chunk after the other."""

    cells: Tensor  #: int32 ``[keys]``, of the cache
    starts: tuple[Tensor, Tensor]  #: int32 ``[chunks + 1]``, cumulative numbers of queries, of keys
    longest: tuple[int, int]  #: queries and keys of a chunk, at most

    @classmethod
    def plan(
        cls,
        table: NDArray[np.int64],
        size: int,
        counts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        put: Callable[[NDArray[Any]], Tensor],
    ) -> PackedKeys:
        """Plan for chunks that are the last ``counts`` of ``lengths`` positions, each ``[chunks]``.

        ``table`` ``[chunks, blocks]`` has the block of each ``size`` positions. One copy by ``put`` moves all.
        """
        ends, count = lengths.cumsum(), len(counts)
        chunk = np.repeat(np.arange(count), lengths)
        position = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
        cells = table[chunk, position // size] * size + position % size
        moved = put(np.concatenate([[0], counts.cumsum(), [0], ends, cells]).astype(np.int32))
        queries, keys, where = moved.split([count + 1, count + 1, len(cells)])
        return cls(where, (queries, keys), (int(counts.max()), int(lengths.max())))

    def attend(self, q: Tensor, cache: Tensor, scale: float | None, window: int | None) -> Tensor:
        """Attend with the chunks' queries ``[tokens, heads, head_dim]``; returns ``[tokens, heads * head_dim]``.

        ``cache`` is a layer's, ``[cells, 2 * kv_heads, head_dim]``: keys, then values.
        """
        keys, values = cache.index_select(0, self.cells).chunk(2, dim=1)
        return varlen_attention(q, keys, values, self.starts, self.longest, scale=scale, window=window).flatten(1)
