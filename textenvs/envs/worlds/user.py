"""The user, by a script: gives a detail that it is asked for, and knows nothing else."""

from __future__ import annotations

import re
import zlib

from ...users.moves import Move
from .skin import spoken
from .story import Story
from .wording import enumerated, phrases
from .world import World

#: So many replies that lead nowhere a user bears.
PATIENCE = 4
#: A reply with more characters, or with more different names of the world, asks for too much.
_READ_CHARS, _READ_NAMES = 400, 6


def answer_to(story: Story, disclosed: tuple[int, ...], words: str, idle: int) -> tuple[tuple[int, ...], str, Move]:
    """Return how often each detail has been told after a reply, the user's words, and their move.

    A detail is told where the reply names what it is about. A reply that names none of those that are left open is told
    which these are, without their values; a list of everything is no question.

    Args:
        story: The task.
        disclosed: How often each of its details has been told.
        words: The reply.
        idle: How many replies before it led nowhere.
    """
    names = _names(story.world, words)
    numbers = [number for number, detail in enumerate(story.details) if not names.isdisjoint(detail.about)]
    if len(words) > _READ_CHARS or len(names) > _READ_NAMES:
        return disclosed, _say(story, "too_much", idle), "complains"
    left_open = [detail.word for detail, count in zip(story.details, disclosed, strict=True) if not count]
    if not numbers and left_open:
        which = enumerated(f"which {word}" for word in left_open)
        return disclosed, _say(story, "left_open", idle, which=which), "complains"
    if not numbers:
        return disclosed, _say(story, "nothing_more", idle), "complains"
    after = tuple(count + (number in numbers) for number, count in enumerate(disclosed))
    fresh = any(disclosed[number] < len(story.details[number].says) for number in numbers)
    texts = [says[min(disclosed[number], len(says) - 1)] for number in numbers for says in [story.details[number].says]]
    corrected = any(0 < disclosed[number] < len(story.details[number].says) for number in numbers)
    if not fresh:
        details = [story.details[number] for number in numbers]
        again = [_say(story, "repeated", idle, word=detail.word, value=detail.value) for detail in details]
        return disclosed, " ".join(again), "repeats"
    return after, " ".join(texts), "corrects" if corrected else "reveals"


def _say(story: Story, name: str, idle: int, **parts: str) -> str:
    """Return a phrase of a list, another at every turn: the first is decided by the request."""
    choices = phrases(name, story.split)
    return choices[(zlib.crc32(story.request.encode()) + idle) % len(choices)].format(**parts)


def _names(world: World, words: str) -> set[str]:
    """Return the names of entities and fields in a reply, and "who" where it asks for a person.

    Longer names go first: a guest house is no guest.
    """
    text = " ".join(re.findall(r"\w+", words[:_READ_CHARS].casefold().replace("_", " ")))
    if "names" not in world.cache:
        entities = world.schema.entities.values()
        called = {name for one in entities for name in (*one.called, *one.plural)}
        called |= {name for one in entities for part in one.fields.values() for name in part.called}
        every = sorted(map(spoken, called), key=lambda name: (-len(name), name))
        world.cache["names"] = re.compile(rf"\b({'|'.join(every)})s?\b")
    pattern: re.Pattern[str] = world.cache["names"]
    return {*pattern.findall(text), *(("who",) if re.search(r"\bwho(m|se)?\b", text) else ())}
