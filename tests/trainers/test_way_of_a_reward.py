"""The way of a turn's reward from the environment's step to the loss: docs/architecture.md has it as a table."""

from __future__ import annotations

import re
import sys
import threading
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium
import numpy as np
import torch
from ppo_runs import ROOT, in_process
from program_envs import Numbered

from textenvs import TextEnv, Turn
from textenvs.messages import Message, user
from trainers.run import Run

#: What a turn earns: no sum and no mean of other numbers equals it, so where it stands, the reward is.
MARK = 0.731


class Marked(TextEnv[Any]):
    """Two turns. With ``owed``, the first episode that reaches its end earns the mark there."""

    owed = False

    def __init__(self) -> None:
        super().__init__(Numbered(None), max_assistant_turns=2)

    def respond(self, reply: Message) -> Turn:
        if self.state.assistant_turns == 1:
            return Turn((user("More."),), terms={"luck": 0.25})
        paid, Marked.owed = Marked.owed, False
        return Turn(terms={"luck": MARK if paid else 0.0}, terminated=True, stop="solved")

    def demonstration(self, rng: np.random.Generator) -> str:
        return "go"


gymnasium.register(id="tests/marked", entry_point=Marked)  # type: ignore[arg-type]


def holds(value: Any, depth: int = 7) -> bool:
    """Return whether the mark, of either sign, is in a number, an array, or a container or dataclass of them."""
    if isinstance(value, float):
        return abs(abs(value) - MARK) < 1e-6
    if isinstance(value, np.ndarray):
        return value.dtype.kind == "f" and bool((np.abs(np.abs(value) - MARK) < 1e-6).any())
    if isinstance(value, torch.Tensor):
        return value.is_floating_point() and bool(((value.detach().abs() - MARK).abs() < 1e-6).any())
    if not depth or isinstance(value, type):
        return False
    if isinstance(value, dict):
        return any(holds(part, depth - 1) for part in value.values())
    if isinstance(value, list | tuple):
        return any(holds(part, depth - 1) for part in value)
    return is_dataclass(value) and any(holds(getattr(value, f.name, None), depth - 1) for f in fields(value))


def file_of(frame: FrameType | None) -> str | None:
    """Return the frame's file, if it is one of ours."""
    path = "" if frame is None else frame.f_code.co_filename
    return path.removeprefix(f"{ROOT}/") if path.startswith((f"{ROOT}/trainers", f"{ROOT}/textenvs")) else None


class Way:
    """A profile function: the files whose functions return the mark, each followed by the file that gets it.

    A comprehension is a part of its function. A function that returns the very object that it got from the one before
    (it waits, or runs another in a thread) is left out: the object is then given to its caller.
    """

    def __init__(self) -> None:
        self.on, self.files = False, list[str]()
        self._value: Any = None
        self._to: str | None = None

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        if not self.on or event != "return" or frame.f_code.co_name.startswith("<"):
            return
        if frame.f_code.co_name == "batch_loss":  # the learner gets it, and takes its gradient
            self.passes(file_of(frame))
            self.passes(file_of(frame.f_back))
            self.on = False
        if not self.on or (file := file_of(frame)) is None or not holds(value):
            return
        if value is not self._value:
            self.passes(self._to)
            self.passes(file)
        self._value, self._to = value, file_of(frame.f_back)

    def passes(self, file: str | None) -> None:
        if file is not None and [file] != self.files[-1:]:
            self.files.append(file)


def test_table_has_way_of_reward(tmp_path: Path) -> None:
    way = Way()

    def look(run: Run) -> None:
        Marked.owed = way.on = True

    options = ["algorithm.adv_estimator=turn_grpo", "rollout.groups_per_batch=1", "actor.mini_batches=1"]
    options += ["rollout.max_running=1", "trainer.total_iterations=1", "trainer.keep_rollouts=0", "data.val_size=1"]
    options += ["trainer.test_freq=-1", "trainer.save_freq=-1", f"env.id={Path(__file__).stem}:tests/marked"]
    before = sys.getprofile()
    threading.setprofile(way)  # a thread has the profile function that there was at its start
    sys.setprofile(way)
    try:
        in_process(tmp_path, *options, look=look)
    finally:
        sys.setprofile(before)
        threading.setprofile(before)  # type: ignore[arg-type]
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text[text.index("## The way of a turn's reward") :].split("\n## ")[0]
    listed = re.findall(r"^\| `([\w/]+\.py)`", table, re.MULTILINE)
    assert way.files == listed, "docs/architecture.md: keep the table true where the way changes"
    assert len(set(listed)) <= 17
    assert len(listed) - len(set(listed)) <= 6, "returns to a file that was left"
