"""The behavior and style of a scripted user, beside its content: six manners, each with a strength from 0 to 1.

A manner changes the words of a user, and how soon it answers and leaves; never what it wants, what counts as solved,
or what must be asked for before it is disclosed. Numbers, names and quotations are never respelt. The texts are in
``manners.yaml``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np

from ..options import Share, checked
from ..text import load_yaml
from ..words import standing

_TEXTS: Mapping[str, Mapping[str, Any]] = load_yaml(__package__, "manners.yaml")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_NUMBER = re.compile(r"(?<![\w.,@#-])\d+(?!\w|[.,]\d)")
# Quotations, code and addresses are not respelt.
_VERBATIM = re.compile(r"```.*?```|`[^`]*`|\"[^\"]*\"|\S*[\d_@#/=<>]\S*", re.DOTALL)
_SPELLS: Mapping[str, Sequence[str]] = _TEXTS["non_native"]["spells"]
#: Misspelt words.
RESPELT = frozenset(word for spelt in _SPELLS.values() for word in spelt)
_RESPELT = re.compile(rf"\b(?:{'|'.join([*_SPELLS, *_TEXTS['non_native']['drops']])})\b ?", re.IGNORECASE)


@dataclass(frozen=True)
class Mood:
    """A manner's memory of an episode."""

    evaded: bool = False  # a question went unanswered: this happens once
    statements: tuple[str, ...] = ()  # what was told so far, in plain words


@checked
@dataclass(frozen=True)
class Manner:
    """The strength of each manner, from 0 (none) to 1; several may come together.

    Raises:
        ValueError: A strength outside of 0 to 1.
    """

    impatient: Share = 0.0  # stands half as many useless replies, and says so
    vague: Share = 0.0  # evades the first question of an episode, tells one thing at a time
    wordy: Share = 0.0  # small talk before and after
    forgetful: Share = 0.0  # evades one question of an episode, repeats what it said
    changing_mind: Share = 0.0  # says something else first and corrects it in the same message
    non_native: Share = 0.0  # misspells common words and leaves out articles

    @classmethod
    def of(cls, value: str | Mapping[str, float] | Manner) -> Self:
        """Return a manner by its name (``"wordy"``, or ``"plain"`` for none), or of the strengths in a mapping."""
        if isinstance(value, cls):
            return value
        strengths = {} if value == "plain" else {value: 1.0} if isinstance(value, str) else value
        if not isinstance(strengths, Mapping) or not set(strengths) <= set(NAMES):
            raise ValueError(
                f"a manner is 'plain', {', '.join(map(repr, NAMES))}, or a mapping of these, not {value!r}"
            )
        return cls(**strengths)

    @property
    def name(self) -> str:
        """The names of its manners, ``"plain"`` for none."""
        return "+".join(name for name, strength in asdict(self).items() if strength) or "plain"

    @property
    def evades_first(self) -> bool:
        """True if the first question of an episode is sure to go unanswered."""
        return self._evasion_chance >= 1.0

    @property
    def _evasion_chance(self) -> float:
        return max(self.vague, self.forgetful / 2)

    def instruction(self) -> str:
        """Return the instruction for a language model that plays a user of this manner; empty for a plain one."""
        return " ".join(_TEXTS[name]["told"] for name, strength in asdict(self).items() if strength)

    def patience(self, replies: int) -> int:
        """Return how many useless replies the user accepts, of the ``replies`` of a plain user."""
        return max(1, round(replies * (1 - self.impatient / 2)))

    def evades(self, mood: Mood, rng: np.random.Generator) -> bool:
        """Draw whether a question goes unanswered, to be asked again; once an episode at most."""
        chance = self._evasion_chance
        return chance > 0 and not mood.evaded and bool(rng.random() < chance)

    def evasion(self, rng: np.random.Generator) -> str:
        return self.say(_choose(_TEXTS["vague" if self.vague >= self.forgetful else "forgetful"]["evades"], rng), rng)

    def say(
        self,
        text: str,
        rng: np.random.Generator,
        *,
        statements: Sequence[str] = (),
        telling: bool = False,
        hidden: str = "",
        rivals: Sequence[str] = (),
        keep: Sequence[str] = (),
    ) -> str:
        """Return ``text`` in this manner; a plain one returns it as it is and draws nothing.

        Args:
            text: What it says.
            rng: All chance comes from here.
            statements: What was told before, which may be said again.
            telling: Whether ``text`` tells a fact, which may be corrected in the same message.
            hidden: A text with all that only the user knows: nothing of it is said by mistake.
            rivals: Values that the fact in ``text`` might have had, its own among them.
            keep: Texts whose spelling stays.
        """
        if self == PLAIN:
            return text
        if telling and _happens(self.changing_mind, rng) and (other := _other(text, hidden, rivals, rng)):
            text = _choose(_TEXTS["changing_mind"]["instead"], rng).format(other=other, text=text)
        if statements and _happens(self.forgetful / 2, rng):
            statement = statements[int(rng.integers(len(statements)))]
            text = f"{text} {_choose(_TEXTS['forgetful']['again'], rng).format(said=statement)}"
        if _happens(self.wordy, rng):
            text = f"{_choose(_TEXTS['wordy']['before'], rng)} {text} {_choose(_TEXTS['wordy']['after'], rng)}"
        if _happens(self.impatient / 2, rng):
            text = f"{text} {_choose(_TEXTS['impatient']['after'], rng)}"
        return _respelt(text, self.non_native, keep, rng) if self.non_native else text


