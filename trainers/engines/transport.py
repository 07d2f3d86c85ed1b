"""The transport of weights to the engines: sources send them, receivers take them.

A source (:class:`WeightSource`) sends them bucket by bucket: to this process, or to a group whose rank 0 has the
weights and whose other ranks are an engine's workers. These take part in broadcasts when the receiver orders it; or
they map the sender's memory, which the receiver tells them the references of (:data:`SHARED`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.engines.base import EngineError
from trainers.engines.links import SHARED, Inlet
from trainers.engines.process_group import Group, broadcast, destroy, make_group
from trainers.engines.sender import Sender, bytes_of
from trainers.engines.shared_memory import device_at, place_of, tensors_of
from trainers.engines.weights import (
    ChecksumRule,
    Checksums,
    Named,
    Sums,
    TensorSpec,
    check_adapter,
    differing,
    listed,
    merged,
    tied_names,
)

_Result = TypeVar("_Result")
Bucket = list[tuple[str, Tensor]]

_CPU = torch.device("cpu")
_LEAVE_S = 10.0  # to leave a process group
_WORD_S = 5.0  # for the server's own report of an error that rank 0 has noticed


@dataclass(frozen=True)
class Wants:
    """The requirements of a receiver; picklable."""

    workers: int = 1  #: of the engine, which share the model
    #: Of the group with them: ``gloo``, ``nccl`` where they have GPUs of their own, or ``ipc`` where they share memory
    #: with the sender
    backend: str = "gloo"
    places: tuple[str, ...] = ()  #: of the workers' memory, by rank, for ``ipc``; see ``place_of``
    dtype: torch.dtype | None = None  #: in which they compute, and weights travel; ``None`` takes the source's
    rule: ChecksumRule | None = None  #: of their checksums; ``None`` wants none
    bucket_bytes: int = 256 * 2**20  #: of weights that travel at once, at most; a larger tensor travels alone
    timeout_s: float = 600.0  #: seconds for joining, and for each bucket
    address: str | None = None  #: where rank 0 listens; ``None`` is its machine's own address
    #: This machine's address, as the workers reach it; where rank 0 listens if it is in this process
    local_address: str = "127.0.0.1"


class Receiver(ABC):
    """The workers of one engine, as seen by the sender. Each order raises EngineError if it is refused."""

    def __init__(self) -> None:
        self.group: Group | None = None
        self.sender = Sender()
        self._inlet: Inlet | None = None

    @property
    @abstractmethod
    def wants(self) -> Wants:
        """The present requirements."""

    @abstractmethod
    async def join_group(self, group: Group) -> None:
        """Have the workers join, as ranks from 1 on; returns when they have."""

    @abstractmethod
    async def leave_group(self, group: Group) -> None:
        """Have the workers leave the group."""

    @abstractmethod
    async def receive(self, bucket: Mapping[str, Any], group: Group) -> None:
        """Have the workers join a broadcast of tensors with these ``names``, ``dtypes`` and ``shapes``, as JSON."""

    #: Whether workers may still read a bucket when :meth:`read` has returned; not when the next one's has
    answers_early = False

    @abstractmethod
    async def read(self, references: Sequence[str]) -> None:
        """Have the workers read shared memory; each gets references of its own, by rank. Returns when they have."""

    async def follow(self, group: Group, plan: Sequence[Sequence[TensorSpec]]) -> None:
        if self.group != group:
            await self.abandon()
            self.group = group
            if group["backend"] == SHARED:
                self._inlet = await in_thread(lambda: Inlet(group))
            else:
                await self.join_group(group)
        if (inlet := self._inlet) is not None:
            for number in range(len(plan)):
                await self.read(await in_thread(inlet.references))
                if number or not self.answers_early:
                    await in_thread(inlet.done)
            if plan and self.answers_early:
                await in_thread(inlet.done)
            return
        for bucket in plan:
            kinds = [self.wants.dtype or spec.dtype for spec in bucket]
            described = {
                "names": [spec.names[0] for spec in bucket],
                "dtypes": [str(kind).removeprefix("torch.") for kind in kinds],
                "shapes": [list(spec.shape) for spec in bucket],
            }
            await self.receive(described, group)

    async def abandon(self) -> None:
        """Leave the group, if there is one, within a short timeout. Safe to call twice."""
        group, self.group = self.group, None
        inlet, self._inlet = self._inlet, None
        if group is not None:
            self.sender.leave(group["name"])
        if inlet is not None:
            inlet.closed = True
        elif group is not None:
            with contextlib.suppress(EngineError, TimeoutError):
                await asyncio.wait_for(self.leave_group(group), _LEAVE_S)


class Inbox(Receiver):
    """This process as a receiver of another process's weights."""

    def __init__(self) -> None:
        super().__init__()
        self._wants = Wants()
        self._take: Callable[[Bucket], Awaitable[None]] | None = None
        self._joined: dist.ProcessGroup | None = None

    def ready(self, wants: Wants, take: Callable[[Bucket], Awaitable[None]], *, shared: bool = False) -> Inbox:
        """Prepare for the next weights, and return itself: ``take`` gets each bucket; the only member beside rank 0."""
        places = (place_of("cpu"),) if shared else ()
        backend = SHARED if shared else "gloo"
        self._wants, self._take = replace(wants, workers=1, backend=backend, places=places, address=None), take
        return self

    @property
    def wants(self) -> Wants:
        return self._wants

    async def join_group(self, group: Group) -> None:
        self._joined = await in_thread(lambda: make_group(group, 1))

    async def leave_group(self, group: Group) -> None:
        last, self._joined = [self._joined], None
        await in_thread(lambda: destroy(last))

    async def receive(self, bucket: Mapping[str, Any], group: Group) -> None:
        assert (joined := self._joined) is not None
        assert self._take is not None
        kinds = [getattr(torch, name) for name in bucket["dtypes"]]
        values = [torch.empty(shape, dtype=kind) for shape, kind in zip(bucket["shapes"], kinds, strict=True)]
        try:
            await in_thread(lambda: broadcast(joined, values))
        except RuntimeError as error:
            raise EngineError(f"the process group with rank 0 failed: {error}") from error
        await self._take(list(zip(bucket["names"], values, strict=True)))

    async def read(self, references: Sequence[str]) -> None:
        assert self._take is not None
        await self._take([(name, value.clone()) for name, value in tensors_of(references[0])])


