"""The sessions of a server, and how a request is carried out: everything but the transport.

A session is one episode, played in a fork of an environment. It carries out one request at a time, a step only at the
turn that it names, and keeps its last answer: a request that is sent again (the same bytes) waits for the same work or
gets the same answer. Work goes on when its client is gone. A session that is not used ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

import gymnasium
from pydantic import BaseModel, ConfigDict, Field

from ..env import EnvironmentFailure, TextEnv
from ..event_loop import settle, wait_for
from ..options import PositiveInt
from ..threads import Threads, reset_in_thread, step_in_thread
from . import protocol
from .protocol import Json, Refusal, encode, weigh

T = TypeVar("T")

_LOG = logging.getLogger("textenvs.serve")
#: Bytes that a session takes beside its conversation: an environment's copy and its state.
SESSION_BYTES = 8192
#: A request of at most so many bytes always finds room, so that sessions can be closed where there is no memory.
SMALL_BYTES = 4096
#: How many environments with arguments of clients there may be.
MOST_VARIANTS = 16
#: A session whose episode is over ends after so many seconds, and one that was not used for so long may make room.
LINGER_S = 60.0
#: How many seconds an environment has to close.
CLOSE_S = 10.0

Seconds = Annotated[float, Field(gt=0)]


class Limits(BaseModel):
    """What a server takes on.

    Args:
        max_sessions: Sessions at a time.
        max_reply_bytes: Of one reply of an assistant, as JSON.
        max_bytes: Memory of all sessions, estimated from their messages, and of the requests that are carried out.
        idle_s: A session that is not used for so long ends.
        step_timeout_s: An environment that takes longer over a request has failed it.
        threads: Plain hooks, and environments that block, that run at a time.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    max_sessions: PositiveInt = 1024
    max_reply_bytes: PositiveInt = 2**20
    max_bytes: PositiveInt = 2**30
    idle_s: Seconds = 600.0
    step_timeout_s: Seconds = 120.0
    threads: PositiveInt = 16


@dataclass(frozen=True)
class Offer:
    """An environment that is served.

    Args:
        make: Makes it; arguments of clients are given as keywords.
        nondeterministic: Whether equal seeds and replies may give different episodes: then none can be continued in
            another session.
    """

    make: Callable[..., TextEnv[Any]]
    nondeterministic: bool = False


@dataclass(eq=False)
class _Session:
    key: tuple[str, str]  # the owner, and the client's name of it
    used: float
    env: TextEnv[Any] | None = None
    thread: asyncio.Future[Any] | None = None  # its last call in a thread
    turn: int = 0
    told: int = 0  # messages that the client has been told
    size: int = SESSION_BYTES
    asked: bytes = b""  # the last request that has changed the episode, and its answer
    answer: bytes = b""
    doing: bytes = b""  # the request that is carried out
    work: asyncio.Task[bytes] | None = None

    @property
    def hangs(self) -> bool:
        """Whether a call goes on in a thread: what its environment is at is not known."""
        return self.thread is not None and not self.thread.done()

    @property
    def over(self) -> bool:
        """Whether its episode is."""
        return self.env is not None and self.env.state.done


