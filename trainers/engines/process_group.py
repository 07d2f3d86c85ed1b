"""A process group between independent programs: a trainer, which is rank 0, and the workers of an inference server.

vLLM's worker imports this too, so it needs nothing but PyTorch.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor

#: The arguments of workers that join, as JSON: ``address`` and ``port`` of rank 0's store, and ``name``, ``size``,
#: ``backend`` (``gloo`` or ``nccl``) and ``timeout_s`` (of joining, and of each operation) of the group.
Group = Mapping[str, Any]

_LONGEST_NAP_S = 0.005  # between two polls of running work
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


@dataclass
class _Link:
    """One group of a :class:`Sender`."""

    group: Group
    store: dist.Store
    joined: dist.ProcessGroup | None = None
    error: str | None = None

    def late(self, what: str) -> str:
        return f"the workers did not {what} within {self.group['timeout_s']:g} s"

    def fail(self, error: Exception, what: str, since: float) -> None:
        """Note an error of torch, which has the same limit and its own words for it; either side may be first."""
        late = time.monotonic() - since >= self.group["timeout_s"]
        self.error = self.error or (self.late(what) if late else f"they failed to {what}: {error!r}")


class Sender:
    """Rank 0 of any number of groups, each with the workers of one engine.

    A failed group is given up and does not affect the others. A group that was given up (:meth:`give_up`, from any
    thread) or that is late is no longer waited for, whatever state its backend is in.
    """

    def __init__(self) -> None:
        self._links: dict[str, _Link] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._links

    def open(self, address: str, size: int, backend: str, timeout_s: float) -> Group:
        """Open a new group, and start to wait for its workers; return the arguments that these join with.

        ``address`` is this machine's, as the workers reach it; ``timeout_s`` is for joining, and for each bucket.
        """
        since, name, limit = time.monotonic(), f"textenvs-{uuid.uuid4().hex[:8]}", timedelta(seconds=timeout_s)
        store = dist.TCPStore(address, 0, size, is_master=True, timeout=limit, wait_for_workers=False)
        group = {"address": address, "port": store.port, "name": name}
        group |= {"size": size, "backend": backend, "timeout_s": timeout_s}
        link = self._links[name] = _Link(group, store)

        def join() -> None:
            try:
                link.joined = make_group(group, 0, store)
                if link.error is not None:  # the group was given up
                    last: list[dist.ProcessGroup | None] = [link.joined]
                    link.joined = None
                    destroy(last)
            except Exception as error:  # whatever torch raises
                link.fail(error, "join", since)

        threading.Thread(target=join, name="weights", daemon=True).start()  # the process does not wait for it at exit
        return group

    def give_up(self, name: str, why: str) -> None:
        if (link := self._links.get(name)) is not None:
            link.error = link.error or why

    def join(self, names: Iterable[str]) -> None:
        for link in map(self._links.__getitem__, list(names)):
            self._wait(link, lambda link=link: link.joined is not None, "join")  # type: ignore[misc]

    def send(self, tensors: Mapping[str, Sequence[Tensor]], meanwhile: Callable[[], None]) -> None:
        """Broadcast tensors, by the group's name, to groups that have not failed; ``meanwhile`` is called during it."""
        under_way: list[tuple[_Link, list[Any], Sequence[Tensor]]] = []
        since, what = time.monotonic(), "take a bucket"
        for link, values in ((self._links[name], values) for name, values in tensors.items()):
            if link.error is None:
                values = [value.cpu() if link.group["backend"] == "gloo" else value.cuda() for value in values]
                try:
                    works = [dist.broadcast(value, src=0, group=link.joined, async_op=True) for value in values]
                    under_way.append((link, works, values))
                except Exception as error:  # whatever torch raises
                    link.fail(error, what, since)
        meanwhile()
        for link, works, _ in under_way:
            self._wait(link, lambda works=works: all(work.is_completed() for work in works), what)  # type: ignore[misc]
            if link.error is None:
                try:
                    for work in works:
                        work.wait()
                except Exception as error:  # whatever torch raises
                    link.fail(error, what, since)

    def failed(self, name: str) -> str | None:
        """Return why a group has failed, and leave it; ``None`` if it has not failed."""
        error = self._links[name].error
        if error is not None:
            self.leave(name)
        return error

    def leave(self, name: str) -> None:
        if (link := self._links.pop(name, None)) is not None:
            # The last reference is dropped in that thread, which waits for running operations.
            last, link.joined = [link.joined], None
            threading.Thread(target=destroy, args=(last,), name="weights", daemon=True).start()

    def _wait(self, link: _Link, done: Callable[[], bool], what: str) -> None:
        deadline, nap = time.monotonic() + link.group["timeout_s"], 1e-5
        while link.error is None and not done():
            if time.monotonic() > deadline:
                link.error = link.late(what)
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP_S)


def destroy(last: list[dist.ProcessGroup | None]) -> None:
    """Leave a group; ``last`` has the last reference, which is held until running operations have ended."""
    group = last.pop()
    if group is not None:
        with contextlib.suppress(Exception):  # errors of running operations
            dist.destroy_process_group(group)
