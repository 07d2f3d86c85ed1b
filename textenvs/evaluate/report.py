"""An evaluation's summary as text for a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .summary import COUNTED

#: How many causes of failures are listed.
_CAUSES = 5
_PERCENT, _SIGNED = "{:.1%}".format, "{:+.3f}".format


def report(summary: Mapping[str, Any]) -> str:
    """The tables of a summary (:func:`~textenvs.evaluate.summary.summarize`): overall, by end, by data source."""
    everything = summary["all"]
    parts = []
    if "success" in everything:
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
    """Columns of text, two spaces apart, those of ``right`` aligned to the right; the header is underlined."""
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
    yield _line("success", numbers["success"], _PERCENT)
    for name, mark in (("pass_hat_k", "^"), ("pass_at_k", "@")):
        for k in _some(list(numbers[name])):
            yield _line(f"pass{mark}{k}", numbers[name][k], _PERCENT)
    yield _line("return", numbers["return"], _SIGNED)
    for name, value in numbers["terms"].items():
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
    """Powers of two from 2, and the largest: k = 1 is the success."""
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
        if "success" not in numbers:
            rows.append([*row, *["-"] * (3 + (most > 1))])
            continue
        success, hat = numbers["success"], numbers["pass_hat_k"].get(str(most))
        row += [_PERCENT(success["value"]), f"{_PERCENT(success['low'])} to {_PERCENT(success['high'])}"]
        if most > 1:
            row.append("-" if hat is None else _PERCENT(hat["value"]))
        rows.append([*row, _SIGNED(numbers["return"]["value"])])
    header = ["data source", "tasks", "episodes", "failed", "success", "interval"]
    header += [f"pass^{most}"] * (most > 1) + ["return"]
    return table(rows, header, right=(1, 2, 3, 4, *range(6, len(header))))


def failures(numbers: Mapping[str, Any]) -> str:
    """How many episodes failed, and of what; ``numbers`` are those of one data source, or of all."""
    lines = [f"{numbers['failed']} of {numbers['episodes']} episodes FAILED and are in none of the numbers above:"]
    causes = list(numbers["failures"].items())
    lines += [f"  {count} x {cause}" for cause, count in causes[:_CAUSES]]
    if len(causes) > _CAUSES:
        lines.append(f"  and {len(causes) - _CAUSES} more causes")
    return "\n".join(lines)
