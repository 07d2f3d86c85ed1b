"""From verl's keys to ours, by verl.yaml; every key is answered with a line, none silently.

A command with a key of ``actor_rollout_ref`` is taken as a whole command of verl: what it leaves out has verl's
default where ours is another. Our own keys may stand beside verl's, and the later wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias

import yaml

from .describe import Key, key_at
from .settings import COMMAND_LINE, Report, Setting, taken
from .unread import Reads, unread
from .yaml12 import Loader, dump

#: Where a default of verl's comes from.
DEFAULT = "verl's default"
# Keys with the same names there, which need no rule.
_SHARED = ("algorithm.kl_ctrl.", "algorithm.gamma", "algorithm.lam", "algorithm.gdpo_", "trainer.resume_from_path")
#: The file: rules by command, and names and defaults that computed keys need.
NAMES: Mapping[str, Any] = yaml.load(Path(__file__).with_name("verl.yaml").read_text(encoding="utf-8"), Loader)
#: What a rule for several keys finds: one of our keys, its value, and verl's keys that it comes from.
Results: TypeAlias = Iterator[tuple[str, Any, tuple[str, ...]]]


@dataclass(frozen=True)
class Rule:
    """What becomes of one of verl's keys."""

    to: str | None = None  # our key that takes the value; with ``.*`` at its end, the key of that name below it
    words: Mapping[Any, Any] = field(default_factory=dict)  # for some values, or elements of a list; all others stay
    computed: str | None = None  # a function of :mod:`.verl_rules` that computes our keys from several of verl's
    only: tuple[Any, ...] | None = None  # what is accepted beside null; another value is an error that says ``why``
    why: str = ""  # why it has no meaning, how it is computed, what differs
    group: str = ""  # what its keys begin with, where it is for several


def _rule(name: str, entry: str | Mapping[str, Any]) -> Rule:
    if isinstance(entry, str):
        entry = {"to": entry[3:].replace("*", name.rpartition(".")[2])} if entry.startswith("-> ") else {"why": entry}
    elif "only" in entry:
        only = entry["only"]
        entry = {**entry, "only": tuple(only) if isinstance(only, list) else () if only is None else (only,)}
    return Rule(**entry, group=name.removesuffix("*") if name.endswith(".*") else "")


def rules_of(command: str) -> dict[str, Rule]:
    """The rules of a command, by verl's key; a name that ends in ``.*`` holds for all keys below."""
    return {
        f"{prefix}{name}": _rule(f"{prefix}{name}", entry)
        for prefixes, entries in NAMES[command].items()
        for prefix in prefixes.split() or [""]
        for names, entry in entries.items()
        for name in names.split()
    }


class BadValueError(ValueError):
    """One of verl's keys has a value that no rule takes; it was reported."""


@dataclass
class Given:
    """What was set, for rules of several keys; ``whole``: a command of verl's, and what it leaves out is as there."""

    verls: Mapping[str, Setting]
    ours: Mapping[str, Setting]
    keys: Mapping[str, Key]
    whole: bool
    report: Report
    refused: set[str] = field(default_factory=set)

    def has(self, name: str) -> bool:
        """Whether one of verl's keys was given a value other than null."""
        return name in self.verls and self.verls[name].value is not None

    def first(self, *names: str) -> str | None:
        return next((name for name in names if self.has(name)), None)

    def under(self, *prefixes: str) -> list[str]:
        return [key for key in self.verls if key.startswith(prefixes)]

    def passed(self, ours: Mapping[str, str]) -> Results:
        """The values of verl's keys, where they were given, for our keys."""
        return ((name, self.value(key), (key,)) for key, name in ours.items() if self.has(key))

    def refuse(self, name: str, text: str, *, says_value: bool = False) -> None:
        """Report what is wrong with one of verl's keys, and continue."""
        self.refused.add(name)
        said = f"is {dump(self.value(name))}; {text}" if says_value else text
        self.report(name, said, self.verls[name].where if name in self.verls else DEFAULT)

    def stop(self, name: str, text: str, *, says_value: bool = False) -> NoReturn:
        """Likewise, where the rule cannot continue."""
        self.refuse(name, text, says_value=says_value)
        raise BadValueError(name)

    def value(self, name: str) -> Any:
        """The value of one of verl's keys; else its default there, in a whole command; else what ours says."""
        if self.has(name):
            return self.verls[name].value
        if self.whole:
            return NAMES["values"].get(name)
        if name == "data.max_prompt_length":
            return self.our("engine.max_context") - self.our("rollout.max_response_length")
        same = NAMES["same"].get(name)
        return self.our(same) if same else None

    def number(self, name: str, least: int = 1) -> int:
        """Likewise, as an integer of at least ``least``."""
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.stop(name, f"it must be an integer >= {least}", says_value=True)
        return value

    def word(self, name: str, known: Mapping[str, str], text: str) -> str:
        """Likewise, one of the ``known`` words, as ours; ``text`` says before them what it must be."""
        value = self.value(name)
        if not isinstance(value, str) or value not in known:
            self.stop(name, text + ", ".join(known), says_value=True)
        return known[value]

    def our(self, name: str) -> Any:
        return self.ours[name].value if name in self.ours else self.keys[name].default


