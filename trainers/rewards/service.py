"""A service that scores single requests as they come, in batches: for reward models, judges, anything slow.

Scoring starts when a turn or an episode ends. Requests of all episodes meet in one queue a model::

    service = RewardService({"helpful": backend}, {"helpful": ModelOptions(max_batch_size=64)})
    collector = Collector(..., rewards={"helpful": reward_of(service, "helpful")})
    service.watch(collector.generating_s)

Guarantees (docs/reward-service.md has the details):

* A score is the same alone or in a batch, cached or not, where the backend is independent of batch composition.
* No score is invented: what cannot be scored raises :class:`UnscoredError`.
* While a backend is down, requests wait for it, for at most ``patience_s``.
* A batch that fails while the backend is healthy is halved until the request that breaks it is found.
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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from textenvs.env import LARGEST
from textenvs.messages import Messages, text_of
from textenvs.options import NonNegativeInt, PositiveInt, Price, Seconds, checked
from textenvs.text import quoted

from ..trajectory import is_reward

if TYPE_CHECKING:
    from ..rollout.rewards import TurnContext

Item = TypeVar("Item")


class Batcher(Generic[Item]):
    """The queue in front of one model, first in, first out; a batch is due when full, or after ``max_wait`` seconds.

    A batch has at most ``max_size`` requests and ``max_tokens`` tokens; a request with more is a batch of its own.
    """

    def __init__(self, max_size: int, max_tokens: int | None, max_wait: float) -> None:
        self._max_size, self._max_tokens, self._max_wait = max_size, max_tokens, max_wait
        self._queue: deque[tuple[Item, int, float]] = deque()  # with tokens, and since when

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, item: Item, tokens: int, now: float) -> None:
        self._queue.append((item, tokens, now))

    def remove(self, item: Item) -> None:
        self._queue = deque(waiting for waiting in self._queue if waiting[0] is not item)

    def due(self, now: float) -> float | None:
        """Seconds until there is a batch (0: now), if nothing else comes; ``None`` while nothing waits."""
        if not self._queue:
            return None
        if self._fitting() < len(self._queue) or len(self._queue) == self._max_size:
            return 0.0  # it is full: another would not fit, or does not
        return max(0.0, self._queue[0][2] + self._max_wait - now)

    def take(self, now: float) -> list[tuple[Item, float]]:
        """The next batch, each request with the seconds it waited; empty unless one is due."""
        if self.due(now) != 0.0:
            return []
        batch = [self._queue.popleft() for _ in range(self._fitting())]
        return [(item, now - since) for item, _, since in batch]

    def _fitting(self) -> int:
        """How many of the oldest fit in a batch."""
        total = 0
        for count, (_, tokens, _) in enumerate(self._queue):
            total += tokens
            if count and (count == self._max_size or (self._max_tokens is not None and total > self._max_tokens)):
                return count
        return len(self._queue)


class Overlap:
    """Seconds in which a batch was computed, and of them those in which episodes generated; side by side count once."""

    def __init__(self) -> None:
        self._running = 0
        self._since = (0.0, 0.0)
        self._busy = self._beside = self._watched = 0.0
        self._generating_s: Callable[[], float] | None = None

    def watch(self, generating_s: Callable[[], float], now: float) -> None:
        """Measure against this clock from now on."""
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
        """``computing_s``, and ``overlap`` where it can be said; up to the last batch without ``now``."""
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

_LONGEST_PAUSE_S = 10.0  # between two looks at a backend that is down
_COUNTS = ("requests", "cache_hits", "joined", "batches", "failures", "unscored")
_ROUNDING_S = 1e-6  # of sums of times
_OUTAGES = 3  # that a request has no part in; it may well be what brings the backend down


class BackendError(Exception):
    """A backend could not score: a batch when raised, one request when returned; ``final``: asking again is no use."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class OutageError(BackendError):
    """It could not be asked at all, and the requests are not at fault: it is asked again once it is healthy."""


