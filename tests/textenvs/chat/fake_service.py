"""A chat service of OpenAI's shape on this machine, which fails on demand.

    with FakeService("hello") as service:                 # every request is answered with "hello"
        service.script(status(500), hang(), "at last")    # the next three attempts, in this order
        client = ChatClient("tiny", base_url=service.url)

An answer is a text, a dict (sent as JSON text), a :class:`Reply`, or a function of the request's body that gives one of
these. What was asked stands in ``service.requests``.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reply:
    """The service's behaviour for one request."""

    text: str | None = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None  # in the place of a well-formed one
    tool_calls: list[dict] | None = None
    finish_reason: str = "stop"
    usage: dict[str, Any] | None = field(default_factory=lambda: {"prompt_tokens": 10, "completion_tokens": 5})
    delay_s: float = 0.0
    cut: bool = False  # close the connection in the middle of the body
    hang: bool = False  # never answer
    held: bool = False  # answer after FakeService.release()
    endless: bytes = b""  # behind the body, again and again until the client closes the connection
    pause_s: float = 0.0  # between two of them


Answer = str | dict | Reply | Callable[[dict], "Answer"]


def status(code: int, message: str = "no", *, error_code: str | None = None, **headers: str) -> Reply:
    """Return an error; headers are given as ``retry_after="1"``."""
    body = json.dumps({"error": {"message": message, "code": error_code, "type": "fake"}}).encode()
    return Reply(status=code, body=body, headers={name.replace("_", "-"): value for name, value in headers.items()})


def hang() -> Reply:
    """Take the request, and never answer."""
    return Reply(hang=True)


def cut() -> Reply:
    """Close the connection in the middle of the answer."""
    return Reply("this will not arrive whole", cut=True)


def garbage(body: bytes = b'{"choices": [{"message"') -> Reply:
    """Status 200, and a body that is no completion."""
    return Reply(body=body)


def slow(answer: str, delay_s: float) -> Reply:
    """Return an answer after a delay."""
    return Reply(answer, delay_s=delay_s)


def held(answer: str) -> Reply:
    """Return an answer that waits for :meth:`FakeService.release`."""
    return Reply(answer, held=True)


class FakeService:
    """The service, in a thread of its own.

    Args:
        answer: What every request gets that the script says nothing about.
    """

    def __init__(self, answer: Answer = "ok") -> None:
        self.answer = answer
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.down = 0  # so many requests get no word before the connection is closed
        self.now = self.most = 0  # requests under way, and the most of them at any time
        self._script: deque[Answer] = deque()
        self._released = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def script(self, *answers: Answer) -> FakeService:
        """Queue the replies to the next requests, one each."""
        self._script.extend(answers)
        return self

    def release(self) -> None:
        """Let go of every answer that is held, now and later."""
        self._loop.call_soon_threadsafe(self._released.set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> FakeService:
        import openai._base_client as client

        client.INITIAL_RETRY_DELAY, client.MAX_RETRY_DELAY = 0.01, 0.02  # tests do not wait for retries
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        async def stop() -> None:
            self._server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._call(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=60)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._serve_one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client went away, or the service ends (a cancelled task would be logged as an error)
        finally:
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; whether the connection lives on."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        request = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"null")
        if self.down:
            self.down -= 1
            return False
        self.requests.append(request)
        self.headers.append(headers)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            reply = self._reply(request, head[0])
            await asyncio.sleep(3600 if reply.hang else reply.delay_s)
            if reply.held:
                await self._released.wait()
        finally:
            self.now -= 1
        body = reply.body if reply.body is not None else _completion(reply, request)
        lines = [f"HTTP/1.1 {reply.status} Whatever", "content-type: application/json"]
        lines += ["connection: close"] if reply.endless else [f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in reply.headers.items()]
        sent = "\r\n".join([*lines, "", ""]).encode("latin-1") + body
        writer.write(sent[: -len(body) // 2] if reply.cut else sent)
        await writer.drain()
        while reply.endless:
            writer.write(reply.endless)
            await writer.drain()
            await asyncio.sleep(reply.pause_s)
        return not reply.cut

    def _reply(self, request: dict, first_line: str) -> Reply:
        if not first_line.startswith("POST /v1/chat/completions "):
            return status(404, f"no such page: {first_line}")
        answer = self._script.popleft() if self._script else self.answer
        while not isinstance(answer, Reply):
            if isinstance(answer, str):
                answer = Reply(answer)
            elif isinstance(answer, dict):
                answer = Reply(json.dumps(answer))
            else:
                answer = answer(request)
        return answer


def _completion(reply: Reply, request: dict) -> bytes:
    message = {"role": "assistant", "content": reply.text}
    if reply.tool_calls:
        message["tool_calls"] = reply.tool_calls
    body = {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 0,
        "model": request.get("model"),
        "choices": [{"index": 0, "message": message, "finish_reason": reply.finish_reason}],
    }
    if reply.usage is not None:
        body["usage"] = reply.usage | {"total_tokens": sum(v for v in reply.usage.values() if isinstance(v, int))}
    return json.dumps(body).encode()
