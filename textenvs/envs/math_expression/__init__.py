"""Arithmetic expressions, computed with operator tools."""

from .env import MathExpression

__all__ = ["MathExpression"]
