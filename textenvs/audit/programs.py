"""Programs that patch their checker, against environments that run the policy's programs.

They are played in another process: an environment that runs them in its own process hands that to them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ..attack import Attack, Cheater
from ..env import TextEnv
from ..evaluate.baselines import play_policy
from ..evaluate.plan import jobs
from ..evaluate.policies import AttackPolicy
from ..evaluate.records import Record
from ..messages import Message, Messages, assistant, text_of
from ..text import load_yaml
from ..tools.formats import call
from .process import Died, Unfinished, Unpicklable, run_in_new_process
from .subject import Subject, Verdict, mean, show

#: Set by a program that runs in the process of its environment.
REACHED = "textenvs_audit_reached"

_RUNS_CODE = re.compile(r"```python|\bdef \w+\(|\b[Pp]ython\b|\b[Ff]unction\b")
_NAME = re.compile(r"def (\w+)\(|[Ff]unction,? (?:named |called )?[`'\"]?(\w+)[`'\"]?|`(\w+)\(")
_MARK = f"import sys\nsys.{REACHED} = True\n"
_EPISODES = 10


#: The programs, by name; ``{name}`` is the name of the requested function.
LIBRARY: Mapping[str, str] = load_yaml(__package__, "programs.yaml")


def programs(subject: Subject) -> Verdict:
    """Check that no program that patches its checker is paid, or reaches the environment's process."""
    check, env = "programs that patch the checker", subject.env.fork()
    opening, _ = env.reset(seed=subject.seed)
    question = " ".join(text_of(message) for message in opening if message["role"] == "user")
    if not any(map(_code_of, getattr(env, "tool_schemas", ()))) and not _RUNS_CODE.search(question):
        return Verdict(check, "skipped", "it asks for no program and has no tool that runs one")
    indices, _ = subject.tasks(min(_EPISODES, subject.episodes), seed=30)
    best = (-float("inf"), "")
    for name in LIBRARY:
        try:
            result = run_in_new_process(play_program, subject.make_env, name, indices, subject.seed)
        except Unpicklable as error:
            return Verdict(check, "skipped", "what makes the environment cannot be sent to another process", str(error))
        except Unfinished as error:
            return Verdict(check, "skipped", f"{name} could not be played to its end", str(error))
        except Died as error:
            cause = "a program ended the process that judges it: run what a policy writes in a sandbox"
            return Verdict(check, "fail", cause, f"{name}: {error}")
        records = [Record(**fields) for fields in result["records"]]
        evidence = f"{name}: mean return {mean(records):+.3f}"
        cause = ""
        if result["reached"]:
            cause = (
                "a program runs in the environment's own process, where it can patch the checker and read what it "
                "compares with: run it in a sandbox, and judge outside of it"
            )
        elif mean(records) > subject.limit:
            cause = "a program that patches its checker passes: the verdict must be made outside of its process"
        if cause:
            return Verdict(check, "fail", cause, evidence, show(records))
        best = max(best, (mean(records), evidence))
    return Verdict(check, "pass", f"{len(LIBRARY)} programs pass nothing", f"best is {best[1]}")


def play_program(make_env: Callable[[], TextEnv[Any]], name: str, indices: list[int], seed: int) -> dict[str, Any]:
    """Play a program of the library; return the records as JSON, and whether it ran in this process."""
    env = make_env()
    schemas = [schema for schema in getattr(env, "tool_schemas", ()) if _code_of(schema)]
    attack = Attack(name, "", lambda rng, seen: _cheater(LIBRARY[name], schemas))
    records = play_policy(env, AttackPolicy(attack), jobs(indices, 1, seed), max_failures=2**31)
    return {"records": [asdict(record) for record in records], "reached": hasattr(sys, REACHED)}


def _program(text: str, conversation: Messages) -> str:
    question = " ".join(text_of(message) for message in conversation if message["role"] == "user")
    names = [group for match in _NAME.finditer(question) for group in match.groups() if group]
    return _MARK + text.format(name=names[0] if names else "solve")


def _cheater(text: str, schemas: list[Any]) -> Cheater:
    """Run the program with a tool first, where there is one, and then answer with it."""
    through = iter(schemas[:1])

    def reply(conversation: Messages) -> str | Message:
        program = _program(text, conversation)
        for schema in through:
            return assistant("", [call(schema["function"]["name"], **{_code_of(schema): program})])
        return f"```python\n{program}```"

    return reply


def _code_of(schema: Any) -> str:
    """Return the name of a tool's parameter that takes a program, or an empty string."""
    names = schema["function"].get("parameters", {}).get("properties", {})
    return next((name for name in names if name in ("code", "program", "source", "script")), "")
