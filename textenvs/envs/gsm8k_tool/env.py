"""GSM8K with a reward tool: the policy submits answers, hears whether they are right, and ends with the right one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...data.load import Source
from ...data.word_problems import Level
from ...env import EpisodeState, Turn
from ...messages import Message, ToolCall, user
from ...options import check_gain, check_number
from ...scoring.gsm8k import METHODS, Method, judge, normalize
from ...task import Split, Task, TaskError
from ...text import quoted
from ...tool_env import ToolEnv, ToolState
from ...tools.formats import call
from ...tools.schema import tool
from ...tools.toolbox import ToolResult
from ..gsm8k.env import hasty_answer, open_tasks, worked_answer

#: The tool's name, as verl's rows have it.
TOOL = "calc_gsm8k_reward"

#: What the policy is told by default.
SYSTEM_PROMPT = f'Check your answer with {TOOL}. When it is right, end with "#### " and the number.'


@dataclass
class SubmissionState(ToolState):
    """What was submitted."""

    submissions: int = 0
    accepted: bool = False  # whether the right answer was among them
    rewarded: bool = False  # and whether that has been paid for


@tool
def calc_gsm8k_reward(state: SubmissionState, answer: str | int | float) -> str:
    """Check an answer to the problem: the reward is 1.0 if it is right and 0.0 if not.

    Args:
        state: The episode.
        answer: The number.
    """
    assert state.task is not None
    state.submissions += 1
    right = normalize(answer) is not None and normalize(answer) == normalize(state.task.ground_truth)
    state.accepted |= right
    return "Right, reward 1.0." if right else "Wrong, reward 0.0."


class Gsm8kTool(ToolEnv[SubmissionState]):
    """One question; answers are submitted to a tool, and the reply with an answer line ends the episode.

    ``stop`` is then ``"solved"`` or ``"wrong"``. The reward has three terms: ``submission``, once, for the first
    submission of the right answer; ``no_progress`` for every other submission, wrong or not needed any more; and
    ``correct`` for ending with the right answer. With the defaults, the right answer submitted at once and then given
    earns 1.0, after one wrong submission 0.8, after two 0.6; given without submitting it earns 0.8. A submission that
    is right with probability *p* pays only where ``p * (submission + correct)`` is more than what a miss costs: one
    in six. Of the calls in one reply only one is run, so that each guess costs a turn as well.

    Args:
        tasks: As in :class:`~textenvs.envs.gsm8k.Gsm8k`, and so are ``level``, ``split`` and ``seed``. Rows made for
            verl's tool of the same name are understood.
        level: Short for ``tasks="generated:<level>"``.
        split: ``"train"`` or ``"test"``, of generated, prepared and Hub rows.
        seed: Which endless sequence of generated problems. (Episodes are seeded by ``reset``.)
        method: What ends the episode: ``"strict"`` (the last ``#### N`` of a reply) or ``"flexible"`` (its last
            number). A reply with neither a call nor an answer is told so, and costs only a turn.
        correct: The reward of ending with the right answer; above 0.
        submission: The reward of the first right submission; at least 0, and no more than a miss costs.
        no_progress: Added for every other submission; at most 0.
        call_format: As in :class:`~textenvs.tool_env.ToolEnv`, and so are the other options.
        max_assistant_turns: How many replies there are; ``None`` for no limit.
        system_prompt: What stands before the description of the tool; ``None`` for nothing.
        **options: ``tools_in_prompt``, ``max_user_turns``, ``render_mode``.

    Raises:
        ValueError: Both ``tasks`` and ``level``, a value outside the above, or rewards by which guessing could pay.
        TaskError: Rows that cannot be played, listed by file, row and column.
    """

    state_type: ClassVar[type[EpisodeState]] = SubmissionState
    term_names = ("correct", "submission", "no_progress")

    def __init__(
        self,
        tasks: Source = None,
        *,
        level: Level | None = None,
        split: Split = "train",
        seed: int = 0,
        method: Method = "strict",
        correct: float = 0.8,
        submission: float = 0.2,
        no_progress: float = -0.2,
        call_format: str = "hermes",
        max_assistant_turns: int | None = 5,
        system_prompt: str | None = SYSTEM_PROMPT,
        **options: Any,
    ) -> None:
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
        check_gain("correct", correct)
        check_number("submission", submission)
        check_number("no_progress", no_progress)
        if not 0 <= submission <= -no_progress:
            raise ValueError(
                f"submission ({submission}) must be at least 0 and no more than a miss costs ({-no_progress}), or "
                "guessing would pay; lower submission or no_progress"
            )
        super().__init__(
            open_tasks(tasks, level, split, seed),
            [calc_gsm8k_reward],
            call_format=call_format,
            max_calls_per_turn=1,
            max_assistant_turns=max_assistant_turns,
            system_prompt=system_prompt,
            **options,
        )
        self.method = method
        self.correct, self.submission, self.no_progress = float(correct), float(submission), float(no_progress)

    def opening(self, task: Task) -> Sequence[Message]:
        """The row's prompt, once its ground truth and its tool are known to be ones that can be played."""
        check_row(task)
        return task.prompt

    def after_tools(self, reply: Message, results: Sequence[ToolResult]) -> Turn:
        """Pay for the first right submission, charge for any other."""
        state = self.state
        submitted = sum(result.ok for result in results)
        first = state.accepted and not state.rewarded
        state.rewarded |= first
        terms = self.terms(submission=self.submission * first, no_progress=self.no_progress * (submitted - first))
        return Turn(self.tool_messages(results), terms=terms)

    def answer(self, reply: Message) -> Turn:
        """Judge the answer that ends the episode; ask for one where there is none."""
        task = self.state.task
        assert task is not None
        verdict = judge(self.said(reply), task.ground_truth, self.method)
        if verdict.answer is None:
            wanted = "#### and the number" if self.method == "strict" else "the number"
            return Turn([user(f"Use {TOOL}, or end with {wanted}.")], terms=self.terms(), metrics=verdict.metrics())
        return Turn(
            terminated=True,
            stop="solved" if verdict.correct else "wrong",
            terms=self.terms(correct=self.correct * verdict.correct),
            metrics=verdict.metrics(),
        )

    def demonstration(self, rng: np.random.Generator) -> str | Message:
        """The worked answer without its last line, and its number to the tool; then the answer line."""
        task = self.state.task
        assert task is not None
        if self.state.accepted:
            return self.format.write(f"#### {task.ground_truth}")
        steps, _, _ = worked_answer(task, task.ground_truth).rpartition("####")
        return self.format.write(steps.strip(), [submit(str(task.ground_truth))])

    def careless_reply(self, rng: np.random.Generator) -> str | Message:
        """A number near the answer, given in haste: to the tool, or at the end."""
        task = self.state.task
        assert task is not None
        hasty = hasty_answer(task.ground_truth, rng)
        return self.format.write(hasty) if self.state.accepted else self.format.write("", [submit(hasty[5:])])


