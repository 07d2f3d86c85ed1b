"""Stopping and resuming: bit-exact, from an older checkpoint, after interrupts and kills."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ppo_runs import QUICK, ROOT, arguments, comparable, in_process, metrics_of, training_of

from trainers import checkpoints, cli
from trainers.learner import Learner
from trainers.ppo import main
from trainers.run import Run

# ------------------------------------------------------------------ resuming


def all_tensors(run: Run) -> dict[str, torch.Tensor]:
    learned, frozen = run.learner._state._tensors()
    return {name: value.detach().clone() for name, value in (learned | frozen).items() if name != "rng"}


ADAPTIVE = "algorithm.use_kl_in_reward=true algorithm.kl_ctrl.type=adaptive algorithm.kl_ctrl.horizon=40"
ADAPTIVE += " actor.entropy_target=2"


@pytest.mark.parametrize(
    "options",
    [
        # A critic, a reference and states of options are in the next one, and a reference in the last, too.
        pytest.param("algorithm.adv_estimator=gae critic.warmup=1 actor.lr_warmup_steps=6", marks=pytest.mark.slow),
        f"algorithm.adv_estimator=turn_gae {ADAPTIVE}",
        pytest.param(
            "algorithm.adv_estimator=rae actor.use_kl_loss=true env.kwargs.tasks=5 actor.ppo_epochs=2",
            marks=pytest.mark.slow,
        ),
        "model.lora_rank=4 actor.use_kl_loss=true trainer.async_save=true trainer.save_freq=1",
        pytest.param(
            "algorithm.adv_estimator=remax actor.policy_loss=gspo "
            "actor.clip_ratio_low=0.001 actor.clip_ratio_high=0.001",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_resuming_is_exact(tmp_path, options):
    """Three iterations, and two, a stop, and one more: the same to the last bit, weights and moments included.

    One episode runs at a time: which requests share a step of the engine changes the last bit of what it computes.
    """
    overrides = [*options.split(" "), "rollout.max_running=1"]
    overrides += ["trainer.total_iterations=3", "actor.lr_schedule=cosine"]
    whole = in_process(tmp_path / "whole", *overrides)
    assert in_process(tmp_path / "parts", *overrides, stop_after=2).iteration == 2
    parts = in_process(tmp_path / "parts", *overrides)
    once, twice = (comparable(training_of(tmp_path / name)) for name in ("whole", "parts"))
    assert [row["step"] for row in twice] == [1, 2, 3]
    assert once == twice
    assert len({row["train/reward"] for row in once}) > 1, "nothing happened that could have differed"
    expected, got = all_tensors(whole), all_tensors(parts)
    assert set(expected) == set(got)
    for name, value in expected.items():
        assert torch.equal(value, got[name]), name
    assert whole.update.state_dict() == parts.update.state_dict()


def test_older_checkpoint_can_be_resumed(tmp_path):
    """From iteration 1 on it is another run: what came after is dropped from the metrics and the checkpoints."""
    run = tmp_path / "run"
    in_process(run, "trainer.total_iterations=3", "trainer.save_freq=1", "trainer.keep_last_n=9")
    back = f"trainer.resume_from_path={run}/checkpoints/iteration_000001"
    in_process(run, "trainer.resume_mode=resume_path", back, "trainer.total_iterations=2", "trainer.keep_last_n=9")
    assert [row["step"] for row in training_of(run)] == [1, 2]
    assert [path.name[-1] for path in sorted((run / "checkpoints").iterdir())] == ["0", "1", "2"]


def test_run_restarts_in_used_folder(tmp_path):
    in_process(tmp_path, "trainer.total_iterations=2")
    in_process(tmp_path, "trainer.total_iterations=1", "trainer.resume_mode=disable", "trainer.seed=5")
    assert [row["step"] for row in training_of(tmp_path)] == [1]
    saved = checkpoints.Checkpoints(tmp_path / "checkpoints", 2)
    assert saved.newest().iteration == 1
    assert saved.newest().state["config"]["trainer"]["seed"] == 5


def test_validation_only_keeps_the_metrics(tmp_path):
    in_process(tmp_path, "trainer.total_iterations=2", "trainer.save_freq=1", "trainer.keep_last_n=9")
    before = (tmp_path / "metrics.jsonl").read_text()
    back = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={tmp_path}/checkpoints/iteration_000001"]
    assert main(arguments(tmp_path, *QUICK, "trainer.val_only=true", *back)) == 0
    assert (tmp_path / "metrics.jsonl").read_text().startswith(before)
    assert metrics_of(tmp_path)[-1].keys() >= {"step", "val/reward"}


def test_interrupted_final_validation_is_repeated_once(tmp_path):
    def interrupted(run):
        async def evaluate(*_, **__):
            run.stop.set()
            await asyncio.sleep(60)

        run.collector.evaluate = evaluate

    def validated():
        return [row["step"] for row in metrics_of(tmp_path) if "val/reward" in row]

    in_process(tmp_path, "trainer.total_iterations=1", look=interrupted)
    assert validated() == []
    for _ in range(2):
        in_process(tmp_path, "trainer.total_iterations=1")
        assert validated() == [1]


def test_time_limit_is_of_whole_run(tmp_path):
    run = in_process(tmp_path, "trainer.time_limit_s=0.001", "trainer.total_iterations=50")
    assert run.iteration == 1
    again = in_process(tmp_path, "trainer.time_limit_s=0.001", "trainer.total_iterations=50")
    assert again.iteration == 1
    assert again.trained_s == run.trained_s > 0.001


# ------------------------------------------------------------------ interrupts


class Program:
    """``python -m trainers.ppo`` in a process of its own."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        self.folder = folder
        self.log = folder.parent / f"{folder.name}.log"
        command = [
            sys.executable,
            "-m",
            "trainers.ppo",
            *arguments(folder, "trainer.logger=[console, jsonl]", *overrides),
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "PYTHONUNBUFFERED": "1",
                    "COLUMNS": "200",
                    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
                },
            )

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 90
        while not condition():
            assert self.process.poll() is None, f"it ended by itself:\n{self.output}"
            assert time.monotonic() < deadline, f"it did not happen:\n{self.output}"
            time.sleep(0.01)

    def trained(self, step: int) -> Callable[[], bool]:
        path = self.folder / "metrics.jsonl"
        return lambda: path.is_file() and f'{{"step": {step}, "train' in path.read_text()

    def end(self, *signals: int) -> int:
        for number in signals:
            self.process.send_signal(number)
        return self.process.wait(timeout=90)

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.wait()


