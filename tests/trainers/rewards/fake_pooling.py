"""A small vLLM of the pooling kind: a score is the mean of the tokens, and it fails on demand."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from aiohttp import web


class FakePooling:
    """A server in a test's own event loop.

    Args:
        key: That requests must have.
        labels: Numbers a conversation.
    """

    def __init__(self, key: str | None = None, labels: int = 1, longest: int | None = 64) -> None:
        self.key, self.labels, self.longest = key, labels, longest
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.fault: Callable[[str, dict[str, Any]], web.Response | None] = lambda path, body: None
        self.well = 200
        self.sick = 0  # number of health checks that report an error
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self) -> str:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        for path in ("classify", "pooling", "score"):
            app.router.add_post(f"/{path}", self._serve)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        return f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _health(self, request: web.Request) -> web.Response:
        if self.sick:
            self.sick -= 1
            return web.Response(status=503)
        return web.Response(status=self.well)

    async def _models(self, request: web.Request) -> web.Response:
        if not self._known(request):
            return web.json_response({"error": "Unauthorized"}, status=401)
        return web.json_response({"data": [{"id": "rm", "max_model_len": self.longest}]})

    def _known(self, request: web.Request) -> bool:
        return self.key is None or request.headers.get("Authorization") == f"Bearer {self.key}"

    async def _serve(self, request: web.Request) -> web.Response:
        body = await request.json()
        path = request.path.strip("/")
        self.requests.append((path, body))
        if not self._known(request):
            return web.json_response({"error": "Unauthorized"}, status=401)
        if (fault := self.fault(path, body)) is not None:
            return fault
        if path == "score":
            values = [len(a) + 100 * len(b) for a, b in zip(body["text_1"], body["text_2"], strict=True)]
            return web.json_response({"data": [{"index": i, "score": float(v)} for i, v in enumerate(values)]})
        talk = body.get("messages")
        means = [sum(ids) / len(ids) for ids in body["input"]] if talk is None else [float(len(talk))]
        name = "probs" if path == "classify" else "data"
        data = [{"index": i, name: [mean + n for n in range(self.labels)]} for i, mean in enumerate(means)]
        return web.json_response({"data": data[::-1]})  # the order is arbitrary, the index counts


@contextlib.contextmanager
def in_a_thread(server: FakePooling) -> Iterator[str]:
    """Start a server in a thread with its own event loop; yield its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(server.start(), loop).result(timeout=60)
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(timeout=60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