class UnscoredError(Exception):
    """There is no score for a request; ``cause`` is ``failed``, ``nonsense``, ``unavailable`` or ``closed``."""

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True)
class ScoringRequest:
    """What is to be scored."""

    messages: Messages
    turn: int | None = None  # the assistant's turn that is meant, from 0; ``None`` for the whole conversation
    data_source: str = ""  # of the task
    ground_truth: Any = None  # the task's answer, where the backend may know it

    def tokens(self) -> int:
        """About how long it is, for ``max_batch_tokens``: characters of the messages, by 4."""
        return sum(len(text_of(message)) for message in self.messages) // 4

    def key(self) -> str:
        """The same for the same request, in every process; a ``TypeError`` where something in it has no JSON."""
        parts = [list(self.messages), self.turn, self.data_source, self.ground_truth]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class RewardBackend(Protocol):
    """What computes scores: a model, a function, a service."""

    async def score(self, requests: Sequence[ScoringRequest]) -> Sequence[float | BackendError]:
        """Score a batch: one result a request, in order. An exception means that the whole batch failed."""

    async def healthy(self) -> bool:
        """Whether it is worth asking. Exceptions count as no."""

    async def close(self) -> None:
        """Release what it holds."""


@checked
@dataclass(frozen=True)
class ModelOptions:
    """How one model is asked. A value outside its range is a ``ValueError``."""

    max_batch_size: PositiveInt = 32  # requests in a batch, at most
    max_batch_tokens: PositiveInt | None = None  # tokens in a batch, at most; ``None`` for no limit
    max_wait_s: Price = 0.02  # maximum batching delay while the model is free, in seconds
    concurrency: PositiveInt = 1  # batches at a time
    timeout_s: Seconds = 60.0  # that a batch may take
    retries: NonNegativeInt = 2  # of one request after it failed while the backend was healthy
    patience_s: Seconds = 300.0  # that a request waits for a backend that is down, over all its outages
    probe_s: Seconds = 0.5  # between two looks at a backend that is down; doubled each time, up to 10
    queue_size: PositiveInt = 4096  # requests that may wait before more must wait to be added
    cache_size: NonNegativeInt = 65536  # scores that are remembered, the least recently used forgotten first
    low: float = -math.inf  # no score is below it
    high: float = math.inf  # no score is above it

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"low ({self.low}) must be at most high ({self.high})")


class RewardService(AbstractAsyncContextManager["RewardService"]):
    """Scores requests with named models; see the module.

    The service closes the ``backends``, by name. What has no ``options`` is asked as its backend recommends
    (``model_options()``), or with the defaults. ``ValueError``: no backend, or options of none.
    """

    def __init__(
        self, backends: Mapping[str, RewardBackend], options: Mapping[str, ModelOptions] | None = None
    ) -> None:
        if not backends:
            raise ValueError("a reward service needs at least one backend")
        if unknown := sorted(set(options or {}) - set(backends)):
            raise ValueError(f"options are given for {unknown[0]!r}, but the models are {', '.join(sorted(backends))}")
        self._models = {
            name: _Model(name, backend, (options or {}).get(name) or getattr(backend, "model_options", ModelOptions)())
            for name, backend in backends.items()
        }

    async def score(self, model: str, request: ScoringRequest) -> float:
        """The score of one request, computed once however many ask; UnscoredError, or ``ValueError`` of no model."""
        if model not in self._models:
            raise ValueError(f"there is no reward model {model!r}; there are {', '.join(sorted(self._models))}")
        return await self._models[model].score(request)

    def stats(self) -> dict[str, float]:
        """For each model, as ``<model>/<name>``; docs/reward-service.md explains the numbers."""
        return {f"{name}/{key}": value for name, model in self._models.items() for key, value in model.stats().items()}

    def watch(self, generating_s: Callable[[], float]) -> None:
        """Measure how much of the scoring is beside generating, by ``Collector.generating_s`` (seconds, a clock's)."""
        for model in self._models.values():
            model.overlap.watch(generating_s, asyncio.get_running_loop().time())

    async def close(self) -> None:
        """Give up what waits, and close the backends; safe to call twice."""
        for model in self._models.values():
            await model.close()

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


