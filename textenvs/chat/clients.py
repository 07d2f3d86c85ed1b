"""One client per spec and event loop, created on first use and closed with the loop.

Environments hold specs, which are data, so that they can be copied, pickled and forked.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncGenerator

from .client import ChatClient, Statistics
from .local import is_folder, served
from .spec import ChatSpec, SpecLike

# By loop: the clients by their specs' keys, and the generator that closes them.
_open: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[dict[str, ChatClient], AsyncGenerator[None, None]]]
_open = weakref.WeakKeyDictionary()
_statistics: list[tuple[str, Statistics]] = []
_inherited: list[object] = []


async def client_for(spec: SpecLike) -> ChatClient:
    """Return the running loop's client for ``spec``; equal specs share one. A model that is a folder is served first.

    It is closed when its loop ends in order, as ``asyncio.run`` does it, or by :func:`close_clients`.
    """
    spec = ChatSpec.of(spec)
    if spec.base_url is None and is_folder(spec.model):
        spec = await asyncio.to_thread(served, spec)
    loop = asyncio.get_running_loop()
    if loop not in _open:
        clients: dict[str, ChatClient] = {}
        _open[loop] = clients, _closing(clients)
        await anext(_open[loop][1])
    clients, _ = _open[loop]
    if spec.key not in clients:
        clients[spec.key] = ChatClient(spec)
        _statistics.append((spec.model, clients[spec.key].statistics))
    return clients[spec.key]


async def close_clients() -> None:
    """Close the running loop's clients; the next :func:`client_for` makes new ones."""
    _, keeper = _open.pop(asyncio.get_running_loop(), (None, None))
    if keeper is not None:
        await keeper.aclose()


async def _closing(clients: dict[str, ChatClient]) -> AsyncGenerator[None, None]:
    """Close the clients: a loop that shuts down closes the asynchronous generators that are still open."""
    try:
        yield
    finally:
        while clients:
            await clients.popitem()[1].aclose()


def statistics() -> dict[str, Statistics]:
    """Return the statistics of :func:`client_for`'s clients in this process, by model, closed clients included."""
    totals: dict[str, Statistics] = {}
    for model, client_statistics in _statistics:
        totals.setdefault(model, Statistics()).add(client_statistics)
    return totals


def _after_fork_in_child() -> None:
    """Forget the parent's clients, whose loops run there, but keep references, since collection would close them."""
    _inherited.extend(_open.values())
    _open.clear()
    _statistics.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
