"""Word problems in GSM8K's format: one reply, or a conversation with a user who judges each."""

from .env import Gsm8k, Gsm8kInteract

__all__ = ["Gsm8k", "Gsm8kInteract"]