#: The manners, by which options name them.
NAMES: tuple[str, ...] = tuple(field.name for field in fields(Manner))
PLAIN = Manner()

#: What an environment's option ``manner`` takes; see :func:`manners_of`.
MannerLike = str | Mapping[str, float] | Sequence[str | Mapping[str, float]]


def manners_of(option: MannerLike | None) -> tuple[Manner, ...]:
    """Return the manners that an option ``manner`` names, of which each episode draws one; none for ``None``.

    ``"all"`` is a plain user and one of each manner.

    Raises:
        ValueError: An empty list, or something that is not a manner.
    """
    if option is None:
        return ()
    if option == "all":
        option = ["plain", *NAMES]
    if isinstance(option, (str, Mapping)):
        return (Manner.of(option),)
    if not isinstance(option, Sequence) or not option:
        raise ValueError(f"give a manner, a list of manners to draw from, or 'all', not {option!r}")
    return tuple(map(Manner.of, option))


def draw_manner(manners: Sequence[Manner], rng: np.random.Generator) -> Manner:
    """Draw the manner of an episode; nothing is drawn where there is no choice."""
    if len(manners) < 2:
        return manners[0] if manners else PLAIN
    return manners[int(rng.integers(len(manners)))]


def _happens(chance: float, rng: np.random.Generator) -> bool:
    return chance > 0 and bool(rng.random() < chance)


def _choose(choices: Sequence[str], rng: np.random.Generator) -> str:
    return choices[int(rng.integers(len(choices)))]


def _other(text: str, hidden: str, rivals: Sequence[str], rng: np.random.Generator) -> str | None:
    """Return the first sentence of ``text`` with a value, with one that is neither true nor hidden; else ``None``."""
    for sentence in _SENTENCE_END.split(text):
        for value in rivals:
            match = standing(value).search(sentence)
            alternatives = [rival for rival in rivals if rival != value and not _stands_in(rival, f"{hidden} {text}")]
            if match and alternatives:
                return sentence[: match.start()] + _choose(alternatives, rng) + sentence[match.end() :]
        if match := _NUMBER.search(sentence):
            digits = len(match[0])
            for _ in range(8):
                number = str(rng.integers(10 ** (digits - 1), 10**digits))
                if not _stands_in(number, f"{hidden} {text}"):
                    return sentence[: match.start()] + number + sentence[match.end() :]
    return None


def _stands_in(value: str, text: str) -> bool:
    return standing(value.lower()).search(text.lower()) is not None


def _respelt(text: str, strength: float, keep: Sequence[str], rng: np.random.Generator) -> str:
    verbatim = [match.span() for match in _VERBATIM.finditer(text)]
    for phrase in filter(None, keep):
        verbatim += [match.span() for match in re.finditer(re.escape(phrase), text, re.IGNORECASE)]

    def respell(match: re.Match[str]) -> str:
        if rng.random() >= 0.6 * strength or any(
            start < match.end() and match.start() < end for start, end in verbatim
        ):
            return match[0]
        word = match[0].rstrip()
        if word.lower() not in _SPELLS:
            return ""
        spelt = _choose(_SPELLS[word.lower()], rng)
        return (spelt.capitalize() if word[0].isupper() else spelt) + match[0][len(word) :]

    return _RESPELT.sub(respell, text)
