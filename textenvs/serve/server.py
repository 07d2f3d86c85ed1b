"""The transport: HTTP around a :class:`~textenvs.serve.host.Host`."""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from aiohttp import web

from .host import Host, logged
from .protocol import OPS, PREFIX, PROTOCOL, Refusal, encode, weigh

_LOG = logging.getLogger("textenvs.serve")
_EXPIRE_EVERY_S = 1.0
#: Seconds that a client may take to send a body, and to read an answer.
TRANSFER_S = 30.0
#: A ``close`` has at most so many bytes. It is carried out however little memory is left.
CLOSE_BYTES = 2**16


class Server:
    """An HTTP server of a host's environments, for every client or for those with one of the tokens."""

    def __init__(
        self, host: Host, *, tokens: Mapping[str, str] | None = None, max_message_bytes: int = 8 * 2**20
    ) -> None:
        self.host = host
        self.max_message_bytes = max_message_bytes
        self._tokens = {name: token.encode() for name, token in (tokens or {}).items()}
        if not all(self._tokens.values()) or len(set(self._tokens.values())) < len(self._tokens):
            raise ValueError("tokens must not be empty, and must differ")
        self._runner: web.AppRunner | None = None
        self._expiring: asyncio.Task[None] | None = None
        self._answering = 0
        self.port = 0

    async def start(self, bind: str = "127.0.0.1", port: int = 0) -> None:
        await self.host.prepare()
        most = max(self.max_message_bytes, CLOSE_BYTES) + 1
        app = web.Application(client_max_size=most, middlewares=[self._answered])
        paths = [web.get("/health", self._health), web.get("/metrics", self._metrics)]
        app.add_routes([*paths, web.post(f"{PREFIX}/{{op}}", self._post)])
        # Compressed bodies are refused: 8 KB may hold 8 MB.
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, auto_decompress=False)
        await self._runner.setup()
        await web.TCPSite(self._runner, bind, port, backlog=1024).start()
        self.port = self._runner.addresses[0][1]
        self._expiring = asyncio.create_task(self._expire())

    async def drain(self, grace_s: float) -> None:
        """Open no session, and wait until all episodes are over and their answers sent, or ``grace_s`` is over."""
        self.host.draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self.host.playing or self._answering:
                    await asyncio.sleep(0.05)

    async def stop(self) -> None:
        if self._expiring is not None:
            self._expiring.cancel()
        if self._runner is not None:
            await self._runner.cleanup()
        await self.host.close()

    # ------------------------------------------------------------------ requests

    async def _post(self, request: web.Request) -> web.StreamResponse:
        owner, op, host = self._owner(request), request.match_info["op"], self.host
        closes = op == "close"
        length, most = request.content_length, CLOSE_BYTES if closes else self.max_message_bytes
        if length is None or request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise Refusal("bad_request", "a request has a Content-Length and is not compressed")
        if length > most:
            raise Refusal("too_large", f"this request has at most {most} bytes (textenvs serve --max-message-mb)")
        self._answering += 1
        try:
            with host.holding(length, always=closes):
                try:
                    async with asyncio.timeout(TRANSFER_S):
                        body = await request.read()
                except TimeoutError:
                    raise Refusal("bad_request", f"the body did not come within {TRANSFER_S:g} s") from None
                with host.holding(weigh(body), always=closes):
                    return await self._send(request, await host.answer(op, body, owner))
        finally:
            self._answering -= 1

    async def _send(self, request: web.Request, answer: bytes) -> web.StreamResponse:
        """Send an answer here and now, while its memory counts; a client that does not read is disconnected."""
        response = web.Response(body=answer, content_type="application/json")
        try:
            async with asyncio.timeout(TRANSFER_S):
                await response.prepare(request)
                await response.write_eof()
        except ConnectionError:
            pass  # the client is gone, and asks again if it wants the answer
        except TimeoutError:
            _LOG.warning("a client does not read its answer, and is disconnected")
            if request.transport is not None:
                request.transport.abort()
        return response

    def _owner(self, request: web.Request) -> str:
        """Return the name of the request's token, which owns its sessions."""
        if not self._tokens:
            return "anybody"
        scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
        sent = credentials.strip().encode("utf-8", "surrogateescape") if scheme.lower() == "bearer" else b""
        # All are compared, so that the time says nothing.
        owners = [name for name, token in self._tokens.items() if hmac.compare_digest(sent, token)]
        if not owners:
            what = "that token is not known here" if sent else "a token is needed"
            raise Refusal("unauthorized", f"{what}; send the header 'Authorization: Bearer TOKEN'")
        return owners[0]

    # ------------------------------------------------------------------ errors

    @web.middleware
    async def _answered(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            if "Origin" in request.headers:
                # A page in a browser of this machine could reach a server that trusts this machine.
                raise Refusal("forbidden", "this server does not speak with pages in browsers")
            return await handler(request)
        except Refusal as refusal:
            return self._refused(refusal)
        except web.HTTPException as problem:  # no such path or method
            endpoints = f"there is POST {PREFIX}/{{{','.join(OPS)}}}, and GET /health and /metrics"
            return self._refused(Refusal("bad_request", f"{problem.reason}: {endpoints}"), problem.status)
        except (web.RequestPayloadError, ConnectionError):
            return self._refused(Refusal("bad_request", "the body of the request broke off"))
        except Exception as error:
            return self._refused(logged(error, "the server"))

    def _refused(self, refusal: Refusal, status: int | None = None) -> web.Response:
        self.host.errors[refusal.kind] += 1
        headers = {"Content-Type": "application/json"}
        if refusal.kind == "unauthorized":
            headers["WWW-Authenticate"] = "Bearer"
        if refusal.retry_after_s is not None:
            headers["Retry-After"] = str(math.ceil(refusal.retry_after_s))
        return web.Response(body=encode(refusal.to_json()), status=status or refusal.status, headers=headers)

    # ------------------------------------------------------------------ health and metrics

    async def _health(self, request: web.Request) -> web.Response:
        status, code = ("draining", 503) if self.host.draining else ("ok", 200)
        return web.json_response({"status": status, "protocol": PROTOCOL}, status=code)

    async def _metrics(self, request: web.Request) -> web.Response:
        self._owner(request)
        return web.json_response(self.host.metrics())

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRE_EVERY_S)
            try:
                self.host.expire()
            except Exception:
                _LOG.exception("sessions could not be expired")
