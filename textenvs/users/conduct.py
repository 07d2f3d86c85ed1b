"""Faults of a user in an episode, each recognised by rule: it gives something away, or does not keep to its goal.

A fact is *disclosed* when a message of the user states it and nothing before does, the assistant's own words among it.
It is *requested* when a sentence of the assistant's that asks, or the one before it, has a word for it
(:func:`~textenvs.users.guard.asking_sentences`). One rule finds these sentences in all environments, and it is not the
parser of any scripted user: a user that takes a statement for a question is caught. Values are compared, not meanings,
so a fact in a paraphrase without its value is missed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..messages import assistant, text_of
from .base import Entitled, Fact, UserView
from .guard import asking_sentences

#: The faults, with their definitions.
FAULTS: Mapping[str, str] = {
    "leak": 'tells a fact that no reply has asked for; an open question ("What else?") asks for as many as the '
    "environment says, mostly none",
    "early": "answers the first question of an episode although its manner is sure to evade that, or tells more facts "
    "in a message than its manner does",
    "contradiction": "states a value that is not in its goal, or says an earlier sentence again with another value, "
    "and does not correct it in the same message",
    "concession": "takes something for settled that its goal does not want so: a refusal without cause, a false "
    "claim, a wrong result",
}
_NUMBER = r"\d+(?:[.,:-]\d+)*"
_CORRECTS = re.compile(
    r"\b(?:sorry|mistaken?|misread|wrong|no, wait|mixed up|look again|changed my mind|actually|not right|must be)\b",
    re.I,
)
_FEWEST_WORDS = 3  # of a sentence beside its values: fewer do not say what the value is of


@dataclass
class Conduct:
    """The user's faults in one episode."""

    disclosed: set[str] = field(default_factory=set)  # the names of facts
    requested: set[str] = field(default_factory=set)
    questions: int = 0  # replies that asked for something that it had not told
    _had_question: bool = False  # whether a manner had a question to evade
    _statements: dict[str, tuple[str, ...]] = field(default_factory=dict)  # values by the sentence around them

    def copy(self) -> Conduct:
        return Conduct(
            set(self.disclosed), set(self.requested), self.questions, self._had_question, dict(self._statements)
        )

    def listen(self, reply: str, before: UserView, may: Entitled, answer: str) -> set[str]:
        """Return the faults of ``answer``, but for concessions, which :attr:`UserView.conceded` has.

        Args:
            reply: The assistant's reply, as far as the user sees it.
            before: The user's view before the reply.
            may: What the user may say to it.
            answer: The user's message.
        """
        sentences = asking_sentences(reply)
        requested = {fact.name for fact in before.facts if fact.named and any(map(fact.named, sentences))}
        self.questions += bool(requested - self.disclosed)
        self.requested |= requested
        view = replace(before, talk=(*before.talk, assistant(reply)))
        context = " ".join(map(text_of, view.talk))
        new = [fact for fact in before.facts if fact.name not in self.disclosed and fact.tells(answer, context)]
        own = [fact for fact in new if fact.name in self.requested]
        explained = " ".join([context, *(fact.saying for fact in own)])
        unasked = _distinct([fact for fact in new if fact not in own], answer, explained)
        self.disclosed |= {fact.name for fact in own} | {fact.name for fact in unasked}
        evades = may.evadable and before.behavior.evades_first and not self._had_question
        self._had_question = self._had_question or may.evadable
        most = 0 if evades else may.most
        faults = {
            "leak": len(unasked) > may.free,
            "early": most is not None and len(own) > most,
            "contradiction": view.contradicts(answer) or self._differs(answer, before),
        }
        return {name for name, present in faults.items() if present}

    def _differs(self, answer: str, before: UserView) -> bool:
        """Return whether a sentence was said before with another value, and note the message's sentences."""
        values = "|".join([_NUMBER, *(re.escape(value) for value in before.values)])
        pattern, statements = re.compile(rf"\b(?:{values})\b", re.IGNORECASE), dict[str, tuple[str, ...]]()
        for sentence in re.split(r"(?<=[.!?])\s+", answer.lower()):
            frame = pattern.sub("#", sentence).strip()
            if "#" in frame and len(re.findall(r"[^\W\d_]+", frame)) >= _FEWEST_WORDS:
                statements[frame] = tuple(pattern.findall(sentence))
        differs = any(self._statements.get(frame, stated) != stated for frame, stated in statements.items())
        self._statements |= statements
        return differs and not _CORRECTS.search(answer)


def _distinct(facts: Sequence[Fact], answer: str, context: str) -> list[Fact]:
    """Return the fewest of the facts whose sayings explain what ``answer`` states: two may have the same value."""

    def explaining(first: Fact) -> list[Fact]:
        chosen, explained = list[Fact](), context
        for fact in (first, *facts):
            if fact not in chosen and fact.tells(answer, explained):
                chosen.append(fact)
                explained = f"{explained} {fact.saying}"
        return chosen

    return min(map(explaining, facts), key=len, default=[])
