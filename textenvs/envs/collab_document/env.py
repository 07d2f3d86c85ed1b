"""CollabLLM's MediumDocEdit-Chat: a document whose content the user holds back, scored by what it holds."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ...data.sources import Source
from ...messages import visible_text
from ...options import checked
from ...scoring.documents import last_document, respects, untold_claims
from ...task import Task
from ..collab.env import Collab
from ..collab.tasks import Goal
from ..collab.user import Check
from .attacks import ATTACKS
from .bleu import Unit, sentence_bleu
from .script import SCRIPT
from .tasks import FAMILY

_LINES = {
    "line": ", on a line of its own, behind a label and a colon",
    "opens_line": ", on a line of its own",
    "first_line": ", on a line of its own",
}


class CollabDocument(Collab):
    """A document told in pieces. The task score, from 0 to 1, is ``faithfulness``, or BLEU with ``bleu``.

    Faithfulness is, of the goal's pieces, the share that was told and that the last document respects, minus one such
    share for every claim that it makes without having been told (a number, another title, place or name than the
    goal's, or a line behind a label that is none of its facts); at least 0. What was not told earns nothing, however
    it was guessed.

    A reply delivers the text between its last ``<document>`` and ``</document>``, or its last fenced block. The
    user is satisfied when the document respects every requirement and claims nothing else; it compares facts, not
    wordings. The remark on another document says what is wrong with it (the title, the order), and tells no more than
    that.

    Args:
        bleu: The score that CollabLLM publishes, against the goal's own text: ``"words"`` (as sacreBLEU counts it) or
            ``"characters"`` (as CollabLLM's figures do); see :mod:`textenvs.envs.collab_document.bleu`. It pays for
            the wording, too, which nothing in the conversation says.
        **options: See :class:`~textenvs.envs.collab.env.Collab`.

    Raises:
        ImportError: ``bleu``, and sacrebleu is not installed.
    """

    family = FAMILY
    own_attacks = (*Collab.own_attacks, *ATTACKS)
    own_script = SCRIPT
    score_name = "faithfulness"
    form = (
        "Please put the whole text between <document> and </document>, the title first, and every fact on a line of "
        "its own, behind a label and a colon."
    )

    @checked
    def __init__(self, tasks: Source = None, *, bleu: Unit | None = None, **options: Any) -> None:
        super().__init__(tasks, **options)
        self.bleu = bleu
        if bleu is not None:
            if importlib.util.find_spec("sacrebleu") is None:
                raise ImportError("bleu=... needs sacrebleu: pip install 'textenvs[bleu]'")
            self.score_name = "bleu"

    def find(self, text: str) -> str | None:
        return last_document(text)

    def check(self, goal: Goal, delivered: str) -> Check:
        """Score the pieces that the document respects, and remark on the first thing that the user wants otherwise."""
        gold, pieces = str(self.task.ground_truth), dict(enumerate(goal.pieces))
        stated = set(pieces) if self.player is not None else set(self.state.memory.disclosed)
        asks: dict[int, Mapping[str, Any]] = {index: piece.requirement or {} for index, piece in pieces.items()}
        wrong = [index for index, ask in asks.items() if not (respects(delivered, ask) if ask else index in stated)]
        rivals = [rival for ask in asks.values() for rival in ask.get("rivals", ())]
        facts = [text for ask in asks.values() if ask.get("kind") == "line" for text in ask["texts"]]
        claims = untold_claims(delivered, "\n".join([*self._statements(), gold]), rivals, facts)
        remark = ""
        if wrong:
            index = min(wrong, key=lambda index: index not in stated)  # what was said before what was not
            line = _LINES.get(asks[index].get("kind", ""), "")
            remark = (
                f"The {pieces[index].topic} is not {f'as I said{line}' if index in stated else 'what I have in mind'}."
            )
        elif claims:
            remark = f'I said nothing of "{claims[0]}".'
        if self.bleu is not None:
            score = sentence_bleu(delivered, gold, self.bleu)
        else:
            score = max(0, len(stated.difference(wrong)) - len(claims)) / len(pieces)
        return Check(score, not (wrong or claims), remark)

    def _statements(self) -> list[str]:
        """Return what the user has said of its goal, without complaints: they name the claims that it denies."""
        if self.player is not None:
            return [visible_text(message) for message in self.state.messages if message["role"] == "user"]
        opening = [visible_text(message) for message in self.task.prompt]
        return [
            *opening,
            *(saying for number in self.state.memory.disclosed for saying in self.goal.pieces[number].sayings),
        ]

    def twin(self, task: Task) -> Task | None:
        """Return the document with another title or fact than the user tells; ``None`` for rows without."""
        pieces = [dict(piece) for piece in task.extra.get("pieces") or ()]
        for piece in pieces:
            ask = piece.get("requirement") or {}
            if ask.get("rivals") and ask.get("texts"):
                old, new = str(ask["texts"][0]), str(ask["rivals"][0])
                piece["requirement"] = {**ask, "texts": [new], "rivals": [old, *ask["rivals"][1:]]}
                text = str(task.ground_truth).replace(old, new)
                return replace(task, ground_truth=text, extra={**task.extra, "pieces": pieces})
        return None

    def solution(self, task: Task) -> str:
        return f"<document>\n{task.ground_truth}\n</document>"

    def careless_reply(self, rng: np.random.Generator) -> str:
        title = ("A Text", "Information", "Welcome", "For You")[int(rng.integers(4))]
        return f"<document>\n{title}\n\nHere is what you wanted.\n</document>"
