"""Environments that misbehave on demand, for the tests of this folder. Importable by a spawned process, and quickly."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from textenvs import Task, TextEnv, Turn
from textenvs.messages import Message, user


class SyncEnv:
    """An environment that obeys the last word of the action, or else says "go on" for ``turns`` turns.

    The reward is the action's first word, where that is a number, and 1 otherwise.
    """

    def __init__(
        self, turns: int = 3, say: str = "go on", fail_to_make: bool = False, fail_to_close: bool = False
    ) -> None:
        if fail_to_make:
            raise RuntimeError("no such data")
        self.turns = turns
        self.say = say
        self.fail_to_close = fail_to_close
        self.thread = threading.get_ident()
        self.episodes = 0
        self.closed = False
        self.messages: tuple[dict[str, str], ...] = ()

    def reset(self, *, seed: int, options: dict[str, Any]) -> Any:
        if options.get("hang"):
            threading.Event().wait()
        self.episodes += 1
        self.steps = 0
        self.messages = ({"role": "user", "content": f"task {options.get('task_index')} seed {seed}"},)
        return self.messages, {
            "task_key": str(options.get("task_index")),
            "episodes": self.episodes,
            "pid": os.getpid(),
        }

    def step(self, action: str) -> Any:
        self.steps += 1
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
            case "huge":
                return self.messages, 1e308, False, False, {}
            case "text":
                return "an observation of text", 0.0, False, False, {}
            case "empty":
                return (), 0.0, False, False, {}
            case "role":
                return ({"role": "boss", "content": "x"},), 0.0, False, False, {}
            case "unpaid":
                return self.messages, 1.5, False, False, {"earlier": {0: {"a": 1.0}}, "own_terms": {"a": 0.25}}
            case "unowned":
                return self.messages, 1.0, False, False, {"earlier": {0: {"a": 1.0}}}
            case "unclosed":
                return self.messages, 0.0, False, False, {"closing": [{"role": "user", "content": "no reply"}]}
            case "noinfo":
                return self.messages, 0.0, False, False, None
            case "both":
                return self.messages, 1.0, True, True, {}
            case "failed":
                return self.messages, 0.0, False, True, {"failed": True, "failure": "no user", "stop": "user_failed"}
        first, last = action.split(" ")[0], action.split(" ")[-1]
        reward = float(first) if first.replace(".", "", 1).isdecimal() else 1.0
        terminated = last == "end" or self.steps >= self.turns
        truncated = last == "enough" and not terminated
        self.messages = (*self.messages, {"role": "assistant", "content": action})
        if not terminated:
            self.messages = (*self.messages, {"role": "user", "content": self.say})
        info = {"thread": threading.get_ident(), "home": self.thread, "pid": os.getpid()}
        info |= {"terms": {"half": reward / 2, "rest": reward / 2}, "metrics": {"turns": float(self.steps)}}
        info["stop"] = "solved" if terminated else "max_assistant_turns" if truncated else None
        return self.messages, reward, terminated, truncated, info

    def close(self) -> None:
        self.closed = True
        if self.fail_to_close:
            raise RuntimeError("cannot close")


class AsyncEnv(SyncEnv):
    """The same with async hooks, after ``delay(task, turn)`` seconds; ``stubborn`` swallows cancellation."""

    def __init__(self, delay: Callable[[int, int], float] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.delay = delay
        self.task = -1

    async def areset(self, *, seed: int, options: dict[str, Any]) -> Any:
        if options.get("hang"):
            await asyncio.Event().wait()
        self.task = options.get("task_index", -1)
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
        if self.delay is not None:
            await asyncio.sleep(self.delay(self.task, self.steps))
        return self.step(action)

    async def aclose(self) -> None:
        self.close()


class BlockingEnv(AsyncEnv):
    """Says that it blocks."""

    blocking = True


class Questions:
    """Endless tasks."""

    name, size = "questions", None

    def __getitem__(self, index: int) -> Task:
        return Task(str(index), "test", (user(f"task {index} "),), "7")


class Errand(TextEnv[Any]):
    """Three turns, or fewer where a reply ends with "end"; each is paid by its first word. Its user is random."""

    def __init__(self) -> None:
        super().__init__(Questions())

    def opening(self, task: Task) -> list[Message]:
        return list(task.prompt)

    def respond(self, reply: Message) -> Turn:
        words = str(reply["content"]).split(" ")
        over = self.state.assistant_turns == 3 or words[-1] == "end"
        messages = [] if over else [user(f"go on {int(self.np_random.integers(1000))}")]
        return Turn(messages, reward=float(words[0]), terminated=over, stop="solved" if over else None)


made: list[AsyncEnv] = []


def recorded(**kwargs: Any) -> AsyncEnv:
    """An environment that the test can look at afterwards."""
    made.append(AsyncEnv(**kwargs))
    return made[-1]
