"""GSM8K: a problem and one reply, checked by its final number; or several, with a simulated user who judges each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, TypeVar

import numpy as np

from ...data.gsm8k import INSTRUCTION, READER, from_pair, says_how, with_instruction, without_annotations
from ...data.sources import Source, open_source
from ...data.word_problems import LEVELS, Level
from ...env import EpisodeState, TextEnv, Turn
from ...messages import Message, assistant, user, visible_text
from ...options import Cost, Gain, PositiveInt, Weight, checked
from ...scoring.gsm8k import Method, Verdict, extract, judge, normalize
from ...task import Split, Task
from ...users.moves import move_metrics
from .attacks import ATTACKS, WITH_FEEDBACK
from .user import Feedback, Gsm8kUser, user_of

StateT = TypeVar("StateT", bound=EpisodeState)


class WordProblemEnv(TextEnv[StateT]):
    r"""Problems with one right number each: their source, the form of an answer, and how the answer is extracted.

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
        examples: Problems that were solved before this one was asked: rows with ``question`` and ``answer`` (worked,
            ending in ``#### N``). Each is put before the question as a message of the user, with ``instruction``, and
            the reply to it.
        **options: ``max_assistant_turns``, ``max_user_turns``, ``render_mode``, as in
            :class:`~textenvs.env.TextEnv`.

    Raises:
        ValueError: Both ``tasks`` and ``level``, or a value outside the above.
        TaskError: Rows that cannot be played, listed by file, row and column.
    """

    levels = LEVELS
    attack_margin = 0.5
    own_attacks = ATTACKS

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
        examples: Sequence[Mapping[str, Any]] = (),
        **options: Any,
    ) -> None:
        opened = open_source(tasks, READER, level=level, split=split, seed=seed)
        super().__init__(opened, system_prompt=system_prompt, **options)
        self.method = method
        self.instruction = None if says_how(system_prompt) else instruction
        self.examples: tuple[Message, ...] = ()
        for number, row in enumerate(examples):
            solved = from_pair(row, str(number), f"examples: row {number}", "examples")
            reply = assistant(without_annotations(row["answer"]))
            self.examples += (*with_instruction(solved.prompt, self.instruction), reply)

    def opening(self, task: Task) -> Sequence[Message]:
        messages = with_instruction(task.prompt, self.instruction)
        first = messages[0]["role"] == "system"  # which stays in front
        return (*messages[:first], *self.examples, *messages[first:])

    @property
    def gold(self) -> Any:
        """The right answer."""
        return self.task.ground_truth

    def twin(self, task: Task) -> Task:
        """Return the problem with the next larger number as its answer."""
        return with_other_number(task)

    def demonstration(self, rng: np.random.Generator) -> str:
        return worked_answer(self.task, self.gold)

    def careless_reply(self, rng: np.random.Generator) -> str:
        return hasty_answer(self.gold, rng)

    def judge(self, reply: Message) -> Verdict:
        """Check a reply, without its private reasoning."""
        return judge(visible_text(reply), self.gold, self.method)


class Gsm8k(WordProblemEnv[EpisodeState]):
    """One question, one reply: the episode terminates with ``stop`` ``"solved"`` or ``"wrong"``.

    The reward has two terms: ``correct`` when the answer is right, and ``format`` when it is wrong but in the form
    asked for (on an answer line ``#### N`` for ``method="strict"``, else in any of the marked forms).

    Args:
        tasks: As in :class:`WordProblemEnv`, and so are the other options and errors.
        correct: The reward of the right answer.
        format: The reward of a wrong answer in the right form; less than ``correct``.
        **options: ``level``, ``split``, ``seed``, ``method``, ``instruction``, ``system_prompt``, ``examples``,
            ``render_mode``.
    """

    @checked
    def __init__(self, tasks: Source = None, *, correct: Gain = 1.0, format: Weight = 0.0, **options: Any) -> None:
        super().__init__(tasks, **options)
        if format >= correct:
            raise ValueError(f"format ({format}) must be less than correct ({correct}), or a wrong answer pays as well")
        self.correct, self.format = float(correct), float(format)

    def respond(self, reply: Message) -> Turn:
        verdict = self.judge(reply)
        stop = "solved" if verdict.correct else "wrong"
        return Turn(terminated=True, stop=stop, terms=self.earned(verdict), metrics=verdict.metrics())

    def earned(self, verdict: Verdict) -> dict[str, float]:
        return {
            "correct": self.correct * verdict.correct,
            "format": self.format * (verdict.well_formed and not verdict.correct),
        }


class Gsm8kInteract(Gsm8k):
    """One question, several attempts: the episode ends with ``stop="solved"`` or when the turns run out.

    Every reply is rewarded by itself. The terms, the same on every turn, are ``correct`` (the answer is right),
    ``format`` (it is wrong, but in the form asked for) and ``extra_turn`` (every turn after the first). With the
    defaults a problem solved at once earns 1.0, at the second attempt 0.65 in all, at the third 0.3: so much that
    guessing with the user's "too low" and "too high" earns less than working it out.

    A row's ``interaction_kwargs`` choose and configure its user; see :func:`~textenvs.envs.gsm8k.user.user_of`.

    Args:
        tasks: As in :class:`WordProblemEnv`, and so are the other options and errors.
        feedback: How much the user says about a wrong answer: ``"none"``, ``"format"``, ``"direction"``, ``"hint"``;
            see :mod:`textenvs.envs.gsm8k.user`.
        correct: The reward of the right answer.
        format: The reward of a wrong answer in the right form; less than ``correct``, and no more than an extra turn
            costs, or failing first would pay.
        extra_turn: Added on every turn after the first; at most 0.
        max_assistant_turns: How many attempts there are; ``None`` for no limit.
        **options: ``level``, ``split``, ``seed``, ``method``, ``instruction``, ``system_prompt``, ``examples``,
            ``max_user_turns``, ``render_mode``.
    """

    attack_margin = 0.15  # at the easy level, what a search over the signs leaves
    own_attacks = (*ATTACKS, *WITH_FEEDBACK)

    @checked
    def __init__(
        self,
        tasks: Source = None,
        *,
        feedback: Feedback = "direction",
        correct: Gain = 1.0,
        format: Weight = 0.0,
        extra_turn: Cost = -0.35,
        max_assistant_turns: PositiveInt | None = 3,
        **options: Any,
    ) -> None:
        super().__init__(tasks, correct=correct, format=format, max_assistant_turns=max_assistant_turns, **options)
        if format + extra_turn > 0:
            raise ValueError(
                f"format ({format}) must be no more than an extra turn costs ({-extra_turn}), or answering wrong "
                "first would pay; lower format or extra_turn"
            )
        self.feedback, self.extra_turn = feedback, float(extra_turn)

    def opening(self, task: Task) -> Sequence[Message]:
        self._user_of(task)  # raises for a task that cannot be played
        return super().opening(task)

    def respond(self, reply: Message) -> Turn:
        simulated = self._user_of(self.task)
        verdict = simulated.judge(reply)
        return Turn(
            messages=() if verdict.correct else (user(simulated.answer_to(verdict)),),
            terminated=verdict.correct,
            stop="solved" if verdict.correct else None,
            terms={
                **self.earned(verdict),
                "extra_turn": self.extra_turn if self.state.assistant_turns > 1 else 0.0,
            },
            metrics=verdict.metrics() | move_metrics(simulated.move(verdict)),
        )

    def reveals(self, reply: Message) -> bool:
        """Return ``True``: the user is the judge, and says of every reply that it is wrong, too low or too high."""
        return True

    @property
    def gold(self) -> Any:
        return self._user_of(self.task).ground_truth

    def _user_of(self, task: Task) -> Gsm8kUser:
        return user_of(task, method=self.method, feedback=self.feedback)


def with_other_number(task: Task) -> Task:
    """Return the task with the next larger number as its answer, without the worked one and verl's tool's."""
    extra = {name: value for name, value in task.extra.items() if name not in ("answer", "tools_kwargs")}
    own = extra.get("interaction_kwargs")
    if isinstance(own, Mapping) and "ground_truth" in own:
        extra["interaction_kwargs"] = {**own, "ground_truth": _next(own["ground_truth"])}
    return replace(task, ground_truth=_next(task.ground_truth), extra=extra)


def _next(ground_truth: object) -> str:
    return str(Decimal(normalize(ground_truth) or "0") + 1)


def worked_answer(task: Task, ground_truth: object) -> str:
    """Return the expert's reply: the row's worked answer where it ends in ``ground_truth``, else the answer line."""
    answer = task.extra.get("answer")
    if isinstance(answer, str) and extract(answer) == normalize(ground_truth):
        return without_annotations(answer)
    return f"#### {ground_truth}"


def hasty_answer(ground_truth: object, rng: np.random.Generator) -> str:
    """Return a careless reply: an answer line with an integer that is off by one to three (by a few percent if large).

    A number that would become negative is off upwards.
    """
    truth = int(Decimal(normalize(ground_truth) or "0"))
    off = int(rng.integers(1, max(3, abs(truth) // 20) + 1))
    return f"#### {truth - off if rng.random() < 0.5 and not 0 <= truth < off else truth + off}"
