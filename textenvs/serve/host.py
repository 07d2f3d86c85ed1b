"""The environments of a server, and how a request is carried out: everything but the transport.

:meth:`Host.answer` takes a decoded request and gives a decoded answer; :mod:`textenvs.serve.book` decides, this waits.
An environment that does not block is played on the event loop, one that does in one of a few threads. Work goes on when
whoever asked for it is gone: its answer is kept for when they ask again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import gymnasium

from ..background import settle, wait_for
from ..env import EnvironmentFailure, TextEnv
from ..messages import Messages
from .book import Book, Join, Limits, Repeat, Start, Verdict
from .protocol import (
    ALLOWANCES,
    ERRORS,
    PROTOCOL,
    Close,
    Describe,
    Json,
    Open,
    Refusal,
    Request,
    Score,
    Script,
    Step,
    TaskKey,
    encode,
    fingerprint,
    generator_from,
    generator_state,
    parse_request,
)
from .threads import Threads

_LOG = logging.getLogger("textenvs.serve")
#: How many environments with arguments of clients are kept; those that no session uses make room.
_VARIANTS = 16
#: How often one request over HTTP may wait for its answer beside the first.
_JOINS_HTTP = 8
#: How long environments have to close.
_CLOSE_S = 10.0


@dataclass(frozen=True)
class Offer:
    """An environment that is served.

    Args:
        make: Makes it; what clients may add to its arguments is given as keywords.
        nondeterministic: Whether equal seeds and replies may give different episodes: then none can be continued in
            another session.
    """

    make: Callable[..., TextEnv[Any]]
    nondeterministic: bool = False


@dataclass
class _Variant:
    """An environment with its arguments; its sessions play forks of it, so its tasks are loaded once."""

    made: asyncio.Task[TextEnv[Any]]
    users: int = 0  # sessions, and requests that look at it or wait for it

    @property
    def env(self) -> TextEnv[Any]:
        """It, once it is made."""
        return self.made.result()

    def leave(self) -> None:
        """A session or a request has done with it."""
        self.users -= 1


@dataclass
class _Playing:
    """What a session has: a fork, and how much of its conversation was told."""

    variant: _Variant
    env: TextEnv[Any]
    told: int = 0
    thread: asyncio.Future[Any] | None = None  # the last call of it in a thread


@dataclass(frozen=True)
class Answer:
    """What is sent back.

    Args:
        text: ``{"id", "ok"}`` or ``{"id", "error"}``, encoded.
        status: As an HTTP status.
        retry_after_s: When to ask again, if that may help.
    """

    text: str
    status: int = 200
    retry_after_s: float | None = None


@dataclass
class Counts:
    """What a host has done; see ``/metrics``."""

    requests: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    opened: int = 0
    episodes: int = 0
    most_sessions: int = 0


class Host:
    """Plays the episodes of many clients.

    Args:
        offers: The environments, by the names that clients know them by.
        limits: What it takes on.
        allow: What clients may ask for beyond playing, of :data:`~textenvs.serve.protocol.ALLOWANCES`.
        threads: How many environments that block may be at work at a time.
        step_timeout_s: An environment that takes longer over a request has failed it.
        clock: The time in seconds.

    Raises:
        ValueError: No environment, or a value outside the above.
    """

    def __init__(
        self,
        offers: Mapping[str, Offer],
        *,
        limits: Limits | None = None,
        allow: Iterable[str] = (),
        threads: int = 16,
        step_timeout_s: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not offers:
            raise ValueError("a server needs at least one environment to offer")
        self.allow = frozenset(allow)
        if unknown := self.allow - set(ALLOWANCES):
            raise ValueError(f"allow has {sorted(unknown)}; what can be allowed is {', '.join(ALLOWANCES)}")
        if threads < 1 or not step_timeout_s > 0:
            raise ValueError(f"threads and step_timeout_s must be above 0, not {threads} and {step_timeout_s}")
        self.offers = dict(offers)
        self.book = Book(limits or Limits())
        self.counts = Counts()
        self.step_timeout_s = step_timeout_s
        self.clock = clock
        self._variants: dict[tuple[str, str], _Variant] = {}
        self._playing: dict[str, _Playing] = {}
        self._work: dict[str, asyncio.Task[str]] = {}  # by session
        self._closing: set[asyncio.Task[None]] = set()
        self._joined: Counter[tuple[Hashable | None, str]] = Counter()
        self._ending = False
        self._threads = Threads(threads)

    async def prepare(self) -> None:
        """Make every environment on offer, so that one that cannot be made is noticed at once, by what that raises."""
        for name in self.offers:
            async with self._variant(name, {}, math.inf):
                pass

    # ------------------------------------------------------------------ requests

    async def answer(self, message: Any, owner: str, connection: Hashable | None = None) -> Answer:
        """The answer to a decoded message.

        Args:
            message: Whatever came. It is emptied where it only waits for the answer of another.
            owner: Whose token it came with.
            connection: What it came by, if that can be lost.
        """
        name = message.get("id") if isinstance(message, dict) else None
        try:
            request = parse_request(message)
            self.counts.requests[request.op] += 1
            begun = await self._carry_out(request, message, owner, connection)
            if isinstance(begun, Join):
                # Any number may wait for one piece of work, so none keeps what it was asked with.
                del request
                message.clear()
                done = await self._join(begun.session, connection)
            elif isinstance(begun, Start):
                del request
                # Shielded: who asks again, or asks from another connection, gets the answer of the same work.
                done = await asyncio.shield(self._work[begun.session])
            else:
                done = begun
            return Answer(f'{{"id":{json.dumps(name)},"ok":{done}}}')
        except Refusal as refusal:
            return self.refuse(refusal, {"id": name})
        except Exception as error:  # of an environment's description or tasks, or a mistake of ours
            return self.refuse(self._logged(error, "the request"), {"id": name})

    def refuse(self, refusal: Refusal, message: Any = None) -> Answer:
        """The answer to a message that is refused."""
        self.counts.errors[refusal.kind] += 1
        name = message.get("id") if isinstance(message, dict) else None
        told = name if isinstance(name, str) and len(name) <= 128 else None
        return Answer(encode({"id": told, "error": refusal.to_json()}), refusal.status, refusal.retry_after_s)

    def lose(self, connection: Hashable) -> None:
        """A connection is gone."""
        self.book.lose(self.clock(), connection)

    def expire(self) -> None:
        """End what has had its time; to be called now and then."""
        self._release(self.book.expire(self.clock()))

    async def _carry_out(
        self, request: Request, message: Json, owner: str, connection: Hashable | None
    ) -> str | Start | Join:
        """The answer, or the work that it comes from."""
        if isinstance(request, Describe):
            return encode(await self._describe(request))
        if isinstance(request, TaskKey):
            return encode(await self._task(request))
        if isinstance(request, Close):
            self._release(self.book.close(owner, request.session))
            return "{}"
        now, asked = self.clock(), fingerprint(message)
        if isinstance(request, Open):
            self._check_open(request)
            verdict = self._enter(request, now, owner, asked, connection)
        else:
            self._check_allowed(request)
            verdict = self.book.begin(
                now, owner, request.id, asked, session=request.session, turn=request.turn, connection=connection,
                steps=isinstance(request, Step),
            )  # fmt: skip
        if isinstance(verdict, Repeat):
            self.counts.repeated += 1
            return verdict.answer  # type: ignore[no-any-return]
        if isinstance(verdict, Join):
            self.counts.repeated += 1
        else:
            work = self._work[verdict.session] = asyncio.create_task(self._work_on(request, verdict.session))
            work.add_done_callback(_seen)
        return verdict

    async def _join(self, session: str, connection: Hashable | None) -> str:
        """The answer of work in progress; each connection waits for it once more, at the most."""
        waits = (connection, session)
        most = _JOINS_HTTP if connection is None else 1
        if self._joined[waits] >= most:
            raise Refusal("busy", "the request was asked again already; wait for its answer", retry_after_s=0.25)
        self._joined[waits] += 1
        try:
            return await asyncio.shield(self._work[session])
        finally:
            self._joined[waits] -= 1
            if not self._joined[waits]:
                del self._joined[waits]

    def _enter(self, request: Open, now: float, owner: str, asked: str, connection: Hashable | None) -> Verdict:
        """Open a session in the books; the one that it replaces ends only if there is a new one."""
        book, replaced = self.book, request.replaces
        session = f"s-{secrets.token_urlsafe(16)}"
        try:
            verdict = book.open(now, owner, request.id, asked, session=session, connection=connection)
        except Refusal as refusal:
            # The place of the one that is replaced is all that is missing.
            idle = replaced is not None and replaced in book and replaced not in self._work
            if refusal.kind != "full" or not idle or book.running >= book.limits.max_running:
                raise
            assert replaced is not None
            if not (ended := book.close(owner, replaced)):
                raise
            self._release(ended)
            return book.open(now, owner, request.id, asked, session=session, connection=connection)
        if replaced is not None and isinstance(verdict, Start):
            self._release(book.close(owner, replaced))
        return verdict

    async def _work_on(self, request: Open | Step | Script | Score, session: str) -> str:
        turns = 0
        try:
            if isinstance(request, Open):
                told = await self._open(request, session)
                turns = told["turn"]
            elif isinstance(request, Step):
                told = await self._step(request, self._playing[session])
                turns = 1
            elif isinstance(request, Score):
                told = {"scores": dict(await self._ask(session, "conversation_score"))}
            else:
                rng = generator_from(request.rng)
                told = {"action": await self._ask(session, request.op, rng), "rng": generator_state(rng)}
            answer = _encoded(told)
        except BaseException as error:
            self._work.pop(session, None)
            if isinstance(error, _StillAtWork) or (turns and isinstance(request, Step)):
                self.book.give_up(session, "broken")  # what its environment is at cannot be told any more
            self._release(self.book.fail(self.clock(), session))
            raise
        over = self._playing[session].env.state.done
        self.counts.episodes += over and turns > 0
        self._work.pop(session, None)
        self._release(self.book.finish(self.clock(), session, answer, turns=turns, over=over))
        return answer

    async def _open(self, request: Open, session: str) -> Json:
        deadline = self._deadline()
        seed = secrets.randbits(53) if request.seed is None else request.seed
        async with self._variant(request.env, request.kwargs, deadline) as variant:
            env = variant.env.fork(0)
            env.observation_space, env.action_space = variant.env.observation_space, variant.env.action_space
            variant.users += 1
            playing = self._playing[session] = _Playing(variant, env)
        self.counts.opened += 1
        self.counts.most_sessions = max(self.counts.most_sessions, len(self.book))
        options = None if request.options is None else dict(request.options)
        messages, info = await self._call("reset", playing, deadline, seed=seed, options=options)
        turn = 0
        for event, following in zip_longest(request.replay, request.replay[1:]):
            await asyncio.sleep(0)  # others have a right to the loop, also where the environment never waits
            if asyncio.get_running_loop().time() >= deadline:
                raise Refusal("timeout", f"replaying took longer than {self.step_timeout_s:g} s")
            if event.reseed is not None:
                if following is None or following.reseed is None:  # of several, the last alone decides
                    self._fork(playing, event.reseed)
                continue
            if playing.env.state.done:
                raise Refusal(
                    "replay_failed", f"the episode to be continued is over after {turn} replies here", turn=turn
                )
            assert event.action is not None
            messages, *_ = await self._call("step", playing, deadline, event.action)
            turn += 1
        playing.told = len(messages)
        return {"session": session, "turn": turn, "seed": seed, "messages": list(messages), "info": dict(info)}

    async def _step(self, request: Step, playing: _Playing) -> Json:
        deadline = self._deadline()
        conversation, reward, terminated, truncated, info = await self._call("step", playing, deadline, request.action)
        news: Messages = conversation[playing.told :]
        playing.told = len(conversation)
        return {
            "session": request.session,
            "turn": request.turn + 1,
            "messages": list(news),
            "reward": float(reward),
            "terminated": terminated,
            "truncated": truncated,
            "info": info,
        }

    async def _describe(self, request: Describe) -> Json:
        self._check_kwargs(request.kwargs)
        names = self.offers if request.env is None else [request.env]
        deadline = self._deadline()
        environments = {}
        for name in names:
            async with self._variant(name, request.kwargs, deadline) as variant:
                environments[name] = _facts(variant.env, self.offers[name])
        return {"protocol": PROTOCOL, "allows": sorted(self.allow), "environments": environments}

    async def _task(self, request: TaskKey) -> Json:
        self._check_kwargs(request.kwargs)
        deadline = self._deadline()
        async with self._variant(request.env, request.kwargs, deadline) as variant:
            tasks = variant.env.tasks
            size = tasks.size
            if size is not None and request.index >= size:
                raise Refusal("bad_request", f"index {request.index} is outside the {size} tasks")
            begun = await self._thread(lambda: tasks[request.index], deadline)
            variant.users += 1  # until the thread is done with it, however long that takes
            begun.add_done_callback(lambda _: variant.leave())
            task = await self._result(begun, deadline, f"task {request.index} of {request.env}")
        return {"key": task.key, "data_source": task.data_source}

    # ------------------------------------------------------------------ checks

    def _check_open(self, request: Open) -> None:
        self._check_kwargs(request.kwargs)
        if request.env not in self.offers:
            raise self._unknown(request.env)
        if any((event.action is None) == (event.reseed is None) for event in request.replay):
            raise Refusal("bad_request", "an event of 'replay' has either an action or a reseed")
        if request.replay and self.offers[request.env].nondeterministic:
            raise Refusal("replay_failed", f"{request.env} is not deterministic, so no episode of it can be continued")
        if request.replay and request.seed is None:
            raise Refusal("bad_request", "'replay' needs the seed of the episode that it continues")

    def _check_kwargs(self, kwargs: Json) -> None:
        if kwargs and "kwargs" not in self.allow:
            raise Refusal("forbidden", "this server takes no arguments of environments (textenvs serve --allow kwargs)")

    def _check_allowed(self, request: Step | Script | Score) -> None:
        if isinstance(request, Script) and "expert" not in self.allow:
            raise Refusal("forbidden", "this server shows no scripted replies (textenvs serve --allow expert)")
        if isinstance(request, Score) and "scores" not in self.allow:
            raise Refusal("forbidden", "this server gives no scores but rewards (textenvs serve --allow scores)")

    def _unknown(self, name: str) -> Refusal:
        return Refusal(
            "unknown_environment", f"no environment of that name is served; there are: {', '.join(self.offers)}"
        )

    # ------------------------------------------------------------------ environments

    @asynccontextmanager
    async def _variant(self, name: str, kwargs: Json, deadline: float) -> AsyncIterator[_Variant]:
        """An environment with these arguments, which is not closed within the block.

        It is made once, whoever asks for it meanwhile; who cannot wait finds it made later.
        """
        if name not in self.offers:
            raise self._unknown(name)
        key = (name, fingerprint({"kwargs": kwargs}) if kwargs else "")
        variant = self._variants.get(key)
        if variant is None:
            if kwargs:
                self._make_room()
            # Its place is taken before anything is waited for, so that there are never more.
            variant = self._variants[key] = _Variant(asyncio.create_task(self._make(key, kwargs)))
            variant.made.add_done_callback(_seen)
        variant.users += 1
        try:
            if not variant.made.done():
                await self._result(variant.made, deadline, f"making {name}", lost=False)
            variant.made.result()
            yield variant
        finally:
            variant.leave()

    async def _make(self, key: tuple[str, str], kwargs: Json) -> TextEnv[Any]:
        name = key[0]
        try:
            begun = await self._thread(lambda: self.offers[name].make(**kwargs), math.inf)
            late = asyncio.get_running_loop().call_later(self.step_timeout_s, self._threads.late, begun)
            try:
                return await asyncio.shield(begun)  # type: ignore[no-any-return]
            finally:
                late.cancel()
        except BaseException as error:
            self._variants.pop(key, None)  # it is gone when the host is closed
            if not kwargs or isinstance(error, Refusal) or not isinstance(error, Exception):
                raise
            raise Refusal(
                "refused_reset", f"{name} cannot be made with these arguments: {error}", exception="ValueError"
            ) from error

    def _make_room(self) -> None:
        extra = [key for key in self._variants if key[1]]
        if len(extra) < _VARIANTS:
            return
        for key in extra:
            variant = self._variants[key]
            if variant.made.done() and not variant.users:
                self._close_soon(self._variants.pop(key).env)
                return
        raise Refusal("full", f"{_VARIANTS} environments with other arguments are being played", retry_after_s=5.0)

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self.step_timeout_s

    async def _thread(self, call: Callable[[], Any], deadline: float) -> asyncio.Future[Any]:
        """A call that has begun in a thread.

        Raises:
            Refusal: No thread was free in time; nothing was done.
        """
        try:
            if self._threads.all_stuck:
                raise TimeoutError
            async with asyncio.timeout_at(None if deadline == math.inf else deadline):
                return await self._threads.begin(call)
        except TimeoutError:
            raise Refusal(
                "overloaded",
                f"all {self._threads.most} threads are taken, {self._threads.stuck} of them by calls that do not end",
                retry_after_s=1.0,
            ) from None

    async def _result(self, begun: asyncio.Future[Any], deadline: float, what: str, *, lost: bool = True) -> Any:
        """What has begun gives, if it does in time; it goes on if not.

        Args:
            begun: A call in a thread, or a task.
            deadline: Until when.
            what: It is, for the error.
            lost: Whether nobody will ask for it again: a thread that is late is stuck.
        """
        left = None if deadline == math.inf else max(0.0, deadline - asyncio.get_running_loop().time())
        done, _ = await asyncio.wait({begun}, timeout=left)
        if done:
            return begun.result()
        late = f"{what} took longer than {self.step_timeout_s:g} s"
        if not lost:
            raise Refusal("timeout", f"{late}; it goes on, so ask again later")
        self._threads.late(begun)
        raise _StillAtWork("timeout", late)

    async def _call(self, method: str, playing: _Playing, deadline: float, *args: Any, **kwargs: Any) -> Any:
        """``reset`` or ``step`` of a session's environment."""
        env = playing.env
        call = getattr(env, method if env.blocking else f"a{method}")
        try:
            return await self._within(deadline, playing, method, lambda: call(*args, **kwargs))
        except gymnasium.error.InvalidAction as error:
            raise Refusal("invalid_action", str(error)) from error
        except gymnasium.error.ResetNeeded as error:
            raise Refusal("reset_needed", str(error)) from error
        except (ValueError, TypeError, gymnasium.error.Error) as error:
            if method == "reset":  # it speaks of the seed and the options that the client gave
                raise Refusal("refused_reset", str(error), exception=_known_class(error)) from error
            raise self._logged(error, f"{type(env).__name__}.{method}") from error
        except Refusal:
            raise
        except Exception as error:
            raise self._logged(error, f"{type(env).__name__}.{method}") from error

    def _fork(self, playing: _Playing, seed: int) -> None:
        """Go on in a fork with a seed of its own."""
        before = playing.env
        playing.env = before.fork(seed)
        self._close_fork(before, playing.thread)

    async def _ask(self, session: str, hook: str, *args: Any) -> Any:
        """What a hook gives that changes nothing."""
        playing = self._playing[session]
        env = playing.env
        try:
            return await self._within(self._deadline(), playing, hook, lambda: getattr(env, hook)(*args))
        except NotImplementedError as error:
            raise Refusal("forbidden", str(error), exception="NotImplementedError") from error
        except Refusal:
            raise
        except Exception as error:
            raise self._logged(error, f"{type(env).__name__}.{hook}") from error

    async def _within(self, deadline: float, playing: _Playing, what: str, call: Callable[[], Any]) -> Any:
        """The call's result, awaited, in a thread where the environment blocks.

        A thread cannot be stopped: a call that is late keeps its own until it ends, and the session is given up.
        """
        env = playing.env
        name = f"{type(env).__name__}.{what}"
        clock: asyncio.Timeout | None = None
        try:
            if env.blocking:
                playing.thread = await self._thread(lambda: wait_for(call()), deadline)
                return await self._result(playing.thread, deadline, name)
            async with asyncio.timeout_at(deadline) as clock:
                return await settle(call())
        except EnvironmentFailure as error:
            raise Refusal("environment_failure", error.reason, stop=error.stop) from error
        except _StillAtWork as error:
            raise _StillAtWork("timeout", f"{error}; the session is lost") from error
        except TimeoutError as error:
            if clock is None or not clock.expired():  # the environment's own
                raise self._logged(error, name) from error
            raise self._late(name) from error

    def _late(self, what: str) -> Refusal:
        return Refusal("timeout", f"{what} took longer than {self.step_timeout_s:g} s; the episode is as it was before")

    def _logged(self, error: Exception, where: str) -> Refusal:
        """What an exception becomes: its text may have anything in it, so only its class crosses."""
        number = secrets.token_hex(4)
        _LOG.error("error %s in %s", number, where, exc_info=error)
        return Refusal(
            "environment_error",
            f"{where} raised {type(error).__name__}; the server's log has it as error {number}",
            exception=_known_class(error),
        )

    def _release(self, sessions: Iterable[str]) -> None:
        for session in sessions:
            playing = self._playing.pop(session, None)
            if playing is not None:
                playing.variant.leave()
                self._close_fork(playing.env, playing.thread)

    def _close_fork(self, env: TextEnv[Any], thread: asyncio.Future[Any] | None) -> None:
        """Close what a session had, which matters where a fork holds something of its own (a running episode)."""
        if (type(env).close, type(env).aclose) != (TextEnv.close, TextEnv.aclose):
            self._close_soon(env, thread)

    def _close_soon(self, env: TextEnv[Any], thread: asyncio.Future[Any] | None = None) -> None:
        """Close it, once ``thread`` has done with it."""
        closing = asyncio.create_task(self._close_env(env, after=thread))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _close_env(
        self, env: TextEnv[Any], *, after: asyncio.Future[Any] | None = None, beyond: bool = False
    ) -> None:
        name = f"{type(env).__name__}.close"
        if after is not None and not after.done():
            await asyncio.wait({after})
        try:
            if env.blocking:
                begun = await self._threads.begin(env.close, beyond=beyond or self._ending)
                await self._result(begun, asyncio.get_running_loop().time() + _CLOSE_S, name)
            else:
                async with asyncio.timeout(_CLOSE_S):
                    await env.aclose()
        except (_StillAtWork, TimeoutError):
            _LOG.error("%s took longer than %g s", name, _CLOSE_S)
        except Exception:
            _LOG.exception("%s raised", name)

    # ------------------------------------------------------------------ the end

    async def close(self) -> None:
        """Give up all sessions and work, and close the environments; what hangs is left to the end of the process."""
        self._ending = True
        self._release(self.book.close_all())
        for task in (work := set(self._work.values())):
            task.cancel()
        await _ended(work)
        variants = list(self._variants.values())
        self._variants.clear()
        for variant in variants:
            variant.made.cancel()  # those that are not made yet
        closing = {
            asyncio.create_task(self._close_env(variant.env, beyond=True))
            for variant in variants
            if variant.made.done() and not variant.made.cancelled() and variant.made.exception() is None
        }
        await _ended(closing | self._closing)
        self._threads.close()

    def metrics(self) -> Json:
        """What there is and was, as JSON."""
        book, counts = self.book, self.counts
        return {
            "sessions": len(book),
            "playing": book.playing,
            "most_sessions": counts.most_sessions,
            "running": book.running,
            "opened": counts.opened,
            "episodes": counts.episodes,
            "ended": dict(book.ended),
            "requests": dict(counts.requests),
            "repeated": counts.repeated,
            "errors": dict(counts.errors),
            "draining": book.draining,
        }


