"""Summaries of records: rates, means and their intervals, over all episodes and by data source; and their tables.

Failed episodes say nothing about the policy: they are counted, and excluded from every rate and mean.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .records import Record
from .statistics import CONFIDENCE, Estimate, estimate, pass_at_k, pass_hat_k

#: Fields of a record that only some episodes have.
COUNTED = ("tool_calls", "tool_errors", "prompt_tokens", "completion_tokens")


def summarize(records: Iterable[Record]) -> dict[str, Any]:
    """Summarize records for a report, as JSON values: ``all`` episodes, and each of the ``data_sources``.

    An estimate is ``{"value", "low", "high"}``: a 95% interval, clustered by task (see :mod:`.statistics`); the ends
    are ``None`` where one task is all there is. Counts are ``tasks``, ``episodes``, ``failed``, and by their kinds
    ``stops`` and ``failures``; all else is over the episodes that did not fail. ``pass_hat_k`` and ``pass_at_k`` are
    over the tasks with at least ``k`` such episodes (``tasks``), ``terms`` an episode's sums (0 where it has none),
    ``metrics`` the last value, over the episodes that have it; ``success`` and the passes are over those that can
    succeed; of several ``roles``, each has its ``return`` and
    ``terms``, over the episodes in which it acted. :data:`COUNTED` are there where they were counted,
    ``cost`` is the sum over all episodes, in US dollars. Undefined values (the mean of no episodes) are absent.
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
    if outcomes := _by_task((record.task, record.success) for record in good if record.success is not None):
        numbers["success"] = estimate(outcomes, rate=True)
        for name, formula in (("pass_hat_k", pass_hat_k), ("pass_at_k", pass_at_k)):
            ks = range(1, max(map(len, outcomes)) + 1)
            numbers[name] = {str(k): _over_tasks(outcomes, k, formula) for k in ks}
    numbers["return"] = _mean((record.task, record.total) for record in good)
    terms = dict.fromkeys(name for record in good for name in record.terms)
    numbers["terms"] = {name: _mean((record.task, record.terms.get(name, 0.0)) for record in good) for name in terms}
    if roles := dict.fromkeys(role for record in good for role in record.role_terms):
        numbers["roles"] = {role: _of_role(role, good) for role in roles}
    numbers["metrics"] = {
        name: _mean((record.task, record.metrics[name]) for record in good if name in record.metrics)
        for name in dict.fromkeys(name for record in good for name in record.metrics)
    }
    numbers["truncated"] = estimate(_by_task((record.task, record.truncated) for record in good), rate=True)
    for name in ("assistant_turns", "user_turns", "cut_replies"):
        numbers[name] = _mean((record.task, getattr(record, name)) for record in good)
    for name in COUNTED:
        if counted := [(record.task, getattr(record, name)) for record in good if getattr(record, name) is not None]:
            numbers[name] = _mean(counted)
    if costs := [record.cost for record in records if record.cost is not None]:
        numbers["cost"] = math.fsum(costs)
    return numbers


def _of_role(role: str, records: Sequence[Record]) -> dict[str, Any]:
    """Return a role's mean return and terms, over the episodes in which it acted."""
    pairs = [(record.task, record.role_terms[role]) for record in records if role in record.role_terms]
    names = dict.fromkeys(name for _, terms in pairs for name in terms)
    return {
        "return": _mean((task, sum(terms.values())) for task, terms in pairs),
        "terms": {name: _mean((task, terms.get(name, 0.0)) for task, terms in pairs) for name in names},
    }


def _by_task(values: Iterable[tuple[int, float]]) -> list[list[float]]:
    groups: dict[int, list[float]] = {}
    for task, value in values:
        groups.setdefault(task, []).append(float(value))
    return list(groups.values())


def _mean(values: Iterable[tuple[int, float]]) -> Estimate:
    return estimate(_by_task(values))


