"""What a batch's stats count: outcomes and their causes, ages, lengths, times. Pure; docs/collector.md defines them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

from ..trajectory import Status, Trajectory
from .timeline import PHASES, Timeline

_ENDED = "episodes_"  # before a status


class Tally:
    """Counts over the episodes that ended between two batches.

    Attributes:
        problems: The last message of each cause.
    """

    def __init__(self) -> None:
        self._statuses: Counter[str] = Counter()
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._episodes = self._prompt_tokens = self._cached_tokens = self._continued = 0
        self.problems: dict[str, str] = {}

    def end(self, trajectory: Trajectory, timeline: Timeline) -> None:
        """An episode has ended."""
        status = trajectory.status.value
        self._statuses[f"{_ENDED}{status}"] += 1
        if timeline.cause is not None:
            cause = f"{status}_{timeline.cause}"
            self._statuses[f"cause_{cause}"] += 1
            self.problems[cause] = trajectory.error or trajectory.stop or "no reason given"
        self._episodes += 1
        for name, seconds in timeline.seconds.items():
            self._seconds[name] += seconds
        self._prompt_tokens += timeline.prompt_tokens
        self._cached_tokens += timeline.cached_tokens
        self._continued += timeline.continued

    def stats(self) -> dict[str, float]:
        """The counts; what cannot be said is absent."""
        stats = {name: float(count) for name, count in self._statuses.items()}
        if self._episodes:
            stats |= {f"time_{name}_s": seconds / self._episodes for name, seconds in self._seconds.items()}
        if self._prompt_tokens:
            stats["prefix_cache_hit"] = self._cached_tokens / self._prompt_tokens
        stats["replies_continued"] = float(self._continued)
        return stats


def ended(stats: Mapping[str, float]) -> dict[str, float]:
    """How many episodes ended, by status, from a batch's stats."""
    names = {f"{_ENDED}{status.value}": status.value for status in Status}
    return {status: stats[name] for name, status in names.items() if name in stats}


def ages(groups: Sequence[Sequence[Trajectory]], version: int) -> dict[str, float]:
    """How old the oldest token of each episode of a batch is, in versions: mean, most, and the share of each age."""
    counts = Counter(version - (trajectory.oldest_version or 0) for group in groups for trajectory in group)
    total = counts.total()
    return {
        **{f"staleness_{age}": count / total for age, count in sorted(counts.items())},
        "staleness_mean": sum(age * count for age, count in counts.items()) / total,
        "staleness_max": float(max(counts)),
    }


class LengthBias:
    """Whether what was delivered so far is longer or shorter than what was admitted.

    The reference must not depend on length. "All episodes that ended so far" does: the long ones are those that have
    not. So the first ``k`` groups delivered are compared with the first ``k`` groups admitted (those dropped left out),
    once all of these are known, which at most ``window - 1`` later groups wait for::

        bias(k) = mean sampled tokens an episode of the first k delivered / the same of the first k admitted

    It is 1 in strict order, and below 1 where short episodes come first. It is reported for the largest ``k``, a whole
    number of batches, that can be said. Dropped groups (filtered, failed) have no part in it.
    """

    def __init__(self) -> None:
        self._lengths: dict[int, tuple[int, int]] = {}  # groups delivered, beyond those in _admitted
        self._delivered, self._admitted = [0, 0, 0], [0, 0, 0]  # groups, episodes, tokens
        self._batches: deque[tuple[int, int, int]] = deque()  # _delivered after each batch that waits to be compared
        self._next = 0  # the first group not in _admitted
        self.value: float | None = None

    def deliver(self, batch: Mapping[int, Sequence[Trajectory]], gone: Callable[[int], bool]) -> float | None:
        """A batch was delivered.

        Args:
            batch: Its groups by number.
            gone: Whether the group of a number was dropped, or delivered before this process began.

        Returns:
            The bias; ``None`` while nothing can be said.
        """
        for number, group in batch.items():
            tokens = sum(int(trajectory.action_mask.sum()) for trajectory in group)
            self._lengths[number] = (len(group), tokens)
            _add(self._delivered, len(group), tokens)
        self._batches.append((self._delivered[0], self._delivered[1], self._delivered[2]))
        while self._batches:
            groups, episodes, tokens = self._batches[0]
            while self._admitted[0] < groups:
                if self._next in self._lengths:
                    _add(self._admitted, *self._lengths.pop(self._next))
                elif not gone(self._next):
                    return self.value
                self._next += 1
            self.value = (tokens / episodes) / (self._admitted[2] / self._admitted[1])
            self._batches.popleft()
        return self.value


def _add(sums: list[int], episodes: int, tokens: int) -> None:
    sums[0] += 1
    sums[1] += episodes
    sums[2] += tokens
