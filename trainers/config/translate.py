"""From verl's keys to ours, by the table of :mod:`.verl`; every key is answered with a line, none silently.

A command with a key of ``actor_rollout_ref`` is taken as a whole command of verl: what it leaves out has verl's
default where ours is another (:data:`~.verl_names.DEFAULTS`). Our own keys may stand beside verl's, and the later wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from . import verl_names
from .describe import Key
from .settings import Report, Setting
from .unread import unread
from .verl import Rule
from .yaml12 import dump

#: Where a default of verl's comes from.
DEFAULT = "verl's default"


# Keys with the same names there, which need no rule.
_SHARED = ("algorithm.kl_ctrl.", "algorithm.gamma", "algorithm.lam", "algorithm.gdpo_", "trainer.resume_from_path")


@dataclass(frozen=True)
class Table:
    """How the keys of one command are translated.

    Args:
        rules: By verl's key; a name that ends in ``.*`` holds for all keys below.
        defaults: Of verl, in our keys, for whole commands.
        joint: The functions that rules name, in the order they are used.
        whole: The beginning of keys that make a command one of verl's; ``None`` where there are no defaults.
        prefix: What keys of some of verl's versions begin with, and those of others do not.
    """

    rules: Mapping[str, Rule] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    joint: Mapping[str, Callable[[Given], Iterator[Result]]] = field(default_factory=dict)
    whole: str | None = None
    prefix: str = ""

    def rule(self, name: str) -> Rule | None:
        """The rule for a key, be it that of a whole group."""
        if name in self.rules:
            return self.rules[name]
        parts = name.split(".")
        for count in range(len(parts) - 1, 0, -1):
            if (rule := self.rules.get(".".join(parts[:count]) + ".*")) is not None:
                return rule
        # A mapping that was given as a whole (`override_config={a: 1}`) arrives as its entries.
        for count in range(len(parts) - 1, 0, -1):
            if (rule := self.rules.get(".".join(parts[:count]))) is not None and rule.only is not None:
                return rule
        return None


@dataclass(frozen=True)
class Result:
    """What a joint rule found: a value for one of our keys, or what is wrong (``key`` is then verl's)."""

    key: str
    value: Any = None
    problem: str | None = None
    of: tuple[str, ...] = ()


class Given:
    """What was set, for joint rules: verl's keys, ours, and what the schema has."""

    def __init__(
        self, verls: Mapping[str, Setting], ours: Mapping[str, Setting], keys: Mapping[str, Key], whole: bool
    ) -> None:
        self.verls = verls
        self.ours = ours
        self.keys = keys
        self.whole = whole

    def has(self, *names: str) -> bool:
        """Whether one of verl's keys was given a value other than null."""
        return any(name in self.verls and self.verls[name].value is not None for name in names)

    def where(self, name: str) -> str:
        """Where one of verl's keys was written; nowhere for a default."""
        return self.verls[name].where if name in self.verls else DEFAULT

    def value(self, name: str) -> Any:
        """The value of one of verl's keys; else its default there, in a whole command; else what ours says."""
        if self.has(name):
            return self.verls[name].value
        if self.whole:
            return verl_names.VERL_VALUES.get(name)
        if name == "data.max_prompt_length":
            return self.our("engine.max_context") - self.our("rollout.max_response_length")
        same = {
            "data.train_batch_size": "rollout.groups_per_batch",
            "data.max_response_length": "rollout.max_response_length",
            "actor_rollout_ref.actor.ppo_mini_batch_size": "rollout.groups_per_batch",
        }
        return self.our(same[name]) if name in same else None

    def number(self, name: str, least: int = 1) -> int:
        """Likewise, as an integer.

        Raises:
            ValueError: It is none, or too small.
        """
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise BadValueError(name, f"is {dump(value)}; it must be an integer >= {least}")
        return value

    def our(self, name: str) -> Any:
        """The value of one of our keys, as given or by default."""
        return self.ours[name].value if name in self.ours else self.keys[name].default


class BadValueError(ValueError):
    """One of verl's keys has a value that no rule takes."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key = key


@dataclass(frozen=True)
class Translated:
    """The settings in our keys, in the order they count, and a line about each of verl's keys."""

    settings: tuple[Setting, ...]
    notes: tuple[str, ...]


def translate(settings: Sequence[Setting], keys: Mapping[str, Key], table: Table, report: Report) -> Translated:
    """Translate verl's keys; settings of ours stay as they are, and unknown ones too (for who reports them).

    Args:
        settings: In the order they count: later ones win.
        keys: The schema's.
        table: The command's.
        report: Told what is wrong.
    """
    named = [_plain(setting, keys, table) for setting in settings]
    if not any(setting.key not in keys and table.rule(setting.key) is not None for setting in named):
        return Translated(tuple(settings), ())
    for setting in named:
        if isinstance(setting.value, str) and "${" in setting.value:
            report(setting.key, f"{setting.value} is not resolved here; write the value", setting.where)
    whole = table.whole is not None and any(setting.key.startswith(table.whole) for setting in named)
    verls = {setting.key: setting for setting in named if table.rule(setting.key) is not None}
    ours = {setting.key: setting for setting in named if setting.key in keys}
    defaults = [Setting(key, value, DEFAULT) for key, value in table.defaults.items() if whole]
    notes = ["a command of verl: what it leaves out is as in verl (marked below)"] if whole else []
    given: list[list[Setting]] = []  # what each setting became, in their order
    places: dict[str, int] = {}  # of verl's keys that belong to joint rules
    for setting in named:
        rule = table.rule(setting.key)
        places[setting.key] = len(given)
        if rule is None:
            given.append([setting])
        elif rule.joint is not None:
            given.append([])
        else:
            given.append(list(_simple(setting, rule, keys, table, notes, report)))
    for name, function in table.joint.items():
        mine = [key for key in verls if (rule := table.rule(key)) is not None and rule.joint == name]
        if not mine and not whole:
            continue
        # What is computed from several keys stands where the last of them stands.
        place = max((places[key] for key in mine), default=0)
        for setting in _jointly(function, mine, Given(verls, ours, keys, whole), notes, report, table):
            if setting.where != DEFAULT:
                given[place].append(setting)
            elif whole:
                defaults.append(setting)
    everything = [*defaults, *(setting for some in given for setting in some)]
    ours_alone = [
        setting
        for setting in named
        if setting.key in keys and not (whole and (table.rule(setting.key) or setting.key.startswith(_SHARED)))
    ]
    theirs = {id(setting) for setting in everything} - {id(setting) for setting in ours_alone}
    return Translated(*_read(everything, theirs, keys, notes))


def _read(
    settings: Sequence[Setting], theirs: Set[int], keys: Mapping[str, Key], notes: Sequence[str]
) -> tuple[tuple[Setting, ...], tuple[str, ...]]:
    """The settings without those of verl's (``theirs``, by identity) that would not be read here, and lines of them.

    Its launch commands carry such keys: options of a critic beside an estimator without one, for example.
    """
    last = {setting.key: setting.value for setting in settings}

    def value_of(key: str) -> Any:
        return last.get(key, keys[key].default)

    kept, said = [], list(notes)
    for setting in settings:
        why = unread(setting.key, value_of) if id(setting) in theirs and setting.key in keys else None
        if why is None or setting.value == keys[setting.key].default:
            kept.append(setting)
        elif setting.where != DEFAULT:
            became = f" -> {setting.key}={dump(setting.value)}"
            if not any(became in note for note in said):  # it has the same name there
                said.append(f"{setting.key}: not used: it {why}")
            said = [note.partition(became)[0] + f": not used: {setting.key} {why}" * (became in note) for note in said]
    return tuple(kept), tuple(said)


def _plain(setting: Setting, keys: Mapping[str, Key], table: Table) -> Setting:
    """Without the signs by which Hydra adds a key that its configuration has not, and without the table's prefix."""
    name = setting.key.lstrip("+")
    if table.prefix and name.startswith(table.prefix):
        name = name.removeprefix(table.prefix)
    if name != setting.key and (name in keys or table.rule(name) is not None):
        return Setting(name, setting.value, setting.where)
    return setting


def _simple(
    setting: Setting, rule: Rule, keys: Mapping[str, Key], table: Table, notes: list[str], report: Report
) -> Iterator[Setting]:
    """A key that is translated by itself."""
    key, value = setting.key, setting.value
    if rule.to:
        value = _in_our_words(value, rule.words)
        if value is None and not keys[rule.to[0]].nullable:  # there nothing is said; here a default has a value
            value = table.defaults.get(rule.to[0], keys[rule.to[0]].default)
        if key in rule.to and value == setting.value:  # the same key with the same value
            yield setting
            return
        for target in rule.to:
            yield Setting(target, value, f"{key}, {setting.where}")
        said = ", ".join(f"{target}={dump(value)}" for target in rule.to)
        notes.append(f"{key} -> {said}" + (f" ({rule.why})" if rule.why else ""))
        return
    if rule.only is not None and not _among(value, rule.only):
        allowed = " or ".join(dump(each) for each in rule.only if each is not None) or "null"
        report(key, f"{dump(value)} cannot be had: {rule.why}; leave it at {allowed}", setting.where)
        return
    notes.append(f"{key}: no meaning here: {rule.why}")


def _in_our_words(value: Any, words: Mapping[Any, Any]) -> Any:
    if isinstance(value, list):
        return [_in_our_words(each, words) for each in value]
    for theirs, ours in words.items():
        if type(theirs) is type(value) and theirs == value:
            return ours
    return value


def _among(value: Any, allowed: Sequence[Any]) -> bool:
    return any(type(value) is type(each) and value == each for each in allowed)


def _jointly(
    function: Callable[[Given], Iterator[Result]],
    mine: Sequence[str],
    given: Given,
    notes: list[str],
    report: Report,
    table: Table,
) -> Iterator[Setting]:
    """The settings of a joint rule; ``mine`` are the keys that belong to it and were given."""
    answered: set[str] = set()
    try:
        for result in function(given):
            of = [key for key in result.of if key in mine]
            answered |= set(of)
            where = ", ".join([*of, *dict.fromkeys(given.verls[key].where for key in of)]) if of else DEFAULT
            if result.problem is not None:
                answered.add(result.key)
                report(result.key, result.problem, given.where(result.key))
            elif result.key:
                yield Setting(result.key, result.value, where)
                if of:
                    notes.append(f"{', '.join(of)} -> {result.key}={dump(result.value)}")
            elif of:
                notes.append(f"{', '.join(of)}: {result.value}")
    except BadValueError as error:
        answered |= set(mine)
        report(error.key, str(error), given.where(error.key))
    for key in mine:
        if key not in answered:
            rule = table.rule(key)
            notes.append(f"{key}: no meaning here: {rule.why if rule is not None else ''}")
