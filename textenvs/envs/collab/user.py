"""CollabLLM's user without a language model: knows a goal in pieces, starts vague, and tells what it is asked for.

A pure state machine; its rules are in docs/environments/collab-math.md. It volunteers nothing. Every piece is disclosed
at most once, and never all of several in one message. Since each turn tells a piece or costs patience, the talk
always ends. A clause is understood if it is a question of few words: a list of keywords is not, and costs patience.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from ...users.guard import values_in
from ...users.moves import Move
from .tasks import PHRASES, Piece, content_words, keywords_of

Accepts = Literal["right", "any"]

# A longer message is read from its end only, and of several questions in one turn only the first are read.
_READS, _HEARS = 20_000, 4
# Content words of a clause that is understood, and how many of them may be about nothing that the user has in mind.
_MOST_WORDS, _MOST_FOREIGN = 6, 2
# A sentence without any word of a question is understood if it has so few content words ("The price?").
_ELLIPTIC = 2

# A period ends a sentence after a letter only: "1. the price" and "2.5" continue.
_SENTENCE = re.compile(r"(?<=[!?\uff1f\n])|(?<=[^\W\d_]\.)(?=\s)")
_ITEM = re.compile(r"\s*(?:[-*\u2022]|\d+[.)])\s")
_REQUEST = re.compile(
    r"\b(?:tell|give|provide|share|describe|explain|clarify|specify|let me know|(?:need|like|want) to know)\b"
)
_CLAUSE = re.compile(r"[,;:\n]|\b(?:and|or|as well as)\b")
_OPEN = re.compile(
    r"\b(?:else|more|further|other|everything|anything|details?|inform\w*|facts?|know|numbers?|figures?|conditions?"
    r"|problem|statement|context|background|specif\w*|requirements?|missing)\b"
)
_WORDS = re.compile(r"[^\W_]+")
_QUESTION_WORD = re.compile(
    r"\b(?:how|what|when|where|which|who|whom|whose|why|is|are|was|were|do|does|did|has|have|had|can|could|will|would"
    r"|shall|should|may|might|must|any)\b"
)
# Words with which questions are asked: they are not what is asked for.
_ASKING = frozenset(
    ("many", "much", "tell", "know", "please", "need", "want", "like", "give", "let", "ask", "say", "there", "exactly")
    + ("also", "total")
)


@dataclass(frozen=True)
class Memory:
    """The user's memory: pieces told, patience lost, questions read (in plain words), and any open question."""

    disclosed: tuple[int, ...] = ()
    lost: int = 0
    wrong: int = 0  # deliveries that were not right
    questions: frozenset[str] = frozenset()
    opened: bool = False


@dataclass(frozen=True)
class Check:
    """The score of a delivery."""

    score: float  # the task score, from 0 to 1
    right: bool  # whether it satisfies the user
    remark: str = ""  # what the user says about one that does not; never what would be right
    metrics: Mapping[str, float] = field(default_factory=dict)  # those that the family names in `check_metrics`


@dataclass(frozen=True)
class Inquiry:
    """The requests in a reply."""

    pieces: tuple[int, ...]  # that its questions are about, in this order
    open: bool  # whether it asks a question about nothing in particular that the user could answer
    questions: Mapping[str, int | None]  # its new questions in plain words, and the piece that each is about
    any: bool  # whether it asks anything at all, repetitions included
    again: bool = False  # whether it repeats a question about a piece, word for word
    unclear: int = 0  # clauses that cannot be understood: lists of words, or too many of them


@dataclass(frozen=True)
class Reaction:
    """The user's action: it says ``text``, and ends the talk when there is a ``stop``."""

    text: str
    memory: Memory
    stop: str | None = None
    asked_for: int = 0  # how many of the told pieces a question was about
    asks: bool = False  # whether the reply asked for something that it did not know
    needless: bool = False  # whether it asked only for what had been told
    metrics: Mapping[str, float] = field(default_factory=dict)
    move: Move | None = None  # ``None`` where a model plays the user
    content: bool = False  # whether it ends the talk because it accepts what was delivered


