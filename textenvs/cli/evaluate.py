"""``textenvs evaluate``: many episodes with a policy, resumable, and their results."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from ..env import TextEnv
from ..evaluate.plan import Job, choose_tasks, fingerprint, jobs
from ..evaluate.policies import Policy
from ..evaluate.records import EPISODES, SUMMARY, Folder, FolderError, Record, write_json
from ..evaluate.runner import Stats, Stopped, show_progress
from ..evaluate.runner import run as play_all
from ..evaluate.summary import report, summarize
from ..text import plural, printable
from .common import CommandError, expected_errors, open_environment, parse_options, registered, show_value
from .interrupts import INTERRUPTED, interruptible
from .policies import check_policy_arguments, policy_of

_TASKS = 100  # how many are played by default, where there are so many


def run(arguments: argparse.Namespace) -> int:
    check_policy_arguments(arguments)
    if arguments.out is None and arguments.retry_failed:
        raise CommandError("--retry-failed goes with --out", 2)
    evaluation = _Evaluation(arguments)
    with interruptible(lambda: f"textenvs evaluate: {evaluation.ended('interrupted')}"):
        try:
            return evaluation.run()
        except KeyboardInterrupt as error:
            raise CommandError(evaluation.ended("interrupted"), INTERRUPTED) from error


class _Evaluation:
    """One command, and how far it is."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.options = parse_options(arguments.options)
        self.folder: Folder | None = None
        self.records: dict[tuple[int, int], Record] | None = None
        self.planned = 0

    def run(self) -> int:
        arguments = self.arguments
        env = open_environment(arguments.id, self.options)
        try:
            indices = _choose(env, arguments)
            policy, described = policy_of(env, arguments.id, arguments, indices)
            tasks = {"name": env.tasks.name, "count": len(indices), "fingerprint": fingerprint(env.tasks, indices)}
        finally:
            env.close()
        spec = registered(arguments.id)
        configuration = {
            "environment": {"id": arguments.id, "version": spec and spec.version, "options": self.options},
            "tasks": tasks,
            "samples": arguments.samples,
            "seed": arguments.seed,
            "policy": described,
        }
        planned = list(jobs(indices, arguments.samples, arguments.seed))
        with self._open(configuration) as self.folder:
            self.records = {} if self.folder is None else self.folder.records
            self.planned = len(planned)
            self._announce_resume()
            try:
                asyncio.run(self._play([job for job in planned if job.place not in self.records], policy))
            except Stopped as error:
                raise CommandError(self.ended(str(error))) from error
            except OSError as error:  # of the folder: what environments and policies raise is in their records
                raise CommandError(f"{arguments.out}: {error}; {plural(len(self.records), 'episode')} kept") from error
            summary = summarize(self.records.values())
            written = None if self.folder is None else _write(self.folder, {**configuration, **summary})
        print(printable(f"{_heading(configuration, len(planned))}\n{report(summary)}"))
        if written is not None:
            print(f"\n{written}")
            if written.name == EPISODES:
                print(
                    "A table, results.parquet, needs pyarrow: pip install 'textenvs[data]', and the same command again"
                )
        return 0 if "return" in summary["all"] else 1

    def ended(self, cause: str) -> str:
        """Why it ends, what is kept, and how to resume."""
        if self.records is None:
            return f"{cause}\nno episode was played yet; run the same command again"
        out = self.arguments.out
        if out is None and not self.records:
            return f"{cause}\nnone of the {self.planned} episodes was finished; --out DIR keeps those that are"
        where = f"are kept in {out}; run the same command again to resume" if out else "are lost: --out DIR keeps them"
        return f"{cause}\n{len(self.records)} of {self.planned} episodes {where}"

    def _open(self, configuration: Mapping[str, Any]) -> AbstractContextManager[Folder | None]:
        if self.arguments.out is None:
            return nullcontext()
        with expected_errors(FolderError, OSError):
            return Folder(self.arguments.out, configuration, retry_failed=self.arguments.retry_failed)

    def _announce_resume(self) -> None:
        if self.folder is not None and self.folder.repaired:
            print("the last line of an earlier run was torn and is removed", file=sys.stderr)
        if self.records and not self.arguments.quiet:
            print(f"{len(self.records)} of {self.planned} episodes are there already", file=sys.stderr)

    async def _play(self, missing: Sequence[Job], policy: Policy) -> None:
        asyncio.get_running_loop().set_exception_handler(_on_loop_error)
        stats = Stats(len(missing))
        try:
            async with nullcontext() if self.arguments.quiet else show_progress(stats):
                await play_all(
                    missing,
                    lambda: open_environment(self.arguments.id, self.options),
                    policy,
                    on_record=self._keep,
                    concurrency=self.arguments.concurrency,
                    max_failures=self.arguments.max_failures,
                    step_timeout_s=self.arguments.step_timeout,
                    episode_timeout_s=self.arguments.episode_timeout,
                    stats=stats,
                )
        finally:
            await policy.aclose()

    def _keep(self, record: Record) -> None:
        if self.folder is not None:
            self.folder.add(record)
        elif self.records is not None:
            self.records[record.place] = record


def _on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Leave out the interrupt that a task received: the command reports it once."""
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)


def _write(folder: Folder, summary: Mapping[str, Any]) -> Path:
    write_json(folder.path / SUMMARY, summary)
    return folder.write_results() if importlib.util.find_spec("pyarrow") else folder.path / EPISODES


def _choose(env: TextEnv[Any], arguments: argparse.Namespace) -> tuple[int, ...]:
    requested = arguments.num_tasks
    if requested is None:
        size = env.tasks.size
        requested = str(_TASKS if size is None else min(_TASKS, size))
    if requested != "all" and not requested.isdecimal():
        raise CommandError(f"--num-tasks must be an integer or `all`, not {requested!r}", 2)
    with expected_errors(mistakes=(ValueError,), where=f"--num-tasks {requested}: "):
        return choose_tasks(env.tasks, None if requested == "all" else int(requested), arguments.seed)


def _heading(configuration: Mapping[str, Any], episodes: int) -> str:
    environment, policy, tasks = (configuration[name] for name in ("environment", "policy", "tasks"))
    version = "" if environment["version"] is None else f" (version {environment['version']})"
    options = "".join(f" {name}={show_value(value)}" for name, value in environment["options"].items())
    settings = {name: value for name, value in policy.items() if value not in (None, {}) and name != "request_seed"}
    count = f"{plural(tasks['count'], 'task')} x {configuration['samples']} = {plural(episodes, 'episode')}"
    return (
        f"{environment['id']}{version}{options}\n"
        f"policy: {', '.join(f'{name} {show_value(value)}' for name, value in settings.items())}\n"
        f"{count}, seed {configuration['seed']}, of {tasks['name']}\n"
    )
