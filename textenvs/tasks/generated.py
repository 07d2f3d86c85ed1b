"""Generated arithmetic in words: seeded, endless, in GSM8K's format (a question, a worked answer, ``#### N``).

Training and test problems are disjoint by construction: the *arithmetic* of a problem (its chain of equations,
without names and things) hashes to one split or the other, and a generator draws again until it falls into its own.
So a test problem is never a training problem in other words. Rows are a function of (level, split, seed, index) alone.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from ..messages import user
from .base import Task

Level = Literal["easy", "medium", "hard"]
Split = Literal["train", "test"]
SPLITS: tuple[str, ...] = ("train", "test")

#: One problem in this many is held out for the test split.
_HELD_OUT = 8

_NAMES = ("Tom", "Ann", "Sam", "Mia", "Leo", "Eva", "Max", "Zoe", "Ben", "Amy", "Dan", "Ivy", "Jack", "Lily", "Noah")
_THINGS = ("apples", "books", "coins", "cards", "shells", "pens", "cookies", "stamps", "marbles", "toys")


@dataclass
class _Problem:
    """A problem while it is written: sentences of the question, lines of the answer, and the equations alone."""

    sentences: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    equations: list[str] = field(default_factory=list)
    result: int = 0

    def calculate(self, left: int, sign: str, right: int) -> int:
        """Work out one step and note its equation."""
        self.result = _apply(left, sign, right)
        self.equations.append(f"{left}{sign}{right}={self.result}")
        return self.result


def _apply(left: int, sign: str, right: int) -> int:
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    if sign == "*":
        return left * right
    quotient, remainder = divmod(left, right)
    if remainder:
        raise ValueError(f"{left}/{right} is not whole")  # a template drew the wrong numbers
    return quotient


# ------------------------------------------------------------------ easy

_GAINS = ("{name} finds {n} more.", "{name} buys {n} more.", "{name} gets {n} more.", "A friend gives {name} {n} more.")
_LOSSES = ("{name} gives away {n}.", "{name} loses {n}.", "{name} sells {n}.", "{name} uses {n}.")


def _easy(rng: random.Random) -> _Problem:
    """One or two steps of adding and taking away: 12 to 20 words, numbers up to 20, answers from 0 to 60.

    Distinct questions: 15 names and 10 things, 19 starts, and for each of the steps up to 4 phrasings of up to 20 gains
    and of at most 20 losses: about 40 million, on about 20,000 different chains of equations.
    """
    problem = _Problem()
    name, thing = rng.choice(_NAMES), rng.choice(_THINGS)
    have = rng.randint(2, 20)
    problem.sentences.append(f"{name} has {have} {thing}.")
    for _ in range(rng.randint(1, 2)):
        if have == 0 or rng.random() < 0.5:
            n, sign, phrases = rng.randint(1, 20), "+", _GAINS
        else:
            n, sign, phrases = rng.randint(1, min(20, have)), "-", _LOSSES
        problem.sentences.append(rng.choice(phrases).format(name=name, n=n))
        have = problem.calculate(have, sign, n)
        problem.lines.append(problem.equations[-1])
    problem.sentences.append(f"How many {thing} does {name} have now?")
    return problem


_LEVELS: dict[str, Callable[[random.Random], _Problem]] = {"easy": _easy}
LEVELS: tuple[str, ...] = tuple(_LEVELS)


def _split_of(equations: list[str]) -> str:
    digest = hashlib.sha256("\n".join(equations).encode()).digest()
    return "test" if int.from_bytes(digest[:8], "big") % _HELD_OUT == 0 else "train"


@dataclass(frozen=True)
class GeneratedMath:
    """An endless :class:`~textenvs.tasks.base.TaskSet` of arithmetic problems in words.

    Args:
        level: ``"easy"`` (one or two steps of adding and taking away, numbers up to 20, short sentences).
        seed: Another seed is another sequence of problems.
        split: ``"train"`` or ``"test"``; the two never share a problem, whatever their seeds.

    Raises:
        ValueError: An unknown level or split, or a seed that is not a whole number.
    """

    level: Level = "easy"
    seed: int = 0
    split: Split = "train"

    def __post_init__(self) -> None:
        if self.level not in _LEVELS:
            raise ValueError(f"level must be one of {', '.join(LEVELS)}, not {self.level!r}")
        if self.split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {self.split!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ValueError(f"seed must be a whole number, not {self.seed!r}")

    @property
    def name(self) -> str:
        """Which problems these are, in a line."""
        return f"generated {self.level} problems ({self.split}, seed {self.seed})"

    @property
    def size(self) -> None:
        """Endless."""
        return None

    def __getitem__(self, index: int) -> Task:
        """The problem at ``index``.

        Raises:
            IndexError: ``index`` is negative.
        """
        if index < 0:
            raise IndexError(f"{self.name}: index {index} is negative; generated problems count from 0")
        # Seeding by a string goes through SHA-512, so neighbouring indices are unrelated.
        rng = random.Random(f"{self.level}/{self.split}/{self.seed}/{int(index)}")
        problem = _LEVELS[self.level](rng)
        while _split_of(problem.equations) != self.split:
            problem = _LEVELS[self.level](rng)
        question = " ".join(problem.sentences)
        answer = "\n".join((*problem.lines, f"#### {problem.result}"))
        return Task(
            key=f"{self.level}/{self.split}/{self.seed}/{int(index)}",
            data_source=f"textenvs/generated-{self.level}",
            prompt=(user(question),),
            ground_truth=str(problem.result),
            ability="math",
            extra={"question": question, "answer": answer, "level": self.level},
        )
