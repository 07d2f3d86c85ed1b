"""CollabLLM's conversation-level reward in its four published or corrected forms, as pure functions.

A conversation is worth its task scores, minus what its tokens cost, plus how interactive a judge finds it
(arXiv 2502.00640, equations 2 to 4). Three forms of that are in use, and they disagree; a fourth is ours:

=============== ==================== ======================== ================================================
name            tokens of            cost of a conversation   over several futures
=============== ==================== ======================== ================================================
``linear``      both, from the reply ``rate * tokens``        the mean
``paper``       both speakers        ``min(rate*tokens, 1)``  the mean
``repository``  the assistant        ``rate * tokens``        the mean
``recipe``      as linear, in words  ``rate * words``         the mean, then *each* weighted term clamped to +-1
=============== ==================== ======================== ================================================

``paper`` saturates: at its rate of 5e-4 for mathematics a conversation of 2,000 tokens already costs the whole 1, and
no longer one costs more, so that nothing asks for brevity any more. ``linear``, the default, keeps the paper's rates,
leaves the bound out, and does not charge a reply for what was said before it. ``repository`` is what the authors' code
computes, ``recipe`` what verl's recipe computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from ..messages import Message, visible_text

FormulaName = Literal["linear", "paper", "repository", "recipe"]
FORMULAS: tuple[str, ...] = get_args(FormulaName)

Domain = Literal["math", "document", "code"]
DOMAINS: tuple[str, ...] = get_args(Domain)

#: What the terms of a reward may not be called by a task score.
RESERVED: frozenset[str] = frozenset({"token_cost", "interactivity"})

# Reward per token, the same in the paper and in the authors' code (there as 0.5 and 0.1 per 1,000 tokens).
_RATES: Mapping[str, float] = {"math": 5e-4, "document": 1e-4, "code": 5e-4}
_RECIPE_RATE = 1e-4  # per word, for every domain


def estimate_tokens(text: str) -> int:
    """About how many tokens ``text`` has: one for every four bytes of UTF-8, rounded up.

    A rule of thumb for English that needs no tokenizer, and that leaving out spaces does not cheat.
    """
    return -(-len(text.encode("utf-8", "replace")) // 4)


def count_words(text: str) -> int:
    """How many words ``text`` has, as verl's recipe counts them: what stands between white space."""
    return len(text.split())


@dataclass(frozen=True)
class Outcome:
    """What is known about one conversation when it is scored.

    Args:
        scores: The task scores by name, mostly from 0 to 1 (``{"accuracy": 1.0}``).
        tokens: How many tokens it has by the formula's own count, :meth:`Formula.tokens`.
        interactivity: A judge's verdict from 0 to 1; ``None`` where no judge was asked.

    Raises:
        ValueError: A number that is not finite or outside its range, or a score with a reserved name.
    """

    scores: Mapping[str, float]
    tokens: float
    interactivity: float | None = None

    def __post_init__(self) -> None:
        for name, value in self.scores.items():
            if name in RESERVED:
                raise ValueError(f"a task score may not be called {name!r}: the reward has a term of that name")
            _check(f"the score {name!r}", value, -math.inf, math.inf)
        _check("tokens", self.tokens, 0.0, math.inf)
        if self.interactivity is not None:
            _check("interactivity", self.interactivity, 0.0, 1.0)


