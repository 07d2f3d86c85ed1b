"""Arithmetic expressions: generated, read from text, and worked out one operation at a time.

``@`` is an operation made up for one task, ``a @ b = p*a - q*b`` with numbers ``p`` and ``q`` that only the
environment knows. So it takes a tool to work it out, where a language model could do all else in its head.
"""

from __future__ import annotations

import ast
import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple, TypeAlias

from ...data.endless import Endless
from ...data.sources import Reader
from ...messages import user
from ...scoring.gsm8k import normalize
from ...task import Split, Task, TaskError
from ...text import excerpt, quoted

ExpressionLevel = Literal["easy", "medium", "hard", "made-up"]


class Operation(NamedTuple):
    """Two expressions with a sign between."""

    sign: str
    left: Expression
    right: Expression


Expression: TypeAlias = "Fraction | Operation"
#: ``p`` and ``q`` of the made-up operation.
MadeUp = tuple[int, int]
#: What ``@`` means where a row does not say it.
DEFAULT_MADE_UP: MadeUp = (3, 2)

_SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.MatMult: "@",
}
_BINDS = {"+": 1, "-": 1, "*": 2, "/": 2, "@": 3}
_MAX_OPERATIONS = 100


class _Level(NamedTuple):
    operations: tuple[int, int]
    signs: str
    highest: int


_LEVELS: dict[str, _Level] = {
    "easy": _Level((1, 2), "+-", 20),
    "medium": _Level((2, 3), "+-*", 20),
    "hard": _Level((4, 6), "+-*/", 50),
    "made-up": _Level((2, 3), "+-*@", 10),
}
LEVELS: tuple[str, ...] = tuple(_LEVELS)
#: So many decimal places may the value of every part of an expression have.
DIGITS = 6
_LARGEST = 10**6  # of a generated expression's value, and of every value on the way


def read(text: str) -> Expression:
    """The expression that ``text`` is.

    Args:
        text: Decimal numbers, ``+ - * / @`` and brackets. ``@`` binds like ``*``, as in Python.

    Raises:
        ValueError: It is something else, or has more than 100 operations.
    """
    try:
        node = _node(ast.parse(text.strip(), mode="eval").body, text.strip())
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{text[:60]!r} is not an arithmetic expression") from None
    if operations(node) > _MAX_OPERATIONS:
        raise ValueError(f"the expression has more than {_MAX_OPERATIONS} operations")
    return node


def write(node: Expression) -> str:
    """The text of an expression, with no more brackets than it needs (``@`` always has them)."""
    return _text(node, 0)


def operations(node: Expression) -> int:
    """How many operations there are."""
    return 1 + operations(node.left) + operations(node.right) if isinstance(node, Operation) else 0


def apply(sign: str, a: Fraction, b: Fraction, made_up: MadeUp) -> Fraction:
    """One operation.

    Raises:
        ZeroDivisionError: ``/`` by zero.
    """
    if sign == "+":
        return a + b
    if sign == "-":
        return a - b
    if sign == "*":
        return a * b
    if sign == "/":
        return a / b
    return made_up[0] * a - made_up[1] * b


def value(node: Expression, made_up: MadeUp) -> Fraction:
    """What an expression comes to.

    Raises:
        ZeroDivisionError: It divides by zero.
    """
    if not isinstance(node, Operation):
        return node
    return apply(node.sign, value(node.left, made_up), value(node.right, made_up), made_up)


def next_step(node: Expression) -> Operation | None:
    """The first operation from the left on two numbers; ``None`` for a number."""
    if not isinstance(node, Operation):
        return None
    return next_step(node.left) or next_step(node.right) or node