class WeightSource(ABC):
    """Weights of one moment; ``specs`` describes them in order, ``places`` the memory of the processes with them."""

    specs: Sequence[TensorSpec]
    places: Sequence[str] = ()

    @property
    def nbytes(self) -> int:
        return sum(spec.nbytes for spec in self.specs)

    def shares(self, places: Sequence[str]) -> bool:
        """Return whether workers in these places can map what this sends; see ``place_of``."""
        return set(places) <= set(self.places)

    @contextlib.contextmanager
    def attending(self) -> Iterator[None]:
        """Announce a receiver: a source that sends to several at once waits for all announced ones."""
        yield

    @abstractmethod
    async def broadcast(self, receiver: Receiver) -> Sums:
        """Send all through a process group; return the checksums that the workers must have, if requested.

        EngineError: they did not take all of it, and have left the group. SupersededError: newer weights came.
        """

    async def deliver(self, wants: Wants, take: Callable[[Bucket], Awaitable[None]]) -> Sums:
        """Deliver all to this process, bucket by bucket; returns and raises as :meth:`broadcast`."""
        inbox = Inbox()
        try:
            return await self.broadcast(inbox.ready(wants, take, shared=place_of("cpu") in self.places))
        finally:
            group = inbox.group
            await inbox.abandon()
            if group is not None:
                self.forget(group)

    def forget(self, group: Group) -> None:  # noqa: B027
        """Leave a group whose only receiver has left it."""


