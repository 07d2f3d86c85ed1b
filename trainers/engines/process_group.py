"""A process group between independent programs: a trainer, which is rank 0, and the workers of an inference server.

vLLM's worker imports this too, so it needs nothing but PyTorch.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor

#: The arguments of workers that join, as JSON: ``address`` and ``port`` of rank 0's store, and ``name``, ``size``,
#: ``backend`` (``gloo``, ``nccl``, or ``ipc`` where they map its memory) and ``timeout_s`` (of joining, and of each
#: operation) of the group.
Group = Mapping[str, Any]

_ON_ERRORS, _MAKING = "TORCH_NCCL_ASYNC_ERROR_HANDLING", threading.Lock()


def make_group(group: Group, rank: int, store: dist.Store | None = None) -> dist.ProcessGroup:
    """Join a group as ``rank``; returns when all of its programs have. ``store`` is that of rank 0, which opened it."""
    # torch has no public way to a group across independent programs; SGLang uses these internal functions, and both
    # sides of a group must be made in the same way.
    from torch.distributed.distributed_c10d import Backend, PrefixStore, _new_process_group_helper, _world, rendezvous

    # Rank 0 decides that a rank is late; the others wait longer, for its decision.
    timeout, name, size = timedelta(seconds=group["timeout_s"] * (2 if rank else 1)), group["name"], group["size"]
    if store is None:
        host = f"[{group['address']}]" if ":" in group["address"] else group["address"]  # of IPv6
        store, _, _ = next(rendezvous(f"tcp://{host}:{group['port']}", rank, size, timeout=timeout))
    store.set_timeout(timeout)
    with _nccl_that_ends_alone() if group["backend"] == "nccl" else contextlib.nullcontext():
        made, _ = _new_process_group_helper(
            size, rank, [], Backend(group["backend"]), PrefixStore(name, store), group_name=name, timeout=timeout
        )
    _world.pg_group_ranks[made] = {member: member for member in range(size)}
    return made


@contextlib.contextmanager
def _nccl_that_ends_alone() -> Iterator[None]:
    """Make a group that is aborted when the other side dies or is late.

    By default (3) NCCL's watchdog then aborts the whole process: a trainer with the engine that it lost, or a server
    with its trainer.
    """
    with _MAKING:
        previous = os.environ.get(_ON_ERRORS)  # which a group reads while it is made
        os.environ[_ON_ERRORS] = previous or "2"
        try:
            yield
        finally:
            if previous is None:
                del os.environ[_ON_ERRORS]


def broadcast(group: dist.ProcessGroup, tensors: Sequence[Tensor]) -> None:
    """Take part in a broadcast from rank 0 to all other ranks, in order; all tensors are sent concurrently."""
    for work in [dist.broadcast(tensor, src=0, group=group, async_op=True) for tensor in tensors]:
        work.wait()


def destroy(last: list[dist.ProcessGroup | None]) -> None:
    """Leave a group; ``last`` has the last reference, which is held until running operations have ended."""
    group = last.pop()
    if group is not None:
        with contextlib.suppress(Exception):  # errors of running operations
            dist.destroy_process_group(group)
