"""The tables of docs/field-audit.md, from the results."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages import fill, table
from textenvs.evaluate.statistics import wilson

from .checks import FORMS

Row = dict[str, Any]

PAGE = Path(__file__).parents[2] / "docs" / "field-audit.md"
#: Kinds of findings by group, and what they say of an environment.
GROUPS = {
    "reward": {
        "pays for nothing": "a reply that does not depend on the task earns a tenth of the full reward or more",
        "cheap policy": "a policy that does not do the task earns more than halfway from chance to the right answers",
        "memorised answers": "so does a table of right answers to other tasks",
        **FORMS,
        "no gain by being right": "the answer key earns no more than silence or random replies",
        "shows a secret": "what has to be guessed is in an observation",
    },
    "robustness": {
        "raises": "a reply makes it raise an exception",
        "hangs": "a reply takes longer than 5 seconds",
        "runs code": "a reply is evaluated as Python",
        "fails to begin": "some seeds begin no episode",
    },
    "reproducibility": {
        "another episode": "the same seed and replies give another episode, here or in another process",
        "global generators": "an episode depends on the global generators after its seed is set",
    },
}


def read(path: Path) -> list[Row]:
    """Return the results, the last row of each environment."""
    if not path.exists():
        return []
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    return list({row["name"]: row for row in rows}.values())


def is_whole(row: Row) -> bool:
    """Return whether the audit of an environment began and ended."""
    return bool(row["began"]) and "unfinished" not in row


def findings(row: Row) -> list[str]:
    """Return the kinds of the findings on an environment, without duplicates."""
    return list(dict.fromkeys(verdict[0] for verdict in row.get("verdicts", ()) if verdict[1] == "fail"))


def group_of(kind: str) -> str:
    """Return the group of a kind of finding; ``KeyError`` for a name that is none."""
    return {kind: group for group, kinds in GROUPS.items() for kind in kinds}[kind]


def write(rows: Sequence[Row]) -> None:
    """Put the tables into the page."""
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), tables(rows)), encoding="utf-8")


def tables(rows: Sequence[Row]) -> str:
    """Return the page's tables, as Markdown."""
    whole = [row for row in rows if is_whole(row)]
    absent = [[row["name"], row.get("unfinished") or row["cause"]] for row in rows if not is_whole(row)]
    return "\n\n".join(
        [
            "**Environments with at least one finding**, of those audited, with an interval of 95 % (Wilson).",
            table(["package", "audited", *GROUPS, "any"], _by_package(whole)),
            "**Findings by kind.**",
            table(["group", "finding", "what it says", "environments"], _by_kind(whole)),
            "**All environments.** Returns are means over 30 episodes, or over 300 where an attack earned too much in "
            "those; an empty one has no answer key. The times "
            "are those of an episode's beginning and of a reply.",
            table(
                ["environment", "silence", "answer key", "best attack", "ms", "MiB", "findings"],
                _by_environment(whole),
            ),
            "**Not begun here, or not ended**, and why.",
            table(["environment", "cause"], absent),
        ]
    )


def _by_package(whole: Sequence[Row]) -> Iterable[list[str]]:
    packages = dict.fromkeys(row["name"].partition("/")[0] for row in whole)
    for package in (*packages, "all"):
        members = [row for row in whole if package in ("all", row["name"].partition("/")[0])]
        groups = [{group_of(kind) for kind in findings(row)} for row in members]
        counts = [sum(group in present for present in groups) for group in GROUPS]
        yield [package, str(len(members)), *(_share(n, len(members)) for n in (*counts, sum(map(bool, groups))))]


def _share(count: int, total: int) -> str:
    low, high = wilson(count, total)
    return f"{count} ({100 * low:.0f} to {100 * high:.0f} %)"


def _by_kind(whole: Sequence[Row]) -> Iterable[list[str]]:
    counts = Counter(kind for row in whole for kind in findings(row))
    verdicts = [verdict for row in whole for verdict in row.get("verdicts", ())]
    unchecked = {verdict[0] for verdict in verdicts} - {verdict[0] for verdict in verdicts if verdict[1] != "skipped"}
    for group, kinds in GROUPS.items():
        for kind, says in kinds.items():
            yield [group, kind, says, "not checked" if kind in unchecked else str(counts[kind])]


def _by_environment(whole: Sequence[Row]) -> Iterable[list[str]]:
    for row in whole:
        returns = [row.get("silence"), row.get("expert")]
        name, best = max(row.get("earned", {}).items(), key=lambda attack: attack[1], default=("", None))
        time = "" if "begin_ms" not in row else f"{row['begin_ms']:.2g}, {row['reply_ms']:.2g}"
        memory = f"{row['peak_mib']:.0f}" if "peak_mib" in row else ""
        attack = "" if best is None else f"{best:.2f} ({name})"
        yield [row["name"], *map(_number, returns), attack, time, memory, ", ".join(findings(row)) or "-"]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
