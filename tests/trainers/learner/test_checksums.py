"""Checkpoints that were damaged, attacked or half written: found before anything is loaded, and nothing runs."""

from __future__ import annotations

import errno
import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from learner_helpers import VOCAB, sections, some_trajectories
from safetensors import SafetensorError

from trainers.learner import Learner, tensors
from trainers.learner.checkpoint import replace_folder
from trainers.learner.checksums import CHECKSUMS, DamagedError, UnlistedFileError, checksums, seal, verify
from trainers.learner.fsdp import Ranks
from trainers.models.tiny import build_model, build_tokenizer

TRAJECTORIES = some_trajectories()[:3]


def make_learner(seed=0):
    return Learner(build_model(VOCAB, hidden=32, layers=1, seed=seed), **sections(lora_rank=2))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A checkpoint with all kinds of files: what learns, what is frozen and linked, and an export."""
    path = tmp_path_factory.mktemp("whole") / "state"
    learner = make_learner()
    learner.save(path)
    learner.update_sft(TRAJECTORIES)
    learner.save(path, extra={"version": 2})  # its frozen files are links
    learner.export_hf(path.parent / "model", build_tokenizer(["one two three"]))
    return path.parent


def files(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def state_of(learner):
    learned, frozen = learner._state._tensors()
    return {name: value.clone() for name, value in (learned | frozen).items() if name != "rng"}


def test_damaged_file_kinds_are_complete(whole):
    assert {str(name) for name in files(whole / "state")} == {
        "checksums.json",
        "learner.json",
        *(f"{part}/{name}" for part in ("tensors", "frozen") for name in ("checksums.json", "tensors.json")),
        *(f"{part}/rank_00000_000.safetensors" for part in ("tensors", "frozen")),
    }
    assert {"checksums.json", "config.json", "model.safetensors", "tokenizer.json"} <= {
        str(name) for name in files(whole / "model")
    }


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bit_is_found_before_loading(whole, tmp_path_factory, data):
    """Every kind of file, any byte of it, any bit; also 10,000 exponents of weights."""
    part = data.draw(st.sampled_from(["state", "model"]))
    name = data.draw(st.sampled_from(files(whole / part)))
    copy = tmp_path_factory.mktemp("copy") / part
    shutil.copytree(whole / part, copy)
    content = bytearray((copy / name).read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    before, after = (copy / name).read_bytes(), bytes(content)
    (copy / name).write_bytes(after)
    if name.name == CHECKSUMS and _same_json(before, after):
        return  # a space that became a tab
    with pytest.raises((DamagedError, UnlistedFileError, UnicodeDecodeError)) as caught:
        verify(copy)
    assert str(copy) in str(caught.value)
    shutil.rmtree(copy.parent)


def _same_json(one, two):
    try:
        return json.loads(one) == json.loads(two)
    except ValueError:
        return False


def test_flipped_exponents_are_found_before_loading(whole, tmp_path):
    shutil.copytree(whole / "state", tmp_path / "x")
    (file,) = (tmp_path / "x" / "frozen").glob("*.safetensors")
    content = bytearray(file.read_bytes())
    for at in range(len(content) - 1, len(content) - 40_001, -4):
        content[at] ^= 0x40
    file.write_bytes(content)
    learner = make_learner(seed=1)
    before = state_of(learner)
    with pytest.raises(DamagedError, match=rf"{file} is damaged"):
        learner.load(tmp_path / "x")
    assert all(torch.equal(value, before[name]) for name, value in state_of(learner).items())


@pytest.mark.parametrize("how", ["cut", "empty", "gone"])
def test_files_that_are_cut_or_gone_are_named(whole, tmp_path, how):
    for name in files(whole / "state"):
        path = tmp_path / "x"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(whole / "state", path)
        if how == "gone":
            (path / name).unlink()
        else:
            (path / name).write_bytes(b"" if how == "empty" else (path / name).read_bytes()[:-3])
        error = FileNotFoundError if (how, name.name) == ("gone", "learner.json") else DamagedError
        with pytest.raises(error, match=str(name.name)):
            make_learner().load(path)


@pytest.mark.parametrize("name", ["model/adapter_config.json", "state/tensors/rank_00001_000.safetensors"])
def test_file_that_is_not_of_checkpoint_is_refused(whole, tmp_path, name):
    """A library that reads the folder might take it for its own, as transformers takes an adapter's configuration."""
    shutil.copytree(whole, tmp_path / "x")
    (tmp_path / "x" / name).write_text("{}")
    with pytest.raises(UnlistedFileError, match=rf"{name} is not a file of this checkpoint.*move it away"):
        verify(tmp_path / "x" / name.partition("/")[0])
    (tmp_path / "x" / name).rename((tmp_path / "x" / name).with_name(".hidden"))
    verify(tmp_path / "x" / name.partition("/")[0])


def test_list_of_checksums_opens_no_file_outside_folder(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "x" / CHECKSUMS).write_text(json.dumps({"../secret": checksums(tmp_path)["secret"]}))
    with pytest.raises(DamagedError, match="is missing"):
        verify(tmp_path / "x")
    for listed in ("[]", '{"a": 1}', '{"a": ["b"]}', "null", '"a"'):
        (tmp_path / "x" / CHECKSUMS).write_text(listed)
        with pytest.raises(DamagedError):
            verify(tmp_path / "x")


