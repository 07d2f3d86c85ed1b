"""What computes scores behind a :class:`~trainers.rewards.RewardService`: functions, classifiers, judges, services."""

from .classifier import ClassifierOptions
from .functions import FunctionBackend
from .judge import JudgeBackend
from .pooling import PoolingBackend, PoolingOptions
from .replicas import ProcessReplica, Replica, ReplicaLostError, ReplicaPool, ThreadReplica

__all__ = [
    "ClassifierOptions",
    "FunctionBackend",
    "JudgeBackend",
    "PoolingBackend",
    "PoolingOptions",
    "ProcessReplica",
    "Replica",
    "ReplicaLostError",
    "ReplicaPool",
    "ThreadReplica",
]
