r"""Comparison before and after: task score, tokens and interactivity of several evaluations, side by side.

    textenvs evaluate textenv/collab-math split=test --local outputs/before/model --out outputs/eval/before
    textenvs evaluate textenv/collab-math split=test --local outputs/after/model --out outputs/eval/after
    python examples/collabllm/compare.py before=outputs/eval/before after=outputs/eval/after

The evaluations must be of the same tasks. Interactivity is there where the environment had a judge
(`judge='{"model": ...}'` of `textenvs evaluate`). "Answered at once" is of `collab-math`: the first reply has an answer
(`####`, `\boxed{}`), right or wrong. Numbers are means of an episode with 95% intervals.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from textenvs.evaluate.records import EPISODES, SUMMARY
from textenvs.evaluate.statistics import rate_interval
from textenvs.evaluate.summary import table

#: The rows: what it is called here, and where it stands in a summary.
ROWS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("task score: accuracy", ("terms", "accuracy")),
    ("task score: bleu", ("terms", "bleu")),
    ("task score: pass_rate", ("terms", "pass_rate")),
    ("solved", ("success",)),
    ("asked when needed", ("metrics", "asked_when_needed")),
    ("answered when clear", ("metrics", "answered_when_clear")),
    ("answered at once", ("at_once",)),
    ("assistant tokens", ("completion_tokens",)),
    ("assistant turns", ("assistant_turns",)),
    ("interactivity", ("terms", "interactivity")),
    ("return", ("return",)),
)
#: The environment whose answers are marked in the replies.
MARKED = "textenv/collab-math"
#: What two comparable evaluations share.
SAME = ("environment", "tasks", "samples", "seed")


class Unusable(Exception):
    """Folders that cannot be compared; the message says which, why, and what to do."""


def read(folder: Path) -> dict[str, Any]:
    path = folder / SUMMARY
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        if "return" not in summary["all"]:
            raise Unusable(f"{folder}: every episode failed")
        marked = summary["environment"]["id"] == MARKED
    except FileNotFoundError as error:
        raise Unusable(f"{folder} has no {SUMMARY}, which `textenvs evaluate --out {folder}` writes last") from error
    except (ValueError, KeyError, TypeError) as error:
        raise Unusable(f"{path} is not the summary of an evaluation ({type(error).__name__}: {error})") from error
    if marked and (rate := answered_at_once(folder)) is not None:
        summary["all"]["at_once"] = rate
    return dict(summary)


def answered_at_once(folder: Path) -> dict[str, float | None] | None:
    """Return the rate of episodes that begin with an answer; ``None`` where their conversations were not kept."""
    first: dict[int, list[float]] = {}
    with (folder / EPISODES).open(encoding="utf-8") as lines:
        for episode in map(json.loads, lines):
            replies = [
                message["content"] for message in episode.get("messages") or () if message["role"] == "assistant"
            ]
            if replies and not episode["failed"]:
                first.setdefault(episode["task"], []).append(float("####" in replies[0] or "\\boxed{" in replies[0]))
    groups = list(first.values())
    if not groups:
        return None
    low, high = rate_interval(groups)
    return {"value": sum(map(sum, groups)) / sum(map(len, groups)), "low": low, "high": high}


def compare(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table.

    Raises:
        Unusable: They are not of the same tasks.
    """
    (first, reference), *remaining = summaries.items()
    for name, summary in remaining:
        for part in SAME:
            if summary.get(part) != reference.get(part):
                raise Unusable(
                    f"{first} and {name} are not comparable: {part} is {json.dumps(reference.get(part))} and "
                    f"{json.dumps(summary.get(part))}"
                )
    rows = []
    for title, path in ROWS:
        estimates = [estimate(summary["all"], path) for summary in summaries.values()]
        if any(estimates):
            rows.append([title, *(text or "-" for text in estimates)])
    failed = [summary["all"]["failed"] for summary in summaries.values()]
    if any(failed):
        rows.append(["failed episodes, left out", *map(str, failed)])
    return table(rows, ["", *summaries], right=range(1, len(summaries) + 1))


def estimate(numbers: Mapping[str, Any], path: Sequence[str]) -> str:
    """Return the mean and its interval; nothing where it was not measured."""
    value: Any = numbers
    for name in path:
        value = value.get(name)
        if value is None:
            return ""
    text = f"{value['value']:.3f}"
    return text if value["low"] is None else f"{text} ({value['low']:.3f} to {value['high']:.3f})"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("evaluations", nargs="+", metavar="NAME=DIR", help="folders of `textenvs evaluate --out DIR`")
    folders = dict(word.split("=", 1) if "=" in word else (word, word) for word in parser.parse_args(argv).evaluations)
    try:
        print(compare({name: read(Path(folder).expanduser()) for name, folder in folders.items()}))
    except Unusable as error:
        print(f"compare: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
