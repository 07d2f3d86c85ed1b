"""The tables of docs/field-audit.md, from the results."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from textenvs.evaluate.statistics import wilson

Row = dict[str, Any]

PAGE = Path(__file__).parents[2] / "docs" / "field-audit.md"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
#: Findings by group, and what they say of an environment.
GROUPS = {
    "reward": {
        "pays for nothing": "a reply that does not depend on the task earns a tenth of the full reward or more",
        "cheap policy": "a policy that does not do the task earns more than halfway from chance to the right answers",
        "memorised answers": "so does a table of right answers to other tasks",
        "takes two answers": 'the right answer, then "No, it is" another one, counts as right',
        "takes a list": 'nine answers joined by "or", one of them right, count as right',
        "refuses its own answer": "the answer that the package says is right is not right for its scorer",
        "refuses spaces": "the right answer between spaces and line ends is not right",
        "shows a secret": "what has to be guessed is in an observation",
    },
    "robustness": {
        "raises": "an odd reply makes it raise an exception",
        "hangs": "an odd reply takes longer than 5 seconds",
        "runs code": "a reply is evaluated as Python",
        "unfinished": "the audit of it did not end in ten minutes, or ended the process",
    },
    "reproducibility": {
        "another episode": "the same seed and replies give another episode, here or in another process",
        "global generators": "an episode depends on the global generators after its seed is set",
    },
}
_KINDS = {
    "determinism": "another episode",
    "processes": "another episode",
    "secrets": "shows a secret",
    "search": "cheap policy",
    "returns": "refuses its own answer",
}


def read(path: Path) -> list[Row]:
    """Return the results, a row for each environment."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def findings(row: Row) -> list[str]:
    """Return the kinds of the findings on an environment, without duplicates."""
    if "unfinished" in row:
        return ["unfinished"]
    failed = (verdict for verdict in row.get("verdicts", ()) if verdict[1] == "fail")
    return list(dict.fromkeys(kind_of(check, cause) for check, _, cause, _ in failed))


def kind_of(check: str, cause: str = "") -> str:
    """Return the kind of finding that a check makes; of an attack that ends the process, it is an exception."""
    if check.startswith("attack "):
        return "raises" if "makes the environment fail" in cause else "cheap policy"
    return _KINDS.get(check, check)


def group_of(kind: str) -> str:
    return next(group for group, kinds in GROUPS.items() if kind in kinds)


def write(rows: Sequence[Row]) -> None:
    """Put the tables into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables(rows)}\n\n{END}{after}", encoding="utf-8")


def tables(rows: Sequence[Row]) -> str:
    """Return the page's tables, as Markdown."""
    began = [row for row in rows if row["began"]]
    return "\n\n".join(
        [
            "**Environments with at least one finding**, of those that began here, with an interval of 95 % (Wilson).",
            _table(["package", "began", *GROUPS, "any"], _by_package(began)),
            "**Findings by kind.**",
            _table(["group", "finding", "what it says", "environments"], _by_kind(began)),
            "**All environments.** The columns of returns are means over 30 episodes; an empty one has no answer key.",
            _table(["environment", "silence", "answer key", "best cheap policy", "findings"], _by_environment(began)),
            "**Not begun here**, and why.",
            _table(["environment", "cause"], [[row["name"], row["cause"]] for row in rows if not row["began"]]),
        ]
    )


def _by_package(began: Sequence[Row]) -> Iterable[list[str]]:
    packages = dict.fromkeys(row["name"].partition("/")[0] for row in began)
    for package in (*packages, "all"):
        members = [row for row in began if package in ("all", row["name"].partition("/")[0])]
        groups = [{group_of(kind) for kind in findings(row)} for row in members]
        counts = [sum(group in present for present in groups) for group in GROUPS]
        yield [package, str(len(members)), *(_share(n, len(members)) for n in (*counts, sum(map(bool, groups))))]


def _share(count: int, total: int) -> str:
    low, high = wilson(count, total)
    return f"{count} ({100 * low:.0f} to {100 * high:.0f} %)"


def _by_kind(began: Sequence[Row]) -> Iterable[list[str]]:
    counts = Counter(kind for row in began for kind in findings(row))
    for group, kinds in GROUPS.items():
        for kind, says in kinds.items():
            yield [group, kind, says, str(counts[kind])]


def _by_environment(began: Sequence[Row]) -> Iterable[list[str]]:
    for row in began:
        returns = [row.get("silence"), row.get("expert")]
        yield [row["name"], *map(_number, returns), _best(row), ", ".join(findings(row)) or "-"]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _best(row: Row) -> str:
    """Return the attack of the largest mean return, with that return."""
    earned = [
        (float(evidence.split("mean return ")[1].split(",")[0]), check.removeprefix("attack "))
        for check, _, _, evidence in row.get("verdicts", ())
        if check.startswith("attack ") and "mean return " in evidence
    ]
    best, name = max(earned, default=(0.0, ""))
    return f"{best:.2f} ({name})" if name else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
