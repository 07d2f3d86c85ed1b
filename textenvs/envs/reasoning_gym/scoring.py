"""Scores of reasoning-gym's answers, without the holes of its scorers, which docs/environments/reasoning-gym.md lists.

Eleven scorers *evaluate* a text of the answer or of the row, with ``eval`` or through sympy. So it must be a plain
literal or a small expression, and the scorer runs in the sandbox besides (:mod:`.sandbox`). Of the others, some pay for
wrong answers, for the right one anywhere in the text, or raise on what they do not expect. All run in other processes,
with a time limit.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from ...python_text import parse_python
from ...sandbox import SandboxFailure
from ...tools.calculator import evaluate
from ...tools.schema import ToolError

#: An answer longer than this, and than four times the right one, is not read.
MAX_CHARS = 20_000
# Limits on an expression, so that sympy is done with it soon.
_MAX_EXPRESSION_CHARS = 2_000
_MAX_NODES = 400
_MAX_NUMBER = 10**12
_MAX_EXPONENT = 20
_MAX_NESTED_CALLS = 3
_MAX_SHIFT = 1_000
_FUNCTIONS = frozenset(
    ("sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh")
    + ("atanh", "exp", "log", "ln", "sqrt", "Abs", "Rational")
)


class Scorer(Protocol):
    """A dataset of reasoning-gym."""

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float: ...


class ScorerError(RuntimeError):
    """The package's scorer fails on the right answer, too: nothing can be scored with it."""


@dataclass(frozen=True)
class Score:
    """The score of an answer, from 0 to 1."""

    value: float
    refused: bool = False  # it was kept from a scorer that would have evaluated it
    unread: bool = False  # the scorer raised an exception on it


def score(dataset: Scorer, answer: str, entry: Mapping[str, Any]) -> Score:
    name, gold = check_entry(entry), entry["answer"]
    if not _may_be_read(name, answer, gold):
        return Score(0.0, refused=True)
    value = _attempt(dataset, answer, entry)
    if isinstance(value, Exception):
        if gold is not None and isinstance(_attempt(dataset, gold, entry), Exception):
            raise ScorerError(f"reasoning-gym's scorer of {name!r} raised {type(value).__name__}: {value}") from value
        return Score(0.0, unread=True)
    if name in _CHECKS and not _CHECKS[name](answer, entry):
        return Score(0.0)
    if value >= 1.0 and _is_padded(dataset, answer, entry):
        return Score(0.0)
    return Score(min(max(value, 0.0), 1.0))


def cheap_answers(question: str, other_answers: Iterable[str]) -> list[str]:
    """Return answers that take no work: parts of the question copied, its blanks filled, ``other_answers``."""
    question = question.strip()
    lines = question.split("\n")
    paragraphs = re.split(r"\n\s*\n", question)
    words = question.split() or [""]
    grid = max(_GRID.findall(question), key=len, default="").strip("\n")
    copies = [words[-1].strip(".?!"), lines[-1], question.rpartition(":")[2], paragraphs[-1], paragraphs[0], grid]
    copies += [_BLANK.sub(digit, grid) for digit in "123456789"]
    copies += [*_QUOTED.findall(question)[:2], *re.findall(r"-?\d+(?:\.\d+)?", question)[:2], " ".join(words)]
    return list(dict.fromkeys(text.strip() for text in (*copies, *other_answers) if text.strip()))


def cheapest(dataset: Scorer, entry: Mapping[str, Any], other_answers: Iterable[str]) -> float:
    """Return the best score of :func:`cheap_answers`, but for those that are right; below 1."""
    values = (score(dataset, answer, entry).value for answer in cheap_answers(str(entry["question"]), other_answers))
    return max((value for value in values if value < 1.0), default=0.0)


def _attempt(dataset: Scorer, answer: str, entry: Mapping[str, Any]) -> float | Exception:
    try:
        return float(dataset.score_answer(answer, dict(entry)))
    except SandboxFailure:
        raise
    except Exception as error:
        return error


def _is_padded(dataset: Scorer, answer: str, entry: Mapping[str, Any]) -> bool:
    """Return whether a right answer stays right without its first or last word."""
    words = answer.split()
    if len(words) < 2 or words == str(entry["answer"]).split():
        return False
    lines = answer.strip()
    shorter = (lines.removeprefix(words[0]).lstrip(), lines.removesuffix(words[-1]).rstrip())
    values = (_attempt(dataset, text, entry) for text in shorter)
    return any(isinstance(value, float) and value >= 1.0 for value in values)