def reward_of(
    service: RewardService,
    model: str,
    *,
    per: Literal["episode", "turn"] = "episode",
    weight: float = 1.0,
    truth: Callable[[TurnContext], Any] | None = None,
) -> Callable[[TurnContext, int], Awaitable[float] | None]:
    """A model as a reward that comes later, for ``Collector(rewards=...)``; scoring starts when it is called.

    ``per="episode"``: once, when it is over, the whole conversation; the reward is that of the last turn.
    ``per="turn"``: after each reply, the conversation up to it; the reward is that turn's. ``weight`` multiplies the
    score; ``truth`` finds the task's ground truth, where the model wants it.
    """
    if per not in ("episode", "turn"):
        raise ValueError(f"per must be episode or turn, not {per!r}")
    if not math.isfinite(weight):
        raise ValueError(f"weight must be finite, not {weight}")

    def reward(so_far: TurnContext, turn: int) -> Awaitable[float] | None:
        if per == "episode" and not so_far.over:
            return None
        messages, said = so_far.messages, None
        if per == "turn":
            places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
            if not places:
                raise ValueError("the environment's conversation has no reply of the assistant's to score")
            messages, said = messages[: places[-1] + 1], len(places) - 1
        known = None if truth is None else truth(so_far)
        return asked(ScoringRequest(messages, said, so_far.data_source, known))

    async def asked(request: ScoringRequest) -> float:
        return weight * await service.score(model, request)

    return reward


@dataclass(eq=False)
class _Asked:
    """A request that waits or is computed."""

    request: ScoringRequest
    key: str
    answer: asyncio.Future[float]
    deadline: float  # in seconds that the backend was down, see :meth:`_Model._down_s`
    wanted: int = 0
    failures: int = 0
    outages: int = 0  # that it was alone in


