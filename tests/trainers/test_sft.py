"""Supervised training: it learns what is to be imitated and nothing else, and ``python -m trainers.sft`` as a whole."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ppo_runs import MODEL, metrics_of
from safetensors import SafetensorError
from transformers import PreTrainedModel

from textenvs.data import sources
from textenvs.messages import assistant, user
from trainers import sft
from trainers.config.model import ModelSection, SupervisedSection
from trainers.config.running import RunSection
from trainers.config.schema import SFTSection
from trainers.learner import Learner
from trainers.models.policy import Policy, load
from trainers.rollout.demonstrations import Demonstration, DemonstrationError, Example, encode
from trainers.rollout.renderer import Renderer

SMALL = [
    *(*MODEL, "sft.demonstrations=32", "sft.batch_size=8", "sft.max_context=256"),
    *("sft.mistake_rate=0", "trainer.threads=1"),
]


def policy(seed: int = 0, dtype: str = "float32") -> Policy:
    section = ModelSection(hidden=32, layers=1, heads=2, kv_heads=1, vocab_size=300, dtype=dtype)  # type: ignore[arg-type]
    return load(section, lambda: ["yes no left right"] * 4, max_context=128, seed=seed)


def examples(who: Policy, *talks: tuple[tuple[str, str, float], ...]) -> list[Example]:
    renderer = Renderer(who.tokenizer)
    return [
        encode(
            Demonstration(
                tuple(message for question, reply, _ in talk for message in (user(question), assistant(reply))),
                tuple(weight for _, _, weight in talk),
            ),
            renderer,
            who.tokenizer,
        )
        for talk in talks
    ]


def section(**values: Any) -> SupervisedSection:
    return SupervisedSection(**{"steps": 60, "batch_size": 4, "lr": 0.01, "lr_warmup_steps": 5, **values})


def fit(
    who: Policy, data: list[Example], seed: int = 0, model: ModelSection | None = None, **values: Any
) -> list[dict[str, float]]:
    steps: list[dict[str, float]] = []

    def on_step(step: int, metrics: Any) -> None:
        steps.append({"at": step, **metrics})

    sft.fit(who, data, section(**values), model or ModelSection(), RunSection(), seed=seed, on_step=on_step)
    return steps


def likelihood(who: Policy, example: Example) -> list[float]:
    """The mean log-probability of each reply's tokens."""
    (logprobs,) = Learner(who.model).logprobs([example.trajectory])
    turns = example.trajectory.turn_id[example.trajectory.action_mask]
    return [float(logprobs[turns == turn].mean()) for turn in range(example.trajectory.num_turns)]


RIGHT, WRONG = ("Which way?", "left", 1.0), ("Are you sure?", "right", 0.0)


def test_sft_learns_the_demonstrations():
    who = policy()
    data = examples(who, (RIGHT,), (("Yes or no?", "no", 1.0),))
    steps = fit(who, data)
    assert [step["at"] for step in steps] == list(range(1, 61))
    assert steps[0]["loss"] > 4 > 0.1 > steps[-1]["loss"]
    assert all(likelihood(who, example)[0] > math.log(0.9) for example in data)
    assert steps[4]["lr"] == pytest.approx(0.01)
    assert steps[-1]["lr"] == pytest.approx(0.001, rel=0.1)


def test_adapters_learn_and_are_merged_into_policy():
    who = policy()
    before = {name: value.clone() for name, value in who.model.state_dict().items()}
    data = examples(who, (RIGHT,))
    steps = fit(who, data, model=ModelSection(lora_rank=4), steps=20, batch_size=1)
    assert steps[-1]["loss"] < steps[0]["loss"]
    after = who.model.state_dict()
    assert after.keys() == before.keys()
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed == {name for name in after if name.endswith("_proj.weight")}


