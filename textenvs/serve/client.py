"""The other end: one WebSocket to a server for all environments of a process, and requests that survive its loss.

Everything happens on the background loop (:mod:`textenvs.event_loop`), because a connection is bound to one loop and
environments are used from many. A request whose connection is lost, or which the server has no room for, is sent again
under its id, for ``retry_s`` at most; so it is carried out once, however often it is sent.
"""

from __future__ import annotations

import asyncio
import atexit
import http.client
import json
import os
import random
import threading
import time
import urllib.error
import urllib.request
import uuid
import weakref
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import gymnasium

from .. import event_loop as background
from ..env import FAILURE_STOPS, EnvironmentFailure
from ..text import excerpt
from .protocol import ERRORS, PASSING, PREFIX, PROTOCOL, Json, encode

T = TypeVar("T")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_CONNECT_S = 10.0
_HEARTBEAT_S = 20.0
_TOO_LARGE = 1009  # WebSocket's code for a message that is
#: The largest answer that is read, in bytes: what a server may make this process hold.
MAX_ANSWER_BYTES = 32 * 2**20
_CHUNK = 2**16
_SAID = 1000  # characters of what a server says is wrong
#: Bytes of a message that may be the reason why its connection was lost. The server stops to read one that is too
#: large, so what the sockets have no room for cannot be sent, and its word about it (1009) does not arrive.
_MAYBE_TOO_LARGE = 2**16


class RemoteError(ConnectionError):
    """The server could not be reached, or refused, or answered nonsense.

    Args:
        message: What happened, and what to do.
        kind: The server's word for it (:data:`textenvs.serve.protocol.STATUS`); ``"lost"`` where it did not answer.
    """

    def __init__(self, message: str, kind: str = "lost") -> None:
        super().__init__(message)
        self.kind = kind

    def __reduce__(self) -> tuple[Any, ...]:
        """With its kind, also between processes."""
        return type(self), (str(self), self.kind)


