"""Checkpoints of many ranks, read by any number; saves in the background; and processes that are really killed."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
import time
from functools import partial
from multiprocessing.reduction import DupFd

import numpy as np
import pytest
import torch
from forked import forking
from ranks import FEW, make_learner, run_ranks

from trainers.learner.checkpoint import Background, LinkedTensors
from trainers.learner.fsdp import Ranks
from trainers.learner.models import checkpoint_gradients
from trainers.learner.tensors import read_tensors
from trainers.models.tiny import build_model, build_tokenizer

LORA = {"lora_rank": 4, "lora_alpha": 8}
# One forkserver has torch imported for all of them; on a busy machine that alone may take a minute.
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("ranks")]
SETTINGS = {"plain": {}, "lora": LORA}


def scores(learner):
    return np.concatenate(learner.logprobs(FEW))


def save_behind(learner, path, extra=None):
    """Save in a thread; return it."""
    write, thread = learner.prepare_save(extra), Background()
    thread.start(lambda: write(path), "save")
    return thread


def written(folder, where, **settings):
    """Train, save, train on; every second of it in the background, where that must not show."""
    learner = make_learner(**settings)
    learner.update_sft(FEW)
    learner.save(where / "waited", extra={"ranks": learner.ranks.world})
    behind = save_behind(learner, where / "behind", {"ranks": learner.ranks.world})
    following = learner.update_sft(FEW)["loss"]
    behind.wait()
    learner.export_hf(where / "hf", build_tokenizer(["one two three"]))
    return following, learner.update_sft(FEW)["loss"], scores(learner)


def read(folder, where, *, names=("waited", "behind"), **settings):
    """Load the checkpoints into a learner with other initial weights."""
    results = []
    for name in names:
        learner = make_learner(shape={"seed": 8}, **settings)
        learner.update_sft(FEW)
        extra = learner.load(where / name)
        losses = [learner.update_sft(FEW)["loss"] for _ in range(2)]
        results.append((extra, *losses, scores(learner)))
    return results


def all_written(folder, root):
    return {name: written(folder, root / name, **settings) for name, settings in SETTINGS.items()}


def all_read(folder, root):
    # One process reads both; they are of the same moment.
    results = {name: read(folder, root / name, names=("behind",), **settings) for name, settings in SETTINGS.items()}
    # The mesh may be cut in another way as well.
    results["plain, tensor"] = read(folder, root / "plain", names=("waited",), tensor_parallel_size=2)
    return results


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return what four ranks wrote, and their results after it."""
    root = tmp_path_factory.mktemp("saved")
    ranks = run_ranks(4, {"write": partial(all_written, root=root)}, root / "four")
    return root, ranks[0]["write"]


def same(got, expected):
    extra, *losses, after = got
    assert extra == {"ranks": 4}
    assert losses == pytest.approx(expected[:2], rel=1e-5)
    np.testing.assert_allclose(after, expected[2], atol=1e-4)


def test_two_ranks_go_on_from_four(saved, tmp_path):
    root, expected = saved
    (first, _) = run_ranks(2, {"read": partial(all_read, root=root)}, tmp_path)
    for name, results in first["read"].items():
        for got in results:
            same(got, expected[name.partition(",")[0]])


@pytest.mark.parametrize("name", SETTINGS)
def test_one_process_goes_on_from_four_ranks(saved, name):
    root, expected = saved
    for got in read(None, root / name, **SETTINGS[name]):
        same(got, expected[name])


@pytest.mark.parametrize("name", SETTINGS)
def test_transformers_loads_what_four_ranks_exported(saved, name):
    """The export stands between the two updates."""
    from transformers import AutoModelForCausalLM

    root, _ = saved
    learner = make_learner(**SETTINGS[name])
    learner.load(root / name / "waited")
    learner.update_sft(FEW)
    loaded = AutoModelForCausalLM.from_pretrained(root / name / "hf").state_dict()
    weights = learner.weights()
    assert loaded.keys() == weights.keys()
    for key, value in loaded.items():
        torch.testing.assert_close(value, weights[key], rtol=1e-4, atol=1e-5, msg=key)


# ------------------ in the background


def test_training_goes_on_while_copy_is_written(tmp_path, monkeypatch):
    from trainers.learner import state

    go_on = threading.Event()
    write = state.write_tensors

    def slow(*args):
        assert go_on.wait(100)
        write(*args)

    learner = make_learner()
    before = scores(learner)
    monkeypatch.setattr(state, "write_tensors", slow)
    behind = save_behind(learner, tmp_path / "x")
    for _ in range(2):
        learner.update_sft(FEW)
    assert not (tmp_path / "x").exists()
    assert np.abs(scores(learner) - before).max() > 0.001
    go_on.set()
    behind.wait()
    learner.load(tmp_path / "x")
    np.testing.assert_array_equal(scores(learner), before)


