"""``textenv/remote``: an environment that is played by a server (``textenvs serve``), as if it were local.

An episode's definition is on this side: its seed, its options and the replies so far. The server's session is only
where it is played at the moment. When the session is lost (it has expired, the server was restarted), or the episode is
continued somewhere else (a fork, a snapshot, another process), the server plays it again from the start, in a new
session, and the conversation must come out the same. So episodes of environments that are not deterministic, where a
user or a judge is a language model, cannot be forked or restored; playing them is no different.
"""

from __future__ import annotations

import asyncio
import operator
import os
import uuid
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar
from urllib.parse import urlsplit

import gymnasium
import numpy as np
from pydantic import ValidationError

from ..actions import as_reply
from ..env import EpisodeState, ResetResult, StepResult, TextEnv, Turn
from ..messages import Message, Messages, copy_messages, text_of
from ..privileged import Privilege, privileged_of
from ..task import Task
from ..text import excerpt, quoted
from ..trust import is_loopback, origin
from ..turn import enter_context, enter_context_of_role
from . import protocol
from .client import Client, RemoteError, shared_client
from .protocol import Answer, Opened, OpenedInfo, Refusal, Stepped, decode, encode

AnswerT = TypeVar("AnswerT", bound=Answer)

#: Where the arguments are looked for that are not given.
URL_VARIABLE, ENV_VARIABLE, TOKEN_VARIABLE = "TEXTENVS_URL", "TEXTENVS_REMOTE_ENV", "TEXTENVS_TOKEN"


@dataclass
class RemoteState(EpisodeState):
    """An episode's state on the client's side."""

    seed: int | None = None
    options: str = "{}"  # of the reset, as JSON text
    #: Events as JSON: a reply as it was sent, which the conversation may show differently, or a fork's seed.
    events: tuple[str, ...] = ()
    played: int = 0  # how many of these are replies
    opened: str = "{}"  # the info of the reset


class _Lease:
    """A session that an environment has. It is closed when nothing refers to it any more."""

    def __init__(self, client: Client, session: str, turn: int) -> None:
        self.client = client
        self.session = session
        self.turn = turn
        client.sessions.add(session)
        self.close = weakref.finalize(self, client.close_soon, session)
        self.close.atexit = False  # the client closes all of its sessions then


class RemoteAnswer(Turn):
    """The server's answer to a reply."""

    answer: Stepped

    def __init__(self, answer: Stepped) -> None:
        super().__init__()
        self.__dict__["answer"] = answer


