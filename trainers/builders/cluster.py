"""Where the parts of a run are: the plan, and Ray for the time of the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from ..cluster.machine import Machine
from ..cluster.plan import Plan, make_plan
from ..cluster.ray.runtime import RayCluster
from ..cluster.shape import shape_of, this_machine
from ..config.schema import PPOConfig
from ..policy import resolve_device
from ..rollout.workers import placed
from .errors import setup_errors


def plan_of(config: PPOConfig, machine: Machine | None = None, *, serving: bool = False) -> Plan:
    """Where the run's parts (``serving``: its engines alone) will be, here or on ``machine``; or a PlanError."""
    return make_plan(config, machine or this_machine(), None if serving else shape_of(config.model), serving=serving)


@contextmanager
def cluster_of(config: PPOConfig, plan: Plan) -> Iterator[RayCluster | None]:
    """Ray for the time of the run, where the run uses it; SetupError without Ray, PlanError where it has too little."""
    if config.cluster.backend != "ray" and config.env.backend != "ray":
        yield None
        return
    options = config.ray_init
    with setup_errors("", ImportError):
        cluster = RayCluster(
            plan,
            address=options.address,
            num_cpus=options.num_cpus,
            timeline=options.timeline_json_file,
            timeout=config.cluster.start_timeout_s,
        )
    with cluster:
        environments = cluster.environment_options()
        with nullcontext() if environments is None else placed(environments):
            yield cluster


def driver_device(config: PPOConfig) -> torch.device:
    """Where this process computes: with Ray, GPUs may be on other machines alone."""
    if config.cluster.backend == "ray" and not torch.cuda.is_available():
        return torch.device("cpu")
    return resolve_device(config.model.device)
