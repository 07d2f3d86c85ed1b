"""Checks before anything costly starts: by ``--dry-run``, and equally by a run."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ppo_runs import MODEL, QUICK, arguments, in_process, main, refused
from program_envs import Numbered

from textenvs import Task, TextEnv, list_environments
from textenvs.registry import constructor, make, parameters
from trainers.builders import SetupError
from trainers.builders.engines import plan_of
from trainers.builders.environments import check_environments, other_validation, played, validation_tasks
from trainers.builders.policy import demonstrations_of, tokenizer_texts
from trainers.builders.rehearsal import rehearse
from trainers.cluster.memory import Machine
from trainers.command_line import load_config, render, resolve
from trainers.config.model import planned_bfloat16
from trainers.config.yaml12 import Loader, dump
from trainers.models import tiny

ROOT = Path(__file__).resolve().parents[3]
DESK = ("env.id=textenv/service-desk", "engine.max_context=512", "actor.max_tokens_per_micro_batch=512")


def dry_run(*argv: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*argv, "--dry-run"])
    assert ended.value.code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("env.id=textenv/gsm8k-interakt", "Did you mean 'textenv/gsm8k-interact' "),
        ("env.id=program_envs:tests/byte", "no environment has the id 'tests/byte'.*Did you mean 'tests/bytes'"),
        ("env.id=nowhere:tests/bytes", "env.id=nowhere:tests/bytes.*nowhere"),
        ("env.kwargs.levl=easy", r"has no option 'levl'; did you mean level\?.*env.kwargs"),
        ("env.kwargs.feedback=rude", "feedback should be 'none', .*see env.kwargs"),
        ("env.val_kwargs.splt=test", r"has no option 'splt'; did you mean split\?.*env.val_kwargs"),
        ("env.val_kwargs.split=dev", "split should be 'train' or 'test'"),
        ("env.id=program_envs:tests/blocking", "use env.backend=thread"),
        (
            "env.id=program_envs:tests/unjudged relative_length.tokens=0.1",
            "relative_length.tokens: needs episodes that end as solved",
        ),
        ("env.mixture.few.id=program_envs:tests/blocking", r"env\.mixture\.few: .* use env\.backend=thread"),
        ("env.mixture.talk.id=textenv/clarifi", r"env\.mixture\.talk\.id=textenv/clarifi.*Did you mean"),
        (
            "env.mixture.few.id=program_envs:tests/bytes env.mixture.few.kwargs.hurdle=2",
            r"env\.mixture\.few\.id=.*hurdle must be 1.*env\.mixture\.few\.kwargs",
        ),
        ("env.train_side=user env.id=textenv/self-correct", "no option `user`"),
        ("env.train_side=user env.id=textenv/clarify env.user.tries=0", "env.user: .*tries"),
        ("env.train_side=user env.id=textenv/clarify env.assistant.modle=x", "env.assistant: .*model"),
    ],
)
def test_unusable_environment_is_refused(arguments, message):
    config = resolve([*arguments.split(), "warm_start.enable=false"])[0]
    with pytest.raises(SetupError, match=f"(?s){message}"):
        check_environments(config)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (DESK, "task 0 of env.id=textenv/service-desk has .*raise engine.max_context and "),
        (("env.id=program_envs:tests/wordy", "rollout.max_response_length=190"), "does not fit engine.max_context=192"),
    ],
)
def test_opening_without_room_is_refused(tmp_path, overrides, message):
    with pytest.raises(ValueError, match=message):
        rehearse(resolve(arguments(tmp_path, *overrides))[0])


def test_advised_limit_fits(tmp_path, capsys):
    context, micro = "engine.max_context", "actor.max_tokens_per_micro_batch"
    argv = arguments(tmp_path, *DESK)
    output = refused(capsys, [*argv, "--dry-run"], code=2)
    needed = output.split(" at least")[0].rpartition(" ")[2]
    dry_run(*argv, f"{context}={needed}", f"{micro}={needed}")
    assert f"tokens, of {context}={needed}" in capsys.readouterr().out


def saved(folder: Path, **sizes: int) -> list[str]:
    """Save a model; return the arguments of a run with it."""
    tokenizer = tiny.build_tokenizer(["a b"])
    tiny.save(folder / "model", tiny.build_model(len(tokenizer), hidden=16, layers=1, **sizes), tokenizer)
    argv = [argument for argument in arguments(folder / "run", *QUICK) if argument not in MODEL]
    return [*argv, f"model.path={folder}/model"]


def test_models_own_positions_are_limit(tmp_path):
    argv = saved(tmp_path, max_context=64)
    with pytest.raises(ValueError, match="engine.max_context=192 is more than the 64 positions.*at most"):
        rehearse(resolve(argv)[0])
    rehearse(resolve([*argv, "engine.max_context=64"])[0])


def test_unplayable_opening_error_has_reason(tmp_path, monkeypatch):
    def torn(self: TextEnv[Any], task: Task) -> Any:
        raise RuntimeError("the page is torn")

    monkeypatch.setattr(constructor("program_envs:tests/bytes"), "opening", torn)
    with pytest.raises(ValueError, match="(?s)the opening of training task 0.*the page is torn"):
        rehearse(resolve(saved(tmp_path))[0])


def test_dry_run_prints_changes_or_all(tmp_path, capsys):
    argv = ["actor.lr=0.5", "env.kwargs.level=easy", *MODEL]
    dry_run(*argv)
    output = capsys.readouterr().out
    assert yaml.load("".join(line for line in output.splitlines(True) if "# chosen" not in line), Loader) == {
        "env": {"kwargs": {"level": "easy"}},
        "model": {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "vocab_size": 300},
        "actor": {"lr": 0.5},
        "cluster": None,
    }
    dry_run(*argv, "--all")
    path = tmp_path / "all.yaml"
    path.write_text(capsys.readouterr().out)
    assert len(path.read_text().splitlines()) > 150
    assert resolve(["--config", str(path)])[0] == resolve(argv)[0]


def test_all_is_for_dry_run(capsys):
    with pytest.raises(SystemExit, match="2"):
        load_config(["--all"])


def test_plan_for_needs_planning_dry_run(capsys):
    for argv, message in (
        (["--plan-for", "4@80"], "goes with --dry-run"),
        (["--plan-for", "--dry-run"], "needs a value"),
    ):
        refused(capsys, argv, f"--plan-for: {message}", code=2)
    dry_run(*MODEL, "--plan-for=4@80")
    assert "1 x 4 GPUs" in capsys.readouterr().out


def test_dry_run_changes_read_back(tmp_path):
    config = resolve(["reward_models.length.kind=service", "reward_models.length.service.url=http://x", *MODEL])[0]
    path = tmp_path / "few.yaml"
    path.write_text(render(config, whole=False))
    assert resolve(["--config", str(path)])[0] == config


# ------------------------------------------------------------------ whose tasks validation plays


@pytest.mark.parametrize("env_id", list_environments())
def test_split_is_passed_where_supported(env_id):
    """Held-out tasks wherever there are some; every other environment is made with what the user gave alone."""
    if env_id == "textenv/textworld":
        pytest.importorskip("textworld")
    config = resolve([f"env.id={env_id}"])[0]
    (component,) = played(config)
    kwargs = component.validation
    assert kwargs == ({"split": "test"} if "split" in parameters(constructor(env_id))[0] else {})
    make(env_id, **kwargs).close()


def own(*overrides: str) -> Any:
    return resolve(["env.id=program_envs:tests/bytes", *overrides])[0]


@pytest.mark.parametrize(
    ("overrides", "tasks", "message"),
    [
        ((), range(256), "on tasks 0 to 255, which are trained on, too"),
        (("env.kwargs.tasks=18",), range(18), "which are trained on, too: program_envs:tests/bytes has no option"),
        (("env.kwargs.tasks=18", "data.train_size=14"), range(14, 18), "tasks 14 to 17, which data.train_size leaves"),
        (("env.kwargs.tasks=18", "data.train_size=18"), range(18), "which are trained on, too"),
        (("data.train_size=14", "data.val_size=3"), range(14, 17), "tasks 14 to 16"),
        (("env.kwargs.tasks=18", "data.train_size=4", "env.val_kwargs.tasks=5"), range(5), None),
        # An argument that says nothing of tasks leaves them those of training.
        (("env.kwargs.tasks=18", "data.train_size=14", "env.val_kwargs.constant=true"), range(14, 18), "14 to 17"),
        (("env.kwargs.tasks=18", "env.val_kwargs.constant=true"), range(18), "which are trained on, too"),
    ],
)
def test_validation_of_environment_without_splits(overrides, tasks, message):
    assert validation_tasks(own(*overrides), *played(own(*overrides))) == tasks
    lines = other_validation(own(*overrides))
    assert not lines if message is None else message in lines[0]


@pytest.mark.parametrize("size", ["env.kwargs.tasks=18", "env.kwargs.tasks=null"])
def test_warm_start_excludes_held_out_tasks(size):
    config = own(size, "data.train_size=14", "warm_start.demonstrations=200", "warm_start.mistake_rate=0")
    (component,) = played(config)
    prompts = {
        demonstration.messages[0]["content"]
        for _, demonstration in demonstrations_of([component], config.warm_start, seed=0)
    }
    assert prompts == {f"Say {task}." for task in range(14)}
    assert validation_tasks(config, component).start == 14
    texts = "\n".join(tokenizer_texts([component], config.warm_start, seed=0))
    assert "Say 13." in texts
    assert "Say 14." not in texts


def test_explicit_split_or_tasks_stay():
    for argument in ("split=train", "tasks=generated:easy"):
        config = resolve([f"env.val_kwargs.{argument}"])[0]
        name, value = argument.split("=")
        assert played(config)[0].validation == {name: value}
    assert played(resolve([])[0])[0].training == {}


# ------------------------------------------------------------------ environments of a user's own


class Parrot(TextEnv[Any]):
    """No expert, no careless replies, no splits: the least that an author writes."""

    def __init__(self) -> None:
        super().__init__(Numbered(4), max_assistant_turns=1)

    def respond(self, reply: Any) -> Any:
        from textenvs import Turn

        return Turn(terms={"length": min(len(reply["content"]), 20) / 20}, terminated=True, stop="done")


def test_environment_without_scripts_trains(tmp_path, capsys, monkeypatch):
    import gymnasium

    monkeypatch.setitem(gymnasium.registry, "my/parrot", gymnasium.envs.registration.EnvSpec("my/parrot", Parrot))
    argv = [
        argument for argument in arguments(tmp_path) if not argument.startswith(("warm_start.", "engine.max_slots"))
    ]
    assert main([*argv, "env.id=my/parrot", "trainer.total_iterations=1", "algorithm.adv_estimator=rloo"]) == 0
    output = capsys.readouterr().out
    assert "no warm start: my/parrot has no scripted expert" in output
    assert "validation is on tasks 0 to 2, which are trained on, too" in output


def test_warm_start_without_scripted_mistakes(tmp_path):
    """An expert alone is enough: the defaults, which play mistakes, leave them out and say so."""
    argv = [argument for argument in QUICK if not argument.startswith("warm_start.")]
    less = [
        "warm_start.demonstrations=8",
        "warm_start.steps=1",
        "warm_start.mistake_rate=0.3",
        "trainer.total_iterations=1",
    ]
    seen: list[Any] = []

    def look(run: Any) -> None:
        seen.append(run.config.warm_start)

    in_process(tmp_path, *argv, *less, "warm_start.enable=true", "warm_start.careless_steps=30", look=look)
    assert (seen[0].mistake_rate, seen[0].careless_steps) == (0.0, 0)


def test_page_on_gpus_says_what_plan_says(tmp_path):
    """Some cells of docs/gpu-sizes.md, which `make docs-pages` writes anew."""
    spec = importlib.util.spec_from_file_location("gpu_sizes", ROOT / "scripts" / "gpu_sizes.py")
    sizes = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sizes)
    page = (ROOT / "docs" / "gpu-sizes.md").read_text(encoding="utf-8")
    for model, counts in (("0.5B", (1, 8)), ("7B", (4,))):
        rows = re.findall(rf"^\| {re.escape(model)} \| (.*) \|$", page, re.MULTILINE)
        folder = sizes.write_config(tmp_path / model, *sizes.MODELS[model])
        for setting, row in zip(sizes.SETTINGS, rows, strict=True):
            printed = dict(zip(sizes.GPUS, row.split(" | "), strict=True))
            assert {gpus: printed[gpus] for gpus in counts} == {
                gpus: sizes.cell(folder, gpus, setting) for gpus in counts
            }


def test_example_of_gpu_sizes_fits(tmp_path):
    spec = importlib.util.spec_from_file_location("gpu_sizes", ROOT / "scripts" / "gpu_sizes.py")
    sizes = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sizes)
    page = (ROOT / "docs" / "gpu-sizes.md").read_text(encoding="utf-8")
    command = re.search(r"python -m trainers\.ppo ((?:.*\\\n)*.*)", page)[1].replace("\\\n", " ").split()
    machine = command[command.index("--plan-for") + 1]
    keys = [word for word in command if "=" in word]
    model = next(key for key in keys if key.startswith("model.path=")).rpartition("-")[2]
    folder = sizes.write_config(tmp_path / model, *sizes.MODELS[model])
    keys = [f"model.path={folder}" if key.startswith("model.path=") else key for key in keys]
    plan_of(resolve(keys, chosen_for=planned_bfloat16)[0], Machine.described(machine))  # or a PlanError


def test_planned_machine_has_its_own_types(tmp_path, capsys, monkeypatch):
    """Choices for a model without weights are shown, and this machine is not asked."""

    def unexpected(device: str) -> bool:
        raise AssertionError("this machine was asked")

    monkeypatch.setattr("trainers.command_line.load.multiplies_bfloat16", unexpected)
    shape = {"vocab_size": 150_000, "hidden_size": 2048, "num_hidden_layers": 36, "max_position_embeddings": 40_960}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    options = [f"model.path={tmp_path}", "actor.lr=3e-6", "actor.max_tokens_per_micro_batch=2048"]
    with pytest.raises(SystemExit) as ended:
        load_config([*options, "--dry-run", "--plan-for", "4@80"], plan=lambda config, machine: "")
    assert ended.value.code == 0
    output = capsys.readouterr().out
    for line in (
        "  dtype: bfloat16  # chosen",
        "  max_context: 2048  # chosen",
        "  max_response_length: 256  # chosen",
        f"  lr: {dump(3e-6)}  # command line (default {dump(1e-6)})",
    ):
        assert line in output
    assert "default 512" not in output
