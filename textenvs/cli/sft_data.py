"""``textenvs sft-data``: the good episodes of a run or of an evaluation as conversations to imitate."""

from __future__ import annotations

import argparse
import json
import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ..data.files import write_rows
from ..evaluate.records import write_text
from ..evaluate.runner import tools_of
from ..records import RecordedRun, RecordsError, open_run
from ..records.conversations import REASONS, Row, Selection, candidates, rows, select
from ..task import TaskError
from ..text import plural
from ..trust import Trust
from ..viewer.branches import BranchError, environment_of
from .common import CommandError, expected_errors, open_environment
from .view import last_iterations


def run(arguments: argparse.Namespace) -> int:
    path = Path(arguments.out).expanduser()
    if path.suffix not in (".jsonl", ".parquet"):
        raise CommandError(f"-o {arguments.out}: conversations are a .jsonl or .parquet file", 2)
    if arguments.format == "messages" and path.suffix != ".jsonl":
        raise CommandError(f"-o {arguments.out}: --format messages is a .jsonl file", 2)
    if arguments.trust and arguments.format != "messages":
        raise CommandError("--trust goes with --format messages, which asks the environment for its tools", 2)
    last = last_iterations(arguments.last)
    left_out: Counter[str] = Counter()
    least = -math.inf if arguments.min_return is None else arguments.min_return
    selection = Selection(least, arguments.best_per_task, arguments.top_share)
    with expected_errors(RecordsError, BranchError, TaskError, OSError):
        recorded = open_run(arguments.path)
        played = [iteration for iteration in recorded.iterations if iteration.kind != "validation"]
        if recorded.kind == "file":  # named by itself, so it is meant
            played = list(recorded.iterations)
        taken = select(candidates(played if last is None else played[-last:], left_out), selection, left_out)
        made = list(rows(recorded, taken, left_out, per_turn=arguments.per_turn))
        if not made:
            raise CommandError(f"{arguments.path}: no conversation to imitate{_told(left_out)}")
        if arguments.format == "messages":
            values = _with_tools(recorded, made, trusted=arguments.trust)
        else:
            values = [_for_training(row) for row in made]
        if path.suffix == ".parquet":
            write_rows(values, path)
        else:
            write_text(path, "".join(f"{json.dumps(value, ensure_ascii=False)}\n" for value in values))
    returns = [row.candidate.total for row in made]
    episodes = {(id(row.candidate.iteration), row.candidate.index) for row in made}
    what = f"{plural(len(made), 'row')} of {plural(len(episodes), 'episode')}, returns {min(returns):g} to "
    print(f"{path}: {what}{max(returns):g}{_told(left_out)}")
    if arguments.format == "sft":
        print(f"python -m trainers.sft sft.files={shlex.quote(str(path))} model.path=FOLDER ...")
    return 0


def _told(left_out: Mapping[str, int]) -> str:
    parts = [f"\n  {left_out[reason]} {text}" for reason, text in REASONS.items() if left_out[reason]]
    return f"\nleft out:{''.join(parts)}" if parts else ""


def _for_training(row: Row) -> dict[str, Any]:
    """Return a row that ``python -m trainers.sft`` reads; the columns after the first two are for people."""
    return {
        "messages": list(row.messages),
        "weights": list(row.weights),
        "episode": row.episode.episode_id,
        "iteration": row.candidate.iteration.number,
        "task": row.episode.task_key,
        "return": row.candidate.total,
    }


def _with_tools(recorded: RecordedRun, made: Sequence[Row], *, trusted: bool) -> list[dict[str, Any]]:
    """Return rows with the keys ``messages`` and ``tools`` alone; a message with the weight 0 has a ``weight``."""
    schemas: dict[str, list[dict[str, Any]]] = {}
    values = []
    for row in made:
        info = row.candidate.iteration.info
        env_id, options = environment_of(recorded.config, info, row.episode.group_id)
        key = json.dumps([env_id, options], sort_keys=True)
        if key not in schemas:
            if not trusted and (problem := Trust().problem(env_id, options)) is not None:
                raise CommandError(
                    f"{problem}\nThe environment of the episodes is made for the schemas of its tools: --trust says "
                    "that the files are yours"
                )
            with closing(open_environment(env_id, options)) as env:
                schemas[key] = [dict(schema) for schema in tools_of(env)]
        weights = iter(row.weights)
        messages = [
            {**message, "weight": 0} if message["role"] == "assistant" and not next(weights) else dict(message)
            for message in row.messages
        ]
        values.append({"messages": messages, **({"tools": schemas[key]} if schemas[key] else {})})
    return values
