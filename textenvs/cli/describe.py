"""``textenvs describe``: what an environment asks and pays, how to configure it, and what its scripts earn."""

from __future__ import annotations

import argparse
import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import docstring_parser

from ..attack import Attack
from ..audit.earnings import Earning, earned, makers, scripted_policies
from ..audit.subject import mean
from ..env import TextEnv
from ..evaluate.policies import SCRIPTS
from ..evaluate.records import Record
from ..evaluate.summary import failures, summarize, table
from ..messages import transcript
from ..text import plural, printable
from ..turn import SOLVED
from .common import class_of, open_environment, options_of, parse_options, registered, show_value

_WIDTH = 100
_ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")  # Sphinx's :class:`~a.b.Name`
_CODE = re.compile(r"``([^`]+)``")


def run(arguments: argparse.Namespace) -> int:
    options = parse_options(arguments.options)
    env = open_environment(arguments.id, options)
    env.close()
    for part in (*_identity(arguments.id, env), _options(class_of(arguments.id), arguments.id), _facts(env)):
        if part:
            print(f"{part}\n", flush=True)
    levels = makers(arguments.id, options)
    if default := _default_level(env, levels, arguments.all_levels):
        levels = {default: levels[default]}
    for number, (level, make_env) in enumerate(levels.items()):
        played = list[Earning]()
        for earning in _played(make_env, arguments.episodes, arguments.seed):
            if not played and number == 0 and earning.policy == "expert" and earning.records:
                print(f"A conversation of the scripted expert\n\n{_conversation(earning.records[0])}\n", flush=True)
            played.append(earning)
        print(f"{f'Level {level}, over' if level else 'Over'} {_earnings(played)}\n")
    if default and (rest := [level for level in env.levels if level != default]):
        print(f"Other levels ({', '.join(rest)}): level=NAME, or --all-levels.")
    expert = played[0]
    if expert.policy != "expert":
        print("It has no scripted expert: its class does not define demonstration(rng).")
    elif env.has_success and mean(expert.good) > 0 and not any(record.success for record in expert.good):
        print(f'No episode of the expert ended with stop="{SOLVED}", which is what counts as solved.')
    return 0


def _played(make_env: Callable[[], TextEnv[Any]], episodes: int, seed: int) -> Iterator[Earning]:
    """Let the scripts and attacks play, and say meanwhile which one does: in a shell some take minutes."""
    with closing(make_env()) as env:
        policies = scripted_policies(env)
    terminal = sys.stderr.isatty()
    for number, policy in enumerate(policies, 1):
        name = policy.name if isinstance(policy, Attack) else policy
        if terminal:
            line = f"policy {number} of {len(policies)}, {name}, plays {plural(episodes, 'episode')}"
            print(f"\r{line[: shutil.get_terminal_size().columns - 1]}\x1b[K", end="", file=sys.stderr, flush=True)
        earning = earned(make_env, policy, episodes, seed=seed)
        if terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        yield earning


def _default_level(env: TextEnv[Any], levels: Mapping[str, Any], every: bool) -> str:
    """Return the level to show: the environment's own, else the first; empty to show all."""
    if every or len(levels) < 2:
        return ""
    own = getattr(env, "level", None)
    return str(own) if own in levels else next(iter(levels))


def _identity(env_id: str, env: TextEnv[Any]) -> Iterator[str]:
    kind, doc = type(env), docstring_parser.parse(inspect.getdoc(type(env)) or "")
    if spec := registered(env_id):
        yield f"{env_id}, version {spec.version}\n{textwrap.fill(spec.description, _WIDTH)}"
    else:
        yield env_id
    text = "\n\n".join(part for part in (doc.short_description, doc.long_description) if part)
    yield "\n\n".join(
        [f"{kind.__module__}.{kind.__qualname__}", *(_paragraph(part) for part in text.split("\n\n") if part)]
    )


def _options(maker: Callable[..., Any], env_id: str) -> str:
    spec = registered(env_id)
    lines = ["Options (key=value)"]
    for name, option in options_of(maker)[0].items():
        default = spec.kwargs.get(name, option.default) if spec else option.default
        lines.append(f"  {name} {'(needed)' if default is inspect.Parameter.empty else f'= {show_value(default)}'}")
        if option.doc:
            lines.append(textwrap.indent(_paragraph(option.doc, _WIDTH - 6), "      "))
    return "\n".join(lines) if len(lines) > 1 else ""


def _facts(env: TextEnv[Any]) -> str:
    size = "endless" if env.tasks.size is None else plural(env.tasks.size, "task")
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


def _earnings(earned: Sequence[Earning]) -> str:
    rows, causes = [], []
    numbers = {earning.policy: summarize(earning.records)["all"] for earning in earned if earning.records}
    for earning in earned:
        returns = [record.total for record in earning.good]
        all_of = numbers.get(earning.policy)
        if all_of is None or not returns:
            rows.append([earning.policy, *["-"] * 5, "all"])
        else:
            spread = (all_of["return"]["value"], min(returns), max(returns))
            turns, failed = f"{all_of['assistant_turns']['value']:.1f}", str(all_of["failed"])
            returned = [f"{value:+.3f}" for value in spread]
            solved = f"{all_of['success']['value']:.1%}" if "success" in all_of else "-"
            rows.append([earning.policy, solved, *returned, turns, failed])
        if all_of is None or all_of["failed"]:
            causes.append(f"{earning.policy}: {failures(all_of) if all_of else earning.cause}")
    header = ["policy", "solved", "mean return", "lowest", "highest", "turns", "failed"]
    scripts = [name for name in SCRIPTS if "terms" in numbers.get(name, {})]
    terms = dict.fromkeys(term for name in scripts for term in numbers[name]["terms"])
    absent = {"value": 0.0}  # a term that no turn of a script had
    parts = [
        [term, *(f"{numbers[name]['terms'].get(term, absent)['value']:+.3f}" for name in scripts)] for term in terms
    ]
    policies = table(rows, header, right=range(1, 7))
    by_term = [table(parts, ["reward term", *scripts], right=range(1, 1 + len(scripts)))] if terms else []
    count = max(len(earning.records) for earning in earned)
    return "\n\n".join((f"{plural(count, 'task')}, an episode each", policies, *by_term, *causes))


def _paragraph(text: str, width: int = _WIDTH) -> str:
    """Docstring markup as plain text; lists and indented code keep their lines."""
    text = _CODE.sub(r"\1", _ROLE.sub(r"\1", text))
    blocks = text.split("\n\n")
    return "\n\n".join(
        block if re.search(r"^(\s+|[*-] )", block, re.MULTILINE) else textwrap.fill(" ".join(block.split()), width)
        for block in blocks
    )
