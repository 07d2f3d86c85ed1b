"""``textenvs users``: how good a simulated user is, and dialogues to fit a model to that plays one."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..chat.errors import BudgetExceeded, CacheError
from ..data.files import write_rows
from ..evaluate.policies import AttackPolicy, Policy
from ..evaluate.records import write_text
from ..evaluate.summary import table
from ..evaluate.user_report import ERRORS, listen_to, summarize
from ..text import plural
from ..users.conduct import FAULTS
from ..users.dialogues import dialogues
from ..users.pestering import PESTER
from .common import CommandError, expected_errors, open_environment, parse_options
from .policies import check_policy_arguments, given_policy, policy_of


def run(arguments: argparse.Namespace) -> int:
    options = parse_options(arguments.options)
    work = {"report": _report, "dialogues": _dialogues}[arguments.action]
    refused = expected_errors(mistakes=(NotImplementedError,), where=f"{arguments.id}: ")
    with expected_errors(BudgetExceeded, CacheError, RuntimeError, OSError, mistakes=(TypeError, ValueError)), refused:
        return work(arguments, options)


def _dialogues(arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    if arguments.out is None:
        raise CommandError("users dialogues needs --out FILE, a .jsonl or .parquet file", 2)
    path = Path(arguments.out).expanduser()
    if path.suffix not in (".jsonl", ".parquet"):
        raise CommandError(f"-o {arguments.out}: dialogues are a .jsonl or .parquet file", 2)
    env = open_environment(arguments.id, {"manner": "all", **options})
    rows = list(dialogues(env, arguments.episodes, seed=arguments.seed, off_script=arguments.others))
    if path.suffix == ".parquet":
        write_rows(rows, path)
    else:
        write_text(path, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
    written = plural(len(rows), "dialogue")
    print(f"{path}: {written} of the user of {arguments.id}; python -m trainers.sft sft.files={path} ...")
    return 0


def _report(arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    policy = _policy(arguments, options)  # mistakes are named here

    def make_env() -> Any:
        return open_environment(arguments.id, options)

    try:
        hearings = asyncio.run(
            listen_to(
                make_env,
                arguments.episodes,
                policy=policy,
                seed=arguments.seed,
                off_script=arguments.others,
                concurrency=arguments.concurrency,
            )
        )
    except ExceptionGroup as group:
        raise group.exceptions[0] from group
    who = {name: getattr(arguments, name) for name in given_policy(arguments)} or {"others": arguments.others}
    report = {"id": arguments.id, "options": options, "policy": who, "seed": arguments.seed, **summarize(hearings)}
    if arguments.out is not None:
        path = Path(arguments.out).expanduser()
        write_text(path, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    if arguments.json:
        print(json.dumps(report, ensure_ascii=False))
        return 0
    errors, manners = report.pop("errors_per_100_messages"), report.pop("by_manner")
    print(table([[name.replace("_", " "), _shown(value)] for name, value in report.items()]))
    print()
    rows = [[name.replace("_", " "), f"{errors[name]:.1f}", text] for name, text in ERRORS.items()]
    print(table(rows, ["error", "per 100 messages", "the user"], right=[1]))
    print("\nBy manner: episodes with at least one such message, in per cent; replies until it is solved; facts.\n")
    print(manner_table(manners))
    return 0


def _policy(arguments: argparse.Namespace, options: dict[str, Any]) -> Policy | None:
    """Return the policy that the arguments name; ``None`` for the one that asks."""
    env = open_environment(arguments.id, options)
    try:
        if not given_policy(arguments):
            return None
        if arguments.policy == PESTER.name:
            return AttackPolicy(PESTER)
        check_policy_arguments(arguments)
        return policy_of(env, arguments.id, arguments)[0]
    finally:
        env.close()


def manner_table(manners: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table by manner, with intervals of 95 %."""
    columns = ("solved", *FAULTS, "replies", "disclosed")
    rows = []
    for manner, figures in sorted(manners.items(), key=lambda item: (item[0] == "all", item[0] != "plain", item[0])):
        cells = [_interval(figures[name], 100 if name not in ("replies", "disclosed") else 1) for name in columns]
        rows.append([manner, str(figures["episodes"]), *cells])
    heads = [f"{name} %" if name not in ("replies", "disclosed") else name for name in columns]
    return table(rows, ["manner", "episodes", *heads], right=range(1, len(columns) + 2))


def _interval(estimate: Mapping[str, Any] | None, scale: int) -> str:
    if estimate is None:
        return "-"
    value, low, high = (None if estimate[name] is None else scale * estimate[name] for name in ("value", "low", "high"))
    return f"{value:.1f}" if low is None else f"{value:.1f} ({low:.1f} to {high:.1f})"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {item}" for name, item in value.items()) or "none"
    if isinstance(value, list):
        return "; ".join(map(str, value)) or "none"
    return "-" if value is None else str(value)
