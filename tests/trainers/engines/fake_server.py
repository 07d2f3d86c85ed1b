"""The common part of the small servers without a model: an HTTP server with planned faults, which counts tokens up.

The first token is the prompt's length: what matters is which request gets which tokens, and when.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from aiohttp import web

VOCAB = 64


@dataclass(eq=False)
class Request:
    """One generation; ``spans`` are its tokens' weights, as both servers report them."""

    tokens: list[int] = field(default_factory=list)
    spans: list[dict[str, Any]] = field(default_factory=list)
    reason: str = "length"
    aborted: bool = False

    @property
    def logprobs(self) -> list[float]:
        return [-0.5 - token / 100 for token in self.tokens]


@dataclass(eq=False)
class FakeServer(ABC):
    """The method ``_a_b`` of a server is its endpoint ``/a/b``: from the request's JSON to a response or its JSON.

    Args:
        token_s: Seconds a token.
        missing: Endpoints that it does not have.
        refuse: Endpoints that fail, with their next answers: a message in the server's own form, a status and a body,
            or ``None`` for a broken connection.
        lose: Parameters that updates silently leave out.
        hung: No token is computed any more.
        silent: Nothing is answered any more.
    """

    token_s: float = 0.001
    missing: tuple[str, ...] = ()
    refuse: dict[str, list[Any]] = field(default_factory=dict)
    lose: tuple[str, ...] = ()
    hung: bool = False
    silent: bool = False

    generate: ClassVar[str]
    health: ClassVar[str]
    steps: ClassVar[dict[str, str]]  #: of an update, in order
    cancels: ClassVar[bool]  #: whether a closed connection ends its request

    def __post_init__(self) -> None:
        self.log: list[tuple[str, Any]] = []  # each request's path and body
        self.weights: dict[str, Any] = {}
        self.label: str = "default"
        self.live: dict[str, Request] = {}
        self.paused: bool = False
        self.asleep: bool = False
        self.released: set[str] = set()  # what has given its memory back
        self.in_session: bool = False
        self.made = 0
        self._runner: web.AppRunner | None = None

    def paths(self) -> list[str]:
        return [path for path, _ in self.log]

    async def start(self, port: int = 0) -> str:
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=self.cancels)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Refuse further connections, and break the open ones."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        if self.silent:
            await asyncio.sleep(3600)
        path, body = request.path, await request.json() if request.can_read_body else dict(request.query)
        self.log.append((path, body))
        endpoint = getattr(self, "_" + path.strip("/").replace("/", "_"), None)
        if planned := self.refuse.get(path):
            status, answer = self._planned(planned.pop(0))
        elif endpoint is None or path in self.missing:
            status, answer = 404, {"detail": "Not Found"}
        else:
            try:
                if "weight" in path and path not in ("/weight_info",) and "weights" in self.released:
                    raise RuntimeError(f"{path}: the weights have no memory")
                status, answer = 200, await endpoint(body)
            except RuntimeError as error:
                status, answer = self.failure(str(error))
        if isinstance(answer, web.Response):
            return answer
        return (
            web.Response(text=answer, status=status)
            if isinstance(answer, str)
            else web.json_response(answer, status=status)
        )

    def _planned(self, fault: Any) -> tuple[int, Any]:
        if fault is None:
            raise asyncio.CancelledError  # aiohttp drops the connection without an answer
        return self.failure(fault) if isinstance(fault, str) else fault

    @abstractmethod
    def failure(self, message: str) -> tuple[int, Any]:
        """Return the status and the JSON of an error."""

    async def compute(self, name: str, size: int, room: int, stops: frozenset[int] = frozenset()) -> Request:
        request = self.live[name] = Request()
        try:
            while len(request.tokens) < room and request.reason == "length":
                await asyncio.sleep(self.token_s)
                while (self.paused or self.asleep or self.hung) and not request.aborted:
                    await asyncio.sleep(0.001)
                if request.aborted:
                    request.reason = "abort"
                    break
                count = len(request.tokens)
                if not request.spans or request.spans[-1]["version"] != self.label:
                    request.spans.append({"version": self.label, "start": count, "end": count})
                request.tokens.append((size + count) % VOCAB)
                request.spans[-1]["end"] = count + 1
                self.made += 1
                if request.tokens[-1] in stops:
                    request.reason = "stop"
        finally:
            del self.live[name]
        return request
