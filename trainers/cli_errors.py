"""Expected errors of a command: shown without a traceback."""

from __future__ import annotations

from .algorithms.batch import TermsError
from .builders.errors import SetupError
from .checkpoints import CheckpointError
from .cluster.group import RankError
from .cluster.machine import PlanError
from .demonstrations import DemonstrationError
from .policy import PolicyError
from .report.loggers import MetricsError
from .rollout.collector import CollectionError
from .rollout.renderer import RendererError

#: Any other error is a bug of ours, or of a library, and has its traceback.
EXPECTED = (
    SetupError,
    CheckpointError,
    CollectionError,
    DemonstrationError,
    FloatingPointError,
    MetricsError,
    PlanError,
    PolicyError,
    RankError,
    RendererError,
    TermsError,
)
