"""Rewards from outside the environment: user functions in processes, and services that score in batches."""

from .functions import FunctionError, FunctionPool, ScoreError
from .service import (
    BackendError,
    OutageError,
    RewardBackend,
    RewardService,
    ScoringRequest,
    Traits,
    UngradableError,
    UnscoredError,
    reward_of,
)

__all__ = [
    "BackendError",
    "FunctionError",
    "FunctionPool",
    "OutageError",
    "RewardBackend",
    "RewardService",
    "ScoreError",
    "ScoringRequest",
    "Traits",
    "UngradableError",
    "UnscoredError",
    "reward_of",
]
