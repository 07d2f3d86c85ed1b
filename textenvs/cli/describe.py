"""``textenvs describe``: what an environment asks and pays, how to configure it, and what its scripts earn."""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import docstring_parser

from ..env import TextEnv
from ..evaluate.baselines import has_script, play_script
from ..evaluate.policies import SCRIPTS
from ..evaluate.records import Record
from ..evaluate.report import failures, table
from ..evaluate.runner import Stopped
from ..evaluate.summary import summarize
from ..messages import transcript
from ..registry import describe, list_environments
from ..text import printable
from .common import CommandError, class_of, open_environment, options_of, parse_options, show_value

_WIDTH = 100
_ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")  # Sphinx's :class:`~a.b.Name`
_CODE = re.compile(r"``([^`]+)``")


def add(commands: Any) -> argparse.ArgumentParser:
    """Declare the command."""
    parser = commands.add_parser(
        "describe",
        help="what one of them asks and pays",
        usage="textenvs describe ID [key=value ...] [--episodes N] [--seed N]",
        description=(
            "Show an environment: options, limits, reward terms, a conversation of its scripted expert, and what the\n"
            "expert, careless replies and random replies earn."
        ),
    )
    parser.add_argument("id", help="an id of `textenvs list`, or module:id for one of your own")
    parser.add_argument("--episodes", type=int, default=200, metavar="N", help="tasks for the returns (default 200)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of tasks and scripts (default 0)")
    parser.set_defaults(run=run, takes_options=True)
    return parser  # type: ignore[no-any-return]


def run(arguments: argparse.Namespace) -> int:
    """Print the description."""
    if arguments.episodes < 1:
        raise CommandError(f"--episodes must be at least 1, not {arguments.episodes}", 2)
    if arguments.seed < 0:
        raise CommandError(f"--seed must be at least 0, not {arguments.seed}", 2)
    options = parse_options(arguments.options)
    env = open_environment(arguments.id, options)
    try:
        for part in (
            *_identity(arguments.id, env),
            _options(class_of(arguments.id), arguments.id),
            _facts(env),
        ):
            if part:
                print(f"{part}\n")
    finally:
        env.close()
    played: dict[str, list[Record]] = {}
    for script in SCRIPTS:
        if has_script(env, script):
            try:
                played[script] = play_script(
                    lambda: open_environment(arguments.id, options), script, arguments.episodes, seed=arguments.seed
                )
            except Stopped as stopped:
                raise CommandError(f"the {script} could not play: {stopped}") from stopped
    if "expert" in played:
        print(f"A conversation of the scripted expert\n\n{_conversation(played['expert'][0])}\n")
    print(_earnings(played))
    if "expert" not in played:
        print("\nIt has no scripted expert: its class does not define demonstration(rng).")
    return 0


def _identity(env_id: str, env: TextEnv[Any]) -> Iterator[str]:
    kind, doc = type(env), docstring_parser.parse(inspect.getdoc(type(env)) or "")
    if env_id in list_environments(with_arguments=True):
        spec = describe(env_id)
        yield f"{env_id}, version {spec.version}\n{textwrap.fill(spec.description, _WIDTH)}"
    else:
        yield env_id
    text = "\n\n".join(part for part in (doc.short_description, doc.long_description) if part)
    yield "\n\n".join(
        [f"{kind.__module__}.{kind.__qualname__}", *(_paragraph(part) for part in text.split("\n\n") if part)]
    )


def _options(maker: Callable[..., Any], env_id: str) -> str:
    registered: Mapping[str, Any] = describe(env_id).kwargs if env_id in list_environments(with_arguments=True) else {}
    lines = ["Options (key=value)"]
    for name, option in options_of(maker)[0].items():
        default = registered.get(name, option.default)
        lines.append(f"  {name} {'(needed)' if default is inspect.Parameter.empty else f'= {show_value(default)}'}")
        if option.doc:
            lines.append(textwrap.indent(_paragraph(option.doc, _WIDTH - 6), "      "))
    return "\n".join(lines) if len(lines) > 1 else ""


def _facts(env: TextEnv[Any]) -> str:
    size = "endless" if env.tasks.size is None else f"{env.tasks.size} tasks"
    rows = [
        ["Tasks", f"{env.tasks.name}, {size}"],
        ["Turns", f"{_limit(env.max_assistant_turns)} of the assistant, {_limit(env.max_user_turns)} of the user"],
    ]
    if tools := getattr(env, "tools", ()):
        rows.append(["Tools", ", ".join(f"{tool.name}({', '.join(_arguments(tool))})" for tool in tools)])
    return table(rows)


def _arguments(tool: Any) -> Iterator[str]:
    required = tool.parameters.get("required", ())
    for name in tool.parameters.get("properties", {}):
        yield name if name in required else f"{name}=..."


def _limit(limit: int | None) -> str:
    return "any number" if limit is None else f"at most {limit}"


def _conversation(record: Record) -> str:
    rewards = ", ".join(f"{reward:+g}" for reward in record.turn_rewards)
    ending = f"[task {record.task_key}; turn rewards {rewards}; stop: {record.stop}]"
    return f"{printable(transcript(record.messages))}\n{ending}"


def _earnings(played: Mapping[str, Sequence[Record]]) -> str:
    numbers = {script: summarize(records)["all"] for script, records in played.items()}
    rows = []
    for script, found in numbers.items():
        if found["failed"] == found["episodes"]:
            rows.append([script, *["-"] * 5, str(found["failed"])])
            continue
        returns = [record.total for record in played[script] if not record.failed]
        rows.append(
            [
                script,
                f"{found['success']['value']:.1%}",
                f"{found['return']['value']:+.3f}",
                f"{min(returns):+.3f}",
                f"{max(returns):+.3f}",
                f"{found['assistant_turns']['value']:.1f}",
                str(found["failed"]),
            ]
        )
    count = len(next(iter(played.values())))
    policies = table(
        rows, ["policy", "solved", "mean return", "lowest", "highest", "turns", "failed"], right=range(1, 7)
    )
    terms = dict.fromkeys(term for found in numbers.values() for term in found.get("terms", {}))
    parts = table(
        [
            [
                term,
                *(f"{found['terms'][term]['value']:+.3f}" if "terms" in found else "-" for found in numbers.values()),
            ]
            for term in terms
        ],
        ["reward term", *numbers],
        right=range(1, 1 + len(numbers)),
    )
    causes = [f"{script}: {failures(found)}" for script, found in numbers.items() if found["failed"]]
    return "\n\n".join((f"Over {count} tasks, an episode each", policies, *([parts] if terms else []), *causes))


def _paragraph(text: str, width: int = _WIDTH) -> str:
    """Docstring markup as plain text; lists and indented code keep their lines."""
    text = _CODE.sub(r"\1", _ROLE.sub(r"\1", text))
    blocks = text.split("\n\n")
    return "\n\n".join(
        block if re.search(r"^(\s+|[*-] )", block, re.MULTILINE) else textwrap.fill(" ".join(block.split()), width)
        for block in blocks
    )
