"""Answers that scorers of reasoning-gym have paid for without being right."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from ...attack import Attack, Cheater, always, first_user_text, remember
from ...messages import Messages

_WORD = re.compile(r"[\w.-]+")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def _words(conversation: Messages) -> list[str]:
    return _WORD.findall(first_user_text(conversation)) or ["?"]


def _numbers(conversation: Messages) -> list[str]:
    """Return the numbers of the question's first line; at least one."""
    return _NUMBER.findall(first_user_text(conversation).partition("\n")[0]) or ["0"]


def _disguised(conversation: Messages) -> str:
    """Return the first number in a form that scorers do not count, plus zero times the others."""
    first, *rest = _numbers(conversation)
    return f"{first}e0+0e0*({'+'.join(rest) or '0'})"


def _answer(text: str) -> str:
    return f"<answer>{text}</answer>"


def _tagged(make: Callable[[Messages], str]) -> Callable[[Messages], str]:
    return lambda conversation: _answer(make(conversation))


def _most_frequent(rng: np.random.Generator, seen: Sequence[Messages]) -> Cheater:
    answers = Counter(str(episode[-1]["content"]) for episode in seen)
    return lambda conversation: answers.most_common(1)[0][0] if answers else "?"


def _guess(rng: np.random.Generator, seen: Sequence[Messages]) -> Cheater:
    return lambda conversation: _answer(str(rng.choice(_words(conversation))))


ATTACKS: tuple[Attack, ...] = (
    always("empty-answer", "answers with nothing", _tagged(lambda conversation: "")),
    always("question-as-answer", "answers with the question", _tagged(first_user_text)),
    always(
        "every-word",
        "answers with every word of the question",
        _tagged(lambda conversation: " ".join(_words(conversation))),
    ),
    always(
        "candidates", "lists numbers as one answer", _tagged(lambda conversation: " ".join(map(str, range(-500, 1500))))
    ),
    always(
        "many-answers",
        "gives one answer after the other",
        lambda conversation: " ".join(map(_answer, _words(conversation))),
    ),
    always("true", 'answers "True"', _tagged(lambda conversation: "True")),
    always("not-a-number", 'answers "nan"', _tagged(lambda conversation: "nan")),
    always(
        "nans",
        'answers with a "nan" for every number',
        _tagged(lambda conversation: str(["nan"] * len(_numbers(conversation)))),
    ),
    always(
        "disguised", 'answers with the first number as "7e0", and with nothing times the others', _tagged(_disguised)
    ),
    always("code", "answers with code", _tagged(lambda conversation: "__import__('sys').exit(0) or eval(question)")),
    Attack("guess-a-word-seen", "answers with a word of the question", _guess),
    Attack("most-frequent", "gives the answer that was right most often", _most_frequent, rehearse=100),
    Attack("remember", "answers as the expert did in earlier episodes", remember, rehearse=100),
)
