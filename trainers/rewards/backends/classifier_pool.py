"""Workers with one classifier: a batch goes to a free one, and to another when that one is lost.

A worker is a thread of this process (:class:`LocalWorker`) or a Ray actor (:mod:`trainers.cluster.ray.rewards`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, Self

from textenvs.messages import Messages

from ...config.reward_model import ClassifierSection
from ..service import BackendError, ModelOptions, OutageError, ScoringRequest
from .classifier import Classifier
from .conversation import score_prepared, score_range, scored_part

log = logging.getLogger("trainers")

_LOOK_AGAIN_S = 0.5  # while waiting for a worker that may be lost
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


class WorkerLostError(Exception):
    """The worker is gone, and with it the batch that it had."""


class Worker(Protocol):
    """A :class:`Classifier` somewhere, a batch at a time; WorkerLostError when it is ``lost`` and must start again."""

    lost: bool

    async def start(self) -> None:
        """Load the model; a ``ValueError`` where there is none, or it does not fit its options."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the classifier, whose errors are raised here. Cancelling leaves it lost, or busy."""

    async def close(self) -> None:
        """End it. Safe to call twice."""


class LocalWorker:
    """The classifier in one thread of this process; a batch that takes too long is computed to its end."""

    def __init__(self, options: ClassifierSection, device: str = "auto") -> None:
        self.lost = False
        self._options, self._device = options, device
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="textenvs-reward")
        self._model: Any = None

    async def start(self) -> None:
        self._model = await self._in_thread(Classifier, self._options, self._device)

    async def call(self, method: str, *arguments: Any) -> Any:
        return await self._in_thread(getattr(self._model, method), *arguments)

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


class ClassifierPool:
    """A backend of the reward service. Made by :meth:`start`.

    A lost worker is started again, at once and then after doubled pauses. A batch is tried twice; then its requests
    fail, for the service to find the one that breaks workers.
    """

    def __init__(self, options: ClassifierSection, count: int, make: Callable[[int], Worker]) -> None:
        self.losses = 0  # workers lost so far
        self._options, self._count, self._make = options, count, make
        self._idle: asyncio.Queue[tuple[int, Worker]] = asyncio.Queue()
        self._ready: dict[int, Worker] = {}
        self._starting: set[asyncio.Task[None]] = set()
        self._awake = asyncio.Event()
        self._awake.set()
        self._asleep: list[tuple[int, Worker]] = []
        self._closed = False

    @classmethod
    async def start(
        cls, options: ClassifierSection, count: int = 1, make: Callable[[int], Worker] | None = None
    ) -> Self:
        """Start ``count`` workers, made by ``make`` (:class:`LocalWorker`) from their number, and wait for all of them.

        ``ValueError``: there is no such model, or it does not fit its options. WorkerLostError: one died meanwhile.
        """
        pool = cls(options, count, make or (lambda _: LocalWorker(options)))
        made = [pool._make(number) for number in range(count)]
        try:
            await asyncio.gather(*(worker.start() for worker in made))
        except BaseException:
            await asyncio.gather(*(worker.close() for worker in made), return_exceptions=True)
            raise
        for number, worker in enumerate(made):
            pool._put(number, worker)
        return pool

    def model_options(self) -> ModelOptions:
        """Recommended batching options: a batch for each worker at a time."""
        low, high = score_range(self._options.transform)
        return ModelOptions(concurrency=self._count, low=low, high=high)

    async def score(self, requests: Sequence[ScoringRequest]) -> Sequence[float | BackendError]:
        """See :class:`~trainers.rewards.RewardBackend`; an ``OutageError`` when two workers are lost over a batch."""
        return await score_prepared(requests, scored_part, self._scored)

    async def sleep(self) -> None:
        """Let the workers give the GPUs' memory back, once they are done. Scores wait until :meth:`wake`."""
        self._awake.clear()
        while len(self._asleep) < len(self._ready):
            try:
                number, worker = await asyncio.wait_for(self._idle.get(), _LOOK_AGAIN_S)
            except TimeoutError:
                continue  # the one that is waited for may be lost
            try:
                await worker.call("sleep")
            except WorkerLostError:
                self._back(number, worker)
            else:
                self._asleep.append((number, worker))

    async def wake(self) -> None:
        """Undo :meth:`sleep`; a worker that was lost meanwhile is started again."""
        asleep, self._asleep = self._asleep, []
        for number, worker in asleep:
            with contextlib.suppress(WorkerLostError):
                await worker.call("wake")
            self._back(number, worker)
        self._awake.set()

    async def healthy(self) -> bool:
        return bool(self._ready)

    async def close(self) -> None:
        """End all workers; safe to call twice."""
        self._closed = True
        self._awake.set()
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(worker.close() for worker in self._ready.values()))
        self._ready.clear()

    async def _scored(self, conversations: list[Messages]) -> list[float | BackendError]:
        lost: WorkerLostError | None = None
        for _ in range(2):
            await self._awake.wait()
            if self._closed:
                raise BackendError("the pool of workers is closed", final=True)
            number, worker = await self._idle.get()
            try:
                scores = await worker.call("score", conversations)
            except WorkerLostError as error:
                lost = error
            else:
                return [BackendError(each, final=True) if isinstance(each, str) else each for each in scores]
            finally:
                self._back(number, worker)
        raise OutageError(f"two workers in a row were lost over one batch: {lost}") from lost

    def _put(self, number: int, worker: Worker) -> None:
        self._ready[number] = worker
        self._idle.put_nowait((number, worker))

    def _back(self, number: int, worker: Worker) -> None:
        if not worker.lost:
            self._idle.put_nowait((number, worker))
            return
        self.losses += 1
        self._ready.pop(number, None)
        if not self._closed:
            log.warning("worker %d of a reward model is lost, and started again; its batch goes to another", number)
            task = asyncio.ensure_future(self._restart(number, worker))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _restart(self, number: int, worker: Worker) -> None:
        pause = _FIRST_PAUSE_S
        await worker.close()
        while True:
            await self._awake.wait()  # while the pool sleeps, its GPUs are somebody else's
            worker = self._make(number)
            try:
                await worker.start()
                self._ready[number] = worker
                if not self._awake.is_set():  # it fell asleep meanwhile
                    await worker.call("sleep")
                    self._asleep.append((number, worker))
                    return
            except BaseException as error:
                self._ready.pop(number, None)
                await worker.close()
                if not isinstance(error, Exception):
                    raise
                log.warning("worker %d of a reward model does not start: %s; next try in %g s", number, error, pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            else:
                self._put(number, worker)
                return
