"""Questions of fact with a search tool."""

from .env import SearchQA

__all__ = ["SearchQA"]
