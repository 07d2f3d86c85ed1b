"""A process group between independent programs: a trainer, which is rank 0, and the workers of an inference server.

vLLM's worker imports this too, so it needs nothing but PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor


def make_group(
    *, address: str, port: int, name: str, rank: int, size: int, backend: str, timeout_s: float
) -> dist.ProcessGroup:
    """Join a group; returns when all ``size`` programs have.

    Args:
        address: Where rank 0 can be reached.
        port: Of its store, which rank 0 opens.
        name: Of the group.
        rank: From 0 to ``size - 1``.
        size: Of the group.
        backend: ``gloo`` or ``nccl``.
        timeout_s: Seconds for joining, and for each later operation.
    """
    # torch has no public way to a group across independent programs; SGLang uses these internal functions, and both
    # sides of a group must be made in the same way.
    from torch.distributed.distributed_c10d import (
        Backend,
        PrefixStore,
        _new_process_group_helper,
        _world,
        rendezvous,
    )

    timeout = timedelta(seconds=timeout_s)
    store, _, _ = next(rendezvous(f"tcp://{address}:{port}", rank, size, timeout=timeout))
    store.set_timeout(timeout)
    group, _ = _new_process_group_helper(
        size,
        rank,
        [],
        Backend(backend),
        PrefixStore(name, store),
        group_name=name,  # type: ignore[arg-type]  # a type of its own in newer versions
        timeout=timeout,
    )
    _world.pg_group_ranks[group] = {each: each for each in range(size)}
    return group


def broadcast(group: dist.ProcessGroup, tensors: Sequence[Tensor]) -> None:
    """Send from rank 0 to all others, in order; all tensors are under way at once."""
    for work in [dist.broadcast(tensor, src=0, group=group, async_op=True) for tensor in tensors]:
        work.wait()
