"""Projects with faults, in a shell that can be forked."""

from .env import Terminal

__all__ = ["Terminal"]