@dataclass(frozen=True)
class Formula:
    """One way to make a reward of conversations; made by :func:`formula`.

    Args:
        name: One of :data:`FORMULAS`.
        rate: What a token costs.
        speakers: Whose messages are counted.
        count: The tokens of a text.
        bounded: Whether a conversation's cost is at most 1.
        clamped: Whether each weighted term is clamped to ``[-1, 1]``, after averaging.
        whole: Whether the conversation is counted from its first message, or only from the (first) reply that is
            scored. Who scores it passes the messages accordingly.
        reads_reasoning: Whether private reasoning (``<think>``) is counted, too.
        interactivity: The weight of the judge's verdict.
        weights: The weights of the task scores; 1 where none is given.
    """

    name: FormulaName
    rate: float
    speakers: tuple[str, ...] = ("assistant", "user")
    count: Callable[[str], float] = estimate_tokens
    bounded: bool = False
    clamped: bool = False
    whole: bool = True
    reads_reasoning: bool = False
    interactivity: float = 1.0
    weights: Mapping[str, float] = field(default_factory=dict)

    def tokens(self, messages: Sequence[Message]) -> float:
        """The tokens of ``messages`` that this formula charges for."""
        return float(
            sum(
                self.count(message["content"] if self.reads_reasoning else visible_text(message))
                for message in messages
                if message["role"] in self.speakers
            )
        )

    def cost(self, tokens: float) -> float:
        """What a conversation of so many tokens costs, at least 0."""
        cost = self.rate * tokens
        return min(cost, 1.0) if self.bounded or self.clamped else cost

    def terms(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """The reward of conversations (the sampled futures of one reply, or a single whole one) by named terms.

        Args:
            outcomes: At least one; all with the same scores, and all with a verdict on interactivity or none.

        Returns:
            The weighted mean of every task score, ``token_cost`` (at most 0), and ``interactivity`` where it was
            judged. The reward is their sum.

        Raises:
            ValueError: No outcome, or outcomes that cannot be averaged.
        """
        if not outcomes:
            raise ValueError("there is no conversation to score; a future that failed must be left out before")
        if len({frozenset(outcome.scores) for outcome in outcomes}) > 1:
            raise ValueError(f"conversations with different scores: {[sorted(each.scores) for each in outcomes]}")
        verdicts = [outcome.interactivity for outcome in outcomes if outcome.interactivity is not None]
        if len(verdicts) not in (0, len(outcomes)):
            raise ValueError(f"interactivity was judged for {len(verdicts)} of {len(outcomes)} conversations only")
        terms = {
            name: self.weights.get(name, 1.0) * _mean([outcome.scores[name] for outcome in outcomes])
            for name in outcomes[0].scores
        }
        if self.clamped:
            terms["token_cost"] = -self.rate * _mean([outcome.tokens for outcome in outcomes])
        else:
            terms["token_cost"] = -_mean([self.cost(outcome.tokens) for outcome in outcomes])
        if verdicts:
            terms["interactivity"] = self.interactivity * _mean(verdicts)
        if self.clamped:
            terms = {name: min(1.0, max(-1.0, value)) for name, value in terms.items()}
        return {name: value + 0.0 for name, value in terms.items()}  # -0.0 becomes 0.0


_SHAPES: Mapping[str, Mapping[str, Any]] = {
    "linear": {"whole": False},
    "paper": {"bounded": True},
    "repository": {"speakers": ("assistant",)},
    "recipe": {"count": count_words, "clamped": True, "whole": False, "reads_reasoning": True},
}


def formula(
    name: FormulaName = "linear",
    *,
    domain: Domain = "math",
    rate: float | None = None,
    interactivity: float = 1.0,
    weights: Mapping[str, float] | None = None,
    count: Callable[[str], float] | None = None,
) -> Formula:
    """The formula of that name, with the published settings.

    Args:
        name: One of :data:`FORMULAS`; see the module's docstring.
        domain: ``"math"``, ``"document"`` or ``"code"``: decides the published rate.
        rate: What a token costs; ``None`` for the published one: 5e-4 for mathematics and code and 1e-4 for documents,
            and for ``recipe`` 1e-4 a word throughout.
        interactivity: The weight of the judge's verdict. The paper, the recipe and the authors' preference training
            have 1; the authors' data have 0.5 for mathematics.
        weights: The weights of the task scores; 1 where none is given.
        count: Counts a text's tokens, for instance with the policy's own tokenizer; ``None`` for
            :func:`estimate_tokens` (for ``recipe``, :func:`count_words`).

    Raises:
        ValueError: An unknown name or domain, or a number that is not finite or (the rate) below 0.
    """
    if name not in FORMULAS:
        raise ValueError(f"formula must be one of {', '.join(FORMULAS)}, not {name!r}")
    if domain not in DOMAINS:
        raise ValueError(f"domain must be one of {', '.join(DOMAINS)}, not {domain!r}")
    if rate is None:
        rate = _RECIPE_RATE if name == "recipe" else _RATES[domain]
    _check("rate", rate, 0.0, math.inf)
    for what, weight in (("interactivity", interactivity), *(weights or {}).items()):
        _check(f"the weight of {what}", weight, -math.inf, math.inf)
    made = Formula(
        name=name, rate=float(rate), interactivity=interactivity, weights=dict(weights or {}), **_SHAPES[name]
    )
    return made if count is None else replace(made, count=count)


def _check(what: str, value: float, low: float, high: float) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not low <= value <= high:
        between = f" from {low:g}" if math.isfinite(low) else ""
        between += f" to {high:g}" if math.isfinite(high) else " up" if math.isfinite(low) else ""
        raise ValueError(f"{what} must be a finite number{between}, not {value!r}")


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
