"""The multiturn-aware reward as a reward that comes later: futures are played beside the episode that they reward.

The policy of the futures is the engine's model as it is at that moment, so they compete with the episodes for the
engine, and nothing waits for them before its own end. See :mod:`textenvs.lookahead` for what is computed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Mapping
from typing import Any, Literal
from weakref import WeakKeyDictionary

from textenvs.lookahead import Lookahead, MultiturnReward

from .rewards import TurnContext

Credit = Literal["value", "difference"]


class MultiturnScore:
    """``score(so_far, turn)`` for :class:`~trainers.rollout.collector.Collector`'s ``rewards``, in training alone.

    Args:
        lookahead: How to look ahead.
        credit: ``"value"``: each turn earns its multiturn-aware reward, an estimate of what the whole conversation will
            be worth: it is the turn's return already, and must not be added up over turns (a discount of 0 over turns).
            ``"difference"``: what the turn changed in that estimate; an episode's rewards then sum to the score of the
            conversation that it became.
        replace: In place of what the environment pays, not beside it: a term ``environment_not_counted`` takes that
            away.

    Raises:
        ValueError: An unknown ``credit``.
    """

    def __init__(self, lookahead: Lookahead, *, credit: Credit = "value", replace: bool = True) -> None:
        if credit not in ("value", "difference"):
            raise ValueError(f"credit must be 'value' or 'difference', not {credit!r}")
        self._lookahead = lookahead
        self._credit = credit
        self._replace = replace
        # By environment: one episode at a time is played in it. The turn, and its estimate on the way.
        self._before: WeakKeyDictionary[Any, tuple[int, asyncio.Task[MultiturnReward]]] = WeakKeyDictionary()
        self._counts: Counter[str] = Counter()

    def __call__(self, so_far: TurnContext, turn: int) -> Awaitable[Mapping[str, float]] | None:
        """The turn's terms, to be awaited; ``None`` in evaluation.

        Raises:
            TypeError: The environment is not at hand: it must run inline.
        """
        if not so_far.training:
            return None
        if so_far.env is None:
            raise TypeError("looking ahead forks the environment, which must run inline (env.backend=inline)")
        ahead = asyncio.ensure_future(self._lookahead(so_far.env))  # the forks are taken now
        before = None
        if self._credit == "difference":
            known = self._before.get(so_far.env)
            before = known[1] if turn > 0 and known is not None and known[0] == turn - 1 else None
            if turn > 0 and before is None:
                ahead.cancel()
                raise RuntimeError(f"{so_far.episode_id}: turn {turn} has no estimate of the turn before")
            self._before[so_far.env] = (turn, ahead)
        terms = asyncio.ensure_future(self._terms(ahead, before, so_far.reward))
        terms.add_done_callback(lambda _: ahead.cancel())  # also when it was cancelled before its first line
        return terms

    def stats(self) -> dict[str, float]:
        """Totals since the last call: ``turns`` rewarded, ``samples``, ``failures``, ``policy_calls``, ``words``."""
        counts, self._counts = self._counts, Counter()
        return {name: float(counts[name]) for name in ("turns", "samples", "failures", "policy_calls", "words")}

    async def _terms(
        self, ahead: asyncio.Task[MultiturnReward], before: asyncio.Task[MultiturnReward] | None, paid: float
    ) -> Mapping[str, float]:
        result = await ahead
        self._counts["turns"] += 1
        self._counts["samples"] += result.samples
        self._counts["failures"] += len(result.failures)
        self._counts["policy_calls"] += result.policy_calls
        self._counts["words"] += sum(future.words for future in result.futures)
        terms = dict(result.terms)
        if before is not None:
            earlier = (await asyncio.shield(before)).terms
            terms = {name: term - earlier.get(name, 0.0) for name, term in terms.items()}
        if self._replace and paid:
            terms["environment_not_counted"] = -paid
        return terms
