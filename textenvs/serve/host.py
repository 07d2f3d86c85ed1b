"""The sessions of a server, and the execution of requests: everything but the transport.

A session is one episode, played in a fork of an environment. It executes one request at a time, a step only at the
turn that it names, and keeps its last answer: a request that is sent again (the same bytes) waits for the same work or
gets the same answer. Work continues when its client is gone. A session that is not used ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from pydantic import BaseModel, ConfigDict

from ..env import EnvironmentFailure, TextEnv
from ..event_loop import settle, wait_for
from ..messages import Messages
from ..options import PositiveInt, Seconds
from ..task import TaskError, TaskSet
from ..threads import Threads, reset_in_thread, step_in_thread
from ..turn import messages_of_turn
from . import protocol
from .protocol import Json, Refusal, encode, weigh

_LOG = logging.getLogger("textenvs.serve")
#: Bytes that a session takes beside its conversation: an environment's copy and its state.
SESSION_BYTES = 8192
#: A request of at most so many bytes always finds room.
SMALL_BYTES = 4096
#: A session whose episode is over ends after so many seconds.
LINGER_S = 60.0
#: How many tasks' keys are part of the digest of the served rows.
_DIGESTED = 100
#: How many seconds an environment has to close.
CLOSE_S = 10.0
#: Requests under way together take at most this share of the memory; one alone may take more.
REQUESTS_SHARE = 0.25
#: After so many replies that an ``open`` plays again, it waits three times as long as each takes, and as often as there
#: are others that do the same: together they take at most a quarter of the event loop's time.
FAST_REPLAY, REPLAY_WAITS = 64, 3.0


class Limits(BaseModel):
    """Limits of a server; docs/serving.md explains each."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    max_sessions: PositiveInt = 1024
    max_reply_bytes: PositiveInt = 2**20
    max_bytes: PositiveInt = 2**30  # estimated
    idle_s: Seconds = 600.0
    step_timeout_s: Seconds = 120.0
    threads: PositiveInt = 16


@dataclass(frozen=True)
class Offer:
    """An environment that is served."""

    make: Callable[[], TextEnv[Any]]
    nondeterministic: bool = False  # then no episode of it can be continued in another session


@dataclass(eq=False)
class _Session:
    key: tuple[str, str]  # the owner, and the client's name of it
    size: int  # bytes
    used: float
    env: TextEnv[Any] | None = None
    thread: asyncio.Future[Any] | None = None  # its last call in a thread
    turn: int = 0
    messages_sent: int = 0  # of the current observation, to the client
    contexts: tuple[Messages, ...] = ()  # conversations that were left, of which the client knows
    last_request: bytes = b""  # digest of the last request that has changed the episode, and its answer
    answer: bytes = b""
    doing: bytes = b""  # digest of the request that is executed
    replaying: int = 0  # replies that its ``open`` has yet to play again
    work: asyncio.Task[bytes] | None = None

    @property
    def hangs(self) -> bool:
        """True while a call is still running in a thread, so that the environment's state is unknown."""
        return self.thread is not None and not self.thread.done()

    @property
    def over(self) -> bool:
        return self.env is not None and self.env.state.done


