"""GSM8K in one turn: a problem, one reply, a check of its final number."""

from __future__ import annotations

from decimal import Decimal

import numpy as np

from ...data.gsm8k import without_annotations
from ...data.load import Source, load_tasks
from ...data.word_problems import Level
from ...env import EpisodeState, TextEnv, Turn
from ...messages import Message, visible_text
from ...options import check_number
from ...scoring.gsm8k import METHODS, Method, extract, judge, normalize
from ...task import Split, Task, TaskSet


class Gsm8k(TextEnv[EpisodeState]):
    """One question, one reply: the episode terminates with ``stop`` ``"solved"`` or ``"wrong"``.

    The reward has two terms: ``correct`` when the answer is right, and ``format`` when it is wrong but stands on an
    answer line, ``#### N``. The row's prompt is played as it is: generated problems are the bare question, JSONL and
    Hub rows end in an instruction, Parquet rows bring their own; ``system_prompt`` adds one to any of them.

    Args:
        tasks: What :func:`~textenvs.data.load.load_tasks` takes: a task set, a ``.jsonl`` or ``.parquet`` file,
            ``"generated:easy"``, ``"hub:openai/gsm8k"``, or ``None`` for rows prepared earlier, else generated ones.
        level: Short for ``tasks="generated:<level>"``.
        split: ``"train"`` or ``"test"``, of generated, prepared and Hub rows.
        seed: Which endless sequence of generated problems. (Episodes are seeded by ``reset``.)
        method: ``"strict"`` (the last ``#### N`` of the reply counts) or ``"flexible"`` (its last number).
        correct: The reward of the right answer.
        format: The reward of a wrong answer on an answer line; less than ``correct``.
        system_prompt: A system message put before prompts that have none.
        render_mode: As in :class:`~textenvs.env.TextEnv`.

    Raises:
        ValueError: Both ``tasks`` and ``level``, or a value outside the above.
        TaskError: Rows that cannot be played, listed by file, row and column.
    """

    def __init__(
        self,
        tasks: Source = None,
        *,
        level: Level | None = None,
        split: Split = "train",
        seed: int = 0,
        method: Method = "strict",
        correct: float = 1.0,
        format: float = 0.0,
        system_prompt: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        check_options(method, correct, format)
        super().__init__(open_tasks(tasks, level, split, seed), system_prompt=system_prompt, render_mode=render_mode)
        self.method = method
        self.correct = float(correct)
        self.format = float(format)

    def respond(self, reply: Message) -> Turn:
        """Judge the one reply."""
        task = self.state.task
        assert task is not None
        verdict = judge(visible_text(reply), task.ground_truth, self.method)
        return Turn(
            terminated=True,
            stop="solved" if verdict.correct else "wrong",
            terms={
                "correct": self.correct * verdict.correct,
                "format": self.format * (verdict.well_formed and not verdict.correct),
            },
            metrics=verdict.metrics(),
        )

    def demonstration(self, rng: np.random.Generator) -> str:
        """The task's worked answer."""
        task = self.state.task
        assert task is not None
        return worked_answer(task, task.ground_truth)

    def careless_reply(self, rng: np.random.Generator) -> str:
        """A number near the answer, given in haste: without working anything out."""
        task = self.state.task
        assert task is not None
        return hasty_answer(task.ground_truth, rng)


def open_tasks(tasks: Source, level: Level | None, split: Split, seed: int) -> TaskSet:
    """The task set that an environment's options name.

    Raises:
        ValueError: Both ``tasks`` and ``level`` are given, or one of the options is unknown.
    """
    if level is None:
        return load_tasks(tasks, split=split, seed=seed)
    if tasks is not None:
        raise ValueError(f"give either tasks or level, not both: level={level!r} is short for 'generated:{level}'")
    return load_tasks(f"generated:{level}", split=split, seed=seed)


def check_options(method: str, correct: float, format: float) -> None:
    """Check the options that both environments have.

    Raises:
        ValueError: Naming the option that is wrong.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    check_number("correct", correct)
    check_number("format", format)
    if format >= correct:
        raise ValueError(f"format ({format}) must be less than correct ({correct}), or a wrong answer pays as well")


def worked_answer(task: Task, ground_truth: object) -> str:
    """The scripted expert's reply: the row's worked answer where it ends in ``ground_truth``, else the answer line."""
    answer = task.extra.get("answer")
    if isinstance(answer, str) and extract(answer) == normalize(ground_truth):
        return without_annotations(answer)
    return f"#### {ground_truth}"


def hasty_answer(ground_truth: object, rng: np.random.Generator) -> str:
    """The careless reply: an answer line with an integer that is off by one to three (by a few percent if large).

    Where taking away would pass zero, it is off upwards.
    """
    truth = int(Decimal(normalize(ground_truth) or "0"))
    off = int(rng.integers(1, max(3, abs(truth) // 20) + 1))
    return f"#### {truth - off if rng.random() < 0.5 and not 0 <= truth < off else truth + off}"
