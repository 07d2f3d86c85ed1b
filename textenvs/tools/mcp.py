"""Tools of MCP servers (Model Context Protocol), over stdio or streamable HTTP, through the official SDK.

A server is started, or connected to, when its first tool is called, once for each event loop, and stays until its
environment is closed. What a server remembers is its own: it is no part of an episode's state, and forks of an
environment share it. For training, use servers whose tools only look things up, or keep what they change apart by an
argument.
"""

from __future__ import annotations

import asyncio
import base64
import collections
import contextlib
import logging
import os
import re
import threading
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from ..env import EnvironmentFailure
from ..event_loop import wait_for
from ..options import Gain, checked
from .jsontext import write_value
from .schema import Tool, ToolError

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult
    from mcp_types import Tool as Listed

log = logging.getLogger("textenvs")

_STDIO = {"command", "args", "env", "cwd"}
_HTTP = {"url", "headers"}
_ATTEMPTS = 2  # to start a server, or to connect to it: once, and once more


class _ConnectionLost(Exception):
    """The server is gone; a call that was under way may have taken effect or not."""


class McpServer:
    """One MCP server, and its tools.

    Args:
        spec: How to reach it, in the form that MCP clients' configuration files have: ``{"command": "python",
            "args": ["server.py"], "env": {...}, "cwd": ...}`` starts a program and talks over its standard streams;
            ``{"url": "http://host/mcp", "headers": {...}}`` talks to a running one.
        connect_timeout_s: How long starting it and greeting it may take, in seconds.

    Raises:
        ValueError: The specification names neither a command nor a URL, or has unknown keys.

    Example:
        ::

            server = McpServer({"command": "python", "args": ["server.py"]})
            env = MyToolEnv(tools=server.tools())
    """

    @checked
    def __init__(self, spec: Mapping[str, Any], *, connect_timeout_s: Gain = 30.0) -> None:
        keys = set(spec)
        if not (("command" in keys and keys <= _STDIO) or ("url" in keys and keys <= _HTTP)):
            raise ValueError(
                f"an MCP server is {{'command', 'args', 'env', 'cwd'}} or {{'url', 'headers'}}, not {sorted(keys)}"
            )
        self.spec = dict(spec)
        self.connect_timeout_s = connect_timeout_s
        self._connections: dict[asyncio.AbstractEventLoop, _Connection] = {}
        self._connecting: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}
        weakref.finalize(self, _abandon, self._connections).atexit = False  # servers see our end by themselves

    @property
    def name(self) -> str:
        """What the server is called in messages: its URL, or its command."""
        if "url" in self.spec:
            return str(self.spec["url"])
        return " ".join([str(self.spec["command"]), *map(str, self.spec.get("args", ()))])

    def tools(self, **options: Any) -> list[Tool[..., Any]]:
        """The server's tools; see :meth:`atools`. The server is asked now, over a connection of its own."""
        return wait_for(self.atools(**options))

    async def atools(
        self,
        *,
        only: Sequence[str] | None = None,
        prefix: str = "",
        timeout_s: float | None = 30.0,
        max_chars: int = 4000,
    ) -> list[Tool[..., Any]]:
        """The server's tools, in its order.

        Args:
            only: The names of those wanted; all by default.
            prefix: Put before each name, where two servers have tools of one name.
            timeout_s: How long a call may take, in seconds.
            max_chars: How long a result may be.

        Raises:
            ImportError: The SDK is not installed.
            EnvironmentFailure: The server cannot be reached.
            ValueError: ``only`` names tools that the server does not have.
        """
        listed = await self._list()
        if only is not None:
            if missing := set(only) - {each.name for each in listed}:
                raise ValueError(
                    f"{self.name} has no tool {sorted(missing)}; it has {sorted(each.name for each in listed)}"
                )
            listed = [each for each in listed if each.name in only]
        return [
            Tool(
                _RemoteFunction(self, each.name, _repeatable(each)),
                name=(prefix + re.sub(r"[^A-Za-z0-9_-]", "_", each.name))[:64],
                description=(each.description or each.title or each.name).strip(),
                parameters=each.input_schema,
                timeout_s=timeout_s,
                max_chars=max_chars,
                owner=self,
            )
            for each in listed
        ]

    async def call(self, name: str, arguments: Mapping[str, Any], *, repeatable: bool = False) -> CallToolResult:
        """Call a tool.

        Args:
            name: Its name on the server.
            arguments: Its arguments.
            repeatable: Whether the call may be made again when the connection was lost and it is unknown whether it
                took effect.

        Raises:
            ToolError: The server refused the call, or stopped while it was under way and is running again.
            EnvironmentFailure: The server cannot be reached, also not by starting it again.
        """
        for _ in range(_ATTEMPTS):
            connection = await self._connected()
            try:
                return await connection.call(name, arguments)
            except _ConnectionLost:
                log.debug("MCP server %s: connection lost while calling %s", self.name, name)
                await self._drop(connection)
            if not repeatable:
                await self._connected()  # a server that does not come back is not the model's to deal with
                raise ToolError(
                    f"The server of {name} had stopped and was started again. Whether this call took effect is not "
                    "known."
                )
        await self._connected()
        raise ToolError(f"The server of {name} stops whenever it is called like this.")

    async def aclose(self) -> None:
        """Close every connection; the next call opens a new one.

        Those of other event loops are told to close and not waited for: their loop may be waiting for this.
        """
        here = asyncio.get_running_loop()
        mine = self._connections.pop(here, None)
        _abandon(self._connections)
        if mine is not None:
            await mine.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without its connections."""
        return _make_server, (self.spec, self.connect_timeout_s)

    def __deepcopy__(self, memo: dict[int, Any]) -> McpServer:
        """Shared, as its tools are."""
        return self

    def __repr__(self) -> str:
        """The command or the URL."""
        return f"McpServer({self.name!r})"

    async def _list(self) -> list[Listed]:
        connection = await self._connect()
        try:
            return await connection.list()
        except _ConnectionLost as lost:
            raise EnvironmentFailure("tool_failed", f"MCP server {self.name}: it stopped while listing tools") from lost
        finally:
            await connection.close()

    async def _connected(self) -> _Connection:
        loop = asyncio.get_running_loop()
        for old in [each for each in list(self._connections) if each.is_closed()]:
            self._connections.pop(old, None)
            self._connecting.pop(old, None)
        async with self._connecting.setdefault(loop, asyncio.Lock()):
            connection = self._connections.get(loop)
            if connection is None or not connection.alive:
                connection = self._connections[loop] = await self._connect()
            return connection

    async def _connect(self) -> _Connection:
        _require_sdk()
        problem = ""
        for attempt in range(_ATTEMPTS):
            connection = _Connection(self.spec)
            try:
                async with asyncio.timeout(self.connect_timeout_s):
                    await connection.open()
            except TimeoutError:
                problem = f"it did not answer within {self.connect_timeout_s:g} s"
            except _ConnectionLost as lost:
                problem = str(lost)
            except BaseException:  # whoever asked was cancelled
                connection.cancel()
                raise
            else:
                return connection
            await connection.close()
            problem += connection.last_words()
            log.debug("MCP server %s, attempt %d: %s", self.name, attempt + 1, problem)
        raise EnvironmentFailure("tool_failed", f"MCP server {self.name} cannot be reached: {problem}")

    async def _drop(self, connection: _Connection) -> None:
        loop = asyncio.get_running_loop()
        if self._connections.get(loop) is connection:
            del self._connections[loop]
        await connection.close()


class _RemoteFunction:
    """A tool of a server, as a function of its arguments."""

    def __init__(self, server: McpServer, name: str, repeatable: bool) -> None:
        self.server = server
        self.name = name
        self.repeatable = repeatable

    async def __call__(self, /, **arguments: Any) -> str:
        """Call the tool; what it says is refused, is refused."""
        result = await self.server.call(self.name, arguments, repeatable=self.repeatable)
        text = _text_of(result)
        if result.is_error:
            raise ToolError(text or "The tool failed and does not say why.")
        return text


class _Connection:
    """One connection, on one event loop.

    The SDK's context managers must be left by the task that entered them: a task of its own holds the connection.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._client: asyncio.Future[Client] = loop.create_future()
        self._stderr: collections.deque[str] = collections.deque(maxlen=20)
        self._holder = loop.create_task(_hold(spec, self._client, self._stop, self._stderr))

    @property
    def alive(self) -> bool:
        """Whether it is open, as far as is known."""
        return not self._holder.done() and not self._stop.is_set()

    def last_words(self) -> str:
        """The end of what a started server wrote to its standard error."""
        return f"; it wrote: {' | '.join(self._stderr)[-800:]}" if self._stderr else ""

    async def open(self) -> None:
        """Wait until the server has answered."""
        try:
            await asyncio.shield(self._client)
        except asyncio.CancelledError:
            if self._client.cancelled():
                raise _ConnectionLost("the connection was closed") from None
            raise
        except Exception as error:
            raise _ConnectionLost(_in_short(error)) from error

    async def call(self, name: str, arguments: Mapping[str, Any]) -> CallToolResult:
        """Call a tool."""
        result: CallToolResult = await self._or_lost(self._client.result().call_tool(name, dict(arguments)))
        return result

    async def list(self) -> list[Listed]:
        """All tools, page after page."""
        client, tools, cursor = self._client.result(), [], None
        while True:
            page = await self._or_lost(client.list_tools(cursor=cursor))
            tools.extend(page.tools)
            cursor = page.next_cursor
            if cursor is None:
                return tools

    async def close(self) -> None:
        """Close it, and wait until the server is gone."""
        self._stop.set()
        if not self._client.done():  # it is still being opened
            self._holder.cancel()
        await asyncio.wait([self._holder])

    def cancel(self) -> None:
        """Have it closed, also if it is not open yet, without waiting."""
        self._stop.set()
        self._holder.cancel()

    def abandon(self) -> None:
        """Have it closed, from any thread, without waiting."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the connection with it
            self._holder.get_loop().call_soon_threadsafe(self._stop.set)

    async def _or_lost(self, request: Any) -> Any:
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        task = asyncio.ensure_future(request)
        try:
            await asyncio.wait([task, self._holder], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():  # we were cancelled, or the connection broke down around the request
                task.cancel()
                await asyncio.wait([task])
        if task.cancelled():
            raise _ConnectionLost("the connection broke down")
        try:
            return task.result()
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise _ConnectionLost("the connection was closed") from error
            raise ToolError(error.message) from error
        except Exception as error:
            if self._holder.done():
                raise _ConnectionLost(_in_short(error)) from error
            raise


async def _hold(
    spec: Mapping[str, Any], ready: asyncio.Future[Client], stop: asyncio.Event, stderr: collections.deque[str]
) -> None:
    """Open a connection, keep it until ``stop``, close it. What goes wrong is told through ``ready``, or ends it."""
    from mcp import Client

    try:
        async with _transport(spec, stderr) as transport, Client(transport) as client:
            ready.set_result(client)
            await stop.wait()
    except BaseException as error:
        if not ready.done():
            if isinstance(error, Exception):
                ready.set_exception(error)
                ready.exception()  # it is not lost if nobody asks any more
            else:
                ready.cancel()
        if not isinstance(error, Exception):
            raise
        log.debug("an MCP connection ended: %s", _in_short(error))


@contextlib.asynccontextmanager
async def _transport(spec: Mapping[str, Any], stderr: collections.deque[str]) -> AsyncIterator[Any]:
    if "url" in spec:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        # A call's time is limited by its tool; a stream may be silent for long.
        timeout = httpx2.Timeout(30.0, read=None)
        async with httpx2.AsyncClient(headers=dict(spec.get("headers") or {}), timeout=timeout) as http:
            yield streamable_http_client(str(spec["url"]), http_client=http)
        return
    from mcp import StdioServerParameters, stdio_client

    parameters = StdioServerParameters(
        command=str(spec["command"]), args=[*map(str, spec.get("args", ()))], env=spec.get("env"), cwd=spec.get("cwd")
    )
    with _kept_lines(stderr) as errlog:
        yield stdio_client(parameters, errlog=errlog)


@contextlib.contextmanager
def _kept_lines(lines: collections.deque[str]) -> Any:
    """A file for a program's standard error, whose last lines go to ``lines``."""
    read_end, write_end = os.pipe()

    def read() -> None:
        with open(read_end, encoding="utf-8", errors="replace") as pipe:
            for line in pipe:
                if line.strip():
                    lines.append(line.strip())

    reader = threading.Thread(target=read, name="textenvs-mcp-stderr", daemon=True)
    reader.start()
    writer: TextIO
    with open(write_end, "w", encoding="utf-8") as writer:
        yield writer
    reader.join(0.1)  # what a program says last, it says just before it ends


