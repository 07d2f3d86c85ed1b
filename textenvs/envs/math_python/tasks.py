r"""Problems: generated ones, and rows of files.

Generated problems are solved by a short program: too long to do in one's head, with an integer as the answer.
What is drawn, asked and computed is in ``problems.yaml``; the answer is what the problem's program prints. Training and
test problems are disjoint: what is drawn hashes to one split or the other, and so does every wording.

Of rows, MATH (`hendrycks/math <https://github.com/hendrycks/math>`_) has ``problem``, ``level``, ``type`` (or
``subject``) and ``solution``, whose ``\boxed{...}`` is the answer; its 500-problem subset has ``answer``, too.
``Maxwell-Jia/AIME_2024`` has ``ID``, ``Problem``, ``Solution`` and ``Answer``. Case of columns makes no difference.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import Any, ClassVar, Literal

from ...messages import clean_text, user
from ...scoring.final_answer import boxed
from ...task import Endless, Split, Task, TaskError, split_by_hash, split_choices
from ...text import load_yaml

ComputingLevel = Literal["easy", "medium", "hard"]
#: What stands for the names in a kind's templates.
Values = Mapping[str, object]

#: One problem in this many is held out for the test split.
_HELD_OUT = 8
_KINDS: Mapping[str, Mapping[str, Mapping[str, Any]]] = load_yaml(__package__, "problems.yaml")
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
        values[name] = rng.randint(least, most) + sum(values[term] for term in base)
    return values


def _printed_by(program: str, values: Values) -> str:
    """Run ``program``, which is one of this package, and return what it prints."""
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
            drawn = Template(kind["questions"][0]).substitute(values)  # what is drawn, whatever its wording
            if split_by_hash(f"computing/{drawn}", _HELD_OUT) == self.split:
                break
        question = Template(rng.choice(split_choices(kind["questions"], self.split))).substitute(values)
        return Task(
            key=f"{self.level}/{self.split}/{self.seed}/{index}",
            data_source=f"textenvs/computing-{self.level}",
            prompt=(user(question),),
            ground_truth=_printed_by(kind["program"], values),
            ability="math",
            extra={"level": self.level, "program": Template(kind["program"]).substitute(values), "grader": "number"},
        )


# ------------------------------------------------------------------ rows

#: What a row needs, for errors.
COLUMNS = "'problem', and 'answer' or a 'solution' with its answer in \\boxed{...}"


def from_problem(row: Mapping[str, Any], key: str, where: str, data_source: str) -> Task:
    """Return a task from a row; ``answer`` counts before the box of ``solution``; ``where`` is named in errors."""
    columns = {str(name).lower(): value for name, value in row.items() if value is not None}
    problem, solution, answer = columns.get("problem"), columns.get("solution"), columns.get("answer")
    if problem is None or (solution is None and answer is None):
        raise TaskError(f"{where}: a row needs {COLUMNS}; this one has {sorted(map(str, row))}")
    for name, value in (("problem", problem), ("solution", solution)):
        if value is not None and not isinstance(value, str):
            raise TaskError(f"{where}: column {name!r} must be text, not {type(value).__name__}")
    if not problem.strip():
        raise TaskError(f"{where}: column 'problem' is empty")
    stated = boxed(solution) if solution is not None else None
    if answer is None:
        if stated is None:
            raise TaskError(f"{where}: column 'solution' has no \\boxed{{...}} with the answer")
        answer = stated
    elif not isinstance(answer, (str, int, float)) or isinstance(answer, bool):
        raise TaskError(f"{where}: column 'answer' must be text or a number, not {type(answer).__name__}")
    if not (truth := str(answer).strip()):
        raise TaskError(f"{where}: column 'answer' is empty")
    extra: dict[str, Any] = {name: columns[name] for name in ("level", "type", "subject", "id") if name in columns}
    if solution is not None and stated is not None:
        extra["solution"] = clean_text(solution).strip()
    own = columns.get("data_source")
    return Task(
        key=key,
        data_source=own if isinstance(own, str) and own else data_source,
        prompt=(user(clean_text(problem).strip()),),
        ground_truth=clean_text(truth),
        ability="math",
        extra=extra,
    )
