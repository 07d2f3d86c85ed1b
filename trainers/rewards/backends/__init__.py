"""What computes scores behind a :class:`~trainers.rewards.RewardService`: classifiers, judges, served models."""

from .classifier import ClassifierPool, LocalWorker, Worker, WorkerLostError, classifier_problems
from .conversation import PROBE
from .judge import JudgeBackend
from .pooling import PoolingBackend, pooling_problems

__all__ = [
    "PROBE",
    "ClassifierPool",
    "JudgeBackend",
    "LocalWorker",
    "PoolingBackend",
    "Worker",
    "WorkerLostError",
    "classifier_problems",
    "pooling_problems",
]
