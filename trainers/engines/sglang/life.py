"""Whether an SGLang server lives: waited for, watched, suspected; and what is said when it does not.

A process of ours is looked at often. ``/model_info`` is asked now and then, and where requests run and nothing comes
back for long, ``/health``, which makes the scheduler compute.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from trainers.engines.base import EngineDeadError, EngineError
from trainers.engines.http import Client, UnreachableError, error_text, refused

from .options import SGLangOptions
from .process import ServerProcess

_TICK_S = 0.25  # between two looks at the process


class Life:
    """A server's life; its end is for good.

    Args:
        client: How it is asked.
        server: Its process, where that is ours.
        options: How patient to be.
        busy: Whether requests are on their way, so that silence is a sign of a fault.
        ended: Called after every :meth:`finish`, to tell those who wait.
    """

    def __init__(
        self,
        client: Client,
        server: ServerProcess | None,
        options: SGLangOptions,
        *,
        busy: Callable[[], bool],
        ended: Callable[[], None],
    ) -> None:
        self.end: EngineDeadError | None = None  #: why it is over, once it is
        self.pausing = False  #: an update is at work on the server: silence is no sign of a fault
        self._client, self._server, self._options = client, server, options
        self._busy, self._ended = busy, ended
        self._heard = 0.0  # when the server last answered a request

    @property
    def name(self) -> str:
        """The server, in messages."""
        process = "" if self._server is None else f" (process {self._server.pid})"
        return f"the SGLang server at {self._client.base_url}{process}"

    @property
    def tail(self) -> str:
        """The end of its log on lines of its own, where it is ours."""
        return "" if self._server is None else f"\n{self._server.tail()}"

    def hear(self) -> None:
        """It answered a request just now, or its silence begins to count."""
        self._heard = asyncio.get_running_loop().time()

    def check(self) -> None:
        """Raise ``EngineDeadError`` once it is over."""
        if self.end is not None:
            raise EngineDeadError(str(self.end)) from self.end.__cause__

    def finish(self, error: EngineDeadError, cause: BaseException | None = None) -> None:
        """It is over, for the reason that is given first."""
        if self.end is None:
            error.__cause__ = cause or error.__cause__
            self.end = error
        self._ended()

    async def begin(self) -> Any:
        """Wait for the server; returns its answer to ``/model_info``.

        Raises:
            EngineDeadError: Its process ended.
            EngineError: It took too long.
        """
        options, loop = self._options, asyncio.get_running_loop()
        deadline = loop.time() + options.start_timeout_s
        while True:
            self._check_process("did not start")
            try:
                answer = await self._client.request("GET", "/model_info", timeout=options.health_timeout_s)
                if answer.status == 200:
                    return answer.body
                problem = f"it answers {answer.status}: {error_text(answer.body)}"
            except UnreachableError as error:
                problem = str(error)
            if loop.time() > deadline:
                raise EngineError(f"it was not ready after {options.start_timeout_s:g} s ({problem})")
            await asyncio.sleep(_TICK_S)

    async def watch(self) -> None:
        """Look at the process often, ask the server now and then; its end is everybody's."""
        options, clock = self._options, asyncio.get_running_loop().time
        asked, missed = clock(), 0
        try:
            while self.end is None:
                await asyncio.sleep(_TICK_S)
                self._check_process("died")
                if clock() - asked < options.health_interval_s:
                    continue
                try:
                    await self._client.request("GET", "/model_info", timeout=options.health_timeout_s)
                    missed = 0
                except UnreachableError as error:
                    missed += 1
                    self._check_process("died")
                    if missed > 1 or refused(error):
                        raise EngineDeadError(f"{self.name} is gone: {error}{self.tail}") from error
                asked = clock()
                silent = clock() - self._heard
                if self._busy() and not self.pausing and silent > options.stall_timeout_s:
                    await self._check_health(silent)
                    self._heard = clock()
        except EngineDeadError as error:
            self.finish(error)

    async def _check_health(self, silent: float) -> None:
        """Have the scheduler compute a token; ``/model_info`` is answered even when nothing computes any more."""
        for _ in range(2):  # one that is slow deserves a second chance
            try:
                # SGLang itself gives up after 20 s.
                answer = await self._client.request("GET", "/health", timeout=30 + self._options.health_timeout_s)
                problem = f"/health answers {answer.status}"
            except UnreachableError as error:
                problem = str(error)
            else:
                if answer.status == 200:
                    return
            if self.pausing:
                return
        raise EngineDeadError(f"{self.name} hangs: no request ended for {silent:.0f} s, and {problem}")

    async def suspect(self, error: UnreachableError) -> None:
        """A connection broke: find out whether the server is gone, and say so to all if it is.

        Raises:
            EngineDeadError: It is.
        """
        self.check()
        try:
            self._check_process("died")
            await self._client.request("GET", "/model_info", timeout=self._options.health_timeout_s)
        except (UnreachableError, EngineDeadError):
            with contextlib.suppress(EngineDeadError):
                for _ in range(4):  # a killed process is gone a moment after its connections are
                    self._check_process("died")
                    await asyncio.sleep(0.05 if self._server is not None else 0)
            dead = EngineDeadError(f"{self.name} {self._cause()}: {error}{self.tail}")
            self.finish(dead, error)
            self.check()

    def _check_process(self, what: str) -> None:
        if self._server is not None and self._server.returncode is not None:
            raise EngineDeadError(f"{self.name} {what}, {self._exit()}{self.tail}")

    def _cause(self) -> str:
        ours = self._server is not None and self._server.returncode is not None
        return f"died, {self._exit()}" if ours else "is gone"

    def _exit(self) -> str:
        code = self._server.returncode if self._server is not None else None
        return f"killed by signal {-code}" if code is not None and code < 0 else f"with exit status {code}"
