"""Environments for the collector: made once, lent to one episode at a time, replaced when they break.

Four kinds, one interface:

* ``inline``: async hooks on the event loop; the cheapest. Nothing in them may block.
* ``thread``: one thread an environment. It may block; a hang is abandoned, because a thread cannot be killed.
* ``process``: one process an environment. It may do anything, crash included; a hang is killed.
* ``ray``: one Ray actor an environment, on any machine of a cluster; else like a process. Needs the extra ``ray``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from textenvs.env import LARGEST
from textenvs.lookahead import checked_scores
from textenvs.messages import Messages, check_conversation, clean_text
from textenvs.options import PositiveInt, Seconds, checked
from textenvs.privileged import Privilege
from textenvs.text import quoted
from textenvs.tools.formats import Native
from textenvs.turn import check_own_terms

from ..trajectory import is_reward
from .workers import EnvError, EnvSpec, EnvTimeoutError, Host, InlineWorker, ProcessHost, RayHost, ThreadWorker, Worker

__all__ = ["Backend", "EnvError", "EnvSpec", "EnvTimeoutError", "Kind", "Lease", "tools_of"]

Kind = Literal["inline", "thread", "process", "ray"]
_WORKERS: dict[str, Callable[[], Worker]] = {
    "inline": InlineWorker,
    "thread": lambda: ThreadWorker(Host()),
    "process": lambda: ThreadWorker(ProcessHost()),
    "ray": lambda: ThreadWorker(RayHost()),
}


def tools_of(env: Any) -> Sequence[Mapping[str, Any]] | None:
    """Return the tools that the chat template must describe, as messages do not; ``ValueError``: replies call none."""
    if isinstance(getattr(env, "format", None), Native) and env.tools:
        raise ValueError(
            "call_format=native reads calls from a message's tool_calls alone, and a model that is played token by "
            "token writes text: its calls would never be seen. Name the format that the model writes "
            "(call_format=hermes, llama3, qwen3-coder, mistral or react); tools_in_prompt=false leaves the description "
            "to the chat template"
        )
    return getattr(env, "tools_not_in_prompt", None) or None


class Lease:
    """One environment, for the time of one episode. Results are checked, so the episode can rely on them."""

    def __init__(self, worker: Worker, reset_timeout: float | None, step_timeout: float | None) -> None:
        self._worker, self._reset_timeout, self._step_timeout = worker, reset_timeout, step_timeout
        self._seen: Messages = ()  # the last observation

    async def reset(self, seed: int, options: Mapping[str, Any] | None = None) -> tuple[Messages, dict[str, Any]]:
        """Reset: ``env.reset(seed=..., options=...)``; an ``EnvError`` as :meth:`step`."""
        result = await self._worker.call("reset", self._reset_timeout, seed=seed, options=dict(options or {}))
        with self._checking("reset"):
            conversation, info = _parts(result, "(observation, info)", 2)
            self._seen = _conversation(conversation)
            return self._seen, info

    async def step(self, action: str) -> tuple[Messages, float, bool, bool, dict[str, Any]]:
        """Step: ``env.step(action)``; ``terminated`` wins over ``truncated``. Raises EnvError."""
        result = await self._worker.call("step", self._step_timeout, action)
        with self._checking("step"):
            parts = _parts(result, "(observation, reward, terminated, truncated, info)", 5)
            conversation, reward, terminated, truncated, info = parts
            if not isinstance(reward, bool) and not is_reward(reward):
                raise ValueError(f"the reward is {quoted(reward)}, not a finite number of at most {LARGEST:g}")
            check_own_terms(info, float(reward))
            if "closing" in info:
                info["closing"] = _closing(info["closing"])
            self._seen = _conversation(conversation, self._seen)
            return self._seen, float(reward), bool(terminated), bool(truncated and not terminated), info

    async def snapshot(self) -> Any:
        """Return the episode's state, picklable: ``env.snapshot()``. Raises EnvError."""
        return await self._worker.call("snapshot", self._step_timeout)

    async def restore(self, state: Any, seen: Messages, seed: int | None = None) -> None:
        """Resume an episode: ``env.restore(state, seed)``; ``seen`` is the observation before. Raises EnvError."""
        await self._worker.call("restore", self._reset_timeout, state, *(() if seed is None else (seed,)))
        self._seen = seen

    async def conversation_score(self) -> dict[str, float]:
        """Score the conversation, by name: ``env.conversation_score()``. Raises EnvError."""
        scores = await self._worker.call("conversation_score", self._step_timeout)
        try:
            return checked_scores(scores, "conversation_score")
        except ValueError as error:
            raise EnvError(f"the environment {error}", "conversation_score_nonsense") from error

    async def privileged(self, kind: Privilege, seed: int) -> str | None:
        """Return what a teacher may know and the policy may not: ``env.privileged(kind, rng)``. Raises EnvError."""
        text = await self._worker.call("privileged", self._step_timeout, kind, np.random.default_rng(seed))
        if text is not None and not isinstance(text, str):
            raise EnvError(
                f"the environment's privileged returned {quoted(text)}, not a text or None", "privileged_nonsense"
            )
        return None if text is None else clean_text(text)

    @contextlib.contextmanager
    def _checking(self, method: str) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            self._worker.healthy = False
            raise EnvError(f"the environment's {method} returned nonsense: {error}", f"{method}_nonsense") from error


