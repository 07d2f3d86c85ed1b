"""Agent World Model's worlds, from its data folder: their servers, their databases, and their verifiers."""

from .env import AWM

__all__ = ["AWM"]
