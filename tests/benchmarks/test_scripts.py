"""Import check of the benchmarks that are too long to run here."""

import importlib
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from textenvs import make

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.parametrize("script", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_benchmark_imports(script, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    runpy.run_path(str(script), run_name="not the main program")


def test_asking_scripts_finish_and_idle_sometimes(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    monkeypatch.delitem(sys.modules, "asking", raising=False)
    asking = importlib.import_module("asking")
    rows = asking.locks(tmp_path / "locks.jsonl", range(60, 62))
    options = {
        "asking/collab-math-start-v0": {"tasks": str(rows), "equality": "value"},
        "asking/clarify-start-v0": {"kinds": ["cap", "taxi"], "ambiguous": 1.0},
    }
    for env_id, chosen in options.items():
        env = make(env_id, **chosen)
        idle_replies, rng = set(), np.random.default_rng(0)
        for seed in range(30):
            env.reset(seed=seed)
            over = False
            while not over:
                reply = env.unwrapped.demonstration(rng)
                idle_replies.add(reply == "Go on.")
                _, _, terminated, truncated, info = env.step(reply)
                over = terminated or truncated
        assert idle_replies == {True, False}, env_id