@pytest.mark.parametrize(("weight", "learned"), [(0.0, False), (1.0, True)])
def test_mistakes_are_learned_only_with_weight(weight, learned):
    who = policy()
    mistake_first = examples(who, (("Which way?", "right", weight), ("No. Again.", "left", 1.0)))
    fit(who, mistake_first)
    mistake, right = likelihood(who, mistake_first[0])
    assert right > math.log(0.9)
    assert mistake > math.log(0.9) if learned else mistake < math.log(0.1)


def test_loss_is_mean_over_what_is_imitated():
    """By hand: ``-sum(w log p) / sum(w)`` over the batch."""
    who = policy()
    data = examples(who, (RIGHT, ("Sure?", "yes", 0.25)), (("Yes or no?", "no no no", 1.0), WRONG))
    logprobs = Learner(who.model).logprobs([example.trajectory for example in data])
    weights = [example.weights for example in data]
    expected = -sum(float((w * p).sum()) for w, p in zip(weights, logprobs, strict=True)) / sum(
        w.sum() for w in weights
    )
    steps = fit(who, data, steps=1, batch_size=2)
    assert steps[0]["loss"] == pytest.approx(expected, rel=1e-4)


def test_seed_decides_order():
    def weights_after(seed: int) -> torch.Tensor:
        who = policy()
        talks = [((f"Say {number}.", str(number), 1.0),) for number in range(9)]
        fit(who, examples(who, *talks), seed=seed, steps=5)
        return torch.cat([parameter.flatten() for parameter in who.model.parameters()])

    assert torch.equal(weights_after(1), weights_after(1))
    assert not torch.equal(weights_after(1), weights_after(2))


def test_every_example_once_epoch(monkeypatch):
    """Also where the batch does not divide the number of examples, or is larger than it."""
    who = policy()
    data = examples(who, *[((f"Say {number}.", str(number), 1.0),) for number in range(5)])
    names = {id(example.trajectory): number for number, example in enumerate(data)}
    for batch_size in (2, 7):
        seen: list[int] = []

        def note(self: Learner, trajectories: list[Any], weights: Any, seen: list[int] = seen) -> dict[str, float]:
            seen += [names[id(trajectory)] for trajectory in trajectories]
            assert len(trajectories) == batch_size  # noqa: B023
            return {"loss": 0.0}

        monkeypatch.setattr(Learner, "update_sft", note)
        fit(who, data, steps=10, batch_size=batch_size)
        assert len(seen) == 10 * batch_size
        epochs = [seen[i : i + 5] for i in range(0, len(seen), 5)]
        assert all(sorted(epoch) == [0, 1, 2, 3, 4] for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) > 1


def test_no_demonstrations_is_an_error():
    who = policy()
    for data in ([], examples(who, (WRONG,))):
        with pytest.raises(DemonstrationError, match="no demonstration with a reply to imitate"):
            fit(who, data)


def test_bfloat16_training_keeps_float32_weights():
    """The weights that are trained are float32, and nothing rounds them on their way into the policy."""
    who = policy(dtype="bfloat16")
    data = examples(who, (RIGHT,))
    steps = fit(who, data, model=ModelSection(dtype="bfloat16"), steps=20)
    assert steps[-1]["loss"] < 3
    weight = who.model.get_input_embeddings().weight
    assert weight.dtype == torch.float32
    assert not torch.equal(weight, weight.bfloat16().float())


# ------------------------------------------------------------------ the program


def run(folder: Path, *overrides: str) -> int:
    files = any(argument.startswith("sft.files") for argument in overrides)
    small = [argument for argument in SMALL if not (files and argument.startswith(("sft.demo", "sft.mistake")))]
    return sft.main([*small, f"trainer.default_local_dir={folder}", *overrides])


