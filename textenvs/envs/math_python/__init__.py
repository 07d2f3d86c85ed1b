"""Problems that need computing, with a Python tool."""

from .env import MathPython

__all__ = ["MathPython"]
