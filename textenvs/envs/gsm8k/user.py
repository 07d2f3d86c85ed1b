"""A scripted user for GSM8K: looks at the answer, and says what is needed to try again, never the answer itself.

Each level of feedback says what the one before it says, and more: ``"none"``, only that it is not right; ``"format"``,
also how to give an answer where there was none; ``"direction"``, also whether it is too low or too high; ``"hint"``,
also the first calculation of the worked solution, without its result. The sentences are short and few, so that a tiny
model can learn to read them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ...data.gsm8k import INSTRUCTION
from ...messages import Message, visible_text
from ...options import checked
from ...scoring.gsm8k import Method, Verdict, compare, judge, normalize
from ...task import Task, TaskError
from ...text import quoted
from ...users.moves import Move

Feedback = Literal["none", "format", "direction", "hint"]
FEEDBACKS: tuple[str, ...] = get_args(Feedback)

_NUMBER = r"\$?[0-9][0-9,]*(?:\.[0-9]+)?%?"
# The left side of a calculation: what stands before "=" in "<<48/2=24>>", or else in plain text, "Tom has 3 + 4 = 7".
_NOTED = re.compile(r"<<([-+*/().,$% 0-9]+)=")
_PLAIN = re.compile(rf"({_NUMBER}(?:\s*[-+*/x\u00d7\u00f7]\s*{_NUMBER})+)\s*=")
# What a reader may take for a number in a hint: ".25" as 0.25 or as 25, "3,400" as 3400 or as 3 and 400.
_READINGS = (re.compile(r"[0-9,]*\.?[0-9]+"), re.compile(r"[0-9][0-9,]*"), re.compile(r"[0-9]+"))


@checked
@dataclass(frozen=True)
class Gsm8kUser:
    """The user of one task: the right number, the worked answer if there is one, and the user's behavior.

    The last two are of verl's rows: the name of the user, and the question once more.
    """

    ground_truth: Any
    solution: str = ""
    method: Method = "marked"
    feedback: Feedback = "direction"
    name: Literal["gsm8k"] = "gsm8k"
    query: str = ""

    def __post_init__(self) -> None:
        if normalize(self.ground_truth) is None:
            raise ValueError(f"ground_truth {quoted(self.ground_truth)} is not a number")

    def judge(self, reply: Message) -> Verdict:
        return judge(visible_text(reply), self.ground_truth, self.method)

    def answer_to(self, verdict: Verdict) -> str:
        """Return the user's message about a wrong reply."""
        if verdict.answer is None and self.feedback != "none":
            return f"{how_to_answer(self.method)} Try again."
        if verdict.answer is None or self.feedback in ("none", "format"):
            return "That is not right. Try again."
        direction = "low" if compare(verdict.answer, self.ground_truth) < 0 else "high"
        start = self.hint() if self.feedback == "hint" else None
        return f"That is too {direction}. {f'Start with {start}. ' if start else ''}Try again."

    def move(self, verdict: Verdict) -> Move:
        """Return what the user does about a reply; it has no words for a right one."""
        if verdict.correct:
            return "confirms"
        return "complains" if verdict.answer is None else "corrects"

    def hint(self) -> str | None:
        """Return the first calculation of the solution, as ``48/2``; ``None`` where none hides the answer."""
        first = _NOTED.search(self.solution) or _PLAIN.search(self.solution)
        if first is None or not re.search(r"[-+*/x\u00d7\u00f7]", first[1].strip()[1:]):
            return None
        seen = {normalize(number) for reading in _READINGS for number in reading.findall(first[1])}
        gives_away = (normalize(self.ground_truth) or "").lstrip("-") in seen
        return None if gives_away else first[1].strip()


def how_to_answer(method: Method) -> str:
    return "End with the number." if method == "flexible" else INSTRUCTION


def user_of(task: Task, *, method: Method, feedback: Feedback) -> Gsm8kUser:
    """Return the user of a task, configured by its row's ``interaction_kwargs``, else by the environment's options.

    ``interaction_kwargs`` (in ``extra_info``, verl's place for it) may have ``name`` (``"gsm8k"``), ``query``,
    ``ground_truth``, ``method`` and ``feedback``.
    """
    overrides: Any = task.extra.get("interaction_kwargs")
    solution = task.extra.get("answer")
    try:
        options = {"ground_truth": task.ground_truth, "method": method, "feedback": feedback, **(overrides or {})}
        return Gsm8kUser(**options, solution=solution if isinstance(solution, str) else "")
    except (TypeError, ValueError) as error:
        where = "extra_info.interaction_kwargs: " if overrides else ""
        raise TaskError(f"task {task.key}: {where}{error}") from error
