"""Arithmetic expressions: generated, read from text, and worked out one operation at a time.

``@`` is an operation made up for one task, ``a @ b = p*a - q*b`` with numbers ``p`` and ``q`` that only the
environment knows. So it takes a tool to work it out, where a language model could do all else in its head.
"""

from __future__ import annotations

import ast
import hashlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

from ...data.sources import Reader
from ...messages import user
from ...python_text import parse_python
from ...scoring.gsm8k import normalize
from ...task import Endless, Split, Task, TaskError
from ...text import excerpt, quoted

ExpressionLevel = Literal["easy", "medium", "hard", "made-up"]
LEVELS: tuple[str, ...] = get_args(ExpressionLevel)


class Operation(NamedTuple):
    """Two expressions with a sign between."""

    sign: str
    first: Expression
    second: Expression


Expression: TypeAlias = "Fraction | Operation"
#: ``p`` and ``q`` of the made-up operation.
MadeUp = tuple[int, int]
#: What ``@`` means where a row does not say it.
DEFAULT_MADE_UP: MadeUp = (3, 2)


class _Sign(NamedTuple):
    text: str
    binds: int
    apply: Callable[[Fraction, Fraction, MadeUp], Fraction]


_SIGNS: dict[type[ast.operator], _Sign] = {
    ast.Add: _Sign("+", 1, lambda a, b, made_up: a + b),
    ast.Sub: _Sign("-", 1, lambda a, b, made_up: a - b),
    ast.Mult: _Sign("*", 2, lambda a, b, made_up: a * b),
    ast.Div: _Sign("/", 2, lambda a, b, made_up: a / b),
    ast.MatMult: _Sign("@", 3, lambda a, b, made_up: made_up[0] * a - made_up[1] * b),
}
_BY_TEXT = {sign.text: sign for sign in _SIGNS.values()}
_MAX_OPERATIONS = 100
# Decimal places that the value of every part of an expression may have.
_DIGITS = 6


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
_LARGEST = 10**6  # of a generated expression's value, and of every value on the way


def read(text: str) -> Expression:
    """Parse up to 100 of ``+ - * / @`` on decimal numbers, and brackets; other texts are a ValueError."""
    try:
        node = _node(parse_python(text.strip(), "eval").body, text.strip())
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{text[:60]!r} is not an arithmetic expression") from None
    if operations(node) > _MAX_OPERATIONS:
        raise ValueError(f"the expression has more than {_MAX_OPERATIONS} operations")
    return node


def _node(node: ast.expr, text: str) -> Expression:
    match node:
        case ast.BinOp(first, sign, second) if type(sign) in _SIGNS:
            return Operation(_SIGNS[type(sign)].text, _node(first, text), _node(second, text))
        case ast.UnaryOp(ast.USub(), ast.Constant() as positive):
            return -cast(Fraction, _node(positive, text))
        case ast.Constant(int() | float()):
            written = normalize(ast.get_source_segment(text, node) or "")  # none for True and 0x10
            if written is not None:
                return Fraction(written)
    raise ValueError(f"{(ast.get_source_segment(text, node) or text)[:40]!r} is not arithmetic")


def write(node: Expression, binds: int = 0) -> str:
    """Return an expression's text with the fewest brackets; ``@`` always has them inside another operation."""
    if not isinstance(node, Operation):
        return str(node) if node.denominator == 1 else str(float(node))
    own = _BY_TEXT[node.sign].binds
    # The right side needs brackets also where it binds as strongly: 8 - (3 - 2).
    text = f"{write(node.first, own)} {node.sign} {write(node.second, own + 1)}"
    return f"({text})" if own < binds or (node.sign == "@" and binds) else text


def operations(node: Expression) -> int:
    return 1 + operations(node.first) + operations(node.second) if isinstance(node, Operation) else 0


def value(node: Expression, made_up: MadeUp) -> Fraction:
    """Return the value of an expression; ``ZeroDivisionError`` where it divides by zero."""
    if not isinstance(node, Operation):
        return node
    return _BY_TEXT[node.sign].apply(value(node.first, made_up), value(node.second, made_up), made_up)


def next_step(node: Expression) -> Operation | None:
    """Return the first operation from the left on two numbers; ``None`` for a number."""
    return (next_step(node.first) or next_step(node.second) or node) if isinstance(node, Operation) else None


def after_step(node: Expression, step: Operation, made_up: MadeUp) -> Expression:
    """Return the expression with the first operation that is ``step`` worked out; ``node`` where there is none.

    Numbers that are added or multiplied may stand in either order.
    """
    if not isinstance(node, Operation):
        return node
    if node.sign == step.sign and not isinstance(node.first, Operation) and not isinstance(node.second, Operation):
        swapped = node.sign in "+*" and (node.second, node.first) == (step.first, step.second)
        return value(node, made_up) if swapped or (node.first, node.second) == (step.first, step.second) else node
    first = after_step(node.first, step, made_up)
    second = node.second if first is not node.first else after_step(node.second, step, made_up)
    return node if first is node.first and second is node.second else Operation(node.sign, first, second)


