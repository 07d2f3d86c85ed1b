"""Tools of MCP servers (Model Context Protocol), over stdio or streamable HTTP, through the official SDK.

A server is started, or connected to, when its first tool is called, once for each event loop, and stays until its
environment is closed. Forks of an environment share it (docs/tools.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from ..env import EnvironmentFailure
from ..event_loop import wait_for
from ..messages import clean_text
from ..options import Gain, checked
from ..text import excerpt
from .jsontext import write_value
from .mcp_transport import MAX_PAGES, MAX_TOOLS, http, stdio
from .schema import Tool, ToolError

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult
    from mcp_types import Tool as Listed

log = logging.getLogger("textenvs")

T = TypeVar("T")

# How long a connection may take to close: over HTTP its farewell, over stdio longer than it takes to end a server.
_CLOSE_HTTP_S, _CLOSE_STDIO_S = 2.0, 10.0
_MESSAGE_CHARS = 400  # of an error of the server's or the SDK's

_STDIO = {"command", "args", "env", "cwd"}
_HTTP = {"url", "headers"}


class _ConnectionLost(Exception):
    """The connection ended; a call in progress may have taken effect or not."""


class McpServer:
    """One MCP server, and its tools: ``McpServer({"command": "python", "args": ["server.py"]}).tools()``.

    Args:
        spec: How to reach it, in the form that MCP clients' configuration files have: ``{"command": "python", "args":
            ["server.py"], "env": {...}, "cwd": ...}`` starts a program and talks over its standard streams; ``{"url":
            "http://host/mcp", "headers": {...}}`` talks to a running one.
        connect_timeout_s: How long starting it and greeting it may take, and then listing its tools, in seconds.
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
        weakref.finalize(self, _abandon, self._connections).atexit = False  # servers see our end by themselves

    @property
    def name(self) -> str:
        return str(self.spec.get("url") or " ".join(map(str, [self.spec["command"], *self.spec.get("args", ())])))

    def tools(self, **options: Any) -> list[Tool[..., Any]]:
        """Return the server's tools; see :meth:`atools`. They are listed now, over a connection of its own."""
        return wait_for(self.atools(**options))

    async def atools(
        self,
        *,
        only: Sequence[str] | None = None,
        prefix: str = "",
        timeout_s: float | None = 30.0,
        max_chars: int = 4000,
    ) -> list[Tool[..., Any]]:
        """Return the server's tools, in its order.

        Args:
            only: Names of the tools to return; all by default.
            prefix: Put before each name, where two servers have tools of one name.
            timeout_s: How long a call may take, in seconds.
            max_chars: How long a result may be.

        Raises:
            EnvironmentFailure: The server cannot be reached, or its list of tools cannot be used.
            ValueError: ``only`` names tools that the server does not have.
        """
        listed = {remote_tool.name: remote_tool for remote_tool in await self._list()}
        if missing := set(only or ()) - set(listed):
            raise ValueError(f"{self.name} has no tool {sorted(missing)}; it has {sorted(listed)}")
        return [
            Tool(
                _RemoteFunction(self, remote_tool.name),
                name=(prefix + re.sub(r"[^A-Za-z0-9_-]", "_", remote_tool.name))[:64],
                description=(remote_tool.description or remote_tool.title or remote_tool.name).strip(),
                parameters=remote_tool.input_schema,
                timeout_s=timeout_s,
                max_chars=max_chars,
                owner=self,
            )
            for remote_tool in listed.values()
            if only is None or remote_tool.name in only
        ]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> CallToolResult:
        """Call a tool by its name on the server.

        ``ToolError``: it refused the call, or stopped while it was under way and is running again.
        ``EnvironmentFailure``: it cannot be reached, also not by starting it again.
        """
        connection = await self._connected()
        try:
            return await connection.ask(connection.client.result().call_tool(name, dict(arguments)))
        except _ConnectionLost as lost:
            log.debug("MCP server %s: connection lost while calling %s: %s", self.name, name, lost)
            await connection.close()
        await self._connected()  # a server that does not come back is not the model's to deal with
        raise ToolError(
            f"The server of {name} had stopped and was started again. Whether this call took effect is not known."
        )

    async def aclose(self) -> None:
        """Close every connection; the next call opens a new one.

        Connections of other event loops are told to close without waiting: their loop may be waiting for this one.
        """
        connection = self._connections.pop(asyncio.get_running_loop(), None)
        _abandon(self._connections)
        if connection is not None:
            await connection.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(McpServer, connect_timeout_s=self.connect_timeout_s), (self.spec,)

    def __deepcopy__(self, memo: dict[int, Any]) -> McpServer:
        return self

    async def _list(self) -> list[Listed]:
        connection = self._connection()
        problem = ""
        try:
            client = await connection.opened(self.name)
            clock = asyncio.timeout(self.connect_timeout_s)
            async with clock:
                return await _every_page(connection, client)
        except _ConnectionLost:
            problem = "it stopped while listing tools"
        except ToolError as error:
            problem = str(error)
        except TimeoutError:
            if not clock.expired():
                raise
            problem = f"its list of tools did not come within {self.connect_timeout_s:g} s"
        finally:
            await connection.close()
        raise EnvironmentFailure("tool_failed", f"MCP server {self.name}: {problem}")

    def _connection(self) -> _Connection:
        try:
            from mcp import Client  # noqa: F401  (version 1 has none)
        except ImportError as error:
            raise ImportError(
                "tools of MCP servers need the MCP SDK, version 2: pip install 'textenvs[mcp]'"
            ) from error
        return _Connection(self.name, self.spec, self.connect_timeout_s)

    async def _connected(self) -> _Connection:
        for loop in [candidate for candidate in self._connections if candidate.is_closed()]:
            del self._connections[loop]
        loop = asyncio.get_running_loop()
        connection = self._connections.get(loop)
        if connection is None or connection.closing.is_set() or connection.holder.done():
            connection = self._connections[loop] = self._connection()
        await connection.opened(self.name)
        return connection


