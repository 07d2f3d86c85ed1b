"""A server in a thread of this process, for tests."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager
from typing import Any

import aiohttp
from toy_envs import AsyncGuess, BlockingGuess, Guess

import textenvs
from textenvs.serve.host import Host, Limits, Offer
from textenvs.serve.server import Server

TOKEN = "a token for tests"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
TOYS = {"guess": Guess, "async": AsyncGuess, "blocking": BlockingGuess}


class Running:
    """A server that runs; ``url`` says where, ``on_loop`` runs a coroutine in it."""

    def __init__(self, offers, *, allow=(), tokens=None, max_message_bytes=8 * 2**20, port=0, **limits: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        made = {name: offer if isinstance(offer, Offer) else Offer(offer) for name, offer in offers.items()}
        self.host = Host(made, limits=Limits(**limits), allow=allow)
        self.server = Server(self.host, tokens=tokens, max_message_bytes=max_message_bytes)
        self.on_loop(self.server.start(port=port))
        self.port = self.server.port
        self.url = f"http://127.0.0.1:{self.port}"

    def on_loop(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=60)

    def call(self, function: Any) -> Any:
        async def called():
            return function()

        return self.on_loop(called())

    def stop(self) -> None:
        async def stopped():
            await self.server.stop()
            pending = asyncio.all_tasks() - {asyncio.current_task()}
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

        self.on_loop(stopped())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def metrics(self) -> dict[str, Any]:
        return self.call(self.host.metrics)

    def remote(self, env: str, **options: Any) -> textenvs.TextEnv:
        return textenvs.make("textenv/remote", url=self.url, env=env, **options)


@contextmanager
def running(offers: Any = TOYS, **options: Any):
    server = Running(offers, **options)
    try:
        yield server
    finally:
        server.stop()


def registered(*ids: str) -> dict[str, Offer]:
    """Environments that ship, as offers."""
    return {env_id: Offer(lambda env_id=env_id, **options: textenvs.make(env_id, **options)) for env_id in ids}


def soon(condition: Any, what: str, seconds: float = 60.0) -> None:
    """Wait until a condition holds."""
    waiting = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        waiting.wait(0.01)
    raise AssertionError(f"it never came to this: {what}")


def ask(server, op, headers=None, raw=None, **fields):
    """Send one request, and return its status, its headers and its JSON."""

    async def post():
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"{server.url}/v1/{op}", headers=headers or {}, data=json.dumps(fields) if raw is None else raw
            ) as response,
        ):
            return response.status, response.headers, await response.json()

    return asyncio.run(post())


def get(server, path, headers=None):
    async def got():
        async with aiohttp.ClientSession() as session, session.get(server.url + path, headers=headers or {}) as answer:
            return answer.status, await answer.json()

    return asyncio.run(got())


def opening(number=0, **changes):
    return {"session": f"a session of our own {number}", "env": "guess", "seed": number, **changes}
