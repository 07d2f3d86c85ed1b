"""Each module of these tests starts without a process group."""

from __future__ import annotations

import pytest
import torch.distributed as dist


@pytest.fixture(autouse=True, scope="module")
def _no_process_group_is_left():
    """Runs of one sharded rank, in other tests of this process, leave theirs until the process ends."""
    if dist.is_initialized():
        dist.destroy_process_group()
