"""Word problems with a tool that checks an answer, at a price."""

from .env import Gsm8kTool

__all__ = ["Gsm8kTool"]
