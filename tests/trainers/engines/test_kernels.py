"""Memory that a process on the CPU keeps for kernels."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

_PRODUCTS = """
import ctypes, sys, torch
from trainers.engines.kernels import keep_few_kernels

class Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena a b c mapped d e used f g".split()]

def used():
    heap = libc.mallinfo2()
    return heap.used + heap.mapped

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Heap
if sys.argv[1] == "few":
    keep_few_kernels()
weights = [torch.ones(64, width, dtype=torch.bfloat16) for width in (64, 96, 128)]
before = used()
for rows in range(64, 164):
    for weight in weights:
        torch.ones(rows, 64, dtype=torch.bfloat16) @ weight
print((used() - before) >> 20)
"""


@pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()),
    reason="torch multiplies in bfloat16 without oneDNN here",
)
def test_products_of_many_sizes_leave_little_memory() -> None:
    def leftover_mib(amount: str) -> int:
        return int(subprocess.check_output([sys.executable, "-c", _PRODUCTS, amount], text=True))

    assert leftover_mib("few") < leftover_mib("all") / 2
