"""``textenvs new``: an environment or an agent to start from, with a test that passes."""

from __future__ import annotations

import argparse
import json
import keyword
import random
import re
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from string import Template

from ..evaluate.records import write_text
from .arguments import COMMANDS
from .common import CommandError

_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
#: The functions of an agent's module, by the option of the environment that names them.
_FUNCTIONS = {"agent": "agent", "scorer": "score", "expert": "expert"}
_TASKS = {"train": 100, "val": 20}  # rows of an agent's tasks
_TAKEN = {*sys.stdlib_module_names, "gymnasium", "numpy", "pytest", "textenvs", "trainers"}


def run(arguments: argparse.Namespace) -> int:
    name, folder = arguments.name, Path(arguments.out).expanduser()
    if not _NAME.fullmatch(name):
        raise CommandError(f"{name!r} is no name: lower-case letters and digits, with hyphens, as in word-chain", 2)
    module = name.replace("-", "_")
    if module in _TAKEN or keyword.iskeyword(module):
        raise CommandError(f"{name!r}: a file {module}.py would hide the Python module of that name; take another", 2)
    words = re.split("[-_]", name)
    cls = "".join(word.capitalize() for word in words)
    names = {
        "title": " ".join(words).capitalize(),
        "id": "-".join(words),
        "module": module,
        "folder": str(folder),
        "cls": cls,
        "state": f"{cls}State",
        "test": str(folder / f"test_{module}.py"),
    }
    if arguments.agent:
        names["program"] = str(folder / f"{module}.py")
        names |= {split: str(folder / f"{module}_{split}.jsonl") for split in _TASKS}
        options = [f"{option}={module}:{function}" for option, function in _FUNCTIONS.items()]
        names |= {"options": " ".join(options), "kwargs": " ".join(f"env.kwargs.{option}" for option in options)}
        texts = {"program": _filled("new_agent", names), "test": _filled("new_agent_test", names), **_tasks()}
    else:
        names["environment"] = str(folder / f"{module}.py")
        texts = {"environment": _filled("new_environment", names), "test": _filled("new_test", names)}
    for path in (names[what] for what in texts):
        if Path(path).exists():
            raise CommandError(f"{path} is there already; take another name or another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for what, text in texts.items():
            write_text(Path(names[what]), text)
    except OSError as error:
        raise CommandError(f"{folder}: {error}") from error
    print(Template(COMMANDS["new"]["next_agent" if arguments.agent else "next"]).substitute(names))
    return 0


def _filled(template: str, names: Mapping[str, str]) -> str:
    text = resources.files(__package__).joinpath(f"{template}.txt").read_text(encoding="utf-8")
    return Template(text).substitute(names)


def _tasks() -> dict[str, str]:
    """Return the rows of the agent's tasks, crates and what is in them; no task is in both files."""
    rng, texts, questions = random.Random(0), dict.fromkeys(_TASKS, ""), set[str]()
    for split, count in _TASKS.items():
        while texts[split].count("\n") < count:
            crates = {name: rng.randint(11, 99) for name in rng.sample("ABCDEFGH", rng.randint(2, 3))}
            question = f"How many things are in the crates {', '.join(crates)}?"
            if question not in questions:
                questions.add(question)
                row = {"question": question, "answer": str(sum(crates.values())), "crates": crates}
                texts[split] += f"{json.dumps(row)}\n"
    return texts