class Host:
    """Plays the episodes of many clients; all on one event loop, after :meth:`prepare`."""

    def __init__(self, offers: Mapping[str, Offer], *, limits: Limits | None = None, allow: Iterable[str] = ()) -> None:
        self.allow = frozenset(allow)
        if not offers:
            raise ValueError("a server needs at least one environment to offer")
        if unknown := self.allow - set(protocol.ALLOWANCES):
            raise ValueError(f"allow has {sorted(unknown)}; what can be allowed is {', '.join(protocol.ALLOWANCES)}")
        self.offers = dict(offers)
        self.limits = limits or Limits()
        self.envs: dict[str, TextEnv[Any]] = {}  # sessions play forks of these, so tasks are loaded once
        self._digests: dict[str, str] = {}
        self.sessions: dict[tuple[str, str], _Session] = {}
        self.held = 0  # bytes
        self._requests = 0  # of them, those of requests under way
        self.counts = {"opened": 0, "repeated": 0, "most_sessions": 0, "most_held_bytes": 0}
        self.errors: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.draining = False
        self.threads = Threads(self.limits.threads)
        self._tasks: set[asyncio.Task[Any]] = set()  # a loop keeps tasks only weakly

    async def prepare(self) -> None:
        """Make every environment on offer; one that cannot be made raises its error."""
        for name, offer in self.offers.items():
            self.envs[name] = await asyncio.to_thread(offer.make)
            self._digests[name] = await asyncio.to_thread(_digest, self.envs[name].tasks)

    # ------------------------------------------------------------------ requests

    async def answer(self, op: str, body: bytes, owner: str) -> bytes:
        """Return the answer to a request of a token's owner; a refusal changes nothing, unless the session is lost."""
        request = protocol.parse_request(op, body)
        if isinstance(request, protocol.Close):
            for name in request.sessions:
                self._end(self.sessions.get((owner, name)), "closed")
            return b"{}"
        if isinstance(request, protocol.Describe):
            return encode(self._describe())
        self._check_allowed(op, request)
        digest = hashlib.blake2b(op.encode() + b" " + body, digest_size=16).digest()
        session = self.sessions.get((owner, request.session))
        if session is not None and digest in (session.last_request, session.doing):
            self.counts["repeated"] += 1
            session.used = time.monotonic()
            if digest != session.doing:
                return session.answer
        elif isinstance(request, protocol.Open):
            session = self._admit(request, owner, session)
        else:
            self._check_turn(request, session)
        assert session is not None
        if session.work is None:
            session.doing, session.work = digest, self._start(self._carry_out(session, op, request))
        work = session.work
        await asyncio.wait({work})  # which continues if this is cancelled
        if work.cancelled():
            raise _unknown_session()
        return work.result()

    @contextmanager
    def holding(self, size: int, *, always: bool = False) -> Iterator[None]:
        """Take memory for a request while it is carried out and its answer is sent; a small one is never refused."""
        if size > SMALL_BYTES and not always:
            self._check_room(size)
            if self._requests and size + self._requests > (most := int(REQUESTS_SHARE * self.limits.max_bytes)):
                raise Refusal("full", f"other requests take {self._requests} bytes of {most}", retry_after_s=1.0)
        self._hold(size)
        self._requests += size
        try:
            yield
        finally:
            self._hold(-size)
            self._requests -= size

    def expire(self) -> None:
        """End the sessions that were not used for long; called periodically."""
        now = time.monotonic()
        for session in [candidate for candidate in self.sessions.values() if candidate.work is None]:
            if now >= session.used + (min(LINGER_S, self.limits.idle_s) if session.over else self.limits.idle_s):
                self._end(session, "over" if session.over else "idle")

    @property
    def playing(self) -> int:
        """Number of sessions whose episode is not over."""
        return sum(not session.over for session in self.sessions.values())

    async def close(self) -> None:
        """End all sessions, and close the environments; a call that hangs is left to the end of the process."""
        for session in list(self.sessions.values()):
            self._end(session, "shutdown")
        for env in self.envs.values():
            self._start(self._close(env))
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSE_S)
            for task in late:
                task.cancel()

    def metrics(self) -> Json:
        now = {"sessions": len(self.sessions), "playing": self.playing, "held_bytes": self.held}
        return {**now, **self.counts, "errors": dict(self.errors), "ended": dict(self.ended)}

    # ------------------------------------------------------------------ checks

    def _check_allowed(self, op: str, request: Any) -> None:
        for allowance, used, reason in (
            ("tasks", getattr(request, "options", {}).keys() - {"task_index"}, "clients choose 'task_index' alone"),
            ("expert", isinstance(request, protocol.Script), "this server shows no scripted replies"),
            ("scores", op == "score", "this server gives no scores but rewards"),
        ):
            if used and allowance not in self.allow:
                raise Refusal("forbidden", f"{reason} (textenvs serve --allow {allowance})")

    def _check_turn(self, request: protocol.OfSession, session: _Session | None) -> None:
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
            beside = f"beside {self.held} of at most {most}; close sessions"
            raise Refusal("full", f"the server has no memory for {size} more bytes {beside}", retry_after_s=1.0)

    def _check_reply(self, action: protocol.Reply) -> None:
        size, most = len(_encoded(action)), self.limits.max_reply_bytes
        if size > most:
            raise Refusal("too_large", f"a reply has at most {most} bytes as JSON, and this one has {size}")

    # ------------------------------------------------------------------ sessions

    def _admit(self, request: protocol.Open, owner: str, existing: _Session | None) -> _Session:
        if existing is not None:
            raise Refusal("bad_request", "this session was opened by another request; give each one a name of its own")
        if self.draining:
            raise Refusal("draining", "the server is shutting down and opens no session", retry_after_s=5.0)
        if request.env not in self.offers:
            raise Refusal("unknown_environment", f"there is no such environment, but {', '.join(self.offers)}")
        if request.replay and self.offers[request.env].nondeterministic:
            raise Refusal("replay_failed", f"{request.env} is not deterministic, so no episode of it can be continued")
        if request.replay and request.seed is None:
            raise Refusal("bad_request", "'replay' needs the seed of the episode that it continues")
        for event in request.replay:
            if isinstance(event, protocol.Said):
                self._check_reply(event.action)
        pending_replays = sum(other.replaying for key, other in self.sessions.items() if key[0] == owner)
        if pending_replays and pending_replays + len(request.replay) > protocol.MAX_REPLAY:
            raise Refusal(
                "full", f"{pending_replays} replies of your other sessions are being played again", retry_after_s=1.0
            )
        size = SESSION_BYTES + weigh(_encoded(request.options))  # a row of the client's stays as long as the session
        self._check_room(size)
        if len(self.sessions) >= self.limits.max_sessions:
            raise Refusal("full", f"all {self.limits.max_sessions} sessions are taken", retry_after_s=1.0)
        key = (owner, request.session)
        session = self.sessions[key] = _Session(key, size, time.monotonic(), replaying=len(request.replay))
        self._hold(size)
        self.counts["opened"] += 1
        self.counts["most_sessions"] = max(self.counts["most_sessions"], len(self.sessions))
        return session

    async def _carry_out(self, session: _Session, op: str, request: protocol.OfSession | protocol.Open) -> bytes:
        played = False
        try:
            async with _refusing(op):
                if isinstance(request, protocol.Open):
                    result = await self._open(session, request)
                elif isinstance(request, protocol.Step):
                    result, played = await self._step(session, request), True
                else:
                    result = await self._ask(session, op, request)
                answer = encode(result)
            if isinstance(request, (protocol.Open, protocol.Step)) and self.sessions.get(session.key) is session:
                growth = weigh(answer) + len(answer) - len(session.answer)
                session.last_request, session.answer, session.turn = session.doing, answer, result["turn"]
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
        if busy := {task for task in (work, session.thread) if task is not None and not task.done()}:
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

    # ------------------------------------------------------------------ requests

    async def _open(self, session: _Session, request: protocol.Open) -> Json:
        parent, options = self.envs[request.env], request.options
        session.env = env = parent.fork(0)
        env.observation_space, env.action_space = parent.observation_space, parent.action_space
        seed = secrets.randbits(53) if request.seed is None else request.seed
        in_thread = partial(self._in_thread, session)
        try:
            env.check_options(options)  # what this raises is about the options alone
        except ValueError as error:
            raise Refusal("refused_reset", str(error), exception="ValueError") from error
        try:
            started = reset_in_thread(env, in_thread, seed=seed, options=options)
            messages, info = await self._in_time(session, started)
        except (ValueError, TypeError, gymnasium.error.Error) as error:
            if isinstance(error, TaskError) and "task" in options:  # a row of the client's own
                raise Refusal("refused_reset", str(error), exception="ValueError") from error
            raise logged(error, "reset", "refused_reset") from error
        turn = 0
        spent = 0.0
        for number, event in enumerate(request.replay):
            replays = sum(other.replaying > 0 for other in self.sessions.values())
            # Other sessions have their turn.
            await asyncio.sleep(REPLAY_WAITS * spent * replays if number >= FAST_REPLAY else 0)
            session.replaying -= 1
            start = time.perf_counter()
            if isinstance(event, protocol.Reseeded):
                self._start(self._close(env))
                session.env = env = env.fork(event.reseed)
                continue
            if env.state.done:
                raise Refusal("replay_failed", f"the episode is over after {turn} replies here", turn=turn)
            messages, *_ = await self._in_time(session, step_in_thread(env, in_thread, event.action))
            spent = time.perf_counter() - start
            turn += 1
        session.messages_sent, session.contexts = len(messages), env.state.contexts
        contexts = {"contexts": session.contexts} if session.contexts else {}
        return {"session": request.session, "turn": turn, "seed": seed, "messages": messages, **contexts, "info": info}

    async def _step(self, session: _Session, request: protocol.Step) -> Json:
        assert session.env is not None
        played = step_in_thread(session.env, partial(self._in_thread, session), request.action)
        messages, reward, terminated, truncated, info = await self._in_time(session, played)
        state = session.env.state
        news, context = messages_of_turn(state, session.messages_sent, session.contexts)
        session.messages_sent, session.contexts = len(messages), state.contexts
        anew = {} if context is None else {"context": context}
        ends = {"terminated": terminated, "truncated": truncated}
        return {"turn": request.turn + 1, "messages": news, **anew, "reward": float(reward), **ends, "info": info}

    async def _ask(self, session: _Session, op: str, request: protocol.OfSession) -> Json:
        env, rng = session.env, None
        assert env is not None
        call = env.conversation_score
        if isinstance(request, protocol.Script):
            protocol.set_state(rng := np.random.default_rng(), request.rng)
            call = partial(getattr(env, op), rng)

        async def evaluate() -> Any:
            return await settle(await self._in_thread(session, (lambda: wait_for(call())) if env.blocking else call))

        try:
            result = await self._in_time(session, evaluate())
        except NotImplementedError as error:
            raise Refusal("forbidden", f"the environment has no {op}", exception="NotImplementedError") from error
        return {"scores": dict(result)} if rng is None else {"action": result, "rng": rng.bit_generator.state}

    def _describe(self) -> Json:
        environments = {
            name: {
                "tasks": {"name": env.tasks.name, "size": env.tasks.size, "digest": self._digests[name]},
                "nondeterministic": self.offers[name].nondeterministic,
                "roles": list(env.roles),
                **{limit: getattr(env, limit) for limit in ("max_assistant_turns", "max_user_turns")},
                **{tools: list(getattr(env, tools, ())) for tools in ("tool_schemas", "tools_not_in_prompt")},
            }
            for name, env in self.envs.items()
        }
        return {"protocol": protocol.PROTOCOL, "allows": sorted(self.allow), "environments": environments}

    # ------------------------------------------------------------------ internals

    async def _in_thread(self, session: _Session, call: Callable[[], Any]) -> Any:
        if self.threads.stuck >= self.threads.most:
            raise Refusal("overloaded", "every thread runs a call that does not end", retry_after_s=1.0)
        session.thread = await self.threads.begin(call)
        return await self.threads.result(session.thread)

    async def _in_time(self, session: _Session, work: Awaitable[Any]) -> Any:
        """Await an environment's work on one turn within the time limit; each turn of a replay has its own limit."""
        clock = asyncio.timeout(self.limits.step_timeout_s)
        try:
            async with clock:
                return await work
        except Exception as error:
            if not clock.expired():
                raise
            lost = "; the session is lost" if session.hangs else ""
            raise Refusal("timeout", f"a turn took longer than {self.limits.step_timeout_s:g} s{lost}") from error

    def _hold(self, size: int) -> None:
        self.held += size
        self.counts["most_held_bytes"] = max(self.counts["most_held_bytes"], self.held)

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, also if nothing waits
        return task


