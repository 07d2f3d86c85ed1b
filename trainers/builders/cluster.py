"""Where the parts of a run are: the plan, and Ray for the time of the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from ..cluster.machine import Machine
from ..cluster.plan import Plan, make_plan
from ..cluster.ray.runtime import RayCluster
from ..cluster.shape import shape_of, this_machine
from ..config.schema import PPOConfig
from ..policy import resolve_device
from ..rollout.workers import placed
from .errors import SetupError


def plan_of(config: PPOConfig, machine: Machine | None = None, *, serving: bool = False) -> Plan:
    """Where the run's parts will be; nothing is started.

    Args:
        config: Of the run.
        machine: What it is for, if not this machine.
        serving: Its engines alone.

    Raises:
        PlanError: They do not fit.
    """
    return make_plan(config, machine or this_machine(), None if serving else shape_of(config.model), serving=serving)


@contextmanager
def cluster_of(config: PPOConfig, plan: Plan) -> Iterator[RayCluster | None]:
    """Ray for the time of the run, where the run uses it.

    Raises:
        SetupError: Ray is not installed.
        PlanError: It has not what the plan needs.
    """
    if config.cluster.backend != "ray" and config.env.backend != "ray":
        yield None
        return
    with ExitStack() as stack:
        options = config.ray_init
        try:
            cluster = RayCluster(
                plan,
                address=options.address,
                num_cpus=options.num_cpus,
                timeline=options.timeline_json_file,
                timeout=config.cluster.start_timeout_s,
            )
        except ImportError as error:
            raise SetupError(str(error)) from error
        stack.enter_context(cluster)
        if (environments := cluster.environment_options()) is not None:
            stack.enter_context(placed(environments))
        yield cluster


def driver_device(config: PPOConfig) -> torch.device:
    """Where this process computes: with Ray, GPUs may be on other machines alone."""
    if config.cluster.backend == "ray" and not torch.cuda.is_available():
        return torch.device("cpu")
    return resolve_device(config.model.device)


def engine_device(config: PPOConfig, replica: int) -> torch.device:
    """Of a torch engine: an actor sees its own GPU alone, and in this process each has one, or the learner's."""
    device, cluster = resolve_device(config.model.device), config.cluster
    if device.type != "cuda" or cluster.backend == "ray":
        return device
    return torch.device("cuda", 0 if cluster.colocate else 1 + replica)


def gpu_of(config: PPOConfig, replica: int) -> int | None:
    """The first GPU of a replica: they take the machine's in turn; one engine alone takes what it finds."""
    return replica * config.engine.tensor_parallel_size if config.engine.engines > 1 else None
