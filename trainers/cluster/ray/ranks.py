"""Learner ranks as Ray actors, one a rank; see :mod:`trainers.cluster.group`.

Arguments are put into the object store once; every machine fetches them once. Weights stay there too: rank 0 puts them
in buckets, and whoever needs them fetches them from where they are.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from trainers.cluster.buckets import Bucket, Collected, cut, cut_stream
from trainers.cluster.group import Event, LearnerGroup, RankError
from trainers.cluster.rank import Failure, RankHost
from trainers.cluster.ray.runtime import RayCluster, import_ray
from trainers.cluster.serialization import Parcel, pack, unpack
from trainers.cluster.watch import Heartbeat

_PULSE_S = 1.0
_LINES = 3  # of Ray's words on a death
_CAUSE = 2  # lines at the end of a traceback that comes with them


class Published(Mapping[str, Tensor]):
    """Weights in Ray's object store: a mapping, fetched when it is looked into; engines take the buckets themselves.

    Args:
        publication: Its name.
        refs: Of its buckets, in order.
        nbytes: Of all of them.
    """

    def __init__(self, publication: str, refs: list[Any], nbytes: int) -> None:
        self.publication, self.refs, self.nbytes = publication, refs, nbytes
        self._fetched: dict[str, Tensor] | None = None

    @classmethod
    def of(cls, buckets: Iterable[Bucket]) -> Published:
        """Put weights into the object store."""
        ray = import_ray()
        publication, refs, size = "", [], 0
        for bucket in buckets:
            publication = bucket.publication
            refs.append(ray.put(bucket))
            size += bucket.data.nbytes
        return cls(publication, refs, size)

    def __reduce__(self) -> tuple[Any, ...]:
        return Published, (self.publication, self.refs, self.nbytes)

    def __getitem__(self, name: str) -> Tensor:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, Tensor]:
        if self._fetched is None:
            ray = import_ray()
            collected = Collected(self.publication, len(self.refs))
            for ref in self.refs:
                stored: Bucket = ray.get(ref)
                # The store's memory is read-only; these tensors are their owner's to write to.
                own = Bucket(stored.publication, stored.index, stored.entries, stored.data.copy(), stored.checksum)
                collected.add(own)
            self._fetched = collected.weights()
        return self._fetched


class _Host(RankHost):
    def publish(self, which: str, bucket_bytes: int, *args: Any) -> Published | None:
        if which == "adapter_weights":
            adapter = self.learner.adapter_weights()  # all ranks together
            return Published.of(cut(adapter, bucket_bytes)) if self.rank == 0 else None
        tensors = self.learner.stream(which, *args)
        if self.rank == 0:
            return Published.of(cut_stream(tensors, bucket_bytes))
        for _ in tensors:  # none, but the first rank gathers them from all
            raise AssertionError("only the first rank has tensors")
        return None


class _Rank:
    """The actor."""

    def __init__(self, rank: int, count: int) -> None:
        ray = import_ray()
        self._host = _Host(rank, count, ray.util.get_node_ip_address())

    def info(self) -> tuple[str, int, list[Any]]:
        """Its machine's address, its process, and its GPUs."""
        return self._host.address, os.getpid(), import_ray().get_gpu_ids()

    def run(self, order: Parcel) -> Any:
        """What :class:`RankHost` makes of an order; of ranks but the first, only whether it failed."""
        try:
            method, args, kwargs = unpack(order)
        except Exception as error:  # a module that is not importable here
            return Failure.of(error)
        result = self._host.run(method, args, kwargs)
        return result if self._host.rank == 0 or isinstance(result, Failure) else None

    def pulse(self) -> Heartbeat:
        """In another thread than ``run``."""
        return self._host.pulse()


