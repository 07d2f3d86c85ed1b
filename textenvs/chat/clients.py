"""One client per spec and event loop, made when it is first asked for and closed with the loop.

Environments hold specs, which are data; clients are found here. So environments can be copied, pickled and forked, and
a thousand of them on one loop share connections, cache, budget and concurrency cap.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncGenerator

from .client import ChatClient, Statistics
from .spec import ChatSpec, SpecLike


class _Desk:
    """The clients of one loop."""

    def __init__(self) -> None:
        self.clients: dict[str, ChatClient] = {}
        self.keeper: AsyncGenerator[None, None] | None = None


_desks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Desk] = weakref.WeakKeyDictionary()
_statistics: list[tuple[str, Statistics]] = []
_inherited: list[_Desk] = []


async def client_for(spec: SpecLike) -> ChatClient:
    """The running loop's client for ``spec``; equal specs have one.

    It is closed when its loop ends in order, as ``asyncio.run`` does it, or by :func:`close_clients`.

    Raises:
        ValueError, TypeError, ImportError: As :class:`~textenvs.chat.client.ChatClient`.
    """
    spec = ChatSpec.of(spec)
    loop = asyncio.get_running_loop()
    desk = _desks.setdefault(loop, _Desk())
    client = desk.clients.get(spec.key)
    if client is None:
        client = desk.clients[spec.key] = ChatClient(spec)
        _statistics.append((spec.model, client.statistics))
    if desk.keeper is None:
        # A loop that shuts down closes the asynchronous generators that are still open, and this one our clients.
        desk.keeper = _keep(desk)
        await anext(desk.keeper)
    return client


async def close_clients() -> None:
    """Close the running loop's clients; the next :func:`client_for` makes new ones."""
    desk = _desks.pop(asyncio.get_running_loop(), None)
    if desk is not None and desk.keeper is not None:
        await desk.keeper.aclose()


def statistics() -> dict[str, Statistics]:
    """What the clients of :func:`client_for` did in this process, by model, closed ones included."""
    totals: dict[str, Statistics] = {}
    for model, each in _statistics:
        totals.setdefault(model, Statistics()).add(each)
    return totals


async def _keep(desk: _Desk) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        clients, desk.clients, desk.keeper = list(desk.clients.values()), {}, None
        for client in clients:
            await client.aclose()


def _after_fork_in_child() -> None:
    """Forget the parent's clients, whose loops run there; but keep them from being collected, and so closed, here."""
    _inherited.extend(_desks.values())
    _desks.clear()
    _statistics.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
