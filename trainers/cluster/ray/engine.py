"""An engine in a Ray actor, behind the protocol of :mod:`trainers.engines.base`.

A function sent to the actor builds the engine there. New weights arrive through a process group, at a server's workers
or at the actor, which gives them to an embedded engine; the driver only forwards orders. If an actor dies, its engine
is dead: :class:`trainers.engines.replicas.Replicas` starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from textenvs.event_loop import settle
from trainers.cluster.rank import Failure
from trainers.cluster.ray.runtime import RayCluster, error_summary, import_ray
from trainers.config.reward_model import ClassifierSection
from trainers.engines.base import Engine, EngineDeadError, EngineError, Generation, Sampling, UpdateMode, probe
from trainers.engines.process_group import Group
from trainers.engines.remote import RemoteEngine
from trainers.engines.shared_memory import place_of
from trainers.engines.transport import (
    AdapterSource,
    Bucket,
    Inbox,
    LocalSource,
    Receiver,
    Wants,
    Weights,
    WeightSource,
    attending,
    collect,
    source_of,
)
from trainers.engines.weights import Sums, TensorSpec
from trainers.rewards import BackendError
from trainers.rewards.backends.classifier import Classifier, WorkerLostError

_STATS_S = 0.5  # largest age of the numbers, and delay in noticing a death
_CLOSE_S = 10.0
_CALLS = 100_000  # no limit here: the engine has its own

_Asking = asyncio.Queue[tuple[str, Receiver, asyncio.Future[Sums]]]
MakeEngine = Callable[[], Engine | Awaitable[Engine]]


class _Relay(WeightSource):
    """Weights that the driver sends to the receivers in this actor."""

    def __init__(
        self, kind: str, specs: Sequence[TensorSpec], places: Sequence[str], asking: _Asking, inbox: Inbox
    ) -> None:
        self.specs, self.places, self._kind, self._asking, self._inbox = specs, places, kind, asking, inbox

    async def broadcast(self, receiver: Receiver) -> Sums:
        sent: asyncio.Future[Sums] = asyncio.get_running_loop().create_future()
        await self._asking.put((self._kind, receiver, sent))
        return await sent

    async def deliver(self, wants: Wants, take: Callable[[Bucket], Awaitable[None]]) -> Sums:
        return await self.broadcast(self._inbox.ready(wants, take, shared=place_of("cpu") in self.places))


class _EngineActor:
    """The Ray actor: raises the engine's errors to the caller; replies carry the engine's version and statistics."""

    def __init__(self, gpus: Sequence[int]) -> None:
        if gpus:  # it takes none of Ray's, but uses those of learner ranks
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
        self._asking: defaultdict[int, _Asking] = defaultdict(asyncio.Queue)  # by the number of the update
        self._inbox = Inbox()
        self._engine: Any = None
        self._receiver: Receiver = self._inbox
        self._sent: asyncio.Future[Sums] | None = None
        self._base: tuple[str, Mapping[str, Tensor]] | None = None

    async def start(self, make: MakeEngine) -> tuple[int, int]:
        """Build the engine; return the process id, and the engine's ``max_context``."""
        self._engine = await settle(make())
        return os.getpid(), self._engine.max_context

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method of this actor or of the engine; return its result, the engine's version and its ``stats``."""
        result = await getattr(self if hasattr(self, method) else self._engine, method)(*args)
        return result, self._engine.version, dict(self._engine.stats())

    async def nothing(self) -> None: ...

    async def probe(self) -> int:
        return await probe(self._engine)

    async def update(
        self,
        number: int,
        specs: Mapping[str, Sequence[TensorSpec]],
        places: Sequence[str],
        base: tuple[str, float] | None,
        wants: Wants,
        version: int,
        mode: UpdateMode,
    ) -> None:
        """Update the engine from the driver's weights, which processes have in these ``places``.

        ``base``: the weights are adapters; the name of their base and their scale. ``wants`` is for an embedded engine.
        """
        sources = {
            kind: _Relay(kind, kind_specs, places, self._asking[number], self._inbox)
            for kind, kind_specs in specs.items()
        }
        weights: Any = sources.get("weights")
        if isinstance(self._engine, RemoteEngine):
            if base is not None:
                weights = AdapterSource(base[0], sources["base"], sources["adapter"], base[1])
        elif base is None:
            weights = await collect(weights, wants)
        else:
            if self._base is None or self._base[0] != base[0]:
                self._base = base[0], await collect(sources["base"], wants)
            adapter = LocalSource.of(await collect(sources["adapter"], wants))
            weights = AdapterSource(base[0], LocalSource.of(self._base[1]), adapter, base[1])
        await self._engine.update_weights(weights, version, mode)
        del self._asking[number]

    async def next_request(self, number: int) -> tuple[str, Wants]:
        """Wait for the update's next request; return the kind of weights, and the wants of its receiver."""
        kind, self._receiver, self._sent = await self._asking[number].get()
        return kind, self._receiver.wants

    async def order(self, method: str, *args: Any) -> None:
        await getattr(self._receiver, method)(*args)

    async def sent(self, sums: Sums | None, error: EngineError | None) -> None:
        if self._sent is not None and not self._sent.done():
            if error is not None:
                self._sent.set_exception(error)
            else:
                self._sent.set_result(sums or {})


