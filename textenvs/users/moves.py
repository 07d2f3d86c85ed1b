"""Moves: what a user does in answer to a reply, as one of a few: it reveals something, confirms, repeats itself, ...

A scripted user knows its move exactly, and names it in ``Turn.metrics`` on every turn that it answers::

    return Turn([user("At eight.")], metrics={**counts, **move_metrics("reveals")})

The move is the user's own view of the talk, right or wrong, and private: it is in ``info["metrics"]`` and never in an
observation, so a policy cannot read it. Where a model plays the user none is named; a judge may label its messages
(``reward_models.NAME.kind=moves`` of the trainers). The trainers make a credit of it: docs/algorithms.md, "Reaction
credit".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

from ..text import quoted

Move: TypeAlias = Literal["reveals", "confirms", "answers", "repeats", "corrects", "complains", "gives_up", "ends"]

#: The moves and their meaning. Their order is their number in the metrics, so new ones are added at the end.
MEANING: Mapping[str, str] = {
    "reveals": "it tells something that it had held back",
    "confirms": "it says yes to a proposal, or accepts what was done, delivered or told",
    "answers": "it says something that is none of the others: a next wish, a question, an evasion",
    "repeats": "it says again what it has said, or that it has said it",
    "corrects": "it says that something that was said, proposed or delivered is wrong or incomplete",
    "complains": "it has nothing to answer to: the reply is of no use to it, or not understood",
    "gives_up": "it ends the talk without what it wanted",
    "ends": "it ends the talk: as far as it can see, everything is settled",
}
MOVES: tuple[Move, ...] = get_args(Move)

#: The metric that names a move, by its place in :data:`MOVES`.
METRIC = "user_move"


def move_metrics(move: Move | None) -> dict[str, float]:
    """Return the entry of ``Turn.metrics`` that names a move; empty for ``None``.

    Raises:
        ValueError: There is no such move.
    """
    if move is None:
        return {}
    if move not in MOVES:
        raise ValueError(f"a user's move is one of {', '.join(MOVES)}, not {quoted(move)}")
    return {METRIC: float(MOVES.index(move))}


def move_of(metrics: Mapping[str, float]) -> Move | None:
    """Return the move that a turn's metrics name, or ``None``.

    Raises:
        ValueError: The metric is not the number of a move.
    """
    number = metrics.get(METRIC)
    return None if number is None else move_numbered(number)


def without_move(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return a turn's metrics without its move, whose number must not be averaged: those that describe the episode."""
    return {name: value for name, value in metrics.items() if name != METRIC}


def move_numbered(number: float) -> Move:
    """Return the move with this number, its place in :data:`MOVES`.

    Raises:
        ValueError: There is none.
    """
    if number not in range(len(MOVES)):
        numbers = f"the number of one, from 0 to {len(MOVES) - 1}"
        raise ValueError(f"{METRIC!r} of a turn's metrics names the user's move: {numbers}, not {quoted(number)}")
    return MOVES[int(number)]