class _Model:
    """One backend with its queue and its cache."""

    def __init__(self, name: str, backend: RewardBackend, options: ModelOptions) -> None:
        self._name, self._backend, self._options = name, backend, options
        self._queue: Batcher[_Asked] = Batcher(options.max_batch_size, options.max_batch_tokens, options.max_wait_s)
        self._asked: dict[str, _Asked] = {}
        self._cache: OrderedDict[str, float] = OrderedDict()
        self._room = asyncio.Event()  # something has left the queue
        self._places = options.concurrency
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
            if (known := self._cache.get(key)) is not None:
                self._cache.move_to_end(key)
                self._sums["cache_hits"] += 1
                return known
            if (asked := self._asked.get(key)) is not None:
                self._sums["joined"] += 1
                break
            if len(self._queue) < self._options.queue_size:
                asked = _Asked(request, key, loop.create_future(), self._down_s() + self._options.patience_s)
                self._asked[key] = asked
                self._queue.add(asked, request.tokens(), loop.time())
                self._pump()
                break
            self._room.clear()
            await self._room.wait()
        asked.wanted += 1
        try:
            return await asyncio.shield(asked.answer)
        finally:
            asked.wanted -= 1
            if not asked.wanted and not asked.answer.done():  # its last waiter was cancelled
                self._withdraw(asked)
                asked.answer.cancel()

    # ------------------------------------------------------------------ batches

    def _pump(self) -> None:
        """Send what is due and may be sent; look again when the next batch is due."""
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
            self._start(self._serve([asked for asked, _ in batch]))

    async def _serve(self, batch: list[_Asked]) -> None:
        try:
            await self._send(batch)
        except Exception as error:  # a bug of ours: no waiter may hang because of it
            for asked in batch:
                self._give_up(asked, f"{type(error).__name__}: {error}", "failed")
            raise
        finally:
            self._places += 1
            self._pump()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _send(self, batch: list[_Asked]) -> None:
        """Have a batch computed; what fails is halved, tried again, or given up."""
        if not (batch := [asked for asked in batch if not asked.answer.done()]):
            return
        try:
            results = await self._compute([asked.request for asked in batch])
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
        failed: list[tuple[_Asked, BaseException]] = []
        for asked, result in zip(batch, results, strict=True):
            if isinstance(result, BaseException):
                failed.append((asked, result))
            elif nonsense := self._problem_with(result):
                self._give_up(asked, nonsense, "nonsense")
            else:
                self._answer(asked, float(result))
        outage = next((problem for _, problem in failed if isinstance(problem, OutageError)), None)
        waited = outage is not None and await self._wait_until_healthy(outage)
        for asked, problem in failed:
            await self._again(asked, problem, waited and isinstance(problem, OutageError))

    async def _compute(self, requests: list[ScoringRequest]) -> Sequence[Any]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.overlap.begin(began)
        try:
            async with asyncio.timeout(self._options.timeout_s) as clock:
                results = await self._backend.score(requests)
        except TimeoutError as error:
            if clock.expired():
                raise BackendError(f"a batch took longer than {self._options.timeout_s:g} s") from error
            raise
        finally:
            self._sums["busy_s"] += loop.time() - began
            self.overlap.end(loop.time())
        if len(results) != len(requests):
            raise BackendError(f"{len(requests)} requests got {len(results)} scores")
        return results

    async def _again(self, asked: _Asked, error: BaseException, waited: bool) -> None:
        """A request failed alone: once more, or not. ``waited``: while the backend was down."""
        if asked.answer.done():
            return
        if waited and asked.outages < _OUTAGES:
            asked.outages += 1
            await self._send([asked])
            return
        if isinstance(error, OutageError) and not waited:  # it says that it is well, and was not a moment ago
            await asyncio.sleep(self._options.probe_s)
        asked.failures += 1
        if getattr(error, "final", False):
            self._give_up(asked, str(error), "failed")
        elif asked.failures > self._options.retries:
            self._give_up(asked, f"{_said(error)} (tried {asked.failures} times)", "failed")
        else:
            await self._send([asked])

    def _problem_with(self, result: Any) -> str | None:
        if not is_reward(result):
            return f"it returned {quoted(result)}: a score must be a finite number of at most {LARGEST:g}"
        if not self._options.low <= result <= self._options.high:
            return f"it returned {result}, outside of {self._options.low:g} to {self._options.high:g}"
        return None

    # ------------------------------------------------------------------ answers

    def _answer(self, asked: _Asked, score: float) -> None:
        self._forget(asked)
        if self._options.cache_size:
            self._cache[asked.key] = score
            if len(self._cache) > self._options.cache_size:
                self._cache.popitem(last=False)
        if not asked.answer.done():
            asked.answer.set_result(score)

    def _give_up(self, asked: _Asked, problem: str, cause: str) -> None:
        self._forget(asked)
        if asked.answer.done():
            return
        self._sums["unscored"] += 1
        if (count := int(self._sums["unscored"])).bit_count() == 1:  # the 1st, 2nd, 4th, 8th, ...
            log.warning("the reward model %r gave no score (%d so far), last: %s", self._name, count, problem)
        asked.answer.set_exception(UnscoredError(f"the reward model {self._name!r} gave no score: {problem}", cause))
        if not asked.wanted:
            asked.answer.exception()  # no waiter is left to retrieve it

    def _withdraw(self, asked: _Asked) -> None:
        self._queue.remove(asked)
        self._room.set()
        self._forget(asked)

    def _forget(self, asked: _Asked) -> None:
        if self._asked.get(asked.key) is asked:
            del self._asked[asked.key]

    # ------------------------------------------------------------------ a backend that is down

    async def _wait_until_healthy(self, error: BaseException) -> bool:
        """Wait until the backend is healthy; whether it was down."""
        waited = False
        while not await self._healthy():
            waited = True
            if self._up is None:
                log.warning(
                    "the reward model %r is down, and requests wait for it, up to %g s: %s",
                    self._name,
                    self._options.patience_s,
                    _said(error),
                )
                self._up = self._start(self._watch())
            await asyncio.wait({self._up})
        return waited

    async def _watch(self) -> None:
        """Poll until the backend is healthy; requests past their deadline fail meanwhile."""
        loop = asyncio.get_running_loop()
        began = self._down_since = loop.time()
        pause = self._options.probe_s
        try:
            while True:
                patience = min((asked.deadline for asked in self._asked.values()), default=math.inf) - self._down_s()
                await asyncio.sleep(max(0.0, min(pause, patience)))
                if await self._healthy():
                    log.warning("the reward model %r is back after %.1f s", self._name, loop.time() - began)
                    return
                pause = min(2 * pause, _LONGEST_PAUSE_S)
                late = self._down_s() + _ROUNDING_S
                for asked in [asked for asked in self._asked.values() if asked.deadline <= late]:
                    self._withdraw(asked)
                    self._give_up(asked, f"it was down for {self._options.patience_s:g} s", "unavailable")
        finally:
            self._sums["down_s"], self._down_since = self._down_s(), None
            self._up = None
            self._pump()

    def _down_s(self) -> float:
        """Seconds that the backend was down so far."""
        since = self._down_since
        return self._sums["down_s"] + (0.0 if since is None else asyncio.get_running_loop().time() - since)

    async def _healthy(self) -> bool:
        try:
            async with asyncio.timeout(self._options.timeout_s):
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
        for asked in list(self._asked.values()):
            self._give_up(asked, "it was closed", "closed")
        self._room.set()
        await self._backend.close()


def _said(error: BaseException) -> str:
    return str(error) if isinstance(error, BackendError) else f"{type(error).__name__}: {error}"


def _time() -> float | None:
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:  # asked after the end
        return None
