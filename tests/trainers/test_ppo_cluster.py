"""Placement of the parts of ``python -m trainers.ppo``: printed, or refused, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainers.ppo import main


def test_dry_run_prints_plan_and_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--dry-run", "cluster.learner_ranks=2", f"trainer.default_local_dir={tmp_path}/run"])
    assert ended.value.code == 0
    output = capsys.readouterr().out
    assert "learner_ranks: 2  # command line (default 1)" in output
    assert "# The plan: cluster.backend=ray, CPU." in output
    assert "# learner: 2 ranks in pool shared" in output
    assert "# memory of the engine, each process, estimated:" in output
    assert not (tmp_path / "run").exists()


def test_servers_that_run_already_take_no_place(capsys: pytest.CaptureFixture[str]) -> None:
    servers = ("engine.name=sglang", "engine.sglang.base_url=http://127.0.0.1:1")
    with pytest.raises(SystemExit) as ended:
        main(["--dry-run", "--plan-for", "2@80", "cluster.learner_ranks=2", "cluster.colocate=false", *servers])
    output = capsys.readouterr().out
    assert ended.value.code == 0, output
    assert "# engine: servers that run already" in output
    assert "memory of the engine" not in output
