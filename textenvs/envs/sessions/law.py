"""The law of the questions: what will be asked, how it drifts, and how likely it makes each question of a session."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from .facts import FactStore, Key, Question, Statement

#: How often a question is about a promise where one is for today; else its program is one of these.
DUE = 0.5
PROGRAMS: Mapping[str, float] = {"value": 0.8, "both": 0.1, "before": 0.1}
#: How often the one who asks about a secret is the person from whom it is kept.
INTRUDES = 0.5


@dataclass(frozen=True)
class Phase:
    """The shares of questions about each thing, from one day to another.

    Args:
        first: The first day.
        last: The last day.
        percent: By thing; they sum to 100.
    """

    first: int
    last: int
    percent: Mapping[str, int]


@dataclass(frozen=True)
class Demand:
    """The distribution of one session's question, once the statements before it are known.

    Args:
        due: The promises for today that were made before.
        values: The weight of a question about a code, by person and thing; they sum to 1. Empty at first.
        pairs: The weight of a code in questions about two of them, by person and thing, for codes that all may hear;
            they sum to 1.
        previous: The weight of a question about the code before the last change, by person and thing; they sum to 1.
    """

    due: tuple[Key, ...]
    values: Mapping[Key, float]
    pairs: Mapping[Key, float]
    previous: Mapping[Key, float]

    @property
    def shares(self) -> dict[str, float]:
        """The probability of each program; ``"both"`` is that of all questions about two codes."""
        if not self.values:
            return {"due": 1.0} if self.due else {}
        due = DUE if self.due else 0.0
        shares = {
            "both": PROGRAMS["both"] if len(self.pairs) > 1 else 0.0,
            "before": PROGRAMS["before"] if self.previous else 0.0,
        }
        shares["value"] = 1.0 - sum(shares.values())
        return {"due": due, **{name: (1.0 - due) * share for name, share in shares.items()}}

    def needed(self, store: FactStore) -> tuple[dict[int, float], float]:
        """Return how likely the question needs each statement, by number, and how likely it needs none.

        A question that needs two counts half for either. All sums to 1, if there is a question.
        """
        chances, unknown = self._of_one(store)
        if both := self.shares.get("both"):
            odds = {key: weight / (1.0 - weight) for key, weight in self.pairs.items()}
            total = sum(odds.values())
            for key, weight in self.pairs.items():
                number = store.chains[key][-1].number
                second = weight * (total - odds[key])
                chances[number] = chances.get(number, 0.0) + both * (weight + second) / 2.0
        return chances, unknown

    def expected(self, store: FactStore, remembered: Collection[int]) -> float:
        """Return how likely the answer is right, of who knows the codes of these statements and nothing else.

        Where it knows none it says so, and is right where there is none to be told.
        """
        chances, unknown = self._of_one(store)
        right = unknown + sum(chance for number, chance in chances.items() if number in remembered)
        if both := self.shares.get("both"):
            weights = [weight for key, weight in self.pairs.items() if store.chains[key][-1].number in remembered]
            total = sum(weights)
            right += both * sum(weight / (1.0 - weight) * (total - weight) for weight in weights)
        return right

    def _of_one(self, store: FactStore) -> tuple[dict[int, float], float]:
        """Return what :meth:`needed` does, of the questions about one code."""
        chances: dict[int, float] = {}
        unknown, shares = 0.0, self.shares
        parts = [(key, 0, shares["due"] / len(self.due)) for key in self.due]
        parts += [(key, 0, shares["value"] * weight) for key, weight in self.values.items()]
        parts += [(key, 1, shares["before"] * weight) for key, weight in self.previous.items()]
        for key, back, chance in parts:
            version = store.version(key, back)
            needs = 0.0 if version is None else chance if version.hidden_from is None else chance * (1.0 - INTRUDES)
            unknown += chance - needs
            if version is not None:
                chances[version.number] = chances.get(version.number, 0.0) + needs
        return chances, unknown


def demand_of(store: FactStore, phase: Phase, day: int, stated: Collection[Key]) -> Demand:
    """Return the law of the question of a day.

    Args:
        store: After the statements of the day.
        phase: Of the day.
        day: The day.
        stated: What statements of the day are about: no question is about it.
    """
    due, things = _pool(store, day, stated)
    present = {thing: phase.percent[thing] for thing in things}
    total = sum(present.values())
    values = {key: present[thing] / total / len(keys) for thing, keys in things.items() for key in keys}
    pairs = {key: weight for key, weight in values.items() if _is_public(store.version(key))}
    previous = {key: weight for key, weight in values.items() if _is_public(store.version(key, 1))}
    return Demand(due, values, _normalised(pairs), _normalised(previous))


def draw_question(
    store: FactStore, phase: Phase, day: int, stated: Collection[Key], people: Sequence[str], wordings: int, rng: Random
) -> Question | None:
    """Draw the question of a day by :func:`demand_of`, without computing it; ``None``: there is nothing to ask about.

    Args:
        store: As in :func:`demand_of`, and so are the next three.
        phase: Of the day.
        day: The day.
        stated: What statements of the day are about.
        people: Who may ask.
        wordings: How many there are of each program.
        rng: Draws it.
    """
    due, things = _pool(store, day, stated)
    wording = rng.randrange(wordings)
    if due and (not things or rng.random() < DUE):
        return Question("due", rng.choice(people), (rng.choice(due),), wording)
    if not things:
        return None
    names = list(things)
    shares = [phase.percent[thing] for thing in names]

    def draw(back: int | None = None, other: Key | None = None) -> Key:
        """Draw a key; one whose version so many changes ago all may hear, and not the other one, where asked for."""
        while True:
            key = rng.choice(things[rng.choices(names, shares)[0]])
            if back is None or (key != other and _is_public(store.version(key, back))):
                return key

    program = rng.choices(list(PROGRAMS), list(PROGRAMS.values()))[0]
    keys = [key for group in things.values() for key in group]
    if program == "both" and sum(_is_public(store.version(key)) for key in keys) > 1:
        first = draw(0)
        return Question(rng.choice(("both", "newest")), rng.choice(people), (first, draw(0, first)), wording)
    if program == "before" and any(_is_public(store.version(key, 1)) for key in keys):
        return Question("before", rng.choice(people), (draw(1),), wording)
    key = draw()
    version = store.version(key)
    stranger = None if version is None else version.hidden_from
    if stranger is not None:
        entitled = [person for person in people if person != stranger]
        return Question("value", stranger if rng.random() < INTRUDES else rng.choice(entitled), (key,), wording)
    return Question("value", rng.choice(people), (key,), wording)


def _pool(store: FactStore, day: int, stated: Collection[Key]) -> tuple[tuple[Key, ...], dict[str, list[Key]]]:
    """Return the promises for a day, and by thing the keys of which something was said before."""
    due, things = [], dict[str, list[Key]]()
    for key in store.history:
        about = key[1]
        if key in stated:
            continue
        if isinstance(about, str):
            things.setdefault(about, []).append(key)
        elif about == day:
            due.append(key)
    return tuple(due), things


def _is_public(version: Statement | None) -> bool:
    """Return whether there is a version, and all may hear it."""
    return version is not None and version.hidden_from is None


def _normalised(weights: dict[Key, float]) -> dict[Key, float]:
    total = sum(weights.values())
    return {key: weight / total for key, weight in weights.items()}
