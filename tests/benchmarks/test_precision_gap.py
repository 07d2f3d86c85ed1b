"""Measurement of precision gaps on a tiny model."""

from __future__ import annotations

import json

import pytest
import torch.distributed as dist

from benchmarks.precision_gap import main


@pytest.fixture(autouse=True, scope="module")
def _no_process_group_is_left():
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.slow  # what it measures is tested in tests/trainers/test_precision.py
def test_float32_agrees_and_bfloat16_does_not(tmp_path, capsys):
    main(["--episodes", "4", "--tokens", "12", "--out", str(tmp_path / "out.json")])
    exact, mixed, half, again, *losses = json.loads((tmp_path / "out.json").read_text())
    assert exact["max_gap"] < 1e-5 < 1e-4 < mixed["max_gap"]
    assert half["mean_gap"] > 1e-4
    assert again["max_gap"] < half["max_gap"]
    by_name = {(row["loss"], row.get("old_logprobs")): row for row in losses}
    assert by_name["ppo", "rollout"]["mean_log_ratio"] > 1e-4
    assert by_name["ppo", "recompute"]["mean_log_ratio"] < 1e-6
    assert all(row["cosine"] > 0.99 for name, row in by_name.items() if name[0] != "gspo")
