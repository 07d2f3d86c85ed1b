"""benchmarks/curriculum.py: what it does next, and that a started command resumes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import curriculum as command
from trainers.report.loggers import METRICS_FILE


def test_the_run_that_is_furthest_behind_comes_next_and_a_started_command_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, str]] = []

    def ppo(seed: int, folder: Path, options: list[str]) -> None:
        """Solves a third more in each chunk; the hard level alone nothing."""
        told = dict(option.split("=", 1) for option in options if "=" in option)
        assert Path(told["model.path"]).exists()
        end = int(told["trainer.total_iterations"])
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
    found = json.loads((tmp_path / "results.json").read_text())
    assert {row["kind"]: row["tokens"] for row in found["runs"]} == {"hard": None, "fixed": 120.0}
