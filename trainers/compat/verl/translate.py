"""Translation of verl's keys to native ones, by keys.yaml; every key is answered with a line, none silently.

A command with a key of ``actor_rollout_ref`` is taken as a whole command of verl: a key that it omits has verl's
default where the native default differs. Native keys may stand beside verl's, and the later wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias

import yaml

from ...config.describe import Key, key_at
from ...config.settings import COMMAND_LINE, Report, Setting, extract_flags
from ...config.unread import Reads, unread
from ...config.yaml12 import Loader, dump

#: Origin of a verl default.
DEFAULT = "verl's default"
# Keys with the same names here need no rule.
_SHARED = ("algorithm.kl_ctrl.", "algorithm.gamma", "algorithm.lam", "algorithm.gdpo_", "trainer.resume_from_path")
#: The file: rules by command, and names and defaults that computed keys need.
NAMES: Mapping[str, Any] = yaml.load(Path(__file__).with_name("keys.yaml").read_text(encoding="utf-8"), Loader)
#: Results of a rule for several keys: a native key, its value, and verl's keys that it comes from.
Results: TypeAlias = Iterator[tuple[str, Any, tuple[str, ...]]]


@dataclass(frozen=True)
class Rule:
    """Translation of one of verl's keys, or of a group of them."""

    to: str | None = None  # native key that takes the value; with ``.*`` at its end, the key of that name below it
    words: Mapping[Any, Any] = field(
        default_factory=dict
    )  # translates some values, or elements of a list; all others stay
    computed: str | None = None  # a function of :mod:`.rules` that computes native keys from several of verl's
    only: tuple[Any, ...] | None = None  # accepted values besides null; another is an error that says ``why``
    why: str = ""  # why it has no meaning, how it is computed, what differs
    group: str = ""  # prefix of its keys, if it is for several


def _rule(name: str, entry: str | Mapping[str, Any]) -> Rule:
    if isinstance(entry, str):
        entry = {"to": entry[3:].replace("*", name.rpartition(".")[2])} if entry.startswith("-> ") else {"why": entry}
    elif "only" in entry:
        only = entry["only"]
        entry = {**entry, "only": tuple(only) if isinstance(only, list) else () if only is None else (only,)}
    return Rule(**entry, group=name.removesuffix("*") if name.endswith(".*") else "")


def rules_of(command: str) -> dict[str, Rule]:
    """Return the rules of a command, by verl's key; a name that ends in ``.*`` holds for all keys below."""
    return {
        f"{prefix}{name}": _rule(f"{prefix}{name}", entry)
        for prefixes, entries in NAMES[command].items()
        for prefix in prefixes.split() or [""]
        for names, entry in entries.items()
        for name in names.split()
    }


class BadValueError(ValueError):
    """One of verl's keys has a value that no rule accepts; it was reported."""


@dataclass
class VerlSettings:
    """The settings of a command, for rules of several keys.

    In a ``whole`` command of verl, keys that are not set have verl's defaults.
    """

    verl: Mapping[str, Setting]
    native: Mapping[str, Setting]
    keys: Mapping[str, Key]
    whole: bool
    report: Report
    refused: set[str] = field(default_factory=set)

    def has(self, name: str) -> bool:
        """Return whether one of verl's keys was set to a value other than null."""
        return name in self.verl and self.verl[name].value is not None

    def first(self, *names: str) -> str | None:
        return next((name for name in names if self.has(name)), None)

    def under(self, *prefixes: str) -> list[str]:
        return [key for key in self.verl if key.startswith(prefixes)]

    def passed(self, native: Mapping[str, str]) -> Results:
        """Yield the values of verl's keys that were set, by the native key of ``mapping``."""
        return ((name, self.value(key), (key,)) for key, name in native.items() if self.has(key))

    def refuse(self, name: str, text: str, *, says_value: bool = False) -> None:
        """Report what is wrong with one of verl's keys, and continue."""
        self.refused.add(name)
        message = f"is {dump(self.value(name))}; {text}" if says_value else text
        self.report(name, message, self.verl[name].where if name in self.verl else DEFAULT)

    def stop(self, name: str, text: str, *, says_value: bool = False) -> NoReturn:
        """Report what is wrong with one of verl's keys, and raise BadValueError."""
        self.refuse(name, text, says_value=says_value)
        raise BadValueError(name)

    def value(self, name: str) -> Any:
        """Return a verl key's value, or if it was not set: verl's default in a whole command, else the native value."""
        if self.has(name):
            return self.verl[name].value
        if self.whole:
            return NAMES["values"].get(name)
        if name == "data.max_prompt_length":
            return self.native_value("engine.max_context") - self.native_value("rollout.max_response_length")
        same = NAMES["same"].get(name)
        return self.native_value(same) if same else None

    def number(self, name: str, least: int = 1) -> int:
        """Return a verl key's value as an integer of at least ``least``, or raise BadValueError."""
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.stop(name, f"it must be an integer >= {least}", says_value=True)
        return value

    def word(self, name: str, choices: Mapping[str, str], text: str) -> str:
        """Return the native word of a value in ``choices``, or raise BadValueError; ``text`` introduces the list."""
        value = self.value(name)
        if not isinstance(value, str) or value not in choices:
            self.stop(name, text + ", ".join(choices), says_value=True)
        return choices[value]

    def native_value(self, name: str) -> Any:
        return self.native[name].value if name in self.native else self.keys[name].default


