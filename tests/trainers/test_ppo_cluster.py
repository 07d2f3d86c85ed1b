"""``python -m trainers.ppo`` with a learner on two processes of this machine: the metrics of one process."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from cluster_runs import assert_same_metrics, run

from trainers.cluster.group import LearnerGroup, RankError
from trainers.ppo import main
from trainers.run import Run

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("learner-ranks")]


def test_two_ranks_train_as_one_process_and_a_dead_one_ends_the_run(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def kill_a_rank(made: Run) -> None:
        assert isinstance(made.learner, LearnerGroup)
        assert made.learner.count == 2
        os.kill(made.learner._transport.pid(1), signal.SIGKILL)  # type: ignore[attr-defined]
        with pytest.raises(RankError, match="rank 1 .* was killed by SIGKILL") as caught:
            made.learner.weights()
        seen.append(caught.value)

    saving = ("trainer.save_freq=1", "trainer.async_save=true")
    alone = run(tmp_path / "one")
    both = run(tmp_path / "two", "cluster.learner_ranks=2", *saving, then=kill_a_rank)
    assert_same_metrics(both, alone, 1e-4)
    assert seen
    # One process goes on from what two have saved, and has nothing left to do.
    again = run(tmp_path / "two", "cluster.learner_ranks=1")
    assert [row["step"] for row in again] == [row["step"] for row in both]


def test_a_dry_run_prints_the_plan_and_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--dry-run", "cluster.learner_ranks=2", f"trainer.default_local_dir={tmp_path}/run"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "learner_ranks: 2  # command line (default 1)" in said
    assert "# learner: 2 processes of this machine" in said
    assert "# memory of the engine, each process, estimated:" in said
    assert not (tmp_path / "run").exists()


def test_a_plan_that_does_not_fit_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["cluster.colocate=false", "model.device=cpu", f"trainer.default_local_dir={tmp_path}/run"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "the configuration cannot be placed:\n  cluster.colocate=false has no effect" in said
    assert "Nothing was started" in said
    assert not (tmp_path / "run").exists()
