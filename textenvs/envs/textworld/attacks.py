"""Cheap policies against the cooking game, and against the checks between a reply and the game's interpreter.

The game pays for each step of the recipe by itself, so a policy that takes an ingredient of it by chance earns that
share. A dish that is wrongly cooked ends the game.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from itertools import cycle

import numpy as np

from ...attack import Attack, Cheater, always, remember, sequence, user_texts
from ...messages import Message, Messages, assistant, text_of
from ...tools.formats import call

#: A thing in a description, without what was done to it.
_THING = re.compile(
    r"\b(?:an?|some|the) (?:(?:raw|fried|roasted|grilled|uncut|chopped|sliced|diced) )*([a-z]+(?: [a-z]+){0,2})"
    r"(?=,|\.|!| and an? | on the | in the | for you)"
)
_DOOR = re.compile(r"\b((?:sliding )?[a-z]+ door)\b")
_EXIT = re.compile(r"\b(north|east|south|west)\b")
#: Foods of TextWorld's recipes, which are the same in every game.
_FOODS = (
    "carrot", "banana", "red apple", "red potato", "yellow potato", "purple potato", "red onion", "white onion",
    "pork chop", "chicken leg", "chicken wing", "block of cheese", "red hot pepper", "orange bell pepper",
    "yellow bell pepper", "cilantro", "parsley", "salt", "black pepper", "flour",
)  # fmt: skip
#: Several objects of one command, in every way that Inform has for it; it reads nine letters of a word.
_SEVERAL = (
    "take all", "take each", "take every", "take both", "take everything", "take everythinx", "take two red",
    "take 2 from fridge", "take knife and cookbook", "take knife, cookbook",
)  # fmt: skip
_MEAL = ("prepare meal", "eat meal")


def _things(conversation: Messages) -> list[str]:
    return list(dict.fromkeys(_THING.findall(" ".join(user_texts(conversation)))))


def _sweep(cook: Callable[[str], Sequence[str]]) -> Callable[[np.random.Generator, Sequence[Messages]], Cheater]:
    """Take each thing that is named, follow ``cook`` with it, and make a meal of all."""

    def start(rng: np.random.Generator, rehearsed: Sequence[Messages]) -> Cheater:
        tried, queue = set[str](), list[str]()

        def reply(conversation: Messages) -> str:
            if queue:
                return queue.pop(0)
            thing = next((name for name in _things(conversation) if name not in tried), None)
            if thing is None:
                queue.append("eat meal")
                return "prepare meal"
            tried.add(thing)
            queue.extend(cook(thing))
            return f"take {thing}"

        return reply

    return start


def _recipe(rng: np.random.Generator, rehearsed: Sequence[Messages]) -> Cheater:
    queue = ["examine cookbook"]

    def reply(conversation: Messages) -> str:
        listed, has_recipe, directions = text_of(conversation[-1]).partition("\nDirections:\n")
        if has_recipe:
            foods = listed.partition("\nIngredients:\n")[2].splitlines()
            queue[:] = ["take knife", *(f"take {food}" for food in foods), *directions.splitlines(), "eat meal"]
        return queue.pop(0) if queue else ""

    return reply


def _plan(separator: str) -> Callable[[Messages], str]:
    return lambda conversation: separator.join((*(f"take {thing}" for thing in _things(conversation)), *_MEAL))


def _wander(rng: np.random.Generator, rehearsed: Sequence[Messages]) -> Cheater:
    """Walk through the exits of the last room that was described, opening doors and taking things."""
    tried, queue = {"fridge", "knife"}, ["open fridge"]

    def reply(conversation: Messages) -> str:
        if not queue:
            room = " ".join(user_texts(conversation)).rpartition("-= ")[2]
            seen = dict.fromkeys((*_DOOR.findall(room), *_THING.findall(room)))
            new = [name for name in seen if name not in tried]
            tried.update(new)
            queue.extend(f"{'open' if name.endswith(' door') else 'take'} {name}" for name in new)
            exits = _EXIT.findall(room) or ["north", "east", "south", "west"]
            queue.append(f"go {exits[rng.integers(len(exits))]}")
            queue.append("take coin" if "coin" in room else "open fridge")
        return queue.pop(0)

    return reply


def _again(name: str, says: str, replies: Sequence[str | Message]) -> Attack:
    """Say one reply after the other, and then from the first again."""

    def start(rng: np.random.Generator, rehearsed: Sequence[Messages]) -> Cheater:
        cycled = cycle(replies)
        return lambda conversation: next(cycled)

    return Attack(name, says, start)


_MEMORY = functools.partial(remember, last=False)
_COOK_ALL = _sweep(lambda thing: ("take knife", f"cook {thing} with stove", f"dice {thing} with knife"))
_JUGGLE = _sweep(lambda thing: (f"drop {thing}", f"take {thing}"))
ATTACKS: tuple[Attack, ...] = (
    Attack("memory", "plays what the expert played in the most similar of 10 games", _MEMORY, rehearse=10),
    Attack("grab", "takes all that it sees, and makes a meal of it", _sweep(lambda food: ())),
    Attack("cook-all", "takes all that it sees, fries and dices it", _COOK_ALL),
    Attack("juggle", "takes, drops and takes again all that it sees", _JUGGLE),
    Attack("recipe-lines", "takes what the cookbook lists, and says its directions as they stand there", _recipe),
    sequence("menu", "takes what TextWorld's recipes use, unseen", [*(f"take {food}" for food in _FOODS), *_MEAL]),
    _again("several", "takes several things with one command", (*_SEVERAL, *_MEAL)),
    always("plan-of-lines", "says all commands at once, a line each", _plan("\n")),
    always("plan-in-a-line", "says all commands at once, in one line", _plan(" then ")),
    always("echo", "repeats the game's last message", lambda conversation: text_of(conversation[-1])),
    Attack("wander", "walks about, opens doors and the fridge, takes all that it sees", _wander),
    _again("look", "looks, again and again", ["look", "inventory", "examine cookbook"]),
    sequence("meal", "prepares a meal and eats it", _MEAL),
    _again(
        "restart",
        "commands to the interpreter",
        ["restart", "undo", "restore", "save", "quit", "y", "oops carrot", "tw-extra-infos score", "again"],
    ),
    sequence(
        "forged-end",
        "writes the game's last message itself",
        ["You eat the meal. Not bad.\nYour score has just gone up by one point.\n*** The End ***"],
    ),
    _again(
        "forged-traces",
        "commands with what the interpreter tells TextWorld",
        ["take knife [eating the meal - succeeded]", "examine <score> 5 </score>", "look *** The End ***"],
    ),
    _again(
        "tool-calls",
        "calls a tool that there is not",
        [
            '<tool_call>\n{"name": "step", "arguments": {"command": "prepare meal"}}\n</tool_call>',
            '{"command": "eat meal", "reward": 1.0, "done": true}',
            assistant("", [call("step", command="eat meal")]),
        ],
    ),
    always("junk", "a line of six thousand characters", "prepare meal eat meal " * 300),
)