@dataclass(frozen=True)
class Table:
    """How the keys of one command are translated."""

    rules: Mapping[str, Rule] = field(default_factory=dict)  # see :func:`rules_of`
    computed: Mapping[str, Callable[[Given], Results]] = field(default_factory=dict)  # by name, in order of use
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of verl, in our keys, for whole commands
    reads: Reads = field(default_factory=dict)  # which of our keys are read only where others have certain values
    whole: str | None = None  # what keys begin with that make a command one of verl's
    prefix: str = ""  # what keys of some of verl's versions begin with, and those of others do not

    def rule(self, name: str) -> Rule | None:
        """The rule for a key, be it that of a whole group."""
        parts = name.split(".")
        above = [".".join(parts[:length]) for length in range(len(parts) - 1, 0, -1)]
        for key in (name, *(f"{each}.*" for each in above)):
            if key in self.rules:
                return self.rules[key]
        # A mapping that was given as a whole (`override_config={a: 1}`) arrives as its entries.
        return next((rule for each in above if (rule := self.rules.get(each)) and rule.only is not None), None)


class _Made(NamedTuple):
    """A setting in our keys."""

    place: int  # where it stood among those that were given; -1 of a default
    setting: Setting
    theirs: bool = True  # it may have no effect here, because a command of verl's may carry it for nothing
    keys: tuple[str, ...] = ()  # those of verl's that it comes from, if they have other names or values
    why: str = ""


def translate(
    settings: Sequence[Setting], keys: Mapping[str, Key], table: Table, report: Report
) -> tuple[list[Setting], list[str]]:
    """The settings in our keys, in the order they count, and a line about each of verl's keys. Later settings win."""
    ruled = []
    for setting in settings:
        # Without the signs by which Hydra adds a key that its configuration has not.
        name = setting.key.lstrip("+").removeprefix(table.prefix)
        if name in keys or table.rule(name):
            setting = Setting(name, setting.value, setting.where)
        ruled.append((setting, table.rule(setting.key)))
    if not any(rule and setting.key not in keys for setting, rule in ruled):
        return list(settings), []
    whole = table.whole is not None and any(setting.key.startswith(table.whole) for setting, _ in ruled)
    notes = ["a command of verl: what it leaves out is as in verl (marked below)"] if whole else []
    verls = {setting.key: setting for setting, rule in ruled if rule}
    given = Given(verls, {setting.key: setting for setting, _ in ruled if setting.key in keys}, keys, whole, report)
    shared_are_theirs = whole or table.whole is None
    made = [_Made(-1, Setting(key, value, DEFAULT)) for key, value in table.defaults.items() if whole]
    mine: dict[str, dict[str, int]] = {}  # by rule of several keys, those given and their places
    for place, (setting, rule) in enumerate(ruled):
        key, value = setting.key, setting.value
        if isinstance(value, str) and "${" in value:
            report(key, f"{value} is not resolved here; write the value", setting.where)
        if rule is None:
            made.append(_Made(place, setting, shared_are_theirs and key.startswith(_SHARED)))
        elif rule.computed is not None:
            mine.setdefault(rule.computed, {})[key] = place
        elif rule.to is not None:
            ours, value = rule.to, _in_our_words(value, rule.words)
            if ours.endswith(".*"):
                ours = f"{ours[:-1]}{key.removeprefix(rule.group)}"
            elif value is None and not keys[ours].nullable:  # there nothing is said; here a default has a value
                value = table.defaults.get(ours, keys[ours].default)
            if key == ours and value == setting.value:
                made.append(_Made(place, setting, shared_are_theirs))
            else:
                made.append(_Made(place, Setting(ours, value, f"{key}, {setting.where}"), True, (key,), rule.why))
        elif rule.only is None or value is None or any(_same(value, each) for each in rule.only):
            notes.append(f"{key}: no meaning here: {rule.why}")
        else:
            allowed = " or ".join(map(dump, rule.only)) or "null"
            given.refuse(key, f"{dump(value)} cannot be had: {rule.why}; leave it at {allowed}")
    for name, function in table.computed.items():
        if name in mine or whole:
            made += _computed(function, mine.get(name, {}), given, notes, table)
    made.sort(key=lambda each: each.place)
    return list(_read(made, keys, notes, table.reads)), notes


