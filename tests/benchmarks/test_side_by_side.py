"""Parallel benchmark runs: order, deadline, one thread per process, and no process outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import parallel
from benchmarks.parallel import finished


def square(number: int) -> tuple[int, int, str]:
    if number < 0:
        raise ValueError("below 0")
    return number**2, os.getpid(), os.environ.get("OMP_NUM_THREADS", "")


@pytest.mark.parametrize("workers", [1, 2])
def test_run_starts_after_its_dependencies(workers: int) -> None:
    seen: dict[int, int] = {}

    def ready() -> Iterator[int]:
        yield from (number for number in range(4) if number not in seen and (number == 0 or 0 in seen))

    for number, (value, process, threads) in finished(square, ready, workers, 60):
        assert number == 0 or 0 in seen
        assert (process == os.getpid()) == (workers == 1)
        assert workers == 1 or threads == "1"
        seen[number] = value
    assert seen == {number: number**2 for number in range(4)}


@pytest.mark.parametrize("workers", [1, 2])
def test_no_run_starts_after_deadline(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    clock = SimpleNamespace(monotonic=lambda: 120.0 if seen else 0.0)  # the first result comes after the deadline
    monkeypatch.setattr(parallel, "time", clock)
    assert list(finished(square, lambda: [1, 2], workers, 0)) == []
    for number, _ in finished(square, lambda: [n for n in range(9) if n not in seen], workers, 1):
        seen.append(number)
    assert len(seen) == workers


@pytest.mark.parametrize("workers", [1, 2])
def test_error_of_a_run_is_raised(workers: int) -> None:
    with pytest.raises(ValueError, match="below 0"):
        list(finished(square, lambda: [-1], workers, 60))


def _runs() -> dict[int, int]:
    """Return the spawned worker processes of this machine: process id to parent id."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z" and b"spawn_main" in (folder / "cmdline").read_bytes():
                parents[int(folder.name)] = int(parent)
        except OSError:  # it has ended
            continue
    return parents


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_runs_end_with_their_parent(how):
    program = (
        "import time; from benchmarks.parallel import finished; list(finished(time.sleep, lambda: [90, 91], 2, 1))"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[2]) as started:
        while len(children := {pid for pid, parent in _runs().items() if parent == started.pid}) < 2:
            assert started.poll() is None
            time.sleep(0.1)
        started.send_signal(how)
    while children & _runs().keys():
        time.sleep(0.1)
