"""Environments as Ray actors, on a Ray of this machine: the same episodes, and each failure costs its own alone."""

from __future__ import annotations

import itertools
import sys

import pytest
from collector_helpers import collect, engine_of, says, tokens
from ray_here import local_ray
from rollout_fakes import AsyncEnv

from benchmarks.simulation.scripted import Reply
from trainers.rollout.environments import Backend, EnvSpec
from trainers.rollout.group_scheduler import ConsecutiveErrorsError
from trainers.trajectory import Status, Trajectory

# One process of the tests runs them all, and so one Ray.
pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture(scope="module", autouse=True)
def _ray(request: pytest.FixtureRequest) -> None:
    local_ray(request.config)


async def test_actors_play_what_environments_here_play() -> None:
    inline = await collect(engine_of(says("1 on")), EnvSpec(AsyncEnv), 2)
    limits = {"workers": 2}
    actors = await collect(engine_of(says("1 on")), EnvSpec(AsyncEnv), 2, kind="ray", limits=limits)
    for one, other in zip(inline, actors, strict=True):
        assert all(a == b for a, b in zip(one.trajectories, other.trajectories, strict=True))
    assert actors[-1].stats["env_made"] == 2


@pytest.mark.parametrize(
    ("word", "status", "message"),
    [
        ("raise", Status.ERROR_ENV, "a bug in the environment"),
        ("die", Status.ERROR_ENV, "its Ray actor died"),
        ("unpicklable", Status.ERROR_ENV, "pickle"),
        ("hang", Status.TRUNCATED_TIME, "step took longer than"),
    ],
)
@pytest.mark.usefixtures("short_hangs")
async def test_actor_that_fails_is_status_and_batch_completes(word: str, status: Status, message: str) -> None:
    ended: list[Trajectory] = []
    count = itertools.count()
    engine = engine_of(lambda call, version: Reply(tokens(f"1 {word}" if next(count) == 0 else "1 end")))
    options = {"limits": {"workers": 1, "step_timeout": 100.0}, "n": 1}
    options |= {"groups_per_batch": 2, "on_trajectory": ended.append}
    (batch,) = await collect(engine, EnvSpec(AsyncEnv), kind="ray", **options)
    (failed,) = [t for t in ended if t.status is not Status.COMPLETED]
    assert failed.status is status
    assert message in str(failed.error)
    assert [len(group) for group in batch.groups] == [1, 1]


async def test_missing_ray_names_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConsecutiveErrorsError, match=r"pip install 'textenvs\[ray\]'"):
        await collect(engine_of(says("1 end")), kind="ray", limits={"workers": 1}, max_consecutive_errors=1)


def test_actors_need_limit() -> None:
    with pytest.raises(ValueError, match="kind='ray' needs workers"):
        Backend(EnvSpec(AsyncEnv), "ray")
