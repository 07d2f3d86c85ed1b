"""Shared code of the CollabLLM environments."""
