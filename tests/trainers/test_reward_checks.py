"""Problems of a reward model are reported before a training step: by the configuration, or when it is tried."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
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
from trainers.builders.reward_model import check_rewards
from trainers.command_line import resolve
from trainers.models import tiny
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


def copied(folder: str, tmp_path: Path, change: Callable[[Path], object]) -> str:
    target = tmp_path / "copy"
    shutil.copytree(folder, target)
    change(target)
    return str(target)


def change_config(path: Path, **changes: Any) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | changes))


def headless(path: Path) -> None:
    """A language model without a head for scores, and the tokenizer that was there."""
    (path / "model.safetensors").unlink()
    tiny.build_model(320, hidden=32, layers=1, heads=2).save_pretrained(path)


MISTAKES = [
    (["label=1"], "classifier.label: ", "has no label 1; it has LABEL_0"),
    (["label=nice"], "classifier.label: ", "has no label 'nice'"),
    (["max_length=100000"], "classifier.max_length: ", "reads 512 tokens at most"),
    (["transform=softmax"], "classifier.transform: ", "use transform=sigmoid"),
    (["head=value", "transform=softmax"], "classifier.", "use transform=sigmoid"),
    (["template=nowhere.jinja"], "classifier.template: ", "no file nowhere.jinja"),
    (["template=TEMPLATE:{% if"], "classifier.template: ", "the chat template rejects the conversation"),
    (["template=TEMPLATE:{{ raise_exception('no') }}"], "classifier.template: ", "rejects the conversation"),
    (["template=TEMPLATE:"], "classifier.template: ", "no chat template"),
    (["tokenizer=nowhere"], "classifier.tokenizer: ", "the tokenizer nowhere cannot be loaded"),
    (["path=nowhere"], "classifier.path: ", "not a folder with a config.json"),
]


@pytest.mark.parametrize("dry", [True, False])
@pytest.mark.parametrize(("options", "key", "message"), MISTAKES)
def test_classifier_key_mistakes_need_no_weights(
    tmp_path, capsys, folder, trained, options, key, message, dry, monkeypatch
):
    monkeypatch.setattr("trainers.rewards.backends.classifier._load", lambda options: pytest.fail("weights were read"))
    given_ = []
    for option in options:
        name, _, text = option.partition("=TEMPLATE:")
        if text or option.endswith("TEMPLATE:"):
            (tmp_path / "t.jinja").write_text(text)
            option = f"{name}={tmp_path}/t.jinja"
        given_.append(f"reward_model.classifier.{option}")
    argv = arguments(tmp_path, "reward_model.enable=true", f"reward_model.classifier.path={folder}", *given_)
    refused(capsys, [*argv, *["--dry-run"] * dry], f"reward_model.{key}", message, "Nothing was started", code=2)
    assert not trained
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: (path / "config.json").write_text("{"), "its config.json cannot be used"),
        (lambda path: (path / "config.json").write_text('{"model_type": "nosuch"}'), "its config.json cannot be used"),
        (lambda path: (path / "config.json").write_text('{"model_type": "vit"}'), "no AutoModelForSequence"),
        (lambda path: change_config(path, hidden_size=-64), "its config.json cannot be used"),
        (lambda path: (path / "tokenizer.json").write_text("{}"), "the tokenizer"),
        (lambda path: (path / "model.safetensors").write_bytes(b"\x00" * 20), "its weights cannot be read"),
        (headless, "its files lack score.weight"),
    ],
)
def test_wrong_model_folder_needs_no_weights(tmp_path, capsys, folder, trained, change, message):
    model = copied(folder, tmp_path, change)
    argv = arguments(tmp_path, "reward_model.enable=true", f"reward_model.classifier.path={model}")
    refused(capsys, [*argv, "--dry-run"], "reward_model.classifier.path: ", message, "[command line]", code=2)
    assert not trained


def test_labels_and_tokenizer_are_checked(tmp_path, capsys):
    two = save_model(tmp_path / "two", labels=2)
    argv = arguments(tmp_path, "reward_model.enable=true", f"reward_model.classifier.path={two}", "--dry-run")
    refused(capsys, argv, "reward_model.classifier.label: ", "2 labels (LABEL_0, LABEL_1); choose one", code=2)
    change_config(tmp_path / "two", vocab_size=40)
    argv.insert(-1, "reward_model.classifier.label=1")
    refused(capsys, argv, "reward_model.classifier.path: ", "the model knows 40: they do not belong together", code=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["kind=service", "service.url=localhost:80"], "service.url: url must begin with http"),
        (["kind=service", "service.url=http://h"], "service.tokenizer: input=tokens renders conversations here"),
        (
            ["kind=service", "service.url=http://h", "service.tokenizer=nowhere"],
            "service.tokenizer: the tokenizer nowhere",
        ),
        (
            ["kind=service", "service.url=http://h", "service.input=messages", "service.api_key_env=NO_SUCH_KEY"],
            "service.api_key_env: the environment variable NO_SUCH_KEY has no key",
        ),
        (["kind=judge", "judge.model=m", "judge.base_url=http://h/v1", "judge.rubric=kind"], "no file kind"),
        (
            ["kind=judge", "judge.model=m", "judge.base_url=http://h/v1", "judge.votes=3", "judge.chat.temperature=0"],
            "3 votes",
        ),
        (["kind=judge", "judge.model=m", "judge.base_url=http://h/v1", "judge.chat.tempo=1"], "judge: "),
        (["kind=judge", "judge.model=m"], "judge: the environment variable OPENAI_API_KEY has no key"),
    ],
)
def test_service_and_judge_mistakes_need_no_request(tmp_path, capsys, options, message, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    argv = [f"reward_model.{option}" for option in ("enable=true", *options)]
    refused(capsys, arguments(tmp_path, *argv, "--dry-run"), "reward_model.", message, code=2)
    with pytest.raises(SetupError, match="reward_model"):
        check_rewards(resolve(arguments(tmp_path, *argv))[0])


def test_missing_lookahead_judge_is_refused(tmp_path, capsys):
    argv = arguments(tmp_path, "multiturn_reward.enable=true", "multiturn_reward.judge=no_such_module:f", "--dry-run")
    refused(capsys, [*argv, "algorithm.adv_estimator=turn_gae", "algorithm.gamma=0"], "no module 'no_such_mod", code=2)


def test_unknown_score_weight_is_refused_before_warm_start(tmp_path, capsys, trained):
    ahead = ["multiturn_reward.enable=true", "multiturn_reward.weights={accurcy: 2}", "env.id=textenv/clarify"]
    argv = arguments(tmp_path, *ahead, "algorithm.adv_estimator=turn_gae", "algorithm.gamma=0")
    refused(capsys, argv, "multiturn_reward.weights: ", "['accurcy']", "what is scored is ['accuracy']")
    assert not trained


# ---------------------------------------------------------------- by asking, before the warm start


def test_unloadable_weights_are_refused_before_warm_start(tmp_path, capsys, folder, trained):
    # Its names and its headers are good.
    model = copied(folder, tmp_path, lambda path: change_config(path, intermediate_size=64))
    argv = arguments(tmp_path, "reward_model.enable=true", f"reward_model.classifier.path={model}")
    refused(capsys, argv, f"reward_model (classifier): the reward model {model} cannot be loaded")
    assert not trained


def served(url: str, *overrides: str) -> list[str]:
    service = ["enable=true", "kind=service", f"service.url={url}", "service.input=messages", *overrides]
    return [f"reward_model.{option}" for option in service]


def test_missing_service_is_refused_before_warm_start(tmp_path, capsys, trained):
    argv = arguments(tmp_path, *served("http://127.0.0.1:9"))
    refused(capsys, argv, "reward_model (service): the reward model cannot be reached", "127.0.0.1:9")
    assert not trained


@pytest.mark.parametrize(
    ("server", "fault", "overrides", "message"),
    [
        (FakePooling(labels=2), None, [], "the model has 2 labels; say which is the score"),
        (FakePooling(labels=2), None, ["service.label=5"], "none of number 5"),
        (FakePooling(), None, ["service.model=other"], "does not serve 'other'; it serves rm"),
        (FakePooling(key="secret"), None, [], "refuses the key"),
        (FakePooling(), lambda: web.json_response({"error": "no such page"}, status=404), [], "/classify answered 404"),
        (FakePooling(), lambda: web.json_response({"error": "busy"}, status=503), [], "/classify answered 503"),
        (FakePooling(), lambda: web.json_response({"data": [{"index": 0, "probs": [float("nan")]}]}), [], "with nan"),
        (FakePooling(), lambda: web.Response(text="<html>"), [], "cannot be read"),
    ],
)
def test_unscoring_service_is_refused_before_warm_start(tmp_path, capsys, trained, server, fault, overrides, message):
    server.fault = (lambda path, body: None) if fault is None else (lambda path, body: fault())
    with in_a_thread(server) as url:
        refused(capsys, arguments(tmp_path, *served(url, *overrides)), "error: reward_model (service): ", message)
    assert not trained


def judged(url: str, *overrides: str) -> list[str]:
    judge = ["enable=true", "kind=judge", "judge.model=m", f"judge.base_url={url}", *overrides]
    patient = ["judge.chat.max_retries=0", "judge.chat.timeout_s=60"]
    return [f"reward_model.{option}" for option in (*judge, *patient)]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("I would give this an 8 of 10.", "gave no verdict"),
        (status(404, "no such model"), "check the model's name"),
        (status(401, "who are you"), "check the key"),
        (status(500), "the judge could not be asked"),
    ],
)
def test_verdictless_judge_is_refused_before_warm_start(tmp_path, capsys, trained, answer, message):
    with FakeService(answer) as service:
        argv = arguments(tmp_path, *judged(service.url))
        refused(capsys, argv, "error: reward_model (judge): ", message, "reward_model.judge.base_url")
    assert not trained


def test_unreachable_judge_is_refused_before_warm_start(tmp_path, capsys, trained):
    argv = arguments(tmp_path, *judged("http://127.0.0.1:9/v1"))
    refused(capsys, argv, "reward_model (judge): the judge could not be asked", "127.0.0.1:9", "look whether it runs")
    assert not trained


def test_reward_model_is_ready_before_warm_start(tmp_path, folder, trained):
    argv = arguments(tmp_path, "reward_model.enable=true", f"reward_model.classifier.path={folder}")
    with pytest.raises(AssertionError, match="the warm start began"):
        main(argv)
    assert trained == ["warm start"]


def test_served_models_are_tried_before_ray_classifier(tmp_path, capsys, folder, trained):
    argv = arguments(tmp_path, "reward_model.enable=true", f"reward_model.classifier.path={folder}")
    argv += [
        "cluster.backend=ray",
        *(argument.replace("reward_model.", "reward_models.other.") for argument in served("http://127.0.0.1:9")),
    ]
    refused(capsys, argv, "reward_models.other (service): the reward model cannot be reached")
    assert not trained
