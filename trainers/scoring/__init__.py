"""Rewards that are a user's function: in processes of their own, with a time limit that is kept."""

from .pool import FunctionError, FunctionPool, Scored, ScoreError

__all__ = ["FunctionError", "FunctionPool", "ScoreError", "Scored"]
