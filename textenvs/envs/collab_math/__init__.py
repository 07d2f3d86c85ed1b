"""CollabLLM's MATH-Chat: a word problem told piece by piece."""

from .env import CollabMath

__all__ = ["CollabMath"]