class LocalSource(WeightSource):
    """Weights in this process, which is then rank 0.

    ``read`` starts an iteration over the ``specs``, in order; the tensors may be the memory of a model, to read only.
    ``device`` is the model's.
    """

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        read: Callable[[], Iterator[Named]],
        device: torch.device = _CPU,
    ) -> None:
        self.specs, self.read, self.device = specs, read, device

    @cached_property
    def places(self) -> Sequence[str]:  # type: ignore[override]
        return [place_of(self.device)]

    @classmethod
    def of(cls, weights: Mapping[str, Tensor], without: Container[str] = ()) -> LocalSource:
        """Return a source of unchanging tensors, ``without`` some names; tensors of the same memory are sent once."""
        tensors = {name: value.detach() for name, value in weights.items() if name not in without}
        names: dict[str, list[str]] = {name: [name] for name in tensors}
        for name, first in tied_names(tensors).items():
            names[first] += names.pop(name)
        tied = [tuple(group) for group in names.values()]
        specs = [TensorSpec(group, tensors[group[0]].dtype, tuple(tensors[group[0]].shape)) for group in tied]
        device = next((value.device for value in tensors.values()), _CPU)
        return cls(specs, lambda: ((group, tensors[group[0]]) for group in tied), device)

    def shares(self, places: Sequence[str]) -> bool:
        """See :meth:`WeightSource.shares`: buffers are on one device, which this process sees."""
        (place, *rest) = {*places}
        return not rest and (place == place_of("cpu") or (place[:3] != "cpu" and device_at(place) is not None))

    async def broadcast(self, receiver: Receiver) -> Sums:
        wants, sender, group = receiver.wants, receiver.sender, receiver.group
        if group is None or group["name"] not in sender or group["backend"] != wants.backend:
            group = sender.open(wants.address or wants.local_address, 1 + wants.workers, wants.backend, wants.timeout_s)
        plan, name = plan_of(self.specs, wants.bucket_bytes), group["name"]
        sending = in_thread(lambda: send(sender, {name: (wants, group)}, plan, self.read(), wants.places[:1]))
        outcome = await exchange(
            sending, {name: (receiver, group)}, plan, lambda *why: in_thread(lambda: sender.give_up(*why))
        )
        if isinstance(sums := outcome[name], Exception):
            raise sums
        return sums

    async def deliver(self, wants: Wants, take: Callable[[Bucket], Awaitable[None]]) -> Sums:
        tensors, sums = self.read(), None if wants.rule is None else Checksums(wants.rule)

        def cut(specs: Sequence[TensorSpec]) -> Bucket:
            bucket = []
            for spec in specs:
                value = next(tensors)[1]
                value = value.to("cpu", wants.dtype or value.dtype).contiguous()
                bucket.append((spec.names[0], value))
                if sums is not None:
                    sums.add(spec.names[0], value)
            return bucket

        for specs in plan_of(self.specs, wants.bucket_bytes):
            await take(await asyncio.to_thread(cut, specs))
        return {} if sums is None else sums.result()


class AdapterSource(NamedTuple):
    """A base, which stays as it is, and adapters of it: one publication of a LoRA run (:mod:`.weights`)."""

    name: str  #: of the base: publications with the same have the same
    base: WeightSource  #: the model's tensors
    adapter: WeightSource  #: by peft's names; see :func:`trainers.engines.weights.pairs_of`
    scale: float  #: see :func:`trainers.engines.weights.merge`

    def merged(self, device: torch.device | str | None = None) -> LocalSource:
        """Return merged weights of sources in this process, multiplied on ``device`` one at a time, as they are read.

        Raises ``ValueError`` if the adapters do not fit the base, and SupersededError as reading does.
        """
        assert isinstance(self.base, LocalSource)
        assert isinstance(self.adapter, LocalSource)
        base, again = self.base, self.adapter.read
        adapter = {names[0]: value for names, value in again()}
        check_adapter(adapter, {spec.names[0]: torch.Size(spec.shape) for spec in base.specs})

        def read() -> Iterator[Named]:
            pairs = ((names[0], value) for names, value in base.read())
            for spec, (_, value) in zip(base.specs, merged(pairs, adapter, self.scale, device), strict=True):
                yield spec.names, value
            again()  # raises if they have changed meanwhile

        return LocalSource([spec._replace(dtype=torch.float32) for spec in base.specs], read, base.device)


Weights = Mapping[str, Tensor] | WeightSource | AdapterSource


