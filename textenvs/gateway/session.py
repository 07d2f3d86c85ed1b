"""The state machine of a session: a program's calls of the model in order, retries, and the contexts they continue.

A call is of one role, where the session has several: a call continues contexts of its own role alone.

Invariants:

1. **Order.** Calls become turns in the order in which they came. One call at a time is the *current* one.
2. **Once.** A call becomes one turn at most. A client that was disconnected and calls again (the same body, and the
   same idempotency key where there is one) gets the turn of its first call, answered or not. A call whose client is
   gone before its turn came is no turn.
3. **End.** After the end nothing becomes a turn, and no answer is given.

It does no I/O and reads no clock; :mod:`.server` is the HTTP server around it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from ..messages import Messages, has_images
from ..text import plural, quoted
from .contexts import Contexts, difference
from .model_call import ModelCall, ModelReply, RequestError, message_key

_State = Literal["waiting", "current", "answered"]
#: Answered calls with an idempotency key that are kept, for clients that ask again: calls at the same time each do.
_MOST_KEPT = 64
#: The name of the policy as a model; that of a role is ``policy/ROLE``.
MODEL = "policy"


class SessionEnded(RequestError):
    """The episode is over: no further reply comes."""

    def __init__(self) -> None:
        super().__init__("this episode is over: its model gives no further reply", 410, "episode_over")


class TooManyContexts(Exception):
    """A call extends no context, and there may be no further one; the message says where it differs."""


@dataclass(frozen=True)
class Observation:
    """The call whose turn it is.

    Args:
        ticket: Its number.
        call: The call.
        context: The context that it continues or begins, counted from 0.
        begins: Whether it begins that context.
        new: The messages that this context has not seen: those after its last reply, or after what it shares with its
            source, or all of them.
        source: Of a context that begins like an earlier one of its role with the same tools: that context, and how
            many of its replies they share.
    """

    ticket: int
    call: ModelCall
    context: int
    begins: bool
    new: Messages
    source: tuple[int, int] | None = None


@dataclass
class _Open:
    """A call whose answer was not received yet."""

    call: ModelCall
    body: bytes
    key: str | None
    size: int
    connected: bool = True
    arrivals: int = 0  # of a call without a client: how many calls had come when that was disconnected
    state: _State = "waiting"
    reply: ModelReply | None = None


@dataclass
class Session:
    """The calls and contexts of one program.

    Args:
        max_contexts: How many contexts an episode may have; ``None`` for no limit.
        images: Whether the policy can be shown images.
        most_open: How many calls may be open at a time.
        most_bytes: How large their requests may be together.
        roles: The names of its roles; none, and all calls are of one.
        posts: Whether rewards may be posted.
    """

    max_contexts: int | None = None
    images: bool = False
    most_open: int = 64
    most_bytes: int = 40_000_000
    roles: tuple[str, ...] = ()
    posts: bool = True
    ended: bool = False
    #: Whether two calls have waited for their turns at the same time.
    parallel: bool = False
    _open: dict[int, _Open] = field(default_factory=dict)  # in the order in which they came
    _kept: dict[int, _Open] = field(default_factory=dict)  # answered calls with an idempotency key, without messages
    _arrived: int = 0
    _current: Observation | None = None
    _contexts: Contexts = field(default_factory=Contexts)

    # ------------------------------------------------------------------ the client's side

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models that a call may name; without roles it may name any other, too."""
        return tuple(f"{MODEL}/{role}" for role in self.roles) or (MODEL,)

    def role_of(self, model: str, of_key: str = "") -> str:
        """Return the role of a call: of its model's name, or of its key; empty where the session has none.

        Raises:
            RequestError: There is no such role, or none is named, or two are.
        """
        policy, _, name = model.partition("/")
        role = self.role_among("model", name if policy == MODEL else "", of_key)
        if self.roles and not role:
            raise RequestError(
                f"model: {quoted(model, 80)} names no role; call {' or '.join(self.models)}, or put a slash and the "
                "role's name behind the key",
                code="no_role",
            )
        return role

    def role_among(self, where: str, name: str, of_key: str) -> str:
        """Return the role that a request names in its field ``where``, or by its key; empty: in neither."""
        for role, place in ((of_key, "the key's end"), (name, where)):
            if role and role not in self.roles:
                has = f"the roles are {', '.join(self.roles)}" if self.roles else "there are no roles"
                problem = f"{place} names the role {quoted(role, 80)}, and {has} (the environment's option roles)"
                raise RequestError(problem, code="no_role")
        if of_key and name and of_key != name:
            raise RequestError(f"{where} names the role {name}, and the key's end {of_key}", code="no_role")
        return of_key or name

    def arrive(self, call: ModelCall, body: bytes, key: str | None = None, size: int = 0) -> int:
        """Take a call, or recognise a retry; return its ticket.

        Args:
            call: The call.
            body: What equal calls have in common, such as a digest of the request.
            key: The client's idempotency key, where it gives one.
            size: The number of bytes of the request.

        Raises:
            SessionEnded: The episode is over.
            RequestError: Too many calls are open, or too large ones, or it has images that the policy cannot be shown.
        """
        if self.ended:
            raise SessionEnded
        for ticket, other in self._open.items():
            same = other.body == body and other.key == key
            # With a key, a client says itself that it asks again; without, an equal call of a client that still waits
            # is another call.
            if same and (key is not None or not other.connected):
                other.connected = True
                return ticket
        for ticket, other in self._kept.items() if key is not None else ():
            if other.key == key and other.body == body:
                self._open[ticket], other.connected = other, True
                return ticket
        if len(self._open) >= self.most_open:
            raise RequestError(
                f"{plural(self.most_open, 'call')} of this session are open already; wait for replies", 429, "busy"
            )
        if size + sum(other.size for other in self._open.values()) > self.most_bytes:
            raise RequestError(
                f"the open calls of this session have at most {self.most_bytes} bytes together; wait for replies",
                429,
                "busy",
            )
        if not self.images and any(has_images(message) for message in call.messages):
            raise RequestError("the policy cannot be shown images; send texts", code="unsupported_content")
        self.parallel |= any(other.connected and other.state != "answered" for other in self._open.values())
        self._open[self._arrived] = _Open(call, body, key, size)
        self._arrived += 1
        return self._arrived - 1

    def disconnect(self, ticket: int) -> None:
        """Note that nobody waits for a call's answer any more."""
        other = self._open.get(ticket)
        if other is None:
            return
        other.connected, other.arrivals = False, self._arrived
        if other.state == "waiting":
            del self._open[ticket]

    def reply_to(self, ticket: int) -> ModelReply | None:
        """Return the reply to a call, once it is there; :class:`SessionEnded` where it never comes."""
        other = self._open.get(ticket)
        if other is not None and other.reply is not None:
            return other.reply
        if self.ended or other is None:
            raise SessionEnded
        return None

    def deliver(self, ticket: int) -> None:
        """Note that the client has its reply, as far as the server knows: an equal call is another one from now on.

        With an idempotency key, the reply is kept, because it may be lost on its way.
        """
        if (other := self._open.pop(ticket, None)) is not None:
            self._keep(ticket, other)

    def _keep(self, ticket: int, other: _Open) -> None:
        """Keep an answered call for its idempotency key, and forget the oldest one of too many."""
        if other.key is None:
            return
        other.call, other.size = replace(other.call, messages=(), tools=()), 0
        self._kept.pop(ticket, None)
        self._kept[ticket] = other
        if len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]

    # ------------------------------------------------------------------ the policy's side

    def observe(self) -> Observation | None:
        """Return the current call, making the next one current where there is none; ``None``: no call waits.

        Raises:
            TooManyContexts: The call extends no context, and there may be no further one.
        """
        if self._current is not None or self.ended:
            return self._current
        for ticket, other in self._open.items():
            if other.state == "waiting":
                self._current = self._placed(ticket, other.call)
                other.state = "current"
                return self._current
        return None

    @property
    def waits(self) -> bool:
        """True if there is a call for :meth:`observe`."""
        return self._current is not None or any(other.state == "waiting" for other in self._open.values())

    def answer(self, reply: ModelReply) -> int:
        """Give the current call its reply, as its client can read it; return the ticket."""
        current = self._current
        if current is None or self.ended:
            raise RuntimeError("no call of this session waits for a reply")
        self._current = None
        self._contexts.extend(current.context, (*current.call.message_keys, message_key(reply.message)))
        for ticket, earlier in list(self._open.items()):
            # Its client goes on, if the call that is answered came later, and does not call again.
            if earlier.state == "answered" and not earlier.connected and earlier.arrivals <= current.ticket:
                self._keep(ticket, self._open.pop(ticket))
        other = self._open.get(current.ticket)
        if other is not None:
            other.state, other.reply = "answered", reply
        return current.ticket

    def end(self) -> None:
        """End the session; replies that were given can still be received."""
        self.ended = True
        self._current = None

    @property
    def turns(self) -> int:
        """The number of calls that came, retries not counted."""
        return self._arrived

    # ------------------------------------------------------------------ contexts

    def _placed(self, ticket: int, call: ModelCall) -> Observation:
        contexts = self._contexts
        if (longest := contexts.continued_by(call)) is not None:
            return Observation(ticket, call, longest, False, call.messages[len(contexts.all[longest].seen) :])
        if self.max_contexts is not None and len(contexts) >= self.max_contexts:
            last = next((one for one in reversed(contexts.all) if one.role == call.role), None)
            raise TooManyContexts(
                f"it is the first one of the role {call.role}" if last is None else difference(call, last)
            )
        source = contexts.source_of(call)
        shared: tuple[int, ...] = () if source is None else contexts.all[source[0]].replies[: source[1]]
        number = contexts.begin(call.role, call.tools_key, shared)
        return Observation(ticket, call, number, True, call.messages[shared[-1] :] if shared else call.messages, source)
