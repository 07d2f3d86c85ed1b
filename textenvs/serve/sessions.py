"""The sessions of a server: which there are, what each is at, and what becomes of a request. No I/O, and no clock.

Invariants:

* a session is at one piece of work at a time, and a step is carried out only at the turn it names;
* what is asked again under its id is carried out once: it waits for the same work, or gets the same answer;
* a session that nobody uses ends: a while after its last use, after its connection was lost, or after its episode was
  over; and whatever happens, when it is too old. Only work in progress puts that off, until it is done;
* there are never more sessions than allowed, nor more pieces of work;
* a session belongs to who opened it; for others it does not exist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field, fields
from typing import Any

from .protocol import Refusal

#: The fewest characters of an opening's id. Clients that share a token share its ids, too: one that counts its requests
#: would be given the session of another that does.
MIN_OPEN_ID = 16


@dataclass(frozen=True)
class Limits:
    """What a server takes on.

    Args:
        max_sessions: Sessions at a time.
        max_sessions_per_token: Of these, those that one token may have; ``None`` for all.
        max_running: Requests that are at work, or wait for a thread, at a time.
        idle_s: A session that is not used for so long ends.
        grace_s: One whose WebSocket was lost ends after so long, unless it is used again.
        linger_s: One whose episode is over ends after so long: until then its last answer can be asked for again.
        max_age_s: However it is used, a session ends after so long.
        max_reply_bytes: Of one reply of an assistant, as JSON.
        max_session_bytes: Memory of one session: its conversation, and its last answer.
        max_bytes_per_token: Memory that is held for one token: sessions, requests at work, answers that are not read;
            ``None`` for all.
        max_bytes: Memory that is held for all.

    Raises:
        ValueError: A number is not above 0.
    """

    max_sessions: int = 1024
    max_sessions_per_token: int | None = None
    max_running: int = 1024
    idle_s: float = 600.0
    grace_s: float = 60.0
    linger_s: float = 60.0
    max_age_s: float = 86_400.0
    max_reply_bytes: int = 2**20
    max_session_bytes: int = 16 * 2**20
    max_bytes_per_token: int | None = None
    max_bytes: int = 2**30

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None and each.name in ("max_sessions_per_token", "max_bytes_per_token"):
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise ValueError(f"{each.name} must be a number above 0, not {value!r}")


@dataclass(frozen=True)
class Start:
    """The request is to be carried out; :meth:`Book.finish` or :meth:`Book.fail` must follow."""

    session: str


@dataclass(frozen=True)
class Join:
    """The very request is being carried out; its answer is this one's, too."""

    session: str


@dataclass(frozen=True)
class Repeat:
    """The request was answered before, by this."""

    session: str
    answer: Any


Verdict = Start | Join | Repeat


@dataclass
class _Session:
    owner: str
    opened_by: str  # the id of the request that opened it
    opened: float
    used: float
    connection: Hashable | None = None
    lost: float | None = None  # when its connection was
    turn: int = 0
    over: bool = False  # the episode
    work: tuple[str, str] | None = None  # id and fingerprint of the request that it is at
    last: tuple[str, str, Any] | None = None  # of the last one, and its answer
    closing: str | None = None  # why it ends as soon as its work is done


