"""CollabLLM's MediumDocEdit-Chat: a document whose content the user holds back, scored by BLEU."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...data.sources import Source
from ...scoring.documents import last_document, respects
from ...task import Task
from ..collab.env import Check, Collab
from ..collab.tasks import Goal
from .bleu import UNITS, Unit, sentence_bleu


class CollabDocument(Collab):
    """A document told in pieces. The task score is ``bleu``, of the last document against the goal's, from 0 to 1.

    A reply delivers what stands between its last ``<document>`` and ``</document>``, or in its last fenced block. The
    user is satisfied when the document respects everything that it wants; it compares facts, not wordings. Of one that
    does not it says what is wrong with it (the title, the order), and tells no more than that.

    Args:
        tasks: As in :class:`~textenvs.envs.collab.env.Collab`, and so are all ``options``.
        bleu: ``"words"`` (as sacreBLEU counts it) or ``"characters"`` (as CollabLLM's figures do); see
            :mod:`textenvs.envs.collab_document.bleu`.
        **options: See :class:`~textenvs.envs.collab.env.Collab`.

    Raises:
        ValueError: A value outside the above.
        TaskError: Rows that cannot be played, listed by file, row and column.
    """

    domain = "document"
    score_name = "bleu"
    form = "Please put the whole text between <document> and </document>."

    def __init__(self, tasks: Source = None, *, bleu: Unit = "words", **options: Any) -> None:
        if bleu not in UNITS:
            raise ValueError(f"bleu must be one of {', '.join(UNITS)}, not {bleu!r}")
        super().__init__(tasks, **options)
        self.bleu = bleu

    def find(self, text: str) -> str | None:
        """The reply's document."""
        return last_document(text)

    def check(self, goal: Goal, delivered: str) -> Check:
        """BLEU against the goal's document, and the first thing in it that is not as the user wants it."""
        wrong = [
            number
            for number, piece in enumerate(goal.pieces)
            if not (self._was_told(number) if piece.requirement is None else respects(delivered, piece.requirement))
        ]
        remark = ""
        if wrong:
            number = min(wrong, key=lambda number: not self._was_told(number))  # what was said before what was not
            wish = "as I said" if self._was_told(number) else "what I have in mind"
            remark = f"The {goal.pieces[number].topic} is not {wish}."
        score = sentence_bleu(delivered, str(self._task.ground_truth), self.bleu)
        return Check(min(1.0, score), not wrong, remark)

    def _was_told(self, piece: int) -> bool:
        return self.player is not None or piece in self.state.memory.told

    def solution(self, task: Task) -> str:
        """The goal's document."""
        return f"<document>\n{task.ground_truth}\n</document>"

    def careless_reply(self, rng: np.random.Generator) -> str:
        """A text about nothing in particular, without asking for anything."""
        title = ("A Text", "Information", "Welcome", "For You")[int(rng.integers(4))]
        return f"<document>\n{title}\n\nHere is what you wanted.\n</document>"