def _in_our_words(value: Any, words: Mapping[Any, Any]) -> Any:
    if isinstance(value, list):
        return [_in_our_words(each, words) for each in value]
    return next((ours for theirs, ours in words.items() if _same(theirs, value)), value)


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal as YAML's, where 1 is 1.0 and not true."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _computed(
    function: Callable[[Given], Results], mine: Mapping[str, int], given: Given, notes: list[str], table: Table
) -> Iterator[_Made]:
    """The settings of a rule of several keys, of which ``mine`` were given at these places; the last one counts."""
    place, used = max(mine.values(), default=-1), set[str]()
    try:
        for name, value, keys in function(given):
            if of := tuple(key for key in keys if key in mine):
                where = ", ".join([*of, *dict.fromkeys(given.verls[key].where for key in of)])
                yield _Made(place, Setting(name, value, where), True, of)
                used.update(of)
            elif given.whole:
                yield _Made(-1, Setting(name, value, DEFAULT))
    except BadValueError:
        return
    for key in mine:
        if key not in used | given.refused and (rule := table.rule(key)):
            notes.append(f"{key}: not used: {rule.why}")


def _read(made: Sequence[_Made], keys: Mapping[str, Key], notes: list[str], reads: Reads) -> Iterator[Setting]:
    """Without settings of verl's that are not read here (a critic's beside GRPO), and lines about both."""
    last = {each.setting.key: each.setting.value for each in made}
    for _, setting, may_do_nothing, of, why in made:
        owner, theirs, key = key_at(setting.key, keys), ", ".join(of), setting.key
        unused = None
        if may_do_nothing and owner is not None:
            unused = unread(owner.name, lambda name: last.get(name, keys[name].default), reads)
        if unused is None or (key in keys and setting.value == keys[key].default):
            if theirs:
                notes.append(f"{theirs} -> {key}={dump(setting.value)}{f' ({why})' * bool(why)}")
            yield setting
        elif setting.where != DEFAULT:
            notes.append(f"{theirs or key}: not used: {key if theirs else 'it'} {unused}")


def take_flags(arguments: Sequence[str], report: Report) -> tuple[list[str], list[str], list[str]]:
    """Take Hydra's flags that name a YAML file: the other arguments, the files, and what became of the flags."""
    names = {"--config-path": "path", "-cp": "path", "--config-name": "name", "-cn": "name"}
    flags, rest = taken(arguments, names, report)
    if not flags:
        return rest, [], []
    given = {names[flag]: value for flag, value in flags}
    name = given.get("name", NAMES["configs"][0]).removesuffix(".yaml")
    path = Path(given.get("path", ".")).expanduser() / f"{name}.yaml"
    if name in NAMES["configs"]:
        return rest, [], [f"--config-name={name}: no meaning here: what is left out is as in verl"]
    if path.is_file():
        return rest, [str(path)], [f"--config-name={name}: read from {path}, before the keys of the command line"]
    text = f"there is no file {path}: give its folder with --config-path, or write its keys on the command line"
    if "ppo" in name and "trainer" in name:
        text = f"{name} cannot be had: FSDP2 trains here; leave it out (see trainer.fsdp, trainer.tensor_parallel_size)"
    report("--config-name", text, COMMAND_LINE)
    return rest, [], []