def after_step(node: Expression, step: Operation, made_up: MadeUp) -> Expression:
    """The expression with the first operation that is ``step`` worked out; ``node`` itself where there is none.

    Numbers that are added or multiplied may stand in either order.
    """
    if not isinstance(node, Operation):
        return node
    if node.sign == step.sign and not isinstance(node.left, Operation) and not isinstance(node.right, Operation):
        swapped = node.sign in "+*" and (node.right, node.left) == (step.left, step.right)
        return value(node, made_up) if swapped or (node.left, node.right) == (step.left, step.right) else node
    left = after_step(node.left, step, made_up)
    right = node.right if left is not node.left else after_step(node.right, step, made_up)
    return node if left is node.left and right is node.right else Operation(node.sign, left, right)


def made_up_of(extra: Mapping[str, Any]) -> MadeUp:
    """What ``@`` means in a row: its ``made_up``, two integers.

    Raises:
        ValueError: It is something else.
    """
    given = extra.get("made_up", DEFAULT_MADE_UP)
    if not isinstance(given, (list, tuple)) or len(given) != 2 or not all(type(number) is int for number in given):
        raise ValueError(f"made_up must be two integers, not {given!r}")
    return given[0], given[1]


def problem_with(task: Task) -> str | None:
    """Why ``task`` cannot be played as an expression, or ``None`` when it can."""
    text = task.extra.get("expression")
    if not isinstance(text, str):
        return "column 'extra_info': there is no 'expression', the text of what is to be worked out"
    try:
        node, made_up = read(text), made_up_of(task.extra)
        worth, endless = value(node, made_up), _endless(node, made_up)
    except ZeroDivisionError:
        return f"column 'extra_info': expression {quoted(text)} divides by zero"
    except ValueError as error:
        return f"column 'extra_info': {error}"
    if endless is not None:
        return f"column 'extra_info': {write(endless)} in the expression comes to no decimal of up to {DIGITS} places"
    gold = normalize(task.ground_truth)
    if gold is None:
        return f"column 'reward_model': ground_truth {quoted(task.ground_truth)} is not a number"
    if Fraction(gold) != worth:
        return (
            f"column 'reward_model': ground_truth is {excerpt(gold)}, but {quoted(text)} comes to {excerpt(str(worth))}"
        )
    return None


@dataclass(frozen=True)
class GeneratedExpressions(Endless):
    """An endless :class:`~textenvs.task.TaskSet` of arithmetic expressions with whole values.

    Args:
        level: ``"easy"`` (one or two of ``+ -`` on numbers up to 20), ``"medium"`` (two or three of ``+ - *``),
            ``"hard"`` (four to six of ``+ - * /`` on numbers up to 50; division without remainder) or ``"made-up"``
            (two or three of ``+ - * @`` on numbers up to 10, at least one of them ``@``, which means something else
            in every task).
        seed: Another seed is another sequence.
        split: ``"train"`` or ``"test"``; the two never share an expression, whatever their seeds.

    Raises:
        ValueError: An unknown level or split, or a seed that is not an integer.
    """

    level: ExpressionLevel = "easy"
    seed: int = 0
    split: Split = "train"

    def __post_init__(self) -> None:
        self.check_choices(LEVELS)

    @property
    def name(self) -> str:
        """Which expressions these are, in a line."""
        return f"generated {self.level} expressions ({self.split}, seed {self.seed})"

    def _generate(self, index: int) -> Task:
        key = f"expression/{self.level}/{self.split}/{self.seed}/{index}"
        rng = random.Random(key)  # by a string: neighbouring indices are unrelated
        made_up = (rng.randint(2, 9), rng.randint(2, 9)) if self.level == "made-up" else DEFAULT_MADE_UP
        text, worth = _generated(_LEVELS[self.level], made_up, rng)
        while _split_of(text) != self.split:
            text, worth = _generated(_LEVELS[self.level], made_up, rng)
        extra: dict[str, Any] = {"expression": text, "level": self.level}
        if self.level == "made-up":
            extra["made_up"] = list(made_up)
        return Task(
            key=key,
            data_source=f"textenvs/expression-{self.level}",
            prompt=(user(f"Work out {text}."),),
            ground_truth=str(worth),
            ability="math",
            extra=extra,
        )


