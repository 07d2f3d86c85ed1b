"""Arithmetic expressions worked out with operator tools, one operation at a time (ReAct)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal

import numpy as np

from ...data.sources import Source, open_source
from ...env import EpisodeState, Turn
from ...messages import Message, user
from ...options import Cost, Gain, PositiveInt, Price, checked
from ...scoring.gsm8k import Method, judge
from ...task import Split, Task, TaskError
from ...tool_env import ToolEnv, ToolState
from ...tools.calculator import add, as_text, bounded, calculate, divide, exact, multiply, subtract
from ...tools.formats import call
from ...tools.jsontext import read_object
from ...tools.schema import Tool, tool
from ...tools.toolbox import ToolResult
from ..gsm8k.env import hasty_answer
from ..gsm8k.user import how_to_answer
from .attacks import ATTACKS
from .tasks import (
    DEFAULT_MADE_UP,
    LEVELS,
    READER,
    Expression,
    ExpressionLevel,
    MadeUp,
    Operation,
    after_step,
    check_expression,
    expression_of,
    next_step,
    operations,
    value,
    write,
)

#: The default system prompt.
SYSTEM_PROMPT = 'Use a tool for every operation, one after the other. Then end with "#### " and the number.'

_SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "at": "@"}
_NAMES = {sign: name for name, sign in _SIGNS.items()}


@dataclass
class ExpressionState(ToolState):
    """The part of the expression that is not worked out yet."""

    remaining: Expression = Fraction(0)
    made_up: MadeUp = DEFAULT_MADE_UP


@tool
def at(state: ExpressionState, a: int | float, b: int | float) -> str:
    """Apply the operation @: a @ b."""
    return as_text(bounded(value(Operation("@", exact(a), exact(b)), state.made_up)))


_OPERATORS: tuple[Tool[..., Any], ...] = (add, subtract, multiply, divide, at)


class MathExpression(ToolEnv[ExpressionState]):
    """An expression to work out: the episode ends with the first answer, ``stop="solved"`` or ``"wrong"``.

    The reward has three terms: ``progress`` is shared equally by the expression's operations, each paid once, when a
    tool works it out; ``wasted_call`` is added for every other call, also for one that fails; ``correct`` is the
    right answer's. With the defaults the shortest way earns 1.0, and nothing else earns more.

    Args:
        tasks: What :func:`~textenvs.data.sources.open_source` takes: a task set, ``"generated:hard"``, or a file whose
            rows have an ``expression``; ``None`` for generated expressions.
        level: Short for ``tasks="generated:<level>"``: ``"easy"`` (the default), ``"medium"``, ``"hard"`` or
            ``"made-up"``; see :class:`~textenvs.envs.math_expression.tasks.GeneratedExpressions`.
        split: ``"train"`` or ``"test"``, of generated expressions.
        seed: Which endless sequence of generated expressions. (Episodes are seeded by ``reset``.)
        tools: ``"operators"`` (``add``, ``subtract``, ``multiply``, ``divide``, and ``at`` for the made-up ``@``) or
            ``"calculator"`` (``calculate``, which takes the whole expression; not with ``@``). The latter is a copy
            task: it teaches no order of operations.
        method: What counts as an answer, as in :class:`~textenvs.envs.gsm8k.Gsm8k`. A reply without one gets a hint,
            and costs only a turn.
        correct: The reward of the right answer; above 0.
        progress: The reward of all operations together; at least 0.
        wasted_call: Added for each call that works out nothing new; at most 0.
        call_format: As in :class:`~textenvs.tool_env.ToolEnv`, and so are the other options.
        max_assistant_turns: How many replies there are; ``None`` for no limit.
        system_prompt: What stands before the description of the tools; ``None`` for nothing.
        **options: ``max_calls_per_turn``, ``tools_in_prompt``, ``max_user_turns``, ``render_mode``.
    """

    state_type: ClassVar[type[EpisodeState]] = ExpressionState
    term_names = ("correct", "progress", "wasted_call")
    levels = LEVELS
    attack_margin = 0.5
    own_attacks = ATTACKS

    @checked
    def __init__(
        self,
        tasks: Source = None,
        *,
        level: ExpressionLevel | None = None,
        split: Split = "train",
        seed: int = 0,
        tools: Literal["operators", "calculator"] = "operators",
        method: Method = "marked",
        correct: Gain = 0.8,
        progress: Price = 0.2,
        wasted_call: Cost = -0.05,
        call_format: str = "react",
        max_assistant_turns: PositiveInt | None = 12,
        system_prompt: str | None = SYSTEM_PROMPT,
        **options: Any,
    ) -> None:
        if tools == "calculator" and level == "made-up":
            raise ValueError("level='made-up' needs tools='operators': a calculator does not know what @ means")
        super().__init__(
            open_source(tasks, READER, level=level, split=split, seed=seed),
            _OPERATORS if tools == "operators" else (calculate,),
            call_format=call_format,
            max_assistant_turns=max_assistant_turns,
            system_prompt=system_prompt,
            **options,
        )
        self.method = method
        self.correct, self.progress, self.wasted_call = correct, progress, wasted_call

    def opening(self, task: Task) -> Sequence[Message]:
        try:
            check_expression(task)
        except ValueError as error:
            raise TaskError(f"task {task.key}: {error}") from error
        self.state.remaining, self.state.made_up = expression_of(task.extra)
        if "@" in task.extra["expression"] and calculate in self.tools:
            raise TaskError(f"task {task.key}: a calculator does not know what @ means; use tools='operators'")
        return task.prompt

    def after_tools(self, reply: Message, results: Sequence[ToolResult]) -> Turn:
        done, wasted = 0, 0
        for result in results:
            before = self.state.remaining
            self.state.remaining = self._after_call(result) if result.ok else before
            done += operations(before) - operations(self.state.remaining)
            wasted += self.state.remaining is before
        whole = operations(expression_of(self.task.extra)[0]) or 1
        terms = self.terms(progress=self.progress * (done / whole), wasted_call=self.wasted_call * wasted)
        return Turn(self.tool_messages(results), terms=terms)

    def answer(self, reply: Message) -> Turn:
        verdict = judge(self.visible_reply(reply), self.task.ground_truth, self.method)
        if verdict.answer is None:
            return Turn([user(f"Use a tool. {how_to_answer(self.method)}")], terms=self.terms())
        return Turn(
            terminated=True,
            stop="solved" if verdict.correct else "wrong",
            terms=self.terms(correct=self.correct * verdict.correct),
        )

    def reveals(self, reply: Message) -> bool:
        """Return ``True``: the opening has the whole expression, and what is right follows from it."""
        return True

    def demonstration(self, rng: np.random.Generator) -> str | Message:
        """Work out the next operation from the left, or answer when there is none."""
        remaining = self.state.remaining
        step = next_step(remaining)
        if step is None:
            return self.format.write(f"#### {as_text(value(remaining, self.state.made_up))}")
        if calculate in self.tools:
            return self.format.write("I work it out.", [call("calculate", expression=write(remaining))])
        a, b = (_as_json(value(side, self.state.made_up)) for side in (step.first, step.second))
        return self.format.write(f"First {write(step)}.", [call(_NAMES[step.sign], a=a, b=b)])

    def secrets(self) -> Sequence[str]:
        """Return the value, until an operation was carried out: a tool's results may be read."""
        untouched = self.state.remaining == expression_of(self.task.extra)[0]
        return super().secrets() if untouched else ()

    def careless_reply(self, rng: np.random.Generator) -> str | Message:
        return self.format.write(hasty_answer(self.task.ground_truth, rng))

    def _after_call(self, result: ToolResult) -> Expression:
        remaining = self.state.remaining
        if result.name not in _SIGNS:  # the calculator takes the expression as a whole
            worth = value(remaining, self.state.made_up)
            return worth if isinstance(remaining, Operation) and result.value == as_text(worth) else remaining
        arguments = read_object(result.call["function"]["arguments"])
        step = Operation(_SIGNS[result.name], exact(arguments["a"]), exact(arguments["b"]))
        return after_step(remaining, step, self.state.made_up)


def _as_json(number: Fraction) -> int | float:
    return number.numerator if number.denominator == 1 else float(number)
