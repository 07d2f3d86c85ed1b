"""Data sets of the reasoning-gym package."""

from .env import ReasoningGym

__all__ = ["ReasoningGym"]
