"""Transport to an MCP server: bounded messages, and an answer or an error for each request.

The SDK waits for an answer with the right id, however much else a server sends. Here a line that is no message, an
answer to nothing, or a list of tools that cannot be used becomes an error of the request that it stands for, at once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bounded_files import parse_json
from ..messages import clean_text
from ..text import excerpt

if TYPE_CHECKING:
    from anyio.abc import Process
    from mcp.shared.message import SessionMessage

log = logging.getLogger("textenvs")

#: The longest message of a server, in bytes.
MAX_MESSAGE = 4 * 2**20
#: The most JSON values of a message, names of fields included.
MAX_VALUES = 500_000
#: The deepest nesting of a message: deep enough that a schema beyond ``MAX_DEPTH`` is named as such.
MAX_NESTING = 1_000
#: The most tools that a server may list.
MAX_TOOLS = 1000
#: The most pages that it may list them on.
MAX_PAGES = 100
#: The longest schema of a tool's arguments, as JSON, and the longest description, in characters.
MAX_SCHEMA = 2**18
#: The deepest nesting of a schema.
MAX_DEPTH = 64

_PARSE_ERROR = -32700  # JSON-RPC's
_CHUNK = 2**16
_QUOTED = 120  # characters of what came that an error shows
_ID = re.compile(r'"id"\s*:\s*(\d{1,15}|"[^"\\]{1,100}")')
_POLL_S = 0.05
_END_S = 2.0  # for a server to end when its input does, and again when it is asked to
_MARK = "TEXTENVS_MCP_SERVER"


def problem_with_tools(tools: Any) -> str | None:
    """Return what is wrong with a list of tools as a server sends it, or ``None``."""
    if not isinstance(tools, list):
        return f"its list of tools is {_shown(tools)}"
    if len(tools) > MAX_TOOLS:
        return f"it lists {len(tools):,} tools, more than {MAX_TOOLS:,}"
    for number, tool in enumerate(tools):
        if problem := _problem_with_tool(tool):
            return f"its tool {number} {problem}"
    return None


def _problem_with_tool(tool: Any) -> str | None:
    if not isinstance(tool, Mapping):
        return f"is {_shown(tool)}, and no tool"
    name, schema = tool.get("name"), tool.get("inputSchema")
    if not isinstance(name, str) or not name.strip():
        return f"has the name {_shown(name)}; a name is a text"
    where = f"({excerpt(clean_text(name), 64)})"
    for key in ("description", "title"):
        text = tool.get(key)
        if text is not None and not isinstance(text, str):
            return f"{where} has a {key} that is {_shown(text)}, and no text"
        if len(text or "") > MAX_SCHEMA:
            return f"{where} has a {key} of {len(text or ''):,} characters, more than {MAX_SCHEMA:,}"
    if not isinstance(schema, Mapping):
        return f"{where} has an input schema that is {_shown(schema)}, and no object"
    if schema.get("type", "object") != "object":
        return f"{where} has an input schema of type {_shown(schema['type'])}; arguments are an object"
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not all(isinstance(item, Mapping | bool) for item in properties.values()):
        return f"{where} has properties that are no schemas: {_shown(properties)}"
    if not isinstance(required, list) or not all(isinstance(item, str) for item in required):
        return f"{where} has a list of required arguments that is none: {_shown(required)}"
    if _depth_exceeds(schema, MAX_DEPTH):
        return f"{where} has an input schema of more than {MAX_DEPTH} levels"
    if (size := len(json.dumps(schema))) > MAX_SCHEMA:
        return f"{where} has an input schema of {size:,} characters, more than {MAX_SCHEMA:,}"
    return None


def _depth_exceeds(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        level = [item for parent in level for item in _items(parent)]
        if not level:
            return False
    return True


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


class Answers:
    """The requests of one connection that wait for an answer, and their answers."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: dict[str | int, str] = {}  # the methods of requests, by id
        self._request_ids: set[str] = set()  # the ids of all requests so far: a late answer is no odd one
        self._warned = False

    def sent(self, message: Any) -> None:
        """Record a message on its way to the server."""
        method, params = getattr(message, "method", None), getattr(message, "params", None) or {}
        if (request := getattr(message, "id", None)) is not None and method is not None:
            self._waiting[request] = method
            self._request_ids.add(str(request))
        elif method == "notifications/cancelled":
            self._waiting.pop(params.get("requestId", ""), None)

    def read(self, line: str) -> SessionMessage | None:
        """Read a message of the server; an unreadable one becomes the error of the request that it answers."""
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        text = line.strip()
        if not text:
            return None
        try:
            value = parse_json(text, values=MAX_VALUES, depth=MAX_NESTING, allow_nan=True)
            value = _cleaned(value) if "\\u" in text else value
            message = jsonrpc_message_adapter.validate_python(value, by_name=False)
        except (ValueError, RecursionError):
            return self._unreadable(text)
        return self.check(SessionMessage(message))

    def check(self, message: SessionMessage) -> SessionMessage | None:
        """Check a message for the SDK; ``None`` for one that must not reach it."""
        inner = message.message
        if hasattr(inner, "method"):  # a notification or a request
            return message
        if (request := inner.id) is None:
            error = getattr(inner, "error", None)
            return self._odd(
                f"it sent an error of no request: {excerpt(clean_text(str(error and error.message)), _QUOTED)}"
            )
        waiting_id = next((pending for pending in self._waiting if str(pending) == str(request)), None)
        if waiting_id is None:
            if str(request) in self._request_ids:
                return None  # its request was given up
            return self._odd(f"it answered the id {_shown(request)}, which no request has")
        method = self._waiting.pop(waiting_id)
        inner.id = waiting_id  # some servers write the number as a text
        result = getattr(inner, "result", None)
        if method == "tools/list" and isinstance(result, dict):
            if problem := problem_with_tools(result.get("tools")):
                return self._error(waiting_id, problem)
            for tool in result["tools"]:
                # The SDK would check results by it, with a schema that is the server's and has no bounds.
                tool.pop("outputSchema", None)
        return message

    def _unreadable(self, text: str) -> SessionMessage | None:
        problem = f"it sent what is no message of the protocol: {excerpt(clean_text(text[: 4 * _QUOTED]), _QUOTED)}"
        # The message may be nested too deeply or cut: the envelope has the id near one of its ends.
        for match in _ID.findall(text[:1000]) + _ID.findall(text[-1000:]):
            request = match.strip('"')
            for waiting in self._waiting:
                if str(waiting) == request:
                    del self._waiting[waiting]
                    return self._error(waiting, problem)
        if text[0] not in '{["-0123456789' and text not in ("null", "true", "false"):
            self._say(f"{problem} (a line like this is left out; a server must write nothing else to its output)")
            return None
        return self._odd(problem)

    def _odd(self, what: str) -> SessionMessage | None:
        """Make an unexpected message the error of the oldest request, which would get no answer."""
        if not self._waiting:
            self._say(what)
            return None
        oldest = next(iter(self._waiting))
        del self._waiting[oldest]
        return self._error(oldest, what)

    def _error(self, request: str | int, what: str) -> SessionMessage:
        from mcp.shared.message import SessionMessage
        from mcp_types import ErrorData, JSONRPCError

        error = ErrorData(code=_PARSE_ERROR, message=f"The server's answer cannot be used: {what}.")
        return SessionMessage(JSONRPCError(jsonrpc="2.0", id=request, error=error))

    def _say(self, what: str) -> None:
        if not self._warned:  # a server may send any number of these
            self._warned = True
            log.warning("MCP server %s: %s", self._name, what)


