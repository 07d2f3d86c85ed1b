"""``textenvs evaluate``: many episodes with a policy, resumable, and what came of them."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from ..env import TextEnv
from ..evaluate.plan import Job, choose_tasks, fingerprint, jobs
from ..evaluate.policies import Policy
from ..evaluate.records import Folder, FolderError, Record
from ..evaluate.report import report
from ..evaluate.runner import Stopped
from ..evaluate.runner import run as play_all
from ..evaluate.summary import summarize
from ..registry import describe, list_environments
from ..text import printable
from .common import CommandError, open_environment, parse_options, show_value
from .policies import add_policy_arguments, check_policy_arguments, policy_of

_PROGRESS_EVERY_S = 5.0
_TASKS = 100  # where nobody says how many, and there are so many

EXAMPLES = """\
examples:
  textenvs evaluate textenv/gsm8k-interact split=test --policy expert
  textenvs evaluate textenv/gsm8k-interact split=test --model Qwen/Qwen3-0.6B --base-url http://localhost:8000/v1 \\
      --num-tasks 200 --samples 4 --temperature 0.7 --out outputs/qwen3
  textenvs evaluate textenv/gsm8k-interact --local outputs/textenvs/run/checkpoints/iteration_000120/model
  textenvs evaluate textenv/gsm8k --policy my_module:reply

A folder given with --out is gone on with by the same command: what is finished is not played again."""


def add(commands: Any) -> argparse.ArgumentParser:
    """Declare the command."""
    parser = commands.add_parser(
        "evaluate",
        help="play many episodes with a policy and report",
        usage="textenvs evaluate ID [key=value ...] (--model NAME | --local FOLDER | --policy POLICY) [options]",
        description="Play many episodes of an environment with a policy, and report what came of them.",
        epilog=EXAMPLES,
    )
    parser.add_argument("id", help="an id of `textenvs list`, or module:id for one of your own")
    add_policy_arguments(parser)
    what = parser.add_argument_group("the episodes")
    what.add_argument(
        "--num-tasks",
        "--episodes",
        metavar="N",
        help="how many tasks, or `all` (default 100, or all where there are fewer)",
    )
    what.add_argument("--samples", type=int, default=1, metavar="K", help="episodes of each task (default 1)")
    what.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the choice of tasks and of all episodes (default 0)"
    )
    what.add_argument("--concurrency", type=int, default=16, metavar="N", help="episodes at a time (default 16)")
    what.add_argument(
        "--max-failures", type=int, default=8, metavar="N", help="stop after this many failed ones in a row (default 8)"
    )
    where = parser.add_argument_group("the results")
    where.add_argument("--out", metavar="DIR", help="keep records and results there")
    where.add_argument("--retry-failed", action="store_true", help="play the failed episodes in DIR again")
    where.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.set_defaults(run=run, takes_options=True)
    return parser  # type: ignore[no-any-return]


def run(arguments: argparse.Namespace) -> int:
    """Play what is missing, and report."""
    _check(arguments)
    options = parse_options(arguments.options)
    env = open_environment(arguments.id, options)
    try:
        indices = _choose(env, arguments)
        policy, described = policy_of(env, arguments.id, arguments)
        configuration = {
            "environment": {"id": arguments.id, "version": _version(arguments.id), "options": options},
            "tasks": {
                "name": env.tasks.name,
                "count": len(indices),
                "fingerprint": fingerprint(env.tasks, indices),
            },
            "samples": arguments.samples,
            "seed": arguments.seed,
            "policy": described,
        }
    finally:
        env.close()
    planned = list(jobs(indices, arguments.samples, arguments.seed))
    with _open(arguments, configuration) as kept:
        _announce_resume(kept, len(planned), arguments)
        missing = [job for job in planned if job.place not in kept.records]
        interrupted = stopped = None
        try:
            asyncio.run(_play(missing, lambda: open_environment(arguments.id, options), policy, kept, arguments))
        except Stopped as error:
            stopped = error
        except KeyboardInterrupt as error:
            interrupted = error
        except OSError as error:  # of the folder: what environments and policies raise is in their records
            raise CommandError(f"{arguments.out}: {error}; {len(kept.records)} episodes are kept") from error
        if stopped is not None or interrupted is not None:
            where = (
                f"are kept in {arguments.out}; the same command goes on" if arguments.out else "are lost without --out"
            )
            cause = "interrupted" if stopped is None else str(stopped)
            raise CommandError(
                f"{cause}\n{len(kept.records)} of {len(planned)} episodes {where}", 130 if stopped is None else 1
            )
        summary = summarize(kept.records.values())
        if isinstance(kept, Folder):
            results = kept.write_results()
            kept.write_summary({**configuration, **summary})
    print(_heading(configuration, len(planned)))
    print(printable(report(summary)))
    if arguments.out is not None:
        print(f"\n{results}")
    return 0 if "success" in summary["all"] else 1


async def _play(
    missing: Sequence[Job],
    make_env: Callable[[], TextEnv[Any]],
    policy: Policy,
    kept: Folder | _Memory,
    arguments: argparse.Namespace,
) -> None:
    progress = _Progress(len(missing), quiet=arguments.quiet)

    def keep(record: Record) -> None:
        kept.add(record)
        progress.show(record)

    try:
        await play_all(
            missing,
            make_env,
            policy,
            on_record=keep,
            concurrency=arguments.concurrency,
            max_failures=arguments.max_failures,
        )
    finally:
        await policy.aclose()


class _Memory:
    """The records of an evaluation that keeps none on disk."""

    def __init__(self) -> None:
        self.records: dict[tuple[int, int], Record] = {}

    def add(self, record: Record) -> None:
        self.records[record.place] = record

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class _Progress:
    """A line on stderr now and then."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        self.total = total
        self.quiet = quiet
        self.episodes = self.solved = self.failed = 0
        self.started = self.shown = time.monotonic()

    def show(self, record: Record) -> None:
        self.episodes += 1
        self.solved += record.success
        self.failed += record.failed
        now = time.monotonic()
        if self.quiet or now - self.shown < _PROGRESS_EVERY_S:
            return
        self.shown = now
        counted = self.episodes - self.failed
        solved = f", {self.solved / counted:.1%} solved" if counted else ""
        failed = f", {self.failed} FAILED" if self.failed else ""
        seconds = now - self.started
        print(f"{self.episodes}/{self.total} episodes in {seconds:.0f} s{solved}{failed}", file=sys.stderr, flush=True)


