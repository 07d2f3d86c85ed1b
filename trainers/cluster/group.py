"""A learner of many ranks behind the interface of a single learner.

Every call goes to all ranks, which are Ray actors, with the same arguments (through the object store, once a machine);
rank 0's result comes back. :mod:`.rank` detects a rank that raises, dies or hangs. If all ranks raise the same error,
the group stays usable, as a Learner would; otherwise it is ended, and every later call raises the reason. Weights do
not pass through this process: rank 0 sends them to the engines' workers (:class:`RankSource`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from trainers.cluster.rank import Failure, Heartbeat, RankHost, Verdict, Watch
from trainers.cluster.ray.runtime import RayCluster, error_summary, import_ray
from trainers.config.model import ModelSection
from trainers.config.running import ClusterSection
from trainers.engines.base import SourceLostError, SupersededError
from trainers.engines.process_group import Group
from trainers.engines.transport import Receiver, Wants, WeightSource, collect, exchange, in_thread, plan_of, retrieved
from trainers.engines.weights import Sums, TensorSpec
from trainers.learner.fsdp import OtherRankError
from trainers.learner.weight_stream import Which
from trainers.trajectory import Trajectory

_LOOK_S = 0.2  # between two polls: the largest delay in noticing a rank's silence
_GRACE_S = 3.0  # after a rank's error: time for the other ranks' errors, or for the death that caused it, to arrive
_SENT_S = 0.05  # between two polls of a snapshot that is being sent
_PULSE_S = 1.0
_BUCKET_BYTES = 2**26  # of weights that this process receives


class RankError(RuntimeError):
    """The group of ranks has ended; the message names the rank and says why."""


@dataclass(frozen=True)
class Event:
    """An event of one rank."""

    rank: int
    kind: Literal["done", "failed", "pulse", "gone"]
    number: int  #: number of the call that it belongs to; arbitrary for ``gone``
    #: rank 0's result (``done``), a :class:`~trainers.cluster.rank.Failure` (``failed``), a
    #: :class:`~trainers.cluster.rank.Heartbeat` (``pulse``), or how the rank died, in words (``gone``)
    value: Any = None


class _Rank:
    """The Ray actor of one rank."""

    def __init__(self, rank: int, count: int) -> None:
        ray = import_ray()
        self._host = RankHost(rank, count, ray.util.get_node_ip_address())

    def info(self) -> tuple[str, int, list[Any]]:
        return self._host.address, os.getpid(), import_ray().get_gpu_ids()

    def run(self, order: tuple[str, tuple[Any, ...], dict[str, Any]]) -> Any:
        """Carry out an order with :class:`RankHost`; ranks other than 0 return only a failure, or ``None``."""
        result = self._host.run(*order)
        return result if self._host.rank == 0 or isinstance(result, Failure) else None

    def pulse(self) -> Heartbeat:
        """Return the heartbeat; runs in another thread than ``run``, as ``aside`` does."""
        return self._host.pulse()

    def aside(self, method: str, *args: Any) -> Any:
        """Call a method of the host; an exception becomes a :class:`Failure`."""
        try:
            return getattr(self._host, method)(*args)
        except Exception as error:
            return Failure.of(error)


class RayRanks:
    """The actors of a plan's ranks; ``nsight`` are options of ``nsys profile`` around them."""

    def __init__(self, cluster: RayCluster, nsight: Mapping[str, str] | None = None, silence: float = 30.0) -> None:
        self._ray, self._silence = cluster.ray, silence
        seats = cluster.plan.learner
        # An actor with a concurrency group for heartbeats has one thread for all other calls.
        actor = self._ray.remote(max_restarts=0, max_task_retries=0, concurrency_groups={"pulse": 1})(_Rank)
        under = {"runtime_env": {"nsight": dict(nsight)}} if nsight else {}
        options = [cluster.options(seat) | under for seat in seats]
        self._actors = [actor.options(**seat_options).remote(n, len(seats)) for n, seat_options in enumerate(options)]
        try:
            self.info = self._ray.get([rank.info.remote() for rank in self._actors], timeout=cluster.timeout)
        except self._ray.exceptions.RayError as error:
            self.kill()
            hint = "; cluster.nsight needs Nsight Systems (nsys) on every machine of the cluster" if nsight else ""
            raise RankError(f"the learner's actors did not start: {error_summary(error)}{hint}") from error
        self.count = len(seats)
        self._number = 0
        self._answers: dict[Any, int] = {}
        self._pulses: dict[Any, int] = {}
        self._last_pulse = [0.0] * len(seats)
        self.groups: set[str] = set()  # process groups of rank 0 and engines' workers

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
            if rank not in self._pulses.values() and now - self._last_pulse[rank] >= _PULSE_S:
                self._last_pulse[rank] = now
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
        except self._ray.exceptions.RayTaskError as error:  # the rank cannot read an argument
            return Event(rank, "failed", self._number, Failure(None, str(error)))
        except self._ray.exceptions.RayError as error:
            return Event(rank, "gone", self._number, f"died: {error_summary(error)}")
        if not answer:
            return Event(rank, "pulse", self._number, value)
        return Event(rank, "failed" if isinstance(value, Failure) else "done", self._number, value)

    def aside(self, method: str, *args: Any, ranks: Sequence[int] = (0,)) -> list[Any]:
        """Run something short on ranks beside their current call. Raises RankError if a rank died, or its own error."""
        answers = []
        for rank, ref in self._aside(method, args, ranks):
            answers.append(self._answer(rank, ref))
            if isinstance(answers[-1], Failure):
                # No RankError: a rank that can say so is alive.
                raise answers[-1].error or RuntimeError(f"{self.name(rank)} raised:\n{answers[-1].text}")
        return answers

    def deaths(self) -> list[str]:
        """Return a sentence for each rank that is dead or silent."""
        sentences = []
        for rank, ref in self._aside("pulse", (), range(self.count)):
            try:
                self._answer(rank, ref)
            except RankError as death:
                sentences.append(str(death))
        return sentences

    def _aside(self, method: str, args: tuple[Any, ...], ranks: Iterable[int]) -> list[tuple[int, Any]]:
        group = {"concurrency_group": "pulse"}
        return [(rank, self._actors[rank].aside.options(**group).remote(method, *args)) for rank in ranks]

    def _answer(self, rank: int, ref: Any) -> Any:
        try:
            return self._ray.get(ref, timeout=self._silence)
        except self._ray.exceptions.GetTimeoutError as error:
            raise RankError(f"{self.name(rank)} sent no heartbeat for {self._silence:g} s") from error
        except self._ray.exceptions.RayError as error:
            raise RankError(f"{self.name(rank)} died: {error_summary(error)}") from error

    def kill(self) -> None:
        for actor in self._actors:
            with contextlib.suppress(Exception):  # Ray itself may have ended
                self._ray.kill(actor, no_restart=True)

    def close(self) -> None:
        self._answers, self._pulses = {}, {}