def submit(answer: str) -> ToolCall:
    """A call that submits a number."""
    number = normalize(answer) or answer
    return call(TOOL, answer=int(number) if number.lstrip("-").isdigit() else float(number))


def check_row(task: Task) -> None:
    """Check that a row can be played, and that what it says for verl's tool is what is played here.

    Raises:
        TaskError: The ground truth is no number; the row asks for other tools; or the tool's ground truth is another.
    """
    gold = normalize(task.ground_truth)
    if gold is None:
        raise TaskError(f"task {task.key}: ground_truth {quoted(task.ground_truth)} is not a number")
    tools: Any = task.extra.get("tools_kwargs")
    if tools is None:
        return
    where = f"task {task.key}: extra_info.tools_kwargs"
    if not isinstance(tools, Mapping):
        raise TaskError(f"{where} must be a mapping of tools, not {type(tools).__name__}")
    if others := sorted(str(name) for name, given in tools.items() if name != TOOL and given is not None):
        raise TaskError(f"{where} asks for the tools {others}; this environment has {TOOL!r}")
    options: Any = tools.get(TOOL) or {}
    created: Any = options.get("create_kwargs") if isinstance(options, Mapping) else None
    own = created.get("ground_truth") if isinstance(created, Mapping) else None
    if own is not None and normalize(own) != gold:
        raise TaskError(
            f"{where}: the tool's ground_truth is {quoted(own)}, but reward_model has {quoted(task.ground_truth)}"
        )
