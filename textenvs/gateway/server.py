"""The HTTP server in front of the sessions: one a process, on this machine alone, in the background event loop."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import os
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, TypeVar

from ..event_loop import submit
from ..text import quoted
from ..turn import check_numbers
from . import anthropic_messages, openai_chat, openai_responses
from .channel import Channel
from .model_call import Fields, ModelCall, RequestError
from .session import Session, SessionEnded

try:
    from aiohttp import web
except ImportError as error:
    raise ImportError("programs that call a model need aiohttp: pip install 'textenvs[serve]'") from error

T = TypeVar("T")

#: The largest request, in bytes.
MAX_BYTES = 10_000_000
#: Bodies above this size, in bytes, are read in a thread: the event loop serves every session.
_LARGE = 20_000
#: Connections of a sandbox at a time: each takes a file of this process. A session has half as many open calls.
_MOST_CONNECTIONS = 128
#: Terms of a reward, and characters of a name, at most: they name curves.
_MOST_TERMS, _NAME_CHARS = 100, 100


@dataclass(frozen=True)
class _Protocol:
    """A protocol: how its requests are read, and the module that writes its responses."""

    read: Callable[[Any, Channel], ModelCall]
    writer: ModuleType


_CHAT = _Protocol(lambda body, channel: openai_chat.read(body), openai_chat)
_RESPONSES = _Protocol(lambda body, channel: openai_responses.read(body, channel.responses), openai_responses)
_ANTHROPIC = _Protocol(lambda body, channel: anthropic_messages.read(body), anthropic_messages)


class Gateway:
    """A server and its sessions. :func:`gateway` returns the one of this process."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop
        self.port = 0
        self._channels: dict[str, Channel] = {}
        self._listening: dict[str, asyncio.Server] = {}
        self._closed: deque[str] = deque(maxlen=1000)
        self._threads = ThreadPoolExecutor(4, "textenvs-gateway")
        self._numbers = 0
        submit(self._start()).result()

    @property
    def url(self) -> str:
        """The base URL of Anthropic's clients; those of OpenAI take ``url + "/v1"``."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def sessions(self) -> int:
        """The number of sessions that are open."""
        return len(self._channels)

    def open(self, session: Session) -> Channel:
        """Open a session with a key of its own; :meth:`close` ends it."""
        channel = Channel(f"sk-textenvs-{secrets.token_urlsafe(24)}", session, self.loop)
        self._channels[channel.key] = channel
        return channel

    def listen(self, key: str, listener: socket.socket) -> None:
        """Serve a socket, too, until the session ends, and close it: one that listens in the network of a sandbox."""

        async def start() -> asyncio.Server:
            assert self._runner.server is not None
            return await self.loop.create_server(_Connections(self._runner.server), sock=listener)

        self._listening[key] = submit(start()).result()

    def close(self, key: str) -> None:
        """End a session; safe to call twice, and from a finalizer."""
        if (listening := self._listening.pop(key, None)) is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(listening.close)
        if (channel := self._channels.pop(key, None)) is not None:
            self._closed.append(key)
            channel.end()

    async def _start(self) -> None:
        self.loop = asyncio.get_running_loop()
        app = web.Application(client_max_size=MAX_BYTES)
        app.add_routes([
            web.post("/v1/chat/completions", self._handler(_CHAT)),
            web.post("/v1/responses", self._handler(_RESPONSES)),
            web.post("/v1/messages", self._handler(_ANTHROPIC)),
            # Anthropic's client adds the version, and a program may be told the base URL of OpenAI's.
            web.post("/v1/v1/messages", self._handler(_ANTHROPIC)),
            web.post("/v1/rewards", self._rewards),
            web.get("/v1/models", self._models),
            web.get("/v1/models/{name:.+}", self._model),
            web.route("*", "/{path:.*}", self._unknown),
        ])  # fmt: skip
        # A handler is cancelled when its client disconnects. Compressed bodies are refused: 10 KB may hold 10 MB.
        runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            auto_decompress=False,
            shutdown_timeout=0.1,
            keepalive_timeout=3600.0,  # a program may be busy for long between two calls
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        self._runner = runner  # which would be collected, and the server with it
        self.port = runner.addresses[0][1]

    # ------------------------------------------------------------------ requests

    def _handler(self, protocol: _Protocol) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                channel, of_key = self._channel(request)
                call, size, digest = await self._read(request, channel, functools.partial(_call, protocol, of_key))
                ticket, reply = await channel.ask(call, digest, request.headers.get("Idempotency-Key"), size)
            except RequestError as problem:
                return _refusal(protocol.writer, problem)
            try:
                if protocol is _RESPONSES:
                    channel.responses.remember(call, reply, ticket)
                created, writer = int(time.time()), protocol.writer
                if call.stream:
                    text = b"".join(writer.events(call, reply, ticket, created))
                    response = web.Response(
                        body=text, content_type="text/event-stream", headers={"Cache-Control": "no-cache"}
                    )
                else:
                    response = web.json_response(writer.response(call, reply, ticket, created))
                await response.prepare(request)
                await response.write_eof()
            except ConnectionError:  # raised again when the server itself writes the response, and ignored there
                channel.lose(ticket)
            except BaseException:
                channel.lose(ticket)
                raise
            else:
                channel.deliver(ticket)
            return response

        return handle

    async def _read(self, request: web.Request, channel: Channel, read: Callable[[bytes, str, Channel], T]) -> T:
        """Return what ``read`` makes of a request's body, its path, and the session; a large one in a thread."""
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise RequestError("a body is not compressed", 415, "compressed")
        if (request.content_length or MAX_BYTES) <= _LARGE:
            return read(await request.read(), request.path, channel)
        async with channel.large_bodies:
            try:
                body = await request.read()
            except web.HTTPRequestEntityTooLarge:
                raise RequestError(f"a request has at most {MAX_BYTES} bytes", 413, "too_large") from None
            return await self.loop.run_in_executor(self._threads, read, body, request.path, channel)

    def _channel(self, request: web.Request) -> tuple[Channel, str]:
        """Return the channel of a request's key, and the role that stands behind the key after a slash; or empty."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        text = request.headers.get("x-api-key") or (token.strip() if scheme.lower() == "bearer" else "")
        key, _, role = text.partition("/")
        channel = self._channels.get(key)
        if channel is None:
            if key in self._closed:
                raise SessionEnded
            problem = "is of no session that is open" if key else "is missing"
            raise RequestError(
                f"the session's key {problem}; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                401,
                "invalid_api_key",
            )
        return channel, role

    async def _rewards(self, request: web.Request) -> web.Response:
        """Add to the reward of the turn whose reply came last: ``{"reward": 0.5}`` or ``{"terms": {...}}``.

        With ``role``, it is that role's last turn; with ``response``, the id of a reply, it is the turn of that reply.
        """
        try:
            channel, of_key = self._channel(request)
            channel.reward(*await self._read(request, channel, functools.partial(_reward, of_key)))
        except RequestError as problem:
            return _refusal(openai_chat, problem)
        return web.json_response({"object": "reward"})

    async def _models(self, request: web.Request) -> web.Response:
        try:
            channel, _ = self._channel(request)
        except RequestError as problem:
            return _refusal(openai_chat, problem)
        models = channel.session.models
        listed = {"object": "list", "data": list(map(_described, models)), "has_more": False}
        return web.json_response({**listed, "first_id": models[0], "last_id": models[-1]})

    async def _model(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        try:
            channel, of_key = self._channel(request)
            channel.session.role_of(name, of_key)
        except RequestError as problem:
            return _refusal(openai_chat, problem)
        return web.json_response(_described(name))

    async def _unknown(self, request: web.Request) -> web.Response:
        offered = "POST /v1/chat/completions, /v1/responses, /v1/messages, /v1/rewards; GET /v1/models"
        problem = RequestError(f"{request.method} {quoted(request.path, 80)} is not offered; there are {offered}", 404)
        writer = anthropic_messages if request.path.startswith("/v1/messages") else openai_chat
        return _refusal(writer, problem)


class _Connections:
    """Make the protocols of a listener's connections, of which there may be :data:`_MOST_CONNECTIONS` at a time."""

    def __init__(self, make: Callable[[], asyncio.Protocol]) -> None:
        self._make = make
        self.count = 0

    def __call__(self) -> Any:
        if self.count >= _MOST_CONNECTIONS:
            return _RefusedConnection()
        self.count += 1
        return _CountedConnection(self._make(), self)


