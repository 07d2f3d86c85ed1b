"""CollabLLM's MediumDocEdit-Chat: a document whose content the user holds back, scored by what it holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...attack import Attack
from ...data.sources import Source
from ...messages import visible_text
from ...options import checked
from ...scoring.documents import last_document, respects, untold_claims
from ...task import Task
from ..collab.env import Collab
from ..collab.tasks import Goal
from ..collab.user import Check
from .attacks import ATTACKS
from .bleu import Unit, require_sacrebleu, sentence_bleu
from .tasks import FAMILY

_OWN_LINE = ("line", "opens_line", "first_line")


class CollabDocument(Collab):
    """A document told in pieces. The task score, from 0 to 1, is ``faithfulness``, or with ``bleu`` that.

    Faithfulness is, of the goal's pieces, the share that was told and that the last document respects, minus one such
    share for every claim that it makes without having been told (a number, or another title, place or name than the
    goal's); at least 0. What was not told earns nothing, however it was guessed.

    A reply delivers what stands between its last ``<document>`` and ``</document>``, or in its last fenced block. The
    user is satisfied when the document respects everything that it wants and claims nothing else; it compares facts,
    not wordings. Of one that does not it says what is wrong with it (the title, the order), and tells no more than
    that.

    Args:
        tasks: As in :class:`~textenvs.envs.collab.env.Collab`, and so are all ``options``.
        bleu: The score that CollabLLM publishes, against the goal's own text: ``"words"`` (as sacreBLEU counts it) or
            ``"characters"`` (as CollabLLM's figures do); see :mod:`textenvs.envs.collab_document.bleu`. It pays for
            the wording, too, which nothing in the conversation says.
        **options: See :class:`~textenvs.envs.collab.env.Collab`.

    Raises:
        ImportError: ``bleu``, and sacrebleu is not installed.
        ValueError: A value outside the above.
        TaskError: Rows that cannot be played, listed by file, row and column.
    """

    family = FAMILY
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
            require_sacrebleu()
            self.score_name = "bleu"

    def find(self, text: str) -> str | None:
        return last_document(text)

    def check(self, goal: Goal, delivered: str) -> Check:
        """What it holds of the goal, and the first thing in it that is not as the user wants it."""
        wrong = [
            number
            for number, piece in enumerate(goal.pieces)
            if not (self._was_told(number) if piece.requirement is None else respects(delivered, piece.requirement))
        ]
        gold = str(self.task.ground_truth)
        rivals = [rival for piece in goal.pieces for rival in (piece.requirement or {}).get("rivals") or ()]
        claims = untold_claims(delivered, "\n".join([*self._said(), gold]), rivals)
        remark = ""
        if wrong:
            number = min(wrong, key=lambda number: not self._was_told(number))  # what was said before what was not
            piece = goal.pieces[number]
            wish = "as I said" if self._was_told(number) else "what I have in mind"
            if self._was_told(number) and (piece.requirement or {}).get("kind") in _OWN_LINE:
                wish += ", on a line of its own"
            remark = f"The {piece.topic} is not {wish}."
        elif claims:
            remark = f'I said nothing of "{claims[0]}".'
        if self.bleu is not None:
            score = sentence_bleu(delivered, gold, self.bleu)
        else:
            covered = sum(self._was_told(number) and number not in wrong for number in range(len(goal.pieces)))
            score = max(0, covered - len(claims)) / len(goal.pieces)
        return Check(score, not (wrong or claims), remark)

    def _said(self) -> list[str]:
        """What the user has said of its goal. Complaints are left out: they name the claims that it denies."""
        if self.player is not None:
            return [visible_text(message) for message in self.state.messages if message["role"] == "user"]
        told = [self.goal.pieces[number] for number in self.state.memory.told]
        opening = [visible_text(message) for message in self.task.prompt]
        return [*opening, *(saying for piece in told for saying in piece.sayings)]

    def _was_told(self, piece: int) -> bool:
        return self.player is not None or piece in self.state.memory.told

    def solution(self, task: Task) -> str:
        return f"<document>\n{task.ground_truth}\n</document>"

    def careless_reply(self, rng: np.random.Generator) -> str:
        title = ("A Text", "Information", "Welcome", "For You")[int(rng.integers(4))]
        return f"<document>\n{title}\n\nHere is what you wanted.\n</document>"

    def attacks(self) -> Sequence[Attack]:
        return (*super().attacks(), *ATTACKS)
