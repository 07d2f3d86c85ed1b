"""Several engines behind one :class:`~trainers.engines.base.Engine`: routing, updates of all, failures of some.

:mod:`.routing` decides where a request goes, :mod:`.replica` keeps what is known of each; this module is the asyncio
shell, and decides what becomes of a replica that fails.

What holds:

* **A request ends once.** One whose replica is lost begins again from its prompt on another (engines are token in,
  token out, so nothing is lost but time), and only the attempt that is delivered counts in ``generated_tokens``.
* **Weights are never mixed in silence.** After an update every replica that is up has the new version. One that refused
  it, failed or took too long is taken out, and the update ends as a :class:`~trainers.engines.base.PartialUpdateError`
  that names it. Every reply's versions are checked against those that its replica had.
* **Nobody waits for a replica that does not move.** One with work and without progress for ``stall_timeout``, one that
  does not answer a probe, and one that dies are taken out. So is one that gives ``max_faults`` bad replies in a row to
  requests that another replica then served.
* **It ends.** A lost replica is restarted, if there is a way to, at most ``max_restarts`` times without a good reply
  between. Requests wait for a restart when nothing else is up. When none will come up any more, everybody gets
  :class:`~trainers.engines.base.EngineDeadError` with each replica's cause.

A replica that was taken out is closed. Without ``restart`` it is gone for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import numpy as np

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
    check_request,
)
from trainers.engines.replica import Call, Limits, Replica, ReplicaLostError
from trainers.engines.routing import Router

_Result = TypeVar("_Result")

log = logging.getLogger("trainers")


class Replicas:
    """``len(engines)`` engines that serve as one; see :class:`~trainers.engines.base.Engine` for the protocol.

    Cancelling who waits for an update does not withdraw it: it is completed in the background, on all replicas.

    Args:
        engines: The replicas, with the same weights and version. They are closed with this.
        restart: From a replica's index to a new engine for its place; a coroutine function, or a function that is
            called in a thread. The new engine's version must not be newer than the current one; where it is older, it
            gets the current weights before its first request.
        weights: What ``engines`` were made with, as ``update_weights`` takes it; with ``restart``, needed by replicas
            that are lost before the first update.
        copy_weights: With ``restart``, keep copies of the tensors that an update brings, for replicas that come later.
            Turn it off where they are copies that stay unchanged.
        router: Rules of routing and rebalancing; by default :class:`~trainers.engines.routing.Router`'s.
        limits: How patient to be.

    Raises:
        ValueError: No engine, engines of different versions, or a router for another number of them.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        *,
        restart: Callable[[int], Engine | Awaitable[Engine]] | None = None,
        weights: Any = None,
        copy_weights: bool = True,
        router: Router | None = None,
        limits: Limits | None = None,
    ) -> None:
        if not engines:
            raise ValueError("Replicas need at least one engine")
        if len(versions := {engine.version for engine in engines}) > 1:
            raise ValueError(f"the replicas must begin with the same weights, but their versions are {versions}")
        if router is not None and router.replicas != len(engines):
            raise ValueError(f"the router is for {router.replicas} replicas, and there are {len(engines)}")
        self._replicas = [Replica(index, engine) for index, engine in enumerate(engines)]
        self._router = router or Router(len(engines))
        self._version = engines[0].version
        self._max_context = min(engine.max_context for engine in engines)
        self._restart, self._weights, self._copy = restart, weights, copy_weights
        self._limits = limits or Limits()
        self._counters = Counter(
            requests=0, retries=0, faults=0, probes=0, replicas_lost=0, replicas_restarted=0, updates_failed=0
        )
        self._updating = asyncio.Lock()  # one update at a time, in order
        self._changed = asyncio.Event()  # replaced at every change of a replica's state
        self._background: set[asyncio.Task[Any]] = set()
        self._chores: set[asyncio.Task[Any]] = set()  # of those, what ends with this
        self._watching = self._asleep = False
        self._closed = False
        self._waiting: set[int] = set()  # replicas that can have the next weights alone

    # ------------------------------------------------------------------ the protocol

    @property
    def version(self) -> int:
        """The version of the weights that every replica has that is up."""
        return self._version

    @property
    def max_context(self) -> int:
        """Prompt and new tokens together are at most this: the least of the replicas."""
        return self._max_context

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Generation:
        """See :meth:`trainers.engines.base.Engine.generate`.

        Raises:
            RequestError: The request is invalid.
            EngineDeadError: All replicas are gone.
            EngineError: Every attempt failed; the last one's error.
        """
        prompt = np.asarray(token_ids)
        if prompt.ndim != 1 or prompt.dtype.kind not in "iu" or not 0 < len(prompt) < self._max_context:
            # This raises, and says why.
            check_request(token_ids, sampling, vocab_size=2**62, max_context=self._max_context, reports_kept=True)
        self._check_open()
        self._counters["requests"] += 1
        failed: dict[int, EngineError] = {}  # what replicas said that are none the worse for it
        problem: EngineError
        attempts = 0
        while True:
            await self._until_up()
            if failed and all(replica.index in failed for replica in self._up()):
                raise next(reversed(failed.values()))
            placement = self._router.place(prompt, sampling.max_new_tokens, session, avoid=failed)
            assert placement is not None  # one is up
            replica = self._replicas[placement.replica]
            if placement.left is not None and session is not None:
                self._spawn(self._release_at(self._replicas[placement.left], session))
            made = None
            try:
                reply = await replica.generate(token_ids, sampling, session)
                made = reply.token_ids
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
            if made is not None:
                self._served(replica, failed)
                return reply
            self._check_open()
            attempts += 1
            if attempts > self._limits.retries:
                raise EngineError(f"this request failed {attempts} times; the last time: {problem}") from problem
            self._counters["retries"] += 1

    async def update_weights(self, weights: Any, version: int, mode: UpdateMode = "keep") -> None:
        """See :meth:`trainers.engines.base.Engine.update_weights`.

        Raises:
            ValueError: No replica takes the weights, or the version does not grow; the old weights then stay.
            PartialUpdateError: Some replicas failed; they are out, and all others have the new version.
            EngineDeadError: All replicas are gone.
            EngineError: Every replica was lost with it, and those that came in their places too.
        """
        if mode not in ("keep", "wait", "abort"):
            raise ValueError(f"update mode must be keep, wait or abort, not {mode!r}")
        for _ in range(self._limits.max_restarts + 1):  # again where all that took it were lost with it
            await self._until_up(or_waiting=True)
            if not self._up() and version > self._version:  # nobody has the old weights, and they are gone
                async with self._updating:
                    self._weights, self._version = weights, version
                    self._change()
                return await self._until_up()
            await self._updating.acquire()
            try:
                self._check_open()
                if version <= self._version:
                    raise ValueError(f"the new version {version} must be greater than {self._version}")
                # Begun here and now, so that requests that come later meet the new weights.
                given = {replica: self._give(replica, weights, version, mode) for replica in self._up()}
                completed = self._spawn(self._complete(given, weights, version), self._updating.release)
            except BaseException:
                self._updating.release()
                raise
            if await asyncio.shield(completed):
                return None
        raise EngineError(f"no replica came through the update to version {version}: {self._causes()}")

    async def release(self, session: str) -> None:
        """See :meth:`trainers.engines.base.Engine.release`."""
        for index in self._router.release(session):
            await self._release_at(self._replicas[index], session)

    async def sleep(self) -> None:
        """Let the replicas give their memory back until :meth:`wake`; requests wait. All must be able to.

        Nobody looks after their health meanwhile. One that does not fall asleep is taken out.
        """
        self._asleep = True
        await self._tell_all("sleep")

    async def wake(self) -> None:
        """Undo :meth:`sleep`; a replica that does not wake up is taken out."""
        await self._tell_all("wake")
        for replica in self._up():
            replica.active = asyncio.get_running_loop().time()
        self._asleep = False

    async def _tell_all(self, what: str) -> None:
        async def tell(replica: Replica) -> None:
            try:
                async with asyncio.timeout(self._limits.update_timeout):
                    await getattr(replica.engine, what)()
            except (EngineError, TimeoutError) as error:
                self._take_out(replica, EngineError(f"it did not {what}: {type(error).__name__}: {error}"))

        await asyncio.gather(*map(tell, self._up()))

    def stats(self) -> dict[str, float]:
        """Sums over the replicas, and the numbers of each as ``replica0_...``.

        ``kv_use`` is the mean of the replicas that are up. ``requests`` and ``generated_tokens`` count what was asked
        for and what was made of it, each once; ``wasted_tokens`` were made in attempts that were lost. Its own are
        ``retries``, ``faults`` (replies that were errors or nonsense), ``moves``, ``prefix_hits`` and ``prefix_tokens``
        (see :class:`~trainers.engines.routing.Router`), ``probes``, ``replicas_up``, ``replicas_lost``,
        ``replicas_restarted`` and ``updates_failed``; and of each replica ``up``, ``load`` and ``sessions``.
        """
        sums = defaultdict(float, {"generated_tokens": 0.0, "running": 0.0})
        each: dict[str, float] = {}
        up = self._up()
        for replica in self._replicas:
            numbers = replica.stats()
            for name, value in numbers.items():
                sums[name] += value / len(up) if name == "kv_use" else value
            numbers |= {
                "up": float(replica.state == "up"),
                "load": self._router.load[replica.index],
                "sessions": float(self._router.at_home[replica.index]),
            }
            each |= {f"replica{replica.index}_{name}": value for name, value in numbers.items()}
        own = {name: float(count) for name, count in {**self._counters, **self._router.counters}.items()}
        now = {"replicas_up": float(len(up)), "wasted_tokens": sum(replica.wasted for replica in self._replicas)}
        return {**sums, **own, **now, **each}

    async def close(self) -> None:
        """See :meth:`trainers.engines.base.Engine.close`."""
        self._closed = True
        for task in self._chores:
            task.cancel()
        for replica in self._replicas:
            replica.abandon(lambda: EngineDeadError("the replicas are closed"))
        self._change()
        for replica in self._up():
            replica.state = "gone"
            self._spawn(self._close_engine(replica.engine))
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._limits.close_timeout
        while self._background and (left := deadline - clock()) > 0:  # what ends may leave something to close
            await asyncio.wait(self._background, timeout=left)

    # ------------------------------------------------------------------ requests

    def _served(self, replica: Replica, failed: Mapping[int, EngineError]) -> None:
        """A good reply: this replica is well, and those that failed the same request are not."""
        replica.faults = replica.restarts = 0
        for index, error in failed.items():
            other = self._replicas[index]
            other.faults += 1
            if other.faults >= self._limits.max_faults:
                told = EngineError(f"{other.faults} bad replies in a row; the last: {error}")
                told.__cause__ = error
                self._take_out(other, told)

    async def _until_up(self, *, or_waiting: bool = False) -> None:
        """Wait until a replica is up, or also until one waits for the next weights.

        Raises:
            EngineDeadError: None will be.
        """
        if not self._watching and not self._closed:
            self._watching = True
            for replica in self._replicas:
                replica.active = asyncio.get_running_loop().time()
            self._chore(self._watch())
        while True:
            self._check_open()
            if self._up() or (or_waiting and self._waiting):
                return
            if all(replica.state == "gone" for replica in self._replicas):
                raise self._all_gone()
            await self._changed.wait()

    def _all_gone(self) -> EngineDeadError:
        error = EngineDeadError(f"all {len(self._replicas)} replicas are gone: {self._causes()}")
        last = self._replicas[-1].cause
        error.__cause__ = last if last is None or last.__cause__ is None else last.__cause__
        return error

    def _causes(self) -> str:
        return "; ".join(f"{replica}: {replica.cause}" for replica in self._replicas)

    async def _release_at(self, replica: Replica, session: str) -> None:
        if replica.state == "up":
            with contextlib.suppress(EngineError):  # a replica that is dying keeps nothing
                await replica.engine.release(session)

    # ------------------------------------------------------------------ weights

    def _give(self, replica: Replica, weights: Any, version: int, mode: UpdateMode) -> Call:
        replica.draining = set(replica.calls) if mode == "wait" else set()
        replica.update = replica.begin(replica.engine.update_weights(weights, version, mode))
        return replica.update

    async def _complete(self, given: Mapping[Replica, Call], weights: Any, version: int) -> bool:
        """Wait for all replicas; whether there are any that have the weights now (else all that were up are lost).

        Raises:
            ValueError: No replica took them, and one at least refused.
            PartialUpdateError: Some took them.
        """
        taking = (self._taken(replica, call, version) for replica, call in given.items())
        keeping = self._spawn(self._kept(weights))
        answer = dict(zip(given, await asyncio.gather(*taking), strict=True))
        took = [replica for replica, error in answer.items() if error is None and replica.state == "up"]
        refused = {replica: error for replica, error in answer.items() if isinstance(error, ValueError)}
        if lost := next((error for error in answer.values() if isinstance(error, SourceLostError)), None):
            keeping.cancel()
            raise lost  # no replica is to blame, and another one could not be given weights either
        for replica, error in answer.items():
            if error is not None and (took or not isinstance(error, ValueError)):
                told = EngineError(f"the update to version {version} failed: {type(error).__name__}: {error}")
                told.__cause__ = error.__cause__ or error
                self._take_out(replica, told)
        self._counters["updates_failed"] += len(answer) - len(took)
        if not took:
            keeping.cancel()
            if refused:
                raise next(iter(refused.values()))
            return False
        kept = None
        try:
            kept = await keeping
        finally:  # whatever becomes of the copy: these are the weights that the replicas have
            self._version, self._weights = version, kept
            self._router.forget_computed()
            self._change()
        if len(took) < len(answer):
            lost = "; ".join(f"{replica}: {replica.cause}" for replica in answer if replica not in took)
            raise PartialUpdateError(f"{len(took)} of {len(answer)} replicas have version {version}; taken out: {lost}")
        return True

    async def _taken(self, replica: Replica, call: Call, version: int) -> Exception | None:
        """Wait for one replica's update: what went wrong, if anything."""
        try:
            while replica.draining and not call.outcome.done():  # a stall of these is noticed by the watcher
                await asyncio.wait(
                    [call.outcome, *(each.outcome for each in replica.draining)], return_when=asyncio.FIRST_COMPLETED
                )
                await asyncio.sleep(0)  # those that ended take themselves off
            async with asyncio.timeout(self._limits.update_timeout) as clock:
                await call.outcome
        except TimeoutError as error:
            return TimeoutError(f"it took longer than {self._limits.update_timeout:g} s") if clock.expired() else error
        except Exception as error:  # whatever it is, this replica's weights cannot be relied on
            return error
        finally:
            call.task.cancel()
            replica.update = None
            replica.draining = set()
            replica.active = asyncio.get_running_loop().time()
        if replica.engine.version != version:
            return EngineError(f"it has version {replica.engine.version} after an update to {version}")
        return None

    async def _kept(self, weights: Any) -> Any:
        """What a replica that comes later is given."""
        if self._restart is None:
            return None
        if not (self._copy and isinstance(weights, Mapping)):
            return weights
        if not any(hasattr(value, "clone") for value in weights.values()):
            return weights
        return await _in_a_thread(lambda: {name: _copied(value) for name, value in weights.items()})

    # ------------------------------------------------------------------ health

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._limits.probe_interval)
            if self._asleep:
                continue
            for replica in self._up():
                self._look_at(replica)

    def _look_at(self, replica: Replica) -> None:
        limits, now = self._limits, asyncio.get_running_loop().time()
        still = replica.look(now)
        if replica.update is not None and not replica.draining:
            replica.active = now  # new weights may take their time; the update has a limit of its own
        elif replica.probing:
            pass
        elif replica.draining:  # it would keep a probe waiting
            if still >= limits.stall_timeout:
                self._take_out(replica, self._stalled(replica, still))
        elif still >= (limits.stall_timeout - limits.probe_timeout if replica.calls else limits.probe_interval):
            self._chore(self._probe(replica))

    async def _probe(self, replica: Replica) -> None:
        engine, loop = replica.engine, asyncio.get_running_loop()
        began, replica.probing = loop.time(), True
        self._counters["probes"] += 1
        call = replica.begin(replica.probe())
        error: EngineError
        try:
            async with asyncio.timeout(self._limits.probe_timeout):
                await call.outcome
            replica.active = loop.time()
            return
        except TimeoutError:
            if replica.look(loop.time()) < loop.time() - began:  # it did something meanwhile
                return
            error = self._stalled(replica, replica.look(loop.time()))
        except EngineError as problem:
            error = problem
        finally:
            replica.probing = False
            call.task.cancel()
        if replica.engine is engine and replica.update is None:
            self._take_out(replica, error)

    def _stalled(self, replica: Replica, seconds: float) -> EngineError:
        return EngineError(f"no answer and no progress for {seconds:g} s, with {len(replica.calls)} requests in flight")

    def _take_out(self, replica: Replica, error: EngineError) -> None:
        """This replica gets nothing any more; its requests begin again elsewhere."""
        if replica.state != "up" or self._closed:
            return
        replica.state = "restarting" if self._restart is not None else "gone"
        self._counters["replicas_lost"] += 1
        log.warning("%s is taken out, with %d requests in flight: %s", replica, len(replica.calls), error)
        self._router.down(replica.index)
        replica.retire(error)
        # Begun here: what replaces it ends with this, and the engine must be closed in any case.
        self._chore(self._replace(replica, self._spawn(self._close_engine(replica.engine))))
        self._change()

    async def _replace(self, replica: Replica, closing: asyncio.Task[None]) -> None:
        """Put a new engine in the place of a lost one, if there is a way to."""
        await asyncio.wait([closing], timeout=self._limits.close_timeout)  # it may hold memory that the next one needs
        lost = replica.cause
        while replica.state == "restarting":
            if replica.restarts >= self._limits.max_restarts:
                replica.state = "gone"
                log.error("%s is given up after %d restarts: %s", replica, replica.restarts, replica.cause)
                break
            if replica.restarts:
                await asyncio.sleep(self._limits.backoff * 2 ** (replica.restarts - 1))
            replica.restarts += 1
            try:
                await self._bring_up(replica)
            except Exception as error:  # whatever a user's function raises
                said = f"{lost}; then restart {replica.restarts} failed: {type(error).__name__}: {error}"
                replica.cause = EngineError(said)
                replica.cause.__cause__ = error
                log.warning("%s: %s", replica, replica.cause)
        self._change()

    async def _bring_up(self, replica: Replica) -> None:
        engine = await self._made(replica.index)
        try:
            if engine.max_context < self._max_context:
                raise EngineError(f"restart made an engine with max_context={engine.max_context}")
            while True:
                if engine.version != self._version:
                    if engine.version > self._version or self._weights is None:
                        raise EngineError(
                            f"restart made an engine of version {engine.version}, version {self._version} is wanted, "
                            "and there are no weights to give it (see the argument `weights` of Replicas)"
                        )
                    version = self._version
                    try:
                        async with asyncio.timeout(self._limits.update_timeout):
                            await engine.update_weights(self._weights, version)
                    except SupersededError:  # it gets the next ones
                        self._waiting.add(replica.index)
                        self._change()
                        while self._version == version:
                            await self._changed.wait()
                        self._waiting.discard(replica.index)
                async with self._updating:  # not in the middle of an update
                    if engine.version == self._version:
                        replica.adopt(engine, asyncio.get_running_loop().time())
                        self._router.up(replica.index)
                        self._counters["replicas_restarted"] += 1
                        log.info("%s is up again, with version %d", replica, self._version)
                        return
        except BaseException:
            self._spawn(self._close_engine(engine))
            raise

    async def _made(self, index: int) -> Engine:
        """A new engine; one that comes too late is closed."""
        assert self._restart is not None
        task = self._spawn(_called(self._restart, index))
        try:
            await asyncio.wait([task], timeout=self._limits.restart_timeout)
        finally:
            if not task.done():
                task.add_done_callback(self._close_late)
        if not task.done():
            raise EngineError(f"it took longer than {self._limits.restart_timeout:g} s")
        return task.result()

    def _close_late(self, task: asyncio.Task[Engine]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._spawn(self._close_engine(task.result()))

    async def _close_engine(self, engine: Engine) -> None:
        try:
            await engine.close()
        except Exception as error:  # it is of no use any more, whatever it says
            log.warning("an engine could not be closed: %s: %s", type(error).__name__, error)

    # ------------------------------------------------------------------ small things

    def _up(self) -> list[Replica]:
        return [replica for replica in self._replicas if replica.state == "up"]

    def _check_open(self) -> None:
        if self._closed:
            raise EngineDeadError("the replicas are closed")

    def _change(self) -> None:
        """Wake all that wait for a replica; each waiter rechecks."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _spawn(
        self, work: Coroutine[Any, Any, _Result], then: Callable[[], None] | None = None
    ) -> asyncio.Task[_Result]:
        """A background task that outlives :meth:`close`, until it ends by itself."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)

        def ended(task: asyncio.Task[_Result]) -> None:
            self._background.discard(task)
            if then is not None:
                then()

        task.add_done_callback(ended)
        return task

    def _chore(self, work: Coroutine[Any, Any, None]) -> None:
        """A background task that :meth:`close` cancels; its failure is a bug and is logged."""
        task = self._spawn(work)
        self._chores.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._chores.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("a chore of the replicas failed", exc_info=error)

        task.add_done_callback(ended)


async def _called(restart: Callable[[int], Engine | Awaitable[Engine]], index: int) -> Engine:
    if inspect.iscoroutinefunction(restart):
        return cast(Engine, await restart(index))
    made = await _in_a_thread(lambda: restart(index))
    return await made if inspect.isawaitable(made) else made


async def _in_a_thread(work: Callable[[], _Result]) -> _Result:
    own = ThreadPoolExecutor(1)  # the loop's own may be full of environments that hang
    try:
        return await asyncio.get_running_loop().run_in_executor(own, work)
    finally:
        own.shutdown(wait=False)


def _copied(value: Any) -> Any:
    return value.detach().clone() if hasattr(value, "clone") else value
