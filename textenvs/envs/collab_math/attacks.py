r"""Answers that are not worked out."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from ...attack import Attack, Cheater, always
from ...messages import Messages
from ..collab.attacks import last_user_text, user_texts

_NUMBER = re.compile(r"\d+")


def _numbers(conversation: Messages) -> list[str]:
    return _NUMBER.findall(" ".join(user_texts(conversation)))


def _guess(rng: np.random.Generator, seen: Sequence[Messages]) -> Cheater:
    def reply(conversation: Messages) -> str:
        return f"#### {rng.choice(_numbers(conversation) or ['12'])}"

    return reply


def _product(rng: np.random.Generator, seen: Sequence[Messages]) -> Cheater:
    """Ask openly once, and then put what was told between operators of its own choice."""
    asked = False

    def reply(conversation: Messages) -> str:
        nonlocal asked
        if not asked:
            asked = True
            return "What should I know?"
        return rf"\boxed{{{rng.choice(['+', '-', '*', '/']).join(_numbers(conversation) or ['1'])}}}"

    return reply


ATTACKS: tuple[Attack, ...] = (
    Attack("guess-a-number-seen", "answers at once, with a number that was said", _guess),
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
    Attack("formula-of-the-numbers", "answers with an expression made of the numbers told", _product),
)
