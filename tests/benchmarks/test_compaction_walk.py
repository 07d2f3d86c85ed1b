"""Benchmark of compaction: the walk needs its summaries, and its figure and table are those of its runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import compaction
from textenvs.messages import transcript
from textenvs.registry import make
from trainers.command_line import resolve


def test_history_opens_chest_and_blanks_do_not() -> None:
    solved = {(row["run"], row["conversation"]): row["solved"] for row in compaction.scripts(60)}
    assert solved["script reader", "whole"] == solved["script reader", "compact"] == 1.0
    # Within five standard errors of a guess among eight, for 60 walks.
    assert max(solved["script reader", "blank"], solved["script guess", "whole"]) < 0.125 + 5 * 0.0427


def test_replies_and_kept_messages_hide_nothing() -> None:
    env = make("compaction/walk-v0")
    for reply in ("on ", "On", "on iron", "iron", ""):
        env.reset(seed=0)
        assert env.step(reply)[4]["stop"] == "lost"
    blank = make("compaction/blank-v0", script=compaction.summary, **compaction.COMPACT)
    observation, _ = blank.reset(seed=3)
    while not blank.state.done:
        last, (observation, *_) = observation, blank.step(blank.demonstration(np.random.default_rng(0)))
    assert "key is" not in transcript(last)


@pytest.mark.parametrize("kind", compaction.KINDS)
def test_configurations_of_all_runs_are_accepted(kind: str) -> None:
    config, _ = resolve([*compaction.TRAIN, *compaction.KINDS[kind]])
    assert config.engine.max_context == compaction.CONTEXT


def test_results_resume_and_decide_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = {"compact": 0.95, "without": 0.0, "blank": 0.13}

    def run(kind: str, seed: int, *_: object) -> list[dict[str, object]]:
        row = {"run": kind, "seed": seed, "turns": 24.0, "context_full": 0.0, "summaries": 3.0}
        return [row | {"iteration": 0, "solved": 0.2}, row | {"iteration": 5, "solved": ends[kind]}]

    monkeypatch.setattr(compaction, "run", run)
    monkeypatch.setattr(compaction, "draw", lambda rows, path: drawn.append((len(rows), path)))
    monkeypatch.setattr(compaction, "scripts", lambda: [{"run": "script", "conversation": "whole", "solved": 1.0}])
    drawn: list[tuple[int, Path]] = []
    results = tmp_path / "compaction.jsonl"
    words = ["compaction", "--seeds", "0,1", f"--results={results}", f"--folder={tmp_path}"]
    monkeypatch.setattr("sys.argv", words)
    assert compaction.main() == 0
    assert [json.loads(line)["run"] for line in results.read_text().splitlines()].count("compact") == 4
    assert drawn[-1] == (8, results.with_suffix(".png"))
    assert "20.0% ->  95.0%" in capsys.readouterr().out
    ends["blank"] = 0.6
    assert compaction.main() == 1
