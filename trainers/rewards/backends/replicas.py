"""Several workers with one reward model: a batch goes to a free one, and to another when that one is lost.

A worker is a :class:`Replica`: the model in a thread of this process, in a process of its own, or in a Ray actor
(:mod:`trainers.cluster.ray.rewards`). One that is lost is started again, at once and then after doubled pauses, for as
long as the pool lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, Self

from textenvs.messages import Messages

from ..process import Process, SilentError
from ..service import BackendError, OutageError, ScoringRequest
from .classifier import Classifier, ClassifierOptions
from .conversation import scored_part

log = logging.getLogger("trainers")

_PROGRAM = Path(__file__).with_name("classifier_worker.py")
_LOOK_AGAIN_S = 0.5  # while waiting for a worker that may be lost
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


class ReplicaLostError(Exception):
    """The worker is gone, and with it the batch that it had."""


class Replica(Protocol):
    """A worker; it computes one batch at a time."""

    async def start(self) -> None:
        """Load the model.

        Raises:
            ValueError: There is no such model, or it does not fit its options.
            ReplicaLostError: It died on the way.
        """
        ...

    async def score(self, conversations: Sequence[Messages]) -> list[float | str]:
        """The scores, in order; a text says why there is none. Cancelling leaves it unusable, or busy until it is done.

        Raises:
            ReplicaLostError: It is gone.
            Exception: The batch failed, and the worker lives.
        """
        ...

    async def sleep(self) -> None:
        """Give the GPU's memory back; nothing is asked until :meth:`wake`.

        Raises:
            ReplicaLostError: It is gone.
        """
        ...

    async def wake(self) -> None:
        """Undo :meth:`sleep`.

        Raises:
            ReplicaLostError: It is gone.
        """
        ...

    @property
    def lost(self) -> bool:
        """Whether it must be started again."""
        ...

    async def close(self) -> None:
        """End it. Safe to call twice."""
        ...


class ReplicaPool:
    """Replicas as a backend of the reward service. Made by :meth:`start`.

    What it promises: a batch is lost with a worker once at most; the second time its requests fail, for the service to
    find the one that breaks workers.

    Attributes:
        losses: Workers lost so far.
    """

    def __init__(self, make: Callable[[int], Replica], count: int) -> None:
        if count < 1:
            raise ValueError(f"there must be at least 1 replica, not {count}")
        self.losses = 0
        self._make, self._count = make, count
        self._idle: asyncio.Queue[tuple[int, Replica]] = asyncio.Queue()
        self._ready: dict[int, Replica] = {}
        self._starting: set[asyncio.Task[None]] = set()
        self._awake = asyncio.Event()
        self._awake.set()
        self._asleep: list[tuple[int, Replica]] = []
        self._closed = False

    @classmethod
    async def start(cls, make: Callable[[int], Replica], count: int = 1) -> Self:
        """Start the replicas, and wait for all of them.

        Args:
            make: Makes replica number ``i``, also when it is made again.
            count: How many.

        Raises:
            ValueError: There is no such model, or it does not fit its options; or ``count`` is below 1.
            ReplicaLostError: One died while it started.
        """
        pool = cls(make, count)
        made = [make(number) for number in range(count)]
        try:
            await asyncio.gather(*(replica.start() for replica in made))
        except BaseException:
            await asyncio.gather(*(replica.close() for replica in made), return_exceptions=True)
            raise
        for number, replica in enumerate(made):
            pool._put(number, replica)
        return pool

    async def score(self, requests: Sequence[ScoringRequest]) -> Sequence[float | BackendError]:
        """See :class:`~trainers.rewards.RewardBackend`.

        Raises:
            OutageError: The pool has no worker now, or two were lost over this batch.
        """
        results: list[float | BackendError] = []
        conversations: list[Messages] = []
        places: list[int] = []
        for request in requests:
            try:
                conversations.append(scored_part(request))
                places.append(len(results))
                results.append(0.0)  # replaced below, or the whole batch fails
            except BackendError as error:
                results.append(error)
        scores = await self._scored(conversations) if conversations else []
        for place, score in zip(places, scores, strict=True):
            results[place] = BackendError(score, final=True) if isinstance(score, str) else score
        return results

    async def sleep(self) -> None:
        """Let the workers give the GPUs' memory back, once they are done. Scores wait until :meth:`wake`."""
        self._awake.clear()
        while len(self._asleep) < len(self._ready):
            try:
                number, replica = await asyncio.wait_for(self._idle.get(), _LOOK_AGAIN_S)
            except TimeoutError:
                continue  # the one that is waited for may be lost
            try:
                await replica.sleep()
            except ReplicaLostError:
                self._back(number, replica)
            else:
                self._asleep.append((number, replica))

    async def wake(self) -> None:
        """Undo :meth:`sleep`; a worker that was lost meanwhile is started again."""
        asleep, self._asleep = self._asleep, []
        for number, replica in asleep:
            with contextlib.suppress(ReplicaLostError):
                await replica.wake()
            self._back(number, replica)
        self._awake.set()

    async def healthy(self) -> bool:
        """Whether a worker is there."""
        return bool(self._ready)

    async def close(self) -> None:
        """End all workers; safe to call twice."""
        self._closed = True
        self._awake.set()
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(replica.close() for replica in self._ready.values()))
        self._ready.clear()

    async def _scored(self, conversations: Sequence[Messages]) -> list[float | str]:
        lost: ReplicaLostError | None = None
        for _ in range(2):
            number, replica = await self._take()
            try:
                return await replica.score(conversations)
            except ReplicaLostError as error:
                lost = error
            finally:
                self._back(number, replica)
        raise OutageError(f"two workers in a row were lost over one batch: {lost}") from lost

    async def _take(self) -> tuple[int, Replica]:
        await self._awake.wait()
        if self._closed:
            raise BackendError("the pool of workers is closed", final=True)
        return await self._idle.get()

    def _put(self, number: int, replica: Replica) -> None:
        self._ready[number] = replica
        self._idle.put_nowait((number, replica))

    def _back(self, number: int, replica: Replica) -> None:
        if not replica.lost:
            self._idle.put_nowait((number, replica))
            return
        self.losses += 1
        self._ready.pop(number, None)
        if not self._closed:
            log.warning("worker %d of a reward model is lost, and started again; its batch goes to another", number)
            task = asyncio.ensure_future(self._restart(number, replica))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _restart(self, number: int, replica: Replica) -> None:
        pause = _FIRST_PAUSE_S
        await replica.close()
        while True:
            await self._awake.wait()  # while the pool sleeps, its GPUs are somebody else's
            replica = self._make(number)
            try:
                await replica.start()
                self._ready[number] = replica
                if not self._awake.is_set():  # it fell asleep meanwhile
                    await replica.sleep()
                    self._asleep.append((number, replica))
                    return
            except BaseException as error:
                self._ready.pop(number, None)
                await replica.close()
                if not isinstance(error, Exception):
                    raise
                log.warning("worker %d of a reward model does not start: %s; next try in %g s", number, error, pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            else:
                self._put(number, replica)
                return


class ThreadReplica:
    """The model in this process, computed in one thread beside the event loop.

    A batch that takes too long cannot be stopped: it is computed to its end, and the next one waits for it.

    Args:
        options: The model.
    """

    lost = False

    def __init__(self, options: ClassifierOptions) -> None:
        self._options = options
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="textenvs-reward")
        self._model: Classifier | None = None

    async def start(self) -> None:
        """See :class:`Replica`."""
        self._model = await asyncio.get_running_loop().run_in_executor(self._thread, Classifier, self._options)

    async def score(self, conversations: Sequence[Messages]) -> list[float | str]:
        """See :class:`Replica`."""
        assert self._model is not None
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._model.score, conversations)

    async def sleep(self) -> None:
        """See :class:`Replica`."""
        assert self._model is not None
        await asyncio.get_running_loop().run_in_executor(self._thread, self._model.sleep)

    async def wake(self) -> None:
        """See :class:`Replica`."""
        assert self._model is not None
        await asyncio.get_running_loop().run_in_executor(self._thread, self._model.wake)

    async def close(self) -> None:
        """See :class:`Replica`."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class ProcessReplica:
    """The model in a process of its own, which can be killed.

    Args:
        options: The model.
        threads: It computes with.
        environment: Laid over this process's own, for example ``CUDA_VISIBLE_DEVICES``.
        start_timeout_s: Seconds that loading may take.

    Raises:
        ValueError: ``threads`` is below 1.
    """

    def __init__(
        self,
        options: ClassifierOptions,
        *,
        threads: int = 1,
        environment: dict[str, str] | None = None,
        start_timeout_s: float = 600.0,
    ) -> None:
        if threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        self.lost = False
        self._options, self._threads = options, threads
        self._environment = {"OMP_NUM_THREADS": str(threads), **(environment or {})}
        self._start_timeout_s = start_timeout_s
        self._process: Process | None = None
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="textenvs-reward")

    @property
    def pid(self) -> int | None:
        """Its process, once there is one."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """See :class:`Replica`."""
        arguments = [json.dumps(asdict(self._options)), str(self._threads)]
        self._process = process = Process(_PROGRAM, arguments, self._environment)
        answer = await self._asked(lambda: process.read(self._start_timeout_s))
        if "error" in answer:
            raise ValueError(str(answer["error"]))

    async def score(self, conversations: Sequence[Messages]) -> list[float | str]:
        """See :class:`Replica`."""
        scores: list[float | str] = (await self._answer(list(conversations)))["scores"]
        return scores

    async def sleep(self) -> None:
        """See :class:`Replica`."""
        await self._answer("sleep")

    async def wake(self) -> None:
        """See :class:`Replica`."""
        await self._answer("wake")

    async def _answer(self, question: Any) -> dict[str, Any]:
        process = self._process
        assert process is not None
        answer = await self._asked(lambda: process.ask(question, None))
        if "error" in answer:
            raise BackendError(f"the worker raised: {answer['error']}")
        return answer

    async def close(self) -> None:
        """See :class:`Replica`."""
        if self._closed:
            return
        self._closed = True
        if self._process is not None:
            self._process.kill()  # who waits for it wakes
            ended = asyncio.get_running_loop().run_in_executor(self._thread, self._process.end)
            self._thread.shutdown(wait=False)
            await asyncio.shield(ended)  # its pipes are closed also where nobody waits for that
        self._thread.shutdown(wait=False)

    async def _asked(self, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, ask)
        except SilentError as error:
            self.lost = True
            raise ReplicaLostError(f"its process {error}") from error
        except asyncio.CancelledError:  # nobody knows how long it would go on
            self.lost = True
            assert self._process is not None
            self._process.kill()
            raise
