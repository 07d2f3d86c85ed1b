"""Benchmark of memory per rank: the computed need and the measured peak."""

from __future__ import annotations

import mmap
import os
import time

from transformers import Qwen2Config

from benchmarks.real_size import SHAPES, Watch, memory_of, needed


def config() -> Qwen2Config:
    return Qwen2Config(num_attention_heads=8, num_key_value_heads=2, tie_word_embeddings=True, **SHAPES["small"])


def test_need_per_rank_falls_to_one_tensor() -> None:
    by_ranks = [needed(config(), ranks) for ranks in (1, 2, 4)]
    for phase in by_ranks[0]:
        sizes = [needs[phase] for needs in by_ranks]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[-1] > 4 * SHAPES["small"]["vocab_size"] * SHAPES["small"]["hidden_size"]


def test_short_memory_peak_is_measured() -> None:
    def work() -> None:
        with mmap.mmap(
            -1, 80 * 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        ) as block:  # not of a heap, which may have so much left
            block[:: mmap.PAGESIZE] = b"1" * len(range(0, len(block), mmap.PAGESIZE))
            time.sleep(0.2)

    watch = Watch()
    watch.pids = [os.getpid()]
    watch.phase("idle", lambda: None)
    before, _ = memory_of(os.getpid())
    watch.phase("work", work)
    assert watch.peaks["work"][0] - before > 70 * 2**20