class Host:
    """Plays the episodes of many clients; all on one event loop.

    Args:
        offers: The environments, by the names that clients know them by.
        limits: What it takes on.
        allow: What clients may ask for beyond playing, of :data:`~textenvs.serve.protocol.ALLOWANCES`.

    Raises:
        ValueError: No environment, or something unknown is allowed.
    """

    def __init__(self, offers: Mapping[str, Offer], *, limits: Limits | None = None, allow: Iterable[str] = ()) -> None:
        self.allow = frozenset(allow)
        if not offers:
            raise ValueError("a server needs at least one environment to offer")
        if unknown := self.allow - set(protocol.ALLOWANCES):
            raise ValueError(f"allow has {sorted(unknown)}; what can be allowed is {', '.join(protocol.ALLOWANCES)}")
        self.offers = dict(offers)
        self.limits = limits or Limits()
        self.sessions: dict[tuple[str, str], _Session] = {}
        self.held = 0  # bytes
        self.counts: dict[str, int] = {"opened": 0, "repeated": 0, "most_sessions": 0, "most_held_bytes": 0}
        self.errors: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.draining = False
        self.threads = Threads(self.limits.threads)
        self._made: dict[tuple[str, bytes], asyncio.Task[TextEnv[Any]]] = {}  # by name and arguments
        self._tasks: set[asyncio.Task[Any]] = set()  # a loop keeps tasks only weakly

    async def prepare(self) -> None:
        """Make every environment on offer, so that one that cannot be made raises its error at once."""
        for name in self.offers:
            await self._parent(name, {})

    # ------------------------------------------------------------------ requests

    async def answer(self, op: str, body: bytes, owner: str) -> bytes:
        """The answer to a request.

        Args:
            op: One of :data:`~textenvs.serve.protocol.OPS`.
            body: The request's fields as JSON.
            owner: The name of the token that it came with.

        Raises:
            Refusal: It was not carried out; nothing has changed, unless the message says that the session is lost.
        """
        request = protocol.parse_request(op, body)
        if isinstance(request, protocol.Close):
            for name in request.sessions:
                self._end(self.sessions.get((owner, name)), "closed")
            return b"{}"
        self._check_allowed(op, request)
        if isinstance(request, (protocol.Describe, protocol.TaskKey)):
            async with self._refusing(op):
                looked = self._describe(request) if isinstance(request, protocol.Describe) else self._task(request)
                return encode(await looked)
        asked = hashlib.blake2b(op.encode() + b" " + body, digest_size=16).digest()
        session = self.sessions.get((owner, request.session))
        if session is not None and asked in (session.asked, session.doing):
            self.counts["repeated"] += 1
            session.used = time.monotonic()
            if asked != session.doing:
                return session.answer
        elif isinstance(request, protocol.Open):
            session = self._admit(request, owner, session)
        else:
            self._check_turn(request, session)
        assert session is not None
        if session.work is None:
            session.doing, session.work = asked, self._start(self._carry_out(session, op, request))
        work = session.work
        await asyncio.wait({work})  # which goes on if this is cancelled
        if work.cancelled():
            raise _unknown_session()
        return work.result()

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Take memory for a request while it is carried out and its answer is sent.

        Raises:
            Refusal: There is none.
        """
        if size > SMALL_BYTES:
            self._check_room(size)
        self._hold(size)
        try:
            yield
        finally:
            self._hold(-size)

    def expire(self) -> None:
        """End the sessions that were not used for long; to be called now and then."""
        now = time.monotonic()
        for session in [each for each in self.sessions.values() if each.work is None]:
            if now >= session.used + (min(LINGER_S, self.limits.idle_s) if session.over else self.limits.idle_s):
                self._end(session, "over" if session.over else "idle")

    @property
    def playing(self) -> int:
        """How many sessions have an episode that is not over."""
        return sum(not session.over for session in self.sessions.values())

    async def close(self) -> None:
        """End all sessions, and close the environments; a call that hangs is left to the end of the process."""
        for session in list(self.sessions.values()):
            self._end(session, "shutdown")
        for made in self._made.values():
            if not made.cancel() and not made.cancelled() and made.exception() is None:
                self._start(self._close(made.result()))
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSE_S)
            for task in late:
                task.cancel()

    def metrics(self) -> Json:
        """What there is and was, as JSON."""
        now = {"sessions": len(self.sessions), "playing": self.playing, "held_bytes": self.held}
        return {**now, **self.counts, "errors": dict(self.errors), "ended": dict(self.ended)}

    # ------------------------------------------------------------------ checks

    def _check_allowed(self, op: str, request: Any) -> None:
        """Whether the operator allows a request to anybody."""
        options = getattr(request, "options", None) or {}
        for allowance, asked, told in (
            ("kwargs", getattr(request, "kwargs", None), "this server takes no arguments of environments"),
            ("tasks", options.keys() - {"task_index"}, "clients choose 'task_index' and bring no task of their own"),
            ("expert", isinstance(request, protocol.Script), "this server shows no scripted replies"),
            ("scores", op == "score", "this server gives no scores but rewards"),
        ):
            if asked and allowance not in self.allow:
                raise Refusal("forbidden", f"{told} (textenvs serve --allow {allowance})")

    def _check_turn(self, request: protocol.OfSession, session: _Session | None) -> None:
        """Whether a session can carry out a request now."""
        if session is None:
            raise _unknown_session()
        if session.work is not None:
            raise Refusal("busy", "the session carries out another request", retry_after_s=0.25)
        if request.turn != session.turn:
            raise Refusal("wrong_turn", f"the session is at turn {session.turn}, not {request.turn}", turn=session.turn)
        if isinstance(request, protocol.Step):
            self._check_room(0)
            self._check_reply(request.action)

    def _check_room(self, size: int) -> None:
        if self.held + size > (most := self.limits.max_bytes):
            told = (
                f"the server has no memory for {size} more bytes beside {self.held} of at most {most}; close sessions"
            )
            raise Refusal("full", told, retry_after_s=1.0)

    def _check_reply(self, action: protocol.Reply) -> None:
        try:
            size, most = len(encode(action)), self.limits.max_reply_bytes
        except ValueError as error:
            raise Refusal("bad_request", f"a reply is JSON: {error}") from None
        if size > most:
            raise Refusal("too_large", f"a reply has at most {most} bytes as JSON, and this one has {size}")

    # ------------------------------------------------------------------ sessions

    def _admit(self, request: protocol.Open, owner: str, known: _Session | None) -> _Session:
        """A new session; the one that it replaces ends, and where there is no room, one that was not used for long."""
        if known is not None:
            raise Refusal("bad_request", "this session was opened by another request; give each one a name of its own")
        if self.draining:
            raise Refusal("draining", "the server is shutting down and opens no session", retry_after_s=5.0)
        if request.replay and self._offer(request.env).nondeterministic:
            raise Refusal("replay_failed", f"{request.env} is not deterministic, so no episode of it can be continued")
        if request.replay and request.seed is None:
            raise Refusal("bad_request", "'replay' needs the seed of the episode that it continues")
        for event in request.replay:
            if isinstance(event, protocol.Said):
                self._check_reply(event.action)
        replaced = self.sessions.get((owner, request.replaces or ""))
        if replaced is None:
            self._check_room(SESSION_BYTES)
        now, most = time.monotonic(), self.limits.max_sessions
        if replaced is None and len(self.sessions) >= most:
            # The running episode of another owner is never ended.
            idle = [
                each for each in self.sessions.values() if each.work is None and (each.over or each.key[0] == owner)
            ]
            oldest = min(idle, key=lambda each: each.used, default=None)
            if oldest is None or now < oldest.used + LINGER_S:
                raise Refusal("full", f"all {most} sessions are taken", retry_after_s=1.0)
            self._end(oldest, "made_room")
        self._end(replaced, "replaced")
        key = (owner, request.session)
        session = self.sessions[key] = _Session(key, now)
        self._hold(session.size)
        self.counts["opened"] += 1
        self.counts["most_sessions"] = max(self.counts["most_sessions"], len(self.sessions))
        return session

    async def _carry_out(self, session: _Session, op: str, request: protocol.OfSession | protocol.Open) -> bytes:
        played = False
        try:
            async with self._refusing(op, session):
                if isinstance(request, protocol.Open):
                    told = await self._open(session, request)
                elif isinstance(request, protocol.Step):
                    told, played = await self._step(session, request), True
                else:
                    told = await self._ask(session, op, request)
                answer = encode(told)
            if isinstance(request, (protocol.Open, protocol.Step)) and self.sessions.get(session.key) is session:
                growth = weigh(answer) + len(answer) - len(session.answer)
                session.asked, session.answer, session.turn = session.doing, answer, told["turn"]
                session.size += growth
                self._hold(growth)
            return answer
        except BaseException:
            if isinstance(request, protocol.Open) or session.hangs or played:
                self._end(session, "failed")
            raise
        finally:
            session.doing, session.work, session.used = b"", None, time.monotonic()

    def _end(self, session: _Session | None, why: str) -> None:
        """End a session, if there is one: its work is cancelled, and its environment closed after that."""
        if session is None or self.sessions.get(session.key) is not session:
            return
        del self.sessions[session.key]
        self._hold(-session.size)
        self.ended[why] += 1
        if session.work is not None and session.work is not asyncio.current_task():
            session.work.cancel()
        self._start(self._release(session, session.work))

    async def _release(self, session: _Session, work: asyncio.Task[bytes] | None) -> None:
        if busy := {each for each in (work, session.thread) if each is not None and not each.done()}:
            await asyncio.wait(busy)
        if session.env is not None:
            await self._close(session.env)

    async def _close(self, env: TextEnv[Any]) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                if env.blocking:
                    await self.threads.result(await self.threads.begin(env.close, beyond=True))
                else:
                    await env.aclose()
        except Exception:
            _LOG.exception("%s.close", type(env).__name__)

    # ------------------------------------------------------------------ what is asked

    async def _open(self, session: _Session, request: protocol.Open) -> Json:
        parent = await self._parent(request.env, request.kwargs)
        session.env = env = parent.fork(0)
        env.observation_space, env.action_space = parent.observation_space, parent.action_space
        seed = secrets.randbits(53) if request.seed is None else request.seed
        in_thread = partial(self._in_thread, session)
        try:
            messages, info = await reset_in_thread(env, in_thread, seed=seed, options=request.options)
        except (ValueError, TypeError, gymnasium.error.Error) as error:  # about the client's seed and options
            raise Refusal("refused_reset", str(error), exception=_known_class(error)) from error
        turn = 0
        for event in request.replay:
            await asyncio.sleep(0)  # other sessions have their turn
            if isinstance(event, protocol.Reseeded):
                self._start(self._close(env))
                session.env = env = env.fork(event.reseed)
                continue
            if env.state.done:
                raise Refusal("replay_failed", f"the episode is over after {turn} replies here", turn=turn)
            messages, *_ = await step_in_thread(env, in_thread, event.action)
            turn += 1
        session.told = len(messages)
        return {"session": request.session, "turn": turn, "seed": seed, "messages": messages, "info": info}

    async def _step(self, session: _Session, request: protocol.Step) -> Json:
        assert session.env is not None
        played = step_in_thread(session.env, partial(self._in_thread, session), request.action)
        messages, reward, terminated, truncated, info = await played
        news, session.told = messages[session.told :], len(messages)
        ends = {"terminated": terminated, "truncated": truncated}
        return {"turn": request.turn + 1, "messages": news, "reward": float(reward), **ends, "info": info}

    async def _ask(self, session: _Session, op: str, request: protocol.OfSession) -> Json:
        """What a hook gives that changes nothing."""
        env = session.env
        assert env is not None
        arguments = (protocol.generator_from(request.rng),) if isinstance(request, protocol.Script) else ()
        hook = partial(getattr(env, "conversation_score" if op == "score" else op), *arguments)
        try:
            found = await settle(await self._in_thread(session, (lambda: wait_for(hook())) if env.blocking else hook))
        except NotImplementedError as error:
            raise Refusal("forbidden", str(error), exception="NotImplementedError") from error
        return {"action": found, "rng": protocol.generator_state(*arguments)} if arguments else {"scores": dict(found)}

    async def _describe(self, request: protocol.Describe) -> Json:
        environments = {}
        for name in self.offers if request.env is None else [request.env]:
            env = await self._parent(name, request.kwargs)
            environments[name] = {
                "tasks": {"name": env.tasks.name, "size": env.tasks.size},
                "max_assistant_turns": env.max_assistant_turns,
                "max_user_turns": env.max_user_turns,
                "nondeterministic": self.offers[name].nondeterministic,
                "tool_schemas": list(getattr(env, "tool_schemas", ())),
                "tools_not_in_prompt": list(getattr(env, "tools_not_in_prompt", ())),
            }
        return {"protocol": protocol.PROTOCOL, "allows": sorted(self.allow), "environments": environments}

    async def _task(self, request: protocol.TaskKey) -> Json:
        tasks = (await self._parent(request.env, request.kwargs)).tasks
        if tasks.size is not None and request.index >= tasks.size:
            raise Refusal("bad_request", f"index {request.index} is outside the {tasks.size} tasks")
        task = await self._in_thread(None, lambda: tasks[request.index])
        return {"key": task.key, "data_source": task.data_source}

    # ------------------------------------------------------------------ environments

    def _offer(self, name: str) -> Offer:
        if name not in self.offers:
            raise Refusal("unknown_environment", f"there is no such environment, but {', '.join(self.offers)}")
        return self.offers[name]

    async def _parent(self, name: str, kwargs: Json) -> TextEnv[Any]:
        """An environment with these arguments, made once; sessions play forks of it, so its tasks are loaded once."""
        offer, key = self._offer(name), (name, encode(kwargs) if kwargs else b"")
        if key not in self._made:
            if kwargs and sum(bool(other) for _, other in self._made) >= MOST_VARIANTS:
                most = f"the server has made {MOST_VARIANTS} environments with arguments of clients"
                raise Refusal("full", f"{most}, and makes no other; serve more by name")
            self._made[key] = self._start(self._make(key, offer, kwargs))
        return await asyncio.shield(self._made[key])

    async def _make(self, key: tuple[str, bytes], offer: Offer, kwargs: Json) -> TextEnv[Any]:
        try:
            return await self._in_thread(None, lambda: offer.make(**kwargs))  # type: ignore[no-any-return]
        except BaseException as error:
            self._made.pop(key, None)  # the next request tries again
            if not kwargs or isinstance(error, Refusal) or not isinstance(error, Exception):
                raise
            told = f"{key[0]} cannot be made with these arguments: {error}"
            raise Refusal("refused_reset", told, exception="ValueError") from error

    async def _in_thread(self, session: _Session | None, call: Callable[[], Any]) -> Any:
        """What a call gives that may block; one of a session's environment is remembered there."""
        if self.threads.stuck >= self.threads.most:
            raise Refusal("overloaded", "every thread runs a call that does not end", retry_after_s=1.0)
        begun = await self.threads.begin(call)
        if session is not None:
            session.thread = begun
        return await self.threads.result(begun)

    # ------------------------------------------------------------------ inside

    @asynccontextmanager
    async def _refusing(self, op: str, session: _Session | None = None) -> AsyncIterator[None]:
        """Carry out a request under the time limit; whatever goes wrong becomes a refusal."""
        clock = asyncio.timeout(self.limits.step_timeout_s)
        try:
            async with clock:
                yield
        except Refusal:
            raise
        except EnvironmentFailure as error:
            raise Refusal("environment_failure", error.reason, stop=error.stop) from error
        except gymnasium.error.InvalidAction as error:
            raise Refusal("invalid_action", str(error)) from error
        except gymnasium.error.ResetNeeded as error:
            raise Refusal("reset_needed", str(error)) from error
        except Exception as error:
            if not clock.expired():
                raise logged(error, op) from error
            lost = "; the session is lost" if session is not None and session.hangs else ""
            raise Refusal("timeout", f"{op} took longer than {self.limits.step_timeout_s:g} s{lost}") from error

    def _hold(self, size: int) -> None:
        self.held += size
        self.counts["most_held_bytes"] = max(self.counts["most_held_bytes"], self.held)

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, also if nothing waits
        return task


def logged(error: Exception, where: str) -> Refusal:
    """What an exception becomes that clients must not read: its text may hold anything, so only its class crosses."""
    number = secrets.token_hex(4)
    _LOG.error("error %s in %s", number, where, exc_info=error)
    told = f"{where} raised {type(error).__name__}; the server's log has it as error {number}"
    return Refusal("environment_error", told, exception=_known_class(error))


def _known_class(error: Exception) -> str | None:
    """The nearest class of an error that a client knows, too."""
    return next((kind.__name__ for kind in type(error).__mro__ if protocol.ERRORS.get(kind.__name__) is kind), None)


def _unknown_session() -> Refusal:
    return Refusal("unknown_session", "there is no such session: it was closed or has expired; open another")
