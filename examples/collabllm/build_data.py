r"""Conversations to train on, from single-turn tasks: CollabLLM's first stage.

An assistant talks with an environment's simulated user. At each of its turns several replies are proposed, each is
scored by the multiturn-aware reward (futures of a fork of the episode), and the best is sent.

    python examples/collabllm/build_data.py textenv/clarify --policy expert --careless-rate 0.5 --out outputs/data
    python examples/collabllm/build_data.py textenv/collab-math tasks=rows.parquet user='{"model": "gpt-4o-mini"}' \
        --model Qwen/Qwen2.5-7B-Instruct --base-url http://localhost:8000/v1 --judge gpt-4o-mini --out outputs/data

The folder gets `episodes.jsonl`, a line for each finished conversation with all candidates, and from it `sft.parquet`
(`messages` and scores, for `python -m trainers.sft`) and `pairs.parquet` (`prompt`, `chosen`, `rejected`, for DPO). The
same command resumes where it was stopped; nothing that is finished is played again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from best_of_n import BestOfN, preference_pairs, sft_row

from textenvs.cli.common import CommandError, import_from_here, open_environment, parse_options
from textenvs.cli.policies import add_policy_arguments, check_policy_arguments, policy_of
from textenvs.data import TaskError
from textenvs.data.files import write_rows
from textenvs.env import TextEnv
from textenvs.evaluate.plan import choose_tasks, fingerprint, jobs
from textenvs.evaluate.policies import SCRIPTS, FunctionPolicy, Policy, ScriptedPolicy, load_function
from textenvs.evaluate.records import Folder, FolderError, Record, write_text
from textenvs.evaluate.runner import Stopped, run
from textenvs.evaluate.summary import failures, summarize, table
from textenvs.lookahead import FORMULAS
from textenvs.text import printable

#: Where the reward of a conversation's last reply stands among a row's scores.
REWARD = "reward"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument("id", help="an environment with a simulated user: an id of `textenvs list`, or module:id")
    made.add_argument("options", nargs="*", metavar="key=value", help="its options, as for `textenvs evaluate`")
    add_policy_arguments(made)
    script = made.add_argument_group("a script as the assistant (--policy expert)")
    script.add_argument(
        "--careless-rate", type=float, default=0.0, metavar="P", help="share of careless replies (default 0)"
    )
    ahead = made.add_argument_group("looking ahead")
    ahead.add_argument("--candidates", type=int, default=2, metavar="N", help="replies proposed a turn (default 2)")
    ahead.add_argument("--futures", type=int, default=3, metavar="K", help="of each candidate (default 3)")
    ahead.add_argument("--window", type=int, default=2, metavar="W", help="turns of a future (default 2)")
    ahead.add_argument(
        "--future-policy", metavar="POLICY", help=f"plays them instead: {', '.join(SCRIPTS)}, or module:function"
    )
    ahead.add_argument("--formula", default="textenvs", choices=FORMULAS, help="what length costs (default textenvs)")
    ahead.add_argument("--cost", type=float, metavar="C", help="of a word or token, in place of the formula's")
    ahead.add_argument("--tokenizer", metavar="FOLDER", help="counts tokens, for formulas that charge them")
    ahead.add_argument(
        "--weight", action="append", default=[], metavar="NAME=W", help="of a score, or of interactivity (default 1)"
    )
    ahead.add_argument(
        "--judge", metavar="SPEC", help='grades interactivity: a model, or {"model": ..., "base_url": ...} (ChatSpec)'
    )
    what = made.add_argument_group("the conversations")
    what.add_argument("--num-tasks", default="100", metavar="N", help="how many tasks, or `all` (default 100)")
    what.add_argument("--samples", type=int, default=1, metavar="K", help="conversations of each task (default 1)")
    what.add_argument("--seed", type=int, default=0, metavar="N", help="of tasks, candidates and futures (default 0)")
    what.add_argument("--concurrency", type=int, default=8, metavar="N", help="conversations at a time (default 8)")
    what.add_argument(
        "--max-failures", type=int, default=8, metavar="N", help="stop after this many failed ones in a row (default 8)"
    )
    where = made.add_argument_group("the files")
    where.add_argument("--out", required=True, metavar="DIR", help="the folder")
    where.add_argument("--format", default="parquet", choices=("parquet", "jsonl"), help="of the rows")
    where.add_argument("--retry-failed", action="store_true", help="play the failed conversations in DIR again")
    where.add_argument(
        "--min",
        action="append",
        default=[],
        metavar="NAME=X",
        help="only conversations whose last score is at least X are rows of sft: accuracy=0.5, reward=0, ...",
    )
    where.add_argument("--min-margin", type=float, default=0.0, metavar="X", help="of the rewards of a pair")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_intermixed_args(argv)
    try:
        return build(arguments)
    except CommandError as error:
        print(f"build_data: {printable(str(error))}", file=sys.stderr)
        return error.status
    except (FolderError, TaskError, ImportError, OSError) as error:
        print(f"build_data: {printable(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before or after playing; during it, `build` reports what is kept
        return 130


def build(arguments: argparse.Namespace) -> int:
    """Play what is missing, and write the rows of all that is there."""
    check(arguments)
    least = numbers(arguments.min, "--min")
    options = parse_options(arguments.options)
    env = open_environment(arguments.id, options)
    try:
        count = None if arguments.num_tasks == "all" else int(arguments.num_tasks)
        indices = choose_tasks(env.tasks, count, arguments.seed)
        policy, described = assistant_of(env, arguments)
        looking = lookahead_options(arguments)
        best = best_of_n(policy, arguments, looking)
        configuration = {
            "environment": {"id": arguments.id, "options": options},
            "tasks": {"name": env.tasks.name, "count": len(indices), "fingerprint": fingerprint(env.tasks, indices)},
            "samples": arguments.samples,
            "seed": arguments.seed,
            "policy": described,
            "lookahead": {
                "candidates": arguments.candidates,
                "future_policy": arguments.future_policy,
                "tokenizer": arguments.tokenizer,
                "judge": None if arguments.judge is None else spec_of(arguments.judge),
                **{name: value for name, value in looking.items() if name not in ("count_tokens", "judge")},
            },
        }
    except ValueError as error:
        raise CommandError(str(error), 2) from error
    finally:
        env.close()
    planned = list(jobs(indices, arguments.samples, arguments.seed))
    with Folder(arguments.out, configuration, retry_failed=arguments.retry_failed) as folder:
        missing = [job for job in planned if job.place not in folder.records]
        print(f"{len(planned) - len(missing)} of {len(planned)} conversations are there already", file=sys.stderr)
        problem, exit_status = None, 1
        try:
            asyncio.run(play(missing, lambda: open_environment(arguments.id, options), best, folder, arguments))
        except Stopped as error:
            problem = str(error)
        except KeyboardInterrupt:
            problem, exit_status = "interrupted", 130
        records = [record for _, record in sorted(folder.records.items())]
        status = write(records, Path(arguments.out).expanduser(), arguments, least)
    if problem is not None:
        progress = (
            f"{len(records)} of {len(planned)} conversations are kept in {arguments.out}; the same command resumes"
        )
        raise CommandError(f"{problem}\n{progress}", exit_status)
    return status


async def play(
    missing: Sequence[Any], make_env: Callable[[], TextEnv[Any]], best: BestOfN, folder: Folder, arguments: Any
) -> None:
    try:
        await run(
            missing,
            make_env,
            best,
            on_record=folder.add,
            concurrency=arguments.concurrency,
            max_failures=arguments.max_failures,
        )
    finally:
        await best.aclose()


def write(records: Sequence[Record], out: Path, arguments: argparse.Namespace, least: Mapping[str, float]) -> int:
    """Write the files of rows, and print what they hold in a table; return 1 if there is nothing to learn from."""
    good = [record for record in records if not record.failed]
    rows = [row for record in good if (row := sft_row(record)) is not None]
    sft_rows = [row for row in rows if enough(row, least)]
    pairs = [pair for record in records for pair in preference_pairs(record, min_margin=arguments.min_margin)]
    table_rows = [["conversations", str(len(records))]]
    for name, kind_rows in (("sft", sft_rows), ("pairs", pairs)):
        path = out / f"{name}.{arguments.format}"
        if not kind_rows:
            path.unlink(missing_ok=True)  # of an earlier run with other limits
        elif arguments.format == "parquet":
            write_rows(kind_rows, path)
        else:
            write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kind_rows))
        table_rows.append([f"rows of {name}", str(len(kind_rows))])
    for name, value in means(sft_rows):
        table_rows.append([f"  mean {name}", f"{value:+.4f}"])
    print(table(table_rows, right=(1,)))
    if len(good) < len(records):
        print(printable(failures(summarize(records)["all"])))
    if not sft_rows:
        print(f"no conversation is good enough for {out}/sft.{arguments.format}", file=sys.stderr)
        return 1
    return 0


def enough(row: Mapping[str, Any], least: Mapping[str, float]) -> bool:
    for name, limit in least.items():
        key = name if name == REWARD else f"score/{name}"
        if key not in row:
            score_names = [REWARD, *(other.removeprefix("score/") for other in row if other.startswith("score/"))]
            raise CommandError(f"--min {name}={limit}: there is no such score; there are {', '.join(score_names)}", 2)
        if row[key] < limit:
            return False
    return True


def means(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    for name in rows[0] if rows else ():
        if name == REWARD or name.startswith("score/"):
            yield name.removeprefix("score/"), sum(row[name] for row in rows) / len(rows)
    if rows:
        yield "replies", sum(len(row["turn_rewards"]) for row in rows) / len(rows)


# ---------------------------------------------------------------------- who talks, and who judges


def assistant_of(env: TextEnv[Any], arguments: argparse.Namespace) -> tuple[Policy, dict[str, Any]]:
    if arguments.policy in SCRIPTS and arguments.careless_rate:
        described = {"script": arguments.policy, "careless_rate": arguments.careless_rate}
        return ScriptedPolicy(arguments.policy, careless_rate=arguments.careless_rate), described
    at_once = arguments.concurrency * arguments.candidates * arguments.futures
    return policy_of(env, arguments.id, argparse.Namespace(**{**vars(arguments), "concurrency": at_once}))


def best_of_n(policy: Policy, arguments: argparse.Namespace, looking: Mapping[str, Any]) -> BestOfN:
    futures: Policy | None = None
    if (name := arguments.future_policy) is not None:
        import_from_here()
        futures = ScriptedPolicy(name) if name in SCRIPTS else FunctionPolicy(load_function(name))
    return BestOfN(policy, candidates=arguments.candidates, futures=futures, **looking)


def lookahead_options(arguments: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {
        "samples": arguments.futures,
        "window": arguments.window,
        "formula": arguments.formula,
        "cost": arguments.cost,
        "weights": numbers(arguments.weight, "--weight"),
        "seed": arguments.seed,
    }
    if arguments.tokenizer is not None:
        options["count_tokens"] = token_counter(arguments.tokenizer)
    if arguments.judge is not None:
        from textenvs.judges import InteractivityJudge

        options["judge"] = InteractivityJudge(spec_of(arguments.judge))
    return options


def spec_of(text: str) -> Any:
    """Return a model's name, or the mapping of a ChatSpec's options."""
    if not text.lstrip().startswith("{"):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise CommandError(f"--judge is not JSON ({error})", 2) from error


def token_counter(folder: str) -> Callable[[str], int]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))


def numbers(words: Sequence[str], option: str) -> dict[str, float]:
    """Parse `name=number` words."""
    values: dict[str, float] = {}
    for word in words:
        name, equals, value = word.partition("=")
        try:
            values[name] = float(value)
        except ValueError:
            equals = ""
        if not name or not equals:
            raise CommandError(f"{option} takes NAME=NUMBER, not {word!r}", 2)
    return values


def check(arguments: argparse.Namespace) -> None:
    check_policy_arguments(arguments)
    counts = ("samples", "candidates", "futures", "concurrency", "max_failures")
    for name, lowest in (*((name, 1) for name in counts), ("seed", 0)):
        if getattr(arguments, name) < lowest:
            raise CommandError(f"--{name.replace('_', '-')} must be at least {lowest}", 2)
    if arguments.num_tasks != "all" and not arguments.num_tasks.isdecimal():
        raise CommandError(f"--num-tasks must be an integer or `all`, not {arguments.num_tasks!r}", 2)
    if arguments.careless_rate and arguments.policy not in SCRIPTS:
        raise CommandError(f"--careless-rate goes with --policy {' or '.join(SCRIPTS)}", 2)


if __name__ == "__main__":
    raise SystemExit(main())
