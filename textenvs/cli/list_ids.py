"""``textenvs list``: the environments that ship, with their limits and what they need."""

from __future__ import annotations

import argparse
import json
import shutil
import textwrap
from dataclasses import asdict
from typing import Any

from ..evaluate.summary import table
from ..registry import EnvironmentSpec, describe, list_environments, make
from ..sandbox import SandboxUnavailable

_LIMITS = ("max_assistant_turns", "max_user_turns")


def run(arguments: argparse.Namespace) -> int:
    entries = [entry(describe(env_id)) for env_id in list_environments(with_arguments=True)]
    if arguments.json:
        print(json.dumps(entries, indent=2, ensure_ascii=False))
        return 0
    rows = [
        [
            environment["id"],
            str(environment["version"]),
            *(_limit(environment, name) for name in _LIMITS),
            " ".join([", ".join(environment["extras"]), "(missing)" * bool(environment["unavailable"])]).strip() or "-",
            environment["description"],
        ]
        for environment in entries
    ]
    width = shutil.get_terminal_size((100, 24)).columns
    print(
        _wrapped(table(rows, ["id", "version", "turns", "user turns", "extras", "description"], right=(1, 2, 3)), width)
    )
    causes = dict.fromkeys(environment["unavailable"] for environment in entries if environment["unavailable"])
    for cause in causes:
        ids = [environment["id"] for environment in entries if environment["unavailable"] == cause]
        print(f"\n{', '.join(ids)} cannot be made here: {cause}")
    return 0


def _wrapped(text: str, width: int) -> str:
    """Return a table's lines with the last column wrapped to the terminal, at least 24 characters wide."""
    lines = text.split("\n")
    begin = lines[1].rindex("  ") + 2  # the line below the header
    size = max(24, width - begin)
    wrapped = []
    for line in lines:
        if set(line[begin:]) <= {"-"}:
            wrapped.append(line[: begin + size])
            continue
        first, *rest = textwrap.wrap(line[begin:], size) or [""]
        wrapped += [line[:begin] + first, *(" " * begin + part for part in rest)]
    return "\n".join(wrapped)


def entry(spec: EnvironmentSpec) -> dict[str, Any]:
    fields: dict[str, Any] = {**asdict(spec), **dict.fromkeys(_LIMITS), "unavailable": None}
    if spec.requires:
        return fields
    try:
        env = make(spec.id)
    except (ImportError, SandboxUnavailable) as error:
        return fields | {"unavailable": str(error)}
    env.close()
    return fields | {name: getattr(env, name) for name in _LIMITS}


def _limit(entry: dict[str, Any], name: str) -> str:
    if entry["unavailable"] or entry["requires"]:
        return "?"
    return "-" if entry[name] is None else str(entry[name])
