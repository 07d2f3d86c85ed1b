"""Limits of connections: how many there are, and how long each may take until its first request has arrived.

aiohttp closes a connection that stays idle between two requests; a connection that sends the header of its first
request byte by byte is closed here, and so is one that is too many, with an answer that says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

#: Seconds that a connection which is too many has to read why.
_REFUSED_S = 1.0


class Gate:
    """Makes the protocols of a server's connections.

    Args:
        factory: Makes aiohttp's.
        most: Connections at a time.
        header_s: Seconds until the header of the first request must be there.
        refusal: What one too many is sent: a whole HTTP response.
    """

    def __init__(
        self, factory: Callable[[], asyncio.BaseProtocol], most: int, header_s: float, refusal: Callable[[], bytes]
    ) -> None:
        self._factory = factory
        self.most = most
        self.header_s = header_s
        self.refusal = refusal
        self.connections: dict[asyncio.BaseTransport, _Connection] = {}
        self.late = 0  # connections that were closed for their slow headers
        self.refused = 0

    def __call__(self) -> asyncio.BaseProtocol:
        """For ``create_server``."""
        return _Connection(self, cast(asyncio.Protocol, self._factory()))

    def arrived(self, transport: asyncio.BaseTransport | None) -> None:
        """A request of this connection is there."""
        if transport is not None and (connection := self.connections.get(transport)) is not None:
            connection.stop_clock()

    def watch(self, transport: asyncio.BaseTransport | None, received: Callable[[int], None]) -> None:
        """Call ``received`` with the size of whatever this connection sends from now on."""
        if transport is not None and (connection := self.connections.get(transport)) is not None:
            connection.received = received


class _Connection(asyncio.Protocol):
    """Passes everything on to aiohttp's protocol, unless the connection is refused."""

    def __init__(self, gate: Gate, inner: asyncio.Protocol) -> None:
        self._gate = gate
        self._inner = inner
        self._transport: asyncio.Transport | None = None
        self._refused = False
        self._clock: asyncio.TimerHandle | None = None
        self.received: Callable[[int], None] | None = None

    def stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        gate, loop = self._gate, asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, transport)
        if len(gate.connections) >= gate.most:
            gate.refused += 1
            self._refused = True
            self._transport.write(gate.refusal())
            self._transport.write_eof()
            self._clock = loop.call_later(_REFUSED_S, self._transport.abort)
            return
        gate.connections[transport] = self
        self._clock = loop.call_later(gate.header_s, self._close_late)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self.received is not None:
            self.received(len(data))
        self._inner.data_received(data)

    def eof_received(self) -> Any:
        return None if self._refused else self._inner.eof_received()

    def pause_writing(self) -> None:
        if not self._refused:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if not self._refused:
            self._inner.resume_writing()

    def connection_lost(self, problem: Exception | None) -> None:
        self.stop_clock()
        if self._refused:
            return
        assert self._transport is not None
        self._gate.connections.pop(self._transport, None)
        self._inner.connection_lost(problem)

    def _close_late(self) -> None:
        self._gate.late += 1
        assert self._transport is not None
        self._transport.abort()