@dataclass
class Book:
    """The books of one server.

    Every method that depends on the time is given it, in seconds, never less than before. What ``finish``, ``fail``,
    ``close`` and ``expire`` return has ended: its environment is the caller's to release.

    Args:
        limits: What it takes on.

    Attributes:
        draining: Whether it takes no new sessions.
        ended: How many sessions have ended, by why.
    """

    limits: Limits = field(default_factory=Limits)
    draining: bool = False
    running: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    _sessions: dict[str, _Session] = field(default_factory=dict)
    _opened: dict[tuple[str, str], str] = field(default_factory=dict)  # (owner, id of the opening request)
    _owned: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        """How many sessions there are."""
        return len(self._sessions)

    def __contains__(self, session: str) -> bool:
        """Whether there is such a session."""
        return session in self._sessions

    def turn(self, session: str) -> int:
        """How many replies its episode has had."""
        return self._sessions[session].turn

    # ------------------------------------------------------------------ requests

    def open(
        self,
        now: float,
        owner: str,
        request: str,
        asked: str,
        *,
        session: str,
        connection: Hashable | None = None,
    ) -> Verdict:
        """A request for a new session.

        Args:
            now: The time.
            owner: Who asks.
            request: The request's id, which no other client may choose by accident.
            asked: Its fingerprint.
            session: The name of the session, if there is to be one; nobody can have guessed it.
            connection: What it came by, if that can be lost.

        Raises:
            Refusal: ``draining``, ``full``, ``overloaded``, or an id that is too short or was used for something else.
        """
        if len(request) < MIN_OPEN_ID:
            raise Refusal(
                "bad_request",
                f"the id of 'open' must be globally unique and have at least {MIN_OPEN_ID} characters, "
                f"not {len(request)}; use a UUID",
            )
        known = self._opened.get((owner, request))
        if known is not None:
            return self._again(now, known, request, asked, connection)
        if self.draining:
            raise Refusal("draining", "the server is shutting down and opens no session", retry_after_s=5.0)
        self._room(owner)
        self._sessions[session] = _Session(owner, request, now, now, connection, work=(request, asked))
        self._opened[owner, request] = session
        self._owned[owner] += 1
        self.running += 1
        return Start(session)

    def begin(
        self,
        now: float,
        owner: str,
        request: str,
        asked: str,
        *,
        session: str,
        turn: int,
        connection: Hashable | None = None,
        steps: bool = True,
    ) -> Verdict:
        """A request to a session.

        Args:
            now: The time.
            owner: Who asks.
            request: The request's id.
            asked: Its fingerprint.
            session: Which session.
            turn: Which turn it thinks that is at.
            connection: What it came by, if that can be lost.
            steps: Whether it would play a reply, which an episode that is over has no turn for.

        Raises:
            Refusal: ``unknown_session``, ``busy``, ``wrong_turn``, ``reset_needed``, ``overloaded``, or an id that was
                used for something else.
        """
        known = self._sessions.get(session)
        if known is None or known.owner != owner or known.closing is not None:
            raise unknown_session()
        if request in (each[0] for each in (known.work, known.last) if each is not None):
            return self._again(now, session, request, asked, connection)
        if known.work is not None:
            raise Refusal("busy", "the session is at work for another request; wait for its answer", retry_after_s=0.05)
        if known.turn != turn:
            raise Refusal(
                "wrong_turn",
                f"the request is for turn {turn}, but the session is at turn {known.turn}",
                turn=known.turn,
            )
        if known.over and steps:
            raise Refusal("reset_needed", "the episode is over; open another session")
        self._capacity()
        self._touch(known, now, connection)
        known.work = (request, asked)
        self.running += 1
        return Start(session)

    def finish(self, now: float, session: str, answer: Any, *, turns: int = 0, over: bool = False) -> list[str]:
        """The work of a session is done.

        Args:
            now: The time.
            session: Which.
            answer: For whoever asks again.
            turns: How many replies were played by it.
            over: Whether the episode is.
        """
        known = self._sessions[session]
        assert known.work is not None
        known.last = (*known.work, answer)
        known.turn += turns
        known.over = known.over or over
        return self._done(now, session, known)

    def fail(self, now: float, session: str) -> list[str]:
        """The work of a session came to nothing: the session is as before, and one that was to be opened is not."""
        known = self._sessions[session]
        assert known.work is not None
        if known.last is None:
            known.closing = known.closing or "not_opened"
        return self._done(now, session, known)

    def close(self, owner: str, session: str, why: str = "closed") -> list[str]:
        """End a session: at once, or when its work is done. Nobody finds it any more."""
        known = self._sessions.get(session)
        if known is None or known.owner != owner:
            return []
        known.closing = known.closing or why
        return [] if known.work is not None else self._end(session)

    def give_up(self, session: str, why: str) -> None:
        """End a session that is at work as soon as that is done, whatever comes of it."""
        self._sessions[session].closing = why

    def lose(self, now: float, connection: Hashable) -> None:
        """A connection is gone; its sessions have a time to be used from another."""
        for known in self._sessions.values():
            if known.connection == connection:
                known.connection, known.lost = None, now

    # ------------------------------------------------------------------ time

    def expire(self, now: float) -> list[str]:
        """End the sessions whose time is up."""
        due = [(name, why) for name, known in self._sessions.items() if (why := self._due(known, now)) is not None]
        for name, why in due:
            self._sessions[name].closing = why
        return [ended for name, _ in due for ended in self._end(name)]

    def close_all(self, why: str = "shutdown") -> list[str]:
        """End every session: those at work when that is done."""
        for known in self._sessions.values():
            known.closing = known.closing or why
        return [
            ended for name, known in list(self._sessions.items()) if known.work is None for ended in self._end(name)
        ]

    @property
    def playing(self) -> int:
        """How many sessions have an episode that is not over."""
        return sum(not known.over for known in self._sessions.values())

    # ------------------------------------------------------------------ inside

    def _again(self, now: float, session: str, request: str, asked: str, connection: Hashable | None) -> Verdict:
        known = self._sessions[session]
        if known.closing is not None:
            raise unknown_session()
        work, last = known.work, known.last
        if work is not None and work[0] == request:
            before: str = work[1]
            verdict: Verdict = Join(session)
        elif last is not None and last[0] == request:
            before, verdict = last[1], Repeat(session, last[2])
        else:
            raise Refusal("wrong_turn", "the session that this request opened has gone on meanwhile", turn=known.turn)
        if before != asked:
            raise Refusal("bad_request", "this id was used for another request; each request has its own")
        self._touch(known, now, connection)
        return verdict

    def _room(self, owner: str) -> None:
        most = self.limits.max_sessions_per_token
        if len(self._sessions) >= self.limits.max_sessions:
            raise Refusal("full", f"all {self.limits.max_sessions} sessions are taken", retry_after_s=1.0)
        if most is not None and self._owned[owner] >= most:
            raise Refusal("full", f"all {most} sessions of this token are taken", retry_after_s=1.0)
        self._capacity()

    def _capacity(self) -> None:
        if self.running >= self.limits.max_running:
            raise Refusal("overloaded", f"{self.running} requests are at work already", retry_after_s=0.25)

    def _touch(self, known: _Session, now: float, connection: Hashable | None) -> None:
        known.used, known.lost = now, None
        if connection is not None:  # a request over HTTP says nothing about the WebSocket
            known.connection = connection

    def _done(self, now: float, session: str, known: _Session) -> list[str]:
        known.work, known.used = None, now
        self.running -= 1
        return [] if known.closing is None else self._end(session)

    def _due(self, known: _Session, now: float) -> str | None:
        limits = self.limits
        if known.work is not None:
            return None
        if now >= known.opened + limits.max_age_s:
            return "too_old"
        if known.lost is not None and now >= known.lost + limits.grace_s:
            return "connection_lost"
        if known.over and now >= known.used + limits.linger_s:
            return "over"
        return "idle" if now >= known.used + limits.idle_s else None

    def _end(self, session: str) -> list[str]:
        known = self._sessions.pop(session)
        del self._opened[known.owner, known.opened_by]
        self._owned[known.owner] -= 1
        if not self._owned[known.owner]:
            del self._owned[known.owner]
        self.ended[known.closing or "closed"] += 1
        return [session]


def unknown_session() -> Refusal:
    """The error for a session that is not there, or not for this client."""
    return Refusal("unknown_session", "there is no such session: it was closed or has expired; open another")
