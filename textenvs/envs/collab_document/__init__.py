"""CollabLLM's document editing: a text whose content the user tells piece by piece."""

from .env import CollabDocument

__all__ = ["CollabDocument"]
