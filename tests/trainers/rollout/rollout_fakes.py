"""Environments that misbehave on demand, for the tests of this folder. Importable by a spawned process, and quickly."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from typing import Any


class SyncEnv:
    """Does what the last word of the action says; otherwise says "go on" for ``turns`` turns."""

    def __init__(self, turns: int = 3, fail_to_make: bool = False, fail_to_close: bool = False) -> None:
        if fail_to_make:
            raise RuntimeError("no such data")
        self.turns = turns
        self.fail_to_close = fail_to_close
        self.thread = threading.get_ident()
        self.episodes = 0
        self.closed = False
        self.messages: tuple[dict[str, str], ...] = ()

    def reset(self, *, seed: int, options: dict[str, Any]) -> Any:
        if options.get("hang"):
            threading.Event().wait()
        self.episodes += 1
        self.taken = 0
        self.messages = ({"role": "user", "content": f"task {options.get('task_index')} seed {seed}"},)
        return self.messages, {
            "task_key": str(options.get("task_index")),
            "episodes": self.episodes,
            "pid": os.getpid(),
        }

    def step(self, action: str) -> Any:
        self.taken += 1
        match action.split(" ")[-1]:
            case "hang":
                threading.Event().wait()
            case "raise":
                raise KeyError("a bug in the environment")
            case "sysexit":
                sys.exit(3)
            case "die":
                os._exit(7)
            case "unpicklable":
                return self.messages, 0.0, False, False, {"lock": threading.Lock()}
            case "pair":
                return self.messages, 0.0
            case "nan":
                return self.messages, float("nan"), False, False, {}
            case "text":
                return "an observation of text", 0.0, False, False, {}
            case "empty":
                return (), 0.0, False, False, {}
            case "role":
                return ({"role": "boss", "content": "x"},), 0.0, False, False, {}
            case "noinfo":
                return self.messages, 0.0, False, False, None
            case "both":
                return self.messages, 1.0, True, True, {}
        reply = {"role": "assistant", "content": action}
        self.messages = (*self.messages, reply, {"role": "user", "content": "go on"})
        info = {"thread": threading.get_ident(), "home": self.thread, "pid": os.getpid()}
        return self.messages, 1.0, self.taken >= self.turns, False, info

    def close(self) -> None:
        self.closed = True
        if self.fail_to_close:
            raise RuntimeError("cannot close")


class AsyncEnv(SyncEnv):
    """The same with async hooks; ``stubborn`` swallows cancellation."""

    async def areset(self, *, seed: int, options: dict[str, Any]) -> Any:
        if options.get("hang"):
            await asyncio.Event().wait()
        return self.reset(seed=seed, options=options)

    async def astep(self, action: str) -> Any:
        match action.split(" ")[-1]:
            case "hang":
                await asyncio.Event().wait()
            case "stubborn":
                while not self.closed:
                    try:
                        await asyncio.sleep(0.05)
                    except asyncio.CancelledError:
                        continue
            case "cancel":
                raise asyncio.CancelledError
        return self.step(action)

    async def aclose(self) -> None:
        self.close()


class BlockingEnv(AsyncEnv):
    """Says that it blocks."""

    blocking = True


made: list[AsyncEnv] = []


def recorded(**kwargs: Any) -> AsyncEnv:
    """An environment that the test can look at afterwards."""
    made.append(AsyncEnv(**kwargs))
    return made[-1]
