"""Repeat three letters: a tiny policy learns it in seconds, and it can be broken during a run.

``env.id=benchmarks.doctor.environment:benchmarks/repeat``.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from textenvs import EpisodeState, Task, TextEnv, Turn
from textenvs.messages import Message, user, visible_text
from textenvs.task import Rows

LETTERS = "bdfghkmp"
WORDS = ["".join(letters) for letters in itertools.product(LETTERS, repeat=3)]

#: The parts that are broken now, in every environment of this process; a run's fault sets it from an iteration on.
BROKEN: set[str] = set()


def words(split: str) -> Rows:
    """Return tasks of three letters each; every fifth is held out."""
    chosen = [word for i, word in enumerate(WORDS) if (i * 7919 % 5 == 0) is (split == "test")]
    shuffled = random.Random(0).sample(chosen, len(chosen))
    return Rows(f"words, {split}", [Task(word, "words", (user(f"Repeat {word}."),), word) for word in shuffled])


@dataclass
class State(EpisodeState):
    """The state of an episode."""

    best: float = 0.0  # share of letters that were right so far


class Repeat(TextEnv[State]):
    """Reward terms: `right`, what the share of right letters gains on the best before, and `again` for a second turn.

    Args:
        split: ``train`` or ``test``.
        fault: Something that is broken from the start; see :mod:`benchmarks.doctor.plants`.
    """

    state_type = State

    def __init__(self, split: str = "train", fault: str = "", render_mode: str | None = None) -> None:
        super().__init__(words(split), max_assistant_turns=2, render_mode=render_mode)
        self.fault = fault

    def opening(self, task: Task) -> Any:
        return (user("Repeat it."),) if "opening" in BROKEN else task.prompt

    async def respond(self, reply: Message) -> Turn:
        broken = BROKEN | {self.fault}
        text, word = visible_text(reply), self.task.ground_truth
        chance = self.np_random.random()
        if "raises" in broken and chance < 0.3:
            raise RuntimeError("the database is gone")
        if "hangs" in broken and chance < 0.1:
            await asyncio.sleep(3600)
        if "slow" in broken:
            await asyncio.sleep(0.6)
        right = sum(a == b for a, b in zip(text, word, strict=False)) / 3 if len(text) <= 3 else 0.0
        if "prefix" in broken:
            right = float(text[:1] in tuple(LETTERS) and len(text) > 0)
        if "format" in broken:  # the checker wants brackets now
            right = float(text == f"[{word}]")
        if "impossible" in broken or ("misjudged" in broken and word[0] in "bdf"):
            right = 0.0
        if "pays silence" in broken and not text.strip():
            right = 1.0
        gained, self.state.best = max(0.0, right - self.state.best), max(right, self.state.best)
        terms = {"right": gained, "again": -0.2 * (self.state.assistant_turns > 1)}
        if right == 1.0:
            return Turn(terms=terms, terminated=True, stop="solved")
        return Turn((user(f"No. Repeat {word}."),) if "opening" not in BROKEN else (user("No."),), terms=terms)

    def demonstration(self, rng: np.random.Generator) -> str:
        return str(self.task.ground_truth)

    def careless_reply(self, rng: np.random.Generator) -> str:
        word = list(self.task.ground_truth)
        word[rng.integers(3)] = str(rng.choice(list(LETTERS)))
        return "".join(word)


gymnasium.register("benchmarks/repeat", entry_point="benchmarks.doctor.environment:Repeat")
