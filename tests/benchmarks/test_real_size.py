"""What the benchmark of ranks' memory compares with, and how it looks."""

from __future__ import annotations

import mmap
import os
import time

from transformers import Qwen2Config

from benchmarks.real_size import SHAPES, Watch, memory_of, needed


def config() -> Qwen2Config:
    return Qwen2Config(num_attention_heads=8, num_key_value_heads=2, tie_word_embeddings=True, **SHAPES["small"])


def test_more_ranks_need_less_each_and_never_less_than_a_tensor() -> None:
    by_ranks = [needed(config(), ranks) for ranks in (1, 2, 4)]
    for phase in by_ranks[0]:
        sizes = [each[phase] for each in by_ranks]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[-1] > 4 * SHAPES["small"]["vocab_size"] * SHAPES["small"]["hidden_size"]


def test_memory_that_was_there_for_a_moment_is_seen() -> None:
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