class RayRanks:
    """See :class:`trainers.cluster.group.Transport`.

    Args:
        cluster: Where.
        nsight: Options of ``nsys profile``, under which the ranks run; none where it is empty.
    """

    def __init__(self, cluster: RayCluster, nsight: Mapping[str, str] | None = None) -> None:
        self._ray = cluster.ray
        seats = cluster.plan.learner
        # An actor with a group of its own for pulses has one thread for everything else.
        actor = self._ray.remote(max_restarts=0, max_task_retries=0, concurrency_groups={"pulse": 1})(_Rank)
        under = {"runtime_env": {"nsight": dict(nsight)}} if nsight else {}
        options = [cluster.options(seat) | under for seat in seats]
        self._actors = [actor.options(**each).remote(n, len(seats)) for n, each in enumerate(options)]
        try:
            self.info = self._ray.get([each.info.remote() for each in self._actors], timeout=cluster.timeout)
        except self._ray.exceptions.RayError as error:
            self.kill()
            hint = "; cluster.nsight needs Nsight Systems (nsys) on every machine of the cluster" if nsight else ""
            raise RankError(f"the learner's actors did not start: {said(error)}{hint}") from error
        self._number = 0
        self._answers: dict[Any, int] = {}
        self._pulses: dict[Any, int] = {}
        self._asked = [0.0] * len(seats)
        self._order: Any = None

    @property
    def count(self) -> int:
        """How many ranks there are."""
        return len(self._actors)

    def name(self, rank: int) -> str:
        """See :class:`trainers.cluster.group.Transport`."""
        address, pid, _ = self.info[rank]
        return f"learner rank {rank} (Ray actor on {address}, process {pid})"

    def post(self, number: int, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """See :class:`trainers.cluster.group.Transport`."""
        self._number = number
        order = self._ray.put(pack((method, args, dict(kwargs))))
        self._answers = {actor.run.remote(order): rank for rank, actor in enumerate(self._actors)}
        self._pulses = {}

    def poll(self, timeout: float) -> list[Event]:
        """See :class:`trainers.cluster.group.Transport`."""
        now = time.monotonic()
        for rank in self._answers.values():
            if rank not in self._pulses.values() and now - self._asked[rank] >= _PULSE_S:
                self._asked[rank] = now
                pulse = self._actors[rank].pulse.options(concurrency_group="pulse").remote()
                self._pulses[pulse] = rank
        waited = [*self._answers, *self._pulses]
        if not waited:
            time.sleep(timeout)
            return []
        ready, rest = self._ray.wait(waited, num_returns=1, timeout=timeout)
        if ready and rest:
            ready += self._ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        return [self._event(ref) for ref in ready]

    def _event(self, ref: Any) -> Event:
        answer = ref in self._answers
        rank = self._answers.pop(ref) if answer else self._pulses.pop(ref)
        try:
            value = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            return Event(rank, "gone", self._number, f"died: {said(error)}")
        if not answer:
            return Event(rank, "pulse", self._number, value)
        return Event(rank, "failed" if isinstance(value, Failure) else "done", self._number, value)

    def kill(self) -> None:
        """See :class:`trainers.cluster.group.Transport`."""
        for actor in self._actors:
            with contextlib.suppress(Exception):  # Ray may be gone itself
                self._ray.kill(actor, no_restart=True)

    def close(self) -> None:
        """See :class:`trainers.cluster.group.Transport`."""
        self._answers, self._pulses = {}, {}


class RayLearnerGroup(LearnerGroup):
    """A learner on the Ray actors of a plan; its weights stay in the object store until somebody looks at them.

    Args:
        cluster: Where.
        model: See :class:`~trainers.cluster.group.LearnerGroup`.
        settings: Likewise.
        bucket_bytes: Of weights in one object.
        nsight: See :class:`RayRanks`.
        options: As ``settings``.
    """

    def __init__(
        self,
        cluster: RayCluster,
        model: Any,
        settings: Mapping[str, Any],
        *,
        bucket_bytes: int,
        nsight: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self._bucket_bytes = bucket_bytes
        self.ranks = RayRanks(cluster, nsight)
        super().__init__(self.ranks, model, settings, **options)

    def weights(self, dtype: torch.dtype | None = None) -> Published:
        """See :meth:`trainers.learner.learner.Learner.weights`."""
        return self._publish("weights", dtype)

    def base_weights(self) -> Published:
        """See :meth:`trainers.learner.learner.Learner.base_weights`."""
        return self._publish("base_weights")

    def adapter_weights(self) -> Published:
        """See :meth:`trainers.learner.learner.Learner.adapter_weights`."""
        return self._publish("adapter_weights")

    def _publish(self, which: str, *args: Any) -> Published:
        published: Published = self._do("publish", which, self._bucket_bytes, *args)
        return published


def said(error: BaseException) -> str:
    """The beginning of what Ray says, in one line; of a traceback in it, the end."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for at, line in enumerate(lines[:_LINES]):
        before, trace, _ = line.partition("Traceback (most recent call last)")
        if trace:
            lines = [*lines[:at], before.strip(), *lines[max(at + 1, len(lines) - _CAUSE) :]]
            break
    else:
        lines = lines[:_LINES]
    return " ".join(each for each in lines if each) or type(error).__name__
