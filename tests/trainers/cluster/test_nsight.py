"""Nsight around learner ranks: what Ray is told, and when a rank begins and ends a range. Nsight itself is not here."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainers.cluster.group import LearnerGroup, RankError, RayRanks
from trainers.cluster.rank import RankHost
from trainers.cluster.ray import runtime as ranks
from trainers.cluster.ray.runtime import nsight_of
from trainers.config import load_config
from trainers.ppo import profiling

CAPTURE = {"capture-range": "cudaProfilerApi", "t": "cuda,nvtx"}


def test_options_are_words_and_a_range_does_not_end_the_process() -> None:
    assert nsight_of({}, [1, 2]) == {}
    assert nsight_of({"stats": True, "sample": 5}, []) == {"stats": "true", "sample": "5"}
    ends = {"capture-range-end": "repeat-shots:2", "kill": "none"}
    assert nsight_of(CAPTURE, [3, 7]) == ends | CAPTURE
    mine = {**CAPTURE, "capture-range-end": "stop", "kill": "sigterm"}
    assert nsight_of(mine, [3]) == mine


class FakeRay:
    """As much of Ray as starts actors."""

    class exceptions:  # noqa: N801 - Ray's name
        class RayError(Exception): ...

    def __init__(self, error: Exception | None = None) -> None:
        self.options: list[dict[str, Any]] = []
        self.error = error
        self.killed = 0

    def remote(self, **options: Any) -> Any:
        def made(**more: Any) -> Any:
            self.options.append(more)
            return SimpleNamespace(remote=lambda *args: SimpleNamespace(info=SimpleNamespace(remote=lambda: None)))

        return lambda actor: SimpleNamespace(options=made)

    def get(self, refs: list[Any], timeout: float) -> list[Any]:
        if self.error is not None:
            raise self.error
        return [("here", 1, [])] * len(refs)

    def kill(self, actor: Any, no_restart: bool) -> None:
        self.killed += 1


def cluster_of(ray: FakeRay) -> Any:
    plan = SimpleNamespace(learner=("seat 0", "seat 1"))
    return SimpleNamespace(ray=ray, plan=plan, timeout=1.0, options=lambda seat: {"num_cpus": 1, "seat": seat})


def test_every_rank_and_no_other_actor_runs_under_nsight() -> None:
    ray = FakeRay()
    RayRanks(cluster_of(ray), CAPTURE)
    assert [each["runtime_env"] for each in ray.options] == [{"nsight": CAPTURE}] * 2
    assert [each["seat"] for each in ray.options] == ["seat 0", "seat 1"]
    plain = FakeRay()
    RayRanks(cluster_of(plain))
    assert not any("runtime_env" in each for each in plain.options)


def test_ranks_that_do_not_start_under_nsight_say_what_they_need() -> None:
    ray = FakeRay(FakeRay.exceptions.RayError("nsight is not installed"))
    with pytest.raises(RankError, match=r"nsight is not installed; cluster.nsight needs Nsight Systems"):
        RayRanks(cluster_of(ray), CAPTURE)
    assert ray.killed == 2
    with pytest.raises(RankError) as caught:
        RayRanks(cluster_of(FakeRay(FakeRay.exceptions.RayError("no room"))))
    assert "nsight" not in str(caught.value).lower()


def test_of_a_traceback_in_what_ray_says_the_end_is_said() -> None:
    said = ranks.said(
        RuntimeError("No environment.\n[Node 1] Traceback (most recent call last):\n  File x\n a()\nb:\n c\n")
    )
    assert said == "No environment. [Node 1] b: c"
    assert ranks.said(RuntimeError("The actor\n\n died\nso\nmore")) == "The actor died so"
    assert ranks.said(RuntimeError("Traceback (most recent call last):")) == "RuntimeError"


@pytest.mark.parametrize("fails", [False, True])
def test_chosen_iterations_are_captured_on_the_ranks(fails: bool) -> None:
    class Group(LearnerGroup):
        def __init__(self) -> None:
            self.calls: list[Any] = []

        def _do(self, *call: Any, **options: Any) -> None:
            self.calls.append(call)

    more = ["cluster.backend=ray", "cluster.nsight.capture-range=cudaProfilerApi", "trainer.profile_steps=[2]"]
    group = Group()
    run: Any = SimpleNamespace(config=load_config(more)[0], learner=group, iteration=0)

    async def iterations() -> None:
        for run.iteration in range(3):
            async with profiling(run):
                group.calls.append(run.iteration + 1)
                if fails and run.iteration == 1:
                    raise FloatingPointError

    with pytest.raises(FloatingPointError) if fails else contextlib.nullcontext():
        asyncio.run(iterations())
    assert group.calls == [1, ("capture", True), 2, ("capture", False), *(() if fails else (3,))]


@pytest.mark.parametrize("there", [False, True])
def test_a_rank_begins_and_ends_a_range_on_its_gpu(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")  # and back afterwards
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("synchronize"))
    for name in ("start", "stop"):
        monkeypatch.setattr(torch.cuda.profiler, name, lambda name=name: calls.append(name))
    host = RankHost(0, 1)
    with contextlib.nullcontext() if there else pytest.raises(ValueError, match="needs GPUs, and this rank has none"):
        host.capture(True)
        host.capture(False)
    assert calls == (["synchronize", "start", "synchronize", "stop"] if there else [])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["cluster.nsight.t=cuda"], "has no effect without cluster.backend=ray"),
        (["cluster.backend=ray", "cluster.nsight.capture-range=cudaProfilerApi"], "trainer.profile_steps"),
        (
            [
                *("cluster.backend=ray", "cluster.nsight.capture-range=cudaProfilerApi"),
                *("trainer.profile_steps=[1]", "model.device=cpu"),
            ],
            "model.device=cpu calls no CUDA",
        ),
    ],
)
def test_what_captures_nothing_is_refused(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load_config(options)
    assert said in capsys.readouterr().err