@dataclass(frozen=True)
class CollabUser:
    """The user of one goal; its behavior is set by options of :class:`~textenvs.envs.collab.env.Collab`."""

    pieces: Sequence[Piece]
    form: str = ""
    answers: int = 2
    patience: int = 3
    deliveries: int = 2
    accepts: Accepts = "right"
    volunteers: bool = False

    def untold(self, memory: Memory) -> tuple[int, ...]:
        return tuple(i for i in range(len(self.pieces)) if i not in memory.disclosed)

    def react(self, memory: Memory, text: str, delivery: Check | None, rng: np.random.Generator) -> Reaction:
        """Return the reaction to a reply, of which it can read ``text`` and whose checked delivery is ``delivery``."""
        untold = self.untold(memory)
        if delivery and self.accepts == "right" and delivery.right:
            return Reaction(_pick("thanks", rng), memory, "solved", move="confirms", content=True)
        if delivery and self.accepts == "any" and not untold:
            stop = "solved" if delivery.right else "user_left"
            return Reaction(_pick("enough", rng), memory, stop, move="ends", content=True)
        inquiry = self.inquiry(text, memory)
        # One piece stays back when there are several, so that no single message says all.
        most = min(self.answers, max(1, len(self.pieces) - 1))
        disclosed = requested = [piece for piece in inquiry.pieces if piece in untold][:most]
        may_offer = bool(untold) and not requested and not delivery  # a guess gets no information
        opened = may_offer and inquiry.open and not memory.opened
        if opened or (may_offer and self.volunteers and text.strip()):
            disclosed = [untold[int(rng.integers(len(untold)))]]
        unanswered = {piece for piece in untold if piece not in disclosed}  # a question about these may be asked again
        memory = Memory(
            (*memory.disclosed, *disclosed),
            memory.lost + (not disclosed or inquiry.unclear > 0),
            memory.wrong + (delivery is not None and self.accepts == "right"),
            memory.questions | {clause for clause, piece in inquiry.questions.items() if piece not in unanswered},
            memory.opened or opened,
        )
        needless = (
            not delivery and not disclosed and inquiry.any and (not untold or bool(inquiry.pieces) or inquiry.again)
        )
        if not disclosed or memory.lost >= self.patience or memory.wrong >= self.deliveries:
            before = memory if not disclosed else replace(memory, disclosed=memory.disclosed[: -len(disclosed)])
            return replace(self._complain(before, text, delivery, inquiry, rng), needless=needless)
        parts = [_choose(self.pieces[piece].sayings, rng) for piece in disclosed]
        if delivery:
            parts.insert(0, self._about(delivery, rng))
        elif not requested:
            parts.insert(0, _pick("aside", rng))
        if len(disclosed) == len(untold):
            parts += [_pick("all_told", rng), self.form]
        move: Move = "corrects" if delivery else "reveals"
        return Reaction(_joined(parts), memory, None, len(requested), bool(requested) or opened, move=move)

    def inquiry(self, text: str, memory: Memory, *, strict: bool = True) -> Inquiry:
        """Return what the questions and requests in ``text`` are about.

        Every clause asks for one piece at most: the one with the most keywords in it, among equals one that is not told
        yet, and then the one of whose keywords it has the larger share. A clause that was asked before, word for word,
        asks for nothing. One that is a list of words and no question, or too long, is unclear, and one with too many
        words about other things asks for nothing, unless not ``strict``: a person understands more than keywords.
        """
        pieces: dict[int, None] = {}
        questions: dict[str, int | None] = {}
        clauses = unclear = 0
        asking = open_ = listing = again = False
        for sentence in _SENTENCE.split(text[-_READS:].lower()):
            request = sentence.rstrip().endswith(("?", "\uff1f")) or _REQUEST.search(sentence) is not None
            if not request and not (listing and _ITEM.match(sentence)):
                listing = listing and not sentence.strip()
                continue
            asking = asking or len(_WORDS.findall(sentence)) > 1
            listing = listing or sentence.rstrip().endswith(":")
            about = []
            formed = not request or any(form.search(sentence) for form in (_QUESTION_WORD, _REQUEST))
            formed = formed or len(content_words(sentence)) <= _ELLIPTIC
            for clause in _CLAUSE.split(sentence):
                words = _WORDS.findall(clause)
                plain = " ".join(words)
                clauses += bool(words)
                if not words or plain in questions or clauses > _HEARS:
                    continue
                if plain in memory.questions:
                    again = again or self._about_piece(words, ()) is not None
                    continue
                weight, foreign = self._weigh(clause) if strict else (0, 0)
                if strict and not (formed and weight <= _MOST_WORDS):
                    unclear += 1
                    continue
                done = (*memory.disclosed, *pieces)
                questions[plain] = piece = self._about_piece(words, done) if foreign <= _MOST_FOREIGN else None
                about.append(piece)
                if piece is not None:
                    pieces[piece] = None
            open_ = open_ or (bool(about) and set(about) == {None} and _OPEN.search(sentence) is not None)
        return Inquiry(tuple(pieces), open_, questions, asking, again, unclear)

    def _weigh(self, clause: str) -> tuple[int, int]:
        """Return how many content words a clause has, and how many of them are about nothing the user has in mind."""
        words = [word for word in content_words(clause) if word not in _ASKING and not _OPEN.fullmatch(word)]
        mind = " ".join(" ".join((piece.topic, piece.question, *piece.sayings)) for piece in self.pieces)
        stems = (*keywords_of(mind), *(keyword for piece in self.pieces for keyword in piece.keywords))
        return len(words), sum(not word.startswith(stems) for word in words)

    def _about_piece(self, words: Sequence[str], done: Sequence[int]) -> int | None:
        hits = [sum(w.startswith(piece.keywords) for w in words) for piece in self.pieces]
        best = [piece for piece, number in enumerate(hits) if number == max(hits)]
        if max(hits) == 0:
            return None
        return min(best, key=lambda piece: (piece in done, len(self.pieces[piece].keywords)))

    def _complain(
        self, memory: Memory, text: str, delivery: Check | None, inquiry: Inquiry, rng: np.random.Generator
    ) -> Reaction:
        untold = self.untold(memory)
        if memory.lost >= self.patience or memory.wrong >= self.deliveries:
            remark = _pick("left" if untold else "gave_up", rng)
            about = self._about(delivery, rng) if delivery and memory.lost < self.patience else ""
            return Reaction(_joined([about, remark]), memory, "user_left" if untold else "gave_up", move="gives_up")
        move: Move = "complains"
        if not text.strip():
            remark = _pick("nothing", rng)
        elif delivery:
            remark, move = self._about(delivery, rng), "corrects"
        elif not untold:
            remark, move = _joined([_pick("all_told", rng), self.form]), "repeats"
        elif inquiry.unclear:
            remark = _pick("unclear", rng)
        elif not inquiry.any:
            remark = _pick("idle", rng)
        else:
            known = bool(inquiry.pieces) or not inquiry.questions
            remark, move = _pick("known" if known else "missed", rng), "repeats" if known else "complains"
            topic = self.pieces[untold[int(rng.integers(len(untold)))]].topic
            remark = _joined([remark, _pick("hint", rng).format(topic=topic)])
        return Reaction(remark, memory, move=move)

    def _about(self, delivery: Check, rng: np.random.Generator) -> str:
        """Return what it says about a delivery that does not end the talk."""
        if self.accepts == "any":
            return _pick("too_early", rng)
        return delivery.remark or _pick("wrong", rng)