def source_of(weights: Weights, without: Container[str] = ()) -> WeightSource | AdapterSource:
    """Return the source of an engine's weights; of tensors in this process, ``without`` these names."""
    return LocalSource.of(weights, without) if isinstance(weights, Mapping) else weights


async def collect(source: WeightSource, wants: Wants) -> dict[str, Tensor]:
    """Collect a source's tensors in this process, by all names; EngineError if the checksums show damage."""
    names = {spec.names[0]: spec.names for spec in source.specs}
    rule = ChecksumRule()
    sums, collected = Checksums(rule), dict[str, Tensor]()

    async def take(bucket: Bucket) -> None:
        for name, value in bucket:
            await asyncio.to_thread(sums.add, name, value)
            collected.update(dict.fromkeys(names[name], value))

    if wrong := differing(await source.deliver(replace(wants, rule=rule), take), sums.result()):
        raise EngineError(f"weights were damaged in transit: the checksums of {listed(wrong)} differ")
    return collected


def attending(weights: Weights) -> contextlib.AbstractContextManager[None]:
    """See :meth:`WeightSource.attending`. Without the base, which only some receivers need."""
    source = weights.adapter if isinstance(weights, AdapterSource) else weights
    return source.attending() if isinstance(source, WeightSource) else contextlib.nullcontext()


def plan_of(specs: Sequence[TensorSpec], max_bytes: int) -> list[list[TensorSpec]]:
    """Cut into buckets of at most ``max_bytes``; a larger tensor is its own bucket."""
    plan: list[list[TensorSpec]] = []
    size = 0
    for spec in specs:
        if not plan or size + spec.nbytes > max_bytes:
            plan.append([])
            size = 0
        plan[-1].append(spec)
        size += spec.nbytes
    return plan


# ------------------------------------------------------------------ one round: rank 0's half, and who orders it


def send(
    sender: Sender,
    to: Mapping[str, tuple[Wants, Group]],
    plan: Sequence[Sequence[TensorSpec]],
    tensors: Iterator[Named],
    places: Sequence[str],
    rank: int = 0,
) -> dict[str, Sums | str]:
    """Send each bucket to all groups before the next one is read: a sending rank's half of a round. Blocks.

    ``to`` has the workers' requirements, and their group, by its name; ``tensors`` come in the ``plan``'s order;
    ``places`` are those of the sending ranks, of which this is ``rank``. Returns for each group the checksums that its
    workers must have, or why it has failed.
    """
    served = serving({name: wants for name, (wants, _) in to.items()}, places)
    for name, (_, group) in to.items():
        if group["backend"] == SHARED:
            workers = served[name].get(rank, [])
            sender.serve(group, workers, device_at(places[rank]) if workers else None)
    forms: dict[Any, list[str]] = {}
    for name, (wants, group) in to.items():
        forms.setdefault((wants.dtype, group["backend"] == SHARED), []).append(name)
    rules = {(wants.rule, wants.dtype) for wants, _ in to.values() if wants.rule is not None and rank == 0}
    sums = {key: Checksums(key[0]) for key in rules}
    room = {
        form: max((bytes_of([(spec.shape, form[0] or spec.dtype) for spec in specs]) for specs in plan), default=0)
        for form in forms
    }
    with sender.round(to) as round_:
        sender.join(to)
        for bucket in plan:
            made = {form: sender.packing(round_, form[0], names, room[form]) for form, names in forms.items()}
            for _ in bucket:
                value = next(tensors)[1]
                for part in made.values():
                    part.add(value)
                del value
            cast: dict[str, list[Tensor]] = {}
            for form, names in forms.items():
                made[form].finish()
                cast |= dict.fromkeys(names, made[form].tensors)
            del made
            of_type = {to[name][0].dtype: tensors_cast for name, tensors_cast in cast.items()}

            def count(bucket: Sequence[TensorSpec] = bucket, of_type: Mapping[Any, list[Tensor]] = of_type) -> None:
                for (_, dtype), checksums in sums.items():
                    for spec, value in zip(bucket, of_type[dtype], strict=True):
                        checksums.add(spec.names[0], value)

            sender.send([spec.names[0] for spec in bucket], cast, meanwhile=count)
            del cast, of_type, count
        sender.finish(to)
    results: dict[Any, Sums] = {key: checksums.result() for key, checksums in sums.items()}
    return {name: sender.failed(name) or results.get((wants.rule, wants.dtype), {}) for name, (wants, _) in to.items()}


