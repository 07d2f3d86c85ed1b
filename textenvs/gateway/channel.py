"""A session between its two sides: calls of a program on the event loop, and an episode in a thread that waits."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..text import quoted
from . import anthropic_messages
from .model_call import ModelCall, ModelReply, RequestError
from .openai_responses import Responses
from .session import Observation, Session, SessionEnded

#: Ids of replies in the three protocols; each ends with the call's ticket.
_RESPONSE_ID = re.compile(r"(?:chatcmpl-|resp_|msg_)(0|[1-9][0-9]{0,17})")


@dataclass(frozen=True)
class Ended:
    """The end of a program: its result, or the error that it ended with."""

    result: Any = None
    error: BaseException | None = None


@dataclass
class Channel:
    """One session.

    ``key`` is the secret that the program shows. Methods of the event loop and of the episode's thread share a lock,
    which nobody holds while waiting.
    """

    key: str
    session: Session
    loop: asyncio.AbstractEventLoop
    responses: Responses = field(default_factory=Responses)
    #: Entered while a large request is read: what a session takes of memory and of threads has a limit.
    large_bodies: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(4))
    #: Rewards that the program posted, and that no turn has yet, each with the number of its turn from 0.
    rewards: list[tuple[int, Mapping[str, float]]] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _waiters: dict[int, list[asyncio.Future[ModelReply]]] = field(default_factory=dict)
    _end: Ended | None = None
    _answered: dict[int, tuple[int, str]] = field(default_factory=dict)  # by ticket: the number of its turn, its role
    _last: dict[str, int] = field(default_factory=dict)  # by role: its last turn among these
    _names: set[str] = field(default_factory=set)  # of the terms of rewards
    _settled: bool = False  # whether the last rewards were taken

    # ------------------------------------------------------------------ on the event loop

    async def ask(self, call: ModelCall, body: bytes, key: str | None, size: int = 0) -> tuple[int, ModelReply]:
        """Return the ticket of a call and its reply, when it comes; cancelled, its client is gone."""
        waiter: asyncio.Future[ModelReply] = self.loop.create_future()
        with self._changed:
            ticket = self.session.arrive(call, body, key, size)
            if (reply := self.session.reply_to(ticket)) is not None:
                return ticket, reply
            self._waiters.setdefault(ticket, []).append(waiter)
            self._changed.notify_all()
        try:
            return ticket, await waiter
        except asyncio.CancelledError:
            self.lose(ticket, waiter)
            raise

    def lose(self, ticket: int, waiter: asyncio.Future[ModelReply] | None = None) -> None:
        """Note that a client is gone before it had its reply."""
        with self._changed:
            waiters = self._waiters.get(ticket, [])
            if waiter in waiters:
                waiters.remove(waiter)
            if not waiters:
                self._waiters.pop(ticket, None)
                self.session.disconnect(ticket)

    def deliver(self, ticket: int) -> None:
        """Note that a client has its reply."""
        with self._changed:
            self.session.deliver(ticket)

    def reward(self, terms: Mapping[str, float], role: str = "", response: str | None = None) -> None:
        """Add to the reward of the turn whose reply came last (of ``role``), whatever calls wait already.

        With the id of a ``response``, it is the turn of that reply.
        """
        with self._changed:
            if self._settled:
                raise SessionEnded
            if not self.session.posts:
                raise RequestError(
                    "rewards cannot be posted in this session: a scorer judges it, and what the policy runs in the "
                    "program's tools has the program's key, too; the environment's option posts=True allows it",
                    403,
                    "no_posts",
                )
            turn = self._last_turn(role) if response is None else self._turn_of(response, role)
            if len(self.rewards) >= 10_000:
                raise RequestError("this turn has 10,000 rewards already", 429, "busy")
            names = self._names | terms.keys()
            if len(names) > 100:
                raise RequestError("the rewards of this session have 100 names already", 429, "busy")
            self._names = names
            self.rewards.append((turn, terms))

    def _last_turn(self, role: str) -> int:
        turn = self._last.get(role) if role else len(self._answered) - 1
        if turn is None or turn < 0:
            whose = f" of the role {role}" if role else ""
            raise RequestError(f"no call{whose} has a reply yet, so there is no turn to reward", 409, "no_turn")
        return turn

    def _turn_of(self, response: str, role: str) -> int:
        match = _RESPONSE_ID.fullmatch(response)
        answered = self._answered.get(int(match[1])) if match else None
        if answered is None:
            raise RequestError(
                f"response: this session has given no reply with the id {quoted(response, 80)}; send the id that the "
                "reply has, or leave it out for the turn that was answered last",
                404,
                "no_response",
            )
        turn, whose = answered
        if role and role != whose:
            problem = f"response {response} is of the role {whose}, and the reward names {role}"
            raise RequestError(problem, code="no_role")
        return turn

    # ------------------------------------------------------------------ in the episode's thread

    def observe(self, timeout: float) -> Observation | Ended | None:
        """Wait for the next call, or the program's end; ``None``: neither came within ``timeout`` seconds.

        Raises:
            TooManyContexts: The next call extends no context, and there may be no further one.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._end is not None or self.session.waits, timeout)
            return self._end or self.session.observe()

    def answer(self, reply: ModelReply) -> None:
        """Give the current call its reply."""
        with self._changed:
            current = self.session.observe()
            if current is None:
                return  # the session has ended
            if current.call.protocol == "anthropic":
                reply = replace(reply, message=anthropic_messages.served(reply.message))
            ticket = self.session.answer(reply)
            self._last[current.call.role] = len(self._answered)
            self._answered[ticket] = len(self._answered), current.call.role
            waiters = self._waiters.pop(ticket, [])
        self._resolve(waiters, reply)

    def take_rewards(self, *, last: bool = False) -> list[tuple[int, Mapping[str, float]]]:
        """Return the rewards since the last time, with the numbers of their turns; after the ``last``, all are refused.

        A call that waits goes on waiting: what the program does next would change the files that a scorer reads.
        """
        with self._changed:
            self._settled |= last
            rewards, self.rewards = self.rewards, []
            return rewards

    def program_ended(self, ended: Ended) -> None:
        """Report the program's end, from any thread."""
        with self._changed:
            if self._end is None:
                self._end = ended
            self._changed.notify_all()

    def refuse_calls(self, timeout: float) -> None:
        """Refuse calls from now on, and wait for what may still be posted, ``timeout`` seconds at most.

        That is what parts of a program that run beside a call have to post for their own replies, until the program's
        end. A program whose calls never waited at the same time does one thing after another: what it posts for a
        reply comes before its next call. It is not waited for, nor is one that may not post.
        """
        with self._changed:
            waiters, awaited = self._end_session(), self.session.posts and self.session.parallel
        self._resolve(waiters, None)
        with self._changed:
            self._changed.wait_for(lambda: self._end is not None or not awaited, timeout)

    def end(self) -> None:
        """End the session: calls that wait are refused, and so are all later calls and rewards."""
        with self._changed:
            waiters = self._end_session()
            self._settled = True
            self._end = self._end or Ended(error=SessionEnded())
            self._changed.notify_all()
        self._resolve(waiters, None)

    def _end_session(self) -> list[asyncio.Future[ModelReply]]:
        """End the session, and return those that wait for replies."""
        self.session.end()
        waiters = [waiter for listed in self._waiters.values() for waiter in listed]
        self._waiters.clear()
        return waiters

    def _resolve(self, waiters: list[asyncio.Future[ModelReply]], reply: ModelReply | None) -> None:
        if waiters and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(_resolve_all, waiters, reply)


def _resolve_all(waiters: list[asyncio.Future[ModelReply]], reply: ModelReply | None) -> None:
    for waiter in waiters:
        if waiter.done():
            continue
        if reply is None:
            waiter.set_exception(SessionEnded())
        else:
            waiter.set_result(reply)
