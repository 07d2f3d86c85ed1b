"""Generated problems that a short program solves: too long to do in one's head, with one whole number as the answer.

Every problem has its program, which the scripted expert runs; the answer itself is computed here, another way where
there is one. Training and test problems are disjoint by construction: what a problem is about (its kind and its
numbers) hashes to one split or the other. Rows are a function of (level, split, seed, index) alone.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Literal

from ...data.endless import Endless
from ...messages import user
from ...task import Split, Task

ComputingLevel = Literal["easy", "medium", "hard"]

#: One problem in this many is held out for the test split.
_HELD_OUT = 8


@dataclass(frozen=True)
class Problem:
    """A problem, its answer, and a program that prints it."""

    question: str
    answer: int
    program: str


# ------------------------------------------------------------------ easy: one expression


def _calculation(rng: random.Random) -> Problem:
    a, b, c = rng.randint(1_000, 99_999), rng.randint(1_000, 99_999), rng.randint(100, 9_999)
    return Problem(f"What is {a} * {b} + {c}?", a * b + c, f"print({a} * {b} + {c})")


def _remainder(rng: random.Random) -> Problem:
    a, b, m = rng.randint(2, 999), rng.randint(20, 999), rng.randint(11, 9_999)
    question = f"What is the remainder when {a} to the power of {b} is divided by {m}?"
    return Problem(question, pow(a, b, m), f"print({a} ** {b} % {m})")


def _squares(rng: random.Random) -> Problem:
    a = rng.randint(1, 500)
    b = a + rng.randint(20, 500)

    def below(n: int) -> int:
        return n * (n + 1) * (2 * n + 1) // 6

    question = f"What is the sum of the squares of all whole numbers from {a} to {b}?"
    program = f"print(sum(n * n for n in range({a}, {b} + 1)))"
    return Problem(question, below(b) - below(a - 1), program)


def _digits(rng: random.Random) -> Problem:
    a, b = rng.randint(2, 99), rng.randint(10, 90)
    question = f"What is the sum of the digits of {a} to the power of {b}?"
    return Problem(question, sum(map(int, str(a**b))), f"print(sum(int(digit) for digit in str({a} ** {b})))")


# ------------------------------------------------------------------ medium: a loop with a condition


def _multiples(rng: random.Random) -> Problem:
    while True:
        a, b, c = rng.sample(range(2, 16), 3)
        if a % b and b % a and a % c and b % c:  # each condition says something
            break
    n = rng.randint(500, 20_000)

    def count(*divisors: int) -> int:
        return n // math.lcm(*divisors)

    # Inclusion and exclusion: (a or b), without those that c divides, too.
    answer = count(a) + count(b) - count(a, b) - count(a, c) - count(b, c) + count(a, b, c)
    question = f"How many whole numbers from 1 to {n} are divisible by {a} or by {b}, but not by {c}?"
    test = f"(n % {a} == 0 or n % {b} == 0) and n % {c} != 0"
    return Problem(question, answer, f"print(sum(1 for n in range(1, {n} + 1) if {test}))")


@cache
def _primes() -> tuple[int, ...]:
    sieve = bytearray(b"\1") * 5_001
    sieve[:2] = b"\0\0"
    for p in range(2, 71):
        if sieve[p]:
            sieve[p * p :: p] = bytes(len(sieve[p * p :: p]))
    return tuple(n for n, prime in enumerate(sieve) if prime)


def _prime_sum(rng: random.Random) -> Problem:
    a = rng.randint(2, 3_000)
    b = a + rng.randint(50, 2_000)
    program = (
        "def is_prime(n):\n    return n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1))\n"
        f"print(sum(n for n in range({a}, {b} + 1) if is_prime(n)))"
    )
    answer = sum(p for p in _primes() if a <= p <= b)
    return Problem(f"What is the sum of all prime numbers from {a} to {b}?", answer, program)


def _most_divisors(rng: random.Random) -> Problem:
    a = rng.randint(100, 3_000)
    b = a + rng.randint(50, 400)
    counts = [0] * (b - a + 1)
    for d in range(1, b + 1):
        for n in range(-(-a // d) * d, b + 1, d):
            counts[n - a] += 1
    question = f"Which whole number from {a} to {b} has the most divisors? If there are several, take the smallest."
    program = (
        "def divisors(n):\n    return sum(1 for d in range(1, n + 1) if n % d == 0)\n"
        f"print(max(range({a}, {b} + 1), key=divisors))"
    )
    return Problem(question, a + counts.index(max(counts)), program)


def _pairs(rng: random.Random) -> Problem:
    n, g = rng.randint(60, 400), rng.randint(1, 12)
    totients = sum(sum(1 for k in range(1, m) if math.gcd(k, m) == 1) for m in range(2, n // g + 1))
    question = f"How many pairs of whole numbers x < y from 1 to {n} have the greatest common divisor {g}?"
    program = f"from math import gcd\nprint(sum(1 for y in range(1, {n} + 1) for x in range(1, y) if gcd(x, y) == {g}))"
    return Problem(question, totients, program)


# ------------------------------------------------------------------ hard: an algorithm


def _recurrence(rng: random.Random) -> Problem:
    a, b, p, q = (rng.randint(1, 9) for _ in range(4))
    n, m = rng.randint(1_000, 100_000), rng.randint(101, 9_999)
    x, power, matrix = (a, b), n, (0, 1, q, p)  # (x_n, x_n+1) = matrix^n (x_0, x_1)
    while power:
        if power & 1:
            x = (matrix[0] * x[0] + matrix[1] * x[1]) % m, (matrix[2] * x[0] + matrix[3] * x[1]) % m
        s, t, u, v = matrix
        matrix = (s * s + t * u) % m, (s * t + t * v) % m, (u * s + v * u) % m, (u * t + v * v) % m
        power >>= 1
    question = (
        f"A sequence starts with x_0 = {a} and x_1 = {b}, and x_n = {p} * x_(n-1) + {q} * x_(n-2) for n > 1. "
        f"What is the remainder when x_{n} is divided by {m}?"
    )
    program = f"x, y = {a}, {b}\nfor _ in range({n}):\n    x, y = y, ({p} * y + {q} * x) % {m}\nprint(x % {m})"
    return Problem(question, x[0] % m, program)


def _change(rng: random.Random) -> Problem:
    coins, amount = sorted(rng.sample(range(2, 30), 4)), rng.randint(60, 400)
    ways = [1] + [0] * amount
    for coin in coins:
        for total in range(coin, amount + 1):
            ways[total] += ways[total - coin]
    listed = f"{', '.join(map(str, coins[:-1]))} and {coins[-1]}"
    question = f"In how many ways can an amount of {amount} be paid with coins of {listed}? The order does not count."
    program = (
        f"ways = [1] + [0] * {amount}\nfor coin in {coins}:\n    for total in range(coin, {amount} + 1):\n"
        "        ways[total] += ways[total - coin]\nprint(ways[-1])"
    )
    return Problem(question, ways[-1], program)


def _paths(rng: random.Random) -> Problem:
    width, height = rng.randint(6, 14), rng.randint(6, 14)
    cells = [(x, y) for x in range(width) for y in range(height) if 0 < x + y < width + height - 2]
    while True:
        blocked = sorted(rng.sample(cells, 3))
        # Paths through chosen cells in order, by binomials, with alternating signs: all but those through blocked ones.
        answer = 0
        for chosen in range(8):
            stops = [(0, 0), *(cell for i, cell in enumerate(blocked) if chosen >> i & 1), (width - 1, height - 1)]
            ways = 1
            for (x, y), (u, v) in pairwise(stops):
                ways *= math.comb(u - x + v - y, u - x) if u >= x and v >= y else 0
            answer += ways if chosen.bit_count() % 2 == 0 else -ways
        if answer:
            break
    listed = ", ".join(map(str, blocked[:-1])) + f" and {blocked[-1]}"
    question = (
        f"A grid has the cells (x, y) with x from 0 to {width - 1} and y from 0 to {height - 1}. The cells {listed} "
        f"are blocked. How many ways lead from (0, 0) to ({width - 1}, {height - 1}) with steps that add 1 to x or 1 "
        "to y, never into a blocked cell?"
    )
    program = (
        f"blocked = {set(blocked)}\nways = {{(0, 0): 1}}\nfor x in range({width}):\n    for y in range({height}):\n"
        "        if (x, y) != (0, 0):\n"
        "            ways[x, y] = 0 if (x, y) in blocked else ways.get((x - 1, y), 0) + ways.get((x, y - 1), 0)\n"
        f"print(ways[{width - 1}, {height - 1}])"
    ).replace(str(set(blocked)), "{" + ", ".join(map(str, blocked)) + "}")
    return Problem(question, answer, program)


def _last_one(rng: random.Random) -> Problem:
    n, k = rng.randint(50, 2_000), rng.randint(2, 60)
    left = 0
    for size in range(2, n + 1):
        left = (left + k) % size
    question = (
        f"{n} children stand in a circle, numbered 1 to {n}. They count from 1 to {k}, beginning with child 1. Who "
        f"says {k} leaves the circle, and the next one begins again with 1. What is the number of the last child?"
    )
    program = (
        f"circle, at = list(range(1, {n} + 1)), 0\nwhile len(circle) > 1:\n"
        f"    at = (at + {k} - 1) % len(circle)\n    circle.pop(at)\nprint(circle[0])"
    )
    return Problem(question, left + 1, program)


_LEVELS: dict[str, tuple[Callable[[random.Random], Problem], ...]] = {
    "easy": (_calculation, _remainder, _squares, _digits),
    "medium": (_multiples, _prime_sum, _most_divisors, _pairs),
    "hard": (_recurrence, _change, _paths, _last_one),
}
LEVELS: tuple[str, ...] = tuple(_LEVELS)


@dataclass(frozen=True)
class GeneratedComputing(Endless):
    """An endless :class:`~textenvs.task.TaskSet` of problems for short programs.

    Args:
        level: ``"easy"`` (one expression: large products, powers and remainders, sums, digits), ``"medium"`` (a loop
            with a condition: multiples, primes, divisors, pairs) or ``"hard"`` (an algorithm: recurrences, ways to pay,
            paths in a grid, counting out). All answers are whole and at least 0.
        seed: Another seed is another sequence of problems.
        split: ``"train"`` or ``"test"``; the two never share a problem, whatever their seeds.

    Raises:
        ValueError: An unknown level or split, or a seed that is not an integer.
    """

    level: ComputingLevel = "easy"
    seed: int = 0
    split: Split = "train"

    def __post_init__(self) -> None:
        self.check_choices(LEVELS)

    @property
    def name(self) -> str:
        """Which problems these are, in a line."""
        return f"generated {self.level} computing problems ({self.split}, seed {self.seed})"

    def _generate(self, index: int) -> Task:
        rng = random.Random(f"computing/{self.level}/{self.split}/{self.seed}/{index}")
        kinds = _LEVELS[self.level]
        problem = rng.choice(kinds)(rng)
        while _split_of(problem.question) != self.split:
            problem = rng.choice(kinds)(rng)
        return Task(
            key=f"{self.level}/{self.split}/{self.seed}/{index}",
            data_source=f"textenvs/computing-{self.level}",
            prompt=(user(problem.question),),
            ground_truth=str(problem.answer),
            ability="math",
            extra={"level": self.level, "program": problem.program, "grader": "number"},
        )


def _split_of(question: str) -> str:
    """A question has one wording for its kind and numbers, and so stands for them."""
    digest = hashlib.sha256(f"computing/{question}".encode()).digest()
    return "test" if int.from_bytes(digest[:8], "big") % _HELD_OUT == 0 else "train"