class _CountedConnection:
    """A protocol, whose connection is counted until it is lost."""

    def __init__(self, protocol: asyncio.Protocol, connections: _Connections) -> None:
        self._protocol, self._connections = protocol, connections

    def __getattr__(self, name: str) -> Any:
        return getattr(self._protocol, name)

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.count -= 1
        self._protocol.connection_lost(error)


class _RefusedConnection(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        words = f"{_MOST_CONNECTIONS} connections of this program are open already; close some, or share one client"
        body = json.dumps(openai_chat.error(RequestError(words, 503, "busy"))).encode()
        head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        transport.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        transport.close()


def read_terms(terms: Any) -> dict[str, float]:
    """Return the terms of a reward as numbers, or raise :class:`RequestError`."""
    if not isinstance(terms, Mapping) or not terms:
        raise RequestError("a reward is {'reward': number} or {'terms': {name: number}}")
    if len(terms) > _MOST_TERMS:
        raise RequestError(f"a reward has at most {_MOST_TERMS} terms, not {len(terms)}")
    for name, value in terms.items():
        if isinstance(name, str) and not (0 < len(name) <= _NAME_CHARS and name.isprintable()):
            raise RequestError(f"a term has a name of 1 to {_NAME_CHARS} printable characters, not {quoted(name, 60)}")
        if not isinstance(name, str) or isinstance(value, bool) or not isinstance(value, (int, float)):
            raise RequestError(f"the reward's term {quoted(name, 60)} must be a number, not {quoted(value, 60)}")
    try:
        check_numbers("a reward's terms", terms)
    except (ValueError, OverflowError) as error:
        raise RequestError(str(error)) from error
    return {name: float(value) for name, value in terms.items()}


def _refusal(writer: Any, problem: RequestError) -> web.Response:
    return web.json_response(writer.error(problem), status=problem.status)


def _described(name: str) -> dict[str, Any]:
    created = {"created": 0, "created_at": "1970-01-01T00:00:00Z", "display_name": name, "type": "model"}
    return {"id": name, "object": "model", "owned_by": "textenvs", **created}


def _call(protocol: _Protocol, of_key: str, body: bytes, path: str, channel: Channel) -> tuple[ModelCall, int, bytes]:
    """Return the call of a request, the number of its bytes, and what equal calls have in common."""
    call = protocol.read(_parse(body), channel)
    call = replace(call, role=channel.session.role_of(call.model, of_key))
    _ = call.message_keys, call.tools_key  # made here, because the session compares them under a lock
    return call, len(body), hashlib.sha256(f"{path}\0{call.role}\0".encode("utf-8", "replace") + body).digest()


def _reward(of_key: str, body: bytes, path: str, channel: Channel) -> tuple[dict[str, float], str, str | None]:
    """Return the terms of a reward, the role whose it is (empty: of no certain one), and the reply's id, if given."""
    fields = Fields(_parse(body))
    fields.allow(("reward", "terms", "role", "response"))
    if "reward" in fields and "terms" in fields:
        raise RequestError("give either reward or terms, not both")
    role = channel.session.role_among("role", fields.text("role", ""), of_key)
    terms = read_terms(fields.get("terms") if "terms" in fields else {"reward": fields.get("reward")})
    return terms, role, fields.text("response") if "response" in fields else None


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body, parse_constant=_no_constant)
    except RecursionError:
        raise RequestError("the body is nested too deeply") from None
    except ValueError as error:
        raise RequestError(f"the body is no JSON: {error}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_gateway: Gateway | None = None
_lock = threading.RLock()  # a finalizer may call in the middle of a call


def gateway() -> Gateway:
    """Return the gateway of this process, started when it is first needed, and again where its thread has ended."""
    global _gateway
    with _lock:
        if _gateway is None or not _gateway.loop.is_running():
            _gateway = Gateway()
        return _gateway


def _forget_after_fork() -> None:
    """Forget the parent's gateway, which a forked child cannot serve."""
    global _gateway, _lock
    _gateway, _lock = None, threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
