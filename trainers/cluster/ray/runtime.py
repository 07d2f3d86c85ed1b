"""Ray during a run: joined or started, with a placement group for each pool of the plan."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trainers.cluster.memory import PlanError
from trainers.cluster.plan import Plan, Seat
from trainers.config.running import RayInitSection

log = logging.getLogger("trainers")

_LINES = 3  # of Ray's message about a death
_CAUSE = 2  # lines at the end of a traceback in the message


def import_ray() -> Any:
    """Return the module ``ray``. Raises ``ImportError``: it is not installed; the message names the extra."""
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise ImportError("cluster.backend=ray needs Ray: pip install 'textenvs[ray]'") from error
    return ray


def error_summary(error: BaseException) -> str:
    """Return the beginning of Ray's error message in one line; of a traceback in it, the end."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for at, line in enumerate(lines[:_LINES]):
        before, trace, _ = line.partition("Traceback (most recent call last)")
        if trace:
            lines = [*lines[:at], before.strip(), *lines[max(at + 1, len(lines) - _CAUSE) :]]
            break
    else:
        lines = lines[:_LINES]
    return " ".join(part for part in lines if part) or type(error).__name__


class RayCluster:
    """Ray, and the placement groups of a plan; a context manager. Reuses a Ray that this process is connected to.

    A new Ray, where the section names none and RAY_ADDRESS is not set, is never one that merely happens to run on this
    machine. ``timeout`` is in seconds, for the placement groups. Raises ImportError: Ray is not installed; PlanError:
    the cluster lacks resources of the plan.
    """

    def __init__(self, plan: Plan, section: RayInitSection, *, timeout: float) -> None:
        self.plan, self.timeout = plan, timeout
        self._address = section.address or os.environ.get("RAY_ADDRESS") or "local"
        self._num_cpus, file = section.num_cpus, section.timeline_json_file
        if self._num_cpus is not None and self._address != "local":
            text = "is for a Ray of the run's own, and RAY_ADDRESS names one"
            raise PlanError(f"ray_init.num_cpus={self._num_cpus} {text}")
        self._timeline = None if file is None else Path(file).expanduser()
        self.ray = import_ray()
        self._groups: dict[str, Any] = {}
        self._owned = False

    def __enter__(self) -> Self:
        if self._timeline is not None:
            self._timeline.parent.mkdir(parents=True, exist_ok=True)
        if not self.ray.is_initialized():
            self._owned = True
            options: dict[str, Any] = {"logging_level": logging.WARNING, "log_to_driver": False}
            if self._address == "local":
                # Workers import the same packages as this process.
                paths = os.pathsep.join(path for path in sys.path if path)
                options |= {
                    "num_cpus": self._num_cpus or max(os.cpu_count() or 1, int(-(-self.plan.cpus // 1))),
                    "include_dashboard": False,
                    "runtime_env": {"env_vars": {"PYTHONPATH": paths}},
                }
            try:
                self.ray.init(self._address, **options)
            except ConnectionError as error:
                raise PlanError(f"there is no Ray at {self._address}: {error}; see ray_init.address") from error
        try:
            self._place()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._timeline is not None:
            try:
                self.ray.timeline(filename=str(self._timeline))
            except Exception as problem:  # any error of Ray: the run has ended anyway
                log.warning("Ray's timeline was not written to %s: %s", self._timeline, problem)
        self._leave()

    def options(self, seat: Seat) -> dict[str, Any]:
        return {"num_cpus": seat.cpus, "num_gpus": seat.gpus, "scheduling_strategy": self._in(seat.pool, seat.place)}

    def environment_options(self) -> Callable[[], Mapping[str, Any]] | None:
        if not self.plan.environments:
            return None
        options = {"num_cpus": self.plan.environments[0].cpus, "scheduling_strategy": self._in("environments", -1)}
        return lambda: options

    def _in(self, pool: str, place: int) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(self._groups[pool], placement_group_bundle_index=place)

    def _place(self) -> None:
        from ray.util.placement_group import placement_group

        has = self.ray.cluster_resources()
        needs = {"CPU": self.plan.cpus, "GPU": float(self.plan.gpus)}
        for what, needed in needs.items():
            if needed > has.get(what, 0.0):
                raise PlanError(
                    f"the plan needs {needed:g} {what}s, and Ray has {has.get(what, 0.0):g} "
                    f"({self._address}); --dry-run shows the plan"
                )
        for pool in self.plan.pools:
            bundles = [
                {name: amount for name, amount in (("CPU", place.cpus), ("GPU", place.gpus)) if amount}
                for place in pool.places
            ]
            self._groups[pool.name] = group = placement_group(bundles, strategy=pool.strategy)
            if not group.wait(self.timeout):
                raise PlanError(
                    f"Ray found no room for pool {pool.name} within {self.timeout:g} s: it needs "
                    f"{', '.join(map(str, bundles))}, each on one machine, and free are "
                    f"{self.ray.available_resources()}"
                )

    def _leave(self) -> None:
        from ray.util.placement_group import remove_placement_group

        for group in self._groups.values():
            with contextlib.suppress(self.ray.exceptions.RayError, ValueError):
                remove_placement_group(group)
        self._groups = {}
        if self._owned:
            self.ray.shutdown()
            self._owned = False


# ------------------ Nsight Systems around learner ranks: what Ray starts them with


def captures(options: Mapping[str, Any]) -> bool:
    """Return whether Nsight waits for cudaProfilerStart, so that a rank selects the captured ranges."""
    return options.get("capture-range") == "cudaProfilerApi"


def nsight_of(options: Mapping[str, Any], steps: Sequence[int]) -> dict[str, str]:
    """Ray's ``nsight`` of a runtime environment: options of ``nsys profile``, all of them words.

    Nsight ends a process after its first range by default; where ranges (``steps``) are captured, it must let it live.
    """
    merged = dict(options)
    if captures(options):
        merged = {"capture-range-end": f"repeat-shots:{len(steps)}", "kill": "none"} | merged
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in merged.items()}
