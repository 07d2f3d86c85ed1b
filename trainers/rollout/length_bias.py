"""Bias of delivered episodes towards short ones."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..trajectory import Trajectory
from .stats import Timeline

Tokens: TypeAlias = NDArray[np.int32]


@dataclass
class _Attempt:
    """An attempt at an episode, observed from ``begin`` to ``end`` tokens; ``ended`` there by itself, or cut."""

    sampled: Tokens
    begin: int
    end: int
    ended: bool


class Lengths:
    """The mean length of episodes of which some were cut before their end.

    The product-limit estimator (Kaplan and Meier 1958) with delayed entry: an episode that was cut counts up to where
    it was cut. Where the longest was cut, it is a lower bound.
    """

    def __init__(self) -> None:
        self._begin: Counter[int] = Counter()
        self._end: Counter[int] = Counter()
        self._ended: Counter[int] = Counter()

    def add(self, begin: int, end: int, ended: bool) -> None:
        """Add an episode observed from ``begin`` to ``end`` tokens, which ended there or was cut."""
        if end > begin:
            self._begin[begin] += 1
            self._end[end] += 1
            self._ended[end] += ended

    def mean(self) -> float:
        """Return the estimated mean; 0 without any episode."""
        mean, survive, at_risk, before = 0.0, 1.0, 0, 0
        for length in sorted({*self._begin, *self._end}):
            mean += survive * (length - before)
            if ended := self._ended[length]:
                survive *= 1.0 - ended / at_risk
            at_risk += self._begin[length] - self._end[length]
            before = length
        return mean


class LengthBias:
    """Bias of the lengths of delivered episodes, relative to those of all sampled ones.

    The reference must not depend on length, as "all episodes that ended so far" does: the long ones have not, or were
    cut. So the first ``k`` groups delivered are compared with all attempts at the first ``k`` groups admitted, once all
    of these are known::

        bias(k) = mean sampled tokens an episode of the first k delivered / estimated mean of those attempts

    The estimate (:class:`Lengths`) takes attempts that were cut as at least so long. An attempt that repeats the tokens
    of an earlier one continues that one. Tokens of a request that was cancelled are estimated from its seconds. It is
    reported for the largest ``k``, a multiple of the batch, that is known; groups that a filter of rewards dropped
    have no part in it.
    """

    def __init__(self) -> None:
        self._attempts: dict[int, dict[int, list[_Attempt]]] = {}  # by group and sibling, not yet in _admitted
        self._groups: set[int] = set()  # delivered, and not yet in _admitted
        self._delivered = (0, 0, 0)  # groups, episodes, tokens
        self._batches: deque[tuple[int, int, int]] = deque()  # _delivered after each batch that waits to be compared
        self._admitted, self._lengths = 0, Lengths()
        self._tokens, self._seconds = 0, 0.0  # of episodes that ended
        self._next = 0  # the first group not in _admitted
        self.value: float | None = None

    def attempt(self, group: int, sibling: int, trajectory: Trajectory | None, timeline: Timeline) -> None:
        """Record an ended attempt at an episode; ``trajectory`` is ``None`` if it was withdrawn."""
        sampled, length, ended = np.zeros(0, np.int32), timeline.tokens, False
        if trajectory is not None:
            sampled = trajectory.token_ids[trajectory.actions]
            ended = trajectory.status.trainable
        if ended:
            self._tokens += length
            self._seconds += timeline.seconds["generate"]
        elif self._seconds:
            length += round(timeline.unanswered_s * self._tokens / self._seconds)
        if group < self._next:  # its group is counted
            self._lengths.add(0, length, ended)
            return
        attempts = self._attempts.setdefault(group, {}).setdefault(sibling, [])
        for earlier in attempts:
            earlier.begin = max(earlier.begin, _common(earlier.sampled, sampled))
        attempts.append(_Attempt(sampled, 0, length, ended))

    def forget(self, group: int) -> None:
        self._attempts.pop(group, None)

    def deliver(self, batch: Mapping[int, Sequence[Trajectory]], is_done: Callable[[int], bool]) -> float | None:
        """Return the bias after this batch of groups by number; ``None`` while it cannot be estimated.

        ``is_done`` tells whether the group of a number was dropped, or delivered before this process began.
        """
        self._groups.update(batch)
        groups, episodes, tokens = self._delivered
        episodes += sum(map(len, batch.values()))
        tokens += sum(int(episode.action_mask.sum()) for group in batch.values() for episode in group)
        self._delivered = (groups + len(batch), episodes, tokens)
        self._batches.append(self._delivered)
        while self._batches:
            groups, episodes, tokens = self._batches[0]
            while self._admitted < groups:
                if self._next not in self._groups and not is_done(self._next):
                    return self.value
                self._admit(self._next)
                self._next += 1
            if mean := self._lengths.mean():
                self.value = round(tokens / episodes / mean, 9)  # not the order of sums, which resuming changes
            self._batches.popleft()
        return self.value

    def _admit(self, group: int) -> None:
        self._admitted += group in self._groups
        self._groups.discard(group)
        for attempts in self._attempts.pop(group, {}).values():
            for attempt in attempts:
                self._lengths.add(attempt.begin, attempt.end, attempt.ended)


def _common(one: Tokens, other: Tokens) -> int:
    size = min(len(one), len(other))
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if len(differ) else size
