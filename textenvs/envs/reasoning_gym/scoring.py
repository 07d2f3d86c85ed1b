"""Scores of reasoning-gym's answers, without the holes of its scorers.

Four things are wrong with calling ``score_answer`` on what a model wrote:

* Eleven scorers *evaluate* text, with ``eval`` or through sympy's ``parse_expr``: nine the answer, the others the right
  answer or the metadata of the row. Such text could run any code, or never end (``9**9**9``). Here all of it is looked
  at first, the row's as well as the answer's, and must be a plain literal or a small expression. The scorer itself
  runs in the sandbox then (:mod:`.reasoning_gym_sandbox`). Three others take forever over a long number.
* Some pay for answers that are not right: a share of 0.01 to 0.05 for any text, ``len(gold) / len(answer)`` for one
  that holds the right answer somewhere (ask for the whole score, 1.0), and all of it in three cases; those are closed.
* Some find the right answer anywhere in the text, so that several candidates are right together. A right answer has no
  word at its ends without which it would be as right.
* Some raise on what they do not expect. An answer that its scorer cannot read is a wrong one, provided that the scorer
  can read the right one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from ...sandbox import SandboxFailure

#: An answer longer than this, and than four times the right one, is not read.
MAX_CHARS = 20_000

# Scorers that call eval() on the answer.
_EVALUATED = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
# Scorers that call sympy.parse_expr, which calls eval() on what its transformations make of the answer; and what their
# answers may hold beside numbers and operators: variables, functions of variables.
_PARSED: dict[str, frozenset[str]] = {
    "countdown": frozenset(),
    "puzzle24": frozenset(),
    "polynomial_multiplication": frozenset({"variables"}),
    "simple_integration": frozenset({"variables", "functions"}),
    "intermediate_integration": frozenset({"variables", "functions"}),
}
_FUNCTIONS = frozenset(
    ("sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh")
    + ("atanh", "exp", "log", "ln", "sqrt", "Abs", "Rational")
)
# What else is evaluated: the row's right answer as a literal, and fields of its metadata.
_EVALUATED_GOLD = frozenset({"number_sorting"})
_PARSED_FIELD = {"simple_integration": "integrand", "intermediate_integration": "integrand"}
_BITS_FIELD = {"bitwise_arithmetic": "problem"}
# Limits on an expression, so that sympy is done with it soon.
_MAX_EXPRESSION_CHARS = 2_000
_MAX_NODES = 400
_MAX_NUMBER = 10**12
_MAX_EXPONENT = 20
_MAX_NESTED_CALLS = 3
_MAX_SHIFT = 1_000


# Numbers that a scorer would work on without end: with long exponents everywhere, and how far or often to move. Python
# reads the digits of every script, and underscores between them; these are left out before the search.
_ENDLESS = re.compile(r"[\d.][eE][+-]?\d{4}")
_HEXADECIMAL = frozenset({"base_conversion", "bitwise_arithmetic"})  # where 1e2345 is short
_ENDLESS_IN = dict.fromkeys(("rubiks_cube", "rush_hour"), re.compile(r"\d{2}"))


def _whole_numbers(text: str) -> list[int]:
    return sorted(int(number) for number in re.findall(r"\d{1,9}", text))


def _is_close(answer: str, gold: str) -> bool:
    try:
        return abs(float(Fraction(answer.replace(",", ""))) - float(Fraction(gold.replace(",", "")))) <= 1e-4
    except (ValueError, ZeroDivisionError, OverflowError):
        return False


#: What a scorer leaves out, where that lets a wrong answer pass for a right one.
_CHECKS: dict[str, Callable[[str, Mapping[str, Any]], bool]] = {
    # Any text at all is taken for "True".
    "game_of_life_halting": lambda answer, entry: answer.strip() == str(entry["answer"]),
    # The first digit of the right answer is enough.
    "coin_flip": lambda answer, entry: _is_close(answer, entry["answer"]),
    # Any four numbers that make 24 will do.
    "puzzle24": lambda answer, entry: _whole_numbers(answer) == sorted(entry["metadata"]["numbers"]),
}


class Scorer(Protocol):
    """The part of a reasoning-gym dataset that is needed here."""

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """The package's own score, from 0 to 1."""
        ...