class Remote(TextEnv[RemoteState]):
    """Plays an environment that a server offers; see ``docs/serving.md``.

    Args:
        url: Of the server, ``http://host:port``; without it the environment variable ``TEXTENVS_URL``.
        env: Which of the server's environments; without it ``TEXTENVS_REMOTE_ENV``, or the only one there is.
        token: What the server asks for; without it ``TEXTENVS_TOKEN``, which is for the server at ``TEXTENVS_URL`` or
            on this machine. Prefer the variable: what is given to ``make`` stands in ``env.spec``.
        timeout_s: The longest that an answer may take.
        retry_s: How long a request is sent again when the server cannot be reached or has no room.
        render_mode: As in :class:`~textenvs.env.TextEnv`.

    Raises:
        ValueError: No URL, no such environment there, or ``TEXTENVS_TOKEN`` is there for another server.
        RemoteError: The server cannot be reached, refuses the token, or speaks another version of the protocol.
    """

    state_type: ClassVar[type[EpisodeState]] = RemoteState

    def __init__(
        self,
        *,
        url: str | None = None,
        env: str | None = None,
        token: str | None = None,
        timeout_s: float = 180.0,
        retry_s: float = 30.0,
        render_mode: str | None = None,
    ) -> None:
        url = url or os.environ.get(URL_VARIABLE)
        if not url:
            raise ValueError(
                "textenv/remote needs url='http://host:port' of a server (textenvs serve), or the environment variable "
                f"{URL_VARIABLE}"
            )
        self._client_arguments = (url, token or _token_for(url), timeout_s, retry_s)
        description = self._client.submit("describe").result()
        _check_protocol(description, url)
        self.remote_env, facts = _chosen(
            _checked(protocol.Described, description, url), env or os.environ.get(ENV_VARIABLE), url
        )
        self.roles = tuple(facts.roles)
        self.tool_schemas, self.tools_not_in_prompt = facts.tool_schemas, facts.tools_not_in_prompt
        super().__init__(
            facts.tasks,
            max_assistant_turns=facts.max_assistant_turns,
            max_user_turns=facts.max_user_turns,
            render_mode=render_mode,
        )
        self._lease: _Lease | None = None
        self._reset_arguments: tuple[int | None, str] = (None, "{}")  # seed and options of the reset in progress

    @property
    def url(self) -> str:
        return str(self._client_arguments[0])

    @property
    def _client(self) -> Client:
        """The client of this process, which may be a child of the one that made this environment."""
        return shared_client(*self._client_arguments)

    # ------------------------------------------------------------------ the hooks

    async def opening(self, task: Task) -> Messages:
        state = self.state
        seed, state.options = self._reset_arguments
        state.seed = int(self.np_random.integers(2**63)) if seed is None else operator.index(seed)
        opened = await self._open_session()
        info = opened.info
        state.task_index = info.task_index
        state.task = Task(info.task_key, info.data_source, opened.messages, None)
        state.opened, state.role = encode(info.model_dump()).decode(), self._role(info)
        return opened.messages

    async def respond(self, reply: Message) -> Turn:
        answer = await self._in_session("step", Stepped, reply, action=_action(reply))
        assert self._lease is not None
        self._lease.turn += 1
        return RemoteAnswer(answer)

    def demonstration(self, rng: np.random.Generator) -> str | Message:
        return self._script("demonstration", rng)

    def careless_reply(self, rng: np.random.Generator) -> str | Message:
        return self._script("careless_reply", rng)

    def secrets(self) -> Sequence[str]:
        return ()  # they stay at the server

    async def privileged(self, kind: Privilege, rng: np.random.Generator) -> str | None:
        """Return the next reply of the server's scripted expert; all else stays at the server."""
        if kind != "expert":
            text = f"is at {self.url}, which gives no privileged context of the kind {kind!r}; there is 'expert'"
            raise NotImplementedError(f"the environment {text}")
        return await asyncio.to_thread(privileged_of, self, kind, rng)

    async def conversation_score(self) -> Mapping[str, float]:
        return (await self._in_session("score", protocol.Scored)).scores

    # ------------------------------------------------------------------ the episode

    def _begin_episode(
        self, seed: int | None, options: dict[str, Any] | None
    ) -> ResetResult | Coroutine[Any, Any, ResetResult]:
        episode_seed = seed
        if seed is None and self._np_random is None and self._np_random_seed is not None:
            episode_seed = self._np_random_seed  # nothing was drawn of it: this is the episode of that seed
        self._reset_arguments = (episode_seed, _sendable(options or {}))
        return super()._begin_episode(seed, options)

    def _pick(self, options: Mapping[str, Any]) -> tuple[int, Task]:
        return -1, Task("", "", (), None)  # the server picks

    def _identity(self) -> dict[str, Any]:
        return dict(decode(self.state.opened))

    def _conclude(self, turn: Turn) -> StepResult:
        assert isinstance(turn, RemoteAnswer)
        answer, state = turn.answer, self.state
        info = answer.info.model_dump()
        if not answer.info.earlier:
            del info["earlier"], info["own_terms"]
        elif max(answer.info.earlier) >= state.played or min(answer.info.earlier) < 0:
            raise RemoteError(f"{self.url} pays turns that are not earlier ones: {excerpt(repr(info['earlier']))}")
        info.pop("closing", None)
        if answer.info.failed:
            info["failure"] = excerpt(str(info.get("failure")))
        if "reason" in info:
            info["reason"] = excerpt(str(info["reason"]))
        state.events += (encode({"action": _action(state.messages[-1])}).decode(),)
        state.played += 1
        state.messages = (*state.messages[:-1], *answer.messages)
        role = self._role(answer.info)
        if answer.context is not None:
            if len(self.roles) == 1:
                contexts, start = enter_context(state.contexts, state.messages, answer.context)
            else:
                owners: tuple[str, ...]
                contexts, owners, start = enter_context_of_role(state, state.messages, answer.context, role)
                state.context_roles = owners
            self._print_context(contexts, start)
            state.messages, state.contexts, info["closing"] = answer.context, contexts, copy_messages(answer.messages)
        state.role = role
        state.return_so_far += answer.reward
        state.user_turns = answer.info.user_turns
        state.terminated, state.truncated, state.stop = answer.terminated, answer.truncated, answer.info.stop
        if self.render_mode == "human":
            self.render()
        return copy_messages(state.messages), answer.reward, state.terminated, state.truncated, info

    def _role(self, info: OpenedInfo) -> str:
        """Return who acts next, as the server says where there are several."""
        role = (info.model_extra or {}).get("role", self.roles[0])
        if role not in self.roles:
            raise RemoteError(f"{self.url} names the role {quoted(role, 60)}, and there are {', '.join(self.roles)}")
        return str(role)

    def close(self) -> None:  # the connection stays, for other environments of this process
        self._drop()
        super().close()

    async def aclose(self) -> None:
        self._drop()
        await super().aclose()

    # ------------------------------------------------------------------ snapshots

    def restore(self, state: RemoteState, seed: int | None = None) -> None:
        super().restore(state, seed)
        self._drop()
        if seed is not None and self.state.messages:
            self.state.events += (encode({"reseed": operator.index(seed)}).decode(),)

    def fork(self, seed: int | None = None) -> Self:
        child = super().fork(seed)  # copied as by __getstate__, without the session
        if seed is not None and child.state.messages:
            child.state.events += (encode({"reseed": operator.index(seed)}).decode(),)
        return child

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lease": None}  # a copy opens a session of its own

    # ------------------------------------------------------------------ sessions

    def _drop(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.close()

    async def _open_session(self) -> Opened:
        """Open a session, with the episode replayed up to its current turn."""
        self._drop()
        state, client, session = self.state, self._client, uuid.uuid4().hex
        replay = [decode(event) for event in state.events]
        fields = {"env": self.remote_env, "seed": state.seed, "options": decode(state.options), "replay": replay}
        self._lease = _Lease(client, session, state.played)
        try:
            opened = _checked(Opened, await client.ask("open", session=session, **fields), self.url)
            before = state.messages[:-1] if state.assistant_turns > state.played else state.messages
            same = opened.messages == before and opened.contexts == state.contexts
            if replay and (opened.turn != state.played or not same):
                raise RemoteError(
                    f"{self.url}: {self.remote_env} played the same episode again and it went otherwise, so it cannot "
                    "be continued: it is not deterministic, or the server has changed",
                    "replay_failed",
                )
        except BaseException:  # cancelled, or without an answer: it may be open
            self._drop()
            raise
        return opened

    async def _in_session(self, op: str, kind: type[AnswerT], reply: Message | None = None, **fields: Any) -> AnswerT:
        """Send a request at the episode's current turn, in this session or else in a new one."""
        if not self.state.messages:
            raise gymnasium.error.ResetNeeded(f"{type(self).__name__}: the episode is not started; call reset() first")
        turn, lease = self.state.played, self._lease
        if lease is not None and (lease.client is not self._client or lease.turn != turn):
            self._drop()  # it is our parent's, or has played what this episode has not
        for attempt in range(2):
            if self._lease is None:
                await self._open_session()
            assert self._lease is not None
            try:
                answer = await self._client.ask(op, session=self._lease.session, turn=turn, **fields)
                return _checked(kind, answer, self.url, reply)
            except RemoteError as error:
                if attempt or error.kind not in ("unknown_session", "wrong_turn"):
                    raise
                self._drop()
        raise AssertionError("the second attempt returns or raises")

    def _script(self, op: str, rng: np.random.Generator) -> str | Message:
        work = self._in_session(op, protocol.Scripted, rng=rng.bit_generator.state)
        answer = asyncio.run_coroutine_threadsafe(work, self._client.loop).result()
        try:
            protocol.set_state(rng, answer.rng)
        except Refusal as error:
            raise RemoteError(f"{self.url} answered nonsense: {error}", error.kind) from None
        return answer.action if isinstance(answer.action, str) else as_reply(answer.action)


def _checked(kind: type[AnswerT], answer: Mapping[str, Any], url: str, reply: Message | None = None) -> AnswerT:
    """Parse an answer of this kind, or raise :class:`RemoteError`; a ``step``'s answer must begin with the reply."""
    try:
        parsed = kind.model_validate(answer)
    except (ValidationError, OverflowError) as error:
        first: Any = error.errors()[0] if isinstance(error, ValidationError) else {"loc": ("a number",), "msg": error}
        what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    else:
        if not isinstance(parsed, Stepped) or (reply is not None and _is_reply(parsed.messages[:1], reply)):
            return parsed
        what = "messages: the first one is not the reply as it was sent"
    raise RemoteError(
        f"{url} did not answer as the protocol has it ({excerpt(what)}); is that a server of `textenvs serve`?",
        "bad_request",
    )


def _is_reply(messages: Messages, reply: Message) -> bool:
    """Return whether these are the reply as it was sent, or taken apart by the server's marks of reasoning."""
    if messages == (reply,) or not messages or "reasoning_content" in reply:
        return messages == (reply,)
    text, first = text_of(reply), messages[0]
    split = "reasoning_content" in first and text_of(first) in text
    return split and first == {**reply, "content": first["content"], "reasoning_content": first["reasoning_content"]}


def _check_protocol(answer: Mapping[str, Any], url: str) -> None:
    """Raise :class:`RemoteError` if a server's description is of another version of the protocol."""
    if (version := answer.get("protocol")) != protocol.PROTOCOL:
        raise RemoteError(
            f"{url} speaks version {excerpt(repr(version), 20)} of the protocol, and this textenvs version "
            f"{protocol.PROTOCOL}; install the same version of textenvs at both ends",
            "bad_request",
        )


def _token_for(url: str) -> str | None:
    token = os.environ.get(TOKEN_VARIABLE)
    if not token or origin(url) == origin(os.environ.get(URL_VARIABLE) or "") or is_loopback(urlsplit(url).hostname):
        return token or None
    raise ValueError(
        f"{TOKEN_VARIABLE} is sent to the server at {URL_VARIABLE} or on this machine only, and url={url!r} is another "
        f"one: set {URL_VARIABLE} to it, or give token=..."
    )


def _chosen(description: protocol.Described, env: str | None, url: str) -> tuple[str, protocol.Facts]:
    environments = description.environments
    if env is None and len(environments) == 1:
        env = next(iter(environments))
    if env is None or env not in environments:
        what = "which one is meant? Give env=..." if env is None else f"it does not offer {env!r}"
        raise ValueError(f"{url} offers {', '.join(environments)}; {what}")
    return env, environments[env]


def _action(reply: Message) -> Any:
    """Return a reply for the protocol: text alone where there is nothing but text."""
    return reply["content"] if len(reply) == 2 and isinstance(reply["content"], str) else dict(reply)


def _sendable(options: Mapping[str, Any]) -> str:
    """Encode reset options as JSON text: a task is sent as its row."""
    try:
        return encode(
            {name: value.to_row() if isinstance(value, Task) else value for name, value in options.items()}
        ).decode()
    except (TypeError, ValueError) as error:
        raise ValueError(f"the options of a remote environment must be JSON: {error}") from error
