"""A small environment for these tests: say the number of the task; what else is said decides what goes wrong."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from textenvs import EnvironmentFailure, Task, TextEnv, Turn
from textenvs.messages import user, visible_text


@dataclass(frozen=True)
class Numbers:
    """``size`` tasks from two sources."""

    size: int | None = 6
    name: str = "numbers"

    def __getitem__(self, index: int) -> Task:
        return Task(f"number/{index}", f"source{index % 2}", (user(f"Say {index}."),), ground_truth=str(index))


class Say(TextEnv):
    """``#`` is a failed simulator, ``!`` a bug. ``opened``, where given, fails the openings of these tasks."""

    def __init__(self, size=6, *, unopened=(), render_mode=None):
        super().__init__(Numbers(size), max_assistant_turns=3, render_mode=render_mode)
        self.unopened = unopened
        self.closed = 0

    def opening(self, task):
        if task.ground_truth in self.unopened:
            raise EnvironmentFailure("tool_failed", "no database")
        return [*task.prompt, user(f"Luck: {self.np_random.random():.3f}.")]

    def respond(self, reply):
        text = visible_text(reply)
        if text == "#":
            raise EnvironmentFailure("user_failed", "the user hung up")
        if text == "!":
            raise RuntimeError("a bug")
        right = text == self.state.task.ground_truth
        terms = {"right": float(right), "late": -0.25 * (self.state.assistant_turns > 1)}
        messages = () if right else (user(f"No ({self.np_random.random():.3f})."),)
        return Turn(
            messages, terms=terms, terminated=right, stop="solved" if right else None, metrics={"size": len(text)}
        )

    def demonstration(self, rng):
        return self.state.task.ground_truth

    def cleanup(self):
        self.closed += 1


class AsyncSay(Say):
    """The same with asynchronous hooks."""

    async def opening(self, task):
        await asyncio.sleep(0)
        return super().opening(task)

    async def respond(self, reply):
        await asyncio.sleep(0)
        return super().respond(reply)


class BlockingSay(Say):
    """The same, in threads."""

    blocking = True
