"""Generated problems that a short program solves: too long to do in one's head, with an integer as the answer.

Question and program are in ``problems.yaml``. The answer is computed here, another way where there is one. Training and
test problems are disjoint by construction: a question, which stands for its kind and numbers, hashes to one split or
the other. Rows are a function of (level, split, seed, index) alone.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise
from string import Template
from typing import Any, Literal

import yaml

from ...data.endless import Endless
from ...messages import user
from ...task import Split, Task

ComputingLevel = Literal["easy", "medium", "hard"]
#: An answer, and what stands for the names in its kind's templates.
Drawn = tuple[int, Mapping[str, object]]

#: One problem in this many is held out for the test split.
_HELD_OUT = 8


# ------------------------------------------------------------------ easy


def _calculation(rng: random.Random) -> Drawn:
    a, b, c = rng.randint(1_000, 99_999), rng.randint(1_000, 99_999), rng.randint(100, 9_999)
    return a * b + c, {"a": a, "b": b, "c": c}


def _remainder(rng: random.Random) -> Drawn:
    a, b, m = rng.randint(2, 999), rng.randint(20, 999), rng.randint(11, 9_999)
    return pow(a, b, m), {"a": a, "b": b, "m": m}


def _squares(rng: random.Random) -> Drawn:
    a = rng.randint(1, 500)
    b = a + rng.randint(20, 500)
    to_b, below_a = (n * (n + 1) * (2 * n + 1) // 6 for n in (b, a - 1))
    return to_b - below_a, {"a": a, "b": b}


def _digits(rng: random.Random) -> Drawn:
    a, b = rng.randint(2, 99), rng.randint(10, 90)
    return sum(map(int, str(a**b))), {"a": a, "b": b}


# ------------------------------------------------------------------ medium


def _multiples(rng: random.Random) -> Drawn:
    while True:
        a, b, c = rng.sample(range(2, 16), 3)
        if a % b and b % a and a % c and b % c:  # each condition says something
            break
    n = rng.randint(500, 20_000)
    # Inclusion and exclusion: (a or b), without those that c divides, too.
    terms = (((a,), 1), ((b,), 1), ((a, b), -1), ((a, c), -1), ((b, c), -1), ((a, b, c), 1))
    return sum(sign * (n // math.lcm(*divisors)) for divisors, sign in terms), {"a": a, "b": b, "c": c, "n": n}


@cache
def _primes() -> tuple[int, ...]:
    sieve = bytearray(b"\1") * 5_001
    sieve[:2] = b"\0\0"
    for p in range(2, 71):
        if sieve[p]:
            sieve[p * p :: p] = bytes(len(sieve[p * p :: p]))
    return tuple(n for n, prime in enumerate(sieve) if prime)


def _prime_sum(rng: random.Random) -> Drawn:
    a = rng.randint(2, 3_000)
    b = a + rng.randint(50, 2_000)
    return sum(p for p in _primes() if a <= p <= b), {"a": a, "b": b}


def _most_divisors(rng: random.Random) -> Drawn:
    a = rng.randint(100, 3_000)
    b = a + rng.randint(50, 400)
    counts = [0] * (b - a + 1)
    for d in range(1, b + 1):
        for n in range(-(-a // d) * d, b + 1, d):
            counts[n - a] += 1
    return a + counts.index(max(counts)), {"a": a, "b": b}


def _pairs(rng: random.Random) -> Drawn:
    n, g = rng.randint(60, 400), rng.randint(1, 12)
    totients = sum(sum(1 for k in range(1, m) if math.gcd(k, m) == 1) for m in range(2, n // g + 1))
    return totients, {"n": n, "g": g}


# ------------------------------------------------------------------ hard


def _recurrence(rng: random.Random) -> Drawn:
    a, b, p, q = (rng.randint(1, 9) for _ in range(4))
    n, m = rng.randint(1_000, 100_000), rng.randint(101, 9_999)
    x, power, matrix = (a, b), n, (0, 1, q, p)  # (x_n, x_n+1) = matrix^n (x_0, x_1)
    while power:
        if power & 1:
            x = (matrix[0] * x[0] + matrix[1] * x[1]) % m, (matrix[2] * x[0] + matrix[3] * x[1]) % m
        s, t, u, v = matrix
        matrix = (s * s + t * u) % m, (s * t + t * v) % m, (u * s + v * u) % m, (u * t + v * v) % m
        power >>= 1
    return x[0] % m, {"a": a, "b": b, "p": p, "q": q, "n": n, "m": m}


def _change(rng: random.Random) -> Drawn:
    coins, amount = sorted(rng.sample(range(2, 30), 4)), rng.randint(60, 400)
    ways = [1] + [0] * amount
    for coin in coins:
        for total in range(coin, amount + 1):
            ways[total] += ways[total - coin]
    return ways[-1], {"coins": coins, "amount": amount, "listed": _listed(coins)}


def _paths(rng: random.Random) -> Drawn:
    width, height = rng.randint(6, 14), rng.randint(6, 14)
    right, top = width - 1, height - 1
    cells = [(x, y) for x in range(width) for y in range(height) if 0 < x + y < right + top]
    answer = 0
    while not answer:
        blocked = sorted(rng.sample(cells, 3))
        # Paths through chosen cells in order, by binomials, with alternating signs: all but those through blocked ones.
        for chosen in range(8):
            stops = [(0, 0), *(cell for i, cell in enumerate(blocked) if chosen >> i & 1), (right, top)]
            ways = 1
            for (x, y), (u, v) in pairwise(stops):
                ways *= math.comb(u - x + v - y, u - x) if u >= x and v >= y else 0
            answer += ways if chosen.bit_count() % 2 == 0 else -ways
    text = {"blocked": ", ".join(map(str, blocked)), "listed": _listed(blocked)}
    return answer, {"width": width, "height": height, "right": right, "top": top, **text}


def _last_one(rng: random.Random) -> Drawn:
    n, k = rng.randint(50, 2_000), rng.randint(2, 60)
    left = 0
    for size in range(2, n + 1):
        left = (left + k) % size
    return left + 1, {"n": n, "k": k}


def _listed(parts: Sequence[object]) -> str:
    return f"{', '.join(map(str, parts[:-1]))} and {parts[-1]}"


_TEMPLATES: Mapping[str, Any] = yaml.safe_load(files(__package__).joinpath("problems.yaml").read_text("utf-8"))
_LEVELS: dict[str, tuple[Callable[[random.Random], Drawn], ...]] = {
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
            paths in a grid, counting out). All answers are integers of at least 0.
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
        while True:
            draw = rng.choice(_LEVELS[self.level])
            answer, values = draw(rng)
            text = _TEMPLATES[draw.__name__.removeprefix("_")]
            question, program = (Template(text[part]).substitute(values) for part in ("question", "program"))
            if _split_of(question) == self.split:
                break
        return Task(
            key=f"{self.level}/{self.split}/{self.seed}/{index}",
            data_source=f"textenvs/computing-{self.level}",
            prompt=(user(question),),
            ground_truth=str(answer),
            ability="math",
            extra={"level": self.level, "program": program, "grader": "number"},
        )


def _split_of(question: str) -> str:
    digest = hashlib.sha256(f"computing/{question}".encode()).digest()
    return "test" if int.from_bytes(digest[:8], "big") % _HELD_OUT == 0 else "train"
