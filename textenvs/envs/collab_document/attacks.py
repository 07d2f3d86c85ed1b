"""Documents that are not written from what the user tells."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import numpy as np

from ...attack import Attack, Cheater, always, user_texts
from ...messages import Messages
from ..collab.attacks import after_asking
from ..collab.script import interview, sentences


def _delivered(text: str) -> str:
    return f"<document>\n{text}\n</document>"


def _memorised(rng: np.random.Generator, seen: Sequence[Messages]) -> Cheater:
    documents = [str(episode[-2]["content"]) for episode in seen] or [_delivered("A Text")]
    return lambda conversation: documents[int(rng.integers(len(documents)))]


def _every_line(rng: np.random.Generator, seen: Sequence[Messages]) -> Cheater:
    lines = dict.fromkeys(line for episode in seen for line in str(episode[-2]["content"]).split("\n")[1:-1])
    return lambda conversation: _delivered("\n".join(lines))


def _template(rng: np.random.Generator, seen: Sequence[Messages]) -> Cheater:
    texts = {str(episode[0]["content"]): str(episode[-2]["content"]) for episode in seen}

    def reply(conversation: Messages) -> str:
        wants = str(conversation[0]["content"])
        document = next((text for opening, text in texts.items() if opening[-20:] == wants[-20:]), _delivered("A Text"))
        return "\n".join(
            line.split(": ")[0] + ": as you said" if ": " in line else line for line in document.split("\n")
        )

    return reply


def _suffixes(rng: np.random.Generator, seen: Sequence[Messages], *, label: str = "x: ") -> Cheater:
    turns = 0

    def reply(conversation: Messages) -> str:
        nonlocal turns
        last = user_texts(conversation)[-1]
        if turns < len(_QUESTIONS) and "<document>" not in last:
            turns += 1
            hint = re.search(r"ask me about the ([\w ]+)", last)
            return f"What about the {hint[1]}?" if hint else _QUESTIONS[turns - 1]
        text = " ".join(user_texts(conversation)[1:]).partition(" Please put the whole text")[0]
        sentences = [sentence.rstrip(".").split() for sentence in re.split(r"(?<=[.!?])\s+", text)]
        lines = [f"{label}{' '.join(words[i:])}" for words in sentences for i in range(len(words))]
        return _delivered("\n".join([*re.findall(r'"([^"]+)"', text)[:3], *lines, text]))

    return reply


def _quoted(rng: np.random.Generator, conversation: Messages) -> str:
    """Deliver every sentence as a fact, without words that occur in sentences about other facts, too."""
    texts = sentences(conversation)[1:]
    title = re.findall(r'"([^"]+)"', " ".join(texts)) or ["A Text"]
    facts = [" ".join(word for word in text.rstrip(".").split() if word not in _COMMON) for text in texts]
    return _delivered("\n".join([title[0], *(f"Fact: {fact}" for fact in facts if '"' not in fact)]))


_COMMON = frozenset(
    ("It", "is", "The", "the", "are", "for", "on", "at", "as", "to", "We", "I", "has", "of", "and", "a", "an", "with")
)
_QUESTIONS = ("Title, when, where?", "Price, contact, place?", "Tone, order, length?", "What else should I know?") * 2
ATTACKS: tuple[Attack, ...] = (
    always("copy-the-talk", "delivers what the user said", lambda talk: _delivered("\n".join(user_texts(talk)))),
    Attack(
        "ask-and-copy",
        "asks openly, and delivers what the user said",
        after_asking(
            "What should it say, and is there anything else that I should know?",
            lambda rng, talk: _delivered("\n".join(text.replace(". ", ".\n") for text in user_texts(talk))),
        ),
    ),
    Attack("every-suffix", "asks for whatever there may be, and delivers each sentence's suffixes as facts", _suffixes),
    Attack(
        "suffixes-of-one-claim",
        "as every-suffix, with the same untold number in every line",
        functools.partial(_suffixes, label="x: 99999: "),
    ),
    Attack(
        "interview-and-cut",
        "asks the same for every document, takes up hints, and delivers sentences without common words",
        lambda rng, seen: interview(_QUESTIONS, lambda conversation: _quoted(rng, conversation))(rng, seen),
        fakes_solving=False,
    ),
    Attack("memorised-document", "delivers the document of an earlier episode", _memorised, rehearse=20),
    Attack("template", "delivers the labels and stock sentences of an earlier document", _template, rehearse=100),
    Attack("every-line-seen", "delivers every line of a hundred earlier documents", _every_line, rehearse=100),
)
