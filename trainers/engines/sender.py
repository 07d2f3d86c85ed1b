"""The sending side of weights that leave a learner: rank 0 of process groups, or buffers that workers map."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.engines.base import SourceLostError
from trainers.engines.process_group import Group, destroy, make_group
from trainers.engines.shared_memory import Buffer, borrowed, give_back, room_of

SHARED = "ipc"  #: the backend of workers that map this process's memory
_LONGEST_NAP_S = 0.005  # between two polls of running work
_STATE, _GIVEN_UP = "taken", "given up"  # keys of a group's store


class Link(ABC):
    """One group of a :class:`Sender`: this process, and the workers of one engine."""

    def __init__(self, group: Group, store: dist.Store) -> None:
        self.group, self.store, self.error, self.since = group, store, None, time.monotonic()

    error: str | None  #: why it failed; then it is no longer waited for

    def late(self, what: str) -> str:
        return f"the workers did not {what} within {self.group['timeout_s']:g} s"

    def fail(self, error: Exception, what: str) -> None:
        """Note an error of torch, which has the same limit and its own words for it; either side may be first."""
        late = time.monotonic() - self.since >= self.group["timeout_s"]
        self.give_up(self.late(what) if late else f"they failed to {what}: {error!r}")

    def give_up(self, why: str) -> None:
        self.error = self.error or why

    def wait(self, done: Callable[[], bool], what: str) -> None:
        self.since, nap = time.monotonic(), 1e-5
        while self.error is None and not self._is(done, what):
            if time.monotonic() - self.since > self.group["timeout_s"]:
                self.give_up(self.late(what))
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP_S)

    def _is(self, done: Callable[[], bool], what: str) -> bool:
        try:
            return done()
        except Exception as error:  # whatever torch raises
            self.fail(error, what)
            return False

    @abstractmethod
    def has_joined(self) -> bool:
        """Return whether the workers are there."""

    @abstractmethod
    def begin(self, names: Sequence[str], tensors: Sequence[Tensor]) -> None:
        """Begin to send a bucket, as :meth:`Sender.cast` made it."""

    @abstractmethod
    def is_sent(self) -> bool:
        """Return whether the memory that the next bucket needs is free; raises what torch does."""

    def is_over(self) -> bool:
        """Return whether the workers have all buckets."""
        return self.is_sent()

    @abstractmethod
    def leave(self) -> None:
        """Leave the group, without waiting for anything."""


class GroupLink(Link):
    """A process group, in which this process is rank 0 and broadcasts."""

    def __init__(self, group: Group, store: dist.Store) -> None:
        super().__init__(group, store)
        self._joined: dist.ProcessGroup | None = None
        self._works: list[Any] = []
        self._sent: Sequence[Tensor] = ()
        threading.Thread(target=self._join, name="weights", daemon=True).start()  # no process waits for it at exit

    def _join(self) -> None:
        try:
            self._joined = make_group(self.group, 0, self.store)
            if self.error is not None:  # the group was given up
                last: list[dist.ProcessGroup | None] = [self._joined]
                self._joined = None
                destroy(last)
        except Exception as error:  # whatever torch raises
            self.fail(error, "join")

    def has_joined(self) -> bool:
        return self._joined is not None

    def begin(self, names: Sequence[str], tensors: Sequence[Tensor]) -> None:
        self._sent = [value.cpu() if self.group["backend"] == "gloo" else value.cuda() for value in tensors]
        self._works = [dist.broadcast(value, src=0, group=self._joined, async_op=True) for value in self._sent]

    def is_sent(self) -> bool:
        if not all(work.is_completed() for work in self._works):
            return False
        for work in self._works:
            work.wait()
        self._works, self._sent = [], ()
        return True

    def leave(self) -> None:
        # The last reference is dropped in that thread, which waits for running operations.
        last, self._joined = [self._joined], None
        threading.Thread(target=destroy, args=(last,), name="weights", daemon=True).start()


class SharedLink(Link):
    """Workers that map this process's buffers. A store has the references of each bucket, and how many were taken.

    There are two buffers, in turn: the next bucket is written while the workers read the last one.
    """

    def __init__(self, group: Group, store: dist.Store) -> None:
        super().__init__(group, store)
        self.workers: Sequence[int] = ()  #: the ranks of those that this process serves
        self.device: torch.device | None = None  #: theirs
        self.buffer: Buffer | None = None  # of the next bucket
        self._begun = 0

    def give_up(self, why: str) -> None:
        super().give_up(why)
        with contextlib.suppress(Exception):  # the store may have ended with rank 0
            self.store.set(_GIVEN_UP, why)  # for other ranks, and for the receiver

    def has_joined(self) -> bool:
        return True

    def begin(self, names: Sequence[str], tensors: Sequence[Tensor]) -> None:
        named = list(zip(names, tensors, strict=True))
        for worker in self.workers:
            assert self.buffer is not None
            self.store.set(_key(self._begun, worker), self.buffer.references(named))
        self._begun += 1

    def is_sent(self) -> bool:
        return self._has_taken(self._begun - 1)

    def is_over(self) -> bool:
        return self._has_taken(self._begun)

    def leave(self) -> None:
        """Do nothing: the store ends with this."""

    def _has_taken(self, count: int) -> bool:
        if self.store.check([_GIVEN_UP]):
            self.error = self.error or self.store.get(_GIVEN_UP).decode()
        return int(self.store.get(_STATE)) >= count


class Inlet:
    """The receiving end of a :class:`SharedLink`, for all workers of an engine. Its methods block."""

    def __init__(self, group: Group) -> None:
        self._workers, self._limit = group["size"] - 1, group["timeout_s"]
        self._store = dist.TCPStore(group["address"], group["port"], timeout=timedelta(seconds=self._limit))
        self._taken = 0
        self.closed = False

    def references(self) -> list[str]:
        """Wait for the next bucket; return its references, one for each worker. RuntimeError: none will come."""
        try:
            return self._references()
        except dist.DistError as error:  # its store is gone
            raise RuntimeError("the sender has given up") from error

    def _references(self) -> list[str]:
        keys = [_key(self._taken, worker) for worker in range(self._workers)]
        deadline, nap = time.monotonic() + 2 * self._limit, 1e-5  # rank 0 decides who is late
        while not self._store.check(keys):
            if self.closed or self._store.check([_GIVEN_UP]):
                raise RuntimeError("the sender has given up")
            if time.monotonic() > deadline:
                raise RuntimeError(f"no weights came for {2 * self._limit:g} s")
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP_S)
        references = [self._store.get(key).decode() for key in keys]
        for key in keys:
            self._store.delete_key(key)
        return references

    def done(self) -> None:
        """Tell the sender that the workers have read the bucket: its memory may change."""
        self._taken += 1
        self._store.set(_STATE, str(self._taken))


class Sender:
    """Sends to any number of groups, each with the workers of one engine.

    A failed group is given up and does not affect the others. A group that was given up (:meth:`give_up`, from any
    thread) or that is late is no longer waited for, whatever state its backend is in.
    """

    def __init__(self) -> None:
        self._links: dict[str, Link] = {}
        self._buffers: dict[Any, list[Buffer]] = {}  # two for each form of the weights
        self._state = threading.Lock()
        self._in_round = False

    def __contains__(self, name: str) -> bool:
        return name in self._links

    def open(self, address: str, size: int, backend: str, timeout_s: float) -> Group:
        """Open a new group, and start to wait for its workers; return the arguments that these join with.

        ``address`` is this machine's, as the workers reach it; ``timeout_s`` is for joining, and for each bucket.
        """
        name, limit = f"textenvs-{uuid.uuid4().hex[:8]}", timedelta(seconds=timeout_s)
        store = dist.TCPStore(address, 0, size, is_master=True, timeout=limit, wait_for_workers=False)
        group = {"address": address, "port": store.port, "name": name}
        group |= {"size": size, "backend": backend, "timeout_s": timeout_s}
        if backend == SHARED:
            store.set(_STATE, "0")
        self._links[name] = (SharedLink if backend == SHARED else GroupLink)(group, store)
        return group

    def serve(self, group: Group, workers: Sequence[int], device: torch.device | None) -> None:
        """Serve the workers with these ranks, on their ``device``; another process may have opened the group."""
        link = self._links.get(group["name"])
        if link is None:
            limit = timedelta(seconds=group["timeout_s"])
            store = dist.TCPStore(group["address"], group["port"], timeout=limit)
            link = self._links[group["name"]] = SharedLink(group, store)
        assert isinstance(link, SharedLink)
        link.workers, link.device = workers, device

    def give_up(self, name: str, why: str) -> None:
        if (link := self._links.get(name)) is not None:
            link.give_up(why)
            if not self._in_round:
                self.leave(name)

    def join(self, names: Iterable[str]) -> None:
        for _, link in self._present(names):
            link.wait(link.has_joined, "join")

    def cast(
        self, tensors: Sequence[Tensor], dtype: torch.dtype | None, names: Iterable[str], nbytes: int
    ) -> list[Tensor]:
        """Return tensors as the groups of these ``names`` take them: as ``dtype``, and in a buffer if it is shared.

        The groups have one backend and one ``dtype``; ``nbytes`` is the room of the largest bucket.
        """
        links = [link for _, link in self._present(names) if isinstance(link, SharedLink) and link.workers]
        if not links:
            return [value.to(dtype or value.dtype).contiguous() for value in tensors]
        device = links[0].device
        assert device is not None
        pair = self._buffers.setdefault((dtype, device), [])
        if pair and pair[0].nbytes < nbytes:
            give_back(pair)
        while len(pair) < 2:
            pair.append(_borrowed(nbytes, device))
        pair.reverse()  # the workers may read the last one
        for link in links:
            link.buffer = pair[0]
        return pair[0].fill(tensors, dtype)

    def send(
        self, names: Sequence[str], tensors: Mapping[str, Sequence[Tensor]], meanwhile: Callable[[], None]
    ) -> None:
        """Send a bucket of tensors with these ``names``, by the group's name, to groups that have not failed.

        ``meanwhile`` is called during it. Returns when the next bucket may be cast.
        """
        what, begun = "take a bucket", list[Link]()
        for name, link in self._present(tensors):
            link.since = time.monotonic()
            if link.error is None:
                try:
                    link.begin(names, tensors[name])
                    begun.append(link)
                except Exception as error:  # whatever torch raises
                    link.fail(error, what)
        meanwhile()
        for link in begun:
            link.wait(link.is_sent, what)

    def finish(self, names: Iterable[str]) -> None:
        """Wait until all groups that have not failed have all buckets."""
        for _, link in self._present(names):
            link.wait(link.is_over, "take a bucket")

    def failed(self, name: str) -> str | None:
        """Return why a group has failed, and leave it; ``None`` if it has not failed."""
        error = self._links[name].error if name in self._links else "the group was left"
        if error is not None:
            self.leave(name)
        return error

    def _present(self, names: Iterable[str]) -> list[tuple[str, Link]]:
        """Return the links of groups that were not left meanwhile."""
        links = [(name, self._links.get(name)) for name in names]
        return [(name, link) for name, link in links if link is not None]

    def leave(self, name: str) -> None:
        if (link := self._links.pop(name, None)) is not None:
            link.give_up("the group was left")  # a round may wait for it
            link.leave()
            self._settle()

    @contextlib.contextmanager
    def round(self) -> Iterator[None]:
        """Return a context manager around a round of sending: its buffers are its own until it has ended."""
        self._settle(in_round=True)
        try:
            yield
        finally:
            self._settle(in_round=False)

    def _settle(self, *, in_round: bool | None = None) -> None:
        """Give the buffers back if nothing is written to them, and no group's workers map them."""
        with self._state:
            self._in_round = self._in_round if in_round is None else in_round
            if not self._in_round and not any(isinstance(link, SharedLink) for link in list(self._links.values())):
                for pair in self._buffers.values():
                    give_back(pair)


def _borrowed(nbytes: int, device: torch.device) -> Buffer:
    try:
        return borrowed(nbytes, device)
    except RuntimeError as error:  # whatever torch raises
        where = f"on {device}" if device.type == "cuda" else "in /dev/shm (of a container: its --shm-size)"
        raise SourceLostError(
            f"no {nbytes / 2**20:.0f} MiB {where} for a bucket of weights, of which there are two: make room there, "
            f"lower the engine's bucket_mib, or take engine.weight_transport=process_group ({error})"
        ) from error


def bytes_of(shapes: Sequence[tuple[Sequence[int], torch.dtype]]) -> int:
    """Return the size of a buffer for tensors of these shapes and types."""
    return sum(room_of(torch.Size(shape).numel() * dtype.itemsize) for shape, dtype in shapes)


def _key(bucket: int, worker: int) -> str:
    return f"{bucket}/{worker}"
