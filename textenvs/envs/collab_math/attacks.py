r"""Answers that are not worked out."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from ...attack import Attack, Cheater, always, user_texts
from ...messages import Messages
from ..collab.attacks import after_asking, last_user_text
from ..collab.script import interview


def _numbers(conversation: Messages) -> list[str]:
    return re.findall(r"\d+", " ".join(user_texts(conversation)))


def _expression(rng: np.random.Generator, conversation: Messages) -> str:
    return rf"\boxed{{{rng.choice(['+', '-', '*', '/']).join(_numbers(conversation) or ['1'])}}}"


def _worked_out(rng: np.random.Generator, conversation: Messages) -> str:
    """Return the value of an expression over the numbers told, multiplied first, as most stories are."""
    first, *rest = map(int, _numbers(conversation) or ["1"])
    for place, number in enumerate(rest):
        sign = "*" if place == 0 else rng.choice(["*", "+", "-"])
        first = {"*": first * number, "+": first + number, "-": first - number}[sign]
    return f"#### {first}"


def _mentioned(conversation: Messages) -> list[str]:
    """Return a question about each thing that the user names without a number."""
    return [
        f"What about the {topic}?" for topic in re.findall(r"\bthe (\w+)(?=[,.]| and )", user_texts(conversation)[0])
    ]


def _salad(rng: np.random.Generator, seen: Sequence[Messages]) -> Cheater:
    """Start lists of words as questions, until all is disclosed or patience is short; then formulas by the numbers."""
    turns = 0

    def reply(conversation: Messages) -> str:
        nonlocal turns
        turns += 1
        all_told = any("####" in text for text in user_texts(conversation))
        return _worked_out(rng, conversation) if all_told or turns > len(_SALADS) else _SALADS[turns - 1]

    return reply


_SALADS = (
    "How many each per first begin start hold fit row tray box bag?",
    "Which price cost sell share split divide need order plan goal?",
    "Are any lost broken stolen given bought found won delivered more?",
    "What tax rent fine tip gift refund partner team week day hall?",
)
_GENERAL = (
    "How many are there at first? How many in each?",
    "What else should I know?",
    "What is the price? How many do you need?",
    "Are any lost? Do you get more?",
)
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
    Attack("keyword-salad", "asks by lists of words, and then tries a formula", _salad, fakes_solving=False),
    Attack(
        "interview-and-formula",
        "asks the same questions in every story, takes up hints, and tries a formula",
        lambda rng, seen: interview(
            lambda conversation: (*_mentioned(conversation), *_GENERAL),
            lambda conversation: _worked_out(rng, conversation),
            lambda conversation: len(_numbers(conversation)) > 2,
        )(rng, seen),
        fakes_solving=False,
    ),
)