def serving(to: Mapping[str, Wants], places: Sequence[str]) -> dict[str, dict[int, list[int]]]:
    """Return which sending rank serves which workers of each group by shared memory: the first one in their place.

    ``{group: {sending rank: workers}}``
    """
    served: dict[str, dict[int, list[int]]] = {}
    for name, wants in to.items():
        ranks: dict[int, list[int]] = {}
        for worker, place in enumerate(wants.places):
            ranks.setdefault(places.index(place), []).append(worker)
        served[name] = ranks
    return served


async def exchange(
    sending: Awaitable[Mapping[str, Sums | str]],
    members: Mapping[str, tuple[Receiver, Group]],
    plan: Sequence[Sequence[TensorSpec]],
    give_up: Callable[[str, str], object],
) -> dict[str, Sums | Exception]:
    """Have rank 0 send and the receivers follow, at the same time; if one of the two fails, the other is notified.

    ``sending`` is :func:`send` in rank 0's process; ``members`` are receivers with their groups, by name; ``give_up``
    tells rank 0, without blocking, to stop waiting for a group, and why. Returns the checksums that each receiver must
    have, or its error; failed receivers have left their groups.
    """
    rank_0 = asyncio.ensure_future(sending)
    following = {
        name: asyncio.ensure_future(receiver.follow(group, plan)) for name, (receiver, group) in members.items()
    }
    notified: set[str] = set()
    outcome: dict[str, Sums | Exception] = {}
    try:
        patience: float | None = None
        while not rank_0.done():
            late = [task for name, task in following.items() if name not in notified and not task.done()]
            ended, _ = await asyncio.wait([rank_0, *late], timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not ended:  # NCCL waits for members that will never join, and cannot be interrupted
                break
            for name, task in following.items():
                if name not in notified and task.done():
                    notified.add(name)
                    if (problem := _problem(task)) is not None:
                        give_up(name, f"the workers do not follow: {problem!r}")
            if all(task.done() and _problem(task) is not None for task in following.values()):
                patience = _LEAVE_S
        failure = _problem(rank_0)
        for name, task in following.items():
            sent: Any = "rank 0 waits for them" if not rank_0.done() else failure or rank_0.result()[name]
            await asyncio.wait([task], timeout=None if isinstance(sent, Mapping) else _WORD_S)
            problem = _problem(task)
            if isinstance(failure, EngineError):
                outcome[name] = failure
            elif problem is not None:  # the server's own error has precedence
                outcome[name] = _engine_error(problem)
            elif failure is not None or not task.done() or isinstance(sent, str):
                outcome[name] = _engine_error(sent)
            else:
                outcome[name] = sent
        return outcome
    finally:
        rank_0.cancel()
        rank_0.add_done_callback(retrieved)
        for name, task in following.items():
            task.cancel()
            task.add_done_callback(retrieved)
            if not isinstance(outcome.get(name), Mapping):
                give_up(name, "the update was withdrawn")
                await members[name][0].abandon()


def in_thread(work: Callable[[], _Result]) -> asyncio.Future[_Result]:
    """Run a function in a daemon thread: the process does not wait for it at exit, as the other side may be dead."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Result] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if not future.done():
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed, so there is no waiter
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="weights", daemon=True).start()
    return future


def _problem(task: asyncio.Future[Any]) -> BaseException | None:
    if not task.done():
        return None
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def _engine_error(problem: Any) -> Exception:
    if isinstance(problem, EngineError):
        return problem
    what = problem if isinstance(problem, str) else repr(problem)
    error = EngineError(f"the process group with the engine's workers failed: {what or 'they did not answer'}")
    error.__cause__ = problem if isinstance(problem, BaseException) else None
    return error


def retrieved(task: asyncio.Future[Any]) -> None:
    """Retrieve a task's exception, so that asyncio logs no warning."""
    if not task.cancelled():
        task.exception()
