"""The transport: HTTP and WebSocket around a :class:`~textenvs.serve.host.Host`.

What one client does must not be felt by another: connections are counted and timed (:mod:`.gate`), each message has a
largest size, each connection a largest number of requests at work and of bytes that it has not read, and all that is
held counts (:mod:`.memory`); who does not read is disconnected, and finds its answers again when it comes back.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import json
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from .gate import Gate
from .host import Answer, Host
from .memory import reserve
from .protocol import OPS, PREFIX, PROTOCOL, Refusal, decode

if TYPE_CHECKING:
    from aiohttp import web

_LOG = logging.getLogger("textenvs.serve")
_EXPIRE_EVERY_S = 1.0
# Bytes around a message of a WebSocket, at most; and those of a connection that are never the reason to end it.
_FRAME, _READ_BUFFER = 14, 2**16
_FIRST_ID = re.compile(r'\s*\{\s*"id"\s*:\s*"([^"\\]{1,128})"')
#: The owner of all sessions where no token is asked for.
ANYBODY = "anybody"


@dataclass(frozen=True)
class Transport:
    """How a server speaks with its clients.

    Args:
        max_message_bytes: Of a request. Answers are as long as conversations are.
        max_pending: Requests of one WebSocket that are at work at a time, and answers that wait to be read before no
            more requests are.
        max_pending_bytes: What the requests of one WebSocket that are at work may have together; one alone may have
            more.
        max_unread_bytes: Answers that one WebSocket may leave unread before it is disconnected.
        send_timeout_s: A client that takes longer to read a message is disconnected.
        header_timeout_s: A client that takes longer to send the header of a request is disconnected.
        receive_timeout_s: A client that takes longer to send the body of an HTTP request is disconnected.
        heartbeat_s: A WebSocket is asked so often whether it is still there.
        max_connections: Connections at a time, of either kind.

    Raises:
        ValueError: A number is not above 0.
    """

    max_message_bytes: int = 8 * 2**20
    max_pending: int = 1024
    max_pending_bytes: int = 64 * 2**20
    max_unread_bytes: int = 64 * 2**20
    send_timeout_s: float = 30.0
    header_timeout_s: float = 10.0
    receive_timeout_s: float = 30.0
    heartbeat_s: float = 20.0
    max_connections: int = 1024

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise ValueError(f"{name} must be a number above 0, not {value!r}")


class Server:
    """Serves environments until it is stopped.

    Args:
        host: Plays them.
        tokens: Who may, by name: whoever sends one of these as ``Authorization: Bearer TOKEN``. Without any, everybody.
        transport: Sizes and times.

    Raises:
        ImportError: aiohttp is missing.
        ValueError: A token that is empty, or is there twice.
    """

    def __init__(
        self, host: Host, *, tokens: Mapping[str, str] | None = None, transport: Transport | None = None
    ) -> None:
        self.host = host
        self.transport = transport or Transport()
        host.max_message_bytes = self.transport.max_message_bytes
        self._tokens = {name: token.encode() for name, token in (tokens or {}).items()}
        if not all(self._tokens.values()) or len(set(self._tokens.values())) < len(self._tokens):
            raise ValueError("tokens must not be empty, and must differ")
        self._web = aiohttp_web()
        self._runner: web.AppRunner | None = None
        self._listening: asyncio.Server | None = None
        self._clock: asyncio.Task[None] | None = None
        self._channels: set[_Channel] = set()
        self._posted = 0  # requests over HTTP that are being answered
        self._started = time.monotonic()
        self._numbers = itertools.count()
        self.gate = Gate(
            self._protocol, self.transport.max_connections, self.transport.header_timeout_s, self._no_connection
        )
        self.port = 0

    async def start(self, bind: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; ``self.port`` is the port then.

        Raises:
            OSError: The port is taken, or the address is not this machine's.
        """
        await self.host.prepare()
        web = self._web
        # A little more than allowed, so that our own error is given.
        app = web.Application(
            client_max_size=self.transport.max_message_bytes + 1, middlewares=[web.middleware(partial(self._in_json))]
        )
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._guarded(self._metrics))
        app.router.add_get(f"{PREFIX}/ws", self._guarded(self._websocket))
        app.router.add_post(f"{PREFIX}/{{op}}", self._guarded(self._http))
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=1.0,
            keepalive_timeout=self.transport.header_timeout_s,
            auto_decompress=False,  # 8 KB may hold 8 MB
        )
        await self._runner.setup()
        self._listening = await asyncio.get_running_loop().create_server(self.gate, bind, port, backlog=1024)
        self.port = self._listening.sockets[0].getsockname()[1]
        self._clock = asyncio.create_task(self._expire())

    async def drain(self, grace_s: float) -> bool:
        """Take no new session, and wait until the episodes that are being played are over, or ``grace_s`` is.

        An episode is over when its last answer was sent.

        Returns:
            Whether all of them were.
        """
        self.host.book.draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self._busy:
                    await asyncio.sleep(min(0.05, grace_s / 10))
        return not self._busy

    @property
    def _busy(self) -> bool:
        """Whether an episode is being played, or somebody is owed an answer."""
        return bool(self.host.book.playing or self._posted or any(channel.owes for channel in self._channels))

    async def stop(self) -> None:
        """Disconnect everybody, and close the environments."""
        if self._clock is not None:
            self._clock.cancel()
        if self._listening is not None:
            self._listening.close()
        await asyncio.gather(*(channel.close(1001, b"the server is shutting down") for channel in self._channels))
        if self._runner is not None:
            await self._runner.cleanup()
        await self.host.close()

    # ------------------------------------------------------------------ connections

    def _protocol(self) -> asyncio.BaseProtocol:
        assert self._runner is not None
        assert self._runner.server is not None
        return self._runner.server()

    def _no_connection(self) -> bytes:
        """The answer to a connection that is one too many."""
        most = self.transport.max_connections
        refusal = Refusal("full", f"all {most} connections are taken", retry_after_s=1.0)
        body = self.host.refuse(refusal).text.encode()
        return (
            b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
            b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )

    # ------------------------------------------------------------------ who may

    def _guarded(
        self, handler: Callable[[web.Request, str], Awaitable[Any]]
    ) -> Callable[[web.Request], Awaitable[Any]]:
        async def guarded(request: web.Request) -> Any:
            try:
                return await handler(request, self._owner(request))
            except Refusal as refusal:
                return self._response(self.host.refuse(refusal))

        return guarded

    def _owner(self, request: web.Request) -> str:
        """Whose request this is."""
        if "Origin" in request.headers:
            # A page in a browser of this machine could reach a server that trusts this machine.
            raise Refusal("forbidden", "this server does not speak with pages in browsers")
        if not self._tokens:
            return ANYBODY
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        sent = given.strip().encode("utf-8", "surrogateescape") if scheme.lower() == "bearer" else b""
        owner = None
        for name, token in self._tokens.items():  # all of them, so that the time says nothing
            if hmac.compare_digest(sent, token):
                owner = name
        if owner is None:
            what = "that token is not known here" if sent else "a token is needed"
            raise Refusal("unauthorized", f"{what}; send the header 'Authorization: Bearer TOKEN'")
        return owner

    # ------------------------------------------------------------------ HTTP

    async def _in_json(self, request: web.Request, handler: Callable[[web.Request], Awaitable[Any]]) -> Any:
        """What aiohttp refuses by itself, as an error of this protocol."""
        self.gate.arrived(request.transport)
        try:
            return await handler(request)
        except self._web.HTTPException as problem:
            if problem.status < 400:
                raise
            told = f"HTTP {problem.status} ({problem.reason}): there is POST {PREFIX}/{{{','.join(OPS)}}}, and GET "
            response = self._bad_request(problem.status, f"{told}{PREFIX}/ws, /health and /metrics")
            if "Allow" in problem.headers:
                response.headers["Allow"] = problem.headers["Allow"]
            return response

    def _bad_request(self, status: int, message: str, *, close: bool = False) -> web.Response:
        """One with a status of its own; ``close`` where the connection is of no more use."""
        response = self._response(replace(self.host.refuse(Refusal("bad_request", message)), status=status))
        if close:
            response.force_close()
        return response

    def _response(self, answer: Answer) -> web.Response:
        headers = {} if answer.retry_after_s is None else {"Retry-After": str(math.ceil(answer.retry_after_s))}
        if answer.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return self._web.Response(
            text=answer.text, status=answer.status, content_type="application/json", headers=headers
        )

    async def _health(self, request: web.Request) -> web.Response:
        draining = self.host.book.draining
        told = {"status": "draining" if draining else "ok", "protocol": PROTOCOL}
        return self._web.json_response(told, status=503 if draining else 200)

    async def _metrics(self, request: web.Request, owner: str) -> web.Response:
        told = {
            **self.host.metrics(),
            "connections": len(self.gate.connections),
            "websockets": len(self._channels),
            "slow_headers": self.gate.late,
            "uptime_s": round(time.monotonic() - self._started, 1),
            "memory_bytes": _memory(),
        }
        return self._web.json_response(told)

    async def _http(self, request: web.Request, owner: str) -> web.Response:
        op = request.match_info["op"]
        if op not in OPS:
            return self._response(self.host.refuse(Refusal("bad_request", f"there is {PREFIX}/{{{','.join(OPS)}}}")))
        holder = ("HTTP", next(self._numbers))
        memory = self.host.memory
        most = self.transport.max_message_bytes
        try:
            memory.admit(holder, owner, most if request.content_length is None else min(request.content_length, most))
            body = await self._body(request)
            if not isinstance(body, bytes):
                return body
            memory.admit(holder, owner, reserve(body))
            self._posted += 1
            try:
                message = decode(body)
                del body
                if isinstance(message, dict):
                    message = {**({"id": "http"} if op in ("describe", "close") else {}), **message, "op": op}
                answer = await self.host.answer(message, owner)
                del message
                memory.record(holder, owner, len(answer.text))
                return await self._sent(request, self._response(answer))
            finally:
                self._posted -= 1
        finally:
            memory.free(holder)

    async def _body(self, request: web.Request) -> bytes | web.Response:
        """What was posted, or the refusal."""
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            return self._bad_request(415, "the body of a request is not compressed", close=True)
        try:
            async with asyncio.timeout(self.transport.receive_timeout_s):
                body = await request.read()
        except TimeoutError:
            return self._bad_request(
                408, f"the body did not come within {self.transport.receive_timeout_s:g} s", close=True
            )
        except self._web.HTTPRequestEntityTooLarge:
            raise self._too_large() from None
        except (self._web.RequestPayloadError, ConnectionError) as problem:
            request.content.feed_eof()  # or aiohttp tries to read the rest, and logs the same error
            told = " ".join(str(problem).split())
            return self._bad_request(400, f"the body cannot be read: {told}", close=True)
        if len(body) > self.transport.max_message_bytes:
            raise self._too_large()
        return body

    async def _sent(self, request: web.Request, response: web.Response) -> web.Response:
        """Send a response here and now, so that who does not read it is disconnected."""
        try:
            async with asyncio.timeout(self.transport.send_timeout_s):
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:
            _LOG.warning("a client does not read its answer, and is disconnected")
            if request.transport is not None:
                request.transport.abort()
        return response

    def _too_large(self) -> Refusal:
        return Refusal("too_large", f"a message has at most {self.transport.max_message_bytes} bytes")

    # ------------------------------------------------------------------ WebSocket

    async def _websocket(self, request: web.Request, owner: str) -> Any:
        transport = self.transport
        ws = _speaking_websocket(transport.max_message_bytes)(
            heartbeat=transport.heartbeat_s,
            max_msg_size=transport.max_message_bytes + 1,  # aiohttp takes less than this
            compress=False,
            timeout=1.0,
        )
        if not ws.can_prepare(request).ok:
            raise Refusal("bad_request", f"{PREFIX}/ws speaks WebSocket")
        await ws.prepare(request)
        channel = _Channel(ws, request, owner, self)
        self._channels.add(channel)
        self.gate.watch(request.transport, channel.received)
        try:
            await channel.serve()
        finally:
            self._channels.discard(channel)
            self.host.lose(channel)
            self.host.memory.free(channel)
        return ws

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRE_EVERY_S)
            try:
                self.host.expire()
            except Exception:
                _LOG.exception("sessions could not be expired")


