"""A run's checkpoints: whole or not there, whatever happens while one is written."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers import checkpoints
from trainers.builders import SetupError
from trainers.builders.folder import checkpoint_to_resume
from trainers.checkpoints import Checkpoint, CheckpointError, Checkpoints, load, refuse_checkpoint
from trainers.command_line import resolve
from trainers.config.running import TrainerSection


class KilledError(BaseException):
    """Stands for SIGKILL: nothing in the code under test may catch it and tidy up."""


@pytest.fixture(autouse=True, scope="module")
def _no_power_cuts():
    """Disable syncing: power failures cannot be tested here, and waiting for the disk is slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def write(text: str):
    def writer(folder: Path) -> None:
        (folder / "part").mkdir()
        (folder / "part" / "data").write_text(text)

    return writer


def save(saved: Checkpoints, iteration: int, text: str | None = None) -> Path:
    return saved.save(iteration, {"iteration": iteration, "text": text}, write(text or str(iteration)))


def names(saved: Checkpoints) -> list[str]:
    return sorted(path.name for path in saved.folder.iterdir())


def is_whole(checkpoint: Checkpoint | None) -> bool:
    """Check that the writer's file and the state are of the same save."""
    assert checkpoint is not None
    text = checkpoint.state["text"] or str(checkpoint.iteration)
    return checkpoint.state["iteration"] == checkpoint.iteration and (checkpoint.path / "part/data").read_text() == text


def test_saved_checkpoint_reads_back(tmp_path):
    saved = Checkpoints(tmp_path / "a" / "checkpoints", keep=2)
    assert saved.newest() is None
    state = {"iteration": 3, "text": None, "frontier": {"in_flight": [1, 2]}, "kl": {"beta": 0.1}}
    path = saved.save(3, state, write("3"), lambda folder: (folder / "more").write_text("more"))
    assert path == saved.folder / "iteration_000003"
    assert saved.newest() == load(path) == Checkpoint(path, 3, state)
    assert (path / "more").read_text() == "more"
    assert is_whole(saved.newest())


def test_newest_checkpoint_is_by_number(tmp_path):
    saved = Checkpoints(tmp_path, keep=9)
    save(saved, 999_999)
    save(saved, 1_000_000)
    os.utime(tmp_path / "iteration_999999")
    assert saved.newest().iteration == 1_000_000


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(1, 4))
def test_keep_last_n(tmp_path_factory, iterations, keep):
    """After a save, the newest ``keep`` up to it are there; those of later iterations are of a past that is gone."""
    saved = Checkpoints(tmp_path_factory.mktemp("keep"), keep)
    existing: set[int] = set()
    for iteration in iterations:
        save(saved, iteration)
        existing = set(sorted({number for number in existing if number < iteration} | {iteration})[-keep:])
        assert names(saved) == [f"iteration_{number:06d}" for number in sorted(existing)]
        assert saved.newest().iteration == iteration
        assert is_whole(saved.newest())


