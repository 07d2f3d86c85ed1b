"""Games of the TextArena package."""

from .env import TextArena

__all__ = ["TextArena"]
