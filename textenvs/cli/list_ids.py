"""``textenvs list``: the environments that ship, with their limits and what they need."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..evaluate.report import table
from ..registry import EnvironmentSpec, describe, list_environments, make


def add(commands: Any) -> Any:
    parser = commands.add_parser(
        "list", help="the environments", description="List the environments that ship with textenvs."
    )
    parser.add_argument("--json", action="store_true", help="as JSON, one object an environment")
    return parser


def run(arguments: argparse.Namespace) -> int:
    entries = [entry(describe(env_id)) for env_id in list_environments(with_arguments=True)]
    if arguments.json:
        print(json.dumps(entries, indent=2, ensure_ascii=False))
        return 0
    rows = [
        [
            each["id"],
            str(each["version"]),
            _limit(each, "max_assistant_turns"),
            _limit(each, "max_user_turns"),
            ", ".join(each["extras"]) + (" (missing)" if each["unavailable"] else "") or "-",
            each["description"],
        ]
        for each in entries
    ]
    print(table(rows, ["id", "version", "turns", "user turns", "extras", "description"], right=(1, 2, 3)))
    for each in entries:
        if each["unavailable"]:
            print(f"\n{each['id']} cannot be made here: {each['unavailable']}")
    return 0


def entry(spec: EnvironmentSpec) -> dict[str, Any]:
    known: dict[str, Any] = {
        "id": spec.id,
        "version": spec.version,
        "description": spec.description,
        "entry_point": spec.entry_point,
        "kwargs": dict(spec.kwargs),
        "nondeterministic": spec.nondeterministic,
        "extras": list(spec.extras),
        "requires": list(spec.requires),
        "max_assistant_turns": None,
        "max_user_turns": None,
        "unavailable": None,
    }
    if spec.requires:
        return known
    try:
        env = make(spec.id)
    except ImportError as error:
        return known | {"unavailable": str(error)}
    limits = {"max_assistant_turns": env.max_assistant_turns, "max_user_turns": env.max_user_turns}
    env.close()
    return known | limits


def _limit(entry: dict[str, Any], name: str) -> str:
    if entry["unavailable"] or entry["requires"]:
        return "?"
    return "-" if entry[name] is None else str(entry[name])
