"""The user, by a script: gives a detail that it is asked for, and knows nothing else."""

from __future__ import annotations

import functools
import itertools
import re
import zlib

from ...users.base import Fact
from ...users.moves import Move
from .skin import spoken
from .story import Detail, Story
from .wording import enumerated, phrases
from .world import World

_SENTENCE_END = re.compile(r"(?<=[.?!])\s+|\n+")
_VERB = r"(?:tell|give|name|specify|confirm|clarify|provide|remind|show|send)"
#: A question, or a request that begins a sentence or follows "please", "you" or "to know": not every "please", "state"
#: or "which" asks for something. "Its name?" is about the sentence before it.
_ASKS = re.compile(
    rf"[?\uff1f]|^\W*(?:what|which|who|whom|whose|where|when)\b|(?:\bnot|n't)(?: yet)? know\b|"
    rf"^\W*(?:and |so |then |first,? )?(?:please,? )?{_VERB}\b|\bplease,? {_VERB}\b|"
    rf"\b(?:could|can|would|will) you (?:please )?{_VERB}\b|\b(?:need|want|like|have) to know\b|\blet me know\b",
    re.IGNORECASE,
)
_ABOUT_BEFORE = re.compile(r"^(?=.*[?\uff1f]).*\b(?:its|their|which|what|who|whom|name)\b", re.IGNORECASE)
#: So many replies that lead nowhere a user bears.
PATIENCE = 4
#: A reply with more characters, or with more different names of the world, asks for too much.
_READ_CHARS, _READ_NAMES = 400, 6


def answer_to(story: Story, disclosed: tuple[int, ...], words: str, idle: int) -> tuple[tuple[int, ...], str, Move]:
    """Return how often each detail has been told after a reply, the user's words, and their move.

    A detail is told where a question or a request names what it is about, in the same sentence or in the one that it
    refers to. After that it is repeated (and corrected) where the reply names it in any way, or has the name that the
    user has said. A reply that does neither is answered with what is left open, without the values; a list of
    everything is no question.

    Args:
        story: The task.
        disclosed: How often each of its details has been told.
        words: The reply.
        idle: How many replies before it led nowhere.
    """
    text = _plain(words[:_READ_CHARS])
    names = _names(story.world, text)
    sentences = ["", *_SENTENCE_END.split(words[:_READ_CHARS])]
    asking = [
        f"{before} {sentence}" if _ABOUT_BEFORE.search(sentence) else sentence
        for before, sentence in itertools.pairwise(sentences)
        if _ASKS.search(sentence)
    ]
    requested = {name for sentence in asking for name in _names(story.world, _plain(sentence))}
    if len(words) > _READ_CHARS or len(names) > _READ_NAMES:
        return disclosed, _say(story, "too_much", idle), "complains"
    numbered = [*enumerate(zip(story.details, disclosed, strict=True))]
    matching = [
        number for number, (detail, count) in numbered if _is_about(detail, count, names if count else requested, text)
    ]
    if not matching and (left_open := [detail.word for _, (detail, count) in numbered if not count]):
        which = enumerated(f"which {word}" for word in left_open)
        return disclosed, _say(story, "left_open", idle, which=which), "complains"
    if not matching:
        return disclosed, _say(story, "nothing_more", idle), "complains"
    details = [(story.details[number], disclosed[number]) for number in matching]
    if all(count >= len(detail.says) for detail, count in details):
        again = [_say(story, "repeated", idle, word=detail.word, value=detail.value) for detail, _ in details]
        return disclosed, " ".join(again), "repeats"
    corrects = any(0 < count < len(detail.says) for detail, count in details)
    texts = [detail.says[min(count, len(detail.says) - 1)] for detail, count in details]
    after = tuple(count + (number in matching) for number, count in enumerate(disclosed))
    return after, " ".join(texts), "corrects" if corrects else "reveals"


def facts_of(story: Story) -> list[Fact]:
    """Return the details of a story, each with the names by which it is asked for."""

    def tells(detail: Detail, text: str, context: str) -> bool:
        after, before = _plain(text), _plain(context)
        # The first answer may have another value: it is told all the same.
        return any(part in after and part not in before for part in map(_plain, (detail.value, *detail.says)))

    def named(detail: Detail, sentence: str) -> bool:
        return not detail.about.isdisjoint(_names(story.world, _plain(sentence)))

    return [
        Fact(detail.word, detail.says[-1], functools.partial(tells, detail), functools.partial(named, detail))
        for detail in story.details
    ]


def _is_about(detail: Detail, count: int, names: set[str], text: str) -> bool:
    """Return whether a reply asks for a detail that has been told so often: by what it is, or by the name it was told.

    "There is no such thing as ..." has the name alone.
    """
    quotes = re.findall(r'"(.+?)"', detail.says[min(count, len(detail.says)) - 1]) if count else []
    return not names.isdisjoint(detail.about) or any(_plain(name) in text for name in quotes)


def _plain(text: str) -> str:
    """Return the words of a text in small letters, with single spaces."""
    return " ".join(re.findall(r"\w+", text.casefold().replace("_", " ")))


def _say(story: Story, name: str, idle: int, **parts: str) -> str:
    """Return a phrase of a list, another at every turn: the first is decided by the request."""
    choices = phrases(name, story.split)
    return choices[(zlib.crc32(story.request.encode()) + idle) % len(choices)].format(**parts)


def _names(world: World, text: str) -> set[str]:
    """Return the names of entities and fields in a plain text, and "who" where it asks for a person.

    Longer names go first: a guest house is no guest.
    """
    if "names" not in world.cache:
        entities = world.schema.entities.values()
        called = {name for one in entities for name in (*one.called, *one.plural)}
        called |= {name for one in entities for part in one.fields.values() for name in part.called}
        every = sorted(map(spoken, called), key=lambda name: (-len(name), name))
        world.cache["names"] = re.compile(rf"\b({'|'.join(every)})s?\b")
    pattern: re.Pattern[str] = world.cache["names"]
    return {*pattern.findall(text), *(("who",) if re.search(r"\bwho(m|se)?\b", text) else ())}
