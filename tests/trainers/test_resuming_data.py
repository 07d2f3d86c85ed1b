"""A run that resumes with other tasks than its checkpoint's: refused, or continued where that is asked for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from ppo_runs import QUICK, arguments, training_of

from textenvs.evaluate.plan import fingerprint
from textenvs.task import Rows, Task
from trainers.builders.data import check_data, data_of
from trainers.checkpoints import Checkpoint, CheckpointError, Checkpoints
from trainers.command_line import load_config
from trainers.ppo import main, train
from trainers.run import assemble

GSM8K = [argument for argument in QUICK if not argument.startswith("env.")] + ["env.id=textenv/gsm8k"]


def row(number: int, answer: int | None = None) -> dict[str, Any]:
    answer = number + 1 if answer is None else answer
    return {"question": f"What is {number} and 1?", "answer": f"It is {answer}.\n#### {answer}"}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def config_of(*overrides: str) -> Any:
    return load_config([*GSM8K, *overrides])[0]


def checkpoint_of(*overrides: str) -> Checkpoint:
    return Checkpoint(Path("iteration_000002"), 2, {"data": json.loads(json.dumps(data_of(config_of(*overrides))))})


def compared(checkpoint: Checkpoint, *overrides: str) -> list[str]:
    config = config_of(*overrides)
    return list(check_data(config, checkpoint, data_of(config)))


EIGHT = [row(number) for number in range(8)]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([*EIGHT, row(8), row(9)], "training had 8 tasks and has 10 tasks, the first 8 as they were"),
        ([row(9), *EIGHT], "had 8 tasks and has 9 tasks, the first 8 not as they were"),
        (EIGHT[:-2], "had 8 tasks and has 6 tasks"),
        ([row(7), *EIGHT[1:7], row(0)], "tasks with another content"),  # another order
        ([*EIGHT[:7], row(7, answer=3)], "tasks with another content"),  # another answer
    ],
)
def test_changed_rows_are_refused(tmp_path, rows, words):
    path = write(tmp_path / "rows.jsonl", EIGHT)
    files = [f"data.train_files={path}", "data.val_size=2"]
    checkpoint = checkpoint_of(*files)
    assert not compared(checkpoint, *files)
    write(path, rows)
    with pytest.raises(CheckpointError, match="resume_other_data=true") as refused:
        compared(checkpoint, *files)
    assert words in str(refused.value)
    notes = compared(checkpoint, *files, "trainer.resume_other_data=true")
    assert any(words in line for line in notes)


def test_rows_beyond_train_size_do_not_count(tmp_path):
    path = write(tmp_path / "rows.jsonl", EIGHT)
    val = write(tmp_path / "val.jsonl", EIGHT)
    files = [f"data.train_files={path}", f"data.val_files={val}", "data.train_size=5", "data.val_size=2"]
    checkpoint = checkpoint_of(*files)
    write(path, [*EIGHT[:5], row(20), row(21)])
    assert not compared(checkpoint, *files)
    write(path, [*EIGHT[:4], row(20), row(21)])
    with pytest.raises(CheckpointError, match="another content"):
        compared(checkpoint, *files)


def test_changed_validation_tasks_are_reported(tmp_path):
    path, val = write(tmp_path / "rows.jsonl", EIGHT), write(tmp_path / "val.jsonl", EIGHT)
    files = [f"data.train_files={path}", f"data.val_files={val}", "data.val_size=8"]
    checkpoint = checkpoint_of(*files)
    write(val, EIGHT[1:])
    (line,) = compared(checkpoint, *files)
    assert "validation had 8 tasks and has 7 tasks" in line


@pytest.mark.parametrize(
    ("kwargs", "word"), [("env.kwargs.level=medium", "medium"), ("env.kwargs.seed=1", "seed 1"), ("", "version 1 of")]
)
def test_other_generated_tasks_are_refused(kwargs, word):
    checkpoint = checkpoint_of()
    assert not compared(checkpoint)
    if not kwargs:
        checkpoint.state["data"]["training"][""]["version"] = 1
    overrides = [kwargs] if kwargs else []
    with pytest.raises(CheckpointError, match="cannot be resumed from") as refused:
        compared(checkpoint, *overrides)
    assert word in str(refused.value)


def test_other_arguments_are_no_change():
    checkpoint = checkpoint_of("env.id=textenv/gsm8k-interact")
    assert not compared(checkpoint, "env.id=textenv/gsm8k-interact", "env.kwargs.max_assistant_turns=2")


def test_components_of_mixture_are_compared_each(tmp_path):
    path = write(tmp_path / "rows.jsonl", EIGHT)
    val = write(tmp_path / "val.jsonl", EIGHT)
    ids = ["env.mixture.a.id=textenv/gsm8k", "env.mixture.b.id=textenv/gsm8k"]
    tasks = [f"env.mixture.b.kwargs.tasks={path}", f"env.mixture.b.val_kwargs.tasks={val}"]
    config = load_config([*ids, *tasks])[0]
    checkpoint = Checkpoint(Path("iteration_000002"), 2, {"data": data_of(config)})
    assert not list(check_data(config, checkpoint, data_of(config)))
    write(path, EIGHT[:5])
    with pytest.raises(CheckpointError, match=r"training \(env\.mixture\.b\) had 8 tasks and has 5"):
        list(check_data(config, checkpoint, data_of(config)))


def test_older_checkpoint_is_not_compared():
    config = config_of()
    (line,) = check_data(config, Checkpoint(Path("iteration_000002"), 2, {}), data_of(config))
    assert "cannot be compared" in line


def test_keys_of_several_types_have_fingerprint():
    def tasks(extra: dict[Any, Any]) -> Rows:
        return Rows("rows", [Task("0", "x", ({"role": "user", "content": "?"},), "1", extra={"a": extra})])

    assert fingerprint(tasks({1: 2, "b": {3}}), [0]) == fingerprint(tasks({"b": {3}, 1: 2}), [0])
    assert fingerprint(tasks({1: 2, "b": 3}), [0]) != fingerprint(tasks({1: 2, "b": 4}), [0])


def test_run_with_more_rows_is_refused(tmp_path, capsys):
    path = write(tmp_path / "rows.jsonl", EIGHT)
    folder = tmp_path / "run"
    argv = [*arguments(folder, *GSM8K), f"data.train_files={path}", "trainer.save_freq=1", "trainer.logger=[jsonl]"]

    async def go(*overrides: str) -> None:
        async with assemble(load_config([*argv, *overrides])[0]) as run:
            await train(run)

    asyncio.run(go("trainer.total_iterations=1"))
    write(path, [*EIGHT, *(row(number) for number in range(8, 12))])
    before = (folder / "metrics.jsonl").read_text()
    assert main([*argv, "trainer.total_iterations=2"]) == 1
    error = capsys.readouterr().err
    assert "training had 8 tasks and has 12 tasks, the first 8 as they were" in error
    assert "trainer.resume_other_data=true" in error
    assert (folder / "metrics.jsonl").read_text() == before, "nothing is lost"
    asyncio.run(go("trainer.total_iterations=2", "trainer.resume_other_data=true"))
    assert [metrics["step"] for metrics in training_of(folder)] == [1, 2]
    config = load_config(argv)[0]  # whose checkpoint is of the twelve now
    newest = Checkpoints(folder / "checkpoints", 1).newest()
    assert newest is not None
    assert not list(check_data(config, newest, data_of(config)))