class _Workers(Receiver):
    """The driver's proxy of the receiver in the actor."""

    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        super().__init__()
        self._call, self.current = call, Wants()

    @property
    def wants(self) -> Wants:
        return self.current

    async def join_group(self, group: Group) -> None:
        await self._call("order", "join_group", group)

    async def leave_group(self, group: Group) -> None:
        await self._call("order", "leave_group", group)

    async def receive(self, bucket: Mapping[str, Any], group: Group) -> None:
        await self._call("order", "receive", bucket, group)

    async def read(self, references: Sequence[str]) -> None:
        await self._call("order", "read", references)


class RayEngine:
    """An engine in a Ray actor, made by :meth:`start`; ``stats`` are at most half a second old."""

    def __init__(self, actor: Any, bucket_bytes: int) -> None:
        self._ray = import_ray()
        self._actor, self._bucket_bytes = actor, bucket_bytes
        self._workers = _Workers(self._call)
        self.version = self.max_context = self.pid = 0
        self._stats: dict[str, float] = {}
        self._dead: str | None = None
        self._updates = 0
        self._asking: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        cluster: RayCluster,
        replica: int,
        make: Any,
        *,
        gpus: Sequence[int] = (),
        bucket_bytes: int,
        timeout: float,
    ) -> RayEngine:
        """Make the actor, and the engine in it; EngineError where it does not start, or what ``make`` raises.

        ``replica`` is the engine's number: its seat in the plan. ``make`` is Ray's reference to a function of no
        argument that makes the engine, or a coroutine that does. ``gpus`` are CUDA numbers of GPUs that it shares with
        learner ranks; ``bucket_bytes`` of weights are what an embedded engine takes at once. Both may take ``timeout``
        seconds to start.
        """
        ray = cluster.ray
        options = cluster.options(cluster.plan.engines[replica])
        actor = ray.remote(max_restarts=0, max_task_retries=0, max_concurrency=_CALLS, **options)(_EngineActor)
        engine = cls(actor.remote(list(gpus)), bucket_bytes)
        try:
            async with asyncio.timeout(timeout):
                engine.pid, engine.max_context = await engine._answer(engine._actor.start.remote(make))
                await engine._call("nothing")
        except BaseException as error:
            await engine.close()
            if isinstance(error, TimeoutError):
                raise EngineError(f"replica {replica} did not start within {timeout:g} s") from error
            if isinstance(error, EngineDeadError):
                raise EngineError(f"replica {replica} did not start: {error}") from error
            raise
        engine._asking = asyncio.create_task(engine._keep_asking())
        return engine

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Generation:
        reply: Generation = await self._call("generate", list(token_ids), sampling, session)
        return reply

    async def update_weights(self, weights: Weights, version: int, mode: UpdateMode = "keep") -> None:
        """See :meth:`trainers.engines.base.Engine.update_weights`. An embedded engine gets adapters' base once."""
        source, base = source_of(weights), None
        if isinstance(source, AdapterSource):
            sources, base = {"base": source.base, "adapter": source.adapter}, (source.name, source.scale)
        else:
            sources = {"weights": source}
        specs = {kind: list(part.specs) for kind, part in sources.items()}
        places = [*next(iter(sources.values())).places]
        wants = Wants(bucket_bytes=self._bucket_bytes)
        with attending(source):
            self._updates += 1
            update = asyncio.ensure_future(
                self._call("update", self._updates, specs, places, base, wants, version, mode)
            )
            try:
                while (request := await self._next_request(update)) is not None:
                    kind, self._workers.current = request
                    sums, error = None, None
                    try:
                        sums = await sources[kind].broadcast(self._workers)
                    except EngineError as problem:
                        error = problem
                    await self._call("sent", sums, error)
                await update
            finally:
                update.cancel()

    async def _next_request(self, update: asyncio.Future[Any]) -> tuple[str, Wants] | None:
        """Wait until the actor requests weights, and return its request; ``None`` if the update has ended."""
        asking = asyncio.ensure_future(self._call("next_request", self._updates))
        try:
            await asyncio.wait([asking, update], return_when=asyncio.FIRST_COMPLETED)
            return None if update.done() or asking.exception() is not None else asking.result()
        finally:
            asking.cancel()

    async def release(self, session: str) -> None:
        await self._call("release", session)

    async def sleep(self) -> None:
        await self._call("sleep")

    async def wake(self) -> None:
        await self._call("wake")

    async def probe(self) -> int:
        """See :func:`trainers.engines.base.probe`."""
        count: int = await self._call("probe")
        return count

    def stats(self) -> dict[str, float]:
        return dict(self._stats)

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
        if self._dead is None:
            self._dead = "the engine is closed"
            with contextlib.suppress(Exception):  # the actor is killed below
                async with asyncio.timeout(_CLOSE_S):
                    await self._actor.call.remote("close")
        with contextlib.suppress(Exception):  # Ray may be gone itself
            self._ray.kill(self._actor, no_restart=True)

    # ------------------------------------------------------------------ inside

    async def _call(self, method: str, *args: Any) -> Any:
        self._check_alive()
        result, version, stats = await self._answer(self._actor.call.remote(method, *args))
        self.version, self._stats = max(self.version, version), stats
        return result

    async def _answer(self, ref: Any) -> Any:
        """Return the actor's reply; cancelling this cancels its work in the actor."""
        errors = self._ray.exceptions
        try:
            return await ref
        except asyncio.CancelledError:
            self._ray.cancel(ref)
            raise
        except errors.RayActorError as error:
            process = f" (process {self.pid})" if self.pid else ""
            self._dead = self._dead or f"the engine's actor{process} died: {error_summary(error)}"
            raise EngineDeadError(self._dead) from error
        except errors.RayTaskError as error:
            if isinstance(error.cause, EngineError | ValueError):
                raise error.cause from None
            raise EngineError(f"the engine's actor raised:\n{error}") from error
        except errors.RayError as error:
            self._check_alive()
            raise EngineError(f"the engine's actor: {error_summary(error)}") from error

    async def _keep_asking(self) -> None:
        while self._dead is None:
            await asyncio.sleep(_STATS_S)
            with contextlib.suppress(EngineError):
                await self._call("nothing")

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise EngineDeadError(self._dead)


