"""Nsight around learner ranks: the options for Ray, and the captured ranges, without Nsight itself."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainers.cluster.group import LearnerGroup, RankError, RayRanks
from trainers.cluster.rank import RankHost
from trainers.cluster.ray import runtime as ranks
from trainers.cluster.ray.runtime import nsight_of
from trainers.command_line import load_config
from trainers.run import profiling

CAPTURE = {"capture-range": "cudaProfilerApi", "t": "cuda,nvtx"}


def test_options_are_strings_and_ranges_keep_process_alive() -> None:
    assert nsight_of({}, [1, 2]) == {}
    assert nsight_of({"stats": True, "sample": 5}, []) == {"stats": "true", "sample": "5"}
    ends = {"capture-range-end": "repeat-shots:2", "kill": "none"}
    assert nsight_of(CAPTURE, [3, 7]) == ends | CAPTURE
    custom = {**CAPTURE, "capture-range-end": "stop", "kill": "sigterm"}
    assert nsight_of(custom, [3]) == custom


class FakeRay:
    """The part of Ray that starts actors."""

    class exceptions:  # noqa: N801 - Ray's name
        class RayError(Exception): ...

    def __init__(self, error: Exception | None = None) -> None:
        self.options: list[dict[str, Any]] = []
        self.error = error
        self.killed = 0

    def remote(self, **options: Any) -> Any:
        def made(**options: Any) -> Any:
            self.options.append(options)
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


def test_only_rank_actors_run_under_nsight() -> None:
    ray = FakeRay()
    RayRanks(cluster_of(ray), CAPTURE)
    assert [options["runtime_env"] for options in ray.options] == [{"nsight": CAPTURE}] * 2
    assert [options["seat"] for options in ray.options] == ["seat 0", "seat 1"]
    plain = FakeRay()
    RayRanks(cluster_of(plain))
    assert not any("runtime_env" in options for options in plain.options)


def test_failed_start_under_nsight_names_its_requirement() -> None:
    ray = FakeRay(FakeRay.exceptions.RayError("nsight is not installed"))
    with pytest.raises(RankError, match=r"nsight is not installed; cluster.nsight needs Nsight Systems"):
        RayRanks(cluster_of(ray), CAPTURE)
    assert ray.killed == 2
    with pytest.raises(RankError) as caught:
        RayRanks(cluster_of(FakeRay(FakeRay.exceptions.RayError("no room"))))
    assert "nsight" not in str(caught.value).lower()


def test_error_summary_keeps_the_traceback_end() -> None:
    summary = ranks.error_summary(
        RuntimeError("No environment.\n[Node 1] Traceback (most recent call last):\n  File x\n a()\nb:\n c\n")
    )
    assert summary == "No environment. [Node 1] b: c"
    assert ranks.error_summary(RuntimeError("The actor\n\n died\nso\nmore")) == "The actor died so"
    assert ranks.error_summary(RuntimeError("Traceback (most recent call last):")) == "RuntimeError"


@pytest.mark.parametrize("fails", [False, True])
async def test_chosen_iterations_are_captured_on_ranks(fails: bool) -> None:
    class Group(LearnerGroup):
        def __init__(self) -> None:
            self.calls: list[Any] = []

        def _do(self, *call: Any, **options: Any) -> None:
            self.calls.append(call)

    arguments = ["cluster.backend=ray", "cluster.nsight.capture-range=cudaProfilerApi", "trainer.profile_steps=[2]"]
    group = Group()
    run: Any = SimpleNamespace(config=load_config(arguments)[0], learner=group, iteration=0)

    with pytest.raises(FloatingPointError) if fails else contextlib.nullcontext():
        for run.iteration in range(3):
            async with profiling(run):
                group.calls.append(run.iteration + 1)
                if fails and run.iteration == 1:
                    raise FloatingPointError
    assert group.calls == [1, ("capture", True), 2, ("capture", False), *(() if fails else (3,))]


@pytest.mark.parametrize("has_gpu", [False, True])
def test_rank_starts_and_stops_capture_on_gpu(has_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")  # and back afterwards
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("synchronize"))
    for name in ("start", "stop"):
        monkeypatch.setattr(torch.cuda.profiler, name, lambda name=name: calls.append(name))
    host = RankHost(0, 1)
    with contextlib.nullcontext() if has_gpu else pytest.raises(ValueError, match="needs GPUs, and this rank has none"):
        host.capture(True)
        host.capture(False)
    assert calls == (["synchronize", "start", "synchronize", "stop"] if has_gpu else [])