def test_pipe_is_not_waited_for(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    (tmp_path / CHECKSUMS).write_text(json.dumps({"pipe": "0" * 64}))
    with pytest.raises(DamagedError, match="not a regular file"):
        verify(tmp_path)


# ------------------ attacks


class Attack:
    """Its pickle writes a file when it is read."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self):
        return Path.touch, (self.proof,)


def test_pickle_checkpoint_is_refused_without_running(whole, tmp_path):
    """Refuse pickles as torch.distributed.checkpoint wrote them, and in all other places; checksums are right."""
    proof = tmp_path / "proof"
    attack = pickle.dumps(Attack(proof))
    pickle.loads(attack)
    assert proof.exists(), "the attack works where a pickle is read"
    proof.unlink()

    old = tmp_path / "old"
    (old / "tensors").mkdir(parents=True)
    (old / "tensors" / ".metadata").write_bytes(attack)
    (old / "tensors" / "__0_0.distcp").write_bytes(attack)
    (old / "learner.json").write_text(json.dumps({"format": 2, "models": ["actor"], "adapters": None}))
    with pytest.raises(ValueError, match=r"format 2: another version wrote it.*pickles.*model\.path="):
        make_learner().load(old)

    for name in [*files(whole / "state"), Path("tensors/.metadata"), Path("frozen/.metadata")]:
        path = tmp_path / "x"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(whole / "state", path)
        (path / name).unlink(missing_ok=True)
        (path / name).write_bytes(attack)
        for folder in (path / "tensors", path / "frozen", path):
            if (folder / CHECKSUMS) != path / name:
                (folder / CHECKSUMS).unlink()
                seal(folder)
        if name.name == ".metadata":
            make_learner().load(path)  # nothing reads it
        else:
            with pytest.raises((DamagedError, SafetensorError, ValueError)):
                make_learner().load(path)
        assert not proof.exists(), name


@pytest.mark.parametrize(
    "index",
    [
        "[]",
        "[" * 100_000,
        '{"rng": null}',
        '{"rng": {"dtype": "save", "shape": [1], "pieces": []}}',
        '{"rng": {"dtype": "uint8", "shape": ["a"], "pieces": []}}',
        '{"rng": {"dtype": "uint8", "shape": [5056], "pieces": [{"offset": [0], "shape": [5056]}]}}',
    ],
)
def test_wrong_index_is_reported_despite_checksums(whole, tmp_path, index):
    shutil.copytree(whole / "state", tmp_path / "x")
    (tmp_path / "x/tensors/tensors.json").write_text(index)
    for folder in (tmp_path / "x/tensors", tmp_path / "x"):
        (folder / CHECKSUMS).unlink()
        seal(folder)
    with pytest.raises((ValueError, RuntimeError)):
        make_learner().load(tmp_path / "x")


# ------------------ full disks


@pytest.mark.parametrize("moment", range(6))
def test_full_disk_leaves_old_folder_whole(tmp_path, monkeypatch, moment):
    """Each write of a save fails in turn: tensors, their index and checksums, the record, and flushing."""
    learner = make_learner()
    learner.save(tmp_path / "x", extra={"version": 1})
    save_file, write_text = tensors.save_file, Path.write_text
    done = 0

    def next_one():
        nonlocal done
        done += 1
        return done > moment

    def full_in_rust(pieces, path):
        if next_one():
            Path(path).write_bytes(b"half")
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        save_file(pieces, path)

    def full(self, *args, **kwargs):
        if next_one():
            write_text(self, "half")
            raise OSError(errno.ENOSPC, "No space left on device", str(self))
        return write_text(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(tensors, "save_file", full_in_rust)
        patch.setattr(Path, "write_text", full)
        learner._state._frozen._folder = None  # written anew
        if moment == 5:
            patch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
            done = -100
        with pytest.raises(OSError, match="No space left") as caught:
            learner.save(tmp_path / "x", extra={"version": 2})
    assert caught.value.errno == errno.ENOSPC
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert make_learner(seed=1).load(tmp_path / "x") == {"version": 1}
    learner.save(tmp_path / "x", extra={"version": 3})
    assert make_learner(seed=1).load(tmp_path / "x") == {"version": 3}


def test_large_tensors_are_written_in_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tensors, "_FILE_BYTES", 10_000)
    written = {f"t{i}": torch.randn(40, 50) for i in range(5)} | {
        "number": torch.tensor(7.5),
        "none": torch.zeros(0, 3),
    }
    with replace_folder(tmp_path / "x", Ranks(None)) as folder:
        tensors.write_tensors(folder / "tensors", written, Ranks(None))
    assert len(list((tmp_path / "x/tensors").glob("*.safetensors"))) > 2
    verify(tmp_path / "x")
    read = {name: torch.full_like(value, -1) for name, value in written.items()}
    tensors.read_tensors(tmp_path / "x/tensors", read, Ranks(None))
    assert all(torch.equal(read[name], value) for name, value in written.items())
