"""Checkpoints: exact resume, and whole or not there whenever the process dies."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from learner_helpers import sections, small_model, some_trajectories
from transformers import AutoModelForCausalLM, AutoTokenizer

from trainers.learner import Learner, checkpoint
from trainers.learner.checkpoint import recover, replace_folder
from trainers.learner.fsdp import Ranks
from trainers.models.tiny import build_model, build_tokenizer

TRAJECTORIES = some_trajectories()
ALONE = Ranks(None)


class Killed(BaseException):
    """The process is gone; nothing gets to clean up."""


def make_learner(seed=0):
    model = small_model(seed=seed)
    return Learner(
        model, **sections(critic=True, reference=True, lr=1e-2, lr_warmup_steps=4, lr_schedule="cosine", total_steps=9)
    )


def train(learner, steps):
    def value_loss(values, batch):
        return ((values - batch["returns"]) ** 2).sum() * 0.01, {}

    counts = [int(t.action_mask.sum()) for t in TRAJECTORIES]
    metrics = []
    for _ in range(steps):
        metrics.append(learner.update_sft(TRAJECTORIES))
        metrics.append(learner.update_critic(TRAJECTORIES, {"returns": [np.ones(n) for n in counts]}, value_loss))
    return [{name: m[name] for name in ("loss", "grad_norm", "lr")} for m in metrics]


def everything(learner):
    learned, frozen = learner._state._tensors()
    return {name: value.clone() for name, value in (learned | frozen).items()}


def test_resuming_is_exact(tmp_path):
    learner = make_learner()
    train(learner, 3)
    learner.save(tmp_path / "step-3", extra={"frontier": [1, 2], "big": 2**80})
    random_numbers = torch.rand(3)
    expected_metrics = train(learner, 3)

    resumed = make_learner(seed=1)  # other weights, another reference: all of it must come from the checkpoint
    train(resumed, 1)
    assert resumed.load(tmp_path / "step-3") == {"frontier": [1, 2], "big": 2**80}
    assert torch.equal(torch.rand(3), random_numbers)
    assert train(resumed, 3) == expected_metrics
    resumed_state, state = everything(resumed), everything(learner)
    assert resumed_state.keys() == state.keys()
    for name in resumed_state.keys() - {"rng"}:
        assert torch.equal(resumed_state[name], state[name]), name
    for a, b in zip(
        resumed.logprobs(TRAJECTORIES, model="reference"),
        make_learner().logprobs(TRAJECTORIES, model="reference"),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


def test_saving_before_first_update_changes_nothing(tmp_path):
    saved, other = make_learner(), make_learner()
    saved.save(tmp_path / "start")
    resumed = make_learner(seed=1)
    resumed.load(tmp_path / "start")
    expected = train(other, 2)
    assert train(saved, 2) == expected
    assert train(resumed, 2) == expected


def test_checkpoint_of_other_models_is_refused(tmp_path):
    make_learner().save(tmp_path / "full")
    with pytest.raises(ValueError, match="holds actor, critic, reference, but this learner has actor"):
        Learner(small_model()).load(tmp_path / "full")
    with pytest.raises(FileNotFoundError, match="no checkpoint of a learner"):
        make_learner().load(tmp_path / "elsewhere")


@pytest.mark.parametrize("larger_options", [{"layers": 3}, {"layers": 2, "tie_word_embeddings": False}])
def test_checkpoint_of_larger_or_smaller_model_is_refused(tmp_path, larger_options):
    """Refuse it though its tensors have the names and shapes of the smaller one's, and further ones."""
    Learner(small_model(**larger_options)).save(tmp_path / "larger")
    learner = Learner(small_model(seed=1))
    before = everything(learner)
    with pytest.raises(ValueError, match=r"tensors is of another model: it also has actor/lm\."):
        learner.load(tmp_path / "larger")
    after = everything(learner)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    learner.save(tmp_path / "smaller")
    larger = Learner(small_model(**larger_options))
    with pytest.raises(ValueError, match=r"tensors is of another model: it lacks actor/lm\."):
        larger.load(tmp_path / "smaller")