class LearnerGroup:
    """A :class:`~trainers.learner.learner.Learner` on several ranks; its methods and arguments are a Learner's.

    ``cluster`` limits how long a rank may start, send no heartbeat, and make no progress; then it counts as lost.
    ``source``, ``model`` and ``settings`` are a Learner's arguments. ``critic`` and ``reference`` are not ``None`` if
    the ranks have one. Raises the errors of Learner, and RankError: a rank died or hung while it started.
    """

    def __init__(
        self,
        ranks: RayRanks,
        cluster: ClusterSection,
        source: Any,
        model: ModelSection,
        **settings: Any,
    ) -> None:
        self.ranks = ranks
        self._silence, self.stall, start_timeout = cluster.silence_s, cluster.stall_s, cluster.start_timeout_s
        self._number = 0
        self._preparations, self._publications = itertools.count(), itertools.count()
        self._snapshots = asyncio.Lock()  # one is sent at a time, in the same order on all ranks
        self._calling = threading.Lock()
        self._ended: str | None = None
        self._finalizer = weakref.finalize(self, _end, ranks)
        patient = {"silence": start_timeout, "stall": start_timeout}
        try:
            where = self._call("open", **patient)
            built = self._call("build", where, start_timeout, source, model, settings, **patient)
        except BaseException:
            self.close()
            raise
        self.critic: object | None = "critic" if built["critic"] else None
        self.reference: object | None = "reference" if built["reference"] else None
        self.places: list[str] = built["places"]  #: of the ranks' memory; see ``place_of``

    @property
    def count(self) -> int:
        return self.ranks.count

    # ------------------------------------------------------------------ a Learner's methods

    def logprobs(self, trajectories: Sequence[Trajectory], **options: Any) -> Any:
        return self._do("logprobs", _tokens_of(trajectories), **options)

    def top_logprobs(self, trajectories: Sequence[Trajectory], top: Any, **options: Any) -> Any:
        return self._do("top_logprobs", _tokens_of(trajectories), top, **options)

    def values(self, trajectories: Sequence[Trajectory]) -> Any:
        return self._do("values", _tokens_of(trajectories))

    def update_actor(self, trajectories: Sequence[Trajectory], *numbers_and_loss: Any, **options: Any) -> Any:
        return self._do("update_actor", _tokens_of(trajectories), *numbers_and_loss, **options)

    def update_critic(self, trajectories: Sequence[Trajectory], *numbers_and_loss: Any) -> Any:
        return self._do("update_critic", _tokens_of(trajectories), *numbers_and_loss)

    def update_sft(self, trajectories: Sequence[Trajectory], weights: Any = None) -> Any:
        return self._do("update_sft", _tokens_of(trajectories), weights)

    def export_hf(self, path: str | Path, tokenizer: Any) -> None:
        """See :meth:`trainers.learner.learner.Learner.export_hf`. The ranks write: all must see the folder."""
        self._do("export_hf", Path(path).absolute(), tokenizer)

    def save(self, path: str | Path, extra: Mapping[str, Any] | None = None) -> None:
        """See :meth:`trainers.learner.learner.Learner.save`. Every rank writes: all must see the folder."""
        self._do("save", Path(path).absolute(), extra)

    def prepare_save(self, extra: Mapping[str, Any] | None = None) -> Callable[[str | Path], None]:
        """Copy the state now, each rank its own part; see :meth:`trainers.learner.learner.Learner.prepare_save`.

        The returned function lets the ranks write the copies beside other work, and returns when all have written;
        call it in a thread.
        """
        return self._prepare("prepare_save", extra)

    def prepare_export(self, tokenizer: Any) -> Callable[[str | Path], None]:
        """Do what :meth:`prepare_save` does for :meth:`export_hf`."""
        return self._prepare("prepare_export", tokenizer)

    def load(self, path: str | Path) -> Any:
        """See :meth:`trainers.learner.learner.Learner.load`. Every rank reads: all must see the folder."""
        return self._do("load", Path(path).absolute())

    def publication(self, which: Which, dtype: torch.dtype | None = None, *, snapshot: bool = False) -> RankSource:
        number = next(self._publications)
        specs = self._do("publication", number, which, dtype, snapshot, self.stall)
        return RankSource(self, number, specs, snapshot=snapshot)

    def free_cache(self) -> None:
        """See :meth:`trainers.learner.learner.Learner.free_cache`; with it go the buffers of sent weights."""
        if any(not place.startswith("cpu:") for place in self.places):
            self._do("free_cache")

    def weights(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """See :meth:`trainers.learner.learner.Learner.weights`; rank 0 sends them to this process."""
        source = self.publication("weights", dtype)
        with ThreadPoolExecutor(1) as thread:  # the current thread may run an event loop
            return thread.submit(lambda: asyncio.run(collect(source, Wants(bucket_bytes=_BUCKET_BYTES)))).result()

    async def send(self, number: int, order: tuple[Any, ...], *, snapshot: bool) -> Mapping[str, Sums | str]:
        """Have the ranks send. SupersededError: newer weights replaced these. SourceLostError: sending failed."""
        try:
            if not snapshot:
                return await in_thread(lambda: self._do("publish", number, *order))
            async with self._snapshots:
                await in_thread(lambda: self.ranks.aside("start_publishing", number, *order, ranks=range(self.count)))
                while (sent := (await in_thread(lambda: self.ranks.aside("published")))[0]) is None:
                    await asyncio.sleep(_SENT_S)
                return sent
        except SupersededError:
            raise
        except Exception as error:
            cause = error
            if snapshot:  # what a survivor says, and its own end, are often not the cause
                deaths: list[str] = []
                with contextlib.suppress(Exception):  # Ray itself may have ended
                    deaths = await in_thread(self.ranks.deaths)
                cause = RankError("; ".join(deaths)) if deaths else error
            if isinstance(cause, RankError):  # the other ranks would block their receivers until the timeout
                self.end(f"while sending weights, {cause}")
            raise SourceLostError(f"the learner could not send its weights: {cause}") from cause

    # ------------------------------------------------------------------ methods of the group

    def capture(self, on: bool) -> None:
        """Begin or end what Nsight captures; see :meth:`trainers.cluster.rank.RankHost.capture`."""
        self._do("capture", on)

    def check_folder(self, folder: Path) -> None:
        """Raise ``ValueError`` if a rank cannot see the files that this process writes to ``folder``."""
        folder = folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".seen-by-ranks-") as file:
            content = uuid.uuid4().hex
            file.write(content)
            file.flush()
            blind = [rank for rank, seen in enumerate(self._do("all_see", file.name, content)) if not seen]
        if blind:
            raise ValueError(
                f"{', '.join(self.ranks.name(rank) for rank in blind)} cannot see {folder}: a learner on several "
                "machines needs a run folder on a file system that they share (trainer.default_local_dir)"
            )

    def _prepare(self, method: str, *args: Any) -> Callable[[str | Path], None]:
        number = next(self._preparations)
        self._do("prepare", number, method, *args)

        def write(path: str | Path) -> None:
            self._do("write_prepared", number, Path(path).absolute())
            while not self._do("is_written"):
                time.sleep(_LOOK_S)

        return write

    def close(self) -> None:
        """End the ranks, also in the middle of a call (which then fails). Safe to call twice."""
        self.end("it was closed")
        with self._calling:
            self._finalizer()

    def _do(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._call(method, *args, silence=self._silence, stall=self.stall, **kwargs)

    def _call(self, method: str, *args: Any, silence: float, stall: float, **kwargs: Any) -> Any:
        with self._calling:
            if self._ended is not None:
                raise RankError(f"the learner has ended: {self._ended}")
            self._number += 1
            self.ranks.post(self._number, method, args, kwargs)
            watch = Watch(self.count, time.monotonic(), silence=silence, stall=stall, grace=_GRACE_S)
            failures: dict[int, Failure] = {}
            result = None
            while (verdict := watch.verdict(time.monotonic())) is None:
                for event in self.ranks.poll(_LOOK_S):
                    now = time.monotonic()
                    if event.kind == "gone":
                        watch.lost(event.rank, f"{self.ranks.name(event.rank)} {event.value}")
                    elif event.number != self._number:  # a pulse of an earlier call
                        continue
                    elif event.kind == "pulse":
                        watch.pulse(event.rank, event.value, now)
                    else:
                        if isinstance(event.value, Failure):
                            failures[event.rank] = event.value
                        elif event.rank == 0:
                            result = event.value
                        watch.answered(event.rank, now, raised=event.kind == "failed")
            if verdict.kind == "done":
                return result
            raise self._problem(method, verdict, failures)

    def end(self, why: str) -> None:
        """Kill all ranks; later calls raise ``RankError`` with the first reason. From any thread."""
        self._ended = self._ended or why
        self.ranks.kill()

    def _problem(self, method: str, verdict: Verdict, failures: Mapping[int, Failure]) -> BaseException:
        """Return the error to raise; end the group if it is broken."""
        failure = None if verdict.rank is None else failures[verdict.rank]
        if verdict.kind == "raised":
            # Prefer the error of the rank that failed: ranks that only repeat it may answer first.
            own = (rank for rank, candidate in failures.items() if not isinstance(candidate.error, OtherRankError))
            cause = next(own, next(iter(failures)))
            return _with_traceback(failures[cause], self.ranks.name(cause))
        names = ", ".join(self.ranks.name(rank) for rank in verdict.ranks)
        message = verdict.message if names in verdict.message else f"{names} {verdict.message}"
        self.end(f"in {method}, {message}")
        if failure is not None:
            # Keep the error's type: callers handle a full disk or a diverged loss by it.
            error = _with_traceback(failure, names)
            error.add_note("The other ranks were stopped.")
            return error
        error = RankError(f"the learner has ended: {self._ended}")
        for rank, other in failures.items():  # consequences of it
            error.add_note(f"{self.ranks.name(rank)} then raised:\n{other.text}")
        return error


class RankSource(WeightSource):
    """The weights of a learner on Ray: all ranks read them together, and rank 0 sends them.

    By shared memory, each rank serves the workers in its place.

    Receivers that request weights at the same time are served in one round, each through its own process group. With
    ``snapshot`` the ranks send a copy, and can continue training.
    """

    def __init__(self, learner: LearnerGroup, number: int, specs: Sequence[TensorSpec], *, snapshot: bool) -> None:
        self.specs, self.places = specs, learner.places
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
        """Begin a round if all announced receivers are waiting."""
        self._waiting = {done: receiver for done, receiver in self._waiting.items() if not done.done()}
        if self._round is None and self._waiting and len(self._waiting) >= self._announced:
            waiting, self._waiting = self._waiting, {}
            self._round = asyncio.get_running_loop().create_task(self._play(waiting))

    def forget(self, group: Group) -> None:
        self._give_up(group["name"], "its receiver has left")

    async def _play(self, waiting: Mapping[asyncio.Future[Sums], Receiver]) -> None:
        try:
            wants = {done: receiver.wants for done, receiver in waiting.items()}
            limit = min(want.bucket_bytes for want in wants.values())
            members: dict[str, tuple[Receiver, Group]] = {}
            names: dict[asyncio.Future[Sums], str] = {}
            for done, receiver in waiting.items():
                group = await self._group(receiver, wants[done])
                members[group["name"]] = receiver, group
                names[done] = group["name"]
                done.add_done_callback(partial(self._withdrawn, receiver))
            to = {names[done]: (want, members[names[done]][1]) for done, want in wants.items()}
            sending = self._learner.send(self._number, (limit, to), snapshot=self._snapshot)
            outcome = await exchange(sending, members, plan_of(self.specs, limit), self._give_up)
            for done, name in names.items():
                result = outcome[name]
                if done.done():
                    continue
                if isinstance(result, Exception):
                    done.set_exception(result)
                else:
                    done.set_result(result)
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
        """Return the receiver's group if rank 0 of this learner is in it; otherwise open a new one."""
        group, ranks = receiver.group, self._learner.ranks
        if group is not None and group["name"] in ranks.groups and group["backend"] == wants.backend:
            return group
        # Rank 0's timeout must expire before rank 0 itself counts as stalled.
        order = (wants.address, 1 + wants.workers, wants.backend, min(wants.timeout_s, self._learner.stall / 2))
        (group,) = await in_thread(lambda: ranks.aside("open_group", *order))
        ranks.groups.add(group["name"])
        return group  # type: ignore[return-value]

    def _give_up(self, name: str, why: str) -> None:
        ranks = self._learner.ranks
        ranks.groups.discard(name)
        everyone = range(self._learner.count)
        in_thread(lambda: ranks.aside("give_up", name, why, ranks=everyone)).add_done_callback(retrieved)

    def _withdrawn(self, receiver: Receiver, done: asyncio.Future[Sums]) -> None:
        if done.cancelled() and receiver.group is not None:
            self._give_up(receiver.group["name"], "the update was withdrawn")


def _with_traceback(failure: Failure, name: str) -> BaseException:
    error = failure.error or RankError(f"{name} raised:\n{failure.text}")
    if failure.error is not None:
        error.add_note(f"On {name}:\n{failure.text}")
    return error


def _tokens_of(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    return [replace(trajectory, messages=(), metrics={}, turn_terms=(), turn_moves=()) for trajectory in trajectories]


def _end(ranks: RayRanks) -> None:
    ranks.kill()
    ranks.close()