def _over_tasks(outcomes: Sequence[Sequence[float]], k: int, formula: Callable[[int, int, int], float]) -> Estimate:
    enough = [outcome for outcome in outcomes if len(outcome) >= k]
    values = [[formula(int(sum(outcome)), len(outcome), k)] for outcome in enough]
    worth = sum(len(outcome) // k for outcome in enough)
    return {**estimate(values, rate=True, worth=worth), "tasks": len(values)}


# ------------------------------------------------------------------ as text

#: How many causes of failures are listed.
_CAUSES = 5
_PERCENT, _SIGNED = "{:.1%}".format, "{:+.3f}".format


def report(summary: Mapping[str, Any]) -> str:
    """Return the tables of a summary of :func:`summarize`: overall, by end, by data source."""
    everything = summary["all"]
    parts = []
    if "return" in everything:
        level = f"{summary['confidence']:.0%} interval"
        parts.append(table(list(_lines(everything)), ["", "value", level], right=(1,)))
    stops = [[stop, str(count)] for stop, count in everything["stops"].items()]
    parts.append(table(stops, ["ended by", "episodes"], right=(1,)))
    if len(summary["data_sources"]) > 1:
        parts.append(_sources(summary["data_sources"]))
    if everything["failed"]:
        parts.append(failures(everything))
    return "\n\n".join(parts)


def table(rows: Sequence[Sequence[str]], header: Sequence[str] = (), right: Sequence[int] | range = ()) -> str:
    """Format columns of text, two spaces apart, those of ``right`` aligned to the right; the header is underlined."""
    lines = [list(header), *map(list, rows)] if header else [list(row) for row in rows]
    if not lines:
        return ""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    if header:
        lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _lines(numbers: Mapping[str, Any]) -> Iterator[list[str]]:
    if "success" in numbers:
        yield _line("success", numbers["success"], _PERCENT)
    for name, mark in (("pass_hat_k", "^"), ("pass_at_k", "@")):
        for k in _some(list(numbers.get(name, ()))):
            yield _line(f"pass{mark}{k}", numbers[name][k], _PERCENT)
    yield _line("return", numbers["return"], _SIGNED)
    for name, value in numbers["terms"].items():
        yield _line(f"  {name}", value, _SIGNED)
    for role, own in numbers.get("roles", {}).items():
        yield _line(f"return of {role}", own["return"], _SIGNED)
        for name, value in own["terms"].items():
            yield _line(f"  {name}", value, _SIGNED)
    yield _line("assistant turns", numbers["assistant_turns"], _plain)
    yield _line("user turns", numbers["user_turns"], _plain)
    yield _line("truncated", numbers["truncated"], _PERCENT)
    if numbers["cut_replies"]["value"]:
        yield _line("replies cut at their length", numbers["cut_replies"], _plain)
    for name in COUNTED:
        if name in numbers:
            yield _line(name.replace("_", " "), numbers[name], _plain)
    if "cost" in numbers:
        yield ["cost in all", f"${numbers['cost']:.4f}", ""]
    for name, value in numbers["metrics"].items():
        yield _line(f"metric {name}", value, _plain)


def _some(ks: Sequence[str]) -> Iterator[str]:
    """Yield powers of two from 2, and the largest: k = 1 is the success."""
    for k in ks[1:]:
        if k == ks[-1] or int(k) & (int(k) - 1) == 0:
            yield k


def _line(name: str, estimate: Mapping[str, Any], show: Any) -> list[str]:
    low, high = estimate["low"], estimate["high"]
    return [name, show(estimate["value"]), "" if low is None else f"{show(low)} to {show(high)}"]


def _plain(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"


def _sources(sources: Mapping[str, Any]) -> str:
    most = max((len(numbers.get("pass_hat_k", ())) for numbers in sources.values()), default=1)
    rows = []
    for source, numbers in sources.items():
        row = [source, str(numbers["tasks"]), str(numbers["episodes"]), str(numbers["failed"])]
        success, hat = numbers.get("success"), numbers.get("pass_hat_k", {}).get(str(most))
        row += (
            ["-", "-"]
            if success is None
            else [_PERCENT(success["value"]), f"{_PERCENT(success['low'])} to {_PERCENT(success['high'])}"]
        )
        if most > 1:
            row.append("-" if hat is None else _PERCENT(hat["value"]))
        rows.append([*row, _SIGNED(numbers["return"]["value"]) if "return" in numbers else "-"])
    header = ["data source", "tasks", "episodes", "failed", "success", "interval"]
    header += [f"pass^{most}"] * (most > 1) + ["return"]
    return table(rows, header, right=(1, 2, 3, 4, *range(6, len(header))))


def failures(numbers: Mapping[str, Any]) -> str:
    """Report how many episodes failed, and the causes; ``numbers`` are those of one data source, or of all."""
    lines = [f"{numbers['failed']} of {numbers['episodes']} episodes FAILED and are in none of the numbers above:"]
    causes = list(numbers["failures"].items())
    lines += [f"  {count} x {cause}" for cause, count in causes[:_CAUSES]]
    if len(causes) > _CAUSES:
        lines.append(f"  and {len(causes) - _CAUSES} more causes")
    return "\n".join(lines)