def check_entry(entry: Mapping[str, Any]) -> str:
    """Return the name of an entry's dataset; a ValueError where a scorer would evaluate foreign text."""
    name, gold = entry["metadata"].get("source_dataset"), entry["answer"]
    if not isinstance(name, str) or not isinstance(gold, (str, type(None))):
        raise ValueError("an entry of reasoning-gym has text as its 'source_dataset' and its 'answer'")
    fields = [("answer", gold, gold is None or _may_be_read(name, gold, gold))]
    if name in _METADATA:
        field, is_harmless = _METADATA[name]
        text = entry["metadata"].get(field)
        fields.append((f"metadata.{field}", text, isinstance(text, str) and is_harmless(text)))
    for what, text, harmless in fields:
        if not harmless:
            raise ValueError(f"reasoning-gym's {name!r} evaluates {what}, and {text!r:.80} is not what it makes there")
    return name


def _may_be_read(name: str, text: str, gold: str | None) -> bool:
    is_harmless = _ANSWERS.get(name)
    if text == gold:
        is_harmless = _RIGHT_ANSWERS.get(name, is_harmless)
    endless = None if name in _HEXADECIMAL else _ENDLESS_IN.get(name, _ENDLESS)
    return (
        len(text) <= max(MAX_CHARS, 4 * len(gold or ""))
        and (endless is None or not endless.search(_SEPARATORS.sub("", text)))
        and (is_harmless is None or is_harmless(text))
    )


# ------------------------------------------------------------------ what may be evaluated


def is_literal(text: str) -> bool:
    """Return whether ``eval(text)`` is harmless: a literal of numbers, texts, lists and names, or no Python at all."""
    try:
        tree = parse_python(text.strip(), "eval")
    except (SyntaxError, ValueError):
        return True  # eval() refuses it too, before it runs anything
    except (RecursionError, MemoryError):
        return False
    harmless = (ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.Name, ast.Load)
    return all(isinstance(node, (*harmless, ast.UnaryOp, ast.USub)) for node in ast.walk(tree))


def _small_tree(text: str) -> ast.expr | None:
    text = text.strip()
    try:
        return parse_python(text, "eval").body if len(text) <= _MAX_EXPRESSION_CHARS else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def is_integer_arithmetic(text: str) -> bool:
    """Return whether ``eval(text)`` is harmless and quick: operators of integers and of their bits, without powers."""
    tree = _small_tree(text)
    return tree is not None and all(map(_is_of_integers, ast.walk(tree)))


