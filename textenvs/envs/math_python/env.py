"""Mathematical problems with a sandboxed Python tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...data.sources import Reader, Source, open_source
from ...env import EpisodeState, Turn
from ...messages import Message, user
from ...options import Cost, Gain, checked
from ...sandbox import Sandbox
from ...scoring.final_answer import boxed, final_answer
from ...scoring.gsm8k import normalize
from ...scoring.math import MathVerdict, judge_math_async, require_math_verify
from ...task import Split, Task, TaskError
from ...text import quoted
from ...tool_env import ToolEnv, ToolState
from ...tools.formats import call
from ...tools.python import python_tool
from ...tools.toolbox import ToolResult
from ..gsm8k.env import hasty_answer, with_other_number
from .attacks import ATTACKS
from .script import SCRIPT
from .tasks import COLUMNS, LEVELS, ComputingLevel, GeneratedComputing, from_problem

_SYSTEM_PROMPT = "Use the tool python to compute. When you know the answer, end with \\boxed{the answer}."
#: How a row's answer is checked (``extra_info.grader``): as a number, or by Math-Verify, which is the default.
_GRADERS = ("number", "math-verify")


@dataclass
class MathState(ToolState):
    """The state of a tool episode, with a flag for the scripted expert: a program printed the answer alone."""

    computed: bool = False


_READER = Reader(GeneratedComputing, LEVELS, from_problem, COLUMNS, "Maxwell-Jia/AIME_2024", shape="problem")


class MathPython(ToolEnv[MathState]):
    r"""One problem, and a tool ``python`` that runs programs in a sandbox; the reply that states an answer ends it.

    It is stated in ``\boxed{...}``, which the policy is asked for, after ``####``, or as "The answer is N"; the last
    counts (:func:`~textenvs.scoring.final_answer.final_answer`). ``stop`` is then ``"solved"`` or ``"wrong"``. A reply
    with neither a call nor an answer gets a hint, and costs only a turn. Two terms of reward: ``correct`` for the
    right answer, and ``calls``, which is ``call_cost`` for every call.

    Generated problems have numbers as answers, compared by value. Rows of files and of the Hub are compared by
    Math-Verify (extra ``math``), unless their ``extra_info.grader`` is ``"number"``; an answer that states the problem
    again is wrong (:mod:`textenvs.scoring.restated`). One that cannot be compared in ``grader_timeout_s`` counts as
    wrong, and ``info["metrics"]["grader_timeout"]`` says so.

    Args:
        tasks: ``None`` for generated problems; a ``.jsonl`` or ``.parquet`` file of problems (MATH's or AIME's
            columns, or verl's); ``"math"``, ``"aime24"`` and others of ``textenvs data list``; ``"hub:REPOSITORY"``; a
            sequence of these; or a task set.
        level: ``"easy"``, ``"medium"``, ``"hard"``; see :class:`~textenvs.envs.math_python.tasks.GeneratedComputing`.
        split: ``"train"`` or ``"test"``, of generated and Hub rows.
        seed: Which endless sequence of generated problems. (Episodes are seeded by ``reset``.)
        correct: The reward of the right answer; above 0.
        call_cost: Added for every call; at most 0.
        grader_timeout_s: Seconds for comparing an answer by Math-Verify.
        sandbox: Where programs run: a :class:`~textenvs.sandbox.Sandbox`, or a mapping of its options
            (``packages``, ``allow_unsafe``, ...) and of those of its limits (``cpu_s``, ``memory_mb``, ...).
        max_output_chars: Characters of a program's output, and of its errors, that the policy sees.
        call_format: As in :class:`~textenvs.tool_env.ToolEnv`, and so are the other options.
        max_assistant_turns: How many replies there are; ``None`` for no limit.
        system_prompt: What stands before the description of the tool; ``None`` for nothing.
        **options: ``max_calls_per_turn``, ``tools_in_prompt``, ``max_user_turns``, ``render_mode``.

    Raises:
        SandboxUnavailable: No sandbox holds on this machine; the message says what to do.
        ValueError: Both ``tasks`` and ``level``, or a value outside the above.
        TaskError: Rows that cannot be played, listed by file, row and column.
        ImportError: Rows need a library that is not installed; the message names the extra.
    """

    state_type: ClassVar[type[EpisodeState]] = MathState
    term_names = ("correct", "calls")
    levels = LEVELS
    attack_margin = 0.9
    own_attacks = ATTACKS
    own_script = SCRIPT

    @checked
    def __init__(
        self,
        tasks: Source = None,
        *,
        level: ComputingLevel | None = None,
        split: Split = "train",
        seed: int = 0,
        correct: Gain = 1.0,
        call_cost: Cost = 0.0,
        grader_timeout_s: Gain = 5.0,
        sandbox: Sandbox | Mapping[str, Any] | None = None,
        max_output_chars: int = 2000,
        call_format: str = "hermes",
        max_assistant_turns: int | None = 6,
        system_prompt: str | None = _SYSTEM_PROMPT,
        **options: Any,
    ) -> None:
        opened = open_source(tasks, _READER, level=level, split=split, seed=seed)
        if not isinstance(opened, GeneratedComputing):
            require_math_verify()
        super().__init__(
            opened,
            [python_tool(Sandbox.of(sandbox), max_chars=max_output_chars)],
            call_format=call_format,
            max_assistant_turns=max_assistant_turns,
            system_prompt=system_prompt,
            **options,
        )
        self.correct, self.call_cost = float(correct), float(call_cost)
        self.grader_timeout_s = float(grader_timeout_s)

    def opening(self, task: Task) -> Sequence[Message]:
        """Return the row's prompt; a TaskError where its answer cannot be checked."""
        grader, truth = task.extra.get("grader", "math-verify"), str(task.ground_truth)
        where = f"task {task.key}:"
        if grader not in _GRADERS:
            raise TaskError(f"{where} extra_info.grader is {grader!r}; it must be one of {', '.join(_GRADERS)}")
        if grader == "number" and normalize(truth) is None:
            raise TaskError(f"{where} ground_truth {quoted(truth)} is not a number, and extra_info.grader wants one")
        if grader == "math-verify":
            require_math_verify()
        return task.prompt

    def after_tools(self, reply: Message, results: Sequence[ToolResult]) -> Turn:
        self.state.computed |= any(result.ok and result.content == str(self.task.ground_truth) for result in results)
        terms = self.terms(calls=self.call_cost * len(results))
        return Turn(self.tool_messages(results), terms=terms, metrics=_metrics(None))

    async def answer(self, reply: Message) -> Turn:
        """Judge the answer that ends the episode; ask for one where there is none."""
        stated, truth = final_answer(self.visible_reply(reply)), str(self.task.ground_truth)
        if stated is None:
            text = "Use python, or end with \\boxed{the answer}."
            return Turn([user(text)], terms=self.terms(), metrics=_metrics(None))
        number, gold = normalize(stated), normalize(truth)
        if self.task.extra.get("grader") == "number" or (number is not None and number == gold):
            verdict = MathVerdict("equal" if number == gold else "different", stated)
        else:
            problem = "\n".join(str(message["content"]) for message in self.task.prompt)
            reads, seconds = f"\\boxed{{{stated}}}", self.grader_timeout_s
            try:
                verdict = await judge_math_async(reads, truth, timeout_s=seconds, problem=problem)
            except ValueError as error:  # no answer to such a row can be judged
                raise TaskError(f"task {self.task.key}: {error}") from error
        terms = self.terms(correct=self.correct * verdict.correct)
        stop = "solved" if verdict.correct else "wrong"
        return Turn(terminated=True, stop=stop, terms=terms, metrics=_metrics(verdict))

    def twin(self, task: Task) -> Task | None:
        """Return the problem with the next larger number as its answer; ``None`` where the answer is no number."""
        return None if normalize(task.ground_truth) is None else with_other_number(task)

    def demonstration(self, rng: np.random.Generator) -> str | Message:
        """Run the problem's program until one has printed the answer, then state it; without one, the solution."""
        truth, extra = self.task.ground_truth, self.task.extra
        program, solution = extra.get("program"), extra.get("solution")
        if isinstance(program, str) and not self.state.computed:
            return self.format.write("", [call("python", code=program)])
        if isinstance(solution, str) and boxed(solution) == truth:
            return self.format.write(solution)
        return self.format.write(f"\\boxed{{{truth}}}")

    def careless_reply(self, rng: np.random.Generator) -> str | Message:
        """Answer with a number near the right one; where that is no number, with any small one."""
        truth = self.task.ground_truth
        near = hasty_answer(truth, rng).removeprefix("#### ") if normalize(truth) else rng.integers(10)
        return self.format.write(f"\\boxed{{{near}}}")


def _metrics(verdict: MathVerdict | None) -> dict[str, float]:
    late = verdict is not None and verdict.reason == "timeout"
    return {"answered": float(verdict is not None), "grader_timeout": float(late)}
