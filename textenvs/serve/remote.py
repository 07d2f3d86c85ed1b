"""``textenv/remote``: an environment that is played by a server (``textenvs serve``), as if it were here.

What an episode is stands on this side: its seed, its options and the replies so far. The server's session is only where
it is being played at the moment. When the session is lost (it has expired, the server was restarted), or the episode is
continued somewhere else (a fork, a snapshot, another process), the server plays it again from the start, in a new
session, and the conversation must come out the same. So episodes of environments that are not deterministic, where a
user or a judge is a language model, cannot be forked or restored; playing them is no different.
"""

from __future__ import annotations

import operator
import os
import weakref
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

import gymnasium
import numpy as np

from ..env import EpisodeState, ResetResult, StepResult, TextEnv, Turn
from ..messages import Message, Messages, copy_messages
from ..task import Task
from ..trust import is_loopback, origin
from .client import Client, RemoteError, check_described, new_id, wait_here
from .protocol import PASSING, Json, decode, encode, generator_from, generator_state
from .remote_checks import BadAnswer, described, field, info_of, messages_of, stepped

#: Where the arguments are looked for that are not given.
URL_VARIABLE, ENV_VARIABLE, TOKEN_VARIABLE = "TEXTENVS_URL", "TEXTENVS_REMOTE_ENV", "TEXTENVS_TOKEN"


@dataclass
class RemoteState(EpisodeState):
    """An episode as this side knows it.

    Args:
        seed: Of the episode.
        options: Of the reset, as JSON text.
        replies: What was replied, as JSON texts: a reply as it was sent, which the conversation may show otherwise.
        reseeds: When the episode was forked with a seed of its own: after how many replies, and which.
        opened: The info of the reset.
    """

    seed: int | None = None
    options: str = "null"
    replies: tuple[str, ...] = ()
    reseeds: tuple[tuple[int, int], ...] = ()
    opened: str = "{}"


class RemoteTasks:
    """The tasks of an environment elsewhere: how many, and their keys. Their rows stay where they are."""

    def __init__(self, facts: Mapping[str, Any], client: tuple[Any, ...], env: str, kwargs: Json) -> None:
        self._name, self._size = facts["name"], facts["size"]
        self._client, self._env, self._kwargs = client, env, kwargs

    @property
    def name(self) -> str:
        """What the server says which rows these are."""
        return str(self._name)

    @property
    def size(self) -> int | None:
        """How many there are; ``None`` when endless."""
        return self._size  # type: ignore[no-any-return]

    def __getitem__(self, index: int) -> Task:
        """A task's key and source, asked of the server; its prompt is empty and its ground truth ``None``.

        Raises:
            IndexError: ``index`` is negative, or not below ``size``.
        """
        if index < 0:
            raise IndexError(f"{self._name}: index {index} is outside its tasks, it must be at least 0")
        if self._size is not None and index >= self._size:
            raise IndexError(f"{self._name}: index {index} is outside its {self._size} tasks")
        client = Client.shared(*self._client)
        told: Json = wait_here(client.call("task", env=self._env, index=operator.index(index), kwargs=self._kwargs))
        return Task(str(told.get("key")), str(told.get("data_source")), (), None)


class _Lease:
    """A session that an environment has. It is closed when nothing refers to it any more."""

    def __init__(self, client: Client, session: str, turn: int) -> None:
        self.client = client
        self.session = session
        self.turn = turn
        self.pid = os.getpid()
        self.owed: tuple[int, str, str] | None = None  # turn, reply and request id of an answer that has not come
        self._end = weakref.finalize(self, client.call_soon, "close", session=session)
        self._end.atexit = False  # the connection ends then

    def close(self) -> None:
        """Tell the server that the session is not needed."""
        if self.pid == os.getpid():
            self._end()

    def forget(self) -> None:
        """The server has closed it, or has been told."""
        self._end.detach()


class RemoteAnswer(Turn):
    """What the server made of a reply."""

    answer: Json

    def __init__(self, answer: Json) -> None:
        super().__init__()
        self.__dict__["answer"] = answer


