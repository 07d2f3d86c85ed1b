"""A service that scores single requests as they come, in batches: for reward models, judges, anything slow.

Scoring starts when a turn or an episode ends. Requests of all episodes share one queue per model::

    service = RewardService({"helpful": backend}, {"helpful": RewardModelSection(max_batch_size=64)})
    collector = Collector(..., rewards={"helpful": reward_of(service, "helpful")})
    service.watch(collector.generating_s)

Guarantees (docs/reward-service.md has the details):

* A score is the same alone or in a batch, cached or not, if the backend is independent of batch composition.
* No score is invented: a request that cannot be scored raises :class:`UnscoredError`.
* While a backend is down, requests wait for it, for at most ``patience_s``.
* A batch that fails while the backend is healthy is halved until the failing request is isolated.
* Back-pressure: while ``queue_size`` requests wait for a model, :meth:`RewardService.score` waits before it adds.

Time is the event loop's, so a simulated clock works.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from textenvs.env import LARGEST
from textenvs.messages import Messages, text_of
from textenvs.text import quoted

from ..config.reward_model import RewardModelSection
from ..trajectory import is_reward

if TYPE_CHECKING:
    from ..rollout.rewards import TurnContext

Item = TypeVar("Item")


class Batcher(Generic[Item]):
    """The queue in front of one model, first in, first out; a batch is due when full, or after ``max_wait`` seconds.

    A batch has at most ``max_size`` requests and ``max_tokens`` tokens; a larger request is its own batch.
    """

    def __init__(self, max_size: int, max_tokens: int | None, max_wait: float) -> None:
        self._max_size, self._max_tokens, self._max_wait = max_size, max_tokens, max_wait
        self._queue: deque[tuple[Item, int, float]] = deque()  # with its tokens, and the time it was added

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, item: Item, tokens: int, now: float) -> None:
        self._queue.append((item, tokens, now))

    def remove(self, item: Item) -> None:
        self._queue = deque(waiting for waiting in self._queue if waiting[0] is not item)

    def due(self, now: float) -> float | None:
        """Return the seconds until a batch is due (0: now); ``None`` if the queue is empty."""
        if not self._queue:
            return None
        if self._fitting() < len(self._queue) or len(self._queue) == self._max_size:
            return 0.0  # it is full
        return max(0.0, self._queue[0][2] + self._max_wait - now)

    def take(self, now: float) -> list[tuple[Item, float]]:
        """Remove and return the next batch, each request with the seconds it waited; empty unless one is due."""
        if self.due(now) != 0.0:
            return []
        batch = [self._queue.popleft() for _ in range(self._fitting())]
        return [(item, now - since) for item, _, since in batch]

    def _fitting(self) -> int:
        """Return the number of oldest requests that fit in a batch."""
        total = 0
        for count, (_, tokens, _) in enumerate(self._queue):
            total += tokens
            if count and (count == self._max_size or (self._max_tokens is not None and total > self._max_tokens)):
                return count
        return len(self._queue)


class Overlap:
    """Seconds of scoring, and the share of them in which episodes generated; concurrent batches count once."""

    def __init__(self) -> None:
        self._running = 0
        self._since = (0.0, 0.0)
        self._busy = self._beside = self._watched = 0.0
        self._generating_s: Callable[[], float] | None = None

    def watch(self, generating_s: Callable[[], float], now: float) -> None:
        """Start to measure against this clock."""
        self._take(now)
        self._generating_s, self._watched, self._beside = generating_s, 0.0, 0.0
        self._since = (now, generating_s())

    def begin(self, now: float) -> None:
        self._take(now)
        self._running += 1

    def end(self, now: float) -> None:
        self._take(now)
        self._running -= 1

    def stats(self, now: float | None) -> dict[str, float]:
        """Return ``computing_s``, and ``overlap`` if it is defined; up to the last batch without ``now``."""
        if now is not None:
            self._take(now)
        share = {"overlap": self._beside / self._watched} if self._watched > 0 else {}
        return {"computing_s": self._busy, **share}

    def _take(self, now: float) -> None:
        generated = 0.0 if self._generating_s is None else self._generating_s()
        if self._running:
            passed = now - self._since[0]
            self._busy += passed
            if self._generating_s is not None:
                self._watched += passed
                self._beside += generated - self._since[1]
        self._since = (now, generated)


log = logging.getLogger("trainers")

_LONGEST_PAUSE_S = 10.0  # between two probes of a backend that is down
_COUNTS = ("requests", "cache_hits", "joined", "batches", "failures", "unscored")
_ROUNDING_S = 1e-6  # rounding error of sums of times
_OUTAGES = 3  # outages that do not count against a request's retries; a further one may be caused by it


class BackendError(Exception):
    """A failure to score: of a batch when raised, of one request when returned; ``final``: a retry is useless."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class OutageError(BackendError):
    """The backend is unavailable; the requests are not at fault, and are sent again once it is healthy."""


