"""Small environments with every feature of the contract, for the tests of the core."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from textenvs import EnvironmentFailure, EpisodeState, Task, TextEnv, Turn
from textenvs.messages import tool, user, visible_text


@dataclass(frozen=True)
class ToyTasks:
    """``count`` tasks whose answers appear nowhere else."""

    count: int | None = 7
    name: str = "toy tasks"

    @property
    def size(self) -> int | None:
        return self.count

    def __getitem__(self, index: int) -> Task:
        return Task(f"toy/{index}", "toy", (user(f"Guess word {index}."),), ground_truth=f"secret{index}word")


@dataclass
class GuessState(EpisodeState):
    """A mutable field, to see that snapshots do not share it."""

    guesses: list[str] = field(default_factory=list)


class Guess(TextEnv[GuessState]):
    """Guess the word. Every turn draws from the environment's randomness and remembers what was said.

    ``tool`` is answered by a tool, ``quit`` ends the episode, ``boom`` raises half-way, ``fail`` is a failed simulator.
    """

    state_type = GuessState

    def __init__(self, tasks=None, *, max_assistant_turns=4, max_user_turns=None, **kwargs):
        super().__init__(
            tasks or ToyTasks(), max_assistant_turns=max_assistant_turns, max_user_turns=max_user_turns, **kwargs
        )
        self.cleaned = []

    def opening(self, task):
        return [*task.prompt, user(f"Hint {self.np_random.integers(1000)}.")]

    def respond(self, reply):
        text, luck = visible_text(reply), float(self.np_random.random())
        self.state.guesses.append(text)
        if text == "boom":
            self.state.stop = "half a turn"
            raise RuntimeError("boom")
        if text == "fail":
            raise EnvironmentFailure("user_failed", "no answer after 3 tries")
        if text == "quit":
            return Turn(terminated=True, stop="gave_up", terms={"correct": 0.0, "luck": luck})
        if text == self.state.task.ground_truth:
            return Turn([user("Yes!")], terminated=True, stop="solved", terms={"correct": 1.0, "luck": luck})
        answer = f"No ({luck:.6f}), after {self.state.guesses}."
        messages = [tool(answer, "call_0")] if text == "tool" else [user(answer)]
        return Turn(messages, terms={"correct": 0.0, "luck": luck}, metrics={"length": len(text)})

    def demonstration(self, rng):
        return self.state.task.ground_truth

    def cleanup(self):
        self.cleaned.append(True)


class AsyncGuess(Guess):
    """The same with asynchronous hooks."""

    async def opening(self, task):
        await asyncio.sleep(0)
        return super().opening(task)

    async def respond(self, reply):
        await asyncio.sleep(0)
        turn = super().respond(reply)
        await asyncio.sleep(0)
        return turn

    async def cleanup(self):
        await asyncio.sleep(0)
        super().cleanup()


class BlockingGuess(Guess):
    """The same, in a thread of its own where many run at once."""

    blocking = True


KINDS = (Guess, AsyncGuess, BlockingGuess)


class Contexts(TextEnv[EpisodeState]):
    """Every reply says what comes next: ``more`` extends the conversation.

    ``anew`` begins another one, ``answered`` the same after an answer, ``branch`` one with the first message of this
    one, ``back N`` goes on with the one that was left as number N, ``silent N`` goes back to it as it was, and ``end``
    ends the episode. What is said is never said twice.
    """

    def __init__(self, tasks=None, *, max_assistant_turns=20, **options):
        super().__init__(tasks or ToyTasks(), max_assistant_turns=max_assistant_turns, **options)

    def opening(self, task):
        return [*task.prompt, user(f"Hint {self.np_random.integers(1000)}.")]

    def respond(self, reply):
        state = self.state
        command, _, number = visible_text(reply).partition(" ")
        new = user(f"Message {state.assistant_turns} ({self.np_random.integers(1000)}).")
        match command:
            case "anew":
                return Turn(context=[new])
            case "answered":
                return Turn([user("Well.")], context=[new])
            case "branch":
                return Turn(context=[state.messages[0], new])
            case "back":
                return Turn(context=[*state.contexts[int(number)], new])
            case "silent":
                return Turn(context=state.contexts[int(number)])
            case "end":
                return Turn(terminated=True, stop="solved", reward=1.0)
        return Turn([new])


ROLES = ("solver", "critic", "judge")


class Talk(TextEnv[Any]):
    """Each reply says who speaks next, and pays all turns so far."""

    roles = ROLES

    def __init__(self, same: bool = False, **options: Any) -> None:
        super().__init__([Task("task", "tests", (user("Begin."),), ground_truth="")], **options)
        self.same = same

    def respond(self, reply: Any) -> Turn:
        number, name = self.state.assistant_turns - 1, reply["content"]
        if name == "end":
            earlier = {turn: {"paid": float(turn + 1)} for turn in range(number)}
            return Turn(terminated=True, stop="over", terms={"paid": float(number + 1)}, earlier=earlier)
        return Turn([user("Begin." if self.same else f"news {number}")], role=name)
