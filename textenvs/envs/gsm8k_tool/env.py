"""GSM8K with a reward tool: the policy submits answers, reads whether they are right, and ends with the right one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...data.gsm8k import READER
from ...data.sources import Source, open_source
from ...data.word_problems import LEVELS, Level
from ...env import EpisodeState, Turn
from ...messages import Message, ToolCall, user
from ...options import Cost, Gain, PositiveInt, Price, checked
from ...scoring.gsm8k import Method, judge, normalize
from ...task import Split, Task, TaskError
from ...text import quoted
from ...tool_env import ToolEnv, ToolState
from ...tools.formats import call
from ...tools.schema import tool
from ...tools.toolbox import ToolResult
from ..gsm8k.env import hasty_answer, with_other_number, worked_answer
from ..gsm8k.user import how_to_answer
from .attacks import ATTACKS, TOOL

#: The default system prompt.
SYSTEM_PROMPT = f'Check your answer with {TOOL}. When it is right, end with "#### " and the number.'


@dataclass
class SubmissionState(ToolState):
    """The right answer, and whether it was submitted."""

    gold: str = ""
    accepted: bool = False  # whether the right answer was among them
    rewarded: bool = False  # and whether that has been paid for


@tool
def calc_gsm8k_reward(state: SubmissionState, answer: str | int | float) -> str:
    """Check an answer to the problem: the reward is 1.0 if it is right and 0.0 if not.

    Args:
        state: The episode.
        answer: The number.
    """
    right = normalize(answer) == state.gold
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
        split: ``"train"`` or ``"test"``, of generated and Hub rows.
        seed: Which endless sequence of generated problems. (Episodes are seeded by ``reset``.)
        method: What counts as the answer that ends the episode, as in :class:`~textenvs.envs.gsm8k.Gsm8k`. A reply
            with neither a call nor an answer is answered with a hint, and costs only a turn.
        correct: The reward of ending with the right answer; above 0.
        submission: The reward of the first right submission; at least 0, and no more than a miss costs.
        no_progress: Added for every other submission; at most 0.
        max_assistant_turns: How many replies there are; ``None`` for no limit.
        system_prompt: What stands before the description of the tool, and says how to answer; ``None`` to leave it out.
        **options: ``call_format``, ``tools_in_prompt``, ``max_user_turns``, ``render_mode``, as in
            :class:`~textenvs.tool_env.ToolEnv`.
    """

    state_type: ClassVar[type[EpisodeState]] = SubmissionState
    term_names = ("correct", "submission", "no_progress")
    levels = LEVELS
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
        correct: Gain = 0.8,
        submission: Price = 0.2,
        no_progress: Cost = -0.2,
        max_assistant_turns: PositiveInt | None = 5,
        system_prompt: str | None = SYSTEM_PROMPT,
        **options: Any,
    ) -> None:
        if submission > -no_progress:
            raise ValueError(
                f"submission ({submission}) must be no more than a miss costs ({-no_progress}), or guessing would "
                "pay; lower submission or no_progress"
            )
        super().__init__(
            open_source(tasks, READER, level=level, split=split, seed=seed),
            [calc_gsm8k_reward],
            max_calls_per_turn=1,
            max_assistant_turns=max_assistant_turns,
            system_prompt=system_prompt,
            **options,
        )
        self.method = method
        self.correct, self.submission, self.no_progress = correct, submission, no_progress

    def opening(self, task: Task) -> Sequence[Message]:
        self.state.gold = _checked_truth(task)
        return task.prompt

    def after_tools(self, reply: Message, results: Sequence[ToolResult]) -> Turn:
        state = self.state
        submitted = sum(result.ok for result in results)
        first = state.accepted and not state.rewarded
        state.rewarded |= first
        terms = self.terms(submission=self.submission * first, no_progress=self.no_progress * (submitted - first))
        return Turn(self.tool_messages(results), terms=terms)

    def answer(self, reply: Message) -> Turn:
        verdict = judge(self.visible_reply(reply), self.state.gold, self.method)
        if verdict.answer is None:
            request = f"Check your answer with {TOOL}. {how_to_answer(self.method)}"
            return Turn([user(request)], terms=self.terms(), metrics=verdict.metrics())
        return Turn(
            terminated=True,
            stop="solved" if verdict.correct else "wrong",
            terms=self.terms(correct=self.correct * verdict.correct),
            metrics=verdict.metrics(),
        )

    def twin(self, task: Task) -> Task:
        """Return the problem with the next larger number as its answer."""
        return with_other_number(task)

    def reveals(self, reply: Message) -> bool:
        """Return whether the reply calls the tool: that checks answers."""
        return bool(self.format.parse(reply).calls)

    def demonstration(self, rng: np.random.Generator) -> str | Message:
        """Submit the worked answer's number with its steps; then write the answer line."""
        if self.state.accepted:
            return self.format.write(f"#### {self.task.ground_truth}")
        steps, _, _ = worked_answer(self.task, self.task.ground_truth).rpartition("####")
        return self.format.write(steps.strip(), [_submission(str(self.task.ground_truth))])

    def careless_reply(self, rng: np.random.Generator) -> str | Message:
        hasty = hasty_answer(self.task.ground_truth, rng)
        return self.format.write(hasty) if self.state.accepted else self.format.write("", [_submission(hasty[5:])])


def _submission(answer: str) -> ToolCall:
    number = normalize(answer) or answer
    return call(TOOL, answer=int(number) if number.lstrip("-").isdigit() else float(number))


def _checked_truth(task: Task) -> str:
    """Return a row's right number; a TaskError where it is no number or the options of verl's tool disagree."""
    gold = normalize(task.ground_truth)
    if gold is None:
        raise TaskError(f"task {task.key}: ground_truth {quoted(task.ground_truth)} is not a number")
    tools: Any = task.extra.get("tools_kwargs") or {}
    where = f"task {task.key}: extra_info.tools_kwargs"
    if not isinstance(tools, Mapping):
        raise TaskError(f"{where} must be a mapping of tools, not {type(tools).__name__}")
    if extra_tools := sorted(str(name) for name, options in tools.items() if name != TOOL and options is not None):
        raise TaskError(f"{where} asks for the tools {extra_tools}; this environment has {TOOL!r}")
    match tools.get(TOOL):
        case {"create_kwargs": {"ground_truth": own}} if own is not None and normalize(own) != gold:
            truth = quoted(task.ground_truth)
            raise TaskError(f"{where}: the tool's ground_truth is {quoted(own)}, but reward_model has {truth}")
    return gold