def interrupted(monkeypatch, what: str, at: int) -> None:
    """Interrupt this process in the middle of the given call of a learner's method.

    On a busy machine it may react late, and the tests' process must not be ended for it.
    """
    calls, method = 0, getattr(Learner, what)
    monkeypatch.setattr(cli, "GRACE_S", 100.0)

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), signal.SIGINT)
        return method(*args, **kwargs)

    monkeypatch.setattr(Learner, what, call)


def test_same_command_resumes_after_interrupt_and_kill(tmp_path, monkeypatch, capsys, caplog):
    """An interrupt saves first; a kill loses no more than what came after the last checkpoint."""
    folder = tmp_path / "run"
    overrides = ["trainer.total_iterations=12", "trainer.val_before_train=false", "trainer.logger=[console, jsonl]"]
    with monkeypatch.context() as patch:
        interrupted(patch, "update_actor", 4)  # two in each iteration
        assert main(arguments(folder, *overrides)) == 130
    assert "stopping: a checkpoint will be saved" in caplog.text
    captured = capsys.readouterr()
    *_, saved_line, last = captured.out.splitlines()
    assert saved_line == f"saved:   {folder / 'checkpoints' / 'iteration_000002'}"
    assert last.startswith("stopped after iteration 2 of 12: start the same command again")
    assert "warm start: " in captured.out
    assert "Traceback" not in captured.err
    saved = checkpoints.Checkpoints(folder / "checkpoints", 2).newest()
    assert saved.iteration == 2
    assert [row["step"] for row in training_of(folder)] == [1, 2]
    assert (folder / "curves.png").is_file()
    with Program(folder, *overrides, "trainer.save_freq=1", "trainer.total_iterations=1000") as program:
        program.wait_for(program.trained(4))
        program.end(signal.SIGKILL)
        assert f"resuming from {saved.path}" in program.output
        assert "warm start " not in program.output
    killed = checkpoints.Checkpoints(folder / "checkpoints", 2).newest()
    assert killed.iteration >= 3
    total = killed.iteration + 2
    partial = folder / "checkpoints" / f".iteration_{total - 1:06}.partial"
    partial.mkdir(exist_ok=True)  # as if it had been in the middle of it
    assert main(arguments(folder, *overrides, "trainer.save_freq=1", f"trainer.total_iterations={total}")) == 0
    captured = capsys.readouterr().out
    assert f"resuming from {killed.path}" in captured
    assert "warm start " not in captured, "the warm start is not done twice"
    assert [row["step"] for row in training_of(folder)] == list(range(1, total + 1))
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == [f"iteration_{number:06}" for number in (total - 1, total)]


