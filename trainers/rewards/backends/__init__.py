"""What computes scores behind a :class:`~trainers.rewards.RewardService`: classifiers, judges, served models."""

from .classifier import ClassifierOptions, classifier_problems
from .classifier_pool import ClassifierPool, LocalWorker, Worker, WorkerLostError
from .conversation import PROBE
from .judge import JudgeBackend
from .pooling import PoolingBackend, PoolingOptions, pooling_problems

__all__ = [
    "PROBE",
    "ClassifierOptions",
    "ClassifierPool",
    "JudgeBackend",
    "LocalWorker",
    "PoolingBackend",
    "PoolingOptions",
    "Worker",
    "WorkerLostError",
    "classifier_problems",
    "pooling_problems",
]