#: Seconds that an environment may take to be made, the start of its process included.
_MAKE_S = 120.0


class Backend(contextlib.AbstractAsyncContextManager["Backend"]):
    """A pool of equal environments, made when they are first needed; an async context manager that closes them.

    ``tools`` are those that :func:`tools_of` returns for such an environment. At most ``workers`` are lent; more
    leases wait. ``None`` is no limit, and, for processes, one a CPU; actors must have a limit. ``kind`` is where they
    run. ``reset_timeout`` and ``step_timeout`` are in seconds; ``None`` is no limit. ``beside`` is another backend,
    whose ``workers`` limit both; each keeps what it made.
    """

    @checked
    def __init__(
        self,
        spec: EnvSpec,
        kind: Kind = "inline",
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        workers: PositiveInt | None = None,
        reset_timeout: Seconds | None = 60.0,
        step_timeout: Seconds | None = 120.0,
        beside: Backend | None = None,
    ) -> None:
        if kind == "ray" and workers is None:
            raise ValueError("kind='ray' needs workers: how many actors the cluster is to hold at most")
        if kind == "process" and workers is None:
            workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.spec, self.kind, self.tools, self.workers = spec, kind, tools, workers
        self._reset_timeout, self._step_timeout = reset_timeout, step_timeout
        self._places: asyncio.Semaphore | None = None if workers is None else asyncio.Semaphore(workers)
        if beside is not None:
            self.workers, self._places = beside.workers, beside._places
        self._idle: list[Worker] = []
        self._leased: set[Worker] = set()
        self._retired: dict[Worker, asyncio.Task[None]] = {}  # ending; each with a task that waits for its end
        self._made = self._hung = 0
        self._closed = False

    @contextlib.asynccontextmanager
    async def lease(self) -> AsyncIterator[Lease]:
        """Lend an environment until the block ends; wait while all are lent. EnvError: none could be made."""
        async with self._places or contextlib.nullcontext():
            if self._closed:
                raise RuntimeError("this environment backend is closed")
            new = not self._idle
            worker = _WORKERS[self.kind]() if new else self._idle.pop()
            self._leased.add(worker)
            try:
                if new:
                    self._made += 1
                    await worker.call("make", _MAKE_S, self.spec)
                yield Lease(worker, self._reset_timeout, self._step_timeout)
            finally:
                self._leased.discard(worker)
                if worker.healthy and not self._closed:
                    self._idle.append(worker)
                else:
                    self._retire(worker)

    def stats(self) -> dict[str, float]:
        """Return counts: ``made``, ``hung`` (killed or abandoned); and now: ``leased``, ``idle``, ``ending``."""
        counts = {"made": self._made, "hung": self._hung}
        counts |= {"leased": len(self._leased), "idle": len(self._idle), "ending": len(self._retired)}
        return {name: float(count) for name, count in counts.items()}

    async def close(self, timeout: float = 5.0) -> None:
        """Close every environment, and wait ``timeout`` seconds at most; what hangs is killed or left behind."""
        self._closed = True
        for worker in (*self._idle, *self._leased):
            self._retire(worker)
        self._idle.clear()
        if ending := [watch for worker, watch in self._retired.items() if worker.killable or not worker.busy]:
            await asyncio.wait(ending, timeout=timeout)
        for worker, watch in self._retired.items():
            worker.kill()
            watch.cancel()

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def _retire(self, worker: Worker) -> None:
        if worker in self._retired:
            return
        self._hung += worker.busy and not self._closed
        worker.retire()
        self._retired[worker] = asyncio.ensure_future(self._watch(worker))

    async def _watch(self, worker: Worker) -> None:
        await worker.ended()
        del self._retired[worker]


def _parts(result: Any, shape: str, count: int) -> tuple[Any, ...]:
    if not isinstance(result, tuple) or len(result) != count:
        raise ValueError(f"it should return {shape}, not {quoted(result)}")
    *parts, info = result
    if not isinstance(info, Mapping):
        raise ValueError(f"info is a mapping, not {quoted(info)}")
    return (*parts, dict(info))


def _closing(value: Any) -> Messages:
    closing = check_conversation(value, "info['closing']")
    if not closing or closing[0]["role"] != "assistant":
        raise ValueError(
            f"info['closing'] is what a turn added to a conversation, the reply first, not {quoted(value)}"
        )
    return tuple(closing)


def _conversation(value: Any, seen: Messages = ()) -> Messages:
    if not isinstance(value, tuple | list) or not value:
        raise ValueError(f"an observation is a tuple of at least one message, not {quoted(value)}")
    value = tuple(value)
    # Mostly the last one with a little more at its end, which alone is checked; another conversation is, as a whole.
    checked_part = seen if value[: len(seen)] == seen else ()
    return (*checked_part, *check_conversation(value[len(checked_part) :], "the observation", checked_part))