def _is_of_integers(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift):
        by = node.right
        return isinstance(by, ast.Constant) and type(by.value) is int and by.value <= _MAX_SHIFT
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    harmless = (ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    return isinstance(node, harmless) and not isinstance(node, (ast.Pow, ast.MatMult))


def is_small_expression(text: str, allowed: Collection[str] = ("variables", "functions")) -> bool:
    """Return whether ``text`` is arithmetic or algebra that sympy can read safely and soon.

    That is numbers and ``+ - * / **``, in a few hundred operations, with small exponents, and what is ``allowed``:
    ``"variables"`` (names of up to two letters), ``"functions"`` (the elementary ones, of expressions with variables),
    ``"integrals"`` (unsolved ones: ``Integral(x, x)``).
    """
    tree = _small_tree(text)
    if tree is None or sum(1 for _ in ast.walk(tree)) >= _MAX_NODES:
        return False
    return _is_algebra(tree, allowed, _MAX_EXPONENT, 0)


def _is_algebra(node: ast.expr, allowed: Collection[str], power: float, calls: int) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float) and abs(node.value) <= _MAX_NUMBER  # type: ignore[arg-type]
    if isinstance(node, ast.Name):
        return "variables" in allowed and _is_variable(node)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        return _is_algebra(node.operand, allowed, power, calls)
    if isinstance(node, ast.Call):
        name, inside = node.func.id if isinstance(node.func, ast.Name) else None, node.args
        if node.keywords:
            return False
        if name == "Integral":
            whole = "integrals" in allowed and len(inside) == 2 and _is_variable(inside[1])
            return whole and _is_algebra(inside[0], set(allowed) - {"integrals"}, power, calls)
        return (
            name in _FUNCTIONS
            and "functions" in allowed
            and calls < _MAX_NESTED_CALLS
            and any(_is_variable(part) for argument in inside for part in ast.walk(argument))
            and all(_is_algebra(argument, allowed, power, calls + 1) for argument in inside)
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
    """Return the size of an exponent: a number, its negative, a fraction of two, or a variable."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(min(abs(node.value), _MAX_NUMBER))  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        return _exponent(node.operand)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        above, below = _exponent(node.left), _exponent(node.right)
        return None if above is None or below is None else max(above, below)
    return 1.0 if _is_variable(node) else None


# ------------------------------------------------------------------ what the scorers do with their texts

_integral = functools.partial(is_small_expression, allowed=("variables", "functions", "integrals"))

#: Scorers that give the answer to ``eval``, or to sympy's ``parse_expr``, which evaluates what it makes of it; and what
#: the answer must be for that.
_ANSWERS: dict[str, Callable[[str], bool]] = {
    **dict.fromkeys(("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"), is_literal),
    **dict.fromkeys(("countdown", "puzzle24"), functools.partial(is_small_expression, allowed=())),
    "polynomial_multiplication": functools.partial(is_small_expression, allowed=("variables",)),
    **dict.fromkeys(("simple_integration", "intermediate_integration"), is_small_expression),
}
#: The same of right answers, where it differs. (One has an integral that sympy could not solve as it was; from a policy
#: that would be no answer.)
_RIGHT_ANSWERS: dict[str, Callable[[str], bool]] = {
    "number_sorting": is_literal,
    **dict.fromkeys(("simple_integration", "intermediate_integration"), _integral),
}
#: Fields of the metadata that are evaluated.
_METADATA: dict[str, tuple[str, Callable[[str], bool]]] = {
    "bitwise_arithmetic": ("problem", is_integer_arithmetic),
    **dict.fromkeys(("simple_integration", "intermediate_integration"), ("integrand", is_small_expression)),
}

# Numbers that a scorer would work on without end: with long exponents everywhere, and how far or often to move. Python
# reads the digits of every script, and underscores between them; these are left out before the search, and so are the
# commas between thousands, which some scorers leave out themselves.
_ENDLESS = re.compile(r"[\d.][eE][+-]?\d{4}")
# Rows of digits and blanks, as of a puzzle; a blank; a text in quotes.
_GRID = re.compile(r"(?:^[ \t]*[\d_.?*|\- ]+(?:\n|\Z)){2,}", re.MULTILINE)
_BLANK = re.compile(r"[_.?*]|\b0\b")
_QUOTED = re.compile(r"[\"'`]([^\"'`\n]+)[\"'`]")
_SEPARATORS = re.compile(r"[_,](?=\d)")
_HEXADECIMAL = frozenset({"base_conversion", "bitwise_arithmetic"})  # where 1e2345 is short
_ENDLESS_IN = dict.fromkeys(("rubiks_cube", "rush_hour"), re.compile(r"\d{2}"))


def _whole_numbers(text: str) -> list[int]:
    return sorted(int(number) for number in re.findall(r"\d{1,9}", text))


def _makes(answer: str, numbers: Sequence[int], target: int) -> bool:
    """Return whether an answer is an expression in ``+ - * /`` with each of ``numbers`` once, equal to ``target``."""
    if not re.fullmatch(r"(?:[0-9+/()\s-]|\*(?!\*))+", answer) or _whole_numbers(answer) != sorted(numbers):
        return False
    try:
        return evaluate(answer) == target
    except ToolError:
        return False


def _is_close(answer: str, gold: str) -> bool:
    try:
        return abs(evaluate(answer.replace(",", "")) - evaluate(gold.replace(",", ""))) <= Fraction(1, 10_000)
    except ToolError:
        return False


#: What a scorer leaves out, where that lets a wrong answer pass for a right one.
_CHECKS: dict[str, Callable[[str, Mapping[str, Any]], bool]] = {
    # Any text at all is taken for "True".
    "game_of_life_halting": lambda answer, entry: answer.strip() == str(entry["answer"]),
    # The first digit of the right answer is enough.
    "coin_flip": lambda answer, entry: _is_close(answer, entry["answer"]),
    # Any four numbers that make 24, or 24 and a fraction, will do.
    "puzzle24": lambda answer, entry: _makes(answer, entry["metadata"]["numbers"], 24),
    # "7e0", "7.0" and "0x7" are numbers that it does not count.
    "countdown": lambda answer, entry: _makes(answer, entry["metadata"]["numbers"], entry["metadata"]["target"]),
    # What is not a number is as near to the right one as can be; a right answer has no letter but e, i and j.
    **dict.fromkeys(("complex_arithmetic", "number_sorting"), lambda answer, entry: "n" not in answer.lower()),
    # A product of a number and a polynomial is read as multiplied out: the problem is its own answer.
    "polynomial_multiplication": lambda answer, entry: not re.search(r"\)\s*\*|\*\s*\(", answer),
}
