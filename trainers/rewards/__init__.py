"""Rewards from beside the environment: services that score what was said, many requests at a time."""

from .service import BackendError, ModelOptions, RewardBackend, RewardService, Scores, ScoringRequest, UnscoredError

__all__ = [
    "BackendError",
    "ModelOptions",
    "RewardBackend",
    "RewardService",
    "Scores",
    "ScoringRequest",
    "UnscoredError",
]
