"""benchmarks/parallel.py: order, deadline, and that its processes have one thread."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from benchmarks.parallel import finished


def square(number: int) -> tuple[int, int, str]:
    if number < 0:
        raise ValueError("below 0")
    return number**2, os.getpid(), os.environ.get("OMP_NUM_THREADS", "")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_begins_when_what_it_needs_has_ended(workers: int) -> None:
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
def test_none_begins_after_the_deadline(workers: int) -> None:
    seen: list[int] = []
    assert list(finished(square, lambda: [1, 2], workers, 0)) == []
    for number, _ in finished(square, lambda: [n for n in range(9) if n not in seen], workers, 0.002):
        seen.append(number)
        time.sleep(0.2)
    assert 1 <= len(seen) <= workers


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_a_run_is_raised(workers: int) -> None:
    with pytest.raises(ValueError, match="below 0"):
        list(finished(square, lambda: [-1], workers, 60))
