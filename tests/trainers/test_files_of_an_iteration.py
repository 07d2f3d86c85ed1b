"""The files that one iteration on the embedded engine passes through: docs/architecture.md has them in a table."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from ppo_runs import ROOT, in_process

from trainers.run import Run

PACKAGE = ROOT / "trainers"


class Entered:
    """A profile function: the files of the package in which a function was called, while it is ``on``."""

    def __init__(self) -> None:
        self.on = False
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if self.on and event == "call" and code.co_name != "<module>" and code.co_filename.startswith(str(PACKAGE)):
            self.files.add(Path(code.co_filename).relative_to(PACKAGE).as_posix())


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> Any:
    """From before the engine's thread starts: a thread has the profile function that there was at its start."""
    before, hook = sys.getprofile(), Entered()
    threading.setprofile(hook)
    sys.setprofile(hook)
    yield hook
    sys.setprofile(before)
    threading.setprofile(before)  # type: ignore[arg-type]


def test_table_has_files_of_iteration(tmp_path: Path, entered: Entered) -> None:
    def look(run: Run) -> None:
        report = run.reporter.iteration

        def iteration(step: int, *rest: Any) -> None:
            report(step, *rest)
            entered.on = step == 1  # the second is recorded, its report included

        run.reporter.iteration = iteration  # type: ignore[method-assign]

    options = ["algorithm.adv_estimator=turn_grpo", "trainer.total_iterations=2", "trainer.save_freq=-1"]
    in_process(tmp_path, *options, "trainer.test_freq=-1", look=look)
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text[text.index("## The files of one iteration") :].split("\n## ")[0]
    listed = re.findall(r"`([\w/]+\.py)`", table)
    entered.files.discard("learner/cpu.py")  # entered on AMD processors alone
    assert sorted(entered.files) == sorted(listed), "docs/architecture.md: keep the table true where files move or join"
