"""Toy environments with one weakness each, of the kinds A to G, and a sound one."""

from dataclasses import dataclass, field

import numpy as np

from textenvs import EpisodeState, Task, TextEnv, Turn, always, user, visible_text
from textenvs.attack import COMMON

SIZES, DRINKS, MILKS = ("small", "large"), ("espresso", "latte", "mocha"), ("oat milk", "soy milk", "cow milk")


@dataclass(frozen=True)
class Endless:
    """Tasks made from their index by a function of a generator."""

    make: object
    name: str = "planted tasks"
    size: int | None = None

    def __getitem__(self, index):
        prompt, truth, extra = self.make(np.random.default_rng(index))
        return Task(f"task/{index}", "planted", (user(prompt),), ground_truth=truth, extra=extra)


class Toy(TextEnv):
    """Reward terms: ``right``, and ``wait`` for every turn after the first."""

    wait = 0.1
    turns = 6

    def __init__(self):
        super().__init__(Endless(self.make), max_assistant_turns=self.turns)

    def attacks(self):
        return (*COMMON, always("dots", "says dots", lambda conversation: "..."))

    def turn(self, solved, answer):
        terms = {"right": float(solved), "wait": -self.wait * (self.state.assistant_turns > 1)}
        if solved:
            return Turn(terms=terms, terminated=True, stop="solved")
        return Turn([user(answer)], terms=terms)


def order(rng):
    truth = ", ".join(str(rng.choice(choices)) for choices in (SIZES, DRINKS, MILKS))
    return "Find out what I would like to drink, and repeat it.", truth, {}


@dataclass
class Asked(EpisodeState):
    parts: list[str] = field(default_factory=list)


class Sound(Toy):
    """The user answers questions about one thing each, and has no patience for other words."""

    state_type = Asked
    wait = 0.05
    make = staticmethod(order)

    def respond(self, reply):
        text, parts = visible_text(reply).lower(), dict(zip(("size", "drink", "milk"), self.truth, strict=True))
        named = [name for name in parts if f"which {name}" in text]
        if len(named) != 1 or "?" not in text:
            solved = text == ", ".join(self.truth)
            terms = {"right": float(solved), "wait": 0.0 if solved else -0.2}
            return Turn([user("No.")], terms=terms, terminated=True, stop="solved" if solved else "wrong")
        self.state.parts = [*self.state.parts, *named]
        return self.turn(False, f"The {named[0]}: {parts[named[0]]}.")

    @property
    def truth(self):
        return self.task.ground_truth.split(", ")

    def secrets(self):
        return ()

    def demonstration(self, rng):
        remaining = [name for name in ("size", "drink", "milk") if name not in self.state.parts]
        return f"Which {remaining[0]}?" if remaining else ", ".join(self.truth)


class FillerIsPaid(Toy):
    """A: every reply but the order is answered with the next piece of it."""

    wait = 0.01
    make = staticmethod(order)

    def respond(self, reply):
        pieces = self.task.ground_truth.split(", ")
        turn = min(self.state.assistant_turns, 3)
        return self.turn(
            all(piece in visible_text(reply).lower() for piece in pieces), f"By the way: {pieces[turn - 1]}."
        )

    def secrets(self):
        return ()

    def demonstration(self, rng):
        names = ("size", "drink", "milk")
        turn = self.state.assistant_turns
        return f"Which {names[turn]}?" if turn < 3 else self.task.ground_truth


class ToldToFiller(FillerIsPaid):
    """A, for the search: short words are enough to be told."""

    def respond(self, reply):
        solved = all(piece in visible_text(reply) for piece in self.task.ground_truth.split(", "))
        if solved or len(visible_text(reply)) > 60 or visible_text(reply)[:1].isdigit():
            return self.turn(solved, "No.")
        return super().respond(reply)