def _speaking_websocket(most: int) -> type[web.WebSocketResponse]:
    """aiohttp's, which closes on a message that is too large without a word, with a word."""
    base: type[web.WebSocketResponse] = aiohttp_web().WebSocketResponse

    class Speaking(base):  # type: ignore[misc, valid-type]
        async def close(self, *, code: int = 1000, message: bytes = b"", drain: bool = True) -> bool:
            if code == 1009 and not message:
                message = b"a message has at most %d bytes" % most
            return await super().close(code=code, message=message, drain=drain)  # type: ignore[no-any-return]

    return Speaking


class _Channel:
    """One WebSocket: a reader that never waits for an answer, and a writer that waits for nobody but its client."""

    def __init__(self, ws: web.WebSocketResponse, request: web.Request, owner: str, server: Server) -> None:
        self._ws = ws
        self._request = request
        self._owner = owner
        self._server = server
        self._answers: asyncio.Queue[str] = asyncio.Queue()
        self._room = asyncio.Event()  # for answers; while there is none, nothing is read
        self._room.set()
        self._gone = False
        self._unread = 0  # bytes
        self._received = 0  # bytes of a message that is not whole yet
        self._asked = 0  # bytes of the requests at work
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Until the client is gone."""
        from aiohttp import WSMsgType

        writer = asyncio.create_task(self._write())
        host = self._server.host
        try:
            async for message in self._ws:
                # Frames that are here already are read without waiting, and others have a right to the loop, too.
                await asyncio.sleep(0)
                await self._room.wait()
                if self._gone:
                    break
                if message.type is not WSMsgType.TEXT:
                    self._received = 0
                    self._put(host.refuse(Refusal("bad_request", "a message is a text frame with a JSON object")).text)
                    continue
                size = len(message.data) if message.data.isascii() else len(message.data.encode())
                self._received = max(0, self._received - size - _FRAME)
                holder = (self, next(self._numbers))
                try:
                    self._check_room(size)
                    host.memory.admit(holder, self._owner, reserve(message.data))
                    decoded = decode(message.data)
                except Refusal as refusal:
                    host.memory.free(holder)
                    self._put(host.refuse(refusal, _read_id(message.data)).text)
                    continue
                self._asked += size
                task = asyncio.create_task(self._answer(decoded, size, holder))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        finally:
            writer.cancel()
            for task in self._tasks:  # not the work itself, which goes on
                task.cancel()

    @property
    def owes(self) -> bool:
        """Whether there are requests without an answer, or answers that did not get as far as the network."""
        wire = self._request.transport
        if self._gone or wire is None or wire.is_closing():
            return False
        return bool(self._tasks or self._unread or wire.get_write_buffer_size())

    async def close(self, code: int, reason: bytes) -> None:
        """Say goodbye, to who listens."""
        with suppress(Exception):
            async with asyncio.timeout(1.0):
                await self._ws.close(code=code, message=reason)

    def _check_room(self, size: int) -> None:
        """Whether a request of that size can be taken on beside those that are at work."""
        transport, at_work = self._server.transport, len(self._tasks)
        if at_work >= transport.max_pending:
            raise Refusal("overloaded", f"{at_work} requests of this connection are at work", retry_after_s=0.25)
        if at_work and self._asked + size > transport.max_pending_bytes:
            raise Refusal(
                "overloaded",
                f"{at_work} requests of this connection are at work, with {self._asked} bytes; this one has {size}, "
                f"and together they may have {transport.max_pending_bytes}",
                retry_after_s=0.25,
            )

    async def _answer(self, message: Any, size: int, holder: Hashable) -> None:
        try:
            self._put((await self._server.host.answer(message, self._owner, self)).text)
        finally:
            self._asked -= size
            self._server.host.memory.free(holder)

    def received(self, size: int) -> None:
        """Bytes have come, of a message or of several."""
        self._received += size
        self._account("sends more than there is memory for")

    def _account(self, why: str) -> None:
        """Count what waits here; who has too much of it is disconnected, if that is the reason for there being none."""
        memory, waits = self._server.host.memory, self._received + self._unread
        growing = waits > memory.held(self)
        memory.record(self, self._owner, waits)
        if growing and waits > _READ_BUFFER and memory.over(self._owner):
            self._drop(why)

    def _put(self, text: str) -> None:
        self._unread += len(text)
        self._answers.put_nowait(text)
        self._account("leaves its answers unread, and there is no memory for them")
        if self._answers.qsize() >= self._server.transport.max_pending:
            self._room.clear()
        if self._unread > self._server.transport.max_unread_bytes and self._answers.qsize() > 1:
            self._drop("leaves its answers unread")

    async def _write(self) -> None:
        while True:
            text = await self._answers.get()
            try:
                async with asyncio.timeout(self._server.transport.send_timeout_s):
                    await self._ws.send_str(text)
            except TimeoutError:
                self._drop("does not read")
                return
            except (ConnectionError, RuntimeError):  # it is closing; the reader sees it
                return
            self._unread -= len(text)
            self._account("")
            self._room.set()

    def _drop(self, why: str) -> None:
        if self._gone:
            return
        self._gone = True
        self._room.set()
        _LOG.warning("a client of %s %s, and is disconnected", self._owner, why)
        if self._request.transport is not None:
            self._request.transport.abort()


def aiohttp_web() -> Any:
    """``aiohttp.web``.

    Raises:
        ImportError: It is missing; the message names the extra.
    """
    try:
        from aiohttp import web
    except ImportError as error:
        raise ImportError(
            f"serving environments needs aiohttp ({error}); install it with: pip install 'textenvs[serve]'"
        ) from error
    return web


def _read_id(text: str) -> Any:
    """The id of a request that is not looked at, as far as it is told without decoding what is long."""
    if len(text) > _READ_BUFFER:
        found = _FIRST_ID.match(text)
        return None if found is None else {"id": found[1]}
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _memory() -> int | None:
    """Resident memory of this process, in bytes; ``None`` where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            pages = int(statm.read().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    import resource

    return pages * resource.getpagesize()
