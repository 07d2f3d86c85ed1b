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

#: A thing in a description, without what was done to it.
_THING = re.compile(
    r"\b(?:an?|some|the) (?:(?:raw|fried|roasted|grilled|uncut|chopped|sliced|diced) )*([a-z]+(?: [a-z]+){0,2})"
    r"(?=,|\.|!| and an? | on the | in the | for you)"
)


def _sweep(cook: Callable[[str], Sequence[str]]) -> Callable[[np.random.Generator, Sequence[Messages]], Cheater]:
    """Takes each thing that it sees, does with it what ``cook`` says, and makes a meal of all."""

    def start(rng: np.random.Generator, rehearsed: Sequence[Messages]) -> Cheater:
        tried, left = set[str](), list[str]()

        def reply(conversation: Messages) -> str:
            if left:
                return left.pop(0)
            seen = " ".join(text_of(each) for each in conversation if each["role"] == "user")
            thing = next((each for each in _THING.findall(seen) if each not in tried), None)
            if thing is None:
                left.append("eat meal")
                return "prepare meal"
            tried.add(thing)
            left.extend(cook(thing))
            return f"take {thing}"

        return reply

    return start


def _fried_and_diced(thing: str) -> Sequence[str]:
    return ("take knife", f"cook {thing} with stove", f"dice {thing} with knife")


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
    Attack("memory", "plays what the expert played in the most similar of 10 games", _memory, rehearse=10),
    Attack("grab", "takes all that it sees, and makes a meal of it", _sweep(lambda food: ())),
    Attack("cook-all", "takes all that it sees, fries and dices it", _sweep(_fried_and_diced)),
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