@dataclass(frozen=True)
class Table:
    """Translation of one command's keys."""

    rules: Mapping[str, Rule] = field(default_factory=dict)  # see :func:`rules_of`
    computed: Mapping[str, Callable[[VerlSettings], Results]] = field(default_factory=dict)  # by name, in order of use
    defaults: Mapping[str, Any] = field(default_factory=dict)  # verl's defaults of native keys, for whole commands
    reads: Reads = field(default_factory=dict)  # native keys that are read only with certain values of other keys
    whole: str | None = None  # prefix of the keys that make a command one of verl's
    prefix: str = ""  # prefix of keys in some of verl's versions, absent in others

    def rule(self, name: str) -> Rule | None:
        """Return the rule for a key, or that of a group that it belongs to."""
        parts = name.split(".")
        above = [".".join(parts[:length]) for length in range(len(parts) - 1, 0, -1)]
        for key in (name, *(f"{group}.*" for group in above)):
            if key in self.rules:
                return self.rules[key]
        # A mapping that was set as a whole (`override_config={a: 1}`) arrives as its entries.
        return next((rule for group in above if (rule := self.rules.get(group)) and rule.only is not None), None)


class _Translated(NamedTuple):
    """A setting in native keys."""

    place: int  # position on the command line; -1 for a default
    setting: Setting
    may_be_unused: bool = True  # it may have no effect here: commands of verl often carry such keys
    keys: tuple[str, ...] = ()  # verl's keys that it comes from, if they have other names or values
    why: str = ""


def translate(
    settings: Sequence[Setting], keys: Mapping[str, Key], table: Table, report: Report
) -> tuple[list[Setting], list[str]]:
    """Return the settings in native keys, in order of precedence, and a line on each verl key. Later settings win."""
    ruled = []
    for setting in settings:
        # Strip the signs by which Hydra adds a new key.
        name = setting.key.lstrip("+").removeprefix(table.prefix)
        if name in keys or table.rule(name):
            setting = Setting(name, setting.value, setting.where)
        ruled.append((setting, table.rule(setting.key)))
    if not any(rule and setting.key not in keys for setting, rule in ruled):
        return list(settings), []
    whole = table.whole is not None and any(setting.key.startswith(table.whole) for setting, _ in ruled)
    notes = ["a command of verl: what it leaves out is as in verl (marked below)"] if whole else []
    verl_keys = {setting.key: setting for setting, rule in ruled if rule}
    verl_settings = VerlSettings(
        verl_keys, {setting.key: setting for setting, _ in ruled if setting.key in keys}, keys, whole, report
    )
    shared_may_be_unused = whole or table.whole is None
    translated = [_Translated(-1, Setting(key, value, DEFAULT)) for key, value in table.defaults.items() if whole]
    computed_places: dict[
        str, dict[str, int]
    ] = {}  # by rule of several keys: the keys that were set, and their positions
    for place, (setting, rule) in enumerate(ruled):
        key, value = setting.key, setting.value
        if isinstance(value, str) and "${" in value:
            report(key, f"{value} is not resolved here; write the value", setting.where)
        if rule is None:
            translated.append(_Translated(place, setting, shared_may_be_unused and key.startswith(_SHARED)))
        elif rule.computed is not None:
            computed_places.setdefault(rule.computed, {})[key] = place
        elif rule.to is not None:
            target, value = rule.to, _in_our_words(value, rule.words)
            if target.endswith(".*"):
                target = f"{target[:-1]}{key.removeprefix(rule.group)}"
            elif value is None and not keys[target].nullable:  # null in verl is unset; the native default has a value
                value = table.defaults.get(target, keys[target].default)
            if key == target and value == setting.value:
                translated.append(_Translated(place, setting, shared_may_be_unused))
            else:
                translated.append(
                    _Translated(place, Setting(target, value, f"{key}, {setting.where}"), True, (key,), rule.why)
                )
        elif rule.only is None or value is None or any(_same(value, accepted) for accepted in rule.only):
            notes.append(f"{key}: no meaning here: {rule.why}")
        else:
            allowed = " or ".join(map(dump, rule.only)) or "null"
            verl_settings.refuse(key, f"{dump(value)} is unsupported: {rule.why}; leave it at {allowed}")
    for name, function in table.computed.items():
        if name in computed_places or whole:
            translated += _computed(function, computed_places.get(name, {}), verl_settings, notes, table)
    translated.sort(key=lambda entry: entry.place)
    return list(_read(translated, keys, notes, table.reads)), notes