def _check(arguments: argparse.Namespace) -> None:
    for name, least in (("samples", 1), ("seed", 0), ("concurrency", 1), ("max_failures", 1)):
        if getattr(arguments, name) < least:
            flag = name.replace("_", "-")
            raise CommandError(f"--{flag} must be at least {least}, not {getattr(arguments, name)}", 2)
    check_policy_arguments(arguments)
    if arguments.out is None and arguments.retry_failed:
        raise CommandError("--retry-failed goes with --out", 2)
    if arguments.out is not None and importlib.util.find_spec("pyarrow") is None:
        raise CommandError("the results of --out are Parquet, which needs pyarrow: pip install 'textenvs[data]'")


def _open(arguments: argparse.Namespace, configuration: Mapping[str, Any]) -> Folder | _Memory:
    if arguments.out is None:
        return _Memory()
    try:
        return Folder(arguments.out, configuration, retry_failed=arguments.retry_failed)
    except (FolderError, OSError) as error:
        raise CommandError(str(error)) from error


def _choose(env: TextEnv[Any], arguments: argparse.Namespace) -> tuple[int, ...]:
    wanted = arguments.num_tasks
    if wanted is None:
        size = env.tasks.size
        wanted = str(_TASKS if size is None else min(_TASKS, size))
    if wanted != "all" and not wanted.isdecimal():
        raise CommandError(f"--num-tasks must be a whole number or `all`, not {wanted!r}", 2)
    try:
        return choose_tasks(env.tasks, None if wanted == "all" else int(wanted), arguments.seed)
    except ValueError as error:
        raise CommandError(f"--num-tasks {wanted}: {error}", 2) from error


def _version(env_id: str) -> int | None:
    return describe(env_id).version if env_id in list_environments(with_arguments=True) else None


def _announce_resume(kept: Folder | _Memory, planned: int, arguments: argparse.Namespace) -> None:
    if isinstance(kept, Folder) and kept.repaired:
        print("the last line of an earlier run was torn and is removed", file=sys.stderr)
    if kept.records and not arguments.quiet:
        print(f"{len(kept.records)} of {planned} episodes are there already", file=sys.stderr)


def _heading(configuration: Mapping[str, Any], episodes: int) -> str:
    environment, policy = configuration["environment"], configuration["policy"]
    version = "" if environment["version"] is None else f" (version {environment['version']})"
    options = "".join(f" {name}={show_value(value)}" for name, value in environment["options"].items())
    tasks = configuration["tasks"]
    settings = ", ".join(
        f"{name} {show_value(value)}"
        for name, value in policy.items()
        if value not in (None, {}) and name != "request_seed"
    )
    return (
        f"{environment['id']}{version}{options}\npolicy: {settings}\n"
        f"{tasks['count']} tasks x {configuration['samples']} = {episodes} episodes, seed {configuration['seed']}, "
        f"of {tasks['name']}\n"
    )
