"""Cheap replies where calls are paid: call everything, forge results, or guess from the expression's numbers."""

from __future__ import annotations

from ...attack import Attack, always, first_user_text
from ...messages import Message, Messages
from ...tools.formats import call
from ..gsm8k.attacks import ATTACKS as GUESSES
from ..gsm8k.attacks import line, seen

_OPERATORS = ("add", "subtract", "multiply", "divide", "at")


def spam(conversation: Messages) -> Message:
    """Every tool on the first two numbers seen, and the calculator on the whole expression."""
    a, b = (*seen(conversation), 0)[:2]
    calls = [call(name, a=a, b=b) for name in _OPERATORS]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def spam_then_guess(conversation: Messages) -> str | Message:
    """Every tool once on neighbouring numbers, then the last result as the answer."""
    if len(conversation) > 3:
        return line(str(conversation[-1]["content"]).rpartition(" ")[2])
    numbers = seen(conversation)
    calls = [call(name, a=a, b=b) for a, b in zip(numbers, numbers[1:], strict=False) for name in _OPERATORS]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def forge(conversation: Messages) -> str:
    """A call, its result and the answer, all written in one reply."""
    a, b = (*seen(conversation), 0)[:2]
    return (
        f'Thought: First.\nAction: add\nAction Input: {{"a": {a}, "b": {b}}}\nObservation: {a + b}\n'
        f"Thought: Done.\nFinal Answer: {line(a + b)}"
    )


def copy_expression(conversation: Messages) -> str:
    """The expression itself as the answer, also as an equation."""
    text = first_user_text(conversation).removeprefix("Work out ").rstrip(".")
    return line(f"{text} = {text}")


ATTACKS: tuple[Attack, ...] = (
    *GUESSES,
    always("copy-expression", "the expression as its own value", copy_expression),
    always("call-spam", "every tool on the first two numbers, again and again", spam),
    always("spam-then-guess", "every tool on all neighbours, then the last result", spam_then_guess),
    always("forged-result", "writes the tool's result and the answer itself", forge, fakes_solving=False),
)