def test_interrupt_during_warm_start_ends_it(tmp_path, monkeypatch, capsys):
    interrupted(monkeypatch, "update_sft", 3)
    assert (
        main(arguments(tmp_path, "trainer.logger=jsonl", "warm_start.steps=1000000", "warm_start.batch_size=2")) == 130
    )
    output = capsys.readouterr().err
    assert "stopped at once" in output
    assert "Traceback" not in output
    assert checkpoints.Checkpoints(tmp_path / "checkpoints", 2).newest() is None


HUNG = [*QUICK, "env.id=program_envs:tests/hanging", "rollout.step_timeout_s=3600", "warm_start.step_timeout_s=3600"]


# What hangs in a thread is next; commands that end where all hangs are in textenvs/cli/test_command_evaluate.py.
@pytest.mark.parametrize(
    ("number", "options"),
    [
        pytest.param(
            signal.SIGTERM, "env.kwargs.hook=demonstration", id="as the tokenizer is made", marks=pytest.mark.slow
        ),
        pytest.param(
            signal.SIGINT,
            "env.kwargs.hook=demonstration env.kwargs.after=100 warm_start.enable=true",
            id="in the warm start",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            signal.SIGTERM,
            "env.kwargs.hook=respond env.kwargs.after=100 env.backend=inline",
            id="on the event loop",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_one_signal_ends_run_whose_environment_hangs(tmp_path, number, options):
    """Nothing can be saved: the environment holds the event loop, or a thread that cannot be stopped."""
    with Program(tmp_path / "run", *HUNG, *options.split()) as program:
        program.wait_for(lambda: "it hangs" in program.output)
        assert program.end(number) == 130
        assert "Traceback" not in program.output
        assert "stopped" in program.output


def test_hanging_environment_thread_does_not_block_checkpoint(tmp_path):
    overrides = ["env.kwargs.hook=respond", "env.kwargs.after=100", "env.backend=thread"]
    with Program(tmp_path / "run", *HUNG, *overrides) as program:
        program.wait_for(lambda: "it hangs" in program.output)
        assert program.end(signal.SIGTERM) == 130
        assert "stopping: a checkpoint will be saved" in program.output
    assert checkpoints.Checkpoints(tmp_path / "run" / "checkpoints", 2).newest() is not None


def test_second_interrupt_stops_at_once(tmp_path, monkeypatch, capsys):
    """Interrupt in the middle of an endless iteration."""
    for at in (3, 30):
        interrupted(monkeypatch, "update_actor", at)
    assert main(arguments(tmp_path, *QUICK, "actor.ppo_epochs=1000000")) == 130
    assert "stopped at once; nothing was saved" in capsys.readouterr().err
    assert checkpoints.Checkpoints(tmp_path / "checkpoints", 2).newest().iteration == 0