@dataclass(frozen=True)
class _RemoteFunction:
    """A tool of a server, as a function of its arguments."""

    server: McpServer
    name: str

    async def __call__(self, /, **arguments: Any) -> str:
        result = await self.server.call(self.name, arguments)
        text = "\n".join(map(_block_text, result.content))
        if not result.content and result.structured_content is not None:
            text = write_value(result.structured_content)
        if result.is_error:
            raise ToolError(text or "The tool failed and does not say why.")
        return text


class _Connection:
    """One connection, on one event loop.

    The SDK's context managers must be left by the task that entered them: a task of its own, ``holder``, has the
    connection. ``client`` is done when the connection is open, or could not be opened.
    """

    def __init__(self, name: str, spec: Mapping[str, Any], timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self.name = name
        self._close_s = _CLOSE_HTTP_S if "url" in spec else _CLOSE_STDIO_S
        self.closing = asyncio.Event()
        self.client: asyncio.Future[Client] = loop.create_future()
        self.holder = loop.create_task(self._hold(spec, timeout_s))

    async def _hold(self, spec: Mapping[str, Any], timeout_s: float) -> None:
        from mcp import Client

        clock = asyncio.timeout(timeout_s)
        try:
            transport = http(spec, self.name) if "url" in spec else stdio(spec, self.name)
            async with clock, Client(transport) as client:
                clock.reschedule(None)
                self.client.set_result(client)
                await self.closing.wait()
        except Exception as error:
            log.debug("an MCP connection ended: %s", _in_short(error))
            if not self.client.done():
                expired = TimeoutError(f"no answer within {timeout_s:g} s")
                self.client.set_exception(expired if clock.expired() else error)
                self.client.exception()  # mark it as retrieved: all who wanted it may have left
        finally:
            self.client.cancel()  # no effect once it is done

    async def opened(self, name: str) -> Client:
        await asyncio.wait([self.client])  # unlike awaiting it, this leaves it alone when we are cancelled
        why = "the connection was closed"
        if not self.client.cancelled():
            if (problem := self.client.exception()) is None:
                return self.client.result()
            why = _in_short(problem)
        raise EnvironmentFailure("tool_failed", f"MCP server {name} cannot be reached: {why}")

    async def ask(self, request: Coroutine[Any, Any, T]) -> T:
        """Return the answer; ``ToolError``: the server refused the request; ``_ConnectionLost``: no connection."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        task = asyncio.ensure_future(request)
        try:
            await asyncio.wait([task, self.holder], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():  # we were cancelled, or the connection broke down around the request
                task.cancel()
                await asyncio.wait([task])
        try:
            return task.result()
        except asyncio.CancelledError:
            raise _ConnectionLost("the connection broke down") from None
        except Exception as error:
            if self.holder.done() or (isinstance(error, MCPError) and error.code == CONNECTION_CLOSED):
                raise _ConnectionLost(_in_short(error)) from error
            if isinstance(error, MCPError):
                raise ToolError(excerpt(clean_text(error.message), _MESSAGE_CHARS)) from error
            if isinstance(error, ValidationError | RuntimeError):  # the SDK's, about the answer
                raise ToolError(f"The server's answer cannot be used: {_in_short(error)}") from error
            raise

    async def close(self) -> None:
        self.closing.set()
        if not self.client.done():  # it is still being opened
            self.holder.cancel()
        _, late = await asyncio.wait([self.holder], timeout=self._close_s)
        if late:  # a server over HTTP that does not answer its farewell
            self.holder.cancel()
            await asyncio.wait([self.holder])


def _block_text(block: Any) -> str:
    """Return a part of a result as text; other types are mentioned."""
    if block.type == "resource_link":
        return f"[resource {block.uri}]"
    source = block.resource if block.type == "resource" else block
    text = getattr(source, "text", None)
    return str(text) if text is not None else f"[{block.type} {source.mime_type or ''}, not shown]"


def _in_short(error: BaseException) -> str:
    """Describe the first cause inside groups of exceptions."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ValidationError):
        detail = error.errors(include_url=False, include_input=False, include_context=False)[0]
        return excerpt(f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}", _MESSAGE_CHARS)
    return excerpt(clean_text(f"{type(error).__name__}: {error}"), _MESSAGE_CHARS)


async def _every_page(connection: _Connection, client: Client) -> list[Listed]:
    """List the tools of all pages; ``ToolError`` if there are too many, or no end."""
    tools: list[Listed] = []
    cursors: set[str] = set()
    cursor: str | None = None
    while True:
        page = await connection.ask(client.list_tools(cursor=cursor))
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return tools
        if cursor in cursors:
            raise ToolError("its list of tools comes to the same page again")
        cursors.add(cursor)
        if len(tools) > MAX_TOOLS or len(cursors) > MAX_PAGES:
            raise ToolError(f"its list of tools has more than {MAX_TOOLS:,} tools, or {MAX_PAGES} pages")


def _abandon(connections: dict[asyncio.AbstractEventLoop, _Connection]) -> None:
    while connections:
        loop, connection = connections.popitem()
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the connection with it
            loop.call_soon_threadsafe(connection.closing.set)
