"""Attention of decoding requests on the CPU: read in place, against gathered and given to PyTorch's own kernel.

Four layers of 256 requests with heads of 64 on 2 heads of keys, float32, in groups of 32 as the torch engine makes
them. The ways take turns; ``ratio`` is the median of the seconds in place over those of the other way.

    python -m benchmarks.decode_attention [--threads 2] [--rounds 25]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from trainers.engines.decoder import SIZE, CellAttention, blocks_for

SLOTS, CONTEXT, KV_HEADS, DIM, GROUP, LAYERS = 256, 320, 2, 64, 32, 4


def gathered(cache: Tensor, q: Tensor, rows: Tensor, bias: Tensor) -> Tensor:
    """Attend the other way: copy the rows' blocks, and one call for all heads."""
    blocks = (rows[:, None] * (CONTEXT // SIZE) + torch.arange(blocks_for(bias.shape[-1]))).view(-1)
    copied_blocks = (
        cache.view(SLOTS * CONTEXT // SIZE, -1).index_select(0, blocks).view(len(rows), -1, 2 * KV_HEADS, DIM)
    )
    kv = copied_blocks[:, : bias.shape[-1]].transpose(1, 2)
    grouped = q.view(len(rows), KV_HEADS, -1, DIM)
    attended = F.scaled_dot_product_attention(grouped, kv[:, :KV_HEADS], kv[:, KV_HEADS:], attn_mask=bias)
    return attended.reshape(len(rows), -1)


def seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def compare(heads: int, keys: int, rounds: int) -> dict[str, float]:
    """Measure both ways in turns at ``keys`` positions a request, all layers of one step."""
    torch.manual_seed(0)
    caches = [torch.randn(SLOTS * CONTEXT, 2 * KV_HEADS, DIM) for _ in range(LAYERS)]  # more than a cache holds
    q = torch.randn(SLOTS, heads, DIM)
    groups = torch.randperm(SLOTS).split(GROUP)
    attention = CellAttention(heads, KV_HEADS, DIM, SLOTS * CONTEXT, torch.float32)
    places = [rows[:, None] * CONTEXT + torch.arange(keys) for rows in groups]
    reads = [attention.reads(cells, torch.full((GROUP,), keys - 1)) for cells in places]
    bias = torch.zeros(GROUP, 1, 1, keys)

    def in_place() -> None:
        for cache in caches:
            for rows, cells in zip(groups, reads, strict=True):
                attention.attend(q[rows], cache, cells)

    def copied() -> None:
        for cache in caches:
            for rows in groups:
                gathered(cache, q[rows], rows, bias)

    one, other = attention.attend(q[groups[0]], caches[0], reads[0]), gathered(caches[0], q[groups[0]], groups[0], bias)
    torch.testing.assert_close(one, other)
    times = [(seconds(in_place), seconds(copied)) for _ in range(rounds + 3)][3:]
    return {
        "heads": heads,
        "keys": keys,
        "ratio": round(statistics.median(in_place_time / copied_time for in_place_time, copied_time in times), 3),
        "in_place_ms": round(1e3 * statistics.median(in_place_time for in_place_time, _ in times), 2),
        "gathered_ms": round(1e3 * statistics.median(copied_time for _, copied_time in times), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with torch.inference_mode():
        for heads in (2, 4, 8):
            for keys in (40, 100, 300):
                print(json.dumps({"threads": options.threads, **compare(heads, keys, options.rounds)}), flush=True)


if __name__ == "__main__":
    main()