def from_expression(row: Mapping[str, Any], key: str, where: str, data_source: str) -> Task:
    """A task from a row with ``expression`` and, for ``@``, ``made_up``.

    Raises:
        TaskError: There is no expression, or none that has a value.
    """
    extra = {name: row[name] for name in ("expression", "made_up") if name in row}
    try:
        worth = value(read(str(extra.get("expression", ""))), made_up_of(extra))
    except (ValueError, ZeroDivisionError) as error:
        raise TaskError(f"{where}: column 'expression': {error}") from error
    text = extra["expression"]
    return Task(key, data_source, (user(f"Work out {text}."),), _text(worth, 0), ability="math", extra=extra)


def _generate(level: str, split: Split, seed: int) -> GeneratedExpressions:
    return GeneratedExpressions(level, seed, split)  # type: ignore[arg-type]


#: How this family reads its tasks.
READER = Reader(_generate, LEVELS, from_expression, "'expression'", "my/expressions", check=problem_with)


def _split_of(text: str) -> str:
    """One expression in eight is held out for the test."""
    digest = hashlib.sha256(f"expression {text}".encode()).digest()
    return "train" if digest[0] % 8 else "test"


def _generated(level: _Level, made_up: MadeUp, rng: random.Random) -> tuple[str, int]:
    while True:
        node, worth, largest = _tree(rng.randint(*level.operations), level, made_up, rng)
        text = write(node)
        if largest <= _LARGEST and ("@" in level.signs) == ("@" in text):
            return text, worth


def _tree(count: int, level: _Level, made_up: MadeUp, rng: random.Random) -> tuple[Expression, int, int]:
    """An expression with ``count`` operations, its value, and the largest value in it."""
    if count == 0:
        number = rng.randint(1, level.highest)
        return Fraction(number), number, number
    first = rng.randint(0, count - 1)
    left, a, largest = _tree(first, level, made_up, rng)
    right, b, other = _tree(count - 1 - first, level, made_up, rng)
    sign = rng.choice(level.signs)
    if sign == "/" and not isinstance(right, Operation):
        divisors = [number for number in range(2, 13) if a and a % number == 0]
        b = rng.choice(divisors) if divisors else 0
        right = Fraction(b)
    if sign == "/" and (b == 0 or a % b):
        return _tree(count, level, made_up, rng)  # no whole result: draw again
    worth = int(apply(sign, Fraction(a), Fraction(b), made_up))
    return Operation(sign, left, right), worth, max(largest, other, abs(worth))


def _node(node: ast.expr, text: str) -> Expression:
    if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
        return Operation(_SIGNS[type(node.op)], _node(node.left, text), _node(node.right, text))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        number = _node(node.operand, text)
        assert not isinstance(number, Operation)
        return -number
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        written = normalize(ast.get_source_segment(text, node) or "")
        if written is not None:
            return Fraction(written)
    raise ValueError(f"{(ast.get_source_segment(text, node) or text)[:40]!r} is not arithmetic")


def _endless(node: Expression, made_up: MadeUp) -> Expression | None:
    """A part of the expression whose value cannot be written down exactly, and so cannot be given to a tool."""
    if not isinstance(node, Operation):
        return None if 10**DIGITS % node.denominator == 0 else node
    inner = _endless(node.left, made_up) or _endless(node.right, made_up)
    return inner or (None if 10**DIGITS % value(node, made_up).denominator == 0 else node)


def _text(node: Expression, binds: int) -> str:
    if not isinstance(node, Operation):
        return str(node) if node.denominator == 1 else str(float(node))
    own = _BINDS[node.sign]
    # The right side needs brackets also where it binds as strongly: 8 - (3 - 2).
    text = f"{_text(node.left, own)} {node.sign} {_text(node.right, own + 1)}"
    return f"({text})" if own < binds or (node.sign == "@" and binds) else text
