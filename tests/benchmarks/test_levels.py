"""Benchmark of curricula: the order of runs, and resuming."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import curriculum as command
from trainers.report.loggers import METRICS_FILE


def test_run_furthest_behind_is_next_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, str]] = []

    def ppo(seed: int, folder: Path, options: list[str]) -> None:
        """Solve a third more in each chunk, and nothing at the hard level alone."""
        settings = dict(option.split("=", 1) for option in options if "=" in option)
        assert Path(settings["model.path"]).exists()
        end = int(settings["trainer.total_iterations"])
        made.append((folder.name, str(end)))
        if len(made) == 3:
            raise KeyboardInterrupt
        solved = 0.0 if "env.kwargs.steps=4" in options else end / 30
        folder.mkdir(exist_ok=True, parents=True)
        first = {"train/response_tokens": 10.0, "train/episodes": 8, "val/solved": solved}
        with (folder / METRICS_FILE).open("a") as file:
            file.write(json.dumps({"step": end} | first) + "\n")

    monkeypatch.setattr(command, "ppo", ppo)
    command.start_of(3, tmp_path).mkdir(parents=True)
    where = ["--folder", str(tmp_path), "--results", str(tmp_path / "results.json")]
    words = ["x", "--seeds", "3", "--kinds", "hard,fixed", "--iterations", "30", *where]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(KeyboardInterrupt):
        command.main()
    assert made == [("hard3", "10"), ("fixed3", "10"), ("hard3", "20")]
    command.main()
    assert made[3:] == [("hard3", "20"), ("fixed3", "20"), ("hard3", "30")]
    results = json.loads((tmp_path / "results.json").read_text())
    assert {row["kind"]: row["tokens"] for row in results["runs"]} == {"hard": None, "fixed": 120.0}