class UngradableError(BackendError):
    """This request alone can have no score, however often it is sent; others may have one."""

    def __init__(self, message: str) -> None:
        super().__init__(message, final=True)


class UnscoredError(Exception):
    """A request has no score; ``cause`` is ``failed``, ``ungradable``, ``nonsense``, ``unavailable`` or ``closed``."""

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True)
class ScoringRequest:
    """A conversation, or one turn of it, to score."""

    messages: Messages
    turn: int | None = None  # the assistant's turn to score, from 0; ``None`` for the whole conversation
    data_source: str = ""  # of the task
    ground_truth: Any = None  # the task's answer, where the backend may know it

    def tokens(self) -> int:
        """Return its approximate length for ``max_batch_tokens``: characters of the messages, divided by 4."""
        return sum(len(text_of(message)) for message in self.messages) // 4

    def key(self) -> str:
        """Return a key, the same for equal requests in every process. ``TypeError``: part of it has no JSON form."""
        parts = [list(self.messages), self.turn, self.data_source, self.ground_truth]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class RewardBackend(Protocol):
    """A model, function or service that computes scores."""

    traits: Traits

    async def score(self, requests: Sequence[ScoringRequest]) -> Sequence[float | BackendError]:
        """Score a batch: one result a request, in order. An exception means that the whole batch failed."""

    async def healthy(self) -> bool:
        """Return whether the backend is available. Exceptions count as false."""

    async def close(self) -> None:
        """Release its resources."""


@dataclass(frozen=True)
class Traits:
    """Properties of a backend that are no keys of its section."""

    concurrency: int = 1  # batches at a time
    low: float = -math.inf  # lowest valid score
    high: float = math.inf  # highest valid score
    recommended: Mapping[str, float] = field(default_factory=dict)  # for the keys of its section that are null
    probe_s: float = 0.5  # between two probes of a backend that is down; doubled each time, up to 10
    queue_size: int = 4096  # requests that may wait; further ones block before they are added

    def resolved(self, section: RewardModelSection) -> RewardModelSection:
        """Return the section with the recommended values in place of null."""
        values = {"max_batch_size": 32, "max_wait_s": 0.02, "timeout_s": 60.0, **self.recommended}
        missing = {key: value for key, value in values.items() if getattr(section, key) is None}
        return section.model_copy(update=missing)


class RewardService(AbstractAsyncContextManager["RewardService"]):
    """Scores requests with named models; see the module.

    Backends and their sections are by name; the service closes the backends. ``ValueError``: no backend, or the names
    differ.
    """

    def __init__(self, backends: Mapping[str, RewardBackend], sections: Mapping[str, RewardModelSection]) -> None:
        if not backends:
            raise ValueError("a reward service needs at least one backend")
        if unmatched := sorted(set(sections) ^ set(backends)):
            raise ValueError(f"{unmatched[0]!r} needs both a backend and a section")
        self.sections = sections
        self._models = {name: _Model(name, backend, sections[name]) for name, backend in backends.items()}

    async def score(self, model: str, request: ScoringRequest) -> float:
        """Return the score of a request; equal requests are computed once. UnscoredError; ValueError: no such model."""
        if model not in self._models:
            raise ValueError(f"there is no reward model {model!r}; there are {', '.join(sorted(self._models))}")
        return await self._models[model].score(request)

    def stats(self) -> dict[str, float]:
        """Return each model's numbers as ``<model>/<name>``; docs/reward-service.md explains them."""
        return {f"{name}/{key}": value for name, model in self._models.items() for key, value in model.stats().items()}

    def watch(self, generating_s: Callable[[], float]) -> None:
        """Measure the overlap of scoring and generation, by ``Collector.generating_s`` (a clock, in seconds)."""
        for model in self._models.values():
            model.overlap.watch(generating_s, asyncio.get_running_loop().time())

    async def close(self) -> None:
        """Fail all waiting requests, and close the backends; safe to call twice."""
        for model in self._models.values():
            await model.close()

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


