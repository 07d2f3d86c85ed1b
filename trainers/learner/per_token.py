"""Numbers of the action tokens of some trajectories: one flat array for the models, one array a trajectory outside."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainers.trajectory import Trajectory

Floats = NDArray[np.float32]
#: Numbers of each action token: one array a trajectory, or all of them in one, in the order of the trajectories.
PerToken = Sequence[NDArray[np.floating]] | NDArray[np.floating]


def split(flat: Floats, offsets: NDArray[np.int64]) -> list[Floats]:
    """One array a trajectory; ``offsets``, ``[E + 1]``, are where each begins."""
    return [flat[start:end].copy() for start, end in zip(offsets[:-1], offsets[1:], strict=True)]


def column(name: str, given: PerToken, offsets: NDArray[np.int64]) -> Floats:
    """One float32 array of all action tokens' numbers, checked against the trajectories."""
    if isinstance(given, np.ndarray) and given.dtype != object and given.ndim == 1:
        if given.size != offsets[-1]:
            raise ValueError(f"per_token[{name!r}] has {given.size} numbers for {offsets[-1]} action tokens")
        flat = given
    else:
        lengths, wanted = [len(part) for part in given], np.diff(offsets).tolist()
        if lengths != wanted:
            number = next((i for i, pair in enumerate(zip(lengths, wanted, strict=False)) if pair[0] != pair[1]), None)
            where = "" if number is None else f"; trajectory {number} has {wanted[number]} action tokens"
            raise ValueError(
                f"per_token[{name!r}] does not fit the {len(wanted)} trajectories: lengths {lengths}{where}"
            )
        flat = np.concatenate(given)
    flat = np.array(flat, np.float32)  # a copy: torch takes no read-only arrays
    if not np.isfinite(flat).all():
        token = int(np.flatnonzero(~np.isfinite(flat))[0])
        number = int(np.searchsorted(offsets, token, side="right")) - 1
        raise ValueError(
            f"per_token[{name!r}] is {flat[token]} at action token {token - offsets[number]} of trajectory {number}"
        )
    return flat


def some_names(trajectories: Sequence[Trajectory], most: int = 5) -> str:
    """Which trajectories these are, for an error."""
    names = [trajectory.episode_id or "?" for trajectory in trajectories[:most]]
    return ", ".join(names) + (", ..." if len(trajectories) > most else "")
