"""Limits of oneDNN's cache of kernels on the CPU."""

from __future__ import annotations

import os

import torch


def keep_few_kernels() -> None:
    """Let oneDNN, and torch's part above it, remember 64 kernels each; process-wide, if they have computed nothing yet.

    They remember 1024, with half a MB for each, and make one for every number of rows of a matrix product: in bfloat16
    that comes to half a GiB, in pieces all over the heap. A pass of a model's layers needs about thirty.
    """
    names = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
    unset = [name for name in names if name not in os.environ]
    os.environ.update(dict.fromkeys(unset, "64"))
    square = torch.ones(64, 64, dtype=torch.bfloat16)
    torch.mm(square, square)  # they read it at their first use
    for name in unset:  # child processes must not inherit it
        del os.environ[name]