def reward_of(
    service: RewardService, model: str, *, truth: Callable[[TurnContext], Any] | None = None
) -> Callable[[TurnContext, int], Awaitable[float] | None]:
    """Return a model as an asynchronous reward for ``Collector(rewards=...)``; scoring starts when it is called.

    It scores the episode at its end, its contexts in the order of time as one conversation, for the last turn; with
    ``per_turn`` of the model's section the conversation after each reply, for that turn. The section's ``weight``
    multiplies the score. ``truth`` returns the task's ground truth, if the model needs it.
    """
    section = service.sections[model]

    def reward(so_far: TurnContext, turn: int) -> Awaitable[float] | None:
        if not (section.per_turn or so_far.over):
            return None
        messages, target_turn = so_far.episode, None
        if section.per_turn:
            messages = so_far.messages
            places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
            if not places:
                raise ValueError("the environment's conversation has no reply of the assistant's to score")
            messages, target_turn = messages[: places[-1] + 1], len(places) - 1
        ground_truth = None if truth is None else truth(so_far)
        return weighted_score(ScoringRequest(messages, target_turn, so_far.data_source, ground_truth))

    async def weighted_score(request: ScoringRequest) -> float:
        return section.weight * await service.score(model, request)

    return reward


@dataclass(eq=False)
class _PendingRequest:
    """A request that waits or is being computed."""

    request: ScoringRequest
    key: str
    answer: asyncio.Future[float]
    deadline: float  # in seconds of the backend's downtime, see :meth:`_Model._down_s`
    waiters: int = 0
    failures: int = 0
    outages: int = 0  # in which it was the only request