def bill(rng):
    amounts = [f"${value / 100:.2f}" for value in rng.choice(np.arange(1000, 9999), 8, replace=False)]
    truth = sorted(amounts, key=lambda amount: float(amount[1:]))[len(amounts) // 2]
    return f"The bills were {', '.join(amounts)}. What was the fifth smallest?", truth, {}


class ListsCount(Toy):
    """B: an answer counts if the amount is anywhere in it."""

    turns = 1
    make = staticmethod(bill)

    def respond(self, reply):
        return self.turn(self.task.ground_truth in visible_text(reply), "No.")

    def demonstration(self, rng):
        return f"It was {self.task.ground_truth}."


class DayRangeCounts(ListsCount):
    """B: ninety days are as good as one."""

    @staticmethod
    def make(rng):
        return (
            "My order is from 2026-02-03. When does it arrive?",
            f"2026-0{rng.integers(3, 5)}-{rng.integers(10, 29)}",
            {},
        )


def digits(rng):
    code = str(rng.integers(40))
    return f"The code is {code}. Say it.", code, {}


class GuessedByChance(Toy):
    """A code of forty: of few episodes more than one in twenty may be guessed, of many fewer are."""

    turns = 1

    make = staticmethod(digits)

    def respond(self, reply):
        return self.turn(visible_text(reply) == self.task.ground_truth, "No.")

    def attacks(self):
        return (*COMMON, always("seven", "says seven", "7"))

    def demonstration(self, rng):
        return self.task.ground_truth


def wish(rng):
    return (
        f"It is about order W{rng.integers(1000, 9999)}. You can cancel, return, exchange or keep it.",
        str(rng.choice(["cancel", "return", "exchange", "keep"])),
        {},
    )


class MenuConsent(Toy):
    """C: a yes is given to any question that has the wish in it."""

    turns = 2
    make = staticmethod(wish)

    def respond(self, reply):
        text = visible_text(reply).lower()
        order = self.task.question.split("order ")[1][:5].lower()
        return self.turn("?" in text and order in text and self.task.ground_truth in text, "No.")

    def secrets(self):
        return ()

    def demonstration(self, rng):
        return f"Shall I {self.task.ground_truth} order {self.task.question.split('order ')[1][:5]}?"


def sums(rng):
    one, two, three = (int(value) for value in rng.integers(2, 99, 3))
    return f"What is {one} * ({two} + {three})?", str(one * (two + three)), {}


class RestatedCounts(Toy):
    """D: the value of what is in the box is compared, whatever stands there."""

    turns = 1
    make = staticmethod(sums)

    def respond(self, reply):
        inside = visible_text(reply).partition("\\boxed{")[2].rpartition("}")[0]
        try:
            value = eval(inside, {"__builtins__": {}}) if set(inside) <= set("0123456789+-*/() ") else None  # noqa: S307
        except Exception:
            value = None
        return self.turn(str(value) == self.task.ground_truth, "No.")

    def demonstration(self, rng):
        return f"\\boxed{{{self.task.ground_truth}}}"


class PatchedChecker(Toy):
    """E: the program runs in this process, with what it is compared with in reach."""

    turns = 1

    @staticmethod
    def make(rng):
        return f"Write a Python function `add{rng.integers(9)}(a, b)` that adds.", f"{rng.integers(99)}", {}

    def respond(self, reply):
        program = visible_text(reply).removeprefix("```python\n").removesuffix("```")
        space, expected = {}, 7
        try:
            exec(program, space)  # noqa: S102
            name = self.task.question.split("`")[1].split("(")[0]
            passed = space[name](3, 4) == expected
        except Exception:
            passed = False
        return self.turn(passed, "No.")

    def demonstration(self, rng):
        name = self.task.question.split("`")[1].split("(")[0]
        return f"```python\ndef {name}(a, b):\n    return a + b\n```"


class FailureIsPaid(Toy):
    """F: a bonus for getting it right after getting it wrong."""

    make = staticmethod(sums)

    def respond(self, reply):
        right = visible_text(reply) == f"#### {self.task.ground_truth}"
        later = self.state.assistant_turns > 1
        terms = {"right": float(right), "better": 10.0 * (right and later)}
        if right:
            return Turn(terms=terms, terminated=True, stop="solved")
        return Turn([user("Look again.")], terms=terms)

    def demonstration(self, rng):
        return f"#### {self.task.ground_truth}"


class OneWorld(Toy):
    """G: endless tasks about one world of forty towns."""

    turns = 1

    @staticmethod
    def make(rng):
        town = int(rng.integers(40))
        return f"Who is the mayor of town number {town}?", f"Dr. {chr(65 + town % 26)}{town * 7919 % 997}son", {}

    def respond(self, reply):
        return self.turn(visible_text(reply) == self.task.ground_truth, "No.")

    def demonstration(self, rng):
        return self.task.ground_truth


class NoAttacks(Sound):
    """Lists no attacks of its own."""

    def attacks(self):
        return COMMON


class WorthlessExpert(Sound):
    """An expert that earns what random replies earn."""

    def demonstration(self, rng):
        return "?"


def copied(rng):
    word = "".join(rng.choice(list("abcdef"), 7))
    return f"Repeat this word: {word}", word, {}


class CopyInTags(Toy):
    """A copy of the question's last word is right, between tags."""

    make = staticmethod(copied)

    def respond(self, reply):
        _, opened, answer = visible_text(reply).partition("<reply>")
        answer, closed, _ = answer.partition("</reply>")
        solved = bool(opened and closed) and answer.strip() == self.task.ground_truth
        stop = "solved" if solved else "wrong"
        metrics = {"well_formed": float(bool(opened and closed))}
        return Turn(terms={"right": float(solved)}, terminated=True, stop=stop, metrics=metrics)

    def demonstration(self, rng):
        return f"<reply>{self.task.ground_truth}</reply>"


class Unspoken(CopyInTags):
    """Answers must be signed with what differs from task to task: no template is learned."""

    def respond(self, reply):
        text = visible_text(reply)
        formed = text == text[::-1] and len(text) > 10
        solved = formed and text[: len(text) // 2] == self.task.ground_truth
        stop = "solved" if solved else "wrong"
        return Turn(terms={"right": float(solved)}, terminated=True, stop=stop, metrics={"well_formed": float(formed)})

    def demonstration(self, rng):
        return f"{self.task.ground_truth}{self.task.ground_truth[::-1]}"


class NoExpert(CopyInTags):
    """An environment without an expert."""

    demonstration = TextEnv.demonstration


class PaysEveryTurn(NoExpert):
    """Rewards every short reply, right or wrong, and has no expert."""

    def respond(self, reply):
        return Turn([user("Go on.")], terms={"right": 0.1 * (len(visible_text(reply)) < 100), "wait": 0.0})
