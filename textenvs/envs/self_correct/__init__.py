"""Word problems in two attempts."""

from .env import SelfCorrect

__all__ = ["SelfCorrect"]
