"""Run benchmarks.against_trl at a tiny size; the losses that it compares are equal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.against_trl.times import summary
from benchmarks.against_trl.trl_side import AtLengths, sizes
from benchmarks.against_trl.work import WORKS
from benchmarks.memory import peak

ROOT = Path(__file__).resolve().parents[2]


def test_lengths_depend_on_iteration_only() -> None:
    turns, single = WORKS["turns"], WORKS["single"]
    lengths = turns.lengths(3)
    assert lengths.shape == (256, 4)
    assert (lengths.min(), lengths.max()) == (8, 64)
    np.testing.assert_array_equal(lengths, turns.lengths(3))
    assert (lengths != turns.lengths(4)).any()
    assert (single.lengths(0) == 48).all()


def test_ratio_is_median_over_rounds() -> None:
    seconds = {
        "ours": [{"generate": 1.0, "update": 1.0}, {"generate": 1.0, "update": 3.0}, {"generate": 9.0, "update": 9.0}],
        "trl": [{"generate": 2.0, "update": 2.0}, {"generate": 4.0, "update": 6.0}, {"generate": 10.0, "update": 10.0}],
    }
    row = summary("single", seconds)
    assert row["ratios"] == [0.5, 0.4, 0.9]
    assert row["ratio"] == 0.5
    assert (row["ratio_generate"], row["ratio_update"]) == (0.5, 0.5)
    assert row["seconds"]["trl"] == {"generate": 4.0, "update": 6.0}


def test_rows_end_at_their_own_length() -> None:
    torch = pytest.importorskip("torch")
    ends = AtLengths(5, np.array([1, 3, 2]))
    done = [ends(torch.zeros(3, 5 + new), None).tolist() for new in (1, 2, 3)]
    assert done == [[True, False, False], [True, False, True], [True, True, True]]


@pytest.mark.parametrize(
    ("requested", "expected"),
    [((32, 256), (32, 256)), ((512, 512), (256, 256)), ((64, 32), (32, 32))],
)
def test_sizes_do_not_exceed_work(requested: tuple[int, int], expected: tuple[int, int]) -> None:
    fitted = sizes(WORKS["single"], *requested)
    assert (fitted["micro_batch"], fitted["generation_batch"]) == expected


@pytest.mark.parametrize("requested", [(32, 96), (48, 128), (2, 4)])
def test_indivisible_sizes_are_refused(requested: tuple[int, int]) -> None:
    with pytest.raises(SystemExit, match="powers of 2"):
        sizes(WORKS["single"], *requested)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_is_highest_memory_in_block() -> None:
    with peak() as memory:
        np.ones(64 * 2**17)  # 64 MiB, gone at once
        block = np.ones(16 * 2**17)
    assert len(block)
    assert memory["peak"] == pytest.approx(64, abs=24)


def run(*what: str) -> list[dict[str, Any]]:
    pytest.importorskip("trl")
    command = [sys.executable, "-m", "benchmarks.against_trl", *what, "--smoke", "--rounds", "1", "--threads", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"benchmark"')]


@pytest.mark.slow  # each loss has an oracle of its own elsewhere
def test_losses_agree_and_sides_are_timed() -> None:
    single, turns, large = run("single", "turns", "large")
    assert (single["new_tokens"], turns["episodes"]) == (4 * 48, 4)
    for result, loss, gradients in ((single, 1e-6, 1e-4), (turns, 1e-6, 1e-4), (large, 0.1, 0.1)):  # in bfloat16
        assert result["loss"]["apart"] < loss
        assert result["loss"]["gradients_apart"] < gradients
        assert abs(result["loss"]["ours"]) > 1e-4, "or nothing was compared"
        assert min(result["seconds"]["ours"].values()) > 0
        assert min(result["seconds"]["trl"].values()) > 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_both_sides_is_measured() -> None:
    (memory,) = run("memory")
    assert min(memory["peak_mib"].values()) > 0