def _text_of(result: CallToolResult) -> str:
    """A result as text: what is not text is mentioned."""
    parts = [_block_text(block) for block in result.content]
    if not parts and result.structured_content is not None:
        return write_value(result.structured_content)
    return "\n".join(parts)


def _block_text(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    if block.type == "resource_link":
        return f"[resource {block.uri}]"
    source = block.resource if block.type == "resource" else block
    if (text := getattr(source, "text", None)) is not None:
        return str(text)
    data = getattr(source, "data", None) or getattr(source, "blob", None) or ""
    kind = f"{block.type} {source.mime_type or ''}".strip()
    return f"[{kind}, {len(base64.b64decode(data))} bytes, not shown]"


def _repeatable(listed: Listed) -> bool:
    """Whether the server says that calling the tool twice does no more than calling it once."""
    notes = listed.annotations
    return notes is not None and bool(notes.read_only_hint or notes.idempotent_hint)


def _in_short(error: BaseException) -> str:
    """The first cause inside groups of exceptions."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def _abandon(connections: dict[asyncio.AbstractEventLoop, _Connection]) -> None:
    while connections:
        _, connection = connections.popitem()
        connection.abandon()


def _make_server(spec: Mapping[str, Any], connect_timeout_s: float) -> McpServer:
    return McpServer(spec, connect_timeout_s=connect_timeout_s)


def _require_sdk() -> None:
    try:
        from mcp import Client  # noqa: F401  (version 1 has none)
    except ImportError as error:
        raise ImportError("tools of MCP servers need the MCP SDK, version 2: pip install 'textenvs[mcp]'") from error
