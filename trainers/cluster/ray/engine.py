"""An engine in a Ray actor, behind the protocol of :mod:`trainers.engines.base`.

The actor has any engine inside: it is made there, by a function that is sent. New weights come in buckets from the
object store (:mod:`trainers.cluster.buckets`), each checked, and are given to the engine when all are there. An actor
that dies is an engine that dies: :class:`trainers.engines.replicas.Replicas` puts another in its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from trainers.cluster.buckets import Bucket, Collected
from trainers.cluster.parcel import Parcel, unpack
from trainers.cluster.rank import Failure
from trainers.cluster.ray.ranks import Published, said
from trainers.cluster.ray.runtime import RayCluster, import_ray
from trainers.engines.adapters import Adapted
from trainers.engines.base import Engine, EngineDeadError, EngineError, Generation, Sampling, UpdateMode

_STATS_S = 0.5  # numbers are so old at most, and a death is noticed so late
_CLOSE_S = 10.0
_CALLS = 100_000  # the engine has limits of its own

MakeEngine = Callable[[], Engine | Awaitable[Engine]]


class _EngineActor:
    """The actor: methods return a :class:`Failure`, or what they mean and how the engine is."""

    def __init__(self, gpus: Sequence[int]) -> None:
        if gpus:  # it takes none of Ray's, but uses those of learner ranks
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
        # Buckets lie in the store's read-only memory, and engines read them only.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        self._engine: Any = None
        self._coming: Collected | None = None
        self._base: tuple[str, Mapping[str, Tensor]] | None = None

    async def start(self, make: Parcel) -> Any:
        async def made() -> tuple[int, bool]:
            engine = unpack(make)()
            self._engine = await engine if inspect.isawaitable(engine) else engine
            return self._engine.max_context, hasattr(self._engine, "sleep")

        return await self._answer(made())

    async def call(self, method: str, *args: Any) -> Any:
        return await self._answer(getattr(self._engine, method)(*args))

    async def take(self, publication: str, count: int, bucket: Bucket) -> Any:
        async def taken() -> None:
            if self._coming is None or self._coming.publication != publication or bucket.index == 0:
                self._coming = Collected(publication, count)
            # A checksum of gigabytes takes its time, and requests go on meanwhile.
            await asyncio.to_thread(self._coming.add, bucket)

        return await self._answer(taken())

    async def keep(self, publication: str, count: int, name: str) -> Any:
        """What came is the base of adapters that will come; it stays."""

        async def kept() -> None:
            self._base = name, self._taken(publication, count)

        return await self._answer(kept())

    async def update(
        self, publication: str, count: int, version: int, mode: UpdateMode, base: tuple[str, float] | None
    ) -> Any:
        """``base``: what came are adapters of the base of this name, and their scale."""

        async def updated() -> None:
            weights: Any = self._taken(publication, count)
            if base is not None:
                name, scale = base
                if self._base is None or self._base[0] != name:
                    raise EngineError(f"adapters came, and their base {name} did not")
                weights = Adapted(name, self._base[1], weights, scale)
            await self._engine.update_weights(weights, version, mode)

        return await self._answer(updated())

    async def state(self) -> Any:
        async def nothing() -> None: ...

        return await self._answer(nothing())

    async def info(self) -> int:
        return os.getpid()

    def _taken(self, publication: str, count: int) -> Mapping[str, Tensor]:
        coming, self._coming = self._coming, None
        if coming is None or coming.publication != publication:
            coming = Collected(publication, count)  # says that nothing came
        return coming.weights()

    async def _answer(self, work: Awaitable[Any]) -> Any:
        try:
            result = await work
            return result, self._engine.version, dict(self._engine.stats())
        except Exception as error:  # whatever an engine raises, who asked for it hears of it
            return Failure.of(error)


class RayEngine:
    """An engine in a Ray actor; see :class:`trainers.engines.base.Engine` for the protocol.

    ``stats`` are those that the actor said last, half a second ago at most.

    Made by :meth:`start`.
    """

    def __init__(self, actor: Any, bucket_bytes: int) -> None:
        self._ray = import_ray()
        self._actor, self._bucket_bytes = actor, bucket_bytes
        self._version = self._max_context = self.pid = 0
        self.can_sleep = False
        self._stats: dict[str, float] = {}
        self._dead: str | None = None
        self._asking: asyncio.Task[None] | None = None
        self._base: str | None = None  # that the actor has

    @classmethod
    async def start(
        cls, cluster: RayCluster, replica: int, make: Any, *, gpus: Sequence[int] = (), bucket_bytes: int
    ) -> RayEngine:
        """Make the actor, and the engine in it.

        Args:
            cluster: Where.
            replica: Number of the engine: its seat in the plan.
            make: Ray's reference to a :class:`~trainers.cluster.parcel.Parcel` with a function of no argument that
                makes the engine, or a coroutine that does.
            gpus: CUDA numbers of GPUs that it shares with learner ranks.
            bucket_bytes: Of weights in one object, where they are not published by a learner on Ray.

        Raises:
            EngineError: It did not start; or as the function raises, where that is a ValueError.
        """
        ray = cluster.ray
        options = cluster.options(cluster.plan.engines[replica])
        actor = ray.remote(max_restarts=0, max_task_retries=0, max_concurrency=_CALLS, **options)(_EngineActor)
        engine = cls(actor.remote(list(gpus)), bucket_bytes)
        try:
            async with asyncio.timeout(cluster.timeout):
                engine.pid = await engine._actor.info.remote()
                engine._max_context, engine.can_sleep = await engine._ask(engine._actor.start.remote(make))
        except BaseException as error:
            await engine.close()
            if isinstance(error, TimeoutError):
                raise EngineError(f"replica {replica} did not start within {cluster.timeout:g} s") from error
            if isinstance(error, ray.exceptions.RayError):
                raise EngineError(f"replica {replica} did not start: {said(error)}") from error
            raise
        engine._asking = asyncio.create_task(engine._keep_asking())
        return engine

    @property
    def version(self) -> int:
        """The version that the actor said last."""
        return self._version

    @property
    def max_context(self) -> int:
        """See :class:`trainers.engines.base.Engine`."""
        return self._max_context

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Generation:
        """See :meth:`trainers.engines.base.Engine.generate`."""
        self._check_alive()
        reply: Generation = await self._ask(self._actor.call.remote("generate", list(token_ids), sampling, session))
        return reply

    async def update_weights(self, weights: Any, version: int, mode: UpdateMode = "keep") -> None:
        """See :meth:`trainers.engines.base.Engine.update_weights`.

        Weights may be :class:`~.ranks.Published`, and so may both parts of those that are
        :class:`~trainers.engines.adapters.Adapted`, whose base is sent once.
        """
        self._check_alive()
        base = None
        if isinstance(weights, Adapted):
            if self._base != weights.name:
                which, count = await self._send(weights.base)
                await self._ask(self._actor.keep.remote(which, count, weights.name))
                self._base = weights.name
            base, weights = (weights.name, weights.scale), weights.adapter
        which, count = await self._send(weights)
        await self._ask(self._actor.update.remote(which, count, version, mode, base))

    async def _send(self, tensors: Any) -> tuple[str, int]:
        """Have the actor take a publication; its name, and the number of its buckets."""
        if not isinstance(tensors, Published):
            tensors = await asyncio.to_thread(Published.of, tensors, self._bucket_bytes)
        which, count = tensors.publication, len(tensors.refs)
        for ref in tensors.refs:
            await self._ask(self._actor.take.remote(which, count, ref))
        return which, count

    async def release(self, session: str) -> None:
        """See :meth:`trainers.engines.base.Engine.release`."""
        self._check_alive()
        await self._ask(self._actor.call.remote("release", session))

    async def sleep(self) -> None:
        """Let the engine give its memory back, where it can (``can_sleep``)."""
        self._check_alive()
        await self._ask(self._actor.call.remote("sleep"))

    async def wake(self) -> None:
        """Undo :meth:`sleep`."""
        self._check_alive()
        await self._ask(self._actor.call.remote("wake"))

    def stats(self) -> dict[str, float]:
        """See :meth:`trainers.engines.base.Engine.stats`."""
        return dict(self._stats)

    async def close(self) -> None:
        """See :meth:`trainers.engines.base.Engine.close`."""
        if self._asking is not None:
            self._asking.cancel()
        if self._dead is None:
            self._dead = "the engine is closed"
            with contextlib.suppress(Exception):  # it is about to be killed
                async with asyncio.timeout(_CLOSE_S):
                    await self._actor.call.remote("close")
        with contextlib.suppress(Exception):  # Ray may be gone itself
            self._ray.kill(self._actor, no_restart=True)

    # ------------------------------------------------------------------ inside

    async def _ask(self, ref: Any) -> Any:
        """The actor's answer; cancelling this cancels its work there."""
        try:
            answer = await ref
        except asyncio.CancelledError:
            self._ray.cancel(ref)
            raise
        except self._ray.exceptions.RayActorError as error:
            self._die(f"the engine's actor (process {self.pid}) died: {said(error)}")
            raise EngineDeadError(self._dead) from error
        except self._ray.exceptions.RayError as error:
            self._check_alive()
            raise EngineError(f"the engine's actor: {said(error)}") from error
        if isinstance(answer, Failure):
            if isinstance(answer.error, EngineError | ValueError):
                raise answer.error
            raise EngineError(f"the engine's actor raised:\n{answer.text}")
        result, version, stats = answer
        self._version, self._stats = max(self._version, version), stats
        return result

    async def _keep_asking(self) -> None:
        while self._dead is None:
            await asyncio.sleep(_STATS_S)
            with contextlib.suppress(EngineError):
                await self._ask(self._actor.state.remote())

    def _die(self, why: str) -> None:
        if self._dead is None:
            self._dead = why

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise EngineDeadError(self._dead)
