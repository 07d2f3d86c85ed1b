"""GSM8K in one turn: a problem, one reply, a check of its final number."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import Field

from ...attack import COMMON, Attack
from ...data.gsm8k import INSTRUCTION, READER, says_how, with_instruction, without_annotations
from ...data.sources import Source, open_source
from ...data.word_problems import LEVELS, Level
from ...env import EpisodeState, TextEnv, Turn
from ...messages import Message, visible_text
from ...options import Gain, checked
from ...scoring.gsm8k import Method, Verdict, extract, judge, normalize
from ...task import Split, Task
from .attacks import ATTACKS

StateT = TypeVar("StateT", bound=EpisodeState)
Finite = Annotated[float, Field(allow_inf_nan=False)]


class WordProblemEnv(TextEnv[StateT]):
    r"""Problems with one right number each: where they come from, how to answer, and how the answer is found.

    Args:
        tasks: What :func:`~textenvs.data.sources.open_source` takes: a task set, a ``.jsonl`` or ``.parquet`` file,
            ``"generated:easy"``, ``"hub:openai/gsm8k"``, or a list of these; ``None`` for generated problems.
        level: Short for ``tasks="generated:<level>"``; ``"easy"`` where ``tasks`` is not given either.
        split: ``"train"`` or ``"test"``, of generated and Hub rows.
        seed: Which endless sequence of generated problems. (Episodes are seeded by ``reset``.)
        method: ``"marked"`` (the last answer marked by ``#### N``, ``\boxed{N}`` or "The answer is N"), ``"strict"``
            (the last ``#### N``) or ``"flexible"`` (the last number); see :mod:`textenvs.scoring.gsm8k`.
        instruction: Put after the question, unless the row's prompt or ``system_prompt`` says how to answer; ``None``
            to add nothing.
        system_prompt: A system message put before prompts that have none.
        **options: ``max_assistant_turns``, ``max_user_turns``, ``render_mode``, as in
            :class:`~textenvs.env.TextEnv`.

    Raises:
        ValueError: Both ``tasks`` and ``level``, or a value outside the above.
        TaskError: Rows that cannot be played, listed by file, row and column.
    """

    levels = LEVELS
    attack_margin = 0.5

    @checked
    def __init__(
        self,
        tasks: Source = None,
        *,
        level: Level | None = None,
        split: Split = "train",
        seed: int = 0,
        method: Method = "marked",
        instruction: str | None = INSTRUCTION,
        system_prompt: str | None = None,
        **options: Any,
    ) -> None:
        opened = open_source(tasks, READER, level=level, split=split, seed=seed)
        super().__init__(opened, system_prompt=system_prompt, **options)
        self.method = method
        self.instruction = None if says_how(system_prompt) else instruction

    def opening(self, task: Task) -> Sequence[Message]:
        """The row's prompt, with how to answer."""
        return with_instruction(task.prompt, self.instruction)

    def demonstration(self, rng: np.random.Generator) -> str:
        """The task's worked answer."""
        return worked_answer(self.task, self.task.ground_truth)

    def careless_reply(self, rng: np.random.Generator) -> str:
        """A number near the answer, given in haste: without working anything out."""
        return hasty_answer(self.task.ground_truth, rng)

    def attacks(self) -> Sequence[Attack]:
        """Guesses from the question's numbers, and lists of them."""
        return (*COMMON, *ATTACKS)

    def judge(self, reply: Message) -> Verdict:
        """Check a reply, without its private reasoning."""
        return judge(visible_text(reply), self.task.ground_truth, self.method)


class Gsm8k(WordProblemEnv[EpisodeState]):
    """One question, one reply: the episode terminates with ``stop`` ``"solved"`` or ``"wrong"``.

    The reward has two terms: ``correct`` when the answer is right, and ``format`` when it is wrong but in the form
    asked for (on an answer line ``#### N`` for ``method="strict"``, else in any of the marked forms).

    Args:
        tasks: As in :class:`WordProblemEnv`, and so are the other options.
        correct: The reward of the right answer.
        format: The reward of a wrong answer in the right form; less than ``correct``.
        **options: ``level``, ``split``, ``seed``, ``method``, ``instruction``, ``system_prompt``, ``render_mode``.

    Raises:
        ValueError: Both ``tasks`` and ``level``, or a value outside the above.
        TaskError: Rows that cannot be played, listed by file, row and column.
    """

    @checked
    def __init__(self, tasks: Source = None, *, correct: Gain = 1.0, format: Finite = 0.0, **options: Any) -> None:
        super().__init__(tasks, **options)
        check_format(correct, format)
        self.correct = float(correct)
        self.format = float(format)

    def respond(self, reply: Message) -> Turn:
        """Judge the one reply."""
        verdict = self.judge(reply)
        return Turn(
            terminated=True,
            stop="solved" if verdict.correct else "wrong",
            terms={
                "correct": self.correct * verdict.correct,
                "format": self.format * (verdict.well_formed and not verdict.correct),
            },
            metrics=verdict.metrics(),
        )


def check_format(correct: float, format: float) -> None:
    """Raise ``ValueError`` unless a wrong answer in the right form earns less than the right one."""
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
