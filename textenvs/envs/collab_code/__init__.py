"""CollabLLM's code generation: a function whose behaviour the user tells piece by piece."""

from .env import CollabCode

__all__ = ["CollabCode"]
