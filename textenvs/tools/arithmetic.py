"""The four operations as tools, exact on what was written: ``0.1 + 0.2`` is 0.3."""

from __future__ import annotations

from fractions import Fraction

from .calculator import as_text, bounded
from .schema import ToolError, tool


def exact(number: int | float) -> Fraction:
    """The number that JSON text said, as a fraction: for a float, the decimal it is written as."""
    return bounded(Fraction(repr(number)))


@tool
def add(a: int | float, b: int | float) -> str:
    """Add: a + b."""
    return as_text(bounded(exact(a) + exact(b)))


@tool
def subtract(a: int | float, b: int | float) -> str:
    """Subtract: a - b."""
    return as_text(bounded(exact(a) - exact(b)))


@tool
def multiply(a: int | float, b: int | float) -> str:
    """Multiply: a * b."""
    return as_text(bounded(exact(a) * exact(b)))


@tool
def divide(a: int | float, b: int | float) -> str:
    """Divide: a / b."""
    if b == 0:
        raise ToolError("division by zero")
    return as_text(bounded(exact(a) / exact(b)))
