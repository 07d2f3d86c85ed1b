"""Requests that may leave out what only the user knows."""

from .env import Clarify

__all__ = ["Clarify"]
