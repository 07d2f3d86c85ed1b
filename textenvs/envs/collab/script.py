"""Shared parts of the collaboration families' scripts: the talk up to a delivery, and a classifier of wordings.

A script is an hour's work from the phrase tables of training tasks (``own_script`` of a family's class). It sees the
conversation alone. What it earns on test tasks, whose wordings it has not seen, says how much of a family needs no
model.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from ...attack import Cheater, first_user_text, user_texts
from ...messages import Messages
from ...task import split_choices
from .tasks import PHRASES

_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\d\"$])")
_SENTENCES_OF_NO_USE = tuple(
    phrase for name, phrases in PHRASES.items() if name not in ("asides", "stop_words") for phrase in phrases if phrase
)
_HINT = re.compile(r"[Aa]sk me about the ([\w ]+?)[,.]")


@functools.cache
def asides() -> tuple[str, ...]:
    """Return training's sentences that have no part in a goal."""
    return tuple(split_choices(PHRASES["asides"], "train"))


_FIELD = re.compile(r"\\\{(\w+)\\\}")  # of a wording, escaped
_FORMS = ("Please end with", "Please put the")  # how a user says how to deliver


def pattern_of(wording: str, fields: Mapping[str, str]) -> re.Pattern[str]:
    """Compile a wording, with each of its ``{fields}`` replaced by that field's regular expression."""
    return re.compile(_FIELD.sub(lambda match: fields[match[1]], re.escape(wording)))


class Words:
    """A classifier of short texts by the words in them: naive Bayes over examples of each class."""

    def __init__(self, examples: Mapping[str, Iterable[str]]) -> None:
        listed = {name: list(texts) for name, texts in examples.items()}
        self._counts = {
            name: Counter(word for text in texts for word in set(_words(text))) for name, texts in listed.items()
        }
        self._texts = {name: len(texts) for name, texts in listed.items()}
        self._vocabulary = {word for counts in self._counts.values() for word in counts}

    def scores(self, text: str) -> dict[str, float]:
        """Return each class's log-likelihood of the words that were in examples, the likeliest class first."""
        words = {word for word in _words(text) if word in self._vocabulary}
        scores = {name: self._score(name, words) for name in self._counts}
        return dict(sorted(scores.items(), key=lambda item: -item[1]))

    def best(self, text: str) -> str:
        """Return the likeliest class."""
        return next(iter(self.scores(text)))

    def _score(self, name: str, words: Iterable[str]) -> float:
        counts, texts = self._counts[name], self._texts[name]
        return sum(math.log((counts[word] + 0.3) / (texts + 3)) for word in words)


def _words(text: str) -> list[str]:
    return ["#" if word.isdigit() else word for word in re.findall(r"\d+|[$%]|[a-z]+", text.lower())]


def sentences(conversation: Messages) -> list[str]:
    """Return the user's sentences, without phrases that tell nothing and without the form of the delivery."""
    candidates = (sentence for text in user_texts(conversation) for sentence in _SENTENCE.split(text))
    return [
        sentence
        for sentence in candidates
        if sentence not in _SENTENCES_OF_NO_USE and not _HINT.search(sentence) and not sentence.startswith(_FORMS)
    ]


def interview(
    questions: Callable[[Messages], Sequence[str]] | Sequence[str],
    deliver: Callable[[Messages], str],
    complete: Callable[[Messages], bool] | None = None,
) -> Callable[[np.random.Generator, Sequence[Messages]], Cheater]:
    """Return the start of a script: it asks its ``questions``, takes up hints, and delivers once all seems told.

    Args:
        questions: The same in every conversation, or a function of it.
        deliver: Writes the delivery.
        complete: Whether the opening already tells all, so that nothing is asked; ``None``: it never does.
    """

    def start(rng: np.random.Generator, seen: Sequence[Messages]) -> Cheater:
        history: list[str] = []

        def reply(conversation: Messages) -> str:
            last = user_texts(conversation)[-1]
            all_told = any(phrase in last for phrase in PHRASES["all_told"])
            if all_told or len(history) > 10 or (not history and complete and complete(conversation)):
                return deliver(conversation)
            if hint := _HINT.search(last):
                question = f"What about the {hint[1]}?"
            else:
                texts = questions(conversation) if callable(questions) else questions
                question = next((text for text in texts if text not in history), "What else is there?")
            history.append(question)
            return question

        return reply

    return start


def opening_sentences(conversation: Messages) -> list[str]:
    """Return the first message of the user, by sentences."""
    return _SENTENCE.split(first_user_text(conversation))
