"""What computes scores behind a :class:`~trainers.rewards.RewardService`: functions, classifiers, judges, services."""

from .classifier import ClassifierOptions, classifier_problems
from .conversation import PROBE
from .functions import FunctionBackend
from .judge import JudgeBackend
from .pooling import PoolingBackend, PoolingOptions, pooling_problems
from .replicas import ProcessReplica, Replica, ReplicaLostError, ReplicaPool, ThreadReplica

__all__ = [
    "PROBE",
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
    "classifier_problems",
    "pooling_problems",
]