def expression_of(extra: Mapping[str, Any]) -> tuple[Expression, MadeUp]:
    """Return a row's ``expression``, and its ``made_up``, two integers that define ``@``; or raise ``ValueError``."""
    made_up = extra.get("made_up", DEFAULT_MADE_UP)
    if (
        not isinstance(made_up, (list, tuple))
        or len(made_up) != 2
        or not all(type(number) is int for number in made_up)
    ):
        raise ValueError(f"made_up must be two integers, not {made_up!r}")
    return read(str(extra.get("expression", ""))), (made_up[0], made_up[1])


def check_expression(task: Task) -> None:
    """Raise ``ValueError`` for a task that cannot be played as an expression."""
    text = task.extra.get("expression")
    if not isinstance(text, str):
        raise ValueError("column 'extra_info': there is no 'expression', the text of what is to be worked out")
    try:
        node, made_up = expression_of(task.extra)
        worth, endless = value(node, made_up), _endless(node, made_up)
    except ZeroDivisionError as error:
        raise ValueError(f"column 'extra_info': expression {quoted(text)} divides by zero") from error
    except ValueError as error:
        raise ValueError(f"column 'extra_info': {error}") from error
    if endless is not None:
        what = f"{write(endless)} in the expression"
        raise ValueError(f"column 'extra_info': {what} comes to no decimal of up to {_DIGITS} places")
    gold = normalize(task.ground_truth)
    if gold is None:
        raise ValueError(f"column 'reward_model': ground_truth {quoted(task.ground_truth)} is not a number")
    if Fraction(gold) != worth:
        came = f"{quoted(text)} comes to {excerpt(str(worth))}"
        raise ValueError(f"column 'reward_model': ground_truth is {excerpt(gold)}, but {came}")


def _endless(node: Expression, made_up: MadeUp) -> Expression | None:
    """Return a part of the expression whose value has no exact decimal, so that no tool can take it; or ``None``."""
    inner = (_endless(node.first, made_up) or _endless(node.second, made_up)) if isinstance(node, Operation) else None
    return inner or (None if 10**_DIGITS % value(node, made_up).denominator == 0 else node)


def from_expression(row: Mapping[str, Any], key: str, where: str, data_source: str) -> Task:
    """Return a task from a row with ``expression`` and, for ``@``, ``made_up``: a :attr:`Reader.row`."""
    extra = {name: row[name] for name in ("expression", "made_up") if name in row}
    try:
        worth = value(*expression_of(extra))
    except (ValueError, ZeroDivisionError) as error:
        raise TaskError(f"{where}: column 'expression': {error}") from error
    prompt = (user(f"Work out {extra['expression']}."),)
    return Task(key, data_source, prompt, write(worth), ability="math", extra=extra)


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
    """

    level: ExpressionLevel = "easy"
    seed: int = 0
    split: Split = "train"

    levels = LEVELS
    what = "expressions"

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


#: How this family reads its tasks.
READER = Reader(GeneratedExpressions, LEVELS, from_expression, "'expression'", "my/expressions", check=check_expression)


def _split_of(text: str) -> str:
    return "train" if hashlib.sha256(f"expression {text}".encode()).digest()[0] % 8 else "test"


def _generated(level: _Level, made_up: MadeUp, rng: random.Random) -> tuple[str, int]:
    while True:
        node, worth, largest = _tree(rng.randint(*level.operations), level, made_up, rng)
        text = write(node)
        if largest <= _LARGEST and ("@" in level.signs) == ("@" in text):
            return text, worth


def _tree(count: int, level: _Level, made_up: MadeUp, rng: random.Random) -> tuple[Expression, int, int]:
    """Return an expression with ``count`` operations, its value, and the largest value in it."""
    if count == 0:
        number = rng.randint(1, level.highest)
        return Fraction(number), number, number
    split = rng.randint(0, count - 1)
    first, a, largest = _tree(split, level, made_up, rng)
    second, b, other = _tree(count - 1 - split, level, made_up, rng)
    sign = rng.choice(level.signs)
    if sign == "/" and not isinstance(second, Operation):
        divisors = [number for number in range(2, 13) if a and a % number == 0]
        b = rng.choice(divisors) if divisors else 0
        second = Fraction(b)
    if sign == "/" and (b == 0 or a % b):
        return _tree(count, level, made_up, rng)  # no whole result: draw again
    worth = int(_BY_TEXT[sign].apply(Fraction(a), Fraction(b), made_up))
    return Operation(sign, first, second), worth, max(largest, other, abs(worth))
