"""Numbers of the action tokens of some trajectories: one flat array for the models, one array a trajectory outside."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from trainers.learner.logprobs import Kept
from trainers.trajectory import Trajectory

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
#: Numbers of each action token: one array a trajectory, or all of them in one, in the order of the trajectories.
PerToken = Sequence[NDArray[np.floating]] | NDArray[np.floating]


def split(flat: Floats, offsets: NDArray[np.int64]) -> list[Floats]:
    """One array a trajectory; ``offsets``, ``[E + 1]``, are where each begins."""
    return [flat[start:end].copy() for start, end in zip(offsets[:-1], offsets[1:], strict=True)]


class KeptSets:
    """The sampling masks of some trajectories: the tokens that cuts left, by action token.

    Args:
        trajectories: ``N`` action tokens in all.
    """

    def __init__(self, trajectories: Sequence[Trajectory]) -> None:
        nothing = np.zeros(0, np.int64)
        counts = [
            t.kept_counts[t.action_mask] if len(t.kept_counts) else np.zeros(int(t.action_mask.sum()), np.int64)
            for t in trajectories
        ]
        self._counts = np.concatenate([nothing, *counts]).astype(np.int64)
        self._ids = np.concatenate([nothing, *(t.kept_ids for t in trajectories)]).astype(np.int64)
        self._starts = np.cumsum(self._counts) - self._counts

    def distinct(self, positions: Ints, targets: Ints, index: Ints) -> tuple[Ints, Ints]:
        """Which of some action tokens are the same token, drawn from the same distribution.

        Args:
            positions: int64 ``[n]``; of the hidden states that predict them.
            targets: int64 ``[n]``.
            index: int64 ``[n]``; their flat indices.

        Returns:
            int64 ``[m]``, the first of each kind, and int64 ``[n]``, the kind of each.
        """
        keys = positions * (int(targets.max(initial=0)) + 1) + targets
        if self._counts[index].any():
            numbers: dict[bytes, int] = {}
            sets = [self._ids[start : start + count].tobytes() for start, count in
                    zip(self._starts[index], self._counts[index], strict=True)]  # fmt: skip
            keys = keys * (len(index) + 1) + np.array([numbers.setdefault(each, len(numbers)) for each in sets])
        _, first, kinds = np.unique(keys, return_index=True, return_inverse=True)
        return first, kinds

    def of(self, index: Ints, device: torch.device) -> Kept | None:
        """Those of some action tokens, by flat index; ``None`` where all were drawn from the full vocabulary."""
        counts = self._counts[index]
        if not counts.any():
            return None
        places = np.arange(counts.sum()) + np.repeat(self._starts[index] - (np.cumsum(counts) - counts), counts)
        return Kept(torch.from_numpy(self._ids[places]).to(device), torch.from_numpy(counts))


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