class Client:
    """Requests to one server; shared by everything in this process that speaks with it under the same token.

    Args:
        url: Of the server: ``http://host:port``.
        token: What it asks for; ``None`` for none.
        timeout_s: The longest that an answer may take.
        retry_s: How long a request is tried again when the server cannot be reached or has no room.

    Raises:
        ValueError: The URL is none, or a number is not above 0.
        ImportError: aiohttp is missing.
    """

    def __init__(self, url: str, token: str | None = None, *, timeout_s: float = 180.0, retry_s: float = 30.0) -> None:
        for name, value in (("timeout_s", timeout_s), ("retry_s", retry_s)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise ValueError(f"{name} must be a number of seconds above 0, not {value!r}")
        self.url = _checked(url)
        self.timeout_s = timeout_s
        self.retry_s = retry_s
        self.max_message_bytes: int | None = None  # what the server takes, once it has told; older ones never do
        self._link = _Link(self.url, token)
        self.pid = os.getpid()
        self._end = weakref.finalize(self, _Link.shut, self._link)
        self._end.atexit = False  # _at_exit closes, and waits for it

    @classmethod
    def shared(cls, url: str, token: str | None, timeout_s: float, retry_s: float) -> Client:
        """The client of this process for these arguments."""
        key = (os.getpid(), url, token, timeout_s, retry_s)
        with _lock:
            client = _clients.get(key)
            if client is None:
                client = _clients[key] = cls(url, token, timeout_s=timeout_s, retry_s=retry_s)
        return client

    async def call(self, op: str, *, request_id: str | None = None, **asked: Any) -> Json:
        """Ask the server, on whatever loop this is awaited.

        Args:
            op: What for.
            request_id: The id of a request that is asked again; a new one without.
            **asked: The other fields of the request.

        Returns:
            The field ``ok`` of the answer.

        Raises:
            RemoteError: No answer after all tries, or a refusal that no other exception stands for.
            gymnasium.error.InvalidAction: The action is no reply.
            gymnasium.error.ResetNeeded: The episode is over.
            EnvironmentFailure: The environment could not begin an episode.
            Exception: What the environment raised, where it is one of :data:`~textenvs.serve.protocol.ERRORS`.
        """
        message = {"id": request_id or new_id(), "op": op, **asked}
        answer = self._post(message) if _posting.get() else await on_background(self._call(message))
        if op == "describe":
            self._learn(answer)
        return answer

    def call_soon(self, op: str, **asked: Any) -> None:
        """Ask for something whose answer nobody waits for; from any thread, a finalizer too."""
        self._link.send_soon({"id": new_id(), "op": op, **asked})

    def take_back(self, request_id: str, **asked: Any) -> None:
        """Close the session of an opening that nobody waits for any more, and that may have been carried out.

        It is asked for again under its id, in the background, to hear which session that is. A server that cannot be
        reached ends the session by itself, as one that nobody uses.
        """

        async def closed() -> None:
            with suppress(Exception):
                opened = await self._call({"id": request_id, "op": "open", **asked})
                await self._call({"id": new_id(), "op": "close", "session": opened["session"]})

        if background.is_here():
            _keep(asyncio.get_running_loop().create_task(closed()))
        else:
            background.submit(closed())

    async def _call(self, message: Json) -> Json:
        text, tries = encode(message), _Tries(self.url, self.retry_s)
        while True:
            self._check_size(len(text))
            try:
                return tries.told(await self._link.ask(message["id"], text, self.timeout_s))
            except _Lost as lost:
                await asyncio.sleep(tries.pause(lost))
                if lost.kind == "lost" and len(text) > _MAYBE_TOO_LARGE:
                    await self._ask_for_the_limit()

    async def _ask_for_the_limit(self) -> None:
        """What the server takes: nobody may have asked in this process, or it may be another server by now."""
        name = new_id()
        with suppress(_Lost, RemoteError):
            answer = await self._link.ask(name, encode({"id": name, "op": "describe"}), self.timeout_s)
            self._learn(answer.get("ok"))

    def _learn(self, described: Any) -> None:
        told = described.get("max_message_bytes") if isinstance(described, dict) else None
        self.max_message_bytes = told if isinstance(told, int) and not isinstance(told, bool) and told > 0 else None

    def _check_size(self, size: int) -> None:
        """Refuse what the server would: sending it would cost everybody here the connection, and say nothing."""
        if self.max_message_bytes is not None and size > self.max_message_bytes:
            raise _too_large(size, self.max_message_bytes)

    def _post(self, message: Json) -> Json:
        """The same over HTTP, in this thread."""
        tries = _Tries(self.url, self.retry_s)
        headers = {"Content-Type": "application/json", **self._link.headers}
        body = encode({name: value for name, value in message.items() if name != "op"}).encode()
        self._check_size(len(body))
        request = urllib.request.Request(f"{self.url}{PREFIX}/{message['op']}", body, headers)
        # No proxy, as for the WebSocket; and no redirection, which would carry the token to another server.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Stay)
        while True:
            try:
                return tries.told(_received(opener, request, self.timeout_s))
            except _Lost as lost:
                time.sleep(tries.pause(lost))


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Nowhere: the answer is an error."""


def _received(opener: urllib.request.OpenerDirector, request: urllib.request.Request, timeout_s: float) -> Any:
    """What an HTTP request is answered, decoded; ``None`` if it is not JSON."""
    deadline = time.monotonic() + timeout_s
    try:
        try:
            with opener.open(request, timeout=timeout_s) as answer:
                text = _bounded(answer, request.host, deadline)
        except urllib.error.HTTPError as error:
            with error:
                text = _bounded(error, request.host, deadline)
    except RemoteError:  # what was refused here; asking again would not change it
        raise
    except (OSError, http.client.HTTPException) as error:  # the latter for an answer that breaks off
        raise _Lost(f"no connection: {error!r}") from error
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # the latter for one that is nested too deeply
        return None


def _bounded(answer: Any, where: str, deadline: float) -> bytes:
    """The body of an answer; ``timeout_s`` of the opener is of each read only, so the time is watched here."""
    length = getattr(answer, "length", None)  # what its header says, where it has one
    if length is not None and length > MAX_ANSWER_BYTES:
        raise _answer_too_large(where)
    text = bytearray()
    while chunk := answer.read1(_CHUNK):
        text += chunk
        if len(text) > MAX_ANSWER_BYTES:
            raise _answer_too_large(where)
        if time.monotonic() > deadline:
            raise RemoteError(f"{where} sends its answer too slowly: it was not whole in time")
    if length is not None and len(text) < length:
        raise http.client.IncompleteRead(bytes(text), length - len(text))
    return bytes(text)


def _answer_too_large(where: str) -> RemoteError:
    return RemoteError(
        f"{where} sent an answer of more than {MAX_ANSWER_BYTES} bytes, which is not read: episodes there say too much",
        "too_large",
    )


class _Lost(Exception):
    """No answer, or one that may be another a little later."""

    def __init__(self, message: str, kind: str = "lost", retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after_s = retry_after_s


class _Tries:
    """How often a request is sent: until an answer, or for ``retry_s`` after it first failed."""

    def __init__(self, url: str, retry_s: float) -> None:
        self._url = url
        self._retry_s = retry_s
        self._pause = _FIRST_PAUSE_S
        self._since: float | None = None

    def told(self, answer: Any) -> Json:
        """The field ``ok`` of an answer; an error is raised.

        Raises:
            _Lost: One that may pass.
        """
        error = answer.get("error") if isinstance(answer, dict) else None
        if isinstance(error, dict):
            problem = exception_of(error, self._url)
            if error.get("kind") in PASSING:
                raise _Lost(str(problem), str(error["kind"]), _seconds(error.get("retry_after_s")))
            raise problem
        if not isinstance(answer, dict) or not isinstance(answer.get("ok"), dict):
            raise RemoteError(f"{self._url} answered what is not of this protocol", "bad_request")
        return answer["ok"]  # type: ignore[no-any-return]

    def pause(self, lost: _Lost) -> float:
        """How long to wait before the next try, in seconds.

        Raises:
            RemoteError: There is none.
        """
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        wait = max(lost.retry_after_s, self._pause) * random.uniform(0.75, 1.25)
        if now + wait > self._since + self._retry_s:
            where = "" if str(lost).startswith(self._url) else f"{self._url}: "
            raise RemoteError(f"{where}{lost} (tried for {now - self._since:.1f} s)", lost.kind) from lost
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)
        return wait


def _seconds(value: Any) -> float:
    """How long a server asks to wait; 0 where it says nothing of use."""
    return float(value) if isinstance(value, (int, float)) and 0 <= value < 1e9 else 0.0


def new_id() -> str:
    """An id that no other request has."""
    return uuid.uuid4().hex


def exception_of(error: Mapping[str, Any], where: str) -> Exception:
    """What a server's error is raised as here."""
    kind, message = str(error.get("kind"))[:64], excerpt(str(error.get("message")), _SAID)
    if kind == "invalid_action":
        return gymnasium.error.InvalidAction(message)
    if kind == "reset_needed":
        return gymnasium.error.ResetNeeded(message)
    if kind == "environment_failure" and error.get("stop") in FAILURE_STOPS:
        return EnvironmentFailure(str(error["stop"]), message)
    if (known := ERRORS.get(str(error.get("exception")))) is not None:
        return known(message)
    if kind == "unauthorized":
        message += " (token=... or the environment variable TEXTENVS_TOKEN)"
    return RemoteError(f"{where}: {kind}: {message}", kind)


_posting: ContextVar[bool] = ContextVar("_posting", default=False)


def wait_here(work: Coroutine[Any, Any, T]) -> T:
    """:func:`~textenvs.event_loop.wait_for`, also on the background loop itself.

    There, where a synchronous hook was called from a coroutine, nothing can be awaited: the requests that ``work``
    makes go over HTTP, in this thread. It must await nothing else.
    """
    if not background.is_here():
        return cast(T, background.wait_for(cast(Any, work)))
    token = _posting.set(True)
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    finally:
        _posting.reset(token)
        work.close()
    raise RuntimeError("this awaits something else than requests")


async def on_background(work: Coroutine[Any, Any, T]) -> T:
    """Await on the background loop, from whatever loop this is."""
    if background.is_here():
        return await work
    return await asyncio.wrap_future(background.submit(work))


@dataclass
class _Waiting:
    """Somebody who waits for an answer, and the size of the request."""

    answer: asyncio.Future[Json]
    size: int


class _Link:
    """The WebSocket, made when it is needed and again when it was lost. Lives on the background loop."""

    def __init__(self, url: str, token: str | None) -> None:
        self._url = url
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._aiohttp = _aiohttp()
        self._session: Any = None
        self._ws: Any = None
        self._reader: asyncio.Task[None] | None = None
        self._connecting: asyncio.Lock | None = None
        self._waiting: dict[str, _Waiting] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shut = False

    async def ask(self, name: str, text: str, timeout_s: float) -> Json:
        """The answer to one message.

        Raises:
            _Lost: There is none; the message may have been carried out or not.
            RemoteError: The server refuses to speak with us, or takes too long.
        """
        ws, waiting = await self._connected()
        answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        waiting[name] = _Waiting(answer, len(text))
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    await ws.send_str(text)
                except (ConnectionError, RuntimeError) as error:
                    raise _Lost(f"the connection broke: {error}") from error
                return await answer
        except TimeoutError:
            raise RemoteError(f"{self._url} did not answer within {timeout_s:g} s") from None
        finally:
            if name in waiting and waiting[name].answer is answer:
                del waiting[name]

    def send_soon(self, message: Json) -> None:
        """Send without waiting for an answer, if there is a connection."""
        loop = self._loop
        if loop is None or self._ws is None or self._shut:
            return

        def send() -> None:
            if self._ws is not None and not self._ws.closed:
                _keep(loop.create_task(self._send(encode(message))))

        with suppress(RuntimeError):  # the loop is no more
            loop.call_soon_threadsafe(send)

    async def _send(self, text: str) -> None:
        with suppress(ConnectionError, RuntimeError):
            await self._ws.send_str(text)

    async def _connected(self) -> tuple[Any, dict[str, _Waiting]]:
        if self._connecting is None:
            self._loop, self._connecting = asyncio.get_running_loop(), asyncio.Lock()
        async with self._connecting:
            if self._ws is None or self._ws.closed:
                await self._connect()
            return self._ws, self._waiting

    async def _connect(self) -> None:
        aiohttp = self._aiohttp
        if self._session is None:
            # No proxy from the environment: its variables are for the web.
            self._session = aiohttp.ClientSession(
                headers=self.headers, timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
            )
        try:
            async with asyncio.timeout(_CONNECT_S):
                ws = await self._session.ws_connect(
                    f"{self._url}{PREFIX}/ws", heartbeat=_HEARTBEAT_S, max_msg_size=MAX_ANSWER_BYTES, autoping=True
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status in (401, 403):
                reason = "its token is missing or wrong" if error.status == 401 else "it is forbidden"
                raise RemoteError(
                    f"{self._url} refuses us: {reason}; give token=... or set TEXTENVS_TOKEN",
                    "unauthorized" if error.status == 401 else "forbidden",
                ) from error
            if error.status in (429, 503):
                raise _Lost(f"the server has no room (HTTP {error.status})") from error
            raise RemoteError(
                f"{self._url}{PREFIX}/ws answers HTTP {error.status}; is that a server of `textenvs serve`?",
                "bad_request",
            ) from error
        except TimeoutError as error:
            raise _Lost(f"no connection within {_CONNECT_S:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _Lost(f"no connection: {error}") from error
        self._ws, self._waiting = ws, {}
        self._reader = asyncio.ensure_future(_read(ws, self._waiting))

    @staticmethod
    def shut(link: _Link) -> None:
        """Close soon; from any thread, a finalizer too."""
        link._shut = True
        if link._loop is None:
            return

        def close() -> None:
            assert link._loop is not None
            _keep(link._loop.create_task(link.close()))

        with suppress(RuntimeError):  # the loop is no more
            link._loop.call_soon_threadsafe(close)

    async def close(self) -> None:
        """Close the connection."""
        if self._ws is not None:
            with suppress(Exception):
                async with asyncio.timeout(1.0):
                    await self._ws.close()
        if self._reader is not None:
            self._reader.cancel()
        if self._session is not None:
            await self._session.close()


async def _read(ws: Any, waiting: dict[str, _Waiting]) -> None:
    """Hand each answer to who waits for it; when the connection is lost, tell everybody."""
    why = "the connection was closed"
    try:
        async for message in ws:
            if getattr(message.data, "code", None) == _TOO_LARGE:  # theirs: ws holds the error in the message's place
                for each in waiting.values():
                    _fail(each.answer, _answer_too_large("the server"))
                break
            try:
                answer = json.loads(message.data)
                asked = waiting.get(answer["id"])
            except (ValueError, KeyError, TypeError):
                continue  # no answer of this protocol: nobody waits for it
            if asked is not None and not asked.answer.done():
                asked.answer.set_result(answer)
        else:
            if ws.close_code == _TOO_LARGE:
                _blame_the_largest(waiting)
            if ws.close_code not in (None, 1000):
                why = f"the connection was closed with code {ws.close_code}"
    except Exception as error:
        why = f"the connection broke: {error}"
    finally:
        for asked in waiting.values():
            _fail(asked.answer, _Lost(why))
        with suppress(Exception):
            await ws.close()


def _blame_the_largest(waiting: Mapping[str, _Waiting]) -> None:
    """A message was too large: to send that again would only close the next connection, too."""
    if waiting:
        largest = max(waiting.values(), key=lambda asked: asked.size)
        _fail(largest.answer, _too_large(largest.size))


def _too_large(size: int, most: int | None = None) -> RemoteError:
    limit = "" if most is None else f", {most} at most"
    return RemoteError(
        f"the server takes no request of {size} bytes{limit} (textenvs serve --max-message-mb)", "too_large"
    )


def _fail(answer: asyncio.Future[Json], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # seen, also where nobody waits any more


_lock = threading.Lock()
_clients: weakref.WeakValueDictionary[Any, Client] = weakref.WeakValueDictionary()
_orphans: list[_Link] = []  # of the parent process: nothing here may close them
_sending: set[asyncio.Task[Any]] = set()  # a loop keeps tasks only weakly


def _keep(task: asyncio.Task[Any]) -> None:
    _sending.add(task)
    task.add_done_callback(_sending.discard)


def _after_fork() -> None:
    """A forked child shares no connection with its parent: it would read the other's answers."""
    global _lock
    _lock = threading.Lock()
    for client in list(_clients.values()):
        client._end.detach()
        _orphans.append(client._link)
    _clients.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _at_exit() -> None:
    """Say goodbye to the servers, so that they need not find out."""
    links = [client._link for client in list(_clients.values()) if client.pid == os.getpid()]
    for link in links:
        if link._session is not None:
            with suppress(Exception):
                background.submit(link.close()).result(timeout=2.0)


def check_described(answer: Mapping[str, Any], url: str) -> Mapping[str, Any]:
    """A server's description of itself.

    Raises:
        RemoteError: It speaks another version of the protocol.
    """
    if answer.get("protocol") != PROTOCOL:
        raise RemoteError(
            f"{url} speaks version {answer.get('protocol')} of the protocol, and this textenvs version {PROTOCOL}; "
            "install the same version of textenvs at both ends",
            "bad_request",
        )
    return answer


def _checked(url: Any) -> str:
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"url must be the server's address, for example 'http://localhost:8123', not {url!r}")
    if parts.username or parts.password:
        raise ValueError("url must not have a password; give token=... or set TEXTENVS_TOKEN")
    return url.rstrip("/")


def _aiohttp() -> Any:
    try:
        import aiohttp
    except ImportError as error:
        raise ImportError(
            f"remote environments need aiohttp ({error}); install it with: pip install 'textenvs[serve]'"
        ) from error
    return aiohttp
