"""Problems of a reward model are reported before a training step: by the configuration, or when it is tried."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fake_pooling import FakePooling, in_a_thread
from fake_service import FakeService, status
from ppo_runs import MODEL, QUICK, SMALL, refused
from reward_models import save_model

from trainers import run, sft
from trainers.builders import SetupError
from trainers.builders.reward_model import check_rewards, try_served
from trainers.command_line import resolve
from trainers.ppo import main

WARM = ["warm_start.enable=true", "warm_start.demonstrations=8", "warm_start.steps=1", "warm_start.batch_size=4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("judge"))


@pytest.fixture(autouse=True)
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record training steps: a refused run must have none."""
    steps: list[str] = []

    def fit(*args: Any, **kwargs: Any) -> None:
        steps.append("warm start")
        raise AssertionError("the warm start began")

    monkeypatch.setattr(sft, "fit", fit)
    monkeypatch.setattr(run, "learner_of", lambda *args: steps.append("learner"))
    return steps


def arguments(tmp_path: Path, *overrides: str) -> list[str]:
    return [*MODEL, *SMALL, *QUICK, *WARM, f"trainer.default_local_dir={tmp_path}/run", *overrides]


# ---------------------------------------------------------------- by the configuration, without loading anything


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("classifier.path=FOLDER classifier.label=1", "classifier.label: FOLDER has no label 1; it has LABEL_0"),
        ("kind=service service.url=localhost:80", "service.url: url must begin with http"),
        ("kind=judge judge.model=m judge.rubric=kind", "judge: rubric must be one of"),
    ],
)
def test_wrong_option_starts_nothing(tmp_path, capsys, folder, trained, monkeypatch, options, message):
    """The checks themselves are tested with each kind of reward model."""
    monkeypatch.setattr("trainers.rewards.backends.classifier._load", lambda options: pytest.fail("weights were read"))
    words = [f"reward_model.{word}" for word in ("enable=true", *options.replace("FOLDER", folder).split())]
    message = f"reward_model.{message.replace('FOLDER', folder)}"
    for argv in (arguments(tmp_path, *words), arguments(tmp_path, *words, "--dry-run")):
        refused(capsys, argv, message, "Nothing was started", code=2)
    with pytest.raises(SetupError, match="reward_model"):
        check_rewards(resolve(arguments(tmp_path, *words))[0])
    assert not trained
    assert not (tmp_path / "run").exists()


def test_unknown_score_weight_is_refused_before_warm_start(tmp_path, capsys, trained):
    ahead = ["multiturn_reward.enable=true", "multiturn_reward.weights={accurcy: 2}", "env.id=textenv/clarify"]
    argv = arguments(tmp_path, *ahead, "algorithm.adv_estimator=turn_gae", "algorithm.gamma=0")
    refused(capsys, argv, "multiturn_reward.weights: ", "['accurcy']", "what is scored is ['accuracy']")
    assert not trained


# ---------------------------------------------------------------- by asking, before the warm start


def served(url: str, *overrides: str) -> list[str]:
    service = ["enable=true", "kind=service", f"service.url={url}", "service.input=messages", *overrides]
    return [f"reward_model.{option}" for option in service]


def judged(url: str) -> list[str]:
    judge = ["enable=true", "kind=judge", "judge.model=m", f"judge.base_url={url}"]
    patient = ["judge.chat.max_retries=0", "judge.chat.timeout_s=60"]
    return [f"reward_model.{option}" for option in (*judge, *patient)]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (["reward_model.enable=true", "reward_model.classifier.path=UNLOADABLE"], "(classifier): the reward model "),
        (served("http://127.0.0.1:9"), "(service): the reward model cannot be reached"),
        (judged("http://127.0.0.1:9/v1"), "(judge): the judge could not be asked"),
    ],
)
def test_unavailable_model_stops_run_before_warm_start(tmp_path, capsys, folder, trained, model, message):
    copy = shutil.copytree(folder, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))  # names and headers are good
    argv = arguments(tmp_path, *(word.replace("UNLOADABLE", str(copy)) for word in model))
    refused(capsys, argv, f"error: reward_model {message}")
    assert not trained


@pytest.mark.parametrize(
    ("server", "fault", "overrides", "message"),
    [
        (FakePooling(labels=2), None, [], "the model has 2 labels; say which is the score"),
        (FakePooling(), (404, {"error": "no such page"}), [], "/classify answered 404"),
        (FakePooling(), (503, {"error": "busy"}), [], "/classify answered 503"),
        (FakePooling(), (200, {"data": [{"index": 0, "probs": [float("nan")]}]}), [], "with nan"),
    ],
)
def test_service_without_score_is_refused(server, fault, overrides, message):
    server.fault = lambda path, body: fault and web.json_response(fault[1], status=fault[0])
    with in_a_thread(server) as url, pytest.raises(SetupError, match=message) as caught:
        asyncio.run(try_served(resolve(served(url, *overrides))[0]))
    assert str(caught.value).startswith("reward_models.reward_model (service): ")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("I would give this an 8 of 10.", "gave no verdict"),
        (status(404, "no such model"), "check the model's name"),
        (status(401, "who are you"), "check the key"),
        (status(500), "the judge could not be asked"),
    ],
)
def test_judge_without_verdict_is_refused(answer, message):
    with FakeService(answer) as service, pytest.raises(SetupError, match=message) as caught:
        asyncio.run(try_served(resolve(judged(service.url))[0]))
    assert "reward_models.reward_model.judge.base_url" in str(caught.value)


def test_reward_model_is_ready_before_warm_start(tmp_path, folder, trained):
    argv = arguments(tmp_path, "reward_model.enable=true", f"reward_model.classifier.path={folder}")
    with pytest.raises(AssertionError, match="the warm start began"):
        main(argv)
    assert trained == ["warm start"]


def test_served_models_are_tried_before_ray_classifier(tmp_path, capsys, folder, trained):
    argv = arguments(tmp_path, "reward_model.enable=true", f"reward_model.classifier.path={folder}")
    other = [argument.replace("reward_model.", "reward_models.other.") for argument in served("http://127.0.0.1:9")]
    refused(
        capsys,
        [*argv, "cluster.backend=ray", *other],
        "reward_models.other (service): the reward model cannot be reached",
    )
    assert not trained
