"""``textenvs audit``: what is wrong with an environment, with cause and evidence."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from ..audit import Subject, Verdict, checks
from ..audit.earnings import makers
from ..registry import describe, list_environments
from ..text import printable
from .common import CommandError, open_environment, parse_options

_CAUSE = 100  # columns of text


def run(arguments: argparse.Namespace) -> int:
    if arguments.id is None and not arguments.all:
        raise CommandError("what is audited? Give an id, or --all", 2)
    options = parse_options(arguments.options)
    if arguments.all and (arguments.id or options):
        raise CommandError("--all takes no id and no options", 2)
    rows, failed = [], 0
    for env_id in list_environments() if arguments.all else [arguments.id]:
        for level, verdict in _verdicts(env_id, options, arguments):
            failed += verdict.failed
            rows.append({"id": env_id, "level": level or None, **asdict(verdict)})
            if not arguments.json:
                _print(verdict)
    if arguments.json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    else:
        counts = {status: sum(row["status"] == status for row in rows) for status in ("pass", "warning", "skipped")}
        print(f"\n{failed} failed, " + ", ".join(f"{count} {status}" for status, count in counts.items()))
    return int(failed > 0)


def _verdicts(env_id: str, options: Mapping[str, Any], arguments: argparse.Namespace) -> Iterator[tuple[str, Verdict]]:
    try:
        open_environment(env_id, options).close()
    except CommandError as error:
        if not arguments.all:
            raise
        absent = isinstance(error.__cause__, ImportError) and bool(describe(env_id).extras)
        cause = f"it needs {', '.join(describe(env_id).extras)}, absent here" if absent else "it cannot be made here"
        if not arguments.json:
            print(f"\n{env_id}\n")
        yield "", Verdict("made", "skipped" if absent else "fail", cause, str(error))
        return
    for level, make_env in makers(env_id, options).items():
        if not arguments.json:
            print(f"\n{env_id}{f' level={level}' if level else ''}\n", flush=True)
        subject = Subject(make_env, episodes=arguments.episodes, seed=arguments.seed, search=arguments.search)
        for verdict in checks(subject):
            yield level, verdict


def _print(verdict: Verdict) -> None:
    """Print the verdict, its cause and evidence, and the conversation of a policy that a check found."""
    explanation = "; ".join(part for part in (verdict.cause, verdict.evidence) if part)
    lines = textwrap.wrap(printable(explanation), _CAUSE) or [""]
    print(f"{verdict.status:<8} {verdict.check:<35} {lines[0]}", flush=True)
    for line in lines[1:]:
        print(f"{'':<8} {'':<35} {line}")
    if verdict.transcript and (verdict.failed or verdict.check == "search"):
        print(textwrap.indent(printable(verdict.transcript), " " * 9 + "| "))
