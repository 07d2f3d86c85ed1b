"""Run benchmarks.tree at small sizes on two ranks: sharing is as requested, and gradients match rows."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import tree
from benchmarks.gpu.shapes import forked


@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.slow  # tests/trainers/learner/test_trees.py compares trees with rows, too
def test_trees_share_as_requested_and_match_rows(tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    sizes = ["--trees=1", "--tokens=4000", "--hidden=16", "--layers=1", "--repeat=1"]
    sizes += ["--depths=1,6", "--sharings=0.5,0.9"]
    tree.main([*sizes, "--ranks=2", f"--out={out}"])
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [(line["ranks"], line["depth"], line["sharing"]) for line in lines] == [
        (2, depth, sharing) for depth in (1, 6) for sharing in (0.5, 0.9)
    ]
    for line in lines:
        assert 0.9 < line["unique"] / line["total"] / (1 - line["sharing"]) < 1.1  # no tree is on both ranks
        assert line["unique"] / line["total"] <= line["pairs"] < 1  # what is shared stands before what is not
        assert line["gap"] < 1e-6
        assert line["s_of_ideal"] > 0


def test_impossible_sharing_is_refused():
    with pytest.raises(ValueError, match="32 forks of 3 turns cannot share 0.99 of their tokens"):
        forked(3, 0.99, 1000, 10)
