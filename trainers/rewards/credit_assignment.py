"""Credit assignment: turn rewards moved between the turns of their episode.

All but user functions keep the episode's sum (they are *return-equivalent*: Arjona-Medina et al., RUDDER, arXiv
1806.07857), and so the best policy by that sum. What estimators with a reward-to-go learn may differ; docs/credit.md
has the formulas and examples.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from textenvs.env import LARGEST
from textenvs.options import Share, checked
from textenvs.text import quoted
from trainers.trajectory import Trajectory

from .function_worker import RefusedError, load_function

#: A function from an episode to a copy with other turn rewards.
Redistribution: TypeAlias = Callable[[Trajectory], Trajectory]
Floats: TypeAlias = NDArray[np.float64]

#: The term with the difference between a turn's new and earned reward.
MOVED = "moved"


class RedistributionError(ValueError):
    """A user function cannot be loaded, or returned no valid rewards for an episode."""


def last(rewards: Floats) -> Floats:
    """Move the sum to the last turn: the episode as one outcome."""
    moved = np.zeros_like(rewards)
    moved[-1:] = rewards.sum()
    return moved


def spread(rewards: Floats) -> Floats:
    """Give every turn the mean (Gangwani et al., arXiv 2010.12718)."""
    return np.full_like(rewards, rewards.mean() if rewards.size else 0.0)


@checked
def discounted(rewards: Floats, decay: Share) -> Floats:
    """Share each reward among the turns up to its own: ``r'_s = sum_{t>=s} r_t d^(t-s) / (1 + d + ... + d^t)``."""
    turn = np.arange(len(rewards))
    back = turn - turn[:, None]  # [s, t]: how many turns before t the turn s is
    shares = np.where(back >= 0, float(decay) ** np.maximum(back, 0), 0.0)
    moved: Floats = (shares / np.maximum(shares.sum(axis=0), 1.0)) @ rewards
    return moved


def redistribution(name: str, decay: float = 0.9) -> Redistribution:
    """Return the redistribution of ``algorithm.reward_credit``.

    Names are ``as_earned``, ``last``, ``spread``, ``discounted``, and user functions.

    ``FILE.py:FUNCTION`` is called with the :class:`~trainers.trajectory.Trajectory` of an episode that has turns, and
    returns a finite number for each; their sum may differ. RedistributionError: there is no such file or
    function.
    """
    if name == "as_earned":
        return lambda trajectory: trajectory
    built_in: Mapping[str, Callable[[Floats], Floats]] = {
        "last": last,
        "spread": spread,
        "discounted": partial(discounted, decay=decay),
    }
    if (function := built_in.get(name)) is not None:
        function(np.zeros(1))  # refuse a decay outside its range now
        return lambda trajectory: moved_to(trajectory, function(trajectory.turn_rewards))
    path, _, function_name = name.rpartition(":")
    if not path:
        raise RedistributionError(f"{name!r} is none of as_earned, {', '.join(built_in)}, and not FILE.py:FUNCTION")
    return partial(_by_user, _load(Path(path).expanduser(), function_name), name)


def moved_to(trajectory: Trajectory, rewards: Sequence[float] | Floats) -> Trajectory:
    """Return the episode with these ``[K]`` turn rewards; the term :data:`MOVED` has each turn's difference."""
    moved = np.asarray(rewards, np.float64)
    terms = tuple(
        {**its, MOVED: its.get(MOVED, 0.0) + float(extra)} if extra else its
        for its, extra in zip(trajectory.turn_terms, moved - trajectory.turn_rewards, strict=True)
    )
    return replace(trajectory, turn_rewards=moved, turn_terms=terms)


def overlong_penalty(tokens: int, limit: int, buffer: int, factor: float = 1.0) -> float:
    """Return 0 up to ``limit - buffer`` tokens, then linearly down to ``-factor`` at the limit.

    DAPO, arXiv 2503.14476, equation 13. ``buffer`` is from 1 to ``limit``; ``factor`` is at least 0.
    """
    over = min(max(tokens - (limit - buffer), 0), buffer)
    return -factor * over / buffer if over else 0.0


def _by_user(function: Callable[[Trajectory], Any], name: str, trajectory: Trajectory) -> Trajectory:
    turns = trajectory.num_turns
    if not turns:
        return trajectory
    where = f"{name}, episode {trajectory.episode_id!r}"
    with _reporting(where):
        rewards = function(trajectory)
    try:
        moved = np.array(rewards, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise RedistributionError(f"{where}: it returned {quoted(rewards)}, which are no numbers") from error
    if moved.shape != (turns,):
        raise RedistributionError(
            f"{where}: it returned {quoted(rewards)}; an episode of {turns} turns needs as many numbers, in a list"
        )
    good = np.abs(moved) <= LARGEST
    if not good.all():
        turn = int(np.argmin(good))
        raise RedistributionError(
            f"{where}: its reward of turn {turn} is {moved[turn]}, not a finite number of at most {LARGEST:g}"
        )
    return moved_to(trajectory, moved)


def _load(path: Path, name: str) -> Callable[[Trajectory], Any]:
    if not path.is_file():
        raise RedistributionError(f"there is no file {path}")
    sys.path.append(str(path.resolve().parent))  # for modules beside it
    with _reporting(str(path)):
        return load_function(str(path), name, "reward_credit")


@contextmanager
def _reporting(where: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        reason = str(error) if isinstance(error, RefusedError) else "".join(traceback.format_exception(error)).rstrip()
        raise RedistributionError(f"{where}: {reason}") from error
