"""How weights get from where they are to the engines: sources give them, receivers take them.

A source (:class:`WeightSource`) gives them bucket by bucket: to this process, or through a process group whose rank 0
is where the weights are and whose other ranks are an engine's workers, which the receiver orders to take part.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.engines.base import EngineError
from trainers.engines.process_group import Group, Sender, broadcast, destroy, make_group
from trainers.engines.weights import (
    ChecksumRule,
    Checksums,
    Named,
    Sums,
    TensorSpec,
    check_adapter,
    differing,
    merged,
    tied_names,
)

_Result = TypeVar("_Result")
Bucket = list[tuple[str, Tensor]]

_LEAVE_S = 10.0  # to leave a process group
_WORD_S = 5.0  # for the server's own word on what rank 0 noticed already


@dataclass(frozen=True)
class Wants:
    """What a receiver wants. All of it can be sent to another process."""

    workers: int = 1  #: of the engine, which share the model
    backend: str = "gloo"  #: of a process group with them: ``gloo``, or ``nccl`` where they have GPUs of their own
    dtype: torch.dtype | None = None  #: in which they compute, and weights travel; ``None`` takes the source's
    rule: ChecksumRule | None = None  #: of their checksums; ``None`` wants none
    bucket_bytes: int = 256 * 2**20  #: of weights that travel at once, at most; a larger tensor travels alone
    timeout_s: float = 600.0  #: seconds for joining, and for each bucket
    address: str | None = None  #: where rank 0 listens; ``None`` is its machine's own address
    #: This machine's address, as the workers reach it; where rank 0 listens if it is in this process
    here: str = "127.0.0.1"


class Receiver(ABC):
    """The workers of one engine, as those who send see them. Each order raises EngineError where it is refused."""

    def __init__(self) -> None:
        self.group: Group | None = None
        self.sender = Sender()

    @property
    @abstractmethod
    def wants(self) -> Wants:
        """What they want now."""

    @abstractmethod
    async def join_group(self, group: Group) -> None:
        """Have them join, as ranks from 1 on; returns when they have."""

    @abstractmethod
    async def leave_group(self, group: Group) -> None:
        """Have them leave it."""

    @abstractmethod
    async def receive(self, bucket: Mapping[str, Any], group: Group) -> None:
        """Have them take part in a broadcast of tensors with these ``names``, ``dtypes`` and ``shapes``, as JSON."""

    async def follow(self, group: Group, plan: Sequence[Sequence[TensorSpec]]) -> None:
        if self.group != group:
            await self.abandon()
            self.group = group
            await self.join_group(group)
        for bucket in plan:
            kinds = [self.wants.dtype or spec.dtype for spec in bucket]
            described = {
                "names": [spec.names[0] for spec in bucket],
                "dtypes": [str(kind).removeprefix("torch.") for kind in kinds],
                "shapes": [list(spec.shape) for spec in bucket],
            }
            await self.receive(described, group)

    async def abandon(self) -> None:
        """Leave the group, if there is one; nobody waits for it long. Safe to call twice."""
        group, self.group = self.group, None
        if group is not None:
            self.sender.leave(group["name"])
            with contextlib.suppress(EngineError, TimeoutError):
                await asyncio.wait_for(self.leave_group(group), _LEAVE_S)


class Inbox(Receiver):
    """This process itself as a receiver of what another one sends."""

    def __init__(self) -> None:
        super().__init__()
        self._wants = Wants()
        self._take: Callable[[Bucket], Awaitable[None]] | None = None
        self._joined: dist.ProcessGroup | None = None

    def ready(self, wants: Wants, take: Callable[[Bucket], Awaitable[None]]) -> Inbox:
        """Itself, to take the next weights: each bucket is given to ``take``; the only member beside rank 0."""
        self._wants, self._take = replace(wants, workers=1, backend="gloo", address=None), take
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


class WeightSource(ABC):
    """Weights of one moment; ``specs`` says what comes, in order."""

    specs: Sequence[TensorSpec]

    @property
    def nbytes(self) -> int:
        return sum(spec.nbytes for spec in self.specs)

    @contextlib.contextmanager
    def attending(self) -> Iterator[None]:
        """Announce a receiver: a source that sends to several at once waits for those who are announced."""
        yield

    @abstractmethod
    async def broadcast(self, receiver: Receiver) -> Sums:
        """Send all through a process group; the checksums that the workers must have now, if they want any.

        EngineError: they did not take all of it, and are in no group now. SupersededError: the weights are gone.
        """

    async def deliver(self, wants: Wants, take: Callable[[Bucket], Awaitable[None]]) -> Sums:
        """Give all to this process, bucket by bucket; as :meth:`broadcast`."""
        inbox = Inbox()
        try:
            return await self.broadcast(inbox.ready(wants, take))
        finally:
            await inbox.abandon()


class LocalSource(WeightSource):
    """Weights that are in this process, which is then rank 0.

    ``read`` begins to give the ``specs``, in order, as often as it is asked: maybe the memory of a model, to read only.
    """

    def __init__(self, specs: Sequence[TensorSpec], read: Callable[[], Iterator[Named]]) -> None:
        self.specs, self.read = specs, read

    @classmethod
    def of(cls, weights: Mapping[str, Tensor], without: Container[str] = ()) -> LocalSource:
        """Of tensors that stay unchanged, but for some names; those that are the same memory travel once."""
        given = {name: value.detach() for name, value in weights.items() if name not in without}
        names: dict[str, list[str]] = {name: [name] for name in given}
        for name, first in tied_names(given).items():
            names[first] += names.pop(name)
        tied = [tuple(each) for each in names.values()]
        specs = [TensorSpec(each, given[each[0]].dtype, tuple(given[each[0]].shape)) for each in tied]
        return cls(specs, lambda: ((each, given[each[0]]) for each in tied))

    async def broadcast(self, receiver: Receiver) -> Sums:
        wants, sender, group = receiver.wants, receiver.sender, receiver.group
        if group is None or group["name"] not in sender:
            group = sender.open(wants.address or wants.here, 1 + wants.workers, wants.backend, wants.timeout_s)
        plan, name = plan_of(self.specs, wants.bucket_bytes), group["name"]
        sending = in_thread(lambda: send(sender, {name: wants}, plan, self.read()))
        outcome = await exchange(
            sending, {name: (receiver, group)}, plan, lambda *why: in_thread(lambda: sender.give_up(*why))
        )
        if isinstance(found := outcome[name], Exception):
            raise found
        return found

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
        """Of sources in this process: merged weights, multiplied on ``device`` one at a time, as they are read.

        Raises ``ValueError`` where the adapters do not fit the base, and SupersededError as reading does.
        """
        assert isinstance(self.base, LocalSource)
        assert isinstance(self.adapter, LocalSource)
        base, again = self.base, self.adapter.read
        adapter = {names[0]: value for names, value in again()}
        check_adapter(adapter, {spec.names[0]: torch.Size(spec.shape) for spec in base.specs})

        def read() -> Iterator[Named]:
            each = ((names[0], value) for names, value in base.read())
            for spec, (_, value) in zip(base.specs, merged(each, adapter, self.scale, device), strict=True):
                yield spec.names, value
            again()  # which raises where they have changed meanwhile

        return LocalSource([spec._replace(dtype=torch.float32) for spec in base.specs], read)


Weights = Mapping[str, Tensor] | WeightSource | AdapterSource


def source_of(weights: Weights, without: Container[str] = ()) -> WeightSource | AdapterSource:
    """A source, of whatever an engine is given as weights; of tensors that are here, ``without`` these names."""
    return LocalSource.of(weights, without) if isinstance(weights, Mapping) else weights


async def collect(source: WeightSource, wants: Wants) -> dict[str, Tensor]:
    """All of a source in this process, by all names; EngineError where the checksums show damage."""
    names = {spec.names[0]: spec.names for spec in source.specs}
    rule = ChecksumRule()
    sums, found = Checksums(rule), dict[str, Tensor]()

    async def take(bucket: Bucket) -> None:
        for name, value in bucket:
            await asyncio.to_thread(sums.add, name, value)
            found.update(dict.fromkeys(names[name], value))

    if wrong := differing(await source.deliver(replace(wants, rule=rule), take), sums.result()):
        raise EngineError(f"weights were damaged on their way: the checksums of {', '.join(wrong[:3])} differ")
    return found


def attending(weights: Weights) -> contextlib.AbstractContextManager[None]:
    """See :meth:`WeightSource.attending`. Of adapters alone: not every receiver needs the base, which comes once."""
    source = weights.adapter if isinstance(weights, AdapterSource) else weights
    return source.attending() if isinstance(source, WeightSource) else contextlib.nullcontext()


def plan_of(specs: Sequence[TensorSpec], max_bytes: int) -> list[list[TensorSpec]]:
    """Cut into buckets of at most ``max_bytes``; a larger tensor is a bucket of its own."""
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
    sender: Sender, to: Mapping[str, Wants], plan: Sequence[Sequence[TensorSpec]], tensors: Iterator[Named]
) -> dict[str, Sums | str]:
    """Rank 0's half: broadcast each bucket to all groups before the next one is read. It takes its time.

    ``to`` is what the workers want, by the group's name; ``tensors`` come in the ``plan``'s order. Returns for each
    group the checksums that its workers must have, or why it has failed.
    """
    sums = {(wants.rule, wants.dtype): Checksums(wants.rule) for wants in to.values() if wants.rule is not None}
    sender.join(to)
    for bucket in plan:
        values = [next(tensors)[1] for _ in bucket]
        cast = {
            dtype: [value.to(dtype or value.dtype).contiguous() for value in values]
            for dtype in {wants.dtype for wants in to.values()}
        }

        def count(bucket: Sequence[TensorSpec] = bucket, cast: Mapping[Any, list[Tensor]] = cast) -> None:
            for (_, dtype), found in sums.items():
                for spec, value in zip(bucket, cast[dtype], strict=True):
                    found.add(spec.names[0], value)

        del values
        sender.send({name: cast[wants.dtype] for name, wants in to.items()}, meanwhile=count)
        del cast
    made: dict[Any, Sums] = {key: found.result() for key, found in sums.items()}
    return {name: sender.failed(name) or made.get((wants.rule, wants.dtype), {}) for name, wants in to.items()}


async def exchange(
    sending: Awaitable[Mapping[str, Sums | str]],
    members: Mapping[str, tuple[Receiver, Group]],
    plan: Sequence[Sequence[TensorSpec]],
    give_up: Callable[[str, str], object],
) -> dict[str, Sums | Exception]:
    """Have rank 0 send and the receivers follow, at the same time; where one of the two fails, the other is told.

    ``sending`` is :func:`send`, wherever rank 0 is; ``members`` are receivers with their groups, by name; ``give_up``
    tells rank 0, without blocking, that it need not wait for a group, and why. Returns what each receiver must have
    now, or what went wrong; those who failed are in no group.
    """
    rank_0 = asyncio.ensure_future(sending)
    following = {
        name: asyncio.ensure_future(receiver.follow(group, plan)) for name, (receiver, group) in members.items()
    }
    told: set[str] = set()
    outcome: dict[str, Sums | Exception] = {}
    try:
        patience: float | None = None
        while not rank_0.done():
            late = [task for name, task in following.items() if name not in told and not task.done()]
            ended, _ = await asyncio.wait([rank_0, *late], timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not ended:  # NCCL waits for members that will never join, and cannot be told
                break
            for name, task in following.items():
                if name not in told and task.done():
                    told.add(name)
                    if (problem := _problem(task)) is not None:
                        give_up(name, f"the workers do not follow: {problem!r}")
            if all(task.done() and _problem(task) is not None for task in following.values()):
                patience = _LEAVE_S
        failure = _problem(rank_0)
        for name, task in following.items():
            said: Any = "rank 0 waits for them" if not rank_0.done() else failure or rank_0.result()[name]
            await asyncio.wait([task], timeout=None if isinstance(said, Mapping) else _WORD_S)
            problem = _problem(task)
            if isinstance(failure, EngineError):
                outcome[name] = failure
            elif problem is not None:  # what the server says comes first
                outcome[name] = _engine_error(problem)
            elif failure is not None or not task.done() or isinstance(said, str):
                outcome[name] = _engine_error(said)
            else:
                outcome[name] = said
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
    """Do something in a thread that this process does not wait for when it ends: the other side may be gone."""
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
        with contextlib.suppress(RuntimeError):  # the loop is closed: whoever waited is gone
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="weights", daemon=True).start()
    return future


def _problem(task: asyncio.Future[Any]) -> BaseException | None:
    if not task.done():
        return None
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def _engine_error(said: Any) -> Exception:
    if isinstance(said, EngineError):
        return said
    what = said if isinstance(said, str) else repr(said)
    error = EngineError(f"the process group with the engine's workers failed: {what or 'they did not answer'}")
    error.__cause__ = said if isinstance(said, BaseException) else None
    return error


def retrieved(task: asyncio.Future[Any]) -> None:
    """So that asyncio logs no warning."""
    if not task.cancelled():
        task.exception()
