"""From records to what a report says: rates, means and their intervals, over all episodes and for each data source.

Failed episodes say nothing about the policy: they are counted, and left out of every rate and mean.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .records import Record
from .statistics import CONFIDENCE, mean_interval, pass_at_k, pass_hat_k, rate_interval

Estimate = dict[str, Any]
#: Fields of a record that only some episodes have.
COUNTED = ("tool_calls", "tool_errors", "prompt_tokens", "completion_tokens")


def summarize(records: Iterable[Record]) -> dict[str, Any]:
    """Everything a report needs, as JSON values: of ``all`` episodes, and of each of the ``data_sources``.

    An estimate is ``{"value", "low", "high"}``: a 95% interval, clustered by task (see :mod:`.statistics`); the ends
    are ``None`` where one task is all there is. Counts are ``tasks``, ``episodes``, ``failed``, and by their kinds
    ``stops`` and ``failures``; all else is over the episodes that did not fail. ``pass_hat_k`` and ``pass_at_k`` are
    over the tasks with at least ``k`` such episodes (``tasks``), ``terms`` an episode's sums (0 where it has none),
    ``metrics`` the last value, over the episodes that have it. :data:`COUNTED` are there where they were counted,
    ``cost`` is the sum over all episodes, in US dollars. What cannot be said (the mean of no episodes) is absent.
    """
    ordered = sorted(records, key=lambda record: record.place)
    sources: dict[str, list[Record]] = {}
    for record in ordered:
        if record.data_source:  # an episode that could not be opened has none
            sources.setdefault(record.data_source, []).append(record)
    return {
        "confidence": CONFIDENCE,
        "all": _numbers(ordered),
        "data_sources": {source: _numbers(sources[source]) for source in sorted(sources)},
    }


def _numbers(records: Sequence[Record]) -> dict[str, Any]:
    numbers: dict[str, Any] = {
        "tasks": len({record.task for record in records}),
        "episodes": len(records),
        "failed": sum(record.failed for record in records),
        "stops": dict(Counter(record.stop or "unknown" for record in records).most_common()),
        "failures": dict(Counter(f"{r.stop}: {r.failure}" for r in records if r.failed).most_common()),
    }
    good = [record for record in records if not record.failed]
    if not good:
        return numbers
    outcomes = _by_task((record.task, record.success) for record in good)
    numbers["success"] = _rate(outcomes)
    for name, formula in (("pass_hat_k", pass_hat_k), ("pass_at_k", pass_at_k)):
        ks = range(1, max(map(len, outcomes)) + 1)
        numbers[name] = {str(k): _over_tasks(outcomes, k, formula) for k in ks}
    numbers["return"] = _mean((record.task, record.total) for record in good)
    terms = dict.fromkeys(name for record in good for name in record.terms)
    numbers["terms"] = {name: _mean((record.task, record.terms.get(name, 0.0)) for record in good) for name in terms}
    numbers["metrics"] = {
        name: _mean((record.task, record.metrics[name]) for record in good if name in record.metrics)
        for name in dict.fromkeys(name for record in good for name in record.metrics)
    }
    numbers["truncated"] = _rate(_by_task((record.task, record.truncated) for record in good))
    for name in ("assistant_turns", "user_turns", "cut_replies"):
        numbers[name] = _mean((record.task, getattr(record, name)) for record in good)
    for name in COUNTED:
        if counted := [(record.task, getattr(record, name)) for record in good if getattr(record, name) is not None]:
            numbers[name] = _mean(counted)
    if costs := [record.cost for record in records if record.cost is not None]:
        numbers["cost"] = math.fsum(costs)
    return numbers


def _by_task(values: Iterable[tuple[int, float]]) -> list[list[float]]:
    groups: dict[int, list[float]] = {}
    for task, value in values:
        groups.setdefault(task, []).append(float(value))
    return list(groups.values())


def _mean(values: Iterable[tuple[int, float]]) -> Estimate:
    groups = _by_task(values)
    low, high = mean_interval(groups) or (None, None)
    return {"value": _mean_of(groups), "low": low, "high": high}


def _over_tasks(outcomes: Sequence[Sequence[float]], k: int, formula: Callable[[int, int, int], float]) -> Estimate:
    enough = [outcome for outcome in outcomes if len(outcome) >= k]
    values = [[formula(int(sum(outcome)), len(outcome), k)] for outcome in enough]
    return {**_rate(values, worth=sum(len(outcome) // k for outcome in enough)), "tasks": len(values)}


def _rate(groups: Sequence[Sequence[float]], worth: float | None = None) -> Estimate:
    low, high = rate_interval(groups, worth)
    return {"value": _mean_of(groups), "low": low, "high": high}


def _mean_of(groups: Sequence[Sequence[float]]) -> float:
    values = [value for group in groups for value in group]
    return math.fsum(values) / len(values)
