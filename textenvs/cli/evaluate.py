"""``textenvs evaluate``: many episodes with a policy, resumable, and what came of them."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from ..env import TextEnv
from ..evaluate.plan import Job, choose_tasks, fingerprint, jobs
from ..evaluate.policies import Policy
from ..evaluate.progress import Stats, StatusLine
from ..evaluate.records import EPISODES, Folder, FolderError, Record
from ..evaluate.report import report
from ..evaluate.runner import Stopped
from ..evaluate.runner import run as play_all
from ..evaluate.summary import summarize
from ..registry import describe, list_environments
from ..text import printable
from .common import CommandError, check_least, open_environment, parse_options, show_value
from .interrupts import INTERRUPTED, interruptible
from .policies import add_policy_arguments, check_policy_arguments, policy_of

_TASKS = 100  # how many are played by default, where there are so many

EXAMPLES = """\
examples:
  textenvs evaluate textenv/gsm8k-interact split=test --policy expert
  textenvs evaluate textenv/gsm8k-interact split=test --model Qwen/Qwen3-0.6B --base-url http://localhost:8000/v1 \\
      --num-tasks 200 --samples 4 --temperature 0.7 --out outputs/qwen3
  textenvs evaluate textenv/gsm8k-interact --local outputs/textenvs/run/checkpoints/iteration_000120/model
  textenvs evaluate textenv/gsm8k --policy my_module:reply

The same command with the same --out resumes: what is finished is not played again."""


def add(commands: Any) -> Any:
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
    for flag, metavar, default, text in (
        ("--samples", "K", 1, "episodes of each task"),
        ("--seed", "N", 0, "of the choice of tasks and of all episodes"),
        ("--concurrency", "N", 16, "episodes at a time"),
        ("--max-failures", "N", 8, "stop after this many failed ones in a row"),
        ("--step-timeout", "S", 300.0, "seconds that the environment may take for a reset or a step"),
        ("--episode-timeout", "S", 3600.0, "seconds that an episode may take, with the replies of the policy"),
    ):
        kind, text = type(default), f"{text} (default {default:g})"
        what.add_argument(flag, type=kind, default=default, metavar=metavar, help=text)
    where = parser.add_argument_group("the results")
    where.add_argument("--out", metavar="DIR", help="keep records and results there")
    where.add_argument("--retry-failed", action="store_true", help="play the failed episodes in DIR again")
    where.add_argument("--quiet", action="store_true", help="no progress on stderr")
    return parser


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    state = _State(arguments)
    with interruptible(lambda: f"textenvs evaluate: {state.ended('interrupted')}"):
        try:
            return _evaluate(arguments, state)
        except KeyboardInterrupt as error:
            raise CommandError(state.ended("interrupted"), INTERRUPTED) from error


def _evaluate(arguments: argparse.Namespace, state: _State) -> int:
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
        state.kept, state.planned = kept, len(planned)
        _announce_resume(kept, len(planned), arguments)
        missing = [job for job in planned if job.place not in kept.records]
        try:
            asyncio.run(_play(missing, lambda: open_environment(arguments.id, options), policy, kept, arguments))
        except Stopped as error:
            raise CommandError(state.ended(str(error))) from error
        except OSError as error:  # of the folder: what environments and policies raise is in their records
            raise CommandError(f"{arguments.out}: {error}; {len(kept.records)} episodes are kept") from error
        summary = summarize(kept.records.values())
        written = None
        if isinstance(kept, Folder):
            written = kept.write_results() if importlib.util.find_spec("pyarrow") else kept.path / EPISODES
            kept.write_summary({**configuration, **summary})
    print(printable(_heading(configuration, len(planned))))
    print(printable(report(summary)))
    if written is not None:
        print(f"\n{written}")
        if written.name == EPISODES:
            print("A table, results.parquet, needs pyarrow: pip install 'textenvs[data]', and the same command again")
    return 0 if "success" in summary["all"] else 1


class _State:
    """How far a command is, for whoever ends it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.kept: Folder | _Memory | None = None
        self.planned = 0
        self._out = arguments.out

    def ended(self, cause: str) -> str:
        """Why it ends, what is kept, and how to resume."""
        if self.kept is None:
            return f"{cause}\nno episode was played yet; run the same command again"
        where = f"are kept in {self._out}; run the same command again to resume" if self._out else "are lost: use --out"
        return f"{cause}\n{len(self.kept.records)} of {self.planned} episodes {where}"


async def _play(
    missing: Sequence[Job],
    make_env: Callable[[], TextEnv[Any]],
    policy: Policy,
    kept: Folder | _Memory,
    arguments: argparse.Namespace,
) -> None:
    asyncio.get_running_loop().set_exception_handler(_on_loop_error)
    stats = Stats(len(missing))
    status = StatusLine(stats, quiet=arguments.quiet)

    async def show() -> None:
        while True:
            await asyncio.sleep(status.every_s)
            status.show()

    showing = asyncio.create_task(show())
    try:
        await play_all(
            missing,
            make_env,
            policy,
            on_record=kept.add,
            concurrency=arguments.concurrency,
            max_failures=arguments.max_failures,
            step_timeout_s=arguments.step_timeout,
            episode_timeout_s=arguments.episode_timeout,
            stats=stats,
        )
    finally:
        showing.cancel()
        status.clear()
        await policy.aclose()


def _on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The interrupt that a task was met by is said once, by the command."""
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)


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


def _check(arguments: argparse.Namespace) -> None:
    check_least(arguments, samples=1, seed=0, concurrency=1, max_failures=1)
    for name in ("step_timeout", "episode_timeout"):
        if not getattr(arguments, name) > 0:
            raise CommandError(f"--{name.replace('_', '-')} must be above 0, not {getattr(arguments, name)}", 2)
    check_policy_arguments(arguments)
    if arguments.out is None and arguments.retry_failed:
        raise CommandError("--retry-failed goes with --out", 2)


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
        raise CommandError(f"--num-tasks must be an integer or `all`, not {wanted!r}", 2)
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
