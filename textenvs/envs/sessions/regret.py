"""Regret: what the best notebook of a life would earn, by an information bound and by a bound on plain notebooks.

A life's codes are drawn independently and uniformly from ``V = 36**8``, and the question of a session by a law that
does not depend on them. Let ``M`` be the notebook of the session before, and ``p_i`` the probability that a policy
answers with the code of statement ``i`` where the question needs it. With a notebook that is independent of that code,
this probability is ``1/V``; so by data processing ``M`` carries at least the binary divergence ``d(p_i || 1/V)`` about
it, which is Fano's inequality. The codes are independent, so ``M`` carries about all of them at least the sum, and at
most the logarithm of the number of notebooks (Polyanskiy and Wu, Information Theory, Cambridge 2025):

    maximise sum_i w_i p_i   subject to   sum_i d(p_i || 1/V) <= B = log(sum_{k<=N} 38**k)

with the law's weights ``w_i``. A question about two codes is answered right at most as often as each of them can be
told, so it counts half for each. By Lagrange duality and the variational form of Donsker and Varadhan, the maximum is
at most ``m B + sum_i m log(1 + (exp(w_i / m) - 1) / V)`` for every ``m > 0``. So a search for the best ``m`` needs no
tolerance: each value gives a bound. It is on the expected share of right answers, given who tells and changes what
when, over the draw of questions and codes. It holds for any policy, with codes, compression and randomness of its own,
and says nothing of a life whose codes a row chooses.

A *plain* notebook has a line of at least eleven characters, with its break, for each code that it knows
(:class:`~textenvs.envs.sessions.expert.Line`). What it holds it held since the code was told. :func:`plain_bound` is an
upper bound on the expected score of all plain notebooks, also of those that know what will be told later: the dual of
this knapsack over time, with a price of a character in each session.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from .expert import Line, plan_of, read
from .facts import FactStore, Statement
from .law import Demand, demand_of
from .life import ALPHABET, CODE, Life, Session

_Floats = NDArray[np.float64]
#: Multipliers that the information bound tries; steps of the prices, and the size of the first.
_MULTIPLIERS = np.geomspace(1e-5, 10.0, 160)
_STEPS = 400
_STEP = 0.002


def demands(life: Life) -> Iterator[tuple[Session, FactStore, Demand]]:
    """Yield each session that asks something, the facts then, and the law of its question."""
    store = FactStore()
    for session in life.sessions:
        for statement in session.statements:
            store.add(statement)
        if session.question is not None:
            stated = {statement.key for statement in session.statements}
            yield session, store, demand_of(store, life.phase(session.day), session.day, stated)


def log_notebooks(capacity: int) -> float:
    """Return the natural logarithm of the number of notebooks of at most ``capacity`` characters."""
    size = float(len(ALPHABET) + 2)
    return float(capacity * np.log(size) + np.log(size / (size - 1.0)))  # from above


def best_share(weights: _Floats, log_count: float, log_codes: float = CODE * float(np.log(len(ALPHABET)))) -> float:
    """Return an upper bound on ``sum_i w_i p_i`` for any notebook; see the module's docstring.

    Args:
        weights: ``[statements]``, at least 0.
        log_count: The natural logarithm of the number of notebooks.
        log_codes: The natural logarithm of the number of codes, which are equally likely.
    """
    multipliers = _MULTIPLIERS * max(1.0, float(weights.max(initial=0.0)))
    scaled = weights[None, :] / multipliers[:, None]
    one_minus = np.log1p(-np.exp(-log_codes))
    gained = np.logaddexp(scaled - log_codes, one_minus).sum(1)
    return float(min(weights.sum(), (multipliers * (log_count + gained)).min()))


@functools.lru_cache(64)
def bound_of(life: Life) -> float:
    """Return an upper bound on the expected share of right answers of any policy in a life."""
    log_count, total = log_notebooks(life.scale.capacity), 0.0
    for _, store, demand in demands(life):
        chances, unknown = demand.needed(store)
        total += unknown + best_share(np.array([*chances.values()]), log_count)
    return total / max(1, life.questions)


def expected_of(life: Life, notebooks: Sequence[str]) -> float:
    """Return the expected share of right answers of a policy that answers from the plain lines of its notebooks.

    It is that only of notebooks whose lines are a part of those that :func:`~textenvs.envs.sessions.expert.updated`
    returns: a line that is no longer right, or that leaves out who must not learn its code, costs nothing here.

    Args:
        life: The life.
        notebooks: At the end of each session but the last.
    """
    numbers = {one.value: number for number, one in life.statements.items() if one.value}
    total = 0.0
    for session, store, demand in demands(life):
        lines = read(life, notebooks[session.day - 2])
        total += demand.expected(store, {numbers[line.code] for line in lines if line.code in numbers})
    return total / max(1, life.questions)


@functools.lru_cache(64)
def expected_of_expert(life: Life) -> float:
    """Return the expected share of right answers of the expert in a life."""
    return expected_of(life, plan_of(life).notebooks)


def plain_bound(life: Life) -> float:
    """Return an upper bound on the expected share of right answers of any plain notebook in a life."""
    sessions, statements = len(life.sessions), life.statements
    weights = np.zeros((len(statements), sessions))
    unknown = 0.0
    for session, store, demand in demands(life):
        chances, nothing = demand.needed(store)
        unknown += nothing
        weights[list(chances), session.day - 1] += list(chances.values())
    since = {one.number: place for place, session in enumerate(life.sessions) for one in session.statements}
    needed = np.flatnonzero(weights.sum(1) > 0.0)
    weights = weights[needed]
    sizes = np.array([line_size(statements[int(number)]) for number in needed], np.float64)[:, None]
    days = np.arange(sessions)[None, :]
    # Sessions that read a notebook which may have the code.
    after = days > np.array([since[int(number)] for number in needed])[:, None]
    room, prices, best = life.scale.capacity + 1.0, np.zeros(sessions), np.inf
    for step in range(_STEPS):
        gains = np.where(after, weights - prices * sizes, 0.0).cumsum(1)
        last = gains.argmax(1)
        best = min(best, float(gains.max(1, initial=0.0).sum() + room * prices.sum()))
        held = after & (days <= last[:, None]) & (gains.max(1) > 0.0)[:, None]
        slope = (held * sizes).sum(0) / room - 1.0
        prices = np.maximum(0.0, prices + _STEP / np.sqrt(1.0 + step) * slope)
    return (unknown + best) / max(1, life.questions)


def line_size(statement: Statement) -> int:
    """Return the characters of a statement's code as a plain line, with the line break."""
    return len(Line(statement.key, statement.value, statement.hidden_from).text) + 1
