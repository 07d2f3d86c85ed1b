"""wandb (offline) and MLflow (files) with the real packages, trackio with a fake: a resumed run is one run."""

import sys
import time
import types

import pytest

from trainers.report.loggers import (
    LoggedRun,
    MetricsError,
    MLflowLogger,
    Reporter,
    TrackioLogger,
    WandbLogger,
    open_loggers,
)

CONFIG = {"actor": {"lr": 1e-4}, "trainer": {"logger": ["mlflow"]}}


def test_mlflow_resumes_the_same_run(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="needs the extra 'mlflow'")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    first = MLflowLogger(LoggedRun(tmp_path, "project", "name", CONFIG))
    first.log(1, {"train/reward": 0.5, "val/source/openai/gsm8k/reward": float("nan")})
    first.log(2, {f"metrics/{i}": float(i) for i in range(1200)})  # more than a call takes
    first.close()
    first.close()
    again = MLflowLogger(LoggedRun(tmp_path, "project", "name", CONFIG, first_step=3))
    again.log(3, {"train/reward": 0.75})
    again.close()
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("project").experiment_id])
    assert run.info.run_name == "name"
    assert run.info.status == "FINISHED"
    assert run.data.params == {"actor.lr": "0.0001", "trainer.logger": "['mlflow']"}
    points = client.get_metric_history(run.info.run_id, "train/reward")
    assert [(point.step, point.value) for point in points] == [(1, 0.5), (3, 0.75)]
    assert run.data.metrics["metrics/1199"] == 1199.0


def test_wandb_without_key_says_what_to_do(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="needs the extra 'wandb'")

    def no_key(**_):
        raise wandb.errors.UsageError("No API key configured.")

    monkeypatch.setattr(wandb, "init", no_key)
    with pytest.raises(MetricsError, match=r"wandb, which says: No API key configured.*WANDB_MODE=offline"):
        WandbLogger(LoggedRun(tmp_path, "project", "name"))


def test_wandb_offline_resumes_the_same_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="needs the extra 'wandb'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    for first_step in (0, 2):
        reporter = Reporter(LoggedRun(tmp_path / "run", "project", first_step=first_step), ["wandb"])
        reporter.iteration(first_step + 1, {"train/reward": 0.5}, [])
        reporter.close()
    number = (tmp_path / "run" / "wandb_run.txt").read_text().strip()
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert [file.stem for file in files] == [f"run-{number}"] * 2
    deadline = time.monotonic() + 100  # wandb's own process writes them
    while not all(b"train/reward" in file.read_bytes() for file in files):
        assert time.monotonic() < deadline, "a point is missing"
        time.sleep(0.05)
    fresh = WandbLogger(LoggedRun(tmp_path / "run", "project", "name"))
    fresh.close()
    assert (tmp_path / "run" / "wandb_run.txt").read_text().strip() != number, "a run that starts afresh is a new one"


class FakeTrackio:
    """Runs by name, as trackio keeps them."""

    def __init__(self):
        self.points, self.configs, self.finished = {}, {}, []

    def init(self, project, name, *, config, resume, **_):
        if project == "bad/name":
            raise ValueError("not a project's name")
        assert resume == "allow"
        self.points.setdefault(name, [])
        self.configs.setdefault(name, config)
        return types.SimpleNamespace(
            log=lambda metrics, step: self.points[name].append((step, metrics)),
            finish=lambda: self.finished.append(name),
        )


@pytest.fixture
def fake_trackio(monkeypatch):
    module = FakeTrackio()
    monkeypatch.setitem(sys.modules, "trackio", module)
    return module


def test_trackio_resumes_same_run(tmp_path, fake_trackio):
    for first_step in (0, 2):
        run = LoggedRun(tmp_path, "project", "name", CONFIG, first_step)
        with open_loggers(["trackio"], run) as loggers:
            loggers.log(first_step + 1, {"train/reward": 0.5})
    (name,) = fake_trackio.points
    assert fake_trackio.points[name] == [(1, {"train/reward": 0.5}), (3, {"train/reward": 0.5})]
    assert fake_trackio.configs[name] == {"actor.lr": 1e-4, "trainer.logger": ["mlflow"]}
    assert fake_trackio.finished == [name, name]
    TrackioLogger(LoggedRun(tmp_path, "project", "name"))
    assert len(fake_trackio.points) == 2, "a run that starts afresh is a new one"


def test_trackio_names_extra_and_its_own_errors(tmp_path, fake_trackio, monkeypatch):
    with pytest.raises(MetricsError, match=r"trackio, which says: not a project's name"):
        TrackioLogger(LoggedRun(tmp_path, "bad/name"))
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(ImportError, match=r"textenvs\[trackio\]"):
        TrackioLogger(LoggedRun(tmp_path, "project"))
