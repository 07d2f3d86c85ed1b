"""``textenvs evaluate``: many episodes with a policy, resumable, and what came of them."""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import importlib.util
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from ..env import TextEnv
from ..evaluate.baselines import has_script
from ..evaluate.plan import Job, choose_tasks, fingerprint, jobs
from ..evaluate.policies import SCRIPTS, FunctionPolicy, Policy, ScriptedPolicy, load_function
from ..evaluate.records import Folder, FolderError, Record
from ..evaluate.report import report
from ..evaluate.runner import Stopped
from ..evaluate.runner import run as play_all
from ..evaluate.summary import summarize
from ..registry import describe, list_environments
from .common import CommandError, import_from_here, open_environment, parse_options, printable, show_value

_PROGRESS_EVERY_S = 5.0

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
    who = parser.add_argument_group("the policy")
    who.add_argument("--policy", metavar="POLICY", help=f"{', '.join(SCRIPTS)}, or module:function of yours")
    who.add_argument("--model", metavar="NAME", help="a model behind an OpenAI-compatible service")
    who.add_argument("--local", metavar="FOLDER", help="a model computed here: a folder that transformers loads")
    who.add_argument("--base-url", metavar="URL", help="the service, as http://localhost:8000/v1 (default: OpenAI's)")
    who.add_argument("--api-key-env", metavar="NAME", help="the environment variable with its key")
    who.add_argument("--temperature", type=float, metavar="T", help="default: the service's; 1 for --local")
    who.add_argument("--max-tokens", type=int, metavar="N", help="the longest reply (default 1024)")
    who.add_argument(
        "--chat",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another option of textenvs.chat.ChatSpec, for example timeout_s=300 or extra='{\"top_p\":0.9}'",
    )
    who.add_argument("--no-request-seed", action="store_true", help="send no seed, for services that refuse one")
    what = parser.add_argument_group("the episodes")
    what.add_argument(
        "--num-tasks", "--episodes", default="100", metavar="N", help="how many tasks, or `all` (default 100)"
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
        policy, described = _policy(env, arguments)
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
    if sum(who is not None for who in (arguments.policy, arguments.model, arguments.local)) != 1:
        raise CommandError("who plays? Give --model NAME, --local FOLDER or --policy POLICY, one of the three", 2)
    for name in ("base_url", "api_key_env", "chat", "no_request_seed"):
        if arguments.model is None and getattr(arguments, name) not in (None, False, []):
            raise CommandError(f"--{name.replace('_', '-')} goes with --model", 2)
    for name in ("temperature", "max_tokens"):
        if arguments.policy is not None and getattr(arguments, name) is not None:
            raise CommandError(f"--{name.replace('_', '-')} goes with --model or --local", 2)
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
    if wanted != "all" and not wanted.isdecimal():
        raise CommandError(f"--num-tasks must be a whole number or `all`, not {wanted!r}", 2)
    try:
        return choose_tasks(env.tasks, None if wanted == "all" else int(wanted), arguments.seed)
    except ValueError as error:
        raise CommandError(f"--num-tasks {wanted}: {error}", 2) from error


def _policy(env: TextEnv[Any], arguments: argparse.Namespace) -> tuple[Policy, dict[str, Any]]:
    """The policy, and what of it may change a result."""
    if arguments.model is not None:
        return _endpoint(arguments)
    if arguments.local is not None:
        return _local(arguments)
    name = arguments.policy
    if name in SCRIPTS:
        if not has_script(env, name):
            raise CommandError(f"{arguments.id} has no script {name!r}", 2)
        return ScriptedPolicy(name), {"script": name}
    import_from_here()
    try:
        function = load_function(name)
    except ValueError as error:
        raise CommandError(str(error), 2) from error
    return FunctionPolicy(function), {"function": name}


def _endpoint(arguments: argparse.Namespace) -> tuple[Policy, dict[str, Any]]:
    try:
        from ..chat import ChatSpec
        from ..evaluate.endpoint import EndpointPolicy

        given = {name: getattr(arguments, name) for name in ("base_url", "api_key_env", "temperature", "max_tokens")}
        options = {name: value for name, value in given.items() if value is not None}
        more = parse_options(arguments.chat)
        if twice := [name for name in more if name in options or name == "model"]:
            raise CommandError(f"--chat {twice[0]}=... has an option of its own: --{twice[0].replace('_', '-')}", 2)
        spec = ChatSpec.of(arguments.model, **{"concurrency": arguments.concurrency, **options, **more})
        seeded = not arguments.no_request_seed
        policy = EndpointPolicy(spec, request_seed=seeded)
    except ImportError as error:
        raise CommandError(str(error)) from error
    except ValueError as error:
        raise CommandError(str(error), 2) from error
    described = {name: getattr(spec, name) for name in ("model", "base_url", "temperature", "max_tokens", "extra")}
    return policy, {**described, "request_seed": seeded}


def _local(arguments: argparse.Namespace) -> tuple[Policy, dict[str, Any]]:
    # By its entry point: what computes models is no part of this package.
    found = [point for point in importlib.metadata.entry_points(group="textenvs.policies") if point.name == "local"]
    if not found:
        raise CommandError("nothing installed here computes models; reinstall textenvs to have its entry points")
    given = {name: getattr(arguments, name) for name in ("temperature", "max_tokens")}
    options = {name: value for name, value in given.items() if value is not None}
    try:
        make = found[0].load()
        policy = make(arguments.local, concurrency=arguments.concurrency, **options)
    except ImportError as error:
        raise CommandError(f"--local needs torch and transformers ({error}): pip install 'textenvs[train]'") from error
    except ValueError as error:
        raise CommandError(f"--local {arguments.local}: {error}", 2) from error
    return policy, {"local": arguments.local, **options}


def _version(env_id: str) -> int | None:
    return describe(env_id).version if env_id in list_environments() else None


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
