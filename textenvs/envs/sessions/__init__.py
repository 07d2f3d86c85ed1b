"""A memory that lasts over sessions: one notebook of a few characters, which the policy writes."""

from .env import Sessions

__all__ = ["Sessions"]
