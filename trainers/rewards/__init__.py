"""Rewards from beside the environment: functions of a user's in processes, and services that score many at a time."""

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