class Remote(TextEnv[RemoteState]):
    """Plays an environment that a server offers; see ``docs/serving.md``.

    Args:
        url: Of the server, ``http://host:port``; without it the environment variable ``TEXTENVS_URL``.
        env: Which of the server's environments; without it ``TEXTENVS_REMOTE_ENV``, or the only one there is.
        token: What the server asks for; without it ``TEXTENVS_TOKEN``, which is for the server at ``TEXTENVS_URL`` or
            on this machine. Prefer the variable: what is given to ``make`` stands in ``env.spec``.
        env_kwargs: For the constructor of the environment there, where the server allows it.
        timeout_s: The longest that an answer may take.
        retry_s: How long a request is tried again when the server cannot be reached or has no room.
        render_mode: As in :class:`~textenvs.env.TextEnv`.

    Raises:
        ValueError: No URL, no such environment there, or ``TEXTENVS_TOKEN`` is there for another server.
        RemoteError: The server cannot be reached, refuses the token, or speaks another version of the protocol.
        ImportError: aiohttp is missing.
    """

    state_type: ClassVar[type[EpisodeState]] = RemoteState

    def __init__(
        self,
        *,
        url: str | None = None,
        env: str | None = None,
        token: str | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
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
        self._client = Client.shared(*self._client_arguments)
        self.env_kwargs = dict(env_kwargs or {})
        there = check_described(wait_here(self._client.call("describe")), self.url)
        self.remote_env = _chosen(there, env or os.environ.get(ENV_VARIABLE), self.url)
        if self.env_kwargs:
            there = wait_here(self._client.call("describe", env=self.remote_env, kwargs=self.env_kwargs))
        try:
            facts, limits, tools = described(there["environments"][self.remote_env])
        except (KeyError, TypeError, BadAnswer) as error:
            raise self._nonsense(f"what {self.remote_env} is ({error})") from error
        tasks = RemoteTasks(facts, self._client_arguments, self.remote_env, self.env_kwargs)
        self.tool_schemas, self.tools_not_in_prompt = tools
        super().__init__(
            tasks,
            max_assistant_turns=limits["max_assistant_turns"],
            max_user_turns=limits["max_user_turns"],
            render_mode=render_mode,
        )
        self._lease: _Lease | None = None
        self._asked: tuple[int | None, dict[str, Any]] = (None, {})  # of the reset that is going on

    @property
    def url(self) -> str:
        """Of the server."""
        return str(self._client_arguments[0])

    # ------------------------------------------------------------------ the hooks

    async def opening(self, task: Task) -> Messages:
        """Open a session, in the place of the one of the last episode."""
        seed, options = self._asked
        state = self.state
        state.seed = int(self.np_random.integers(2**63)) if seed is None else operator.index(seed)
        state.options = encode(options) if options else "null"
        answer = await self._open_session([])
        with self._checking():
            messages, info = messages_of(answer), info_of(answer)
            for name in ("task_key", "data_source"):
                field(info, name, str)
            state.task_index = field({"task_index": -1, **info}, "task_index", int)
        state.task = Task(info["task_key"], info["data_source"], messages, None)
        state.opened = encode(info)
        return messages

    async def respond(self, reply: Message) -> Turn:
        """Send the reply, in a session where the episode is at this turn."""
        turn, text = len(self.state.replies), encode({"action": _action(reply)})
        lease = self._lease
        if lease is not None and (lease.pid != os.getpid() or not self._at(lease, turn, text)):
            self._drop()  # it has played what this episode has not, or is our parent's
            lease = None
        if lease is not None:
            try:
                return RemoteAnswer(await self._step(lease, turn, text))
            except RemoteError as error:
                if error.kind not in ("unknown_session", "wrong_turn"):
                    raise
                self._drop()
        await self._open_session(self._so_far())
        assert self._lease is not None
        return RemoteAnswer(await self._step(self._lease, turn, text))

    def demonstration(self, rng: np.random.Generator) -> str | Message:
        """The scripted expert's next reply, where the server shows it (``--allow expert``)."""
        return self._script("demonstration", rng)

    def careless_reply(self, rng: np.random.Generator) -> str | Message:
        """A careless next reply, where the server shows it (``--allow expert``)."""
        return self._script("careless_reply", rng)

    def secrets(self) -> Sequence[str]:
        """None: they stay at the server."""
        return ()

    async def conversation_score(self) -> Mapping[str, float]:
        """The scores of the conversation, where the server gives them (``--allow scores``)."""
        return self._field(await self._in_session("score"), "scores", dict)  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ the episode

    def _begin_episode(
        self, seed: int | None, options: dict[str, Any] | None
    ) -> ResetResult | Coroutine[Any, Any, ResetResult]:
        asked = seed
        if seed is None and self._np_random is None and self._np_random_seed is not None:
            asked = self._np_random_seed  # nothing was drawn of it: this is the episode of that seed
        self._asked = (asked, _sendable(options or {}))
        return super()._begin_episode(seed, options)

    def _pick(self, options: Mapping[str, Any]) -> tuple[int, Task]:
        return -1, Task("", "", (), None)  # the server picks

    def _identity(self) -> dict[str, Any]:
        return dict(decode(self.state.opened))

    def _conclude(self, turn: Turn) -> StepResult:
        assert isinstance(turn, RemoteAnswer)
        state, reply = self.state, self.state.messages[-1]
        with self._checking():
            result = stepped(turn.answer, reply)
        state.replies += (encode({"action": _action(reply)}),)
        state.messages = (*state.messages[:-1], *result.messages)
        state.return_so_far += result.reward
        state.user_turns = result.info["user_turns"]
        state.terminated, state.truncated, state.stop = result.terminated, result.truncated, result.info["stop"]
        if self.render_mode == "human":
            self.render()
        return copy_messages(state.messages), result.reward, state.terminated, state.truncated, result.info

    def close(self) -> None:
        """Give the session up; the connection stays, for other environments of this process."""
        self._drop()
        super().close()

    async def aclose(self) -> None:
        """:meth:`close`, awaitable."""
        self._drop()
        await super().aclose()

    # ------------------------------------------------------------------ snapshots

    def restore(self, state: RemoteState) -> None:
        """Continue from a snapshot, in a session of its own; the server plays the episode again up to there."""
        super().restore(state)
        self._drop()

    def fork(self, seed: int | None = None) -> Self:
        """An environment in the same state, whose session is opened when it is first used."""
        child = super().fork(seed)  # copied as by __getstate__, without the session
        if seed is not None and child.state.messages:
            child.state.reseeds += ((len(child.state.replies), operator.index(seed)),)
        return child

    def __getstate__(self) -> dict[str, Any]:
        """Without session and connection: a copy has its own."""
        return {**self.__dict__, "_lease": None, "_client": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The opposite."""
        self.__dict__.update(state)
        self._client = Client.shared(*self._client_arguments)

    # ------------------------------------------------------------------ sessions

    def _here(self) -> Client:
        """The client of this process, which may be a child of the one that made this environment."""
        if self._client.pid != os.getpid():
            self._client = Client.shared(*self._client_arguments)
        return self._client

    def _drop(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.close()

    def _at(self, lease: _Lease, turn: int, text: str) -> bool:
        """Whether the session can play this reply: it is at this turn, and owes no answer to another reply."""
        return lease.turn == turn and (lease.owed is None or lease.owed[:2] == (turn, text))

    def _so_far(self) -> list[Json]:
        """The episode, to be played again."""
        state = self.state
        events: list[Json] = []
        for turn in range(len(state.replies) + 1):
            events += [{"reseed": seed} for at, seed in state.reseeds if at == turn]
            if turn < len(state.replies):
                events.append(decode(state.replies[turn]))
        return events

    async def _open_session(self, replay: list[Json]) -> Json:
        """A session in which the episode is where it is here."""
        state, client = self.state, self._here()
        asked: Json = {
            "env": self.remote_env,
            "seed": state.seed,
            "options": decode(state.options),
            "kwargs": self.env_kwargs,
            "replay": replay,
        }
        old, self._lease = self._lease, None
        if old is not None and old.pid == os.getpid():
            asked["replaces"] = old.session
        name = new_id()
        try:
            answer = await client.call("open", request_id=name, **asked)
        except BaseException as error:
            if not isinstance(error, Exception) or getattr(error, "kind", None) == "lost":
                client.take_back(name, **asked)  # cancelled, or too late: there may be a session, or soon
            raise
        if old is not None:
            old.forget()
        turn = self._field(answer, "turn", int)
        self._lease = _Lease(client, self._field(answer, "session", str), turn)
        if replay and (turn != len(state.replies) or self._news(answer) != self._before()):
            self._drop()
            raise RemoteError(
                f"{self.url}: {self.remote_env} played the same episode again and it went otherwise, so it cannot be "
                "continued: it is not deterministic, or the server has changed",
                "replay_failed",
            )
        return answer

    def _before(self) -> Messages:
        """The conversation without a reply that is on its way."""
        state = self.state
        return state.messages[:-1] if state.assistant_turns > len(state.replies) else state.messages

    async def _step(self, lease: _Lease, turn: int, text: str) -> Json:
        if lease.owed is None:
            lease.owed = (turn, text, new_id())
        asked = {"session": lease.session, "turn": turn, **decode(text)}
        try:
            answer = await lease.client.call("step", request_id=lease.owed[2], **asked)
        except Exception as error:
            if not isinstance(error, RemoteError) or error.kind not in ("lost", *PASSING):
                lease.owed = None  # the server has said that nothing was played
            raise
        if answer.get("session") != lease.session or answer.get("turn") != turn + 1:
            raise self._nonsense("the answer to this request")
        lease.turn, lease.owed = turn + 1, None
        return answer

    async def _in_session(self, op: str, **asked: Any) -> Json:
        """Ask something about the episode as it stands."""
        if not self.state.messages:
            raise gymnasium.error.ResetNeeded(f"{type(self).__name__}: the episode is not started; call reset() first")
        turn = len(self.state.replies)
        for attempt in range(2):
            lease = self._lease
            if lease is None or lease.pid != os.getpid() or lease.turn != turn or lease.owed is not None:
                self._drop()
                await self._open_session(self._so_far())
                lease = self._lease
            assert lease is not None
            try:
                return await lease.client.call(op, session=lease.session, turn=turn, **asked)
            except RemoteError as error:
                if attempt or error.kind not in ("unknown_session", "wrong_turn"):
                    raise
                self._drop()
        raise AssertionError("the second attempt returns or raises")

    def _script(self, op: str, rng: np.random.Generator) -> str | Message:
        answer: Json = wait_here(self._in_session(op, rng=generator_state(rng)))
        rng.bit_generator.state = generator_from(self._field(answer, "rng", dict)).bit_generator.state
        action = self._field(answer, "action", (str, dict))
        return action if isinstance(action, str) else self._news({"messages": [action]})[0]

    @contextmanager
    def _checking(self) -> Iterator[None]:
        try:
            yield
        except BadAnswer as error:
            raise self._nonsense(str(error)) from error

    def _news(self, answer: Json) -> Messages:
        with self._checking():
            return messages_of(answer)

    def _field(self, answer: Json, name: str, kind: Any) -> Any:
        with self._checking():
            return field(answer, name, kind)

    def _nonsense(self, what: str) -> RemoteError:
        return RemoteError(f"{self.url} did not answer {what}; is that a server of `textenvs serve`?", "bad_request")


def _token_for(url: str) -> str | None:
    """``TEXTENVS_TOKEN``, if it is for this server.

    Raises:
        ValueError: It is for another one.
    """
    token = os.environ.get(TOKEN_VARIABLE)
    if not token or origin(url) == origin(os.environ.get(URL_VARIABLE) or "") or is_loopback(urlsplit(url).hostname):
        return token or None
    raise ValueError(
        f"{TOKEN_VARIABLE} is sent to the server at {URL_VARIABLE} or on this machine only, and url={url!r} is another "
        f"one: set {URL_VARIABLE} to it, or give token=..."
    )


def _chosen(there: Mapping[str, Any], env: str | None, url: str) -> str:
    environments = there.get("environments") or {}
    if env is None and len(environments) == 1:
        env = next(iter(environments))
    if env is None or env not in environments:
        what = "which one is meant? Give env=..." if env is None else f"it does not offer {env!r}"
        raise ValueError(f"{url} offers {', '.join(environments)}; {what}")
    return env


def _action(reply: Message) -> Any:
    """A reply for the wire: text alone where there is nothing but text."""
    return reply["content"] if len(reply) == 2 else dict(reply)


def _sendable(options: Mapping[str, Any]) -> dict[str, Any]:
    """Reset options as JSON: a task is sent as its row."""
    sent = dict(options)
    if isinstance(sent.get("task"), Task):
        sent["task"] = sent["task"].to_row()
    if isinstance(sent.get("task_index"), np.integer):
        sent["task_index"] = int(sent["task_index"])
    try:
        encode(sent)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the options of a remote environment must be JSON: {error}") from error
    return sent
