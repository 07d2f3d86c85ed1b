"""An episode as rows for a trainer of token sequences: one for each of its contexts, a prompt and a completion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..trajectory import Trajectory


def has_failed(episode: Trajectory) -> bool:
    """Return whether nothing can be learned from an episode: its rewards are invalid, or no token was sampled."""
    return not episode.status.trainable or not episode.num_turns


@dataclass(frozen=True, eq=False)
class ContextRow:
    """One context of an episode, from its first token to the last one that it sampled.

    ``prompt`` and ``completion`` are slices of the trajectory's tokens; a completion begins with a sampled token and
    ends with one. That of a failed episode is empty.
    """

    trajectory: Trajectory
    prompt: slice
    completion: slice

    @property
    def turns(self) -> list[int]:
        """The episode's turns that this context sampled."""
        turn_id = self.trajectory.turn_id[self.completion]
        return sorted({*turn_id.tolist()} - {-1})

    def of_actions(self, values: NDArray[Any], elsewhere: Any) -> NDArray[Any]:
        """Return the completion's share of numbers ``[N]`` of the episode's action tokens; ``elsewhere`` for others."""
        tokens = np.full(len(self.trajectory.token_ids), elsewhere, values.dtype)
        tokens[self.trajectory.actions] = values
        return tokens[self.completion]


def context_rows(episode: Trajectory) -> list[ContextRow]:
    """Return a row for each context that an episode sampled in, in the order of their last use.

    The last row is of the context that the episode ended in. A failed episode has one row.
    """
    if has_failed(episode):
        sampled = np.flatnonzero(episode.action_mask)
        size = int(sampled[0]) if sampled.size else len(episode.token_ids)
        return [ContextRow(episode, slice(0, size), slice(size, size))]
    rows = []
    for part in episode.segments():
        sampled = part.start + np.flatnonzero(episode.action_mask[part])
        if sampled.size:
            first, end = int(sampled[0]), int(sampled[-1]) + 1
            rows.append(ContextRow(episode, slice(part.start, first), slice(first, end)))
    return rows
