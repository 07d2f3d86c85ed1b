"""What is known of verl's configuration: its keys and what becomes of each, its defaults, its names (verl.yaml)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .settings import COMMAND_LINE, Report, taken
from .yaml12 import Loader


@dataclass(frozen=True)
class Rule:
    """What becomes of one of verl's keys.

    Args:
        to: Our key that takes the value; with ``.*`` at its end, the key of that name below it.
        words: Other words for some values, applied to the elements of a list too; all others stay.
        computed: The name of a rule in :mod:`.tables` that computes our keys from several of verl's.
        only: The values that are accepted beside null; any other is an error that says ``why``. ``None`` accepts all.
        why: Said beside the key: why it has no meaning, how it is computed, what differs.
        group: What its keys begin with, where it is for several.
    """

    to: str | None = None
    words: Mapping[Any, Any] = field(default_factory=dict)
    computed: str | None = None
    only: tuple[Any, ...] | None = None
    why: str = ""
    group: str = ""


def _rule(name: str, entry: str | Mapping[str, Any]) -> Rule:
    group = name.removesuffix("*") if name.endswith(".*") else ""
    if isinstance(entry, str) and entry.startswith("-> "):
        return Rule(to=entry[3:].replace("*", name.rpartition(".")[2]), group=group)
    if isinstance(entry, str):
        return Rule(why=entry)
    if "only" not in entry:
        return Rule(**entry, group=group)
    only = entry["only"]
    return Rule(only=tuple(only) if isinstance(only, list) else () if only is None else (only,), why=entry["why"])


def _rules(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Rule]:
    return {
        f"{prefix}{name}": _rule(f"{prefix}{name}", entry)
        for prefixes, entries in sections.items()
        for prefix in prefixes.split() or [""]
        for names, entry in entries.items()
        for name in names.split()
    }


_DATA: Mapping[str, Any] = yaml.load(Path(__file__).with_name("verl.yaml").read_text(encoding="utf-8"), Loader)

#: By verl's key; a name that ends in ``.*`` holds for all keys below.
PPO, GENERATE, EVALUATE = (_rules(_DATA[command]) for command in ("ppo", "generate", "evaluate"))
#: What verl does where a command of its own says nothing and our default is another: our keys.
DEFAULTS: Mapping[str, Any] = _DATA["defaults"]
#: verl's own defaults that a joint rule starts from.
VALUES: Mapping[str, Any] = _DATA["values"]
#: verl's names; ``interactions`` and ``tools`` are the environments that its classes are, with options to be like them.
NAMES: Mapping[str, Any] = _DATA


#: Hydra's flags, which name the YAML file that a command begins with.
_FLAGS = {"--config-path": "path", "-cp": "path", "--config-name": "name", "-cn": "name"}


def take_flags(arguments: Sequence[str], report: Report) -> tuple[list[str], list[str], list[str]]:
    """The other arguments; the files to read before them; what became of Hydra's flags, in words."""
    flags, rest = taken(arguments, _FLAGS, report)
    given = {_FLAGS[flag]: value for flag, value in flags}
    if not given:
        return rest, [], []
    name = given.get("name", NAMES["configs"][0]).removesuffix(".yaml")
    said = f"--config-name={name}"
    path = Path(given.get("path", ".")).expanduser() / f"{name}.yaml"
    if name in NAMES["configs"]:
        return rest, [], [f"{said}: no meaning here: what is left out is as in verl"]
    if path.is_file():
        return rest, [str(path)], [f"{said}: read from {path}, before the keys of the command line"]
    if "ppo" in name and "trainer" in name:
        text = f"{name} cannot be had: FSDP2 trains here; leave it out (see trainer.fsdp, trainer.tensor_parallel_size)"
        report("--config-name", text, COMMAND_LINE)
    else:
        text = f"there is no file {path}: give its folder with --config-path, or write its keys on the command line"
        report("--config-name", text, COMMAND_LINE)
    return rest, [], []