def test_whole_run_writes_model_that_loads(tmp_path):
    assert run(tmp_path, "sft.steps=12", "sft.lr=0.01") == 0
    rows = metrics_of(tmp_path)
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert rows[-1]["sft/loss"] < rows[0]["sft/loss"] - 0.5
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert list((tmp_path / "tensorboard").iterdir())
    saved = load(ModelSection(path=str(tmp_path / "model")), list, max_context=64, seed=0)
    # Training continues from there: the first loss is near the last.
    overrides = [f"model.path={tmp_path}/model", "sft.lr_warmup_steps=0", "sft.steps=2", "trainer.logger=jsonl"]
    small = [argument for argument in SMALL if not argument.startswith("model.")]
    assert sft.main([*small, f"trainer.default_local_dir={tmp_path}/more", *overrides]) == 0
    assert metrics_of(tmp_path / "more")[0]["sft/loss"] == pytest.approx(rows[-1]["sft/loss"], abs=0.4)
    assert not (tmp_path / "more/tensorboard").exists()
    assert len(saved.tokenizer) <= 300


def test_the_same_again(tmp_path):
    for name in "ab":
        assert run(tmp_path / name, "sft.steps=4", "sft.mistake_rate=0.3", "trainer.logger=jsonl") == 0
    losses = [[row["sft/loss"] for row in metrics_of(tmp_path / name)] for name in "ab"]
    assert losses[0] == losses[1]
    models = [(tmp_path / name / "model/model.safetensors").read_bytes() for name in "ab"]
    assert models[0] == models[1]


def test_files_replace_expert_without_task_warnings(tmp_path, caplog):
    caplog.set_level("INFO", "textenvs")
    sources._announce.cache_clear()
    path = tmp_path / "talks.jsonl"
    talks = [[user(f"Say {number}."), assistant(f"It is {number}.")] for number in range(10)]
    path.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    assert run(tmp_path / "run", f"sft.files={path}", "sft.steps=8", "sft.lr=0.01") == 0
    rows = metrics_of(tmp_path / "run")
    assert rows[-1]["sft/loss"] < rows[0]["sft/loss"]
    assert "tasks: " not in caplog.text


def test_dry_run_shows_first_conversation(tmp_path, capsys):
    with pytest.raises(SystemExit, match="0"):
        run(tmp_path / "run", "--dry-run")
    assert "# the first conversation to imitate has " in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("at", "steps"), [((2,), 2), ((2, 2), 1)])
def test_first_interrupt_saves_model_second_does_not(tmp_path, capsys, monkeypatch, at, steps):
    update, made = Learner.update_sft, 0

    def interrupted(*args: Any, **kwargs: Any) -> dict[str, float]:
        nonlocal made
        made += 1
        for _ in range(at.count(made)):
            os.kill(os.getpid(), signal.SIGTERM)
        return update(*args, **kwargs)

    monkeypatch.setattr(Learner, "update_sft", interrupted)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert run(tmp_path) == 130
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert [row["step"] for row in metrics_of(tmp_path)] == list(range(1, steps + 1))
    assert (tmp_path / "model" / "model.safetensors").exists() == (len(at) == 1)
    assert ("no model was written" in capsys.readouterr().err) == (len(at) == 2)


def test_model_too_large_for_disk_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sft.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1))
    monkeypatch.setattr(sft, "fit", lambda *args, **kwargs: pytest.fail("it trained"))
    assert run(tmp_path) == 1
    assert "the model needs" in capsys.readouterr().err


def test_full_disk_leaves_old_model_whole(tmp_path, capsys, monkeypatch):
    def full(self: Any, folder: Path) -> None:
        (Path(folder) / "model.safetensors").write_text("half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(sft, "fit", lambda *args, **kwargs: None)
    assert run(tmp_path) == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    monkeypatch.setattr(PreTrainedModel, "save_pretrained", full)
    assert run(tmp_path) == 1
    assert "[Errno 28]" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()} == before


def test_sections_of_both_programs_agree():
    """The warm start of PPO is this program's supervised section: the same keys, with the same defaults."""
    own = {name: field.default for name, field in SFTSection.model_fields.items() if name != "max_context"}
    assert own == {name: field.default for name, field in SupervisedSection.model_fields.items()}
