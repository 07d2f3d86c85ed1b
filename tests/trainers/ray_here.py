"""Ray on this machine, one for all tests of a process: its start costs seconds."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import pytest


def paths() -> dict[str, Any]:
    """The runtime environment of actors that import what these tests import."""
    return {"env_vars": {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}}


def local_ray(config: pytest.Config) -> Any:
    """The package, connected to a Ray of our own: one that somebody else ends takes its drivers, these tests, with it.

    All that use it are of the group ``ray``, so that one process runs them. It ends with the process.
    """
    ray = pytest.importorskip("ray", reason="needs the extra 'ray'")
    if not ray.is_initialized():
        # Ray makes its workers give way to everything else, and on a busy machine they would never start.
        os.environ.setdefault("RAY_worker_niceness", "0")
        quiet = {"include_dashboard": False, "logging_level": logging.ERROR, "log_to_driver": False}
        ray.init("local", num_cpus=32, runtime_env=paths(), **quiet)
        config.add_cleanup(ray.shutdown)
    return ray
