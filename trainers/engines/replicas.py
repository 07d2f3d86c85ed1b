"""Several engines behind one :class:`~trainers.engines.base.Engine`: routing, updates of all, failures of some.

:mod:`.routing` chooses the replica of a request, :mod:`.replica` keeps the state of each; this module is the asyncio
shell, and handles failing replicas (docs/engines.md has a table).

* **A request ends once.** If its replica is lost, it starts again from its prompt on another one; only the delivered
  attempt counts in ``generated_tokens``.
* **Weights are never mixed in silence.** After an update every replica that is up has the new version; one that refused
  it, failed or timed out is removed. Every reply's versions are checked against those that its replica had.
* **It ends.** A lost replica is restarted, if ``restart`` is set, at most ``max_restarts`` times without a good reply
  between. If no replica can be up again, all callers get :class:`~trainers.engines.base.EngineDeadError` with each
  replica's cause.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from textenvs.event_loop import run_in_thread, settle
from trainers.engines.base import (
    Engine,
    EngineDeadError,
    EngineError,
    Generation,
    PartialUpdateError,
    RequestError,
    Sampling,
    SourceLostError,
    SupersededError,
    UpdateMode,
    check_mode,
    check_request,
)
from trainers.engines.replica import Limits, Replica, ReplicaLostError
from trainers.engines.routing import Router

_Result = TypeVar("_Result")

log = logging.getLogger("trainers")


class Replicas:
    """``len(engines)`` engines that serve as one; see :class:`~trainers.engines.base.Engine` for the protocol.

    They have the same weights and version, and are closed with this. Cancelling a caller of an update does not
    withdraw it: it is completed in the background, on all replicas. ``restart`` builds a new engine from a replica's
    index, as a coroutine or in a thread; without it a lost replica is not replaced. An engine with an older version
    gets the weights of the last update, which must stay unchanged until the next one. ``limits`` are the times and
    counts after which a replica counts as lost.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        *,
        restart: Callable[[int], Engine | Awaitable[Engine]] | None = None,
        limits: Limits | None = None,
    ) -> None:
        if not engines:
            raise ValueError("Replicas need at least one engine")
        if len(versions := {engine.version for engine in engines}) > 1:
            raise ValueError(f"the replicas must begin with the same weights, but their versions are {versions}")
        self._replicas = [Replica(index, engine) for index, engine in enumerate(engines)]
        self._router = Router(len(engines))
        self.version = engines[0].version  #: of the weights that every replica has that is up
        #: Prompt and new tokens together are at most this: the least of the replicas.
        self.max_context = min(engine.max_context for engine in engines)
        self._restart, self._limits = restart, limits or Limits()
        self._weights: Any = None  # for replicas that are restarted later
        self._counters = Counter(
            requests=0, retries=0, faults=0, probes=0, replicas_lost=0, replicas_restarted=0, updates_failed=0
        )
        self._updating = asyncio.Lock()  # one update at a time, in order
        self._changed = asyncio.Event()  # replaced at every change of a replica's state
        self._background: dict[asyncio.Task[Any], bool] = {}  # and whether `close` cancels it
        self._watching = self._asleep = self._closed = False
        self._waiting: set[int] = set()  # replicas that can only get the next weights

    # The protocol

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Generation:
        """See :meth:`trainers.engines.base.Engine.generate`; where every attempt failed, the last one's error."""
        # The engine checks the vocabulary.
        prompt = check_request(token_ids, sampling, vocab_size=2**62, max_context=self.max_context, reports_kept=True)
        self._check_open()
        self._counters["requests"] += 1
        failed: dict[int, EngineError] = {}  # errors of replicas that stay up
        problem: EngineError
        for attempt in range(self._limits.retries + 1):
            self._counters["retries"] += attempt > 0
            await self._until_up()
            if failed and all(replica.index in failed for replica in self._up()):
                raise next(reversed(failed.values()))
            placement = self._router.place(prompt, sampling.max_new_tokens, session, avoid=failed)
            replica = self._replicas[placement.replica]
            if placement.previous_home is not None and session is not None:
                self._spawn(self._release_at(self._replicas[placement.previous_home], session))
            made = None
            try:
                reply = await replica.generate(token_ids, sampling, session)
                made = reply.token_ids
                self._served(replica, failed)
                return reply
            except RequestError:
                raise
            except EngineDeadError as error:
                self._take_out(replica, error)
                problem = error
            except ReplicaLostError as error:
                problem = error
            except EngineError as error:
                self._counters["faults"] += 1
                failed[replica.index] = problem = error
            finally:
                self._router.finish(placement, made)
            self._check_open()
        raise EngineError(f"this request failed {attempt + 1} times; the last time: {problem}") from problem

    async def update_weights(self, weights: Any, version: int, mode: UpdateMode = "keep") -> None:
        """See :meth:`trainers.engines.base.Engine.update_weights`.

        PartialUpdateError: some replicas failed and are out, all others have the new version. EngineError: every
        replica was lost with it, and those that came in their places too.
        """
        check_mode(mode)
        for _ in range(self._limits.max_restarts + 1):  # retry if all replicas that took it were lost
            await self._until_up(or_waiting=True)
            if not self._up() and version > self.version:  # no replica has the old weights, and they no longer exist
                async with self._updating:
                    self.version, self._weights = version, weights
                    self._change()
                return await self._until_up()
            await self._updating.acquire()
            try:
                self._check_open()
                if version <= self.version:
                    raise ValueError(f"the new version {version} must be greater than {self.version}")
                # Begun immediately, so that later requests see the new weights.
                for replica in (updated := self._up()):
                    replica.draining = set(replica.calls) if mode == "wait" else set()
                    replica.update = replica.begin(replica.engine.update_weights(weights, version, mode))
                completed = self._spawn(self._complete(updated, weights, version))
                completed.add_done_callback(lambda _: self._updating.release())
            except BaseException:
                self._updating.release()
                raise
            if await asyncio.shield(completed):
                return None
        raise EngineError(f"no replica came through the update to version {version}: {self._causes()}")

    async def release(self, session: str) -> None:
        for index in self._router.release(session):
            await self._release_at(self._replicas[index], session)

    async def sleep(self) -> None:
        """Have the replicas release their memory until :meth:`wake`; requests wait. A failing replica is removed."""
        self._asleep = True
        await self._tell_all("sleep")

    async def wake(self) -> None:
        """Undo :meth:`sleep`; a replica that does not wake up is removed."""
        await self._tell_all("wake")
        for replica in self._up():
            replica.active = asyncio.get_running_loop().time()
        self._asleep = False
        self._change()

    async def _tell_all(self, what: str) -> None:
        notified: list[Replica] = []
        while late := [replica for replica in self._up() if replica not in notified]:  # some may come up meanwhile
            notified += late
            await asyncio.gather(*(self._tell(replica, what) for replica in late))

    async def _tell(self, replica: Replica, what: str) -> None:
        try:
            async with asyncio.timeout(self._limits.update_timeout):
                await getattr(replica.engine, what)()
        except (EngineError, TimeoutError) as error:
            self._take_out(replica, EngineError(f"it did not {what}: {type(error).__name__}: {error}"))

    def stats(self) -> dict[str, float]:
        """Return sums over the replicas, and the numbers of each as ``replica0_...``; docs/engines.md lists them.

        ``kv_use`` is the mean of the replicas that are up. ``requests`` and ``generated_tokens`` count each request
        and delivered token once; ``wasted_tokens`` were made in attempts that were lost.
        """
        sums = defaultdict(float, {"generated_tokens": 0.0, "running": 0.0})
        per_replica: dict[str, float] = {}
        up = self._up()
        for replica in self._replicas:
            numbers = replica.stats()
            for name, value in numbers.items():
                sums[name] += value / len(up) if name == "kv_use" else value
            numbers["up"] = float(replica.state == "up")
            numbers["load"] = self._router.load[replica.index]
            numbers["sessions"] = float(self._router.at_home[replica.index])
            per_replica |= {f"replica{replica.index}_{name}": value for name, value in numbers.items()}
        own = {name: float(count) for name, count in {**self._counters, **self._router.counters}.items()}
        now = {"replicas_up": float(len(up)), "wasted_tokens": sum(replica.wasted for replica in self._replicas)}
        return {**sums, **own, **now, **per_replica}

    async def close(self) -> None:
        self._closed = True
        for task, ends in list(self._background.items()):
            if ends:
                task.cancel()
        for replica in self._replicas:
            replica.abandon(EngineDeadError("the replicas are closed"))
        self._change()
        for replica in self._up():
            replica.state = "gone"
            self._spawn(self._close_engine(replica.engine))
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._limits.close_timeout
        while self._background and (remaining := deadline - clock()) > 0:  # ending tasks may start others
            await asyncio.wait(self._background, timeout=remaining)

    # Requests

    def _served(self, replica: Replica, failed: Mapping[int, EngineError]) -> None:
        """Record a good reply: this replica is healthy, and those that failed the same request are at fault."""
        replica.faults = replica.restarts = 0
        for index, error in failed.items():
            other = self._replicas[index]
            other.faults += 1
            if other.faults >= self._limits.max_faults:
                self._take_out(other, _because(f"{other.faults} bad replies in a row; the last: {error}", error))

    async def _until_up(self, *, or_waiting: bool = False) -> None:
        """Wait until a replica is up (or waits for the next weights); EngineDeadError where none will be."""
        if not self._watching and not self._closed:
            self._watching = True
            for replica in self._replicas:
                replica.active = asyncio.get_running_loop().time()
            self._spawn(self._watch(), ends=True)
        while True:
            self._check_open()
            if self._up() or (or_waiting and self._waiting):
                return
            if all(replica.state == "gone" for replica in self._replicas):
                last = self._replicas[-1].cause
                error = EngineDeadError(f"all {len(self._replicas)} replicas are gone: {self._causes()}")
                raise error from (last if last is None or last.__cause__ is None else last.__cause__)
            await self._changed.wait()

    def _causes(self) -> str:
        return "; ".join(f"{replica}: {replica.cause}" for replica in self._replicas)

    async def _release_at(self, replica: Replica, session: str) -> None:
        if replica.state == "up":
            with contextlib.suppress(EngineError):  # a replica that is dying keeps nothing
                await replica.engine.release(session)

    # Weights

    async def _complete(self, updated: Sequence[Replica], weights: Any, version: int) -> bool:
        """Wait for all replicas; return whether any has the weights. Raises as ``update_weights``."""
        errors = await asyncio.gather(*(self._taken(replica, version, updated) for replica in updated))
        if lost := [error for error in errors if isinstance(error, SourceLostError)]:
            raise lost[0]  # no replica is at fault, and a new one could not get the weights either
        took = [
            replica for replica, error in zip(updated, errors, strict=True) if error is None and replica.state == "up"
        ]
        for replica, error in zip(updated, errors, strict=True):
            if error is not None and (took or not isinstance(error, ValueError)):
                message = f"the update to version {version} failed: {type(error).__name__}: {error}"
                self._take_out(replica, _because(message, error.__cause__ or error))
        self._counters["updates_failed"] += len(updated) - len(took)
        if not took:
            if refused := [error for error in errors if isinstance(error, ValueError)]:
                raise refused[0]
            return False
        self.version, self._weights = version, weights if self._restart is not None else None
        self._router.forget_computed()
        self._change()
        if len(took) < len(updated):
            out = "; ".join(f"{replica}: {replica.cause}" for replica in updated if replica not in took)
            raise PartialUpdateError(f"{len(took)} of {len(updated)} replicas have version {version}; taken out: {out}")
        return True

    async def _taken(self, replica: Replica, version: int, updated: Sequence[Replica]) -> Exception | None:
        """Wait for one replica's update; return its error, if any."""
        task, lost = replica.update, replica.lost
        assert task is not None
        assert lost is not None
        try:
            # A source that sends to all at once waits for the requests of each; a stall is noticed by the watcher.
            while (draining := set().union(*(r.draining for r in updated))) and not task.done() and not lost.done():
                waited: list[asyncio.Future[Any]] = [task, lost, *draining]
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.sleep(0)  # ended requests remove themselves
            async with asyncio.timeout(self._limits.update_timeout) as clock:
                await replica.result(task)
        except TimeoutError as error:
            return TimeoutError(f"it took longer than {self._limits.update_timeout:g} s") if clock.expired() else error
        except Exception as error:  # after any error, this replica's weights are unreliable
            return error
        finally:
            replica.update = None
            replica.draining = set()
            replica.active = asyncio.get_running_loop().time()
        if replica.engine.version != version:
            return EngineError(f"it has version {replica.engine.version} after an update to {version}")
        return None

    # Health

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._limits.probe_interval)
            for replica in [] if self._asleep else self._up():
                self._look_at(replica)

    def _look_at(self, replica: Replica) -> None:
        limits, now = self._limits, asyncio.get_running_loop().time()
        idle = replica.idle(now)
        if replica.update is not None and not replica.draining:
            replica.active = now  # updates are slow, and have their own timeout
        elif replica.probing:
            pass
        elif replica.draining:  # a probe would wait for these requests
            if idle >= limits.stall_timeout:
                self._take_out(replica, _stalled(replica, idle))
        elif idle >= (limits.stall_timeout - limits.probe_timeout if replica.calls else limits.probe_interval):
            self._spawn(self._probe(replica), ends=True)

    async def _probe(self, replica: Replica) -> None:
        engine, clock = replica.engine, asyncio.get_running_loop().time
        began, replica.probing = clock(), True
        self._counters["probes"] += 1
        error: EngineError
        try:
            async with asyncio.timeout(self._limits.probe_timeout):
                await replica.result(replica.begin(replica.probe()))
            replica.active = clock()
            return
        except TimeoutError:
            if (idle := replica.idle(clock())) < clock() - began:  # it made progress meanwhile
                return
            error = _stalled(replica, idle)
        except EngineError as problem:
            error = problem
        finally:
            replica.probing = False
        if replica.engine is engine and replica.update is None:
            self._take_out(replica, error)

    def _take_out(self, replica: Replica, error: EngineError) -> None:
        """Remove a replica; its requests start again on other replicas."""
        if replica.state != "up" or self._closed:
            return
        self._counters["replicas_lost"] += 1
        log.warning("%s is taken out, with %d requests in flight: %s", replica, len(replica.calls), error)
        self._router.down(replica.index)
        replica.retire(error, restarts=self._restart is not None)
        # Started here: the replacement ends with this object, but the engine must be closed in any case.
        self._spawn(self._replace(replica, self._spawn(self._close_engine(replica.engine))), ends=True)
        self._change()

    async def _replace(self, replica: Replica, closing: asyncio.Task[None]) -> None:
        """Put a new engine in the place of a lost one, if there is a way to."""
        await asyncio.wait([closing], timeout=self._limits.close_timeout)  # it may hold memory that its successor needs
        lost = replica.cause
        while replica.state == "restarting":
            if replica.restarts >= self._limits.max_restarts:
                replica.state = "gone"
                log.error("%s is given up after %d restarts: %s", replica, replica.restarts, replica.cause)
                break
            while self._asleep:  # another component uses its memory
                await self._changed.wait()
            if replica.restarts:
                await asyncio.sleep(self._limits.backoff * 2 ** (replica.restarts - 1))
            replica.restarts += 1
            try:
                await self._bring_up(replica)
            except Exception as error:  # whatever a user's function raises
                message = f"{lost}; then restart {replica.restarts} failed: {type(error).__name__}: {error}"
                replica.cause = _because(message, error)
                log.warning("%s: %s", replica, replica.cause)
        self._change()

    async def _bring_up(self, replica: Replica) -> None:
        try:
            async with asyncio.timeout(self._limits.restart_timeout) as clock:
                engine = await self._made(replica.index)
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise EngineError(f"it took longer than {self._limits.restart_timeout:g} s") from error
        try:
            while True:
                if engine.version != self.version:
                    if engine.version > self.version or self._weights is None:
                        raise EngineError(
                            f"restart made an engine of version {engine.version}, and version {self.version} is "
                            "wanted: make it with the weights that the first engines had"
                        )
                    version = self.version
                    try:
                        async with asyncio.timeout(self._limits.update_timeout):
                            await engine.update_weights(self._weights, version)
                    except SupersededError:  # it gets the next ones
                        self._waiting.add(replica.index)
                        self._change()
                        while self.version == version:
                            await self._changed.wait()
                        self._waiting.discard(replica.index)
                async with self._updating:  # not in the middle of an update
                    if engine.version == self.version:
                        asleep = False
                        async with asyncio.timeout(self._limits.update_timeout):
                            while asleep != self._asleep:  # as its siblings are, which may change meanwhile
                                await getattr(engine, "wake" if asleep else "sleep")()
                                asleep = not asleep
                        replica.adopt(engine, asyncio.get_running_loop().time())
                        self._router.up(replica.index)
                        self._counters["replicas_restarted"] += 1
                        log.info("%s is up again, with version %d", replica, self.version)
                        return
        except BaseException:
            self._spawn(self._close_engine(engine))
            raise

    async def _made(self, index: int) -> Engine:
        assert self._restart is not None
        if inspect.iscoroutinefunction(self._restart):
            return await settle(self._restart(index))
        return await settle(await run_in_thread(partial(self._restart, index)))

    async def _close_engine(self, engine: Engine) -> None:
        try:
            await engine.close()
        except Exception as error:  # it is not used any more, so errors do not matter
            log.warning("an engine could not be closed: %s: %s", type(error).__name__, error)

    def _up(self) -> list[Replica]:
        return [replica for replica in self._replicas if replica.state == "up"]

    def _check_open(self) -> None:
        if self._closed:
            raise EngineDeadError("the replicas are closed")

    def _change(self) -> None:
        """Wake all that wait for a replica; each waiter rechecks."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _spawn(self, work: Coroutine[Any, Any, _Result], *, ends: bool = False) -> asyncio.Task[_Result]:
        """Start a background task. ``close`` waits for it, or cancels it (``ends``); then a failure is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._background[task] = ends

        def ended(task: asyncio.Task[_Result]) -> None:
            del self._background[task]
            if ends and not task.cancelled() and (error := task.exception()) is not None:
                log.error("a background task of the replicas failed", exc_info=error)

        task.add_done_callback(ended)
        return task


def _because(message: str, cause: BaseException) -> EngineError:
    error = EngineError(message)
    error.__cause__ = cause
    return error


def _stalled(replica: Replica, seconds: float) -> EngineError:
    return EngineError(f"no answer and no progress for {seconds:g} s, with {len(replica.calls)} requests in flight")
