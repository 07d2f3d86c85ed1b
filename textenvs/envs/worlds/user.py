"""The user, by a script: gives a detail that it is asked for, and knows nothing else."""

from __future__ import annotations

import re

from ...users.moves import Move
from .story import Story

#: So many replies that lead nowhere a user bears.
PATIENCE = 4
#: Of a reply, so many characters are read.
_READ_CHARS = 400
_UNKNOWN = "I have told you all that I know about that. The rest is for you to find out."


def answer_to(story: Story, disclosed: tuple[int, ...], words: str, idle: int) -> tuple[tuple[int, ...], str, Move]:
    """Return how often each detail has been told after a reply, the user's words, and their move.

    A detail is told where the reply names what it is about, and is short: a list of everything is no question.
    """
    text = " ".join(re.findall(r"\w+", words[:_READ_CHARS].casefold().replace("_", " ")))
    numbers = [
        number
        for number, detail in enumerate(story.details)
        if any(re.search(rf"\b{re.escape(word)}\b", text) for word in detail.about)
    ]
    if not numbers or len(words) > _READ_CHARS:
        return disclosed, _UNKNOWN, "complains"
    after = tuple(count + (number in numbers) for number, count in enumerate(disclosed))
    fresh = any(disclosed[number] < len(story.details[number].says) for number in numbers)
    texts = [says[min(disclosed[number], len(says) - 1)] for number in numbers for says in [story.details[number].says]]
    corrected = any(0 < disclosed[number] < len(story.details[number].says) for number in numbers)
    move: Move = "corrects" if corrected else "reveals" if fresh else "repeats"
    return after if fresh else disclosed, " ".join(texts), move
