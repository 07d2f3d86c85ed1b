"""CollabLLM's conversation-level reward in its published forms and a corrected one, as pure functions.

A conversation is worth its task scores, minus what its length costs, plus how interactive a judge finds it
(arXiv 2502.00640, equations 2 to 4). ``paper``, ``repository`` (its authors' code) and ``recipe`` (verl's) are in use
and disagree; ``linear`` and ``textenvs`` are ours; docs/environments/collab-math.md compares all. Only what people read
and write counts: messages of user and assistant, without private reasoning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal, Protocol

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from ..messages import Message, visible_text

FormulaName = Literal["textenvs", "linear", "paper", "repository", "recipe"]
Domain = Literal["math", "document", "code"]

#: Names in a reward's terms that are not task scores.
COST, INTERACTIVITY = "cost", "interactivity"

# Reward per token, the same in the paper and in the authors' code (there as 0.5 and 0.1 per 1,000 tokens).
_RATES: Mapping[Domain, float] = {"math": 5e-4, "document": 1e-4, "code": 5e-4}


def estimate_tokens(text: str) -> int:
    """Count one token for every four bytes of UTF-8, rounded up; leaving out spaces gains nothing."""
    return -(-len(text.encode("utf-8", "replace")) // 4)


def count_words(text: str) -> int:
    """Count the words between white space, as verl's recipe does."""
    return len(text.split())


class Scored(Protocol):
    """A conversation that was scored: task scores by name, what :meth:`Formula.length` counts, a judge's verdict."""

    @property
    def scores(self) -> Mapping[str, float]: ...

    @property
    def length(self) -> float: ...

    @property
    def interactivity(self) -> float | None: ...


@dataclass(frozen=True, config=ConfigDict(strict=True))
class Formula:
    """A formula that turns scored conversations into one reward.

    Args:
        name: What ``formula=`` calls it.
        rate: The price of a word or token, at least 0; another value is a ValueError.
        unit: ``"words"`` (between white space) or ``"tokens"``.
        roles: Whose messages are counted.
        scope: Which messages are counted: ``"all"``, ``"played"`` (from the policy's first reply on) or ``"future"``
            (from the reply that is being rewarded on). Who scores a conversation passes them accordingly.
        clamp: ``"none"``; ``"cost"``: a conversation costs at most 1; ``"terms"``: each term is kept within +-1.
    """

    name: str
    rate: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    unit: Literal["words", "tokens"] = "tokens"
    roles: Annotated[tuple[Literal["user", "assistant"], ...], Field(min_length=1)] = ("user", "assistant")
    scope: Literal["played", "all", "future"] = "played"
    clamp: Literal["none", "cost", "terms"] = "none"

    def length(self, messages: Sequence[Message], count_tokens: Callable[[str], int] = estimate_tokens) -> int:
        """Return the chargeable length of ``messages`` (those of the formula's scope), in the formula's unit."""
        count = count_words if self.unit == "words" else count_tokens
        return sum(count(visible_text(message)) for message in messages if message["role"] in self.roles)

    def cost(self, length: float) -> float:
        """Return the cost of a single conversation of that length, at least 0."""
        return self.rate * length if self.clamp == "none" else min(self.rate * length, 1.0)

    def terms(self, outcomes: Sequence[Scored], weights: Mapping[str, float] | None = None) -> dict[str, float]:
        """Return the reward of conversations (the sampled futures of one reply, or a single whole one) by named terms.

        These are the weighted mean of every task score, ``cost`` (at most 0), and ``interactivity`` where there is a
        judge; the reward is their sum. ``weights`` are of task scores and ``"interactivity"``, 1 where there is none.
        """
        names = outcomes[0].scores.keys()
        if any(outcome.scores.keys() != names for outcome in outcomes):
            raise ValueError(f"conversations with different scores: {[sorted(each.scores) for each in outcomes]}")
        parts = {name: [outcome.scores[name] for outcome in outcomes] for name in names}
        lengths = [self.rate * outcome.length for outcome in outcomes]
        parts[COST] = [-min(cost, 1.0) if self.clamp == "cost" else -cost for cost in lengths]
        if verdicts := [outcome.interactivity for outcome in outcomes if outcome.interactivity is not None]:
            parts[INTERACTIVITY] = verdicts
        terms = {}
        for name, values in parts.items():
            mean = (weights or {}).get(name, 1.0) * math.fsum(values) / len(values) + 0.0  # -0.0 becomes 0.0
            if not math.isfinite(mean):
                raise ValueError(f"the term {name!r} must be a finite number, not {mean!r}")
            terms[name] = max(-1.0, min(1.0, mean)) if self.clamp == "terms" else mean
        return terms


#: The formulas by name, at the rates published for mathematics and code.
FORMULAS: Mapping[str, Formula] = {
    made.name: made
    for made in (
        Formula("textenvs", 1e-4, unit="words"),
        Formula("linear", _RATES["math"]),
        Formula("paper", _RATES["math"], scope="all", clamp="cost"),
        Formula("repository", _RATES["math"], roles=("assistant",), scope="all"),
        Formula("recipe", 1e-4, unit="words", scope="future", clamp="terms"),
    )
}


def formula(name: FormulaName = "linear", *, domain: Domain = "math", rate: float | None = None) -> Formula:
    """Return the formula of that name, at ``rate`` (of a token or a word) or the rate published for ``domain``."""
    made = FORMULAS[name]
    if rate is None:
        rate = made.rate if made.unit == "words" else _RATES[domain]
    return replace(made, rate=rate)
