"""Games of the TextWorld package."""

from .env import TextWorld

__all__ = ["TextWorld"]
