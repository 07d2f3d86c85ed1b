"""Worlds of applications, drawn from a seed."""

from .env import Worlds

__all__ = ["Worlds"]