@pytest.mark.parametrize(
    ("moment", "existing", "survivor"),
    [
        ("tensors", True, 1),
        ("tensors", False, None),
        ("flush", True, 1),
        ("flush", False, None),
        ("rename-old", True, 1),
        ("rename-new", True, 1),
        ("rename-new", False, None),
        ("after", True, 2),
        ("after", False, 2),
        ("remove-old", True, 2),
    ],
)
def test_kill_leaves_old_or_new_one(tmp_path, monkeypatch, existing, moment, survivor):
    """Die at each step that touches the disk; whatever is there then loads, and the next save works."""
    learner = make_learner()
    path = tmp_path / "latest"
    if existing:
        learner.save(path, extra={"version": 1})
    train(learner, 1)

    write, rename, flush = dcp.save, Path.rename, checkpoint._flush_entry

    def die(*_, **__):
        raise Killed

    def write_and_die(*args, **kwargs):
        write(*args, **kwargs)
        raise Killed

    def rename_unless(name):
        return lambda self, target: die() if Path(target).name == name else rename(self, target)

    target, action = {
        "tensors": ("trainers.learner.tensors.dcp.save", write_and_die),
        "flush": ("trainers.learner.checkpoint._flush", die),
        "rename-old": ("pathlib.Path.rename", rename_unless(".latest.previous")),
        "rename-new": ("pathlib.Path.rename", rename_unless("latest")),
        "after": ("trainers.learner.checkpoint._flush_entry", lambda at: die() if at == tmp_path else flush(at)),
        "remove-old": ("trainers.learner.checkpoint.shutil.rmtree", die),
    }[moment]
    with monkeypatch.context() as patched:
        patched.setattr(target, action)
        with pytest.raises(Killed):
            learner.save(path, extra={"version": 2})

    fresh = make_learner(seed=1)
    if survivor is None:
        with pytest.raises(FileNotFoundError):
            fresh.load(path)
    else:
        assert fresh.load(path)["version"] == survivor
    learner.save(path, extra={"version": 3})
    assert make_learner(seed=1).load(path)["version"] == 3
    assert [entry.name for entry in tmp_path.iterdir()] == ["latest"], "nothing is left over"


def test_kill_while_writing_leaves_unused_partial_folder(tmp_path):
    path = tmp_path / "x"

    def write():
        with replace_folder(path, ALONE) as folder:
            (folder / "half").write_text("hal")
            raise Killed

    with pytest.raises(Killed):
        write()
    assert not path.exists()
    with replace_folder(path, ALONE) as folder:
        assert list(folder.iterdir()) == []
        (folder / "whole").write_text("whole")
    assert {entry.name for entry in path.iterdir()} == {"whole", "checksums.json"}


def test_recover_twice_is_recover_once(tmp_path):
    path = tmp_path / "x"
    with replace_folder(path, ALONE) as folder:
        (folder / "a").write_text("a")
    shutil.move(path, tmp_path / ".x.previous")
    recover(path)
    recover(path)
    assert (path / "a").read_text() == "a"


def test_file_in_way_is_not_removed(tmp_path):
    path = tmp_path / "x"
    path.write_text("mine")
    with pytest.raises(NotADirectoryError, match="is a file"), replace_folder(path, ALONE):
        raise AssertionError("must not get here")
    assert path.read_text() == "mine"


def test_transformers_loads_export(tmp_path):
    tokenizer = build_tokenizer(["one two three"] * 5)
    model = build_model(len(tokenizer), hidden=32, layers=2)
    learner = Learner(model, **sections(lr=1e-2))
    learner.update_sft(TRAJECTORIES)
    learner.export_hf(tmp_path / "model", tokenizer)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, learner.weights()[name]), name
    assert AutoTokenizer.from_pretrained(tmp_path / "model").encode("one two") == tokenizer.encode("one two")
    again = Learner(str(tmp_path / "model"))
    for a, b in zip(again.logprobs(TRAJECTORIES), learner.logprobs(TRAJECTORIES), strict=True):
        np.testing.assert_array_equal(a, b)