class ScorerError(RuntimeError):
    """The package's scorer fails on the right answer, too: nothing can be scored with it."""


@dataclass(frozen=True)
class Score:
    """What an answer is worth.

    Args:
        value: The package's score, from 0 to 1; 0 for an answer that it was not shown or could not read.
        refused: The answer was kept from a scorer that would have evaluated it.
        unread: The scorer raised an exception on it.
    """

    value: float
    refused: bool = False
    unread: bool = False


def score(dataset: Scorer, answer: str, entry: Mapping[str, Any]) -> Score:
    """Score ``answer`` to a dataset's ``entry``.

    Args:
        dataset: The dataset that the entry is from.
        answer: The answer alone, as the model wrote it.
        entry: ``question``, ``answer`` and ``metadata`` (with ``source_dataset``), as the dataset made them.

    Raises:
        ScorerError: The scorer raises on the right answer as well.
        ValueError: As of :func:`check_entry`.
        SandboxFailure: The sandbox that the dataset's scorer runs in failed.
    """
    name, gold = check_entry(entry), entry["answer"]
    if not _may_be_read(name, answer, gold):
        return Score(0.0, refused=True)
    try:
        value = float(dataset.score_answer(answer, dict(entry)))
    except SandboxFailure:
        raise
    except Exception as error:
        if gold is not None and not _can_score(dataset, gold, entry):
            raise ScorerError(f"reasoning-gym's scorer of {name!r} raised {type(error).__name__}: {error}") from error
        return Score(0.0, unread=True)
    if name in _CHECKS and not _CHECKS[name](answer, entry):
        return Score(0.0)
    if value >= 1.0 and _is_padded(dataset, answer, entry):
        return Score(0.0)
    return Score(min(max(value, 0.0), 1.0))


def _is_padded(dataset: Scorer, answer: str, entry: Mapping[str, Any]) -> bool:
    """Whether a right answer has words at its beginning or end without which it is as right.

    Some scorers look for the right answer anywhere in the text, so that a list of candidates would be right.
    """
    words = answer.split()
    if len(words) < 2 or words == str(entry["answer"]).split():
        return False
    lines = answer.strip()
    shorter = (lines.removeprefix(words[0]).lstrip(), lines.removesuffix(words[-1]).rstrip())
    return any(_scores_fully(dataset, each, entry) for each in shorter)


def _scores_fully(dataset: Scorer, answer: str, entry: Mapping[str, Any]) -> bool:
    try:
        return float(dataset.score_answer(answer, dict(entry))) >= 1.0
    except SandboxFailure:
        raise
    except Exception:
        return False


def check_entry(entry: Mapping[str, Any]) -> str:
    """Check what a scorer would evaluate of an entry, which may come from anywhere: the right answer, and the metadata.

    Args:
        entry: As of :func:`score`.

    Returns:
        The name of its dataset.

    Raises:
        ValueError: A part of it is not what the dataset makes; the message says which.
    """
    name, gold = entry["metadata"].get("source_dataset"), entry["answer"]
    if not isinstance(name, str) or not isinstance(gold, (str, type(None))):
        raise ValueError("an entry of reasoning-gym has text as its 'source_dataset' and its 'answer'")
    found: list[tuple[str, Any, bool]] = []
    if gold is not None:
        literal = name not in _EVALUATED_GOLD or is_literal(gold)
        found.append(("answer", gold, literal and _may_be_read(name, gold, gold)))
    if (field := _PARSED_FIELD.get(name)) is not None:
        text = entry["metadata"].get(field)
        found.append((f"metadata.{field}", text, isinstance(text, str) and is_small_expression(text)))
    if (field := _BITS_FIELD.get(name)) is not None:
        text = entry["metadata"].get(field)
        found.append((f"metadata.{field}", text, isinstance(text, str) and is_integer_arithmetic(text)))
    for what, text, harmless in found:
        if not harmless:
            raise ValueError(f"reasoning-gym's {name!r} evaluates {what}, and {text!r:.80} is not what it makes there")
    return name