def test_background_error_is_raised_by_next_save(tmp_path):
    learner, done = make_learner(critic=False, reference=False), []
    (tmp_path / "x").write_text("in the way")
    behind = save_behind(learner, tmp_path / "x")
    with pytest.raises(NotADirectoryError, match="is a file"):
        behind.start(lambda: done.append(1), "another")
    behind.start(lambda: done.append(2), "another")  # said once
    behind.wait()
    assert done == [2]


def test_background_jobs_run_in_sequence():
    background, done = Background(), []
    gate = threading.Event()
    background.start(lambda: (gate.wait(60), done.append(1)), "one")
    gate.set()
    background.start(lambda: done.append(2), "two")
    background.wait()
    assert done == [1, 2]


# ------------------ killed


def save_for_ever(folder, wait, pipe):
    torch.set_num_threads(1)
    learner = make_learner(critic=False, reference=False, **LORA, shape={"layers": 1})
    for version in range(1, 10_000):
        if wait:
            learner.save(folder, {"version": version})
        else:
            save_behind(learner, folder, {"version": version}).wait()
        os.write(pipe, f"{version}\n".encode())


@pytest.mark.parametrize("wait", [True, False])
def test_kill_leaves_last_good_checkpoint(tmp_path, wait):
    rng = np.random.default_rng(0)
    reader = make_learner(critic=False, reference=False, **LORA, shape={"layers": 1})
    path = tmp_path / "latest"
    context = forking()
    for _ in range(3):
        out, pipe = os.pipe()
        child = context.Process(target=save_to_pipe, args=(path, wait, DupFd(pipe)))
        child.start()
        os.close(pipe)
        with os.fdopen(out) as lines:
            assert lines.readline(), "it came to its first save"
            time.sleep(float(rng.uniform(0, 0.1)))
            os.kill(child.pid, signal.SIGKILL)
            last = int(([1] + [int(line) for line in lines.read().split()])[-1])
        child.join()
        version = reader.load(path)["version"]
        assert version in (last, last + 1), "at most the one that was not said to be done"
        assert json.loads((path / "learner.json").read_text())["extra"]["version"] == version


def save_to_pipe(folder, wait, pipe):
    save_for_ever(folder, wait, pipe.detach())


@pytest.mark.parametrize("folder_gone", [False, True])
def test_frozen_tensors_are_linked_or_rewritten(tmp_path, monkeypatch, folder_gone):
    tensors, linked, listdir = {"a": torch.arange(4.0)}, LinkedTensors(), os.listdir

    def stale(path):  # a folder of a network's file system that another machine has deleted
        if folder_gone and isinstance(path, int):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return listdir(path)

    linked.write(tmp_path / "one", tensors, Ranks(None))
    monkeypatch.setattr(os, "listdir", stale)
    linked.write(tmp_path / "two", tensors, Ranks(None))
    (file,) = (tmp_path / "two").glob("*.safetensors")
    assert file.stat().st_nlink == (1 if folder_gone else 2)
    loaded = {"a": torch.zeros(4)}
    read_tensors(tmp_path / "two", loaded, Ranks(None))
    assert torch.equal(loaded["a"], tensors["a"])


# ------------------ memory


def test_offloaded_checkpoints_are_checkpoints(monkeypatch):
    """Check that only each layer's input is stored on the CPU, and that gradients are the same."""
    ids = torch.arange(24).reshape(2, 12)
    gradients, stored = [], []
    from torch.autograd.graph import save_on_cpu

    class Counting(save_on_cpu):
        def __init__(self, **options):
            super().__init__(**options)
            pack = self.pack_hook
            self.pack_hook = lambda tensor: (stored.append(tuple(tensor.shape)), pack(tensor))[1]

    monkeypatch.setattr(torch.autograd.graph, "save_on_cpu", Counting)
    for offload in (False, True):
        model = build_model(61, hidden=32, layers=3)
        checkpoint_gradients(model, offload=offload)
        model(input_ids=ids, use_cache=False).logits.logsumexp(-1).sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for offloaded, plain in zip(*gradients, strict=True):
        assert torch.equal(offloaded, plain)
    assert stored.count((2, 12, 32)) == 3
    assert set(stored) <= {(2, 12, 32), (0,)}
