"""How a request is carried out: everything but the transport.

:meth:`Host.answer` takes a decoded request and gives a decoded answer. :mod:`textenvs.serve.sessions` decides what
becomes of it, :mod:`textenvs.serve.variants` has the environments, :mod:`textenvs.serve.calls` calls them. Work goes on
when whoever asked for it is gone: its answer is kept for when they ask again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from ..env import TextEnv
from ..messages import Messages
from .calls import Calls, Played, StillAtWork, ended, logged, seen
from .memory import SESSION, Memory, weigh
from .protocol import (
    ALLOWANCES,
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
from .sessions import Book, Join, Limits, Repeat, Start, Verdict
from .variants import Offer, Variant, Variants

_LOG = logging.getLogger("textenvs.serve")
#: How often one request over HTTP may wait for its answer beside the first.
_JOINS_HTTP = 8


@dataclass(kw_only=True)
class _Playing(Played):
    """What a session has: a fork of a variant, how much of its conversation was told, and how many bytes it takes."""

    variant: Variant
    told: int = 0
    conversation: int = SESSION
    answer: int = 0


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
        self.offers = dict(offers)
        self.limits = limits or Limits()
        self.book = Book(self.limits)
        self.memory = Memory(self.limits)
        self.counts = Counts()
        self.clock = clock
        self.max_message_bytes: int | None = None  # of the transport, if it has a limit; clients are told
        self._calls = Calls(threads, step_timeout_s)
        self._variants = Variants(self.offers, self._calls)
        self._playing: dict[str, _Playing] = {}
        self._work: dict[str, asyncio.Task[str]] = {}  # by session
        self._joined: Counter[tuple[Hashable | None, str]] = Counter()

    async def prepare(self) -> None:
        """Make every environment on offer, so that one that cannot be made is noticed at once, by what that raises."""
        for name in self.offers:
            async with self._variants.use(name, {}, math.inf):
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
            return self.refuse(logged(error, "the request"), {"id": name})

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
            try:
                self._check_memory(request, verdict.session, owner)
            except Refusal:
                self._release(self.book.fail(now, verdict.session))
                raise
            work = self._work[verdict.session] = asyncio.create_task(self._work_on(request, verdict.session, owner))
            work.add_done_callback(seen)
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

    async def _work_on(self, request: Open | Step | Script | Score, session: str, owner: str) -> str:
        turns = 0
        try:
            if isinstance(request, Open):
                told = await self._open(request, session)
                turns = told["turn"]
            elif isinstance(request, Step):
                told = await self._step(request, self._playing[session])
                turns = 1
            elif isinstance(request, Score):
                told = {"scores": dict(await self._calls.ask("conversation_score", self._playing[session]))}
            else:
                rng = generator_from(request.rng)
                told = {
                    "action": await self._calls.ask(request.op, self._playing[session], rng),
                    "rng": generator_state(rng),
                }
            answer = _encoded(told)
        except BaseException as error:
            self._work.pop(session, None)
            if isinstance(error, StillAtWork) or (turns and isinstance(request, Step)):
                self.book.give_up(session, "broken")  # what its environment is at cannot be told any more
            if (known := self._playing.get(session)) is not None:
                self.memory.record(session, owner, known.conversation + known.answer)
            self._release(self.book.fail(self.clock(), session))
            raise
        known = self._playing[session]
        known.answer = len(answer)
        self.memory.record(session, owner, known.conversation + known.answer)
        over = known.env.state.done
        self.counts.episodes += over and turns > 0
        self._work.pop(session, None)
        self._release(self.book.finish(self.clock(), session, answer, turns=turns, over=over))
        return answer

    async def _open(self, request: Open, session: str) -> Json:
        deadline = self._calls.deadline()
        seed = secrets.randbits(53) if request.seed is None else request.seed
        async with self._variants.use(request.env, request.kwargs, deadline) as variant:
            env = variant.env.fork(0)
            env.observation_space, env.action_space = variant.env.observation_space, variant.env.action_space
            variant.users += 1
            playing = self._playing[session] = _Playing(env, variant=variant)
        self.counts.opened += 1
        self.counts.most_sessions = max(self.counts.most_sessions, len(self.book))
        options = None if request.options is None else dict(request.options)
        messages, info = await self._calls.act("reset", playing, deadline, seed=seed, options=options)
        turn = 0
        for event, following in zip_longest(request.replay, request.replay[1:]):
            await asyncio.sleep(0)  # others have a right to the loop, also where the environment never waits
            if asyncio.get_running_loop().time() >= deadline:
                raise Refusal("timeout", f"replaying took longer than {self._calls.step_timeout_s:g} s")
            if event.reseed is not None:
                if following is None or following.reseed is None:  # of several, the last alone decides
                    self._fork(playing, event.reseed)
                continue
            if playing.env.state.done:
                raise Refusal(
                    "replay_failed", f"the episode to be continued is over after {turn} replies here", turn=turn
                )
            assert event.action is not None
            messages, *_ = await self._calls.act("step", playing, deadline, event.action)
            turn += 1
        playing.told = len(messages)
        playing.conversation = SESSION + weigh(messages)
        return {"session": session, "turn": turn, "seed": seed, "messages": list(messages), "info": dict(info)}

    async def _step(self, request: Step, playing: _Playing) -> Json:
        deadline = self._calls.deadline()
        conversation, reward, terminated, truncated, info = await self._calls.act(
            "step", playing, deadline, request.action
        )
        news: Messages = conversation[playing.told :]
        playing.told = len(conversation)
        playing.conversation += weigh(news)
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
        deadline = self._calls.deadline()
        environments = {}
        for name in names:
            async with self._variants.use(name, request.kwargs, deadline) as variant:
                environments[name] = _facts(variant.env, self.offers[name])
        told = {
            "protocol": PROTOCOL,
            "allows": sorted(self.allow),
            "max_reply_bytes": self.limits.max_reply_bytes,
            "environments": environments,
        }
        return told if self.max_message_bytes is None else {**told, "max_message_bytes": self.max_message_bytes}

    async def _task(self, request: TaskKey) -> Json:
        self._check_kwargs(request.kwargs)
        deadline = self._calls.deadline()
        async with self._variants.use(request.env, request.kwargs, deadline) as variant:
            tasks = variant.env.tasks
            size = tasks.size
            if size is not None and request.index >= size:
                raise Refusal("bad_request", f"index {request.index} is outside the {size} tasks")
            begun = await self._calls.begin(lambda: tasks[request.index], deadline)
            variant.users += 1  # until the thread is done with it, however long that takes
            begun.add_done_callback(lambda _: variant.leave())
            task = await self._calls.result(begun, deadline, f"task {request.index} of {request.env}")
        return {"key": task.key, "data_source": task.data_source}

    # ------------------------------------------------------------------ checks

    def _check_open(self, request: Open) -> None:
        self._check_kwargs(request.kwargs)
        self._variants.check(request.env)
        if (request.options or {}).keys() - {"task_index"} and "tasks" not in self.allow:
            raise Refusal(
                "forbidden", "clients choose 'task_index' and bring no task of their own (textenvs serve --allow tasks)"
            )
        if any((event.action is None) == (event.reseed is None) for event in request.replay):
            raise Refusal("bad_request", "an event of 'replay' has either an action or a reseed")
        if request.replay and self.offers[request.env].nondeterministic:
            raise Refusal("replay_failed", f"{request.env} is not deterministic, so no episode of it can be continued")
        for event in request.replay:
            self._check_reply(event.action)
        if request.replay and request.seed is None:
            raise Refusal("bad_request", "'replay' needs the seed of the episode that it continues")

    def _check_kwargs(self, kwargs: Json) -> None:
        if kwargs and "kwargs" not in self.allow:
            raise Refusal("forbidden", "this server takes no arguments of environments (textenvs serve --allow kwargs)")

    def _check_allowed(self, request: Step | Script | Score) -> None:
        if isinstance(request, Script) and "expert" not in self.allow:
            raise Refusal("forbidden", "this server shows no scripted replies (textenvs serve --allow expert)")
        if isinstance(request, Step):
            self._check_reply(request.action)
        if isinstance(request, Score) and "scores" not in self.allow:
            raise Refusal("forbidden", "this server gives no scores but rewards (textenvs serve --allow scores)")

    def _check_reply(self, action: str | Json | None) -> None:
        if action is None:
            return
        most = self.limits.max_reply_bytes
        try:
            size = len(encode({"": action})) - len('{"":}')
        except RecursionError:
            raise Refusal("bad_request", "a reply is nested too deeply") from None
        if size > most:
            raise Refusal("too_large", f"a reply has at most {most} bytes as JSON, and this one has {size}")

    def _check_memory(self, request: Open | Step | Script | Score, session: str, owner: str) -> None:
        """Take the memory that a request may need: what is said stays, and the answer says it again."""
        if isinstance(request, Open):
            said = SESSION + weigh([event.action for event in request.replay])
        else:
            said = weigh(request.action) if isinstance(request, Step) else 0
        known = self._playing.get(session)
        size = 2 * said + (known.conversation if known is not None else 0)
        most = self.limits.max_session_bytes
        if size > most:
            raise Refusal(
                "too_large", f"a session has at most {most} bytes, and this one would have {size}; open another session"
            )
        self.memory.hold(session, owner, max(size, self.memory.held(session)))

    # ------------------------------------------------------------------ environments

    def _fork(self, playing: _Playing, seed: int) -> None:
        """Go on in a fork with a seed of its own."""
        before = playing.env
        playing.env = before.fork(seed)
        self._calls.close_fork(Played(before, playing.thread))

    def _release(self, sessions: Iterable[str]) -> None:
        for session in sessions:
            self.memory.free(session)
            playing = self._playing.pop(session, None)
            if playing is not None:
                playing.variant.leave()
                self._calls.close_fork(playing)

    # ------------------------------------------------------------------ the end

    async def close(self) -> None:
        """Give up all sessions and work, and close the environments; what hangs is left to the end of the process."""
        self._calls.end()
        self._release(self.book.close_all())
        for task in (work := set(self._work.values())):
            task.cancel()
        await ended(work)
        self._variants.close()
        await self._calls.close()

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
            "held_bytes": self.memory.total,
            "most_held_bytes": self.memory.most,
        }


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
        "tools_not_in_prompt": list(getattr(env, "tools_not_in_prompt", ())),
    }