class DyingDisk:
    """Raises at the ``at``-th change of the disk, and at all that follow."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int) -> None:
        self.changes, self.at = 0, at
        changes = ((Path, "mkdir"), (Path, "rename"), (Path, "write_text"), (os, "unlink"), (os, "rmdir"))
        for owner, name in changes:
            patch.setattr(owner, name, self._counting(getattr(owner, name)))

    def _counting(self, real):
        def call(*args, **kwargs):
            self.changes += 1
            if self.changes >= self.at:
                raise KilledError
            return real(*args, **kwargs)

        return call


@pytest.mark.parametrize("replaced", [False, True])
def test_killed_at_any_step_of_save(tmp_path, monkeypatch, replaced):
    """Let a save die before its first, second, ... change of the disk: a later look finds a whole checkpoint."""
    for at in range(1, 60):
        saved = Checkpoints(tmp_path / str(at), keep=2)
        save(saved, 1)
        save(saved, 2)
        if replaced:
            save(saved, 3, "old")
        with monkeypatch.context() as patch:
            disk = DyingDisk(patch, at)
            try:
                save(saved, 3, "new")
            except KilledError:
                pass
            else:
                assert disk.changes > 8, "a save that changes so little of the disk is not what is tested here"
                assert saved.newest().state["text"] == "new"
                return
        newest = Checkpoints(saved.folder, keep=2).newest()
        assert is_whole(newest)
        assert newest.iteration == 3 or (newest.iteration == 2 and not replaced)
        save(Checkpoints(saved.folder, keep=2), 4)  # remains of the dead process do not interfere
        assert names(saved)[-1] == "iteration_000004"
        assert not [name for name in names(saved) if name.startswith(".")]
    pytest.fail("the save never came to its end")


def test_leftovers_are_no_checkpoints(tmp_path):
    saved = Checkpoints(tmp_path, keep=2)
    save(saved, 5)
    shutil.copytree(tmp_path / "iteration_000005", tmp_path / ".iteration_000009.partial")
    shutil.copytree(tmp_path / "iteration_000005", tmp_path / ".iteration_000008.deleted")
    (tmp_path / "iteration_000007").write_text("a file")
    (tmp_path / "iteration_11").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    assert saved.newest().iteration == 5
    save(saved, 6)
    assert saved.newest().iteration == 6
    assert (tmp_path / "notes.txt").exists()


@pytest.mark.parametrize("text", ["", '{"iteration": 2, "te', "[]", "\0\0\0\0", "[" * 100_000])
def test_damaged_state_error_names_file(tmp_path, text):
    saved = Checkpoints(tmp_path, keep=2)
    save(saved, 1)
    path = save(saved, 2)
    (path / "state.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"iteration_000002/state\.json (cannot be read|is damaged)"):
        load(path)
    assert saved.newest().iteration == 1


@pytest.mark.parametrize("name", ["iteration_000001/learner", "somewhere", "iteration_000003"])
def test_path_that_is_no_checkpoint(tmp_path, name):
    save(Checkpoints(tmp_path, keep=2), 1)
    with pytest.raises(CheckpointError, match=r"is not a checkpoint: .*iteration_NNNNNN .*state\.json"):
        load(tmp_path / name)


def test_resume_mode_selects_checkpoint(tmp_path):
    saved = Checkpoints(tmp_path / "mine", keep=2)
    assert checkpoint_to_resume(TrainerSection(), saved) is None
    save(saved, 4)
    other = save(Checkpoints(tmp_path / "other", keep=2), 9)
    assert checkpoint_to_resume(TrainerSection(), saved).iteration == 4
    assert checkpoint_to_resume(TrainerSection(resume_mode="disable"), saved) is None
    foreign = TrainerSection(resume_mode="resume_path", resume_from_path=str(other))
    assert checkpoint_to_resume(foreign, Checkpoints(tmp_path / "new", keep=2)) == load(other)
    with pytest.raises(SetupError, match=r"mine has checkpoints of its own.*trainer\.resume_mode=auto"):
        checkpoint_to_resume(foreign, saved)
    assert checkpoint_to_resume(foreign.model_copy(update={"val_only": True}), saved) == load(other)
    own = TrainerSection(resume_mode="resume_path", resume_from_path=str(saved.newest().path))
    assert checkpoint_to_resume(own, saved).iteration == 4
    foreign = TrainerSection(resume_mode="resume_path", resume_from_path=str(other.parent))
    with pytest.raises(CheckpointError, match="other is not a checkpoint"):
        checkpoint_to_resume(foreign, saved)


def test_state_must_be_json(tmp_path):
    saved = Checkpoints(tmp_path, keep=2)
    save(saved, 1)
    with pytest.raises(TypeError):
        saved.save(2, {"tensor": object()})
    assert saved.newest().state["iteration"] == 1
    assert names(saved) == ["iteration_000001"]


# ------------------ in the background


def test_background_save_snapshots_its_state(tmp_path):
    saved, go_on = Checkpoints(tmp_path, keep=2), threading.Event()
    state = {"frontier": [1]}

    def slow(folder: Path) -> None:
        assert go_on.wait(100)
        write("x")(folder)

    saved.save_in_background(1, state, slow)
    state["frontier"].append(2)
    assert saved.newest() is None
    go_on.set()
    saved.save_in_background(2, state, write("y"))  # after the first
    saved.wait()
    assert [load(path).state["frontier"] for path in sorted(tmp_path.iterdir())] == [[1], [1, 2]]


def test_background_error_is_raised_once_by_next_call(tmp_path):
    saved = Checkpoints(tmp_path, keep=2)

    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    save(saved, 1)
    saved.save_in_background(2, {}, full)
    with pytest.raises(OSError, match="no space left"):
        saved.save_in_background(3, {}, write("z"))
    saved.wait()
    assert saved.newest().iteration == 1
    saved.save_in_background(3, {}, write("z"))
    saved.wait()
    assert saved.newest().iteration == 3


# ------------------ damaged ones


@given(st.data())
def test_damaged_newest_falls_back_with_warning(tmp_path_factory, data):
    """Any file of it, with a flipped bit, cut, or gone."""
    saved = Checkpoints(tmp_path_factory.mktemp("damaged"), keep=3)
    for iteration in (1, 2, 3):
        path = save(saved, iteration)
    name = data.draw(st.sampled_from(["state.json", "part/data"]))
    content = bytearray((path / name).read_bytes())
    how = data.draw(st.sampled_from(["flipped", "cut", "gone"]))
    if how == "gone":
        (path / name).unlink()
    elif how == "cut":
        (path / name).write_bytes(content[: data.draw(st.integers(0, len(content) - 2 if len(content) > 1 else 0))])
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        (path / name).write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        warnings: list[str] = []
        patch.setattr(checkpoints.log, "warning", lambda text, *values: warnings.append(text % values))
        newest = saved.newest()
    assert is_whole(newest)
    if newest.iteration == 3:  # white space, or the same number in other digits
        assert load(path).state == {"iteration": 3, "text": None}
        assert not warnings
        return
    assert newest.iteration == 2
    (words,) = warnings
    assert str(path / name) in words
    assert words.endswith("; using iteration_000002 instead")
    with pytest.raises(CheckpointError, match="iteration_000003"):  # one that was asked for is not replaced
        load(path)
    save(saved, 3)
    assert saved.newest().iteration == 3


def test_error_names_all_damaged_checkpoints(tmp_path):
    saved = Checkpoints(tmp_path, keep=2)
    for iteration in (1, 2):
        (save(saved, iteration) / "part/data").write_text("x")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be used: .*000002/part/data.*000001/part/data"):
        saved.newest()


def test_stray_file_is_an_error(tmp_path):
    saved = Checkpoints(tmp_path, keep=2)
    save(saved, 1)
    path = save(saved, 2)
    (path / "part" / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"adapter_config\.json is not a file of this checkpoint.*move it away"):
        saved.newest()
    (path / "part" / "adapter_config.json").unlink()
    assert saved.newest().iteration == 2


def test_older_checkpoint_format_is_refused(tmp_path):
    path = tmp_path / "iteration_000004"
    path.mkdir()
    (path / "state.json").write_text(json.dumps({"iteration": 4, "config": {}}))
    with pytest.raises(CheckpointError, match=r"another version wrote it.*pickles.*model\.path=CHECKPOINT/model"):
        Checkpoints(tmp_path, keep=2).newest()


def test_amended_state_stays_intact(tmp_path):
    saved = Checkpoints(tmp_path, keep=2)
    save(saved, 1)
    saved.amend(1, {"validated": 1})
    assert saved.newest().state == {"iteration": 1, "text": None, "validated": 1}
    saved.amend(7, {"validated": 7})  # not there (any more)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            saved.amend(1, {"validated": 2})
    assert saved.newest().state["validated"] == 1
    assert names(saved) == ["iteration_000001"]
    assert sorted(path.name for path in (tmp_path / "iteration_000001").iterdir()) == ["part", "state.json"]


@pytest.mark.parametrize("at", ["writer", "state", "sync"])
def test_full_disk_leaves_no_partial_folder(tmp_path, at):
    saved = Checkpoints(tmp_path, keep=2)
    save(saved, 1)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        if at == "sync":
            patch.setattr(os, "fsync", full)
        if at == "state":
            patch.setattr(checkpoints, "_sealed", full)
        with pytest.raises(OSError, match="No space left"):
            saved.save(2, {"iteration": 2, "text": None}, write("2"), *([full] if at == "writer" else []))
    assert names(saved) == ["iteration_000001"]
    assert is_whole(saved.newest())
    save(saved, 2)  # and it can be tried again
    assert is_whole(saved.newest())
    assert saved.newest().iteration == 2


MIXTURE = "env.mixture.few.id=program_envs:tests/bytes env.mixture.talk.id=textenv/clarify"


@pytest.mark.parametrize(
    ("before", "now", "change"),
    [
        ("", "trainer.seed=1", "trainer.seed was 0 and is now 1"),
        ("", "model.hidden=64", "model.hidden was 128 and is now 64"),
        ("", "algorithm.adv_estimator=rloo", "algorithm.adv_estimator was turn_grpo and is now rloo"),
        ("", "actor.use_kl_loss=true", "actor.use_kl_loss was False and is now True"),
        ("", "algorithm.use_kl_in_reward=true", "algorithm.use_kl_in_reward was False and is now True"),
        ("KL", "KL algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.type was fixed and is now adaptive"),
        ("", "actor.mini_batches=1", "actor.mini_batches was 2 and is now 1"),
        ("", "actor.ppo_epochs=2", "actor.ppo_epochs was 1 and is now 2"),
        ("GAE", "GAE critic.warmup=1", "critic.warmup was 0 and is now 1"),
        ("", "data.shuffle=false", "data.shuffle was True and is now False"),
        ("data.chat_template_kwargs.x=1", "", "data.chat_template_kwargs was {'x': 1} and is now {}"),
        ("LONG data.longest_prompt=9", "LONG data.longest_prompt=8", "data.longest_prompt was 9 and is now 8"),
        ("", "env.curriculum.reverse_share=0.3", "env.curriculum.reverse_share was 0.0 and is now 0.3"),
        (MIXTURE, f"{MIXTURE} env.mixture.more.weight=2", "env.mixture was few, talk and is now few, talk, more"),
        (MIXTURE, "", "env.mixture was few, talk and is now not given"),
        (MIXTURE, f"{MIXTURE} env.mixture.few.id=textenv/gsm8k", "env.mixture.few.id was program_envs:tests/bytes and"),
    ],
)
def test_checkpoint_of_another_run_is_refused(tmp_path, before, now, change):
    keys = {"KL": "algorithm.use_kl_in_reward=true", "GAE": "algorithm.adv_estimator=gae"}
    keys["LONG"] = "data.filter_overlong_prompts=true"
    earlier, config = (resolve([keys.get(word, word) for word in line.split()])[0] for line in (before, now))
    saved = Checkpoint(tmp_path, 1, {"config": earlier.model_dump(mode="json")})
    refuse_checkpoint(earlier, saved)
    with pytest.raises(CheckpointError, match="Give this run a folder.*trainer.resume_mode=disable") as caught:
        refuse_checkpoint(config, saved)
    assert f"is of another run: {change}" in str(caught.value)