class _RewardActor:
    def __init__(self, gpus: Sequence[int]) -> None:
        if gpus:  # it takes none of Ray's, but uses those of learner ranks
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
        self._model: Any = None

    def load(self, options: ClassifierSection, device: str) -> None:
        import torch

        torch.set_num_threads(options.threads)
        self._model = Classifier(options, device)

    def call(self, method: str, arguments: Sequence[Any]) -> Any:
        try:
            return getattr(self if method == "load" else self._model, method)(*arguments)
        except Exception as error:
            return Failure.of(error)


class RayWorker:
    """A :class:`~trainers.rewards.backends.classifier.Worker`. Ray must run, the model be where the actor is.

    ``placement`` are Ray's options for the actor; ``gpus`` CUDA numbers of GPUs that it shares and takes none of.
    """

    def __init__(
        self, options: ClassifierSection, device: str, *, placement: Mapping[str, Any], gpus: Sequence[int] = ()
    ) -> None:
        self.lost = False
        self.actor: Any = None
        self._ray = import_ray()
        self._options, self._device, self._placement, self._gpus = options, device, placement, gpus

    async def start(self) -> None:
        remote = self._ray.remote(max_restarts=0, max_task_retries=0, **self._placement)(_RewardActor)
        self.actor = remote.remote(self._gpus)
        await self.call("load", self._options, self._device)

    async def call(self, method: str, *arguments: Any) -> Any:
        try:
            answer = await self.actor.call.remote(method, arguments)
        except self._ray.exceptions.RayActorError as error:
            self.lost = True
            raise WorkerLostError(f"its actor died: {error_summary(error)}") from error
        except self._ray.exceptions.RayError as error:
            raise BackendError(f"its actor: {error_summary(error)}") from error
        except BaseException:  # cancelled: it may compute for any time
            self.lost = True
            await self.close()
            raise
        if isinstance(answer, Failure):
            if isinstance(answer.error, ValueError):
                raise answer.error
            raise BackendError(f"its actor raised:\n{answer.text}")
        return answer

    async def close(self) -> None:
        if self.actor is not None:
            with contextlib.suppress(Exception):  # Ray may be gone itself
                self._ray.kill(self.actor, no_restart=True)