def _in_our_words(value: Any, words: Mapping[Any, Any]) -> Any:
    if isinstance(value, list):
        return [_in_our_words(item, words) for item in value]
    return next((native for verl_word, native in words.items() if _same(verl_word, value)), value)


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are equal as in YAML, where 1 is 1.0 and not true."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _computed(
    function: Callable[[VerlSettings], Results],
    places: Mapping[str, int],
    verl_settings: VerlSettings,
    notes: list[str],
    table: Table,
) -> Iterator[_Translated]:
    """Yield the settings of a rule of several keys, of which those in ``places`` were set; the last one counts."""
    place, used = max(places.values(), default=-1), set[str]()
    try:
        for name, value, keys in function(verl_settings):
            if of := tuple(key for key in keys if key in places):
                where = ", ".join([*of, *dict.fromkeys(verl_settings.verl[key].where for key in of)])
                yield _Translated(place, Setting(name, value, where), True, of)
                used.update(of)
            elif verl_settings.whole:
                yield _Translated(-1, Setting(name, value, DEFAULT))
    except BadValueError:
        return
    for key in places:
        if key not in used | verl_settings.refused and (rule := table.rule(key)):
            notes.append(f"{key}: not used: {rule.why}")


def _read(
    translated: Sequence[_Translated], keys: Mapping[str, Key], notes: list[str], reads: Reads
) -> Iterator[Setting]:
    """Yield the settings without those of verl's that nothing reads (a critic's beside GRPO); add notes about both."""
    last = {entry.setting.key: entry.setting.value for entry in translated}
    for _, setting, may_be_unused, keys_of_verl, why in translated:
        owner, sources, key = key_at(setting.key, keys), ", ".join(keys_of_verl), setting.key
        unused = None
        if may_be_unused and owner is not None:
            of_variant = {owner.name: {owner.switch: owner.readers}} if owner.readers else {}
            unused = unread(owner.name, lambda name: last.get(name, keys[name].default), {**reads, **of_variant})
        if unused is None or (key in keys and setting.value == keys[key].default):
            if sources:
                notes.append(f"{sources} -> {key}={dump(setting.value)}{f' ({why})' * bool(why)}")
            yield setting
        elif setting.where != DEFAULT:
            notes.append(f"{sources or key}: not used: {key if sources else 'it'} {unused}")


def take_flags(arguments: Sequence[str], report: Report) -> tuple[list[str], list[str], list[str]]:
    """Take Hydra's flags that name a YAML file; return the other arguments, the files, and notes on the flags."""
    names = {"--config-path": "path", "-cp": "path", "--config-name": "name", "-cn": "name"}
    flags, rest = extract_flags(arguments, names, report)
    if not flags:
        return rest, [], []
    values = {names[flag]: value for flag, value in flags}
    name = values.get("name", NAMES["configs"][0]).removesuffix(".yaml")
    path = Path(values.get("path", ".")).expanduser() / f"{name}.yaml"
    if name in NAMES["configs"]:
        return rest, [], [f"--config-name={name}: no meaning here: what is left out is as in verl"]
    if path.is_file():
        return rest, [str(path)], [f"--config-name={name}: read from {path}, before the keys of the command line"]
    text = f"there is no file {path}: give its folder with --config-path, or write its keys on the command line"
    if "ppo" in name and "trainer" in name:
        text = f"{name} is unsupported: FSDP2 trains here; omit it (see trainer.fsdp, trainer.tensor_parallel_size)"
    report("--config-name", text, COMMAND_LINE)
    return rest, [], []
