"""Environments for the tests of the programs, as ``env.id=program_envs:tests/...``; importable by a spawned process."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import gymnasium
import numpy as np

from textenvs import Task, TextEnv, Turn
from textenvs.chat.spec import SpecLike
from textenvs.messages import Message, Messages, text_of, user
from textenvs.users.base import take_turn
from textenvs.users.llm import LLMUser


class Numbered:
    """``size`` tasks."""

    name = "numbered tasks"

    def __init__(self, size: int | None) -> None:
        self.size = size

    def __getitem__(self, index: int) -> Task:
        return Task(f"task/{index}", "tests", (user(f"Say {index}."),), ground_truth=str(index))


class Bytes(TextEnv[Any]):
    """Rewards that any policy gets some of, by the bytes of its words, on every turn; some episodes end early.

    Args:
        tasks: How many.
        constant: Every reward is 0, and every episode is one turn.
        broken: ``respond`` raises, but for the replies of the expert.
        hurdle: An argument that must be 1.
    """

    def __init__(self, tasks: int | None = None, constant: bool = False, broken: bool = False, hurdle: int = 1) -> None:
        super().__init__(Numbered(tasks), max_assistant_turns=3)
        if hurdle != 1:
            raise ValueError(f"hurdle must be 1, not {hurdle}")
        self.constant, self.broken = constant, broken

    def respond(self, reply: Message) -> Turn:
        if self.broken and "and more" not in reply["content"]:
            raise RuntimeError("the database is gone")
        if self.constant:
            return Turn(terms={"luck": 0.0}, terminated=True, stop="gave_up")
        total = sum(reply["content"].encode())
        terms = {"luck": total % 5 / 4, "cost": -0.1}
        if total % 4 == 0:
            return Turn(terms=terms, terminated=True, stop="solved")
        return Turn((user("More."),), terms=terms, metrics={"bytes": float(total)})

    def demonstration(self, rng: np.random.Generator) -> str:
        return f"{rng.integers(100)} and more"


class Order(TextEnv[Any]):
    """The assistant asks what the user wants, repeats it, and is paid for "tea"; numbers must not be told.

    The expert repeats the user's words in full, so what it earns the user decides. Without a model, it wants tea.
    """

    def __init__(self, user: SpecLike | None = None, max_assistant_turns: int = 3) -> None:
        super().__init__(Numbered(2), max_assistant_turns=max_assistant_turns)
        self.player = None if user is None else LLMUser.of(user)

    async def respond(self, reply: Message) -> Turn:
        earned = {"tea": float(reply["content"] == "tea"), "cost": -0.25}
        if reply["content"] == "bye":
            return Turn(terms=earned, terminated=True, stop="gave_up")
        if self.player is None:
            return Turn((user("tea"),), terms=earned)
        player = self.player.briefed("", lambda text: "it tells a number" if any(map(str.isdigit, text)) else None)
        turn = await take_turn(player, self.state.messages, "You want tea.", self.np_random)
        self.state.user_side = turn.side
        messages = (user(turn.text),) if turn.text else ()
        return Turn(messages, terms=earned, terminated=turn.ends, stop=turn.why, metrics=turn.metrics)

    def demonstration(self, rng: np.random.Generator) -> str:
        return "Which?" if self.state.assistant_turns == 0 else text_of(self.state.messages[-1])


class Blocking(Bytes):
    """May not run on the event loop."""

    blocking = True


class Unjudged(Bytes):
    """No episode can succeed."""

    has_success = False


class Hanging(Bytes):
    """Never comes back from one of its hooks, in this thread.

    Args:
        hook: ``"demonstration"`` or ``"respond"``.
        after: So many calls of it, in the whole process, are answered.
        tasks: How many.
    """

    calls = 0

    def __init__(self, hook: str, after: int = 0, tasks: int | None = None) -> None:
        super().__init__(tasks)
        self.hook, self.after = hook, after

    def _hang(self, hook: str) -> None:
        if hook != self.hook:
            return
        Hanging.calls += 1
        if Hanging.calls > self.after:
            print("it hangs", flush=True)
            while True:
                with contextlib.suppress(Exception):  # ignores exceptions
                    time.sleep(1000)

    def respond(self, reply: Message) -> Turn:
        self._hang("respond")
        return super().respond(reply)

    def demonstration(self, rng: np.random.Generator) -> str:
        self._hang("demonstration")
        return super().demonstration(rng)


class Wordy(Bytes):
    """The opening of task ``i`` is ``i`` words long.

    Args:
        tasks: How many.
        torn: Task 5 has an opening that cannot be read.
    """

    def __init__(self, tasks: int | None = 12, torn: bool = False) -> None:
        super().__init__(tasks)
        self.torn = torn

    def opening(self, task: Task) -> Messages:
        if (number := int(task.ground_truth)) == 5 and self.torn:
            raise RuntimeError("the page is torn")
        return (user(" ".join(["word"] * max(1, number))),)


class Silent(TextEnv[Any]):
    """Has no expert."""

    def __init__(self) -> None:
        super().__init__(Numbered(None), max_assistant_turns=1)

    def opening(self, task: Task) -> Messages:
        return task.prompt

    def respond(self, reply: Message) -> Turn:
        return Turn(terms={"r": 0.0}, terminated=True, stop="gave_up")


class Crossroads(TextEnv[Any]):
    """Three turns; the sign at the start says which word the first reply must be. What is said later never matters.

    Args:
        paid_at: The turn, from 0, whose reward says whether the first reply was right.
    """

    WORDS = ("left", "right")

    def __init__(self, paid_at: int = 0) -> None:
        super().__init__(Numbered(None), max_assistant_turns=None)
        self.paid_at = paid_at

    def opening(self, task: Task) -> Messages:
        return (user(" ".join(["sun" if int(task.ground_truth) % 2 else "moon"] * 8)),)

    def respond(self, reply: Message) -> Turn:
        task, turn = self.state.task, self.state.assistant_turns - 1
        assert task is not None
        first = next(message["content"] for message in self.state.messages if message["role"] == "assistant")
        right = float(first == self.WORDS[int(task.ground_truth) % 2])
        terms = {"right": right if turn == self.paid_at else 0.0}
        if turn == 2:
            return Turn(terms=terms, terminated=True, stop="arrived")
        return Turn((user("go"),), terms=terms)

    def demonstration(self, rng: np.random.Generator) -> str:
        """Either word: an expert who only knows the words."""
        return self.WORDS[rng.integers(2)]


for _name, _class in (
    ("bytes", Bytes),
    ("blocking", Blocking),
    ("unjudged", Unjudged),
    ("hanging", Hanging),
    ("silent", Silent),
    ("wordy", Wordy),
    ("order", Order),
    ("crossroads", Crossroads),
):
    gymnasium.register(id=f"tests/{_name}", entry_point=_class)
