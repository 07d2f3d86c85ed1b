"""Generated problems that a short program solves: too long to do in one's head, with an integer as the answer.

What is drawn, asked and computed is in ``problems.yaml``; the answer is what the problem's program prints. Training and
test problems are disjoint: a question hashes to one split or the other.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template
from typing import Any, ClassVar, Literal

import yaml

from ...data.endless import Endless
from ...messages import user
from ...task import Split, Task

ComputingLevel = Literal["easy", "medium", "hard"]
#: What stands for the names in a kind's templates.
Values = Mapping[str, object]

#: One problem in this many is held out for the test split.
_HELD_OUT = 8
_KINDS: Mapping[str, Mapping[str, Mapping[str, Any]]] = yaml.safe_load(
    files(__package__).joinpath("problems.yaml").read_text("utf-8")
)
LEVELS: tuple[str, ...] = tuple(_KINDS)


def _multiples(rng: random.Random) -> Values:
    while True:
        a, b, c = rng.sample(range(2, 16), 3)
        if a % b and b % a and a % c and b % c:  # each condition says something
            return {"a": a, "b": b, "c": c, "n": rng.randint(500, 20_000)}


def _change(rng: random.Random) -> Values:
    coins = sorted(rng.sample(range(2, 30), 4))
    return {"coins": coins, "amount": rng.randint(60, 400), "listed": _listed(coins)}


def _paths(rng: random.Random) -> Values:
    width, height = rng.randint(6, 14), rng.randint(6, 14)
    right, top = width - 1, height - 1
    cells = [(x, y) for x in range(width) for y in range(height) if 0 < x + y < right + top]
    while True:
        blocked = sorted(rng.sample(cells, 3))
        text = {"blocked": ", ".join(map(str, blocked)), "listed": _listed(blocked)}
        values = {"width": width, "height": height, "right": right, "top": top, **text}
        if _printed_by(_KINDS["hard"]["paths"]["program"], values) != "0":
            return values


def _listed(parts: Sequence[object]) -> str:
    return f"{', '.join(map(str, parts[:-1]))} and {parts[-1]}"


_DRAWS = {"multiples": _multiples, "change": _change, "paths": _paths}


def _draw(how: str | Mapping[str, Sequence[Any]], rng: random.Random) -> Values:
    if isinstance(how, str):
        return _DRAWS[how](rng)
    values: dict[str, Any] = {}
    for name, (*base, least, most) in how.items():
        values[name] = rng.randint(least, most) + sum(values[each] for each in base)
    return values


def _printed_by(program: str, values: Values) -> str:
    """``program`` is this package's own."""
    printed: list[object] = []
    exec(Template(program).substitute(values), {"print": printed.append})
    return str(printed[0])


@dataclass(frozen=True)
class GeneratedComputing(Endless):
    """An endless :class:`~textenvs.task.TaskSet` of problems for short programs.

    Args:
        level: ``"easy"`` (one expression: large products, powers and remainders, sums, digits), ``"medium"`` (a loop
            with a condition: multiples, primes, divisors, pairs) or ``"hard"`` (an algorithm: recurrences, ways to pay,
            paths in a grid, counting out). All answers are integers of at least 0.
        seed: Another seed is another sequence of problems.
        split: ``"train"`` or ``"test"``; the two never share a problem, whatever their seeds.
    """

    levels: ClassVar[tuple[str, ...]] = LEVELS
    what: ClassVar[str] = "computing problems"
    level: ComputingLevel = "easy"
    seed: int = 0
    split: Split = "train"

    def _generate(self, index: int) -> Task:
        rng = random.Random(f"computing/{self.level}/{self.split}/{self.seed}/{index}")
        kinds = list(_KINDS[self.level].values())
        while True:
            kind = rng.choice(kinds)
            values = _draw(kind["draw"], rng)
            question = Template(kind["question"]).substitute(values)
            if _split_of(question) == self.split:
                break
        return Task(
            key=f"{self.level}/{self.split}/{self.seed}/{index}",
            data_source=f"textenvs/computing-{self.level}",
            prompt=(user(question),),
            ground_truth=_printed_by(kind["program"], values),
            ability="math",
            extra={"level": self.level, "program": Template(kind["program"]).substitute(values), "grader": "number"},
        )


def _split_of(question: str) -> str:
    digest = hashlib.sha256(f"computing/{question}".encode()).digest()
    return "test" if int.from_bytes(digest[:8], "big") % _HELD_OUT == 0 else "train"
