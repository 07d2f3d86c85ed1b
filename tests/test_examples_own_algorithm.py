"""An estimator and a loss of another package train, explain themselves and refuse bad keys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "examples" / "own_algorithm"
CHOSEN = ["algorithm.adv_estimator=median_grpo", "actor.policy_loss=asymmetric"]
SMALL = [
    *("model.hidden=32", "model.layers=1", "model.heads=2", "model.kv_heads=1", "model.vocab_size=300"),
    *("rollout.groups_per_batch=2", "rollout.n=4", "rollout.max_response_length=8", "engine.max_slots=8"),
    *("engine.max_context=192", "data.val_size=2", "trainer.total_iterations=2", "trainer.save_freq=-1"),
    *("trainer.threads=1", "warm_start.enable=false", "trainer.logger=jsonl", "trainer.val_before_train=false"),
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `pip install` leaves it: the modules, and the metadata with the entry points."""
    folder = tmp_path_factory.mktemp("installed")
    lines: list[str] = []
    for line in (PACKAGE / "pyproject.toml").read_text(encoding="utf-8").splitlines():
        if line.startswith("[project.entry-points."):
            lines.append(f"[{line.split(chr(34))[1]}]")
        elif lines and line.startswith("["):
            break
        elif lines and "=" in line:
            lines.append(line.replace('"', ""))
    info = folder / "own_algorithm-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-algorithm\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for module in PACKAGE.glob("*.py"):
        (folder / module.name).write_bytes(module.read_bytes())
    return folder


def ppo(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(installed), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-m", "trainers.ppo", *arguments],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
    )


def test_each_is_at_most_40_lines() -> None:
    for module in PACKAGE.glob("*.py"):
        assert len(module.read_text(encoding="utf-8").splitlines()) <= 40, module.name


def test_plugins_train(installed: Path, tmp_path: Path) -> None:
    ran = ppo(installed, *CHOSEN, *SMALL, "algorithm.quantile=0.25", f"trainer.default_local_dir={tmp_path}")
    assert ran.returncode == 0, ran.stderr[-2000:]
    rows = [json.loads(line) for line in next(tmp_path.rglob("metrics.jsonl")).read_text().splitlines()]
    trained = [row for row in rows if "actor/loss" in row]
    assert [row["step"] for row in trained] == [1, 2]
    written = next(tmp_path.rglob("config.yaml")).read_text(encoding="utf-8")
    assert "quantile: 0.25" in written
    assert "negative_weight: 0.5" in written


def test_plugin_keys_are_in_help_and_refusals(installed: Path) -> None:
    shown_help = ppo(installed, "--help", "algorithm.quantile")
    assert "Quantile of the group's rewards that is the baseline" in shown_help.stdout
    refused = ppo(installed, *CHOSEN, "algorithm.quantile=2", "actor.tau_pos=2")
    assert refused.returncode == 2
    assert "algorithm.quantile: 2 is not allowed; it must be a number >= 0 and <= 1" in refused.stderr
    assert "actor.tau_pos: has no effect without actor.policy_loss=sapo" in refused.stderr


def test_broken_plugin_stops_nothing(installed: Path, tmp_path: Path) -> None:
    info = tmp_path / "broken-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 0.1\n")
    points = "nothing = no_such_module:Nothing\nother = median_grpo:MedianGRPO\ngrpo = median_grpo:MedianGRPO\n"
    points += "bare = bare:Bare\n"
    (info / "entry_points.txt").write_text(f"[textenvs.estimators]\n{points}")
    (tmp_path / "median_grpo.py").write_bytes((PACKAGE / "median_grpo.py").read_bytes())
    (tmp_path / "bare.py").write_text(
        "from trainers.algorithms.estimators import Estimator\n"
        "class Bare(Estimator):\n    adv_estimator: str = 'bare'\n"
    )
    ran = ppo(tmp_path, "--help", "algorithm.adv_estimator")
    assert ran.returncode == 0, ran.stderr
    assert "turn_grpo" in ran.stdout
    assert "it has no method advantages" in ran.stderr
    for name in ("nothing", "other", "grpo", "bare"):
        assert f"the entry point {name} = " in ran.stderr
