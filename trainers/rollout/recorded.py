"""Recorded replies in the place of an engine's: what was sampled is given again, as long as it was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engines.base import EngineError, Generation, Sampling
from ..trajectory import Trajectory


class RecordedEngine:
    """An engine that gives the recorded replies, as long as it is shown what the run's engine was shown."""

    version = 0

    def __init__(self, episodes: Sequence[Trajectory], max_context: int) -> None:
        self.max_context = max_context
        self._episodes = {each.episode_id: each for each in episodes}
        self._turns = dict.fromkeys(self._episodes, 0)
        self.problems: dict[str, int] = {}  # the turn before whose reply an episode was shown something else

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
        kept: dict[str, Any] = {}
        if len(episode.kept_counts):
            ends = np.cumsum(episode.kept_counts)
            first, last = np.flatnonzero(where)[[0, -1]]
            kept_ids = episode.kept_ids[ends[first] - episode.kept_counts[first] : ends[last]]
            kept = {"kept_ids": kept_ids, "kept_counts": episode.kept_counts[where]}
            kept["sampled_logprobs"] = episode.logprobs[where]
        reason: Any = "stop" if int(ids[-1]) in sampling.stop_token_ids else "length"
        return Generation(ids, episode.logprobs[where], episode.weight_version[where], reason, **kept)

    async def release(self, session: str) -> None:
        """Nothing is kept."""

    async def update_weights(self, weights: Any, version: int, mode: Any = "keep") -> None:
        raise EngineError("recorded replies have no weights")

    def stats(self) -> dict[str, float]:
        return {}

    async def close(self) -> None:
        """Nothing is open."""


def context_of(episode: Trajectory, turn: int) -> NDArray[np.int32]:
    """What the engine was given for a turn's reply."""
    first = int(np.flatnonzero(episode.turn_id == turn)[0])
    start = episode.segment_starts[np.searchsorted(episode.segment_starts, first, side="right") - 1]
    return episode.token_ids[start:first]
