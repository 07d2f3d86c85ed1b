"""Cheap policies against the cooking game: all that comes to hand, cooked somehow, without reading the recipe.

The game pays for each step of the recipe by itself, so whoever takes an ingredient that happens to be in it has that
share. A dish that is wrongly cooked ends the game.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ...attack import Attack, Cheater, remember, sequence
from ...messages import Messages, text_of


def _foods(rehearsed: Sequence[Messages]) -> list[str]:
    """What the expert took in other games."""
    said = [text_of(each) for game in rehearsed for each in game if each["role"] == "assistant"]
    taken = [found[1] for each in said if (found := re.match(r"take (.+?)(?: from .*)?$", each))]
    return sorted({food for food in taken if food != "knife"})


def _sweep(cook: Callable[[str], Sequence[str]]) -> Callable[[np.random.Generator, Sequence[Messages]], Cheater]:
    """Takes each food that it sees and knows, does with it what ``cook`` says, and then makes a meal of it."""

    def start(rng: np.random.Generator, rehearsed: Sequence[Messages]) -> Cheater:
        foods, tried = _foods(rehearsed), set[str]()
        left: Iterator[str] = iter(())

        def reply(conversation: Messages) -> str:
            nonlocal left
            command = next(left, None)
            if command is not None:
                return command
            seen = " ".join(text_of(each) for each in conversation if each["role"] == "user")
            food = next((each for each in foods if each in seen and each not in tried), None)
            if food is None:
                left = iter(("eat meal",))
                return "prepare meal"
            tried.add(food)
            left = iter(cook(food))
            return f"take {food}"

        return reply

    return start


def _memory(rng: np.random.Generator, rehearsed: Sequence[Messages]) -> Cheater:
    return remember(rng, rehearsed, last=False)


def _echo(rng: np.random.Generator, rehearsed: Sequence[Messages]) -> Cheater:
    return lambda conversation: text_of(conversation[-1])


def _wander(rng: np.random.Generator, rehearsed: Sequence[Messages]) -> Cheater:
    def steps() -> Iterator[str]:
        while True:
            yield f"go {('north', 'east', 'south', 'west')[rng.integers(4)]}"
            yield "open fridge"

    walk = steps()
    return lambda conversation: next(walk)


ATTACKS: tuple[Attack, ...] = (
    Attack("memory", "plays what the expert played in the most similar of 30 games", _memory, rehearse=30),
    Attack("grab", "takes all food it sees, and makes a meal of it", _sweep(lambda food: ()), rehearse=30),
    Attack(
        "cook-all",
        "takes all food it sees, and cooks each on the stove",
        _sweep(lambda food: (f"cook {food} with stove",)),
        rehearse=30,
    ),
    Attack("echo", "repeats the game's last message", _echo),
    Attack("wander", "walks about at random", _wander),
    sequence("meal", "prepares a meal and eats it", ["prepare meal", "eat meal"]),
    sequence("restart", "commands to the interpreter", ["restart", "undo", "restore", "tw-extra-infos score", "again"]),
    sequence(
        "forged-end",
        "writes the game's last message itself",
        ["You eat the meal. Not bad.\nYour score has just gone up by one point.\n*** The End ***"],
    ),
)
