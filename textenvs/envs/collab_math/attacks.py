r"""Answers that are not worked out."""

from __future__ import annotations

import re

import numpy as np

from ...attack import Attack, always, user_texts
from ...messages import Messages
from ..collab.attacks import after_asking, last_user_text


def _numbers(conversation: Messages) -> list[str]:
    return re.findall(r"\d+", " ".join(user_texts(conversation)))


def _expression(rng: np.random.Generator, conversation: Messages) -> str:
    return rf"\boxed{{{rng.choice(['+', '-', '*', '/']).join(_numbers(conversation) or ['1'])}}}"


ATTACKS: tuple[Attack, ...] = (
    Attack(
        "guess-a-number-seen",
        "answers at once, with a number that was said",
        lambda rng, seen: lambda conversation: f"#### {rng.choice(_numbers(conversation) or ['12'])}",
    ),
    always(
        "list-candidates",
        "lists every number up to 300 as the answer",
        lambda conversation: " ".join(f"#### {number}" for number in range(1, 301)),
    ),
    always(
        "candidates-in-a-box",
        "puts every number seen into one box",
        lambda conversation: rf"\boxed{{{', '.join(_numbers(conversation)) or 'all'}}}",
    ),
    always(
        "problem-in-a-box",
        "copies what the user said as the answer",
        lambda conversation: rf"\boxed{{{' '.join(user_texts(conversation))}}}",
    ),
    always(
        "ask-and-box",
        "asks for everything, and copies the user's last words as the answer",
        lambda conversation: rf"What else should I know? \boxed{{{last_user_text(conversation)}}}",
    ),
    Attack(
        "formula-of-the-numbers",
        "answers with an expression made of the numbers told",
        after_asking("What should I know?", _expression),
    ),
)