def is_named(piece: Piece, sentence: str) -> bool:
    """Return whether a sentence has a word by which a question asks for the piece."""
    return any(word.startswith(piece.keywords) for word in _WORDS.findall(sentence.lower()))


def tells(piece: Piece, text: str, context: str, *, by_words: bool = True) -> bool:
    """Return whether a model's message gives a piece away that ``context``, all that was said, does not have.

    By its values (numbers in digits or words; what a document must contain), where a piece has some, and else by three
    in four of its content words; without ``by_words`` not where its values were said before, of something else.
    """
    for saying in piece.sayings:
        if values := values_in(saying) - values_in(context):
            if values <= values_in(text):
                return True
            continue
        if not by_words and values_in(saying):
            continue
        words = set(content_words(saying)) - set(content_words(context))
        if words and len(words & set(content_words(text))) >= 0.75 * len(words):
            return True
    requirement: Mapping[str, Any] = dict(piece.requirement or {})
    return any(fact.casefold() in text.casefold() for fact in requirement.get("texts", ()))


def _pick(occasion: str, rng: np.random.Generator) -> str:
    return _choose(PHRASES[occasion], rng)


def _choose(choices: Sequence[str], rng: np.random.Generator) -> str:
    return choices[int(rng.integers(len(choices)))]


def _joined(parts: Sequence[str]) -> str:
    return " ".join(part for part in parts if part)