class _Model:
    """One backend with its queue and its cache."""

    def __init__(self, name: str, backend: RewardBackend, section: RewardModelSection) -> None:
        self._name, self._backend, self._traits = name, backend, backend.traits
        self._options = options = self._traits.resolved(section)
        assert options.max_batch_size is not None
        assert options.max_wait_s is not None
        assert options.timeout_s is not None
        self._timeout_s = options.timeout_s
        self._queue: Batcher[_PendingRequest] = Batcher(
            options.max_batch_size, options.max_batch_tokens, options.max_wait_s
        )
        self._pending: dict[str, _PendingRequest] = {}
        self._cache: OrderedDict[str, float] = OrderedDict()
        self._room = asyncio.Event()  # set when a request has left the queue
        self._places = self._traits.concurrency
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._up: asyncio.Task[None] | None = None  # waits until the backend is healthy again
        self._down_since: float | None = None
        self._closed = False
        self._sums = dict.fromkeys((*_COUNTS, "served", "waited_s", "busy_s", "down_s"), 0.0)
        self.overlap = Overlap()

    async def score(self, request: ScoringRequest) -> float:
        key, loop = request.key(), asyncio.get_running_loop()
        self._sums["requests"] += 1
        while True:
            if self._closed:
                raise UnscoredError(f"the reward model {self._name!r} is closed", "closed")
            if (cached := self._cache.get(key)) is not None:
                self._cache.move_to_end(key)
                self._sums["cache_hits"] += 1
                return cached
            if (pending := self._pending.get(key)) is not None:
                self._sums["joined"] += 1
                break
            if len(self._queue) < self._traits.queue_size:
                pending = _PendingRequest(request, key, loop.create_future(), self._down_s() + self._options.patience_s)
                self._pending[key] = pending
                self._queue.add(pending, request.tokens(), loop.time())
                self._pump()
                break
            self._room.clear()
            await self._room.wait()
        pending.waiters += 1
        try:
            return await asyncio.shield(pending.answer)
        finally:
            pending.waiters -= 1
            if not pending.waiters and not pending.answer.done():  # its last waiter was cancelled
                self._withdraw(pending)
                pending.answer.cancel()

    # ------------------------------------------------------------------ batches

    def _pump(self) -> None:
        """Send the batches that are due; schedule the next call for the next batch."""
        loop = asyncio.get_running_loop()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        while not self._closed and self._up is None and self._places:
            if not (batch := self._queue.take(loop.time())):
                if due := self._queue.due(loop.time()):
                    self._alarm = loop.call_later(due, self._pump)
                return
            self._room.set()
            self._places -= 1
            self._sums["batches"] += 1
            self._sums["served"] += len(batch)
            self._sums["waited_s"] += sum(waited for _, waited in batch)
            self._start(self._serve([pending for pending, _ in batch]))

    async def _serve(self, batch: list[_PendingRequest]) -> None:
        try:
            await self._send(batch)
        except Exception as error:  # a bug of this module: no waiter may hang because of it
            for pending in batch:
                self._give_up(pending, f"{type(error).__name__}: {error}", "failed")
            raise
        finally:
            self._places += 1
            self._pump()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _send(self, batch: list[_PendingRequest]) -> None:
        """Compute a batch; a failed one is halved, retried, or given up."""
        if not (batch := [pending for pending in batch if not pending.answer.done()]):
            return
        try:
            results = await self._compute([pending.request for pending in batch])
        except Exception as error:
            self._sums["failures"] += 1
            waited = await self._wait_until_healthy(error)
            if len(batch) == 1:
                await self._again(batch[0], error, waited)
                return
            middle = len(batch) // 2
            await self._send(batch[:middle])
            await self._send(batch[middle:])
            return
        failed: list[tuple[_PendingRequest, BaseException]] = []
        for pending, result in zip(batch, results, strict=True):
            if isinstance(result, BaseException):
                failed.append((pending, result))
            elif nonsense := self._problem_with(result):
                self._give_up(pending, nonsense, "nonsense")
            else:
                self._answer(pending, float(result))
        outage = next((problem for _, problem in failed if isinstance(problem, OutageError)), None)
        waited = outage is not None and await self._wait_until_healthy(outage)
        for pending, problem in failed:
            await self._again(pending, problem, waited and isinstance(problem, OutageError))

    async def _compute(self, requests: list[ScoringRequest]) -> Sequence[Any]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.overlap.begin(began)
        try:
            async with asyncio.timeout(self._timeout_s) as clock:
                results = await self._backend.score(requests)
        except TimeoutError as error:
            if clock.expired():
                raise BackendError(f"a batch took longer than {self._timeout_s:g} s") from error
            raise
        finally:
            self._sums["busy_s"] += loop.time() - began
            self.overlap.end(loop.time())
        if len(results) != len(requests):
            raise BackendError(f"{len(requests)} requests got {len(results)} scores")
        return results

    async def _again(self, pending: _PendingRequest, error: BaseException, waited: bool) -> None:
        """Retry or give up a request that failed alone. ``waited``: the backend was down meanwhile."""
        if pending.answer.done():
            return
        if waited and pending.outages < _OUTAGES:
            pending.outages += 1
            await self._send([pending])
            return
        if isinstance(error, OutageError) and not waited:  # it reports healthy directly after an outage
            await asyncio.sleep(self._traits.probe_s)
        pending.failures += 1
        if getattr(error, "final", False):
            self._give_up(pending, str(error), "ungradable" if isinstance(error, UngradableError) else "failed")
        elif pending.failures > self._options.retries:
            self._give_up(pending, f"{_describe(error)} (tried {pending.failures} times)", "failed")
        else:
            await self._send([pending])

    def _problem_with(self, result: Any) -> str | None:
        if not is_reward(result):
            return f"it returned {quoted(result)}: a score must be a finite number of at most {LARGEST:g}"
        if not self._traits.low <= result <= self._traits.high:
            return f"it returned {result}, outside of {self._traits.low:g} to {self._traits.high:g}"
        return None

    # ------------------------------------------------------------------ answers

    def _answer(self, pending: _PendingRequest, score: float) -> None:
        self._forget(pending)
        if self._options.cache_size:
            self._cache[pending.key] = score
            if len(self._cache) > self._options.cache_size:
                self._cache.popitem(last=False)
        if not pending.answer.done():
            pending.answer.set_result(score)

    def _give_up(self, pending: _PendingRequest, problem: str, cause: str) -> None:
        self._forget(pending)
        if pending.answer.done():
            return
        self._sums["unscored"] += 1
        if (count := int(self._sums["unscored"])).bit_count() == 1:  # the 1st, 2nd, 4th, 8th, ...
            log.warning("the reward model %r gave no score (%d so far), last: %s", self._name, count, problem)
        pending.answer.set_exception(UnscoredError(f"the reward model {self._name!r} gave no score: {problem}", cause))
        if not pending.waiters:
            pending.answer.exception()  # no waiter will retrieve it

    def _withdraw(self, pending: _PendingRequest) -> None:
        self._queue.remove(pending)
        self._room.set()
        self._forget(pending)

    def _forget(self, pending: _PendingRequest) -> None:
        if self._pending.get(pending.key) is pending:
            del self._pending[pending.key]

    # ------------------------------------------------------------------ a backend that is down

    async def _wait_until_healthy(self, error: BaseException) -> bool:
        """Wait until the backend is healthy; return whether it was down."""
        waited = False
        while not await self._healthy():
            waited = True
            if self._up is None:
                log.warning(
                    "the reward model %r is down, and requests wait for it, up to %g s: %s",
                    self._name,
                    self._options.patience_s,
                    _describe(error),
                )
                self._up = self._start(self._watch())
            await asyncio.wait({self._up})
        return waited

    async def _watch(self) -> None:
        """Poll until the backend is healthy; requests past their deadline fail meanwhile."""
        loop = asyncio.get_running_loop()
        began = self._down_since = loop.time()
        pause = self._traits.probe_s
        try:
            while True:
                patience = (
                    min((pending.deadline for pending in self._pending.values()), default=math.inf) - self._down_s()
                )
                await asyncio.sleep(max(0.0, min(pause, patience)))
                if await self._healthy():
                    log.warning("the reward model %r is back after %.1f s", self._name, loop.time() - began)
                    return
                pause = min(2 * pause, _LONGEST_PAUSE_S)
                late = self._down_s() + _ROUNDING_S
                for pending in [pending for pending in self._pending.values() if pending.deadline <= late]:
                    self._withdraw(pending)
                    self._give_up(pending, f"it was down for {self._options.patience_s:g} s", "unavailable")
        finally:
            self._sums["down_s"], self._down_since = self._down_s(), None
            self._up = None
            self._pump()

    def _down_s(self) -> float:
        """Return the seconds that the backend was down so far."""
        since = self._down_since
        return self._sums["down_s"] + (0.0 if since is None else asyncio.get_running_loop().time() - since)

    async def _healthy(self) -> bool:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._backend.healthy()
        except Exception:
            return False

    def stats(self) -> dict[str, float]:
        sums = self._sums
        return {name: sums[name] for name in (*_COUNTS, "busy_s")} | {
            "down_s": self._down_s(),
            "batch_size": sums["served"] / max(sums["batches"], 1.0),
            "wait_s": sums["waited_s"] / max(sums["served"], 1.0),
            "waiting": float(len(self._queue)),
            **self.overlap.stats(_time()),
        }

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        running = list(self._tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for pending in list(self._pending.values()):
            self._give_up(pending, "it was closed", "closed")
        self._room.set()
        await self._backend.close()


def _describe(error: BaseException) -> str:
    return str(error) if isinstance(error, BackendError) else f"{type(error).__name__}: {error}"


def _time() -> float | None:
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:  # called after the event loop ended
        return None
