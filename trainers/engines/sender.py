"""The sender of weights that leave a learner: its groups, and the buffers that workers map."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.engines.base import SourceLostError
from trainers.engines.links import SHARED, GroupLink, Link, SharedLink
from trainers.engines.process_group import Group
from trainers.engines.shared_memory import Buffer, borrowed, give_back, room_of

#: Of weights: the type in which they travel, if it is not their own, and the device of the buffers.
_Form: TypeAlias = tuple[torch.dtype | None, torch.device]


class Packing:
    """Tensors as some groups take them: as ``dtype`` if given, and in the first of two buffers if they share memory.

    They come one by one, so that there is never a second bucket of gathered or cast ones beside the buffers.
    """

    def __init__(self, dtype: torch.dtype | None, pair: list[Buffer] | None = None) -> None:
        self._dtype, self._pair = dtype, pair
        self.tensors: list[Tensor] = []
        if pair is not None:
            pair[0].empty()

    def add(self, value: Tensor) -> None:
        if self._pair is None:
            self.tensors.append(value.to(self._dtype or value.dtype).contiguous())
        else:
            self.tensors.append(self._pair[0].place(value, self._dtype))

    def finish(self) -> None:
        """Wait until the tensors are there for other processes; the next bucket goes to the other buffer."""
        if self._pair is not None:
            self._pair[0].finish()
            self._pair.reverse()  # the workers may read this one


@dataclass(eq=False)
class Round:
    """A round of a :class:`Sender`, to groups with these ``names``; no other round writes to its buffers."""

    names: frozenset[str]
    pairs: dict[_Form, list[Buffer]] = field(default_factory=dict)  #: two buffers for each form of the weights


class Sender:
    """Sends to any number of groups, each with the workers of one engine.

    A failed group is given up and does not affect the others. A group that was given up (:meth:`give_up`, from any
    thread) or that is late is no longer waited for, whatever state its backend is in. Rounds may run at the same time,
    in several threads, if they have no group in common.
    """

    def __init__(self) -> None:
        self._links: dict[str, Link] = {}
        self._state = threading.Lock()
        self._rounds: list[Round] = []
        self._past: list[Round] = []  # whose buffers some workers may map

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
            SharedLink.prepare(store)
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
            with self._state:
                waited_for = any(name in round_.names for round_ in self._rounds)
            if not waited_for:
                self.leave(name)

    def join(self, names: Iterable[str]) -> None:
        for _, link in self._present(names):
            link.wait(link.has_joined, "join")

    def packing(self, round_: Round, dtype: torch.dtype | None, names: Iterable[str], nbytes: int) -> Packing:
        """Begin to pack a bucket for the groups of these ``names``, which have one backend and one ``dtype``.

        ``nbytes`` is the room of the round's largest bucket.
        """
        links = [link for _, link in self._present(names) if isinstance(link, SharedLink) and link.workers]
        if not links:
            return Packing(dtype)
        device = links[0].device
        assert device is not None
        pair = self._pair(round_, (dtype, device))
        if pair and pair[0].nbytes < nbytes:
            give_back(pair)
        while len(pair) < 2:
            pair.append(_borrowed(nbytes, device))
        for link in links:
            link.buffer = pair[0]
        return Packing(dtype, pair)

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
    def round(self, names: Iterable[str]) -> Iterator[Round]:
        """Return a context manager around a round of sending to these groups."""
        round_ = Round(frozenset(names))
        with self._state:
            self._rounds.append(round_)
        try:
            yield round_
        finally:
            with self._state:
                self._rounds.remove(round_)
                self._past.append(round_)
            self._settle()

    def free(self) -> None:
        """Free the buffers on GPUs, whose last round's workers have read all; the next round makes others.

        A buffer on a CPU stays: what a killed reader has mapped would not be free.
        """
        with self._state:
            if not self._rounds and not any(link.error for link in list(self._links.values())):
                freed = [(past, form) for past in self._past for form in past.pairs if form[1].type == "cuda"]
                for past, form in freed:
                    del past.pairs[form]
                for link in self._links.values():
                    if isinstance(link, SharedLink) and link.buffer is not None and link.buffer.device.type == "cuda":
                        link.buffer = None
                if freed:
                    torch.cuda.empty_cache()  # for the engine's process

    def _pair(self, round_: Round, form: _Form) -> list[Buffer]:
        """Return the round's buffers for a form of the weights: at first those of a past round, if there are any."""
        with self._state:
            if form not in round_.pairs:
                past = next((past for past in self._past if form in past.pairs), None)
                round_.pairs[form] = [] if past is None else past.pairs.pop(form)
            return round_.pairs[form]

    def _settle(self) -> None:
        """Give back the buffers of past rounds whose groups' workers map them no more."""
        with self._state:
            links = list(self._links.items())
            mapping = {name for name, link in links if isinstance(link, SharedLink)}
            for past in self._past:
                if not past.names & mapping:
                    for pair in past.pairs.values():
                        give_back(pair)
                    past.pairs.clear()
            self._past = [past for past in self._past if past.pairs]


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
