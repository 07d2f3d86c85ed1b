"""Programs that call a model, as environments."""

from .env import Agent

__all__ = ["Agent"]
