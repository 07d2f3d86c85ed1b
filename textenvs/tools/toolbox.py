"""Execution of one reply's calls: in order, concurrent where that is safe, and without exceptions.

A call that cannot be run becomes an observation for the model: the problem, and the remedy. Only
:class:`~textenvs.env.EnvironmentFailure` is raised: a failure of the infrastructure is not the model's mistake.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from ..env import EnvironmentFailure, EpisodeState
from ..event_loop import run_in_thread, together
from ..messages import ToolCall, clean_text
from ..options import PositiveInt, checked
from .schema import ArgumentError, Tool, ToolError, nearest

log = logging.getLogger("textenvs")

#: Why a call did not work: ``ToolResult.error``.
ERRORS: tuple[str, ...] = (
    "bad_call",  # the reply has something like a call that cannot be read
    "unknown_tool",
    "bad_json",
    "bad_arguments",
    "too_many_calls",
    "refused",  # the tool raised ToolError
    "exception",  # the tool raised anything else
    "timeout",
)


@dataclass(frozen=True)
class ToolResult:
    """Result of one call.

    ``content`` is the text for the model, ``error`` one of :data:`ERRORS` unless the tool returned, and ``value`` its
    return value, for the environment.
    """

    call: ToolCall
    content: str
    error: str | None = None
    value: Any = None

    @property
    def name(self) -> str:
        return self.call["function"]["name"]

    @property
    def ok(self) -> bool:
        return self.error is None


@dataclass(frozen=True)
class _Ready:
    """A call whose tool exists and whose arguments fit, with the state where the tool takes it."""

    call: ToolCall
    tool: Tool[..., Any]
    arguments: Mapping[str, Any]

    def returned(self, value: Any) -> ToolResult:
        text = value if isinstance(value, str) else to_json(value, inf_nan_mode="strings").decode()
        return self._result(text, None, value)

    def raised(self, error: Exception) -> ToolResult:
        if isinstance(error, EnvironmentFailure):
            raise error
        if isinstance(error, ToolError):
            return self._result(str(error), "refused")
        log.debug("tool %s failed", self.tool.name, exc_info=error)
        return self._result(f"{self.tool.name} failed: {type(error).__name__}: {error}", "exception")

    def _result(self, text: str, error: str | None, value: Any = None) -> ToolResult:
        return ToolResult(self.call, shorten(clean_text(text), self.tool.max_chars), error, value)


class Toolbox:
    """The tools of an environment, and the rules for calling them; see :class:`~textenvs.tool_env.ToolEnv`.

    It has no state.
    """

    @checked
    def __init__(
        self, tools: Sequence[Tool[..., Any]], *, max_calls_per_turn: PositiveInt = 8, max_concurrency: PositiveInt = 8
    ) -> None:
        self._tools: dict[str, Tool[..., Any]] = {}
        for tool in tools:
            if not isinstance(tool, Tool):
                raise TypeError(f"{tool!r} is not a tool; decorate the function with @textenvs.tools.tool")
            if tool.name in self._tools:
                raise ValueError(f"two tools are called {tool.name!r}; rename one with tool.replace(name=...)")
            self._tools[tool.name] = tool
        self.max_calls_per_turn = max_calls_per_turn
        self.max_concurrency = max_concurrency

    @property
    def tools(self) -> tuple[Tool[..., Any], ...]:
        return tuple(self._tools.values())

    def needs_loop(self, calls: Sequence[ToolCall]) -> bool:
        """Return whether one of ``calls`` needs an event loop, and so :meth:`run` instead of :meth:`run_now`."""
        names = (call["function"]["name"] for call in calls[: self.max_calls_per_turn])
        return any(name in self._tools and self._tools[name].needs_loop for name in names)

    def run_now(self, calls: Sequence[ToolCall], state: EpisodeState) -> tuple[ToolResult, ...]:
        """Run ``calls`` one after another, in the caller's thread; none of them may need a loop."""
        prepared = [self._prepare(place, call, state) for place, call in enumerate(calls)]
        return tuple(_run_plain(entry) if isinstance(entry, _Ready) else entry for entry in prepared)

    async def run(self, calls: Sequence[ToolCall], state: EpisodeState) -> tuple[ToolResult, ...]:
        """Run ``calls``, at most ``max_concurrency`` at a time; the results are in the order of the calls.

        Calls that take the state run one after another, in order: their effect on it must not depend on timing.
        When one raises ``EnvironmentFailure``, or this is cancelled, the others are cancelled before it is raised.
        """
        in_order, places = asyncio.Lock(), asyncio.Semaphore(self.max_concurrency)

        async def one(ready: _Ready) -> ToolResult:
            if ready.tool.state_parameter is None:
                async with places:
                    return await _run(ready)
            async with in_order, places:  # the lock is fair: who asks first goes first
                return await _run(ready)

        prepared = [self._prepare(place, call, state) for place, call in enumerate(calls)]
        results = iter(await together(*(one(entry) for entry in prepared if isinstance(entry, _Ready))))
        return tuple(next(results) if isinstance(entry, _Ready) else entry for entry in prepared)

    def _prepare(self, place: int, call: ToolCall, state: EpisodeState) -> _Ready | ToolResult:
        name = call["function"]["name"]
        if place >= self.max_calls_per_turn:
            message = f"Not run: at most {self.max_calls_per_turn} calls in one message."
            return ToolResult(call, message, "too_many_calls")
        if (tool := self._tools.get(name)) is None:
            has = f"The tools are {', '.join(self._tools)}." if self._tools else "There are no tools."
            message = f"There is no tool {name[:100]!r}{nearest(name, list(self._tools))}. {has}"
            return ToolResult(call, message, "unknown_tool")
        try:
            arguments = tool.arguments_of(call["function"]["arguments"])
        except ArgumentError as problem:
            return ToolResult(call, problem.message, problem.kind)
        if tool.state_parameter is not None:
            if tool.state_parameter in arguments:
                return ToolResult(call, f"{name} has no argument {tool.state_parameter!r}.", "bad_arguments")
            arguments[tool.state_parameter] = state
        return _Ready(call, tool, arguments)


def shorten(text: str, max_chars: int) -> str:
    """Return ``text``; a long one as its beginning and end, around a mark with the number of omitted characters."""
    if len(text) <= max_chars:
        return text
    mark = "\n[... {} characters left out ...]\n"
    room = max_chars - len(mark.format(len(text)))  # the mark below is not longer than this one
    head = (room + 1) // 2
    return text[:head] + mark.format(len(text) - room) + text[len(text) - (room - head) :]


async def _run(ready: _Ready) -> ToolResult:
    tool = ready.tool
    if not tool.needs_loop:
        return _run_plain(ready)
    clock = asyncio.timeout(tool.timeout_s)
    try:
        async with clock:
            if tool.is_async:
                return await _run_async(ready)
            # A thread of its own: one that hangs takes no other call's place.
            return await run_in_thread(functools.partial(_run_plain, ready))
    except TimeoutError:
        if not clock.expired():
            raise
        return ToolResult(ready.call, f"{tool.name} took longer than {tool.timeout_s:g} s and was stopped.", "timeout")


async def _run_async(ready: _Ready) -> ToolResult:
    try:
        return ready.returned(await ready.tool.function(**ready.arguments))
    except Exception as error:
        return ready.raised(error)


def _run_plain(ready: _Ready) -> ToolResult:
    try:
        return ready.returned(ready.tool.function(**ready.arguments))
    except Exception as error:
        return ready.raised(error)
