"""Recorded replies in place of an engine's: each is returned while its context is the recorded one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engines.base import EngineError, Generation, Sampling
from ..trajectory import Trajectory


class RecordedEngine:
    """An engine that returns the recorded replies while it gets the contexts of the recorded run."""

    version = 0

    def __init__(self, episodes: Sequence[Trajectory], max_context: int) -> None:
        self.max_context = max_context
        self._episodes = {episode.episode_id: episode for episode in episodes}
        self._turns = dict.fromkeys(self._episodes, 0)
        self.problems: dict[str, int] = {}  # the turn at which an episode's context differed

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Generation:
        assert session is not None
        name = session.split("/", 1)[1]
        episode, turn = self._episodes[name], self._turns[name]
        self._turns[name] += 1
        if turn >= episode.num_turns or context_of(episode, turn).tolist() != list(token_ids):
            self.problems[name] = turn
            raise EngineError(f"turn {turn} was not recorded with this context")
        where = episode.turn_id == turn
        ids = episode.token_ids[where]
        mask: dict[str, Any] = {}
        if len(episode.kept_counts):
            ends = np.cumsum(episode.kept_counts)
            first, last = np.flatnonzero(where)[[0, -1]]
            kept_ids = episode.kept_ids[ends[first] - episode.kept_counts[first] : ends[last]]
            mask = {"kept_ids": kept_ids, "kept_counts": episode.kept_counts[where]}
            mask["sampled_logprobs"] = episode.logprobs[where]
        reason: Any = "stop" if int(ids[-1]) in sampling.stop_token_ids else "length"
        return Generation(ids, episode.logprobs[where], episode.weight_version[where], reason, **mask)

    async def release(self, session: str) -> None:
        """Do nothing: no state is stored."""

    async def update_weights(self, weights: Any, version: int, mode: Any = "keep") -> None:
        raise EngineError("recorded replies have no weights")

    def stats(self) -> dict[str, float]:
        return {}

    async def close(self) -> None:
        """Do nothing: no resource is open."""


def context_of(episode: Trajectory, turn: int) -> NDArray[np.int32]:
    """Return the context that the engine got for a turn's reply, ``[T]``."""
    first = int(np.flatnonzero(episode.turn_id == turn)[0])
    start = episode.segment_starts[np.searchsorted(episode.segment_starts, first, side="right") - 1]
    return episode.token_ids[start:first]
