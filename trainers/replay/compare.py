"""Compare the numbers and texts of a recorded iteration with recomputed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from textenvs.records import Episode as Recorded
from textenvs.records.schema import EXPLAINED
from textenvs.text import excerpt, printable

from ..report.episodes import Explained, checksums
from ..trajectory import Trajectory, action_offsets

STAGES = ("environment", "reward", "sampling", "credit", "advantage", "log-probability", "loss", "gradient")
_SHOWN = 200  # characters of a message
RELATIVE = 1e-3  #: how far apart the learner's numbers may be, where they are not exact
_NEAR = 1e-5  # as far apart the learner's log-probabilities of one arithmetic may be


class ReplayError(ValueError):
    """The iteration cannot be recomputed; the message says why, and what to do."""


@dataclass(frozen=True)
class Difference:
    """The first number or text of a stage that is not as recorded."""

    stage: str
    what: str
    expected: Any
    got: Any
    episode: str | None = None
    turn: int | None = None  # from 0, of the episode's own
    token: int | None = None  # index into ``token_ids``
    step: int | None = None  # the optimizer's, of the iteration, from 0

    def __str__(self) -> str:
        """Return the place and the two values."""
        parts = ("episode", self.episode), ("turn", self.turn), ("token", self.token), ("optimizer step", self.step)
        where = ", ".join(f"{name} {value}" for name, value in parts if value is not None)
        return f"{where}: {self.what} was {_shown(self.expected)} and is now {_shown(self.got)}"


@dataclass
class Report:
    """The outcome of each stage, in order: what was computed (or why not), and the first difference."""

    notes: dict[str, str] = field(default_factory=dict)
    differences: dict[str, Difference] = field(default_factory=dict)

    @property
    def first(self) -> Difference | None:
        """Difference of the first stage that differs, if any."""
        return next((self.differences[stage] for stage in STAGES if stage in self.differences), None)

    def note(self, stage: str, summary: str, difference: Difference | None = None) -> None:
        """Record the outcome of a stage."""
        self.notes[stage] = summary
        if difference is not None:
            self.differences[stage] = difference

    def lines(self) -> Iterator[str]:
        """Yield the report's lines, one for each stage."""
        for stage in STAGES:
            difference = self.differences.get(stage)
            yield f"{stage:16} {self.notes.get(stage, 'left out') if difference is None else f'DIFFERS: {difference}'}"
        yield "" if self.first is None else f"first difference: {self.first.stage}, {self.first}"


def _shown(value: Any) -> str:
    return printable(repr(excerpt(value, _SHOWN) if isinstance(value, str) else value))


@dataclass(frozen=True, eq=False)
class Comparison:
    """Comparison of tokens' recorded and recomputed numbers, for the ``episodes`` of a batch and their ``records``.

    Only the ``chosen`` episodes are compared. ``exact`` demands equality to the last bit, by checksums; otherwise
    values within a tolerance are equal. ``apart`` maps a column to its greatest absolute difference, the file's
    rounding included; it is empty with ``exact``.
    """

    episodes: Sequence[Trajectory]
    records: Sequence[Recorded]
    chosen: Sequence[bool]
    exact: bool
    apart: dict[str, float] = field(default_factory=dict)

    def first(
        self, columns: Mapping[str, NDArray[np.floating]], names: Sequence[str], stage_of: Callable[[str], str],
        among: NDArray[np.bool_] | None = None, step: int | None = None,
    ) -> Difference | None:  # fmt: skip
        """Return the difference of the first column that differs, in the first episode in which it does.

        The recomputed columns are float ``[N]`` each. They are compared in the order of ``names``, in the episodes
        of the mask ``among`` (bool ``[E]``); ``step`` is for the report.
        """
        offsets = action_offsets(self.episodes)
        have = [name for name in names if name in columns]
        sums = checksums(Explained({name: columns[name] for name in have}, (), _NONE, _NONE > 0), self.episodes)
        for name in have:
            for number, (episode, record) in enumerate(zip(self.episodes, self.records, strict=True)):
                if not self.chosen[number] or (among is not None and not among[number]) or not episode.num_turns:
                    continue
                now = np.asarray(columns[name][offsets[number] : offsets[number + 1]], np.float64)
                if self.exact and name in record.checksums and record.checksums[name] == sums[number][name]:
                    continue
                then = self._then(episode, record, name)
                if then is None or (not self.exact and self._near(then, now, name)):
                    continue
                return self._located(episode, stage_of(name), name, then, now, step)
        return None

    def _then(self, episode: Trajectory, record: Recorded, name: str) -> NDArray[np.float64] | None:
        assert record.tokens is not None
        values = getattr(record.tokens, "returns" if name == "return" else name)
        return None if values is None else np.asarray(values, np.float64)[episode.actions]

    def _near(self, then: NDArray[np.float64], now: NDArray[np.float64], name: str) -> bool:
        self.measure(name, float(np.nanmax(np.abs(then - now), initial=0.0)))
        return bool(np.isclose(then, now, **_tolerance(name, RELATIVE), equal_nan=True).all())

    def measure(self, name: str, apart: float) -> None:
        """Record a column's absolute difference from the recorded values, if it is the greatest so far."""
        self.apart[name] = max(apart, self.apart.get(name, 0.0))

    def summary(self, names: Sequence[str]) -> str:
        """Return a summary of these columns, none of which differs."""
        if self.exact:
            return "the same"
        most = ", ".join(f"{name} {self.apart[name]:.1g}" for name in names if name in self.apart)
        return f"the same within {RELATIVE:g}" + (f" (at most apart: {most})" if most else "")

    def _located(
        self, episode: Trajectory, stage: str, name: str, then: NDArray[np.float64], now: NDArray[np.float64],
        step: int | None,
    ) -> Difference:  # fmt: skip
        unlike = ~np.isclose(then, now, **_tolerance(name, 0.0 if self.exact else RELATIVE), equal_nan=True)
        where = episode.actions
        if not unlike.any():  # only the checksum tells
            what = f"{name}, in digits that the file does not keep,"
            return Difference(stage, what, "another", "this", episode.episode_id, step=step)
        at = int(np.argmax(unlike))
        place = episode.episode_id, int(episode.turn_id[where[at]]), int(where[at])
        return Difference(stage, name, float(then[at]), float(now[at]), *place, step)


_NONE = np.zeros(0)


def _tolerance(name: str, tolerance: float) -> dict[str, float]:
    """Return the arguments of ``isclose`` that allow for the file's rounding, plus ``tolerance``."""
    bits = EXPLAINED["mismatch" if name == "learner_logprobs" else name].bits
    if name == "learner_logprobs":  # the rounding is of its difference to the rollout's
        return {"rtol": 1e-6, "atol": max(_NEAR, tolerance)}
    return {"rtol": (2.0**-bits if bits else 0.0) + tolerance, "atol": 1e-7 + tolerance * 0.01}
