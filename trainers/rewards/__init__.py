"""Rewards from outside the environment: user functions in processes, and services that score in batches."""

from .functions import FunctionError, FunctionPool, ScoreError
from .service import (
    BackendError,
    ModelOptions,
    OutageError,
    RewardBackend,
    RewardService,
    ScoringRequest,
    UnscoredError,
    reward_of,
)

__all__ = [
    "BackendError",
    "FunctionError",
    "FunctionPool",
    "ModelOptions",
    "OutageError",
    "RewardBackend",
    "RewardService",
    "ScoreError",
    "ScoringRequest",
    "UnscoredError",
    "reward_of",
]
