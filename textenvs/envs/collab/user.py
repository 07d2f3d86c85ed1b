"""CollabLLM's user without a language model: knows a goal in pieces, starts vague, and tells them one by one.

A state machine, and a pure one: what it says next follows from what it has told so far, the assistant's words, what
the environment makes of them, and a random generator that picks the phrasing. Its rules, in order:

1. A delivery (an answer, a document, a program) that satisfies it ends the talk.
2. A question about something that it has not told yet is answered, up to ``answers`` things a turn.
3. Otherwise it tells one further piece, whatever the assistant said, as long as that was anything at all, and no
   delivery: guessing is no way to be told things.
4. Otherwise (a delivery that is not right, nothing said, or nothing left to tell) it complains and loses patience;
   without any left it ends the talk.

Every piece is told at most once, and never all of several in one message, so the goal is never stated as a whole.
Since each turn tells a piece or costs patience, the talk always ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from .tasks import Piece

Accepts = Literal["right", "any"]
ACCEPTS: tuple[str, ...] = ("right", "any")

# Nobody reads a longer message to its beginning.
_READS = 20_000

_SENTENCE = re.compile(r"(?<=[.!?\uff1f\n])")
_CLAUSE = re.compile(r"[,;:\n]|\b(?:and|or|as well as)\b", re.IGNORECASE)
_WORDS = re.compile(r"[^\W_]+")

_ASIDE = ("", "", "One thing I should say.", "I forgot to mention this.", "Something else.")
_KNOWN = ("I said that already.", "You know that already.")
_TOO_EARLY = ("Wait, there is more to it.", "You do not know everything yet.")
_WRONG = ("That is not it.", "No, that is not right.", "That cannot be right.")
_ALL_TOLD = ("That is all I know.", "There is nothing more to say about it.", "That is everything.")
_NOTHING = ("I cannot read anything there.", "Hello? Your message is empty.")
_THANKS = ("Thank you, that is what I wanted.", "Great, that is it. Thanks!", "Perfect, thank you.")
_ENOUGH = ("Thank you, that will do.", "All right, thanks. I will take that.")
_GAVE_UP = ("This does not work out. I give up.", "Let us leave it. It will not come right.")
_LEFT = ("I have to go now.", "Sorry, I am leaving. This gets us nowhere.")


@dataclass(frozen=True)
class Memory:
    """What the user remembers of the talk: the pieces told, in this order, and how much patience is gone."""

    told: tuple[int, ...] = ()
    lost: int = 0


@dataclass(frozen=True)
class Delivery:
    """What the environment makes of a reply.

    Args:
        made: Whether the reply delivers something: an answer, a document, a program.
        right: Whether what it delivers is right.
        remark: What the user says about a delivery that is not right; never what would be right.
    """

    made: bool = False
    right: bool = False
    remark: str = ""


@dataclass(frozen=True)
class Reaction:
    """What the user does: says ``text``, and ends the talk when there is a ``stop``.

    ``asked_for`` is how many of the told pieces the assistant asked for; ``metrics`` are more numbers worth reporting.
    """

    text: str
    memory: Memory
    stop: str | None = None
    asked_for: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class UserBehavior:
    """How a user behaves, whatever its goal.

    Args:
        answers: How many questions are answered in one turn, at least 1.
        patience: After how many turns without progress the user ends the talk, at least 1.
        accepts: ``"right"``: the user can tell whether a delivery is right. ``"any"``: the user cannot, and takes any
            delivery once everything is told, and none before.

    Raises:
        ValueError: Naming the value that is wrong.
    """

    answers: int = 2
    patience: int = 3
    accepts: Accepts = "right"

    def __post_init__(self) -> None:
        for name, number in (("answers", self.answers), ("patience", self.patience)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ValueError(f"{name} must be an integer of at least 1, not {number!r}")
        if self.accepts not in ACCEPTS:
            raise ValueError(f"accepts must be one of {', '.join(ACCEPTS)}, not {self.accepts!r}")


@dataclass(frozen=True)
class CollabUser:
    """The user of one goal.

    Args:
        pieces: What there is to tell; at least one.
        form: A sentence that says how to deliver, added when everything is told.
        manners: How it behaves.

    Raises:
        ValueError: There is nothing to tell.
    """

    pieces: Sequence[Piece]
    form: str = ""
    manners: UserBehavior = UserBehavior()

    def __post_init__(self) -> None:
        if not self.pieces:
            raise ValueError("a user needs at least one piece to tell")

    def untold(self, memory: Memory) -> tuple[int, ...]:
        """The pieces that are still to be told."""
        return tuple(i for i in range(len(self.pieces)) if i not in memory.told)

    def react(self, memory: Memory, text: str, delivery: Delivery, rng: np.random.Generator) -> Reaction:
        """What the user does about a reply.

        Args:
            memory: As the last reaction left it.
            text: What the user can read of the assistant's message.
            delivery: What the environment makes of it.
            rng: Picks phrasings, and the piece that is told without being asked for.
        """
        untold = self.untold(memory)
        if delivery.made and self.manners.accepts == "right" and delivery.right:
            return Reaction(_pick(_THANKS, rng), memory, "solved")
        if delivery.made and self.manners.accepts == "any" and not untold:
            return Reaction(_pick(_ENOUGH, rng), memory, "solved" if delivery.right else "user_left")
        asked = self.asked_for(text, memory)
        # One piece stays back when there are several, so that no single message says all.
        most = min(self.manners.answers, max(1, len(self.pieces) - 1))
        told = wanted = [piece for piece in asked if piece in untold][:most]
        if not wanted:
            if delivery.made or not text.strip() or not untold:
                return self._complain(memory, text, delivery, rng)
            told = [untold[int(rng.integers(len(untold)))]]
        parts = [_pick(self.pieces[piece].sayings, rng) for piece in told]
        if delivery.made:
            parts.insert(0, self._about(delivery, rng))
        elif not wanted:
            parts.insert(0, _pick(_KNOWN if asked else _ASIDE, rng))
        memory = Memory((*memory.told, *told), memory.lost)
        if len(told) == len(untold):
            parts += [_pick(_ALL_TOLD, rng), self.form]
        return Reaction(_joined(parts), memory, None, len(wanted))

    def asked_for(self, text: str, memory: Memory) -> tuple[int, ...]:
        """The pieces that the questions in ``text`` are about, in the order they are asked for.

        Every clause of a question asks for one piece at most: the one with the most keywords in it, and among equals
        one that is not told yet.
        """
        asked: dict[int, None] = {}
        for sentence in _SENTENCE.split(text[-_READS:]):
            if not sentence.endswith(("?", "\uff1f")):
                continue
            for clause in _CLAUSE.split(sentence.lower()):
                words = set(_WORDS.findall(clause))
                hits = [sum(any(w.startswith(k) for w in words) for k in piece.keywords) for piece in self.pieces]
                if max(hits) > 0:
                    best = [piece for piece, hit in enumerate(hits) if hit == max(hits)]
                    open_ = [piece for piece in best if piece not in memory.told and piece not in asked]
                    asked[(open_ or best)[0]] = None
        return tuple(asked)

    def _complain(self, memory: Memory, text: str, delivery: Delivery, rng: np.random.Generator) -> Reaction:
        memory = Memory(memory.told, memory.lost + 1)
        if memory.lost >= self.manners.patience:
            untold = self.untold(memory)
            return Reaction(_pick(_LEFT if untold else _GAVE_UP, rng), memory, "user_left" if untold else "gave_up")
        if not text.strip():
            return Reaction(_pick(_NOTHING, rng), memory)
        if delivery.made:
            return Reaction(self._about(delivery, rng), memory)
        return Reaction(_joined([_pick(_ALL_TOLD, rng), self.form]), memory)

    def _about(self, delivery: Delivery, rng: np.random.Generator) -> str:
        """What it says about a delivery that does not end the talk."""
        if self.manners.accepts == "any":
            return _pick(_TOO_EARLY, rng)
        return delivery.remark or _pick(_WRONG, rng)


def _pick(choices: Sequence[str], rng: np.random.Generator) -> str:
    return choices[int(rng.integers(len(choices)))]


def _joined(parts: Sequence[str]) -> str:
    return " ".join(part for part in parts if part)
