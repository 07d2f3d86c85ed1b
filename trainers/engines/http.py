"""HTTP to one inference server: a thin, patient reader over aiohttp. Knows nothing of what the endpoints mean."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from textenvs.text import excerpt
from trainers.engines.base import EngineError

if TYPE_CHECKING:
    import aiohttp

# Uvicorn drops idle connections after 5 s. One that we give up earlier is never dropped under a request.
_KEEPALIVE_S = 2.0


class UnreachableError(EngineError):
    """No answer came: the connection was refused or broke, or the time was over."""


class Answer(NamedTuple):
    """An HTTP response; its body is what its JSON says, or its text where it is no JSON."""

    status: int
    body: Any


class Client:
    """Requests to ``base_url``, in one event loop, with ``api_key`` as bearer token; ImportError without aiohttp."""

    def __init__(self, base_url: str, api_key: str | None = None, *, extra: str) -> None:
        try:
            import aiohttp
        except ImportError as error:
            raise ImportError(f"the engine at {base_url} needs aiohttp: pip install 'textenvs[{extra}]'") from error
        self.base_url = base_url.rstrip("/")
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._aiohttp = aiohttp
        self._sessions: dict[bool, aiohttp.ClientSession] = {}  # by whether connections serve once

    async def request(
        self, method: str, path: str, body: Any = None, *, timeout: float | None = None, alone: bool = False
    ) -> Answer:
        """Send one request, ``body`` as JSON; raises UnreachableError where no answer comes.

        Without a ``timeout`` (seconds for all of it) it waits as long as the connection stands. ``alone`` is on a
        connection of its own, for what must not be asked twice: a server may close a kept one just when it is reused.
        """
        limit = self._aiohttp.ClientTimeout(total=timeout)
        try:
            async with self._open(alone).request(method, self.base_url + path, json=body, timeout=limit) as response:
                text = (await response.read()).decode("utf-8", errors="replace")
        except (TimeoutError, self._aiohttp.ClientError, OSError) as error:
            late = isinstance(error, TimeoutError) and timeout is not None
            why = f"no answer within {timeout:g} s" if late else repr(error)
            raise UnreachableError(f"{method} {self.base_url}{path}: {why}") from error
        try:
            return Answer(response.status, json.loads(text) if text else "")
        except ValueError:
            return Answer(response.status, text)

    async def close(self) -> None:
        while self._sessions:
            await self._sessions.popitem()[1].close()

    def _open(self, alone: bool) -> aiohttp.ClientSession:
        if alone not in self._sessions:
            http = self._aiohttp
            keep = {"force_close": True} if alone else {"keepalive_timeout": _KEEPALIVE_S}
            # A proxy for the outside world, as the environment may name one, has no business here: trust_env is off.
            self._sessions[alone] = http.ClientSession(
                connector=http.TCPConnector(limit=0, **keep), headers=self._headers
            )
        return self._sessions[alone]


def error_text(body: Any) -> str:
    """What the server says is wrong; ``body`` is what its JSON says, or its text."""
    while isinstance(body, Mapping):
        body = next((body[key] for key in ("error", "message", "detail") if body.get(key)), json.dumps(body))
    text = body if isinstance(body, str) else json.dumps(body, default=str)
    return excerpt(text.strip() or "nothing")


def refused(error: BaseException) -> bool:
    """Whether the connection was refused, which a busy server never does."""
    return getattr(error.__cause__, "errno", None) == errno.ECONNREFUSED
