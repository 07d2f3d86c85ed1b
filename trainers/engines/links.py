"""The two ways from a sender to an engine's workers: a process group, or memory that they map.

Both ends of shared memory are here, because a store between them is their protocol: the sender puts the references of
each bucket there, and the receiver how many buckets were taken.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.engines.process_group import Group, destroy, make_group
from trainers.engines.shared_memory import Buffer

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
        """Note an error of torch, which has the same limit, by its own clock and in its own words."""
        late = time.monotonic() - self.since >= self.group["timeout_s"] or _is_timeout(error)
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
        """Begin to send a bucket, as a :class:`Packing` of the sender holds it."""

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
    """Workers that map this process's buffers.

    There are two buffers, in turn: the next bucket is written while the workers read the last one.
    """

    @staticmethod
    def prepare(store: dist.Store) -> None:
        """Make a new store ready, before any process reads it."""
        store.set(_STATE, "0")

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


def _is_timeout(error: Exception) -> bool:
    # Torch has no type for it: its stores and its groups raise the types of their other failures.
    return re.search(r"timed?[- ]?out", str(error), re.IGNORECASE) is not None


def _key(bucket: int, worker: int) -> str:
    return f"{bucket}/{worker}"
