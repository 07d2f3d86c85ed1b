"""Requests to a server of environments, which survive the loss of a connection.

A process has one event loop for them, in a thread of its own, because connections are bound to a loop and environments
are used from many, with and without ``await``. A request that gets no answer (in ``timeout_s``), or that the server has
no room for, is sent again for ``retry_s`` at most; the server carries it out once.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import random
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import gymnasium

from ..env import FAILURE_STOPS, NO_ROOM_STOPS, EnvironmentFailure
from ..options import Seconds, checked
from ..text import excerpt
from .protocol import ERRORS, PASSING, PREFIX, Json, decode, encode

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_CONNECT_S = 10.0
# Not the global generator: a thread that draws from it changes what seeded code elsewhere in the process draws.
_JITTER = random.Random()
_CLOSED_TOGETHER = 1000  # sessions in one request
# Statuses of a reverse proxy while the server behind it cannot be reached, is being restarted, or is late.
_NOT_REACHED = frozenset({502, 503, 504})
#: Connections at a time; more requests wait for one.
_CONNECTIONS = 512
#: The largest answer that is read, in bytes: bounds the memory of this process.
MAX_ANSWER_BYTES = 32 * 2**20


class RemoteError(ConnectionError):
    """The server could not be reached, or refused, or answered nonsense.

    ``kind`` is the server's word for it (:data:`textenvs.serve.protocol.STATUS`), or ``"lost"`` where it did not
    answer; ``retry_after_s`` says when it has room again.
    """

    def __init__(self, message: str, kind: str = "lost", retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.kind, self.retry_after_s = kind, retry_after_s

    def __reduce__(self) -> tuple[Any, ...]:  # with its kind
        return type(self), (str(self), self.kind, self.retry_after_s)


class Client:
    """Requests to one server, from any thread and any event loop; for the arguments see ``textenv/remote``."""

    @checked  # but for the token, which no error must show
    def __init__(self, url: str, token: Any = None, timeout_s: Seconds = 180.0, retry_s: Seconds = 30.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ValueError(f"url must be the server's address, for example 'http://localhost:8123', not {url!r}")
        if parts.username or parts.password:
            raise ValueError("url must not have a password; give token=... or set TEXTENVS_TOKEN")
        self.url, self.timeout_s, self.retry_s = url.rstrip("/"), timeout_s, retry_s
        self.sessions: set[str] = set()  # that are open
        self.pid = os.getpid()
        self.loop = _loop(self.pid)
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._connections: aiohttp.ClientSession | None = None

    def submit(self, op: str, **fields: Any) -> Future[Json]:
        """Send a request; the result is its answer, or :class:`RemoteError`, or what :func:`exception_of` makes."""
        return asyncio.run_coroutine_threadsafe(self._ask(op, fields), self.loop)

    async def ask(self, op: str, **fields: Any) -> Json:
        return await asyncio.wrap_future(self.submit(op, **fields))

    def close_soon(self, session: str) -> None:
        """Close a session without waiting for it; from any thread."""
        if self.pid == os.getpid():  # a child has no part in its parent's sessions
            self.sessions.discard(session)
            self.submit("close", sessions=[session])

    # ------------------------------------------------------------------ on the loop

    async def _ask(self, op: str, fields: Mapping[str, Any]) -> Json:
        body, pause, since = encode(fields), _FIRST_PAUSE_S, None
        while True:
            try:
                return await self._answer(op, body)
            except RemoteError as error:
                if error.kind not in ("lost", *PASSING):
                    raise
                now = time.monotonic()
                since = now if since is None else since
                wait = max(error.retry_after_s, pause) * _JITTER.uniform(0.75, 1.25)
                if now + wait > since + self.retry_s:
                    raise RemoteError(f"{error} (tried for {now - since:.1f} s)", error.kind) from error
            await asyncio.sleep(wait)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _answer(self, op: str, body: bytes) -> Json:
        status, text = await self._send(op, body)
        try:
            answer = decode(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or (status != 200 and not isinstance(answer.get("error"), dict)):
            status_line = f"{self.url}{PREFIX}/{op} answers HTTP {status}"
            if status in _NOT_REACHED:
                raise RemoteError(f"{status_line}: a proxy is there, and no server answers it")
            raise RemoteError(
                f"{status_line} and not this protocol; is that a server of `textenvs serve`?", "bad_request"
            )
        if status != 200:
            raise exception_of(answer["error"], self.url)
        return answer

    async def _send(self, op: str, body: bytes) -> tuple[int, bytes]:
        if self._connections is None:
            # No proxy from the environment: its variables are for the web.
            self._connections = aiohttp.ClientSession(
                headers={**self._headers, "Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=self.timeout_s, sock_connect=_CONNECT_S),
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        try:
            # A redirection would carry the token elsewhere.
            post = self._connections.post(f"{self.url}{PREFIX}/{op}", data=body, allow_redirects=False)
            async with post as answer:
                try:
                    await answer.content.readexactly(MAX_ANSWER_BYTES + 1)
                except asyncio.IncompleteReadError as whole:
                    return answer.status, whole.partial
                most = f"more than {MAX_ANSWER_BYTES} bytes, which is not read"
                raise RemoteError(f"{self.url} sent an answer of {most}", "too_large")
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise RemoteError(f"{self.url}: no connection: {error}") from error
        except TimeoutError as error:
            raise RemoteError(f"{self.url} did not answer within {self.timeout_s:g} s") from error
        except (aiohttp.ClientError, ConnectionResetError) as error:
            raise RemoteError(f"{self.url}: the connection broke: {error}") from error

    async def close(self) -> None:
        """Close all sessions and connections; on the loop, when the process ends."""
        with suppress(RemoteError, TimeoutError):
            async with asyncio.timeout(1.0):
                while self.sessions:
                    some = [self.sessions.pop() for _ in range(min(_CLOSED_TOGETHER, len(self.sessions)))]
                    await self._send("close", encode({"sessions": some}))
        if self._connections is not None:
            await self._connections.close()


_clients: dict[tuple[Any, ...], Client] = {}


def shared_client(*arguments: Any) -> Client:
    """Return this process's client for these arguments; a forked child shares no connection with its parent."""
    key = (os.getpid(), *arguments)
    if key not in _clients:
        _clients.setdefault(key, Client(*arguments))  # of two threads that come at once, both get the first one's
    return _clients[key]


@functools.cache
def _loop(pid: int) -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="textenvs-remote", daemon=True).start()
    return loop


@atexit.register
def _goodbye() -> None:
    for client in _clients.values():
        if client.pid == os.getpid():
            with suppress(Exception):
                asyncio.run_coroutine_threadsafe(client.close(), client.loop).result(timeout=2.0)


def exception_of(error: Mapping[str, Any], where: str) -> Exception:
    kind, message = str(error.get("kind"))[:64], excerpt(str(error.get("message")), 1000)
    if kind == "invalid_action":
        return gymnasium.error.InvalidAction(message)
    if kind == "reset_needed":
        return gymnasium.error.ResetNeeded(message)
    if kind == "environment_failure" and error.get("stop") in FAILURE_STOPS | NO_ROOM_STOPS:
        return EnvironmentFailure(str(error["stop"]), message)
    if (exception_type := ERRORS.get(str(error.get("exception")))) is not None:
        return exception_type(message)
    if kind == "unauthorized":
        message += " (token=... or the environment variable TEXTENVS_TOKEN)"
    wait = error.get("retry_after_s")
    wait = wait if isinstance(wait, (int, float)) and 0 <= wait < 1e9 else 0.0
    return RemoteError(f"{where}: {kind}: {message}", kind, wait)
