"""Two runs, or two evaluations, on the tasks that both have played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ..evaluate.statistics import estimate

Pair = dict[str, Any]
Ref = tuple[str, int]


@dataclass(frozen=True)
class Side:
    """An iteration, a validation or an evaluation of one of the two, with its list's columns."""

    run: int
    kind: str
    number: int
    rows: Mapping[str, Sequence[Any]]


def paired(before: Mapping[Ref, Side], after: Mapping[Ref, Side]) -> list[Pair]:
    """Compare iterations that both sides have, and the last of each kind; only pairs with common tasks are returned.

    Forks and failed episodes are left out. An estimate has an interval of 95 %, clustered by task; that of a
    ``difference`` (the second minus the first) is over the differences of the tasks' means. Only tasks that can be
    solved count to ``success``; without one it is absent.
    """
    places = [(ref, ref) for ref in sorted(before, reverse=True) if ref in after]  # validations, the last ones first
    for kind in dict.fromkeys(kind for kind, _ in before):
        last = [max((ref for ref in side if ref[0] == kind), default=None) for side in (before, after)]
        if None not in last and (last[0], last[1]) not in places:
            places.append((last[0], last[1]))  # type: ignore[arg-type]
    pairs = [_pair(before[a], after[b]) for a, b in places]
    return [pair for pair in pairs if pair["tasks"]]


def _pair(before: Side, after: Side) -> Pair:
    first, second = _by_task(before.rows), _by_task(after.rows)
    common = [task for task in first if task in second]
    numbers: Pair = {}
    for n, name in enumerate(("return", "success")):
        values = [
            [[value for episode in side[task] if (value := episode[n]) is not None] for task in common]
            for side in (first, second)
        ]
        known = [place for place, both in enumerate(zip(*values, strict=True)) if all(both)]
        if not known:  # no common task, or none that can be solved
            continue
        values = [[side[place] for place in known] for side in values]
        numbers[name] = {
            "first": estimate(values[0], rate=name == "success"),
            "second": estimate(values[1], rate=name == "success"),
            "difference": estimate([[fmean(b) - fmean(a)] for a, b in zip(*values, strict=True)]),
        }
    return {
        "first": [before.run, before.kind, before.number],
        "second": [after.run, after.kind, after.number],
        "tasks": [[*task, *(x for side in (first, second) for x in _of_task(side[task]))] for task in common],
        "alone": [len(first) - len(common), len(second) - len(common)],
        "estimates": numbers,
    }


def _by_task(rows: Mapping[str, Sequence[Any]]) -> dict[tuple[str, str], list[tuple[float, float | None]]]:
    tasks: dict[tuple[str, str], list[tuple[float, float | None]]] = {}
    for n, status in enumerate(rows["status"]):
        reward = rows["total_reward"][n]
        if not rows["forked_from"][n] and reward is not None and not status.startswith(("error", "aborted")):
            place, success = (rows["data_source"][n], rows["task_key"][n]), rows["success"][n]
            tasks.setdefault(place, []).append((reward, None if success is None else float(success)))
    return tasks


def _of_task(episodes: Sequence[tuple[float, float | None]]) -> tuple[int, float, float | None]:
    known = [success for _, success in episodes if success is not None]
    return len(episodes), fmean(reward for reward, _ in episodes), fmean(known) if known else None
