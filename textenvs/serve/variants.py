"""The environments of a server, each with the arguments that clients gave it: made once, kept while there is room."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ..env import TextEnv
from .calls import Calls, seen
from .protocol import Json, Refusal, fingerprint

#: How many environments with arguments of clients are kept; those that no session uses make room.
MOST = 16


@dataclass(frozen=True)
class Offer:
    """An environment that is served.

    Args:
        make: Makes it; what clients may add to its arguments is given as keywords.
        nondeterministic: Whether equal seeds and replies may give different episodes: then none can be continued in
            another session.
    """

    make: Callable[..., TextEnv[Any]]
    nondeterministic: bool = False


@dataclass
class Variant:
    """An environment with its arguments; its sessions play forks of it, so its tasks are loaded once."""

    made: asyncio.Task[TextEnv[Any]]
    users: int = 0  # sessions, and requests that look at it or wait for it

    @property
    def env(self) -> TextEnv[Any]:
        """It, once it is made."""
        return self.made.result()

    def leave(self) -> None:
        """A session or a request has done with it."""
        self.users -= 1


class Variants:
    """The environments of one host.

    Args:
        offers: By the names that clients know them by.
        calls: Makes and closes them.
    """

    def __init__(self, offers: Mapping[str, Offer], calls: Calls) -> None:
        self._offers = offers
        self._calls = calls
        self._variants: dict[tuple[str, str], Variant] = {}  # by name and the arguments' fingerprint

    def __len__(self) -> int:
        """How many there are, with those that are being made."""
        return len(self._variants)

    @asynccontextmanager
    async def use(self, name: str, kwargs: Json, deadline: float) -> AsyncIterator[Variant]:
        """An environment with these arguments, which is not closed within the block.

        It is made once, whoever asks for it meanwhile; who cannot wait finds it made later.

        Raises:
            Refusal: There is no such environment, it cannot be made, or there is no room or no time for it.
        """
        self.check(name)
        key = (name, fingerprint({"kwargs": kwargs}) if kwargs else "")
        variant = self._variants.get(key)
        if variant is None:
            if kwargs:
                self._make_room()
            # Its place is taken before anything is waited for, so that there are never more.
            variant = self._variants[key] = Variant(asyncio.create_task(self._make(key, kwargs)))
            variant.made.add_done_callback(seen)
        variant.users += 1
        try:
            if not variant.made.done():
                await self._calls.result(variant.made, deadline, f"making {name}", lost=False)
            variant.made.result()
            yield variant
        finally:
            variant.leave()

    def check(self, name: str) -> None:
        """That there is such an environment.

        Raises:
            Refusal: There is not.
        """
        if name not in self._offers:
            raise Refusal(
                "unknown_environment", f"no environment of that name is served; there are: {', '.join(self._offers)}"
            )

    def close(self) -> None:
        """Close them all, and give up those that are not made yet."""
        variants = list(self._variants.values())
        self._variants.clear()
        for variant in variants:
            variant.made.cancel()
            if variant.made.done() and not variant.made.cancelled() and variant.made.exception() is None:
                self._calls.close_soon(variant.env, beyond=True)

    async def _make(self, key: tuple[str, str], kwargs: Json) -> TextEnv[Any]:
        name = key[0]
        calls = self._calls
        try:
            begun = await calls.begin(lambda: self._offers[name].make(**kwargs), math.inf)
            late = asyncio.get_running_loop().call_later(calls.step_timeout_s, calls.threads.late, begun)
            try:
                return await asyncio.shield(begun)  # type: ignore[no-any-return]
            finally:
                late.cancel()
        except BaseException as error:
            self._variants.pop(key, None)  # it is gone when the host is closed
            if not kwargs or isinstance(error, Refusal) or not isinstance(error, Exception):
                raise
            raise Refusal(
                "refused_reset", f"{name} cannot be made with these arguments: {error}", exception="ValueError"
            ) from error

    def _make_room(self) -> None:
        extra = [key for key in self._variants if key[1]]
        if len(extra) < MOST:
            return
        for key in extra:
            variant = self._variants[key]
            if variant.made.done() and not variant.users:
                self._calls.close_soon(self._variants.pop(key).env)
                return
        raise Refusal("full", f"{MOST} environments with other arguments are being played", retry_after_s=5.0)