def _may_be_read(name: str, text: str, gold: str | None) -> bool:
    """Whether the scorer may see this answer."""
    digits = text.replace("_", "")
    if (
        len(text) > max(MAX_CHARS, 4 * len(gold or ""))
        or (name not in _HEXADECIMAL and _ENDLESS.search(digits))
        or (name in _ENDLESS_IN and _ENDLESS_IN[name].search(digits))
        or (name in _EVALUATED and not is_literal(text))
    ):
        return False
    if name not in _PARSED:
        return True
    # Where sympy could not solve an integral, the right answer has it as it was; that of a policy would be no answer.
    return is_small_expression(text, _PARSED[name] | ({"integrals"} if text == gold else set()))


def _can_score(dataset: Scorer, gold: str, entry: Mapping[str, Any]) -> bool:
    try:
        dataset.score_answer(gold, dict(entry))
    except Exception:
        return False
    return True


def is_literal(text: str) -> bool:
    """Whether ``eval(text)`` is harmless: a literal of numbers, texts, lists and names, or no Python at all."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError):
        return True  # eval() refuses it too, before it runs anything
    except (RecursionError, MemoryError):
        return False
    harmless = (ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.Name, ast.Load)
    return all(isinstance(node, (*harmless, ast.UnaryOp, ast.USub)) for node in ast.walk(tree))


def is_integer_arithmetic(text: str) -> bool:
    """Whether ``eval(text)`` is harmless and soon done: operators of integers and of their bits, without powers."""
    if len(text) > _MAX_EXPRESSION_CHARS:
        return False
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    harmless = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Constant, ast.operator, ast.unaryop)
    for node in ast.walk(tree):
        if not isinstance(node, harmless) or isinstance(node, (ast.Pow, ast.MatMult)):
            return False
        if isinstance(node, ast.Constant) and type(node.value) is not int:
            return False
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift):
            shift = node.right
            if not isinstance(shift, ast.Constant) or type(shift.value) is not int or shift.value > _MAX_SHIFT:
                return False
    return True


def is_small_expression(text: str, allowed: Collection[str] = ("variables", "functions")) -> bool:
    """Whether ``text`` is arithmetic or algebra that sympy can read safely and soon.

    Args:
        text: The expression: numbers and ``+ - * / **``, in a few hundred operations, with small exponents.
        allowed: ``"variables"`` (names of up to two letters), ``"functions"`` (the elementary ones, of expressions with
            variables), ``"integrals"`` (unsolved ones: ``Integral(x, x)``).
    """
    text = text.strip()
    if len(text) > _MAX_EXPRESSION_CHARS:
        return False
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return sum(1 for _ in ast.walk(tree)) <= _MAX_NODES and _is_algebra(tree.body, allowed, _MAX_EXPONENT, 0)


def _is_algebra(node: ast.expr, allowed: Collection[str], power: float, calls: int) -> bool:
    """Whether an expression is allowed, to ``power`` at most, inside of so many ``calls``."""
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float) and abs(node.value) <= _MAX_NUMBER  # type: ignore[arg-type]
    if isinstance(node, ast.Name):
        return "variables" in allowed and _is_variable(node)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        return _is_algebra(node.operand, allowed, power, calls)
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == "Integral":
            whole = "integrals" in allowed and len(node.args) == 2 and not node.keywords and _is_variable(node.args[1])
            return whole and _is_algebra(node.args[0], set(allowed) - {"integrals"}, power, calls)
        called = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
        return (
            called
            and "functions" in allowed
            and calls < _MAX_NESTED_CALLS
            and any(_is_variable(part) for argument in node.args for part in ast.walk(argument))
            and all(_is_algebra(argument, allowed, power, calls + 1) for argument in node.args)
        )
    if not isinstance(node, ast.BinOp):
        return False
    if isinstance(node.op, ast.Pow):
        size = _exponent(node.right)
        return size is not None and size <= power and _is_algebra(node.left, allowed, power / max(size, 1), calls)
    return isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)) and all(
        _is_algebra(side, allowed, power, calls) for side in (node.left, node.right)
    )


def _is_variable(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and (node.id == "pi" or bool(re.fullmatch(r"[A-Za-z]{1,2}", node.id)))


def _exponent(node: ast.expr) -> float | None:
    """The size of an exponent: a number, its negative, a fraction of two, or a variable; ``None`` for anything else."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(min(abs(node.value), _MAX_NUMBER))  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        return _exponent(node.operand)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        above, below = _exponent(node.left), _exponent(node.right)
        return None if above is None or below is None else max(above, below)
    return 1.0 if _is_variable(node) else None
