"""Diagnosis of a run that does not learn: verdicts on its metrics, each with cause, evidence and advice.

A check (:mod:`.checks`) is a pure function of the measurements so far, the :class:`History`, and of the configuration.
:class:`Doctor` feeds it row by row, live or from ``metrics.jsonl``, and says which verdicts begin. It has no other
state, so a run that resumes reads its own metrics and continues.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

START = 5  #: iterations at the start of a run that later ones are compared with
RECENT = 12  #: iterations before the latest that these are compared with
QUIET = 10  #: iterations after which a verdict that had ceased to hold is reported again
#: A normal deviate that is exceeded once in 3.5 million times. Checks look at a run some hundred times, at several
#: numbers, whose noise is heavier-tailed than a normal's.
RARE = 5.0


class Finding(NamedTuple):
    """A verdict that begins."""

    step: int
    check: str
    cause: str
    evidence: str
    advice: str

    def __str__(self) -> str:
        return f"{self.check}: {self.cause}; {self.evidence}. {self.advice}"


class Symptom(NamedTuple):
    """Result of a check: the cause, the numbers, and what to do."""

    cause: str
    evidence: str
    advice: str


@dataclass
class History:
    """Measurements so far, and the configuration."""

    config: Mapping[str, Any] = field(default_factory=dict)  #: the resolved one, as nested mappings
    #: Of each metric a value for each iteration; NaN where it was not measured.
    train: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    val: dict[int, Mapping[str, float]] = field(default_factory=dict)  #: the rows of validations, by step
    reference: dict[str, float] = field(default_factory=dict)  #: rewards of an environment's scripts, where measured
    tied: Sequence[str] = ()  #: tasks of the last iteration all of whose episodes earned the same
    steps: list[int] = field(default_factory=list)  #: the iterations of ``train``

    def add(self, step: int, metrics: Mapping[str, float], tied: Sequence[str] = ()) -> None:
        """Take a row of metrics."""
        self.reference |= {name: value for name, value in metrics.items() if name.startswith("reference/")}
        if "val/reward" in metrics:
            self.val[step] = metrics
        if "train/reward" in metrics:
            for name in metrics.keys() - self.train.keys():
                self.train[name] = [math.nan] * len(self.steps)
            self.steps.append(step)
            for name, values in self.train.items():
                values.append(metrics.get(name, math.nan))
            self.tied = tied

    def has(self, name: str) -> bool:
        """Return whether a metric was ever measured."""
        return name in self.train or name in self.reference or any(name in row for row in self.val.values())

    def latest(self, name: str, count: int) -> Floats:
        """Return the last ``count`` measured values, fewer where there are fewer."""
        values = self.train.get(name, ())
        return np.array([value for value in values[-2 * count :] if math.isfinite(value)][-count:], np.float64)

    def latest_sum(self, name: str, count: int) -> float:
        """Sum the last ``count`` iterations; one in which it was not measured counts 0."""
        return float(np.nansum(self.train.get(name, ())[-count:]))

    def option(self, key: str, default: Any = None) -> Any:
        """Return a value of the configuration, ``default`` where it has none."""
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return default if value is None else value

    def comparable(self, name: str) -> Floats | None:
        """Return ``train/<name>`` of each iteration, as if all had played the same; ``None`` where that is unknown.

        A curriculum plays harder tasks as the policy gets better: ``train/reward`` may fall while all levels improve.
        With ``kind=signal`` the components of a mixture are weighed by their weights, whatever
        their shares were (where one was not played, as it was last); with ``reverse_share`` only episodes that began at
        the opening count. Not known: both at once, tasks of a finite set were passed over, or several roles are
        trained, whose rewards depend on each other.
        """
        if sum(key.count("/") == 2 and key.endswith("/episodes") for key in self.train) > 1:  # train/ROLE/episodes
            return None
        moving = self.option("env.curriculum.kind") == "signal"
        reverse = self.option("env.curriculum.reverse_share", 0.0) > 0
        mixture: Mapping[str, Any] = self.option("env.mixture", {})
        passed = any(key.startswith("rollout/curriculum/") and key.endswith("tasks_passed") for key in self.train)
        if moving and (reverse or passed):
            return None
        if moving and mixture:
            parts = {
                f"train/mixture/{part}/{name}": component.get("weight", 1.0) for part, component in mixture.items()
            }
        elif reverse:
            parts = {f"train/begun/opening/{name}": 1.0}
        else:
            return np.array(self.train.get(f"train/{name}", ()), np.float64)
        columns = [(carried(self.train[key]), weight) for key, weight in parts.items() if key in self.train]
        if not columns:
            return None
        return np.average([column for column, _ in columns], axis=0, weights=[weight for _, weight in columns])

    def grown(self, name: str, iterations: int) -> float:
        """Return how much a total has grown in the last iterations; before it was first measured it was 0."""
        totals = np.nan_to_num(self.train.get(name, ())[-iterations - 1 :])
        return max(0.0, float(totals[-1] - totals[0])) if len(totals) > iterations else 0.0

    def solved(self) -> float:
        """Return the share of episodes solved lately; 0 where none can be.

        A filter drops the groups whose episodes all earned the same, and near success most of these are solved: they
        count, too.
        """
        shares = self.comparable("solved")
        lately = self.latest("train/solved", 3) if shares is None else shares[np.isfinite(shares)][-3:]
        share = float(lately.mean()) if lately.size else 0.0
        if not (all_solved := self.grown("rollout/groups_zero_variance_solved", 3)):
            return share
        tied = self.grown("rollout/groups_dropped_zero_variance", 3)
        delivered = self.grown("rollout/groups_delivered", 3)
        return (share * delivered + all_solved) / max(delivered + tied, 1.0)

    def gain(self, before: slice) -> float:
        """Return the gain of the last 3 iterations over those of ``before``, in standard errors of the difference.

        The errors are the metrics' own (``train/reward_se``, siblings as clusters), but no smaller than the iterations'
        spread says: tasks differ from batch to batch. Where iterations cannot be compared, validations are.
        """
        rewards, errors = self.comparable("reward"), np.array(self.train["train/reward_se"])
        if rewards is None:
            return self._gain_in_validation(self.steps[before][-1])
        parts = []
        for where in (before, slice(-3, None)):
            reward, error = rewards[where], errors[where] if errors.size else np.zeros(0)
            finite = error[np.isfinite(error)]
            own = float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0
            spread = float(np.std(np.diff(rewards)) / math.sqrt(2.0))  # a trend does not count
            parts.append((float(reward.mean()), max(own, spread) / math.sqrt(len(reward))))
        (old, old_se), (new, new_se) = parts
        return (new - old) / max(math.hypot(old_se, new_se), 1e-9)

    def _gain_in_validation(self, step: int) -> float:
        """Return the gain of the last validation over the last one at a step, in standard errors; 0 without two."""
        earlier = [validated for validated in self.val if validated <= step] or list(self.val)[:1]
        if not earlier or (last := max(self.val)) == (first := max(earlier)):
            return 0.0
        gain, error = validation_gain(self.val[first], self.val[last])
        return gain / max(error, 1e-9)


def validation_gain(old: Mapping[str, float], new: Mapping[str, float]) -> tuple[float, float]:
    """Return the reward that a row of a validation gained over an older one, and its standard error."""
    error = math.hypot(old.get("val/reward_se", 0.0), new.get("val/reward_se", 0.0))
    return new["val/reward"] - old["val/reward"], error


def carried(values: Sequence[float]) -> Floats:
    """Fill each value that was not measured (NaN) with the one before, or where there is none, with the first."""
    array = np.array(values, np.float64)
    measured = np.flatnonzero(np.isfinite(array))
    if not measured.size:
        return array
    last = np.searchsorted(measured, np.arange(len(array)), side="right") - 1
    return array[measured[np.maximum(last, 0)]]


class Shift(NamedTuple):
    """Distance of the latest values from earlier ones."""

    ratio: float  #: the one of the latest that is nearest to the earlier ones' median, over this
    z: float  #: the same in robust standard deviations of the logarithm, signed
    before: float  #: median of the earlier
    latest: float  #: the last
    where: slice  #: the earlier
    name: str  #: their description
    recent: bool  #: whether they are those just before, not the first of the run


def shifts(values: Sequence[float], last: int, *, floor: float = 0.1, least: float = 1e-9) -> Iterator[Shift]:
    """Compare the ``last`` values of a positive metric with the first of the run, and with those just before.

    ``values`` has one for each iteration, NaN where it was not measured; values below ``least`` count as that, and
    logarithms are compared. Medians and median absolute deviations, so that one odd iteration neither hides a shift nor
    makes one; a robust standard deviation is at least ``floor``, since of few values it may be 0 by accident. All of
    the latest have to be beyond.
    """
    count = len(values)
    recent = slice(max(0, count - RECENT - last), max(0, count - last))
    windows = [(recent, f"the {RECENT} iterations before")]
    if count >= START + last:
        windows.append((slice(0, START), f"the first {START} iterations"))
    latest = values[-last:]
    if len(latest) < last or not all(map(math.isfinite, latest)):
        return
    for where, name in windows:  # not as arrays: of so few values, these take several times as long
        old = [math.log(max(value, least)) for value in values[where] if math.isfinite(value)]
        if len(old) < START:
            continue
        middle = median(old)
        spread = max(1.4826 * median(abs(value - middle) for value in old), floor)
        moved = [math.log(max(value, least)) - middle for value in latest]
        nearest = min(moved, key=abs) if min(moved) > 0 or max(moved) < 0 else 0.0
        yield Shift(math.exp(nearest), nearest / spread, math.exp(middle), latest[-1], where, name, where is recent)


def wilson(hits: float, count: float, z: float) -> tuple[float, float]:
    """Return the score interval of a share (Wilson 1927), ``z`` standard errors on either side; (0, 1) of nothing."""
    if count <= 0:
        return 0.0, 1.0
    share, correction = hits / count, z * z / count
    centre = (share + correction / 2) / (1 + correction)
    half = z * math.sqrt(share * (1 - share) / count + correction / (4 * count)) / (1 + correction)
    return centre - half, centre + half


def trend(values: Floats) -> tuple[float, float]:
    """Return the change of a straight line from the first value to the last, and its standard error.

    Least squares; the error is of residuals, widened by their correlation at lag 1, ``(1 + r) / (1 - r)``, where that
    is positive: neighbouring iterations share the policy.
    """
    count = len(values)
    place = np.arange(count) - (count - 1) / 2
    squares = float((place**2).sum())
    slope = float((place * values).sum()) / squares
    rest = values - values.mean() - slope * place
    variance = float((rest**2).sum()) / max(count - 2, 1)
    if variance <= 0:
        return slope * (count - 1), 0.0
    correlation = min(max(float((rest[1:] * rest[:-1]).sum() / (rest**2).sum()), 0.0), 0.9)
    error = math.sqrt(variance / squares * (1 + correlation) / (1 - correlation))
    return slope * (count - 1), error * (count - 1)


@dataclass(frozen=True)
class Check:
    """One verdict: its name, the metrics without which it cannot be given, and the function that gives it."""

    name: str
    needs: tuple[str, ...]
    find: Callable[[History], Symptom | None]

    @property
    def says(self) -> str:
        """Summary of what it detects."""
        return (self.find.__doc__ or "").partition("\n")[0].rstrip(".")


class Doctor:
    """Reports which verdicts begin, of these checks; ``config`` is the run's resolved one, as nested mappings."""

    def __init__(self, checks: Iterable[Check], config: Mapping[str, Any]) -> None:
        self.checks = tuple(checks)
        self.history = History(config)
        self.findings: list[Finding] = []
        self._held: dict[str, int] = {}  # when a verdict held last

    def observe(self, step: int, metrics: Mapping[str, float], tied: Sequence[str] = ()) -> list[Finding]:
        """Return the verdicts that begin with a row of metrics; ``tied`` are tasks of equal rewards in all episodes."""
        self.history.add(step, metrics, tied)
        begun = []
        for check in self.checks:
            if not all(map(self.history.has, check.needs)) or (symptom := check.find(self.history)) is None:
                continue
            if step - self._held.get(check.name, -QUIET - 1) > QUIET:
                begun.append(Finding(step, check.name, *symptom))
            self._held[check.name] = step
        self.findings += begun
        return begun

    def unmeasured(self) -> dict[str, list[str]]:
        """Return the checks that cannot be made, and which metrics they lack."""
        lacking = {check.name: [name for name in check.needs if not self.history.has(name)] for check in self.checks}
        return {name: lacks for name, lacks in lacking.items() if lacks}