@asynccontextmanager
async def _refusing(op: str) -> AsyncIterator[None]:
    try:
        yield
    except Refusal:
        raise
    except EnvironmentFailure as error:
        raise Refusal("environment_failure", error.reason, stop=error.stop) from error
    except (gymnasium.error.InvalidAction, gymnasium.error.ResetNeeded) as error:
        kind = "invalid_action" if isinstance(error, gymnasium.error.InvalidAction) else "reset_needed"
        raise Refusal(kind, str(error)) from error
    except Exception as error:
        raise logged(error, op) from error


def logged(error: Exception, where: str, kind: str = "environment_error") -> Refusal:
    """Log an exception, and return a refusal with its class alone: clients must not read its text."""
    number = secrets.token_hex(4)
    _LOG.error("error %s in %s", number, where, exc_info=error)
    message = f"{where} raised {type(error).__name__}; the server's log has it as error {number}"
    names = (base.__name__ for base in type(error).__mro__ if protocol.ERRORS.get(base.__name__) is base)
    return Refusal(kind, message, exception=next(names, None))


def _digest(tasks: TaskSet) -> str:
    """Return a digest of the first tasks' keys, which differs where other rows are served; it contains no secret."""
    digest = hashlib.blake2b(digest_size=8)
    for index in range(min(tasks.size or _DIGESTED, _DIGESTED)):
        with suppress(Exception):  # a row that cannot be read fails its own episode
            digest.update(repr(tasks[index].key).encode())
    return digest.hexdigest()


def _encoded(received: Any) -> bytes:
    try:
        return encode(received)
    except ValueError as error:
        raise Refusal("bad_request", str(error)) from None


def _unknown_session() -> Refusal:
    return Refusal("unknown_session", "there is no such session: it was closed or has expired; open another")
