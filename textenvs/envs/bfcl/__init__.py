"""The Berkeley Function Calling Leaderboard's multi-turn tasks, from a clone: its own API classes and its own rule."""

from .env import BFCL

__all__ = ["BFCL"]
