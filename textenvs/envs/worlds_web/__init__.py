"""Worlds of applications as text pages with links, fields and buttons."""

from .env import WorldsWeb

__all__ = ["WorldsWeb"]
