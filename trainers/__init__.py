"""Training of language models in text environments; see docs/architecture.md.

    trainers.make("ppo", ["rollout.n=4"]).fit()     any trainer by its name: trainers.names() has them all

Importing it sets ``OMP_WAIT_POLICY=PASSIVE`` unless that is set, before torch reads it: OpenMP's threads then sleep at
a barrier. Spinning gains little, and where a core has other work to do, each barrier would wait for a thread that is
not running.
"""

import os
import sys

if sys.argv[:1] == ["-m"]:  # a command is being imported: Ctrl-C ends it, by textenvs.startup
    import textenvs  # noqa: F401

from .registry import Result, Trainer, TrainerNotFoundError, make, names

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__all__ = ["Result", "Trainer", "TrainerNotFoundError", "make", "names"]
