"""Learner ranks as Ray actors, one a rank; see :mod:`trainers.cluster.group`.

Arguments go through the object store, once a machine. Weights never do: rank 0 sends them to the engines' workers
(:class:`RankSource`), and this process only orders the steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trainers.cluster.group import Event, LearnerGroup, RankError
from trainers.cluster.rank import Failure, RankHost
from trainers.cluster.ray.runtime import RayCluster, import_ray
from trainers.cluster.watch import Heartbeat
from trainers.engines.base import SourceLostError, SupersededError
from trainers.engines.process_group import Group
from trainers.engines.transport import Receiver, Wants, WeightSource, collect, exchange, in_thread, plan_of, retrieved
from trainers.engines.weights import Sums, TensorSpec
from trainers.learner.weight_stream import Which

_LOOK_S = 0.05  # between two looks at a snapshot that is being sent
_PULSE_S = 1.0
_BUCKET_BYTES = 2**26  # of weights that come to this process
_LINES = 3  # of Ray's words on a death
_CAUSE = 2  # lines at the end of a traceback that comes with them


class _Rank:
    """The actor."""

    def __init__(self, rank: int, count: int) -> None:
        ray = import_ray()
        self._host = RankHost(rank, count, ray.util.get_node_ip_address())

    def info(self) -> tuple[str, int, list[Any]]:
        return self._host.address, os.getpid(), import_ray().get_gpu_ids()

    def run(self, order: tuple[str, tuple[Any, ...], dict[str, Any]]) -> Any:
        """What :class:`RankHost` makes of an order; of ranks but the first, only whether it failed."""
        result = self._host.run(*order)
        return result if self._host.rank == 0 or isinstance(result, Failure) else None

    def pulse(self) -> Heartbeat:
        """In another thread than ``run``, as ``aside``."""
        return self._host.pulse()

    def aside(self, method: str, *args: Any) -> Any:
        """A method of the host; an exception becomes a :class:`Failure`."""
        try:
            return getattr(self._host, method)(*args)
        except Exception as error:
            return Failure.of(error)


class RayRanks:
    """See :class:`trainers.cluster.group.Transport`; ``nsight`` are options of ``nsys profile`` around the ranks."""

    def __init__(self, cluster: RayCluster, nsight: Mapping[str, str] | None = None, silence: float = 30.0) -> None:
        self._ray, self._silence = cluster.ray, silence
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
        self.count = len(seats)
        self._number = 0
        self._answers: dict[Any, int] = {}
        self._pulses: dict[Any, int] = {}
        self._asked = [0.0] * len(seats)
        self.groups: set[str] = set()  # of rank 0 with engines' workers

    def name(self, rank: int) -> str:
        address, pid, _ = self.info[rank]
        return f"learner rank {rank} (Ray actor on {address}, process {pid})"

    def post(self, number: int, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._number = number
        order = self._ray.put((method, args, dict(kwargs)))
        self._answers = {actor.run.remote(order): rank for rank, actor in enumerate(self._actors)}
        self._pulses = {}

    def poll(self, timeout: float) -> list[Event]:
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
        except self._ray.exceptions.RayTaskError as error:  # an argument that cannot be read there
            return Event(rank, "failed", self._number, Failure(None, str(error)))
        except self._ray.exceptions.RayError as error:
            return Event(rank, "gone", self._number, f"died: {said(error)}")
        if not answer:
            return Event(rank, "pulse", self._number, value)
        return Event(rank, "failed" if isinstance(value, Failure) else "done", self._number, value)

    def aside(self, method: str, *args: Any, ranks: Sequence[int] = (0,)) -> list[Any]:
        """Have ranks do something short beside what they are at; RankError where one is gone, or what one raised."""
        group = {"concurrency_group": "pulse"}
        asked = {rank: self._actors[rank].aside.options(**group).remote(method, *args) for rank in ranks}
        answers = []
        for rank, ref in asked.items():
            try:
                answers.append(self._ray.get(ref, timeout=self._silence))
            except self._ray.exceptions.GetTimeoutError as error:
                raise RankError(f"{self.name(rank)} gave no sign of life for {self._silence:g} s") from error
            except self._ray.exceptions.RayError as error:
                raise RankError(f"{self.name(rank)} died: {said(error)}") from error
            if isinstance(answers[-1], Failure):
                raise answers[-1].error or RankError(f"{self.name(rank)} raised:\n{answers[-1].text}")
        return answers

    def kill(self) -> None:
        for actor in self._actors:
            with contextlib.suppress(Exception):  # Ray may be gone itself
                self._ray.kill(actor, no_restart=True)

    def close(self) -> None:
        self._answers, self._pulses = {}, {}


class RayLearnerGroup(LearnerGroup):
    """A learner on the Ray actors of a plan; arguments are those of its base and of :class:`RayRanks`."""

    def __init__(
        self,
        cluster: RayCluster,
        model: Any,
        settings: Mapping[str, Any],
        *,
        nsight: Mapping[str, str] | None = None,
        silence: float = 30.0,
        **patience: float,
    ) -> None:
        self.ranks = RayRanks(cluster, nsight, silence)
        self._publications = itertools.count()
        self._snapshots = asyncio.Lock()  # one is sent at a time, in the same order on all ranks
        super().__init__(self.ranks, model, settings, silence=silence, **patience)

    def publication(self, which: Which, dtype: torch.dtype | None = None, *, snapshot: bool = False) -> RankSource:
        number = next(self._publications)
        specs = self._do("publication", number, which, dtype, snapshot, self.stall)
        return RankSource(self, number, specs, snapshot=snapshot)

    def weights(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """See :meth:`trainers.learner.learner.Learner.weights`; they come here from rank 0."""
        source = self.publication("weights", dtype)
        with ThreadPoolExecutor(1) as thread:  # this one may have an event loop that runs
            return thread.submit(lambda: asyncio.run(collect(source, Wants(bucket_bytes=_BUCKET_BYTES)))).result()

    async def send(self, number: int, order: tuple[Any, ...], *, snapshot: bool) -> Mapping[str, Sums | str]:
        """Have the ranks send; SupersededError: these weights are gone. SourceLostError: they cannot, and why."""
        try:
            if not snapshot:
                return await in_thread(lambda: self._do("publish", number, *order))
            async with self._snapshots:
                await in_thread(lambda: self.ranks.aside("start_publishing", number, *order, ranks=range(self.count)))
                while (sent := (await in_thread(lambda: self.ranks.aside("published")))[0]) is None:
                    await asyncio.sleep(_LOOK_S)
                return sent
        except SupersededError:
            raise
        except Exception as error:
            cause = error
            if snapshot and not isinstance(error, RankError):  # what a survivor says is often not the cause
                with contextlib.suppress(Exception):
                    try:
                        await in_thread(lambda: self.ranks.aside("pulse", ranks=range(self.count)))
                    except RankError as death:
                        cause = death
            if isinstance(cause, RankError):  # one is gone: the others would hold their receivers until these are late
                self.end(f"while sending weights, {cause}")
            raise SourceLostError(f"the learner could not send its weights: {cause}") from cause


class RankSource(WeightSource):
    """The weights of a learner on Ray: all ranks read them together, and rank 0 sends them.

    Receivers who ask at the same time are served in one round, each through a process group of its own. ``snapshot``:
    the ranks have a copy, and may train on.
    """

    def __init__(self, learner: RayLearnerGroup, number: int, specs: Sequence[TensorSpec], *, snapshot: bool) -> None:
        self.specs = specs
        self._learner, self._number, self._snapshot = learner, number, snapshot
        self._announced = 0
        self._waiting: dict[asyncio.Future[Sums], Receiver] = {}
        self._round: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def attending(self) -> Iterator[None]:
        self._announced += 1
        try:
            yield
        finally:
            self._announced -= 1
            self._begin()

    async def broadcast(self, receiver: Receiver) -> Sums:
        done: asyncio.Future[Sums] = asyncio.get_running_loop().create_future()
        self._waiting[done] = receiver
        self._begin()
        return await done

    def _begin(self) -> None:
        """Begin a round, where everybody who will come is here."""
        self._waiting = {done: receiver for done, receiver in self._waiting.items() if not done.done()}
        if self._round is None and self._waiting and len(self._waiting) >= self._announced:
            waiting, self._waiting = self._waiting, {}
            self._round = asyncio.get_running_loop().create_task(self._play(waiting))

    async def _play(self, waiting: Mapping[asyncio.Future[Sums], Receiver]) -> None:
        try:
            wants = {done: receiver.wants for done, receiver in waiting.items()}
            limit = min(each.bucket_bytes for each in wants.values())
            members: dict[str, tuple[Receiver, Group]] = {}
            names: dict[asyncio.Future[Sums], str] = {}
            for done, receiver in waiting.items():
                group = await self._group(receiver, wants[done])
                members[group["name"]] = receiver, group
                names[done] = group["name"]
                done.add_done_callback(partial(self._withdrawn, receiver))
            to = {names[done]: each for done, each in wants.items()}
            sending = self._learner.send(self._number, (limit, to), snapshot=self._snapshot)
            outcome = await exchange(sending, members, plan_of(self.specs, limit), self._give_up)
            for done, name in names.items():
                found = outcome[name]
                if done.done():
                    continue
                if isinstance(found, Exception):
                    done.set_exception(found)
                else:
                    done.set_result(found)
        except BaseException as error:
            for done in waiting:
                if not done.done():
                    done.set_exception(SourceLostError(str(error)) if isinstance(error, RankError) else error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._round = None
            self._begin()

    async def _group(self, receiver: Receiver, wants: Wants) -> Group:
        """The one that the receiver is in, where rank 0 is this learner's; else a new one."""
        group, ranks = receiver.group, self._learner.ranks
        if group is not None and group["name"] in ranks.groups:
            return group
        # Rank 0 must be late before it is taken to stand still itself.
        order = (wants.address, 1 + wants.workers, wants.backend, min(wants.timeout_s, self._learner.stall / 2))
        (group,) = await in_thread(lambda: ranks.aside("open_group", *order))
        ranks.groups.add(group["name"])
        return group  # type: ignore[return-value]

    def _give_up(self, name: str, why: str) -> None:
        ranks = self._learner.ranks
        ranks.groups.discard(name)
        in_thread(lambda: ranks.aside("give_up", name, why)).add_done_callback(retrieved)

    def _withdrawn(self, receiver: Receiver, done: asyncio.Future[Sums]) -> None:
        if done.cancelled() and receiver.group is not None:
            self._give_up(receiver.group["name"], "the update was withdrawn")


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
