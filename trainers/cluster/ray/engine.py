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

from trainers.cluster.buckets import Bucket, Collected, cut
from trainers.cluster.ray.ranks import Published, said
from trainers.cluster.ray.runtime import RayCluster, import_ray
from trainers.cluster.serialization import Parcel, unpack
from trainers.engines.adapters import Adapted
from trainers.engines.base import Engine, EngineDeadError, EngineError, Generation, Sampling, UpdateMode, probe

_STATS_S = 0.5  # numbers are so old at most, and a death is noticed so late
_CLOSE_S = 10.0
_CALLS = 100_000  # the engine has limits of its own

MakeEngine = Callable[[], Engine | Awaitable[Engine]]


class _EngineActor:
    """The actor: what an engine raises is raised to the caller, and answers say how the engine is."""

    def __init__(self, gpus: Sequence[int]) -> None:
        if gpus:  # it takes none of Ray's, but uses those of learner ranks
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
        # Buckets lie in the store's read-only memory, and engines read them only.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        self._engine: Any = None
        self._coming: Collected | None = None
        self._base: tuple[str, Mapping[str, Tensor]] | None = None

    async def start(self, make: Parcel) -> tuple[int, int]:
        """Its process id, and the engine's ``max_context``."""
        engine = unpack(make)()
        self._engine = await engine if inspect.isawaitable(engine) else engine
        return os.getpid(), self._engine.max_context

    async def call(self, method: str, *args: Any) -> Any:
        """What a method of the engine, or one of those below, returns; the engine's version and its ``stats``."""
        result = await getattr(self if hasattr(self, method) else self._engine, method)(*args)
        return result, self._engine.version, dict(self._engine.stats())

    async def nothing(self) -> None: ...

    async def probe(self) -> int:
        return await probe(self._engine)

    async def take(self, publication: str, count: int, bucket: Bucket) -> None:
        if self._coming is None or self._coming.publication != publication or bucket.index == 0:
            self._coming = Collected(publication, count)
        # A checksum of gigabytes takes its time, and requests go on meanwhile.
        await asyncio.to_thread(self._coming.add, bucket)

    async def keep(self, publication: str, count: int, name: str) -> None:
        """What came is the base of adapters that will come; it stays."""
        self._base = name, self._taken(publication, count)

    async def update(
        self, publication: str, count: int, version: int, mode: UpdateMode, base: tuple[str, float] | None
    ) -> None:
        """``base``: what came are adapters of the base of this name, and their scale."""
        weights: Any = self._taken(publication, count)
        if base is not None:
            name, scale = base
            if self._base is None or self._base[0] != name:
                raise EngineError(f"adapters came, and their base {name} did not")
            weights = Adapted(name, self._base[1], weights, scale)
        await self._engine.update_weights(weights, version, mode)

    def _taken(self, publication: str, count: int) -> Mapping[str, Tensor]:
        coming, self._coming = self._coming, None
        if coming is None or coming.publication != publication:
            coming = Collected(publication, count)  # says that nothing came
        return coming.weights()


class RayEngine:
    """An engine in a Ray actor; see :class:`trainers.engines.base.Engine` for the protocol.

    ``stats`` are those that the actor said last, half a second ago at most.

    Made by :meth:`start`.
    """

    def __init__(self, actor: Any, bucket_bytes: int) -> None:
        self._ray = import_ray()
        self._actor, self._bucket_bytes = actor, bucket_bytes
        self._version = self._max_context = self.pid = 0
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
            make: Ray's reference to a :class:`~trainers.cluster.serialization.Parcel` with a function of no argument
                that makes the engine, or a coroutine that does.
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
                engine.pid, engine._max_context = await engine._answer(engine._actor.start.remote(make))
                await engine._call("nothing")
        except BaseException as error:
            await engine.close()
            if isinstance(error, TimeoutError):
                raise EngineError(f"replica {replica} did not start within {cluster.timeout:g} s") from error
            if isinstance(error, EngineDeadError):
                raise EngineError(f"replica {replica} did not start: {error}") from error
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
        reply: Generation = await self._call("generate", list(token_ids), sampling, session)
        return reply

    async def update_weights(self, weights: Any, version: int, mode: UpdateMode = "keep") -> None:
        """See :meth:`trainers.engines.base.Engine.update_weights`.

        Weights may be :class:`~.ranks.Published`, and so may both parts of those that are
        :class:`~trainers.engines.adapters.Adapted`, whose base is sent once.
        """
        base = None
        if isinstance(weights, Adapted):
            if self._base != weights.name:
                which, count = await self._send(weights.base)
                await self._call("keep", which, count, weights.name)
                self._base = weights.name
            base, weights = (weights.name, weights.scale), weights.adapter
        which, count = await self._send(weights)
        await self._call("update", which, count, version, mode, base)

    async def _send(self, tensors: Any) -> tuple[str, int]:
        """Have the actor take a publication; its name, and the number of its buckets."""
        if not isinstance(tensors, Published):
            tensors = await asyncio.to_thread(Published.of, cut(tensors, self._bucket_bytes))
        which, count = tensors.publication, len(tensors.refs)
        for ref in tensors.refs:
            await self._call("take", which, count, ref)
        return which, count

    async def release(self, session: str) -> None:
        """See :meth:`trainers.engines.base.Engine.release`."""
        await self._call("release", session)

    async def sleep(self) -> None:
        """Let the engine give its memory back, where it can."""
        await self._call("sleep")

    async def wake(self) -> None:
        """Undo :meth:`sleep`."""
        await self._call("wake")

    async def probe(self) -> int:
        """See :func:`trainers.engines.base.probe`."""
        count: int = await self._call("probe")
        return count

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

    async def _call(self, method: str, *args: Any) -> Any:
        self._check_alive()
        result, version, stats = await self._answer(self._actor.call.remote(method, *args))
        self._version, self._stats = max(self._version, version), stats
        return result

    async def _answer(self, ref: Any) -> Any:
        """What the actor answers; cancelling this cancels its work there."""
        errors = self._ray.exceptions
        try:
            return await ref
        except asyncio.CancelledError:
            self._ray.cancel(ref)
            raise
        except errors.RayActorError as error:
            process = f" (process {self.pid})" if self.pid else ""
            self._die(f"the engine's actor{process} died: {said(error)}")
            raise EngineDeadError(self._dead) from error
        except errors.RayTaskError as error:
            if isinstance(error.cause, EngineError | ValueError):
                raise error.cause from None
            raise EngineError(f"the engine's actor raised:\n{error}") from error
        except errors.RayError as error:
            self._check_alive()
            raise EngineError(f"the engine's actor: {said(error)}") from error

    async def _keep_asking(self) -> None:
        while self._dead is None:
            await asyncio.sleep(_STATS_S)
            with contextlib.suppress(EngineError):
                await self._call("nothing")

    def _die(self, why: str) -> None:
        if self._dead is None:
            self._dead = why

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise EngineDeadError(self._dead)