class _StillAtWork(Refusal):
    """A thread could not be stopped."""


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    """Wait for tasks, but not for ever."""
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=_CLOSE_S + 1.0)
        for task in late:
            task.cancel()


def _seen(work: asyncio.Task[Any]) -> None:
    """Whoever waits for it hears of its error; when nobody does any more, that is nothing to warn of."""
    if not work.cancelled():
        work.exception()


def _encoded(told: Json) -> str:
    try:
        return encode(told)
    except (TypeError, ValueError) as error:
        _LOG.exception("an answer is not JSON")
        raise Refusal(
            "environment_error", f"the environment gave what is not JSON ({error}); see the server's log"
        ) from error


def _facts(env: TextEnv[Any], offer: Offer) -> Json:
    """What a client's environment has to know of one here."""
    return {
        "tasks": {"name": env.tasks.name, "size": env.tasks.size},
        "max_assistant_turns": env.max_assistant_turns,
        "max_user_turns": env.max_user_turns,
        "nondeterministic": offer.nondeterministic,
        "tool_schemas": list(getattr(env, "tool_schemas", ())),
        "tools_apart": list(getattr(env, "tools_apart", ())),
    }


def _known_class(error: Exception) -> str | None:
    """The nearest class of an error that a client knows, too."""
    for kind in type(error).__mro__:
        if kind.__name__ in ERRORS and ERRORS[kind.__name__] is kind:
            return kind.__name__
    return None