@contextlib.asynccontextmanager
async def stdio(spec: Mapping[str, Any], name: str) -> AsyncIterator[Any]:
    """Start a server, and talk over its standard streams. When this is left, nothing that it started is running."""
    import anyio
    from mcp.client.stdio import get_default_environment

    mark = secrets.token_hex(16)
    variables = {str(key): str(value) for key, value in (spec.get("env") or {}).items()}
    process = await anyio.open_process(
        [str(spec["command"]), *map(str, spec.get("args", ()))],
        env=get_default_environment() | variables | {_MARK: mark},
        cwd=spec.get("cwd"),
        stderr=None,
        start_new_session=True,
    )
    answers = Answers(name)
    to_client, from_server = anyio.create_memory_object_stream[Any](0)
    from_client, to_server = anyio.create_memory_object_stream[Any](0)
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None
    assert stdout is not None
    closed = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)

    async def read() -> None:
        """Forward the server's messages until it ends, also if a child process keeps its output open."""
        rest = bytearray()
        with contextlib.suppress(*closed):
            while True:
                chunk = await stdout.receive(_CHUNK)
                *lines, last = (bytes(rest) + chunk).split(b"\n") if b"\n" in chunk else (rest + chunk,)
                for line in lines:
                    message = answers.read(line.decode("utf-8", "replace"))
                    if message is not None:
                        await to_client.send(message)
                rest = bytearray(last)
                if len(rest) > MAX_MESSAGE:
                    log.warning("MCP server %s: it sent a line of more than %d MiB", name, MAX_MESSAGE // 2**20)
                    break
        await to_client.aclose()

    async def write() -> None:
        with contextlib.suppress(*closed):
            async for message in to_server:
                answers.sent(message.message)
                data = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await stdin.send(f"{data}\n".encode())
        await to_client.aclose()

    async def watch() -> None:
        while process.returncode is None:
            await anyio.sleep(_POLL_S)
        await anyio.sleep(2 * _POLL_S)  # what it wrote last is still read
        await to_client.aclose()

    try:
        async with anyio.create_task_group() as tasks:
            for task in (read, write, watch):
                tasks.start_soon(task)
            yield from_server, from_client
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            for stream in (to_client, from_server, from_client, to_server):
                await stream.aclose()
            await _end(process, mark)


async def _end(process: Process, mark: str) -> None:
    """End a server and all that it started: by the end of its input, then by signals."""
    import anyio

    async def ended() -> bool:
        for _ in range(round(_END_S / _POLL_S)):
            if process.returncode is not None:
                return True
            await anyio.sleep(_POLL_S)
        return process.returncode is not None

    with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        assert process.stdin is not None
        await process.stdin.aclose()
    if not await ended():
        _signal(process, signal.SIGTERM)
        await ended()
    _signal(process, getattr(signal, "SIGKILL", signal.SIGTERM))
    for _ in range(3):  # one may start another while it is looked for
        if not _kill_marked(mark):
            break
        await anyio.sleep(_POLL_S)
    await ended()
    assert process.stdout is not None
    with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        await process.stdout.aclose()
    # A process that could not be killed may hold a pipe open; asyncio would wait for it when it is collected.
    close = getattr(getattr(getattr(process, "_process", None), "_transport", None), "close", None)
    if callable(close):
        with contextlib.suppress(OSError):
            close()


def _signal(process: Process, number: int) -> None:
    """Send a signal to the group of a server, which it leads."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, number)
        else:
            process.kill()


def _kill_marked(mark: str) -> int:
    """Kill processes that a server started in new sessions, found by their environment in ``/proc``."""
    marker, killed = f"{_MARK}={mark}".encode(), 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marker in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
                killed += 1
    return killed


@contextlib.asynccontextmanager
async def http(spec: Mapping[str, Any], name: str) -> AsyncIterator[Any]:
    """Talk to a running server over streamable HTTP."""
    import anyio
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    answers = Answers(name)
    # A call's time is limited by its tool; a stream may be silent for long.
    timeout = httpx2.Timeout(30.0, read=None)
    headers = {"accept-encoding": "identity"} | dict(spec.get("headers") or {})
    hooks = {"response": [_bound]}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks=hooks) as client,
        streamable_http_client(str(spec["url"]), http_client=client, max_sse_event_size=MAX_MESSAGE) as streams,
    ):
        from_server, to_server = streams
        to_client, checked = anyio.create_memory_object_stream[Any](0)
        from_client, outgoing = anyio.create_memory_object_stream[Any](0)

        async def read() -> None:
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                async for message in from_server:
                    passed = message if isinstance(message, Exception) else answers.check(message)
                    if passed is not None:
                        await to_client.send(passed)
            await to_client.aclose()

        async def write() -> None:
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                async for message in outgoing:
                    answers.sent(message.message)
                    await to_server.send(message)

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                tasks.start_soon(write)
                yield checked, from_client
                tasks.cancel_scope.cancel()
        finally:
            for stream in (to_client, checked, from_client, outgoing):
                stream.close()


async def _bound(response: Any) -> None:
    """Bound the body of a response: a hook of httpx, which is called before the body is read."""
    import httpx2

    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise httpx2.RemoteProtocolError("the answer is packed, which was not asked for", request=response.request)
    response.stream = _bounded_stream(response)


def _bounded_stream(response: Any) -> Any:
    import httpx2

    whole, streamed = response.stream, "event-stream" in response.headers.get("content-type", "")

    class Bounded(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in whole:
                # The SDK bounds an event; a stream of events may last as long as the connection.
                size = 0 if streamed else size + len(chunk)
                if size > MAX_MESSAGE:
                    raise httpx2.StreamError(f"the answer has more than {MAX_MESSAGE // 2**20} MiB")
                yield chunk

        async def aclose(self) -> None:
            await whole.aclose()

    return Bounded()


def _cleaned(value: Any) -> Any:
    """Return a JSON value with clean texts (:func:`~textenvs.messages.clean_text`)."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {clean_text(name): _cleaned(item) for name, item in value.items()}
    return [_cleaned(item) for item in value] if isinstance(value, list) else value


def _shown(value: Any) -> str:
    """Describe a JSON value for an error: its type and size if it is a container."""
    if isinstance(value, Mapping | list):
        return f"{'an object' if isinstance(value, Mapping) else 'a list'} of {len(value):,}"
    return excerpt(clean_text(json.dumps(value, ensure_ascii=False)), _QUOTED)
